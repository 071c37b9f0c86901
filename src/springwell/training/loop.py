r"""Training by recovery likelihood (Gao et al. 2021, Alg. 1).

    repeat:  t ~ Unif{0 ... T-1};  (y_t, x_{t+1}) from data;  y^- by the chain of level t;  Adam on f(y^-, t) - f(y_t, t)

One loop on accelerate, the same for one process and many. All randomness of iteration i follows from (seed, i, index in
the whole batch), so a resumed run ends with the same bits as one that was never interrupted. A run that diverges goes back to
its last good checkpoint and on from there with half the learning rate and other noise.
"""

from __future__ import annotations

import copy
import json
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from accelerate import Accelerator, InitProcessGroupKwargs
from torch import Tensor

from springwell import objectives
from springwell.app.config import Config
from springwell.data.source import DataSource, open_data
from springwell.devices import automatic_device
from springwell.energy import ImageEnergy
from springwell.errors import DivergenceError, InterruptionError, UserError
from springwell.level import Chains
from springwell.model import Model, build_energy, build_schedule, initial_step_size, model_tensors
from springwell.noise import Noise
from springwell.progress import Reporter, Silent, Terminal
from springwell.samplers import adapt_step_size, make_kernel
from springwell.store.checkpoint import bring_back, good_checkpoints, match, save_checkpoint, set_aside
from springwell.store.files import read_lines
from springwell.store.run import Run
from springwell.training.ema import update_ema
from springwell.training.guard import GUARD_EVERY, Guard

Batch = TypeVar("Batch")
STATISTICS = ("count", "loss", "f_pos", "f_neg", "displacement", "acceptance")
LEVEL_STREAM = 2**41
# Streams of noise between one attempt and the next; no run has so many iterations.
STREAMS_PER_ROLLBACK = 2**36
# On the learning rate after so many rollbacks. A rare accident needs little; what happens again needs much.
ROLLBACK_FACTORS = (1.0, 0.5, 0.1, 0.01)
# Share of the iterations after which a run does not begin anew.
YOUNG = 0.1
# What the backends say when a process that they talk to is gone.
LOST_PEER = ("Connection reset by peer", "Connection closed by peer", "Broken pipe", "NCCL communicator was aborted")
# How often many processes ask each other whether one was told to stop; each time they wait for their devices.
STOP_EVERY = 10


@dataclass(frozen=True)
class Result:
    """How a call of :func:`train` ended.

    Attributes:
        run: The run directory.
        status: ``finished``, ``already finished`` or ``interrupted``.
        iteration: Iterations done in all.
        seconds: Time this call spent in the loop.
    """

    run: Path
    status: Literal["finished", "already finished", "interrupted"]
    iteration: int
    seconds: float


def train(
    config: Config,
    out: Path | str | None = None,
    device: str = "auto",
    reporter: Reporter | None = None,
    preview: Callable[[Model, Path], None] | None = None,
    measure: Callable[[Model], dict[str, Any]] | None = None,
    stop_after: int | None = None,
) -> Result:
    """Trains the run in ``out``, from the beginning or from where it stopped.

    Args:
        config: The configuration; of an existing run it must be the same.
        out: The run directory. Default: ``runs/DATA``.
        device: ``auto``, ``cpu``, ``cuda``, ...
        reporter: Is told of progress. Default: a progress bar on stderr; ``Silent()`` for none.
        preview: Draws a picture of the model to a path.
        measure: Measures the model every ``config.training.fid_every`` iterations; all processes call it together.
        stop_after: Stop after so many iterations of this call, as an interruption would.
    """
    config.validate()
    c = config.training
    run = Run(Path("runs") / Path(config.data.split(":")[-1]).stem if out is None else out)
    accelerator = make_accelerator(device, c.precision)
    main, world = accelerator.is_main_process, accelerator.num_processes
    reporter = (reporter or Terminal()) if main else Silent()
    if c.batch % (world * c.accumulate):
        parts = f"{world} processes" + (f" x {c.accumulate} parts" if c.accumulate > 1 else "")
        raise UserError(f"--batch {c.batch}: cannot be divided among {parts}; use a multiple of {world * c.accumulate}")
    with accelerator.main_process_first():
        # The first process may have to prepare the images that the others then find.
        data = open_data(config.data, config.images, reporter)
    if main:
        run.begin(config)
    with run.alone(reporter.warn) if main else nullcontext():
        accelerator.wait_for_everyone()
        if run.finished:
            return Result(run.path, "already finished", c.iterations, 0.0)
        try:
            rollbacks = 0
            with _interruptible() as interrupted:
                while True:
                    try:
                        return _train(config, run, data, accelerator, reporter, interrupted, preview, measure, stop_after)
                    except DivergenceError as error:
                        rollbacks = _roll_back(error, rollbacks, config, run, accelerator, reporter)
        except OSError as error:
            kept = "its checkpoints are kept: mend that and run the same command again"
            raise UserError(f"--out {run.path}: cannot be written ({error.strerror or error}); {kept}") from None
        except RuntimeError as error:
            if world == 1 or not any(words in str(error) for words in LOST_PEER):
                raise
            what = "another process of this training ended"
            raise InterruptionError(f"{run.path}: {what}; its checkpoints are kept: run the same command to go on") from None


def _train(
    config: Config,
    run: Run,
    data: DataSource,
    accelerator: Accelerator,
    reporter: Reporter,
    interrupted: threading.Event,
    preview: Callable[[Model, Path], None] | None,
    measure: Callable[[Model], dict[str, Any]] | None,
    stop_after: int | None,
) -> Result:
    """The loop of :func:`train`, from the newest good checkpoint on."""
    c, sampler, main, world = config.training, config.sampler, accelerator.is_main_process, accelerator.num_processes
    schedule = build_schedule(config)
    energy = build_energy(config, schedule, data.event_shape).to(accelerator.device)
    average = copy.deepcopy(energy).requires_grad_(False)
    if isinstance(energy.network, ImageEnergy):
        energy.network.accelerate({"bf16": torch.bfloat16, "fp16": torch.float16}.get(c.precision), c.compile)
    groups = [
        {"params": [p for p in energy.parameters() if p.ndim > 1], "weight_decay": c.weight_decay},
        {"params": [p for p in energy.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ]
    adam = torch.optim.AdamW(groups, lr=c.lr, betas=(c.beta1, c.beta2), fused=True)
    model, optimizer = accelerator.prepare_model(energy), accelerator.prepare_optimizer(adam)
    schedule, weight = schedule.to(accelerator.device), energy.loss_weight
    step_size = initial_step_size(config, schedule)
    shift, scale = data.shift.to(accelerator.device), data.scale.to(accelerator.device)
    num_levels, dim = schedule.num_levels, math.prod(data.event_shape)
    statistics = torch.zeros(num_levels, len(STATISTICS), dtype=torch.float64, device=accelerator.device)
    chains = Chains(make_kernel(sampler.kernel, sampler.num_leapfrog), sampler.num_steps, step_size, sampler.jump_proposals)

    state = {f"model.{name}": tensor for name, tensor in model_tensors(average, step_size, shift, scale).items()}
    state |= {f"current.{name}": tensor for name, tensor in energy.state_dict().items()}
    state |= _optimizer_tensors(adam, energy) | {"statistics": statistics, "data": torch.tensor(data.fingerprint)}
    # The usual norm of the gradient and of how many iterations; and how often the run was rolled back.
    usual = state["guard"] = torch.zeros(3, dtype=torch.float64, device=accelerator.device)
    if accelerator.scaler is not None:
        state["scaler"] = scaler_tensor(accelerator.scaler)
    iteration = start = _restore(state, run, reporter) if run.checkpoints.exists() else 0
    if accelerator.scaler is not None:
        restore_scaler(accelerator.scaler, state["scaler"])
    last = c.iterations if stop_after is None else min(c.iterations, start + stop_after)
    lines = [line for line in run.read_metrics() if line["iteration"] <= start]
    rollbacks = min(max(sum("rollback" in line for line in lines), int(usual[2])), len(ROLLBACK_FACTORS) - 1)
    usual[2] = rollbacks
    first_stream = rollbacks * STREAMS_PER_ROLLBACK
    guard = Guard(num_levels, dim, lines, usual[:2])

    def save() -> None:
        if accelerator.scaler is not None:
            state["scaler"] = scaler_tensor(accelerator.scaler)
        if bad := next((name for name, tensor in state.items() if not bool(torch.isfinite(tensor).all())), None):
            raise DivergenceError(f"training diverged before iteration {iteration}: '{bad}' is not finite")
        if main:
            save_checkpoint(run.checkpoints, state, iteration, c.keep)

    def present() -> Model:
        return Model(config, schedule, average, step_size, shift, scale, iteration)

    def measured() -> None:
        assert measure is not None
        try:
            log.measured(iteration, measure(present()))
        except (DivergenceError, UserError) as error:
            reporter.warn(f"no FID of iteration {iteration}: {error}")

    share = c.batch // world
    mine = torch.arange(share, device=accelerator.device) + share * accelerator.process_index
    parts = mine.chunk(c.accumulate)

    def draw(number: int) -> tuple[Noise, Tensor]:
        noise = Noise(c.seed, parts[number % c.accumulate], first_stream + number // c.accumulate, sampler.num_steps)
        return noise, data.sample(noise)

    began = time.monotonic()
    with (
        _Log(run, start, c.tensorboard, main) as log,
        reporter.bar(f"training {run.path}", c.iterations, start) as bar,
        closing(_in_time(draw, start * c.accumulate, last * c.accumulate, prefetch=len(data.event_shape) > 1)) as batches,
    ):
        if measure and start and c.fid_every and start % c.fid_every == 0 and not _known(run, start, accelerator):
            measured()
        while iteration < last and not _agree_to_stop(interrupted, accelerator, iteration):
            lr = learning_rate(config, iteration) * ROLLBACK_FACTORS[rollbacks]
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.zero_grad()
            offset = Noise(c.seed, mine[:1] * 0, stream=LEVEL_STREAM + first_stream + iteration).uniform()
            sums = torch.zeros_like(statistics)
            for position in parts:
                # Alg. 1: a level and a pair for every sample of the batch, then the objective.
                noise, x = next(batches)
                t = objectives.stratified_levels(num_levels, position, c.batch, offset)
                y_t, x_next = schedule.pair(x, t, noise)
                with accelerator.no_sync(model) if position is not parts[-1] else nullcontext():
                    if config.objective == "dsm":
                        outcome = objectives.dsm(model, schedule, t, y_t, x_next)
                    else:
                        outcome = objectives.recovery(
                            model, energy, schedule, chains, weight, t, y_t, x_next, noise, sampler.chain_start, x
                        )
                    accelerator.backward(outcome.loss.sum() / share)
                sums += _sums(outcome, t, num_levels)
            norm = accelerator.clip_grad_norm_(model.parameters(), math.inf if c.clip is None else c.clip)
            optimizer.step()
            energy.follow_weights()
            update_ema(average, energy, c.ema, iteration)

            sums = accelerator.reduce(sums)
            statistics += sums
            if sampler.target_acceptance is not None and sampler.kernel != "langevin" and sampler.num_steps:
                count, acceptance = sums[:, 0], sums[:, STATISTICS.index("acceptance")]
                step_size.copy_(adapt_step_size(step_size, acceptance, count, sampler.target_acceptance))
            guard.watch(norm)
            iteration += 1
            bar.advance()

            logged = iteration % c.log_every == 0 or iteration == c.iterations
            saved = iteration % c.checkpoint_every == 0 or iteration == last
            if logged or saved or iteration % GUARD_EVERY == 0:
                means = _means(statistics)
                guard.check(means, statistics[:, 0].tolist(), iteration, logged)
            if logged:
                log.write(iteration, {"lr": lr, **means, "step_size": _numbers(step_size)})
                bar.note(means)
                statistics.zero_()
            if saved:
                save()
            if preview and main and c.preview_every and iteration % c.preview_every == 0:
                run.previews.mkdir(exist_ok=True)
                try:
                    preview(present(), run.previews / f"{iteration:08d}.png")
                except (DivergenceError, OSError) as error:
                    reporter.warn(f"no preview of iteration {iteration}: {error}")
            if measure and c.fid_every and iteration % c.fid_every == 0:
                measured()
        if iteration < last:
            try:
                guard.check(_means(statistics), statistics[:, 0].tolist(), iteration, False)
                save()
            except DivergenceError as error:
                reporter.warn(f"{error}; this state is not saved, the last checkpoint is kept")
    if iteration >= c.iterations and main:
        run.save_model(average.eval(), step_size, shift, scale)
    accelerator.wait_for_everyone()
    return Result(run.path, "finished" if iteration >= c.iterations else "interrupted", iteration, time.monotonic() - began)


def _in_time(draw: Callable[[int], Batch], start: int, end: int, prefetch: bool) -> Generator[Batch]:
    """draw(start) ... draw(end - 1); with ``prefetch`` each is drawn by a second thread while the one before it is used."""
    if not prefetch:
        yield from map(draw, range(start, end))
        return
    with ThreadPoolExecutor(1, "springwell-data") as pool:
        following = pool.submit(draw, start)
        for number in range(start, end):
            present = following.result()
            if number + 1 < end:
                following = pool.submit(draw, number + 1)
            yield present


def make_accelerator(device: str, precision: str = "fp32") -> Accelerator:
    """The accelerator for ``--device``: auto takes the best there is."""
    cpu = device == "cpu" or (device == "auto" and automatic_device() == "cpu")
    if precision == "fp16" and cpu:
        raise UserError("--precision fp16: needs an accelerator; use bf16 or fp32 on the CPU")
    try:
        # The network casts by itself, in chains as in the loss; fp16 needs accelerate for the scaling of the loss.
        # The processes wait for each other while the first one decodes the images, which takes longer than is usual.
        patience = InitProcessGroupKwargs(timeout=timedelta(hours=2))
        accelerator = Accelerator(cpu=cpu, mixed_precision="fp16" if precision == "fp16" else "no", kwargs_handlers=[patience])
    except ValueError as error:
        raise UserError(f"--precision {precision}: not available here ({str(error).splitlines()[0]}); use fp32") from None
    if accelerator.num_processes != (launched := int(os.environ.get("WORLD_SIZE", "1"))):
        what = f"{launched} processes were launched, but --device {device} makes {accelerator.num_processes} of them"
        raise UserError(f"{what}; use --device cpu")
    found = accelerator.device.type
    if device not in ("auto", found):
        raise UserError(f"--device {device}: not available here; use auto{'' if found == 'cpu' else f', {found}'} or cpu")
    return accelerator


def learning_rate(config: Config, iteration: int) -> float:
    """Warm-up, then constant or a half cosine down to 0."""
    c = config.training
    warm = min(1.0, (iteration + 1) / max(1, c.warmup))
    if c.lr_decay == "constant":
        return c.lr * warm
    return c.lr * warm * 0.5 * (1 + math.cos(math.pi * iteration / c.iterations))


def _sums(outcome: objectives.Outcome, t: Tensor, num_levels: int) -> Tensor:
    """``[T, 6]``: sums over the samples of each level, in the order of ``STATISTICS``."""
    columns = (torch.ones_like(outcome.f_pos), outcome.loss.detach(), *outcome[1:])
    values = torch.stack(columns, -1).double()
    return values.new_zeros(num_levels, len(STATISTICS)).index_add_(0, t, values)


def _means(statistics: Tensor) -> dict[str, list[float | None]]:
    """Means per level; None for a level that no sample had."""
    rows = (statistics[:, 1:] / statistics[:, :1]).T
    return {name: _numbers(row) for name, row in zip(STATISTICS[1:], rows, strict=True)}


def _numbers(values: Tensor) -> list[float | None]:
    return [None if math.isnan(v) else float(f"{v:.6g}") for v in values.tolist()]


def _roll_back(
    error: DivergenceError, past: int, config: Config, run: Run, accelerator: Accelerator, reporter: Reporter
) -> int:
    """Records that training goes back to a good checkpoint, or raises the error with advice if it may not again.

    That is the newest one, but where no new one was made since the last rollback the one before it: a state may be finite and
    on its way to divergence. Later checkpoints are set aside until the run has passed them.

    Args:
        error: What happened.
        past: Rollbacks that this process has made before.
        config: The configuration.
        run: The run.
        accelerator: All processes come here together.
        reporter: Is told.

    Returns:
        Rollbacks made in all.
    """
    accelerator.wait_for_everyone()
    lines = [line for line in run.read_metrics() if "rollback" in line]
    past = max(past, len(lines))
    folder = run.checkpoints
    good = [found.iteration for found in good_checkpoints(folder, lambda line: None)] if folder.exists() else []
    accelerator.wait_for_everyone()
    if config.training.on_divergence == "stop" or past + 1 >= len(ROLLBACK_FACTORS):
        if accelerator.is_main_process and folder.exists():
            bring_back(folder)
            good = [found.iteration for found in good_checkpoints(folder, lambda line: None)]
        tried = f"rolled back {past} times already; " if past else ""
        kept = f"the last good checkpoint is that of iteration {good[0]}" if good else "no checkpoint was made before it"
        advice = "try a lower --lr, a --clip, more --num-steps or --chain-start data, in a new --out"
        raise DivergenceError(f"{error}; {tried}{kept}; {advice}") from None
    start = good[0] if good else 0
    if lines and lines[-1]["iteration"] >= start > 0:
        # Back to the beginning only where that costs little.
        young = good[-1] <= YOUNG * config.training.iterations
        start = next((n for n in good if n < lines[-1]["iteration"]), 0 if young else good[-1])
    accelerator.free_memory()
    if accelerator.is_main_process:
        if folder.exists():
            set_aside(folder, start)
        factor = ROLLBACK_FACTORS[past + 1]
        lines.append({"iteration": start, "rollback": past + 1, "lr_factor": factor, "reason": str(error)})
        run.truncate_logs(start, [{**line, "iteration": min(line["iteration"], start)} for line in lines])
        reporter.warn(f"{error}; going back to iteration {start} with {factor:g} times the learning rate and other noise")
    accelerator.wait_for_everyone()
    return past + 1


def _optimizer_tensors(adam: torch.optim.AdamW, energy: torch.nn.Module) -> dict[str, Tensor]:
    """Adam's state by parameter name; it is made here, before the first step, so that it can be saved and restored."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in energy.named_parameters():
        entry = adam.state[parameter]
        entry.setdefault("step", torch.zeros((), device=parameter.device))
        for moment in ("exp_avg", "exp_avg_sq"):
            entry.setdefault(moment, torch.zeros_like(parameter, memory_format=torch.preserve_format))
        tensors |= {f"optimizer.{kind}.{name}": tensor for kind, tensor in entry.items()}
    return tensors


def scaler_tensor(scaler: torch.amp.GradScaler) -> Tensor:
    """``[2]``, float64: what the loss is multiplied by in fp16, and for how many steps that has gone well."""
    values = scaler.state_dict()
    return torch.tensor([values["scale"], values["_growth_tracker"]], dtype=torch.float64)


def restore_scaler(scaler: torch.amp.GradScaler, values: Tensor) -> None:
    scaler.load_state_dict({**scaler.state_dict(), "scale": float(values[0]), "_growth_tracker": int(values[1])})


@torch.no_grad()
def _restore(state: dict[str, Tensor], run: Run, reporter: Reporter) -> int:
    """Copies the newest good checkpoint into ``state`` and returns its iteration; 0 if there is none."""
    foreign: UserError | None = None
    for checkpoint in good_checkpoints(run.checkpoints, reporter.warn):
        for name in ("model.shift", "model.scale", "data"):
            known = checkpoint.tensors.get(name)
            if known is not None and not torch.equal(known, state[name].cpu()):
                raise UserError(f"{run.path}: its data are not what they were; restore them or choose another --out")
        try:
            match(checkpoint.tensors, state, checkpoint.path.name)
        except UserError as error:
            foreign = error
            reporter.warn(f"passing over a bad checkpoint: {error}")
            continue
        for name, tensor in state.items():
            tensor.copy_(checkpoint.tensors[name])
        reporter.say(f"resuming {run.path} at iteration {checkpoint.iteration}")
        return checkpoint.iteration
    if foreign is not None:
        raise UserError(f"{run.path}: {foreign}, and there is no other; choose another --out, or remove its checkpoints")
    return 0


class _Log:
    """metrics.jsonl and, if asked for, TensorBoard."""

    def __init__(self, run: Run, start: int, tensorboard: bool, main: bool):
        self.main, self.writer = main, None
        if not main:
            return
        run.truncate_logs(start)
        self.run = run
        if tensorboard:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                raise UserError("--tensorboard: tensorboard is not installed; pip install 'springwell[tensorboard]'") from None
            self.writer = SummaryWriter(run.path / "tensorboard", purge_step=start)
        self.file = run.metrics_path.open("a")

    def write(self, iteration: int, values: dict[str, Any]) -> None:
        if not self.main:
            return
        self.file.write(json.dumps({"iteration": iteration, **values}) + "\n")
        self.file.flush()
        if self.writer is not None:
            for name, value in values.items():
                for t, v in enumerate(value if isinstance(value, list) else [value]):
                    if v is not None:
                        self.writer.add_scalar(f"{name}/{t}" if isinstance(value, list) else name, v, iteration)

    def measured(self, iteration: int, values: dict[str, Any]) -> None:
        """A line of fid.jsonl."""
        if self.main:
            with self.run.fid_path.open("a") as file:
                file.write(json.dumps({"iteration": iteration, **values}) + "\n")

    def __enter__(self) -> _Log:
        return self

    def __exit__(self, *_: object) -> None:
        if self.main:
            self.file.close()
        if self.writer is not None:
            self.writer.close()


@contextmanager
def _interruptible() -> Iterator[threading.Event]:
    """Turns the first Ctrl-C (or SIGTERM) into a set event; the second interrupts at once."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return

    def on_signal(number: int, frame: object) -> None:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _known(run: Run, iteration: int, accelerator: Accelerator) -> bool:
    """Whether the checkpoint that a run resumes from was measured before the run was interrupted."""
    known = any(line["iteration"] == iteration for line in read_lines(run.fid_path)) if accelerator.is_main_process else False
    return bool(accelerator.reduce(torch.tensor(float(known), device=accelerator.device)) > 0)


def _agree_to_stop(interrupted: threading.Event, accelerator: Accelerator, iteration: int) -> bool:
    """Whether to stop now. Many processes ask each other, now and then."""
    if accelerator.num_processes == 1:
        return interrupted.is_set()
    if iteration % STOP_EVERY:
        return False
    flag = torch.tensor(float(interrupted.is_set()), device=accelerator.device)
    return bool(accelerator.reduce(flag) > 0)

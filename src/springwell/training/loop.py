"""The training loop: steps of Alg. 1, and between them the guard, the log, checkpoints, previews and measurements.

One loop on accelerate, the same for one process and many. A resumed run ends with the same bits as one that was never
interrupted. A run that diverges goes back to a good checkpoint and on from there with a lower learning rate and other noise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import dataclass
from math import prod
from pathlib import Path
from threading import Event
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from accelerate import Accelerator

from springwell.errors import DivergenceError, InterruptionError, UserError
from springwell.model import Model
from springwell.objectives import Objective
from springwell.progress import Reporter, Silent, Terminal
from springwell.schedule import NoiseSchedule
from springwell.store.checkpoint import good_checkpoints, save_tensors
from springwell.store.files import read_lines
from springwell.store.run import Run
from springwell.training.guard import GUARD_EVERY, Guard
from springwell.training.log import Log, level_means, numbers
from springwell.training.processes import LOST_PEER, agree_to_stop, anyone, interruptible
from springwell.training.rollback import ROLLBACK_FACTORS, STREAMS_PER_ROLLBACK, roll_back
from springwell.training.state import TrainingState, check_data
from springwell.training.step import Batch, Step
from springwell.training.task import Task

Item = TypeVar("Item")


class Result(NamedTuple):
    """How a call of :func:`fit` ended.

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


@dataclass(frozen=True)
class Hooks:
    """What happens beside training.

    Attributes:
        preview: Draws a picture of the model to a path.
        measure: Measures the model every ``fid_every`` iterations; all processes call it together.
        stop_after: Stop after so many iterations of this call, as an interruption would.
    """

    preview: Callable[[Model, Path], None] | None = None
    measure: Callable[[Model], dict[str, Any]] | None = None
    stop_after: int | None = None


def check_batch(task: Task, world: int) -> None:
    """Refuses a batch that the processes cannot share."""
    batch, parts = task.options.batch, world * task.options.accumulate
    if batch % parts:
        among = f"{world} processes" + (f" x {task.options.accumulate} parts" if task.options.accumulate > 1 else "")
        raise UserError(f"batch={batch}: cannot be divided among {among}; use a multiple of {parts}")


def fit(task: Task, run: Run, accelerator: Accelerator, reporter: Reporter | None = None, hooks: Hooks | None = None) -> Result:
    """Trains the run, from the beginning or from where it stopped.

    Args:
        task: What is trained.
        run: The run directory, which has begun; see :meth:`springwell.store.run.Run.begin`.
        accelerator: The processes that train together; see :func:`springwell.training.processes.make_accelerator`.
        reporter: Receives progress updates. Default: a progress bar on stderr; ``Silent()`` for none.
        hooks: What happens beside training.
    """
    main, world = accelerator.is_main_process, accelerator.num_processes
    reporter = (reporter or Terminal()) if main else Silent()
    check_batch(task, world)
    with run.alone(reporter.warn) if main else nullcontext():
        accelerator.wait_for_everyone()
        if run.finished and run.model_path.exists():
            last = next(good_checkpoints(run.checkpoints, reporter.warn), None) if run.checkpoints.exists() else None
            if last is not None:
                check_data(last, task.data, run)
            return Result(run.path, "already finished", task.options.iterations, 0.0)
        try:
            rollbacks = 0
            with interruptible() as interrupted:
                while True:
                    try:
                        return _Attempt(task, run, accelerator, reporter, hooks or Hooks()).train(interrupted)
                    except DivergenceError as error:
                        rollbacks = roll_back(error, rollbacks, task.options, run, accelerator, reporter)
        except OSError as error:
            kept = "its checkpoints are kept: mend that and run the same command again"
            raise UserError(f"{run.path}: cannot be written ({error.strerror or error}); {kept}") from None
        except RuntimeError as error:
            if world == 1 or not any(words in str(error) for words in LOST_PEER):
                raise
            what = "another process of this training ended"
            raise InterruptionError(f"{run.path}: {what}; its checkpoints are kept: run the same command to resume") from None


class _Attempt:
    """One attempt at a run, from the newest good checkpoint on, until it ends, is interrupted or diverges."""

    def __init__(self, task: Task, run: Run, accelerator: Accelerator, reporter: Reporter, hooks: Hooks):
        self.task, self.run, self.accelerator, self.reporter, self.hooks = task, run, accelerator, reporter, hooks
        self.options, self.main = task.options, accelerator.is_main_process
        schedule = task.schedule.to(accelerator.device)
        self.state = TrainingState(task, accelerator.device, accelerator.scaler)
        self.objective = self._objective(schedule)
        self.names = self.objective.names
        self.state.statistics = self.state.statistics.new_zeros(schedule.num_levels, 2 + len(self.names))
        self.iteration = self.start = self.state.restore(run, reporter.warn)
        if self.start:
            reporter.say(f"resuming {run.path} at iteration {self.start}")
        last = self.options.iterations if hooks.stop_after is None else self.start + hooks.stop_after
        self.last = min(self.options.iterations, last)
        lines = [line for line in run.read_metrics() if line["iteration"] <= self.start]
        noted = max(sum("rollback" in line for line in lines), int(self.state.guard[2]))
        rollbacks = min(noted, len(ROLLBACK_FACTORS) - 1)
        self.state.guard[2] = rollbacks
        self.guard = Guard(schedule.num_levels, prod(task.data.event_shape), lines, self.state.guard[:2])
        factor, stream = ROLLBACK_FACTORS[rollbacks], rollbacks * STREAMS_PER_ROLLBACK
        self.step = Step(task, self.state, self.objective, accelerator, factor, stream)

    def train(self, interrupted: Event) -> Result:
        """The loop."""
        began, parts = time.monotonic(), self.options.accumulate
        ahead = len(self.task.data.event_shape) > 1
        with (
            Log(self.run, self.start, self.options.tensorboard, self.main) as self.log,
            self.reporter.bar(f"training {self.run}", self.options.iterations, self.start) as self.bar,
            closing(in_time(self.step.draw, self.start * parts, self.last * parts, ahead)) as batches,
        ):
            if self._is_due(self.options.fid_every) and not self._known():
                self._measure()
            while self.iteration < self.last and not agree_to_stop(interrupted, self.accelerator, self.iteration):
                self._iterate(batches)
            if self.iteration < self.last:
                self._save_interrupted()
        finished = self.iteration >= self.options.iterations
        if finished and self.main:
            save_tensors(self.run.model_path, self.model().tensors(), self.iteration)
        self.accelerator.wait_for_everyone()
        status: Literal["finished", "interrupted"] = "finished" if finished else "interrupted"
        return Result(self.run.path, status, self.iteration, time.monotonic() - began)

    def _iterate(self, batches: Generator[Batch]) -> None:
        """One step, and what is due after it."""
        lr = self.step.learning_rate(self.iteration)
        self.guard.watch(self.step(self.iteration, batches))
        self.iteration += 1
        self.bar.advance()
        ended = self.iteration == self.options.iterations
        logged = self.iteration % self.options.log_every == 0 or ended
        saved = self.iteration % self.options.checkpoint_every == 0 or self.iteration == self.last
        if logged or saved or self.iteration % GUARD_EVERY == 0:
            means = self._check(logged)
        if logged:
            self.log.write(self.iteration, {"lr": lr, **means, "step_size": numbers(self.state.step_size)})
            self.bar.note(means)
            self.state.statistics.zero_()
        if saved:
            self.state.save(self.run, self.iteration, self.main)
        if self._is_due(self.options.preview_every):
            self._preview()
        if self._is_due(self.options.fid_every):
            self._measure()

    def _check(self, logged: bool) -> dict[str, list[float | None]]:
        """The means of every level since the last line of the log; raises DivergenceError if they are not sound."""
        means = level_means(self.state.statistics, self.names)
        self.guard.check(means, self.state.statistics[:, 0].tolist(), self.iteration, logged)
        return means

    def _save_interrupted(self) -> None:
        try:
            self._check(False)
            self.state.save(self.run, self.iteration, self.main)
        except DivergenceError as error:
            self.reporter.warn(f"{error}; this state is not saved, the last checkpoint is kept")

    def _objective(self, schedule: NoiseSchedule) -> Objective:
        """The objective of the state's energy, which the processes share and the loss may compile."""
        energy = self.state.energy
        network: Any = getattr(energy, "network", None)
        if hasattr(network, "accelerate"):
            precision = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.options.precision)
            network.accelerate(precision, self.options.compile)
        wrapped = self.accelerator.prepare_model(energy)
        sampler = self.task.sampler.with_steps(self.state.step_size)
        return self.task.objective(energy, schedule, sampler, wrapped)

    def model(self) -> Model:
        """The model as it is now: the average of the weights."""
        return self.task.model(self.state.average, self.state.step_size, self.iteration)

    def _is_due(self, every: int) -> bool:
        return every > 0 and self.iteration > 0 and self.iteration % every == 0

    def _preview(self) -> None:
        if self.hooks.preview is None or not self.main:
            return
        self.run.previews.mkdir(exist_ok=True)
        try:
            self.hooks.preview(self.model(), self.run.previews / f"{self.iteration:08d}.png")
        except (DivergenceError, OSError) as error:
            self.reporter.warn(f"no preview of iteration {self.iteration}: {error}")

    def _known(self) -> bool:
        """Whether the checkpoint that a run resumes from was measured before the run was interrupted."""
        lines = read_lines(self.run.fid_path) if self.main else []
        return anyone(any(line["iteration"] == self.iteration for line in lines), self.accelerator)

    def _measure(self) -> None:
        if self.hooks.measure is None:
            return
        try:
            self.log.measured(self.iteration, self.hooks.measure(self.model()))
        except (DivergenceError, UserError) as error:
            self.reporter.warn(f"no FID of iteration {self.iteration}: {error}")


def in_time(draw: Callable[[int], Item], start: int, end: int, ahead: bool) -> Generator[Item]:
    """draw(start) ... draw(end - 1); with ``ahead`` each is drawn by a second thread while the one before it is used."""
    if not ahead:
        yield from map(draw, range(start, end))
        return
    with ThreadPoolExecutor(1, "springwell-data") as pool:
        following = pool.submit(draw, start)
        for number in range(start, end):
            present = following.result()
            if number + 1 < end:
                following = pool.submit(draw, number + 1)
            yield present

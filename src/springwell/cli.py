"""The command line: springwell presets | train | sample | evaluate | fid | reproduce | data.

Parsing imports nothing heavy; a command imports torch when it runs. Results go to stdout, everything else to stderr. With
``--json`` the last line of stdout is one JSON object. Exit codes: 0 done, 1 diverged, 2 a value that cannot be used,
130 interrupted (run the same command to go on).
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import tyro

from springwell import __version__
from springwell.config import Config, flat
from springwell.errors import DivergenceError, InterruptionError, UserError
from springwell.presets import PRESETS, preset
from springwell.progress import Reporter

# Samples of images for the measures that a model makes of itself.
QUICK = 256


@dataclass(frozen=True)
class Common:
    """Options of every command."""

    json: bool = False
    """Print one JSON object as the last line of stdout."""
    device: str = "auto"
    """auto, cpu, cuda, xpu: where to compute. auto takes an accelerator that has float64, else the CPU."""
    threads: int | None = None
    """CPU threads. Default: torch's own choice."""


@dataclass(frozen=True)
class TrainCommand:
    """Train a model: springwell train PRESET [overrides]. The same command resumes an interrupted run."""

    config: Config
    out: Path | None = None
    """Run directory. Default: runs/PRESET."""
    dry_run: bool = False
    """Print the resolved configuration and its cost, and stop."""
    evaluate: bool = True
    """Sample, measure and draw the model when training ends."""
    common: Common = dataclasses.field(default_factory=Common)


@dataclass(frozen=True)
class PresetsCommand:
    """List the presets."""

    common: Common = dataclasses.field(default_factory=Common)


@dataclass(frozen=True)
class SampleCommand:
    """Draw samples from a trained model."""

    run: tyro.conf.Positional[str]
    """A run directory, the name of a model that ships, or owner/name of one on the Hugging Face hub."""
    num: int | None = None
    """How many samples. Default: 64 images or 1024 vectors; 8 rows in a picture of trajectories."""
    seed: int = 0
    """Sample i depends on (seed, i) alone."""
    out: Path | None = None
    """Where to: .png for a picture; .npy or .npz for numbers, images as uint8 [N, H, W, C]; a path without suffix for a folder
    of PNGs, which an interrupted command fills up; .gif with --trajectory. Default: samples.png (samples.npy for vectors) in
    the run directory, ./NAME.png for other models."""
    trajectory: bool = False
    """Write the way from noise to sample: .png, .gif or .npz."""
    batch: int | None = None
    """Chains that run side by side. Default: as many as fit in memory."""
    steps: int | None = None
    """MCMC steps per level. Default: the run's own."""
    noise_scale: float | None = None
    """Factor on the Langevin noise. Default: the run's own."""
    common: Common = dataclasses.field(default_factory=Common)


@dataclass(frozen=True)
class EvaluateCommand:
    """Measure a trained model and draw it."""

    run: tyro.conf.Positional[str]
    """A run directory, the name of a model that ships, or owner/name of one on the Hugging Face hub."""
    num: int | None = None
    """Samples. Default: 2000 vectors, or 50000 images for FID, KID, Inception score, precision and recall."""
    seed: int = 0
    """Of the samples."""
    out: Path | None = None
    """Where to write evaluation.json and the pictures. Default: the run directory, ./NAME-evaluation for other models."""
    fid: bool = True
    """Measure FID and its kin, of images; the other measures of images take 256 samples and a minute."""
    reference: Literal["train", "test"] = "train"
    """Images that samples are compared with. FIDs are published against the training images."""
    inception: Path | None = None
    """Weights of the FID's Inception. Default: $SPRINGWELL_INCEPTION, the user cache, the data root, or a download."""
    common: Common = dataclasses.field(default_factory=Common)


@dataclass(frozen=True)
class FidCommand:
    """Measure how far samples are from images by FID, KID, precision and recall: springwell fid A B."""

    a: tyro.conf.Positional[str]
    """The samples: a folder of images, an .npz or .npy, or what --data takes, with @train (the default) or @test."""
    b: tyro.conf.Positional[str]
    """The reference images, likewise. Their features are kept in the user cache."""
    num: int | None = None
    """Compare the first so many of each. Default: all, but 50000 at most."""
    inception: Path | None = None
    """Weights of the FID's Inception. Default: $SPRINGWELL_INCEPTION, the user cache, the data root, or a download."""
    preprocessing: Literal["tf1", "pytorch"] = "tf1"
    """tf1: as in published FIDs; pytorch: as pytorch-fid resizes and scales."""
    image_size: int | None = None
    """Crop images to a square and resize them to this size first. Default: as they are."""
    data_root: str | None = None
    """Where data sets are looked for. Default: $SPRINGWELL_DATA, or ~/data."""
    batch: int | None = None
    """Images that are computed side by side. Default: 32 on a CPU, 256 elsewhere."""
    common: Common = dataclasses.field(default_factory=Common)


@dataclass(frozen=True)
class ReproduceCommand:
    """Make a figure of the paper, with its numbers beside it."""

    name: tyro.conf.Positional[Literal["fig2", "fig3", "ladder", "ablation", "table1", "table3", "table-bpd"]]
    """fig2: recovery likelihood against marginal short-run training; fig3: samples and densities of every level; ladder: the
    adapted ladder against the authors' rule on images, at equal gradient evaluations; ablation: the paper's settings and the
    ladder by FID, at equal gradient evaluations; table1, table3, table-bpd: the paper's tables, filled from evaluated runs."""
    data: str | None = None
    """What it is made on. Default: checkerboard; for ladder and ablation, digits (or mnist)."""
    out: Path = Path("figures")
    """Where the figure and its runs go."""
    runs: Path = Path("runs")
    """Where tables look for runs."""
    seed: int = 0
    """Of training and sampling; of the first run where there are several."""
    scale: Annotated[str, tyro.conf.arg(help="Factor on the number of iterations; below 1 for a quick look. cpu is 1.")] = "cpu"
    common: Common = dataclasses.field(default_factory=Common)


@dataclass(frozen=True)
class DataCommand:
    """Decode a set of images once: springwell data prepare SPEC OUT. The same command resumes."""

    action: tyro.conf.Positional[Literal["prepare"]]
    """prepare: write the set as arrays that are memory-mapped when they are used."""
    spec: tyro.conf.Positional[str]
    """digits, mnist, fashion-mnist, cifar10, celeba, lsun/CATEGORY, folder:PATH, zip:PATH, npz:PATH or hf:NAME."""
    out: tyro.conf.Positional[Path]
    """A new folder; train with --data prepared:OUT."""
    image_size: int | None = None
    """Crop to a square and resize to this size. Default: what the data set is published with (64 for celeba and lsun)."""
    data_root: str | None = None
    """Where data sets are looked for. Default: $SPRINGWELL_DATA, or ~/data."""
    workers: int | None = None
    """Processes that decode. Default: one per available core."""
    common: Common = dataclasses.field(default_factory=Common)


@dataclass(frozen=True)
class ConvertCommand:
    """Make a model of the authors' released weights: springwell convert-official CKPT OUT."""

    checkpoint: tyro.conf.Positional[Path]
    """Their TensorFlow checkpoint, without .index."""
    out: tyro.conf.Positional[Path]
    """A new folder; sample it with springwell sample OUT."""
    preset: str | None = None
    """The preset that it was trained with. Default: cifar10-t6, celeba-t6 or lsun-church128-t6, by its number of levels."""
    common: Common = dataclasses.field(default_factory=Common)


class Processes(NamedTuple):
    """This process among those launched: its device, whether it is the first, and what the first does before others."""

    device: str
    main: bool
    first: Callable[[], contextlib.AbstractContextManager[Any]]


class Context:
    """What a command needs of the surroundings: the device, the reporter."""

    def __init__(self, common: Common):
        from springwell.progress import Terminal

        self.common = common
        self.reporter: Reporter = Terminal()

    def device(self) -> str:
        """The device for commands that do not train."""
        import torch

        self.set_threads()
        name = self.common.device
        if name == "auto":
            from springwell.devices import automatic_device

            return automatic_device()
        try:
            float(torch.zeros(1, dtype=torch.float64, device=name))
        except (RuntimeError, AssertionError, TypeError, NotImplementedError):
            raise UserError(f"--device {name}: not available here; use auto or cpu") from None
        return name

    @contextlib.contextmanager
    def processes(self) -> Iterator[Processes]:
        """Joins the processes that torchrun or accelerate launched, if they did; only the first one talks."""
        self.set_threads()
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            yield Processes(self.device(), True, contextlib.nullcontext)
            return
        from springwell.progress import Silent
        from springwell.training.trainer import make_accelerator

        accelerator = make_accelerator(self.common.device)
        if not accelerator.is_main_process:
            self.reporter = Silent()
        yield Processes(str(accelerator.device), accelerator.is_main_process, accelerator.main_process_first)
        accelerator.end_training()

    def set_threads(self) -> None:
        threads = self.common.threads
        if threads is not None:
            import torch

            if not 1 <= threads <= 1024:
                raise UserError(f"--threads {threads}: out of range; use 1 ... {os.cpu_count()}")
            torch.set_num_threads(threads)


def presets_command(command: PresetsCommand, context: Context) -> dict[str, Any]:
    rows = {name: flat(config) for name, config in PRESETS.items()}
    if not command.common.json:
        print(f"{'preset':<22}{'data':<22}{'objective':<11}{'T':>5}{'K':>5}{'batch':>7}{'iterations':>12}")
        for name, row in rows.items():
            fixed = {"sigmas": len(row["sigmas"]), "marginal": 1}
            levels = fixed.get(row["schedule"], row["num_levels"])
            print(
                f"{name:<22}{row['data']:<22}{row['objective']:<11}{levels:>5}{row['num_steps']:>5}{row['batch']:>7}{row['iterations']:>12}"
            )
        print("\nspringwell train PRESET [--help]")
    return {"presets": rows}


def train_command(command: TrainCommand, context: Context) -> dict[str, Any]:
    command.config.validate()
    assert command.out is not None
    if command.dry_run:
        return _dry_run(command, context)
    context.set_threads()
    from springwell.plots import preview
    from springwell.training.run import Run, read_json
    from springwell.training.trainer import train

    measure = _measure(command.config, context) if command.config.training.fid_every else None
    result = train(command.config, command.out, command.common.device, context.reporter, preview, measure)
    out: dict[str, Any] = {
        "run": str(result.run),
        "status": result.status,
        "iteration": result.iteration,
        "seconds": round(result.seconds, 2),
    }
    if result.status == "interrupted" and _is_main_process():
        context.reporter.say(
            f"interrupted at iteration {result.iteration}; everything is saved in {result.run}: run the same command to go on"
        )
        return out
    if not _is_main_process():
        return {"status": result.status}
    run = Run(result.run)
    if result.status == "already finished":
        context.reporter.say(f"{result.run} is finished ({result.iteration} iterations); nothing to do")
    if not command.evaluate:
        if not command.common.json:
            print(f"{result.run}: {result.iteration} iterations, {result.seconds:.0f} s")
        return out
    known = read_json(run.evaluation_path) if run.evaluation_path.exists() else None
    if (
        isinstance(known, dict)
        and known.get("iteration") == result.iteration
        and "num_samples" in known
        and known.keys() & {"mmd2", "f_gap"}
    ):
        out["evaluation"] = known
    else:
        quick = EvaluateCommand(str(result.run), fid=False, common=command.common)
        out["evaluation"] = _evaluate(quick, result.run, context, Processes(context.device(), True, contextlib.nullcontext))
    if not command.common.json:
        _print_evaluation(out["evaluation"])
        print(f"{result.run}: {result.iteration} iterations, {result.seconds:.0f} s; pictures: {result.run / 'report.png'}")
    return out


def _measure(config: Config, context: Context) -> Callable[[Any], dict[str, Any]] | None:
    """What measures the FID while training; None, with a word about it, where something is missing that it needs."""
    from springwell.evaluation.metrics import torchmetrics
    from springwell.evaluation.quality import quality
    from springwell.evaluation.weights import load_inception

    try:
        torchmetrics()
        network = load_inception(reporter=context.reporter)
    except UserError as error:
        if _is_main_process():
            context.reporter.warn(f"--fid-every {config.training.fid_every}: the FID will not be measured; {error}")
        return None

    def measure(model: Any) -> dict[str, Any]:
        return quality(model, network.to(model.device), config.training.fid_samples, only_fid=True)

    return measure


def _is_main_process() -> bool:
    return int(os.environ.get("RANK", "0")) == 0


def _dry_run(command: TrainCommand, context: Context) -> dict[str, Any]:
    from springwell.cost import estimate, seconds_per_iteration
    from springwell.model import build_schedule

    config = command.config
    device = context.device()
    cost = estimate(config)
    seconds, how = seconds_per_iteration(config, cost, device)
    evaluations, iterations = config.gradient_evaluations(), config.training.iterations
    result = {
        "config": flat(config),
        "out": str(command.out),
        "parameters": cost.parameters,
        "num_levels": build_schedule(config).num_levels,
        "gradient_evaluations_per_iteration": evaluations,
        "gradient_evaluations": evaluations * iterations,
        "flops_per_gradient": cost.gradient_flops,
        "flops_per_iteration": cost.iteration_flops,
        "memory_bytes": cost.memory_bytes,
        "seconds_per_iteration": round(seconds, 5),
        "seconds_estimated": round(seconds * iterations, 1),
    }
    if not command.common.json:
        for name, value in flat(config).items():
            print(f"{name:<22}{value}")
        print(f"\nparameters: {cost.parameters:,}\nlevels: {result['num_levels']}")
        print(f"gradient evaluations: {evaluations} batches per iteration, {evaluations * iterations:,} in all")
        flops = f"{cost.iteration_flops:.3g} FLOP per iteration, {cost.iteration_flops * iterations:.3g} in all"
        print(f"operations: {cost.gradient_flops:.3g} FLOP per gradient of one sample, {flops}")
        print(f"memory: about {max(1, round(cost.memory_bytes / 2**20)):,} MiB for the whole batch in one process")
        print(f"time on {device}: {seconds:.3g} s per iteration ({how}), {_duration(seconds * iterations)} in all")
    return result


def _duration(seconds: float) -> str:
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"about {seconds / size:.1f} {unit}"
    return f"about {seconds:.0f} s"


def sample_command(command: SampleCommand, context: Context) -> dict[str, Any]:
    from springwell.training.run import load
    from springwell.writing import KINDS, Drawing, write_samples, write_trajectory

    out, name = command.out, command.run.partition("@")[0].rpartition("/")[2]
    if out is not None and out.suffix not in KINDS:
        raise UserError(f"--out {out}: unknown kind '{out.suffix}'; use .npy, .npz, .png, .gif or a folder")
    for option, value in (("num", command.num), ("batch", command.batch)):
        if value is not None and value < 1:
            raise UserError(f"--{option} {value}: must be at least 1")
    model = load(command.run, context.device(), context.reporter.warn)
    if out is None and Path(command.run).is_dir():
        kind = ".png" if command.trajectory or len(model.event_shape) == 3 else ".npy"
        out = Path(command.run) / f"{'trajectory' if command.trajectory else 'samples'}{kind}"
    elif out is None:
        out = Path(f"{name}-trajectory.png" if command.trajectory else f"{name}.png")
    _writable(out.parent)
    drawing = Drawing(
        model,
        os.path.normpath(command.run),
        context.reporter,
        command.num,
        command.seed,
        command.batch,
        command.steps,
        command.noise_scale,
    )
    with _write_errors(out):
        written = (write_trajectory if command.trajectory else write_samples)(drawing, out)
    if not command.common.json:
        print(f"{out}: {written['num']} samples of {command.run}, seed {command.seed}")
    return {"run": command.run, "out": str(out), "seed": command.seed, **written}


def evaluate_command(command: EvaluateCommand, context: Context) -> dict[str, Any]:
    name = command.run.partition("@")[0].rpartition("/")[2]
    out = command.out or (Path(command.run) if Path(command.run).is_dir() else Path(f"{name}-evaluation"))
    with context.processes() as processes:
        result = _evaluate(command, out, context, processes)
    if not command.common.json and result:
        _print_evaluation(result)
        print(f"written: {out / 'evaluation.json'}, {out / 'report.png'}")
    return {"run": command.run, "out": str(out), "evaluation": result}


def _evaluate(command: EvaluateCommand, out: Path, context: Context, processes: Processes) -> dict[str, Any]:
    """Measures a model, writes evaluation.json and the pictures; of many processes, the first one does."""
    from springwell import plots
    from springwell.evaluation.images import evaluate_images
    from springwell.evaluation.toy import evaluate
    from springwell.training.checkpoint import write_atomically
    from springwell.training.run import Run, find, load_folder, read_json, read_lines

    num, seed = command.num, command.seed
    with processes.first():
        folder = find(command.run)
    model = load_folder(folder, processes.device, context.reporter.warn)
    images = len(model.event_shape) == 3
    limit = 1_000_000 if images else 10_000
    if num is not None and not 100 <= num <= limit:
        why = "" if images else " (the MMD compares all pairs)"
        raise UserError(f"--num {num}: out of range; use 100 ... {limit}{why}")
    _writable(out)
    result: dict[str, Any] = {}
    if processes.main and images:
        measured = evaluate_images(model, min(num or QUICK, QUICK), seed, context.reporter)
        result = measured.result
    elif processes.main:
        result = evaluate(model, num or 2000, seed, context.reporter)
    found = _quality(command, model, out, context, processes) if images and command.fid else None
    if not processes.main:
        return {}
    path = out / "evaluation.json"
    known = read_json(path) if images and path.exists() else {}
    if found is None and isinstance(known, dict) and known.get("iteration") == result["iteration"]:
        found = known.get("quality")
    if found is not None:
        result["quality"] = found
    with _write_errors(out):
        if images:
            title = f"{model.config.data}, iteration {model.iteration}"
            plots.image_report(measured.samples[:64], measured.held_out[:64], out / "report.png", title)
            plots.levels(out / "levels.png", result)
            plots.neighbours(out / "neighbours.png", measured.samples, measured.neighbours)
        else:
            plots.preview(model, out / "report.png")
        if metrics := Run(folder).read_metrics():
            plots.curves(out / "curves.png", metrics, read_lines(Run(folder).fid_path))
        write_atomically(path, json.dumps(result, indent=1) + "\n")
    return result


def _quality(command: EvaluateCommand, model: Any, out: Path, context: Context, processes: Processes) -> dict[str, Any] | None:
    """FID and its kin; None, with a word about it, where the weights of Inception or torchmetrics are missing."""
    from springwell.evaluation.metrics import torchmetrics
    from springwell.evaluation.quality import quality
    from springwell.evaluation.sources import MOST
    from springwell.evaluation.weights import load_inception

    try:
        torchmetrics()
        with processes.first():
            network = load_inception(command.inception, device=processes.device, reporter=context.reporter)
    except UserError as error:
        if command.inception is not None:
            raise
        context.reporter.warn(f"no FID: {error}")
        return None
    num = command.num or MOST
    return quality(model, network, num, command.seed, command.reference, context.reporter, out / ".quality")


def _print_evaluation(result: dict[str, Any]) -> None:
    n = result["num_samples"]
    if "quality" in result:
        from springwell.evaluation.metrics import metric_lines

        print("\n".join(metric_lines(result["quality"])))
    if "f_gap" in result:
        gap, error = result["f_gap"], result["f_gap_standard_error"]
        spread = "" if error is None else f"+- {error:.2f} "
        print(f"f gap     {gap:+.2f} {spread}nats   mean f at level 0 of {n} held-out images less that of {n} samples")
        share = f"{100 * result['outside_samples']:.1f} % of {n} samples, {100 * result['outside_values']:.2f} % of values"
        print(f"outside   {share}, are outside [-{result['outside']}, {result['outside']}]")
        if "neighbour_samples" in result:
            near, held_out = result["neighbour_samples"], result["neighbour_held_out"]
            share = (
                f"{100 * result['nearer_than_99_percent']:.1f} % of {n} samples are nearer to one of {result['num_train']:,}"
            )
            print(f"copies    {share} training images than 99 % of {n} held-out images are; median {near:.3f}, {held_out:.3f}")
        accepted = result["acceptance"]
        print(f"accepted  {min(accepted):.2f} ... {max(accepted):.2f} over {len(accepted)} levels, {n} chains")
        return
    if "kl" in result:
        error = result["log_z_error"]
        print(f"kl        {result['kl']:.4f} nats   KL(data at level 0 || model), quadrature, error of log Z about {error:.1e}")
        print(f"nll       {result['nll']:.4f} nats   entropy of the data {result['entropy']:.4f} nats")
        print(f"tv        {result['tv']:.4f}        total variation distance")
    elif "nll" in result:
        print(f"nll       {result['nll']:.4f} +- {result['nll_standard_error']:.4f} nats   {n} held-out points")
    print(f"mmd2      {result['mmd2']:.2e}      null level (95 %) {result['mmd2_null_95']:.2e}, {n} samples each")
    if "modes" in result:
        off = f"{100 * result['off_support']:.1f} % of {n} samples off the support (of the data: 0.1 %)"
        print(f"modes     {result['modes_covered']} of {result['modes']} covered; {off}")


def fid_command(command: FidCommand, context: Context) -> dict[str, Any]:
    from springwell.config import ImageConfig
    from springwell.evaluation.metrics import image_metrics, metric_lines, reference_features, torchmetrics
    from springwell.evaluation.sources import FEWEST, MOST, open_source
    from springwell.evaluation.weights import load_inception

    limits = (
        ("num", command.num, FEWEST, 10**7),
        ("image-size", command.image_size, 1, 4096),
        ("batch", command.batch, 1, MOST),
    )
    for option, value, least, most in limits:
        if value is not None and not least <= value <= most:
            raise UserError(f"--{option} {value}: out of range; use {least} ... {most}")
    torchmetrics()
    images = ImageConfig(image_size=command.image_size, data_root=command.data_root)
    with context.processes() as processes:
        reporter = context.reporter
        # The first process may have to download weights or to decode images that the others then find.
        with processes.first():
            network = load_inception(command.inception, command.preprocessing, processes.device, reporter)
            a, b = (open_source(source, command.num, images, reporter) for source in (command.a, command.b))
        for source in (a, b):
            if source.shape[0] == 1:
                reporter.say(f"{source.name}: grey images; their channel is repeated three times")
        if a.shape[1:] != b.shape[1:]:
            sizes = " and ".join(f"{x.shape[2]} x {x.shape[1]}" for x in (a, b))
            reporter.warn(f"{a.name} and {b.name} have {sizes} pixels; resizing alone moves them apart, so give --image-size")
        samples = reference_features(a, network, reporter, command.batch, keep=False)
        reference = reference_features(b, network, reporter, command.batch)
    if not processes.main:
        return {}
    result = image_metrics(samples, reference, network.fc, reporter)
    if not command.common.json:
        print("\n".join([f"{a.name} against {b.name}, preprocessing {command.preprocessing}", *metric_lines(result)]))
    unreadable = {"unreadable_a": a.num_unreadable, "unreadable_b": b.num_unreadable}
    how = {"preprocessing": command.preprocessing, "inception_sha256": network.digest}
    return {"a": a.name, "b": b.name, **how, **unreadable, **result}


def reproduce_command(command: ReproduceCommand, context: Context) -> dict[str, Any]:
    try:
        scale = 1.0 if command.scale == "cpu" else float(command.scale)
    except ValueError:
        scale = 0.0
    if not 0 < scale <= 10:
        raise UserError(f"--scale {command.scale}: out of range; use a value in (0, 10], or cpu")
    _writable(command.out)
    if command.name.startswith("table"):
        from springwell.experiments import tables

        return _shown(tables.reproduce(command.name, command.out, command.runs), command)
    context.set_threads()
    reproduce = import_module(f"springwell.experiments.{command.name}").reproduce
    if command.name == "fig2" and command.data is not None:
        raise UserError(f"--data {command.data}: fig2 shows its own two data sets; leave it out")
    data = {} if command.data is None else {"data": command.data}
    return _shown(reproduce(command.out, command.seed, scale, command.common.device, context.reporter, **data), command)


def _shown(result: dict[str, Any], command: ReproduceCommand) -> dict[str, Any]:
    if not command.common.json:
        if result["table"]:
            print(f"{result['table']}\n")
        print(f"written: {', '.join(result['written'])}")
    return result


def data_command(command: DataCommand, context: Context) -> dict[str, Any]:
    from springwell.config import ImageConfig
    from springwell.data import prepare_images

    for name, value, most in (("image-size", command.image_size, 4096), ("workers", command.workers, 1024)):
        if value is not None and not 1 <= value <= most:
            raise UserError(f"--{name} {value}: out of range; use 1 ... {most}")
    images = ImageConfig(image_size=command.image_size, data_root=command.data_root)
    record = prepare_images(command.spec, command.out, images, command.workers, context.reporter)
    if not command.common.json:
        counts = f"{record['num_train']} training and {record['num_test']} test images, {record['num_unreadable']} unreadable"
        print(f"{command.out}: {counts}, {' x '.join(map(str, record['shape']))} bytes each")
        for name, reason in record["unreadable"][:10]:
            print(f"  unreadable: {name}: {reason}")
        print(f"train with --data prepared:{command.out}")
    return {"out": str(command.out), **record}


def convert_command(command: ConvertCommand, context: Context) -> dict[str, Any]:
    from springwell.convert import convert

    context.set_threads()
    with _write_errors(command.out):
        model = convert(command.checkpoint, command.out, command.preset)
    network = model.config.network
    if not command.common.json:
        what = (
            f"width {network.width}, multipliers {network.multipliers}, N = {network.num_blocks}, iteration {model.iteration}"
        )
        print(f"{command.out}: {what}; sample it with springwell sample {command.out}")
    return {"out": str(command.out), "iteration": model.iteration, "network": dataclasses.asdict(network)}


def _writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {folder}: cannot be written ({error.strerror}); choose another --out") from None
    if not os.access(folder, os.W_OK):
        raise UserError(f"--out {folder}: cannot be written (Permission denied); choose another --out")


@contextlib.contextmanager
def _write_errors(out: Path) -> Any:
    try:
        yield
    except OSError as error:
        raise UserError(f"--out {out}: cannot be written ({error.strerror})") from None


COMMANDS: dict[str, tuple[type, Callable[[Any, Context], dict[str, Any]]]] = {
    "presets": (PresetsCommand, presets_command),
    "train": (TrainCommand, train_command),
    "sample": (SampleCommand, sample_command),
    "evaluate": (EvaluateCommand, evaluate_command),
    "fid": (FidCommand, fid_command),
    "reproduce": (ReproduceCommand, reproduce_command),
    "convert-official": (ConvertCommand, convert_command),
    "data": (DataCommand, data_command),
}


def parse(arguments: Sequence[str]) -> tuple[str, Any]:
    """The command's name and its typed options. Raises UserError for anything that does not parse."""
    name, rest = (arguments[0], list(arguments[1:])) if arguments else ("--help", [])
    if name in ("-h", "--help", "help"):
        print(_usage())
        raise SystemExit(0)
    if name in ("-V", "--version"):
        print(f"springwell {__version__}")
        raise SystemExit(0)
    if name not in COMMANDS:
        raise UserError(f"command '{name}': unknown; choose {', '.join(COMMANDS)}")
    cls, _ = COMMANDS[name]
    if name != "train":
        return name, _tyro(cls, rest, name)
    if not rest or rest[0].startswith("-"):
        if "-h" in rest or "--help" in rest:
            print(f"springwell train PRESET [overrides]\n\npresets: {', '.join(PRESETS)}\n")
            print(f"The overrides, with the values of '{next(iter(PRESETS))}':\n")
            rest, chosen = ["--help"], next(iter(PRESETS))
        else:
            raise UserError(f"train: no preset given; choose {', '.join(PRESETS)}")
    else:
        chosen, rest = rest[0], rest[1:]
    command = _tyro(cls, rest, f"train {chosen}", default=TrainCommand(preset(chosen)))
    return name, dataclasses.replace(command, out=command.out or Path("runs") / chosen)


def _tyro(cls: type, arguments: list[str], name: str, **options: Any) -> Any:
    """tyro's parser, with its error box made one line."""
    config = (tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff)
    caught = io.StringIO()
    try:
        with contextlib.redirect_stderr(caught):
            return tyro.cli(cls, args=arguments, prog=f"springwell {name}", config=config, **options)
    except SystemExit as stop:
        if not stop.code:
            raise
        # Colours, the box around the message and the rulers in it are for the eye.
        text = re.sub(r"\x1b\[[0-9;]*m", "", caught.getvalue())
        lines = [line.strip("│| ") for line in text.splitlines() if not line.startswith(("╭", "╰", "+"))]
        end = next((i for i, line in enumerate(lines) if not line.strip("─-")), len(lines))
        message = " ".join(lines[:end]).rstrip(".") or "cannot be parsed"
        raise UserError(f"{message}; see springwell {name} --help") from None


def _usage() -> str:
    lines = [f"springwell {__version__}: energy-based models by diffusion recovery likelihood", ""]
    for name, (cls, _) in COMMANDS.items():
        lines.append(f"  springwell {name:<18}{(cls.__doc__ or '').splitlines()[0]}")
    return "\n".join([*lines, "", "springwell COMMAND --help lists the options of a command."])


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of ``springwell``."""
    arguments = sys.argv[1:] if arguments is None else arguments
    as_json = "--json" in arguments
    try:
        name, command = parse(arguments)
        result = COMMANDS[name][1](command, Context(command.common))
        code = 130 if result.get("status") == "interrupted" else 0
    except UserError as error:
        result, code = {"error": str(error)}, 2
    except DivergenceError as error:
        result, code = {"error": str(error)}, 1
    except InterruptionError as error:
        result, code = {"error": str(error)}, 130
    except BrokenPipeError:
        result, code = {}, 0
    except OSError as error:
        result, code = {"error": f"{error.filename or 'file system'}: {error.strerror or error}"}, 2
    except MemoryError as error:
        result, code = {"error": f"out of memory ({error}); use a smaller --num, --batch or --image-size"}, 2
    except KeyboardInterrupt:
        result, code = {"error": "interrupted"}, 130
    except Exception as error:
        if os.environ.get("SPRINGWELL_DEBUG"):
            raise
        what = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"
        result, code = {"error": f"unexpected {what} (SPRINGWELL_DEBUG=1 shows where)"}, 1
    if "error" in result and _is_main_process():
        print(f"springwell: {result['error']}", file=sys.stderr)
    try:
        if as_json and _is_main_process():
            print(json.dumps({"command": arguments[0] if arguments else "", **result}))
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read stdout has enough, as `head` does. Python would complain once more when it closes the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)

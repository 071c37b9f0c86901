"""springwell presets | train."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from springwell.app.cli import common as cli
from springwell.app.cli.evaluate import EvaluateCommand, evaluation_lines, known_evaluation, measure_model
from springwell.app.cli.tables import TableCommand, train_table
from springwell.app.config import KIND_FIELDS, Config, flat, with_absolute_paths
from springwell.app.presets import TABLE, Preset
from springwell.data.options import ImageOptions
from springwell.errors import UserError
from springwell.progress import SILENT
from springwell.store import zoo
from springwell.training.options import CountOrZero, TrainingOptions


@dataclass(frozen=True)
class PresetsCommand(cli.Command):
    """List the presets, with what each costs and whether a trained model ships with the package."""


@dataclass(frozen=True)
class TrainCommand(Config, cli.Command):
    """Train a model, or resume an interrupted run."""

    out: cli.Folder = None
    """Run directory. Default: runs/PRESET."""
    init_from: Annotated[str | None, tyro.conf.arg(metavar="RUN", help_behavior_hint="")] = None
    """Start from the weights of this run or model, to fine-tune it."""
    dry_run: cli.Flag = False
    """Print the resolved configuration and its cost, and stop."""
    evaluate: bool = True
    """Sample, measure and draw the model when training ends."""

    @property
    def config(self) -> Config:
        """Returns the configuration, with absolute paths of its data."""
        return with_absolute_paths(Config(**{f.name: getattr(self, f.name) for f in dataclasses.fields(Config)}))

    def resolved(self, preset: str) -> TrainCommand:
        """Returns the command with its run directory, and with the full training options in place of those that help shows."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(TrainCommand)}
        values |= {"training": TrainingOptions(**vars(self.training)), "out": self.out or Path("runs") / preset}
        return TrainCommand(**values)


@dataclass(frozen=True)
class _VectorTraining(TrainingOptions):
    """Optimisation."""

    fid_every: tyro.conf.Suppress[CountOrZero] = 0
    fid_samples: tyro.conf.Suppress[int] = 2500
    precision: tyro.conf.Suppress[Literal["fp32", "bf16", "fp16"]] = "fp32"
    compile: tyro.conf.Suppress[bool] = False


def train_options(config: Config) -> TrainCommand:
    """Returns the options of ``train``, with the values of ``config`` as defaults and its kinds of sections as types.

    Help for models of vectors leaves out the options for images.
    """
    values = {f.name: getattr(config, f.name) for f in dataclasses.fields(Config)}
    types: dict[str, Any] = {name: type(values[name]) for name in KIND_FIELDS}
    if config.of_vectors:
        values["training"] = _VectorTraining(**vars(config.training))
        types |= {"training": _VectorTraining, "images": tyro.conf.Suppress[ImageOptions]}
    sections = [(name, kind, dataclasses.field(default=values[name])) for name, kind in types.items()]
    command: type[TrainCommand] = dataclasses.make_dataclass("TrainOptions", sections, bases=(TrainCommand,), frozen=True)
    return command(**values)


def presets_command(command: PresetsCommand, context: cli.Context) -> dict[str, Any]:
    shipped = zoo.names()
    rows = {name: {"about": row.about, **_cost(row), "ships": name in shipped} for name, row in TABLE.items()}
    context.tell(f"{'preset':<25}{'gradients':>10}{'CPU time':>10}  {'ships':<7}what it is")
    for name, row in rows.items():
        minutes, evaluations = row["cpu_minutes"], row["gradient_evaluations"]
        time = "" if minutes is None else f"{minutes:.0f} min"
        context.tell(f"{name:<25}{evaluations:>10.1e}{time:>10}  {'yes' if row['ships'] else '':<7}{row['about']}")
    context.tell(
        "\ngradients: gradient evaluations of the whole training, one sample each; CPU time: on one core, where known",
        "springwell train PRESET trains a model; springwell sample NAME draws from a model that ships",
        "springwell train table --data csv:FILE fits the density of a table of your own",
    )
    return {"presets": rows}


def _cost(row: Preset) -> dict[str, Any]:
    training = row.config.training
    evaluations = row.config.gradient_evaluations() * training.iterations * training.batch
    return {"config": flat(row.config), "gradient_evaluations": evaluations, "cpu_minutes": row.minutes}


def train_command(command: TrainCommand | TableCommand, context: cli.Context) -> dict[str, Any]:
    if isinstance(command, TableCommand):
        return train_table(command, context)
    config = command.config
    config.validate()
    assert command.out is not None
    if command.dry_run:
        return _dry_run(command, context)
    context.set_threads()
    from springwell.app.api import Given, train_run
    from springwell.app.cost import step_operations
    from springwell.app.plots import preview
    from springwell.store.run import Run
    from springwell.training.loop import Hooks

    if (first := _begins_with(config)) and command.init_from is None and not command.out.exists():
        context.reporter.say(f"begins with random weights; the model that ships began with {first}, by --init-from")
    hooks = Hooks(preview, _measure(config, context) if config.training.fid_every else None)
    context.fit_threads(lambda: step_operations(config))
    place = (command.out, command.common.device, context.reporter)
    result = train_run(config, *place, hooks, Given(command.init_from))
    if not cli.is_main_process():
        return {"status": result.status}
    out: dict[str, Any] = {**result._asdict(), "run": str(result.run), "seconds": round(result.seconds, 2)}
    if result.status == "interrupted":
        saved = f"everything is saved in {result.run}: run the same command to resume"
        context.reporter.say(f"interrupted at iteration {result.iteration}; {saved}")
        return out
    run = Run(result.run)
    if result.status == "already finished":
        context.reporter.say(f"{result.run} is finished ({result.iteration} iterations); nothing to do")
    if not command.evaluate:
        context.tell(f"{result.run}: {result.iteration} iterations, {result.seconds:.0f} s")
        return out
    known = known_evaluation(run.evaluation_path)
    if known.get("iteration") == result.iteration:
        out["evaluation"] = known
    else:
        quick = EvaluateCommand(str(result.run), fid=False, common=command.common)
        alone = cli.Processes(context.device(), True, contextlib.nullcontext)
        out["evaluation"] = measure_model(quick, result.run, context, alone)
    spent = f"{result.iteration} iterations, {result.seconds:.0f} s"
    context.tell(*evaluation_lines(out["evaluation"]), f"{result.run}: {spent}; pictures: {result.run / 'report.png'}")
    return out


def _begins_with(config: Config) -> str:
    """Returns what the preset of exactly this configuration begins with, or nothing."""
    return next((row.begins_with for row in TABLE.values() if row.config == config), "")


def _measure(config: Config, context: cli.Context) -> Callable[[Any], dict[str, Any]] | None:
    """Returns the function that measures the FID in training; warns and returns None if something that it needs is missing."""
    from springwell.evaluation.metrics import torchmetrics
    from springwell.evaluation.quality import only_fid
    from springwell.evaluation.sources import open_source
    from springwell.evaluation.weights import load_inception

    try:
        torchmetrics()
        network = load_inception(reporter=context.reporter, data_root=config.images.data_root)
        reference = open_source(f"{config.data}@train", None, config.images)
    except UserError as error:
        if cli.is_main_process():
            context.reporter.warn(f"--fid-every {config.training.fid_every}: the FID will not be measured; {error}")
        return None

    reporter = context.reporter if cli.is_main_process() else SILENT

    def measure(model: Any) -> dict[str, Any]:
        network.to(model.device)
        return only_fid(model, reference, network, config.training.fid_samples, reporter)

    return measure


def _dry_run(command: TrainCommand, context: cli.Context) -> dict[str, Any]:
    from springwell.app.build import build_schedule
    from springwell.app.cost import estimate, seconds_per_iteration

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
    flops = f"{cost.iteration_flops:.3g} FLOP per iteration, {cost.iteration_flops * iterations:.3g} in all"
    context.tell(
        *[f"{name:<22}{value}" for name, value in flat(config).items()],
        f"\nparameters: {cost.parameters:,}\nlevels: {result['num_levels']}",
        f"gradient evaluations: {evaluations} batches per iteration, {evaluations * iterations:,} in all",
        f"operations: {cost.gradient_flops:.3g} FLOP per gradient of one sample, {flops}",
        f"memory: about {max(1, round(cost.memory_bytes / 2**20)):,} MiB for the whole batch in one process",
        f"time on {device}: {seconds:.3g} s per iteration ({how}), {_duration(seconds * iterations)} in all",
    )
    return result


def _duration(seconds: float) -> str:
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"about {seconds / size:.1f} {unit}"
    return f"about {seconds:.0f} s"

"""springwell presets | train."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from springwell.app.cli.common import Common, Context, Processes, is_main_process
from springwell.app.cli.evaluate import EvaluateCommand, evaluation_lines, known_evaluation, measure_model
from springwell.app.config import Config, flat
from springwell.app.presets import PRESETS
from springwell.errors import UserError


@dataclass(frozen=True)
class PresetsCommand:
    """List the presets."""

    common: Common = dataclasses.field(default_factory=Common)


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
    from springwell.app.api import train_run
    from springwell.app.plots import preview
    from springwell.store.run import Run
    from springwell.training.loop import Hooks

    measure = _measure(command.config, context) if command.config.training.fid_every else None
    hooks = Hooks(preview, measure)
    result = train_run(command.config, command.out, command.common.device, context.reporter, hooks)
    out: dict[str, Any] = {
        "run": str(result.run),
        "status": result.status,
        "iteration": result.iteration,
        "seconds": round(result.seconds, 2),
    }
    if result.status == "interrupted" and is_main_process():
        context.reporter.say(
            f"interrupted at iteration {result.iteration}; everything is saved in {result.run}: run the same command to go on"
        )
        return out
    if not is_main_process():
        return {"status": result.status}
    run = Run(result.run)
    if result.status == "already finished":
        context.reporter.say(f"{result.run} is finished ({result.iteration} iterations); nothing to do")
    if not command.evaluate:
        if not command.common.json:
            print(f"{result.run}: {result.iteration} iterations, {result.seconds:.0f} s")
        return out
    known = known_evaluation(run.evaluation_path)
    if known.get("iteration") == result.iteration:
        out["evaluation"] = known
    else:
        quick = EvaluateCommand(str(result.run), fid=False, common=command.common)
        out["evaluation"] = measure_model(quick, result.run, context, Processes(context.device(), True, contextlib.nullcontext))
    if not command.common.json:
        print("\n".join(evaluation_lines(out["evaluation"])))
        print(f"{result.run}: {result.iteration} iterations, {result.seconds:.0f} s; pictures: {result.run / 'report.png'}")
    return out


def _measure(config: Config, context: Context) -> Callable[[Any], dict[str, Any]] | None:
    """What measures the FID while training; None, with a word about it, where something is missing that it needs."""
    from springwell.evaluation.metrics import torchmetrics
    from springwell.evaluation.quality import quality
    from springwell.evaluation.sources import open_source
    from springwell.evaluation.weights import load_inception

    try:
        torchmetrics()
        network = load_inception(reporter=context.reporter, data_root=config.images.data_root)
        reference = open_source(f"{config.data}@train", None, config.images)
    except UserError as error:
        if is_main_process():
            context.reporter.warn(f"--fid-every {config.training.fid_every}: the FID will not be measured; {error}")
        return None

    reporter = context.reporter if is_main_process() else None

    def measure(model: Any) -> dict[str, Any]:
        network.to(model.device)
        return quality(model, reference, network, config.training.fid_samples, reporter=reporter, only_fid=True)

    return measure


def _dry_run(command: TrainCommand, context: Context) -> dict[str, Any]:
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

"""springwell diagnose | longrun."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from springwell.app.cli import common as cli
from springwell.errors import InterruptionError, UserError

if TYPE_CHECKING:
    from springwell.evaluation.steps import Steps
    from springwell.model import Model


@dataclass(frozen=True)
class ChainOptions:
    """The kernel, and the pilot that tunes its step sizes."""

    kernel: Literal["langevin", "mala", "hmc", "nuts"] = "hmc"
    """Kernel of the chains. langevin has no Metropolis test and keeps the model's own step sizes."""
    num_leapfrog: int = 2
    """Number of leapfrog steps in one HMC step."""
    band: tuple[float, float] = (0.6, 0.9)
    """Range of acceptance rates to which the step size of every level is tuned. NUTS prefers higher rates, such as 0.7 0.95."""
    pilot_chains: int = 32
    """Number of chains per level that tune the step sizes. The paper uses 1000."""
    pilot_steps: int = 40
    """Number of steps in one round of tuning. The paper uses 100."""
    pilot_levels: int = 50
    """Number of levels that are tuned. Step sizes of the levels between them are interpolated."""
    dual_averaging: cli.Flag = False
    """Tune by dual averaging. It works better with few chains and many steps, such as 4 and 200."""


@dataclass(frozen=True)
class DiagnoseCommand(cli.Command):
    """Measure how well chains mix at the levels of a model: R-hat, effective samples, acceptance, energies."""

    run: cli.ModelName
    levels: tuple[int, ...] | None = None
    """Levels to measure. Default: 12 evenly spread levels, and level 0 without its spring."""
    spring: bool = True
    """Attach the chains to their springs. With --no-spring, only chains at level 0 without its spring are run."""
    steps: int = 200
    """Number of measured steps of every chain."""
    warmup: int = 50
    """Number of steps before the measured ones, which are discarded."""
    num: int = 16
    """Number of chains at every level. All of them draw from the same conditional."""
    seed: int = 0
    """Seed of the chains."""
    out: cli.Folder = None
    """Where to write diagnosis.json, diagnosis.png and step sizes. Default: chains/ in the run directory (step
    sizes go to the run directory itself), or ./NAME-chains for other models."""
    chain: ChainOptions = dataclasses.field(default_factory=ChainOptions)


@dataclass(frozen=True)
class LongrunCommand(cli.Command):
    """Sample with more and more steps per level, then continue the chains without springs. The same command resumes."""

    run: cli.ModelName
    steps: tuple[int, ...] = (1, 10, 100)
    """Numbers of steps per level. Each number is one run."""
    marginal_steps: int = 1000
    """Number of further steps at level 0 without its spring, which start where the longest run ended. 0: none."""
    num: int = 64
    """Number of chains in each run."""
    seed: int = 0
    """Seed of the samples. Sample i depends only on the seed and on i."""
    batch: cli.Number = None
    """Number of chains that run in parallel. Default: as many as fit in memory."""
    fid: cli.Flag = False
    """Also measure FID and KID. For models of images."""
    inception: cli.File = None
    """Weights of the Inception network for the FID. Default: $SPRINGWELL_INCEPTION, the user cache, the data root, or a
    download."""
    out: cli.Folder = None
    """Folder to write. Default: longrun-KERNEL in the run directory, or ./NAME-longrun-KERNEL for other models."""
    chain: ChainOptions = dataclasses.field(default_factory=ChainOptions)


def _steps(command: DiagnoseCommand | LongrunCommand, free: bool, model: Model, out: Path, context: cli.Context) -> Steps:
    from springwell.evaluation.steps import Method, Pilot, kept_steps

    chain = command.chain
    cli.in_range(("num-leapfrog", chain.num_leapfrog, 1, 1000), ("pilot-chains", chain.pilot_chains, 1, 100_000))
    cli.in_range(("pilot-steps", chain.pilot_steps, 2, 100_000), ("pilot-levels", chain.pilot_levels, 1, 100_000))
    low, high = chain.band
    if not 0 < low < high < 1:
        raise UserError(f"--band {low:g} {high:g}: needs 0 < low < high < 1, for instance 0.6 0.9")
    size = (chain.pilot_chains, chain.pilot_steps, chain.band, chain.pilot_levels)
    pilot = Pilot(*size, command.seed, chain.dual_averaging, free)
    folder = Path(command.run) if command.out is None and Path(command.run).is_dir() else out
    with cli.write_errors(folder):
        return kept_steps(model, Method(chain.kernel, chain.num_leapfrog), pilot, folder, context.reporter)


def _place(command: DiagnoseCommand | LongrunCommand, what: str) -> Path:
    out = cli.place(command.run, command.out, what, inside=what)
    cli.writable(out)
    return out


def diagnose_command(command: DiagnoseCommand, context: cli.Context) -> dict[str, Any]:
    from springwell.app import plots
    from springwell.evaluation.chains import FREE, Length, diagnose
    from springwell.schedule import spread_levels
    from springwell.store.files import write_json

    cli.at_least(("num", command.num, 2), ("steps", command.steps, 8), ("warmup", command.warmup, 0))
    model = cli.load_model(command.run, context)
    last = model.schedule.num_levels - 1
    if command.levels is not None and (not command.levels or min(command.levels) < 0):
        raise UserError(f"--levels {' '.join(map(str, command.levels))}: needs some of 0 ... {last}")
    levels = sorted(set(command.levels)) if command.levels is not None else [*spread_levels(last + 1, 12), FREE]
    if not command.spring:
        levels = [FREE]
    if bad := [t for t in levels if t != FREE and not 0 <= t <= last]:
        raise UserError(f"--levels {bad[0]}: out of range; this model has levels 0 ... {last}")
    out = _place(command, "chains")
    steps = _steps(command, FREE in levels, model, out, context)
    length = Length(command.steps, command.num, command.warmup, command.seed)
    found = diagnose(model, steps, levels, length, context.reporter)
    rows = [diagnosed.numbers for diagnosed in found]
    shown = [found[i] for i in spread_levels(len(found), 5)]
    with cli.write_errors(out):
        plots.diagnosis(out / "diagnosis.png", [(_name(d.numbers), d.log_p, d.energy) for d in shown])
        result = {"method": str(steps.method), "seed": command.seed, "levels": rows}
        write_json(out / "diagnosis.json", result)
    count = f"{command.num} chains of {command.steps} steps after {command.warmup}"
    context.tell(f"{steps.method}, {count}, worst coordinate of each level")
    start = f"{'level':<12}{'step':>9}{'accepted':>10}{'R-hat':>8}{'ESS bulk':>10}{'tail':>7}{'per gradient':>14}"
    context.tell(f"{start}{'E-BFMI':>8}{'drift (z)':>16}{'divergent':>11}", *map(_line, rows))
    context.tell(f"written: {out / 'diagnosis.json'}, {out / 'diagnosis.png'}")
    return {"run": command.run, "out": str(out), **result}


def _name(row: dict[str, Any]) -> str:
    return f"level {row['level']}" if row["spring"] else "no spring"


def _line(row: dict[str, Any]) -> str:
    def shown(name: str, kind: str) -> str:
        return "-" if row[name] is None else f"{row[name]:{kind}}"

    drift = "-" if row["drift"] is None else f"{row['drift']:+.2f} ({row['drift_z']:+.1f})"
    start = f"{_name(row):<12}{row['step_size']:>9.4f}{shown('acceptance', '.2f'):>10}{shown('rhat', '.3f'):>8}"
    worth = f"{shown('ess_bulk', '.0f'):>10}{shown('ess_tail', '.0f'):>7}{shown('ess_per_gradient', '.4f'):>14}"
    return f"{start}{worth}{shown('ebfmi', '.2f'):>8}{drift:>16}{row['divergent']:>11}"


def longrun_command(command: LongrunCommand, context: cli.Context) -> dict[str, Any]:
    from springwell.app import plots
    from springwell.app.build import config_of, open_model_data
    from springwell.evaluation.longrun import Judge, Plan, long_run, title

    cli.at_least(("num", command.num, 1), ("marginal-steps", command.marginal_steps, 0), ("batch", command.batch, 1))
    if not command.steps or min(command.steps) < 1:
        raise UserError(f"--steps {' '.join(map(str, command.steps))}: needs numbers of at least 1, for instance 1 10 100")
    model = cli.load_model(command.run, context)
    network = reference = None
    if command.fid and len(model.event_shape) != 3:
        raise UserError(f"--fid: works for images only; {command.run} is a model of vectors {list(model.event_shape)}")
    if command.fid:
        from springwell.evaluation.sources import open_source
        from springwell.evaluation.weights import load_inception

        config = config_of(model)
        root = config.images.data_root
        network = load_inception(command.inception, device=str(model.device), reporter=context.reporter, data_root=root)
        reference = open_source(f"{config.data}@train", None, config.images, context.reporter)
    out = _place(command, f"longrun-{command.chain.kernel}")
    data = open_model_data(model, reporter=context.reporter)
    judge = Judge(model, data, command.seed, context.reporter, network, reference)
    steps = _steps(command, command.marginal_steps > 0, model, out, context)
    plan = Plan(tuple(sorted(set(command.steps))), command.num, command.marginal_steps, command.seed, command.batch)
    with cli.write_errors(out):
        try:
            result, samples = long_run(model, plan, steps, judge, out, context.reporter)
        except KeyboardInterrupt:
            raise InterruptionError(f"interrupted; {out} keeps what is done: run the same command to resume") from None
        plots.longrun(out / "longrun.png", result)
        named = {title(name): x for name, x in samples.items()}
        (plots.long_samples if len(model.event_shape) == 3 else plots.long_points)(out / "samples.png", named)
    written = f"written: {out / 'longrun.json'}, {out / 'longrun.png'}, {out / 'samples.png'}"
    context.tell(*longrun_lines(result), written)
    return {"run": command.run, "out": str(out), **result}


def longrun_lines(result: dict[str, Any]) -> list[str]:
    """Returns one line for every run and for every mark of the chains without spring."""
    num, held_out = result["num_samples"], result["held_out"]["num"]
    near = f"{'nearest image':>18}" if "nearest" in result["held_out"] else ""
    lines = [
        f"{result['method']}, {num} chains; f gap in nats: {held_out} held-out data less samples",
        f"{'steps':<22}{'accepted':>13}{'f gap':>22}{'MMD^2 (null 95 %)':>24}{near}",
    ]
    rows = [(f"{row['steps_per_level']} per level", row) for row in result["runs"].values()]
    rows += [(f"{row['steps']} without spring", row) for row in result.get("marginal", [])]
    for name, row in rows:
        accepted, gap, mmd, nearest = longrun_cells(row)
        lines.append(f"{name:<22}{accepted:>13}{gap:>22}{mmd:>24}{nearest:>18}{_fid(row)}")
    return lines


def longrun_cells(row: dict[str, Any]) -> tuple[str, str, str, str]:
    """Returns a run's acceptance, f gap, MMD^2 and distance to the nearest training image, with their errors."""
    rates, error = row["acceptance"], row.get("f_gap_standard_error")
    accepted = f"{min(rates):.2f} ... {max(rates):.2f}" if isinstance(rates, list) else "-" if rates is None else f"{rates:.2f}"
    gap = f"{row['f_gap']:+.2f}" + ("" if error is None else f" +- {error:.2f}")
    mmd = f"{row['mmd2']:+.1e} ({row['mmd2_null_95']:.1e})" if "mmd2" in row else ""
    near = f"{row['nearest']:.3f} +- {row['nearest_standard_error']:.3f}" if "nearest" in row else ""
    return accepted, gap, mmd, near


def _fid(row: dict[str, Any]) -> str:
    from springwell.evaluation.metrics import ENOUGH

    if (q := row.get("quality")) is None:
        return ""
    few = ", biased upward" if q["num_samples"] < ENOUGH else ""
    return f"   FID {q['fid']:.2f} ({q['num_samples']:,} samples, {q['num_reference']:,} reference images{few})"

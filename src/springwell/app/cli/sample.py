"""springwell sample."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from springwell.app.cli import common as cli
from springwell.app.cli.tables import sample_table
from springwell.errors import UserError

if TYPE_CHECKING:
    from springwell.model import Model


@dataclass(frozen=True)
class SampleCommand(cli.Command):
    """Draw samples from a trained model."""

    run: cli.ModelName
    num: cli.Number = None
    """Number of samples. Default: 64 images, 1024 vectors, or 8 rows in a picture of trajectories."""
    seed: int = 0
    """Seed of the samples. Sample i depends only on the seed and on i."""
    out: cli.File = None
    """File or folder to write: .png for a picture; .npy or .npz for numbers (images as uint8 [N, H, W, C]); .gif with
    --trajectory; a path without ending for a folder of PNGs, which the same command completes after an interruption. Default:
    samples.png (samples.npy for vectors) in the run directory, or ./NAME.png for other models."""
    overwrite: cli.Overwrite = False
    trajectory: cli.Flag = False
    """Write the whole path from noise to sample, as .png, .gif or .npz."""
    batch: cli.Number = None
    """Number of chains that run in parallel. Default: as many as fit in memory."""
    steps: cli.Number = None
    """Number of MCMC steps per level. Default: the run's setting."""
    noise_scale: float | None = None
    """Factor on the Langevin noise. Default: the run's setting."""
    evaluations: cli.Number = None
    """Number of gradients per sample, such as 18. A second-order integrator then replaces the draws level by level."""
    label: str | None = None
    """Name of the class to draw, for models that know classes. all: --num samples of every class, with one row of a picture or
    one folder for each. Default: draw from the density of all data."""
    guidance: float = 1.0
    """Weight w in the density p(x) p(c|x)^w, for use with --label. 0: all data. 1: the class. Above 1: stress what
    distinguishes the class from others. With --steps (a Metropolis test) and --sweeps, or with --rejection, samples follow this
    density; without them this is classifier-free guidance."""
    sweeps: int = 0
    """Number of sweeps at every level after its first draw. Exact samples of a guided energy need them, or --rejection."""
    rejection: cli.Flag = False
    """Draw the class, keep each draw with probability p(c|x)^(w-1), and draw again what is not kept; for --guidance above 1."""


def sample_command(command: SampleCommand, context: cli.Context) -> dict[str, Any]:
    from springwell.app.tables import is_table_run
    from springwell.app.writing import KINDS

    if is_table_run(command.run):
        cli.at_least(("num", command.num, 1))
        written = sample_table(command.run, command.num, command.seed, command.out, command.overwrite)
        context.tell(f"{written['out']}: {written['num']} rows of {command.run}, seed {command.seed}")
        return written
    out = command.out
    if out is not None and out.suffix not in KINDS:
        raise UserError(f"--out {out}: unknown kind '{out.suffix}'; use .npy, .npz, .png, .gif or a folder")
    cli.at_least(
        ("num", command.num, 1),
        ("batch", command.batch, 1),
        ("steps", command.steps, 0),
        ("evaluations", command.evaluations, 2),
        ("sweeps", command.sweeps, 0),
    )
    _check_evaluations(command)
    cli.check_guidance(command.label, command.guidance)
    if command.rejection and command.guidance <= 1:
        raise UserError(f"--rejection: needs --guidance above 1, not {command.guidance:g}")
    if command.rejection and command.trajectory:
        raise UserError("--rejection: does not go with --trajectory; leave one of them out")
    if command.label == "all" and command.trajectory:
        raise UserError("--label all: --trajectory shows one class; give its name")
    cli.check_new(out, command.overwrite)
    with context.processes() as processes:
        return _sample(command, context, processes)


def _check_evaluations(command: SampleCommand) -> None:
    """Refuses options that the integrator cannot use, because it has no chains and visits few levels."""
    if command.evaluations is None:
        return
    given = {"--steps": command.steps is not None, "--noise-scale": command.noise_scale is not None}
    for option, is_given in {**given, "--sweeps": command.sweeps > 0, "--trajectory": command.trajectory}.items():
        if is_given:
            raise UserError(f"--evaluations {command.evaluations}: does not go with {option}; leave one of them out")


def _sample(command: SampleCommand, context: cli.Context, processes: cli.Processes) -> dict[str, Any]:
    from springwell.app.writing import Drawing, write_classes, write_samples, write_trajectory

    out = command.out
    with processes.first():
        rows = min(command.num or 64, command.batch or 1024)
        model = cli.load_model(command.run, context, processes.device, rows=rows)
    if out is None and Path(command.run).is_dir():
        kind = ".png" if command.trajectory or len(model.event_shape) == 3 else ".npy"
        out = Path(command.run) / f"{'trajectory' if command.trajectory else 'samples'}{kind}"
    elif out is None:
        out = Path(f"{cli.run_name(command.run)}{'-trajectory' if command.trajectory else ''}.png")
    cli.check_new(out, command.overwrite)
    cli.writable(out.parent)
    how = (command.num, command.seed, command.batch, command.steps, command.noise_scale, command.evaluations)
    name, labels = os.path.normpath(command.run), _labels(command, model)
    given = [model.given(label, command.guidance, command.sweeps, rejection=command.rejection) for label in labels] or [model]
    drawings = [Drawing(one, f"{name} {one.label}".strip(), context.reporter, *how) for one in given]
    with cli.write_errors(out):
        if command.label == "all":
            written = write_classes(drawings, out)
        else:
            written = (write_trajectory if command.trajectory else write_samples)(drawings[0], out)
    if processes.main:
        context.tell(f"{out}: {written['num']} samples of {command.run}, seed {command.seed}")
    return {"run": command.run, "out": str(out), "seed": command.seed, "label": command.label, **written}


def _labels(command: SampleCommand, model: Model) -> list[int]:
    """Returns the classes to draw, an empty list for all data. Refuses classes that the model does not know."""
    if command.label is None:
        return []
    if command.label == "all":
        model.label_of(0)
        return list(range(len(model.classes)))
    return [model.label_of(command.label)]

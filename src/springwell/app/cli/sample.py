"""springwell sample."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from springwell.app.cli import common as cli
from springwell.app.cli.tables import sample_table
from springwell.errors import UserError


@dataclass(frozen=True)
class SampleCommand(cli.Command):
    """Draw samples from a trained model."""

    run: cli.ModelName
    num: cli.Number = None
    """How many samples. Default: 64 images or 1024 vectors; 8 rows in a picture of trajectories."""
    seed: int = 0
    """Sample i depends on (seed, i) alone."""
    out: cli.File = None
    """Where to: .png for a picture; .npy or .npz for numbers, images as uint8 [N, H, W, C]; a path without suffix for a folder
    of PNGs, which an interrupted command fills up; .gif with --trajectory. Default: samples.png (samples.npy for vectors) in
    the run directory, ./NAME.png for other models."""
    overwrite: cli.Overwrite = False
    trajectory: cli.Flag = False
    """Write the way from noise to sample: .png, .gif or .npz."""
    batch: cli.Number = None
    """Chains that run side by side. Default: as many as fit in memory."""
    steps: cli.Number = None
    """MCMC steps per level. Default: the run's own."""
    noise_scale: float | None = None
    """Factor on the Langevin noise. Default: the run's own."""


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
    cli.at_least(("num", command.num, 1), ("batch", command.batch, 1), ("steps", command.steps, 0))
    cli.check_new(out, command.overwrite)
    with context.processes() as processes:
        return _sample(command, context, processes)


def _sample(command: SampleCommand, context: cli.Context, processes: cli.Processes) -> dict[str, Any]:
    from springwell.app.writing import Drawing, write_samples, write_trajectory

    out = command.out
    with processes.first():
        model = cli.load_model(command.run, context, processes.device)
    if out is None and Path(command.run).is_dir():
        kind = ".png" if command.trajectory or len(model.event_shape) == 3 else ".npy"
        out = Path(command.run) / f"{'trajectory' if command.trajectory else 'samples'}{kind}"
    elif out is None:
        out = Path(f"{cli.run_name(command.run)}{'-trajectory' if command.trajectory else ''}.png")
    cli.check_new(out, command.overwrite)
    cli.writable(out.parent)
    how = (command.num, command.seed, command.batch, command.steps, command.noise_scale)
    drawing = Drawing(model, os.path.normpath(command.run), context.reporter, *how)
    with cli.write_errors(out):
        written = (write_trajectory if command.trajectory else write_samples)(drawing, out)
    if processes.main:
        context.tell(f"{out}: {written['num']} samples of {command.run}, seed {command.seed}")
    return {"run": command.run, "out": str(out), "seed": command.seed, **written}

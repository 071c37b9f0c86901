"""springwell sample."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from springwell.app.cli.common import (
    Common,
    Context,
    File,
    Flag,
    ModelName,
    Number,
    Overwrite,
    Processes,
    at_least,
    check_new,
    load_model,
    run_name,
    writable,
    write_errors,
)
from springwell.app.cli.tables import sample_table
from springwell.errors import UserError


@dataclass(frozen=True)
class SampleCommand:
    """Draw samples from a trained model."""

    run: ModelName
    num: Number = None
    """How many samples. Default: 64 images or 1024 vectors; 8 rows in a picture of trajectories."""
    seed: int = 0
    """Sample i depends on (seed, i) alone."""
    out: File = None
    """Where to: .png for a picture; .npy or .npz for numbers, images as uint8 [N, H, W, C]; a path without suffix for a folder
    of PNGs, which an interrupted command fills up; .gif with --trajectory. Default: samples.png (samples.npy for vectors) in
    the run directory, ./NAME.png for other models."""
    overwrite: Overwrite = False
    trajectory: Flag = False
    """Write the way from noise to sample: .png, .gif or .npz."""
    batch: Number = None
    """Chains that run side by side. Default: as many as fit in memory."""
    steps: Number = None
    """MCMC steps per level. Default: the run's own."""
    noise_scale: float | None = None
    """Factor on the Langevin noise. Default: the run's own."""
    common: Common = dataclasses.field(default_factory=Common)


def sample_command(command: SampleCommand, context: Context) -> dict[str, Any]:
    from springwell.app.tables import is_table_run
    from springwell.app.writing import KINDS

    if is_table_run(command.run):
        at_least(("num", command.num, 1))
        written = sample_table(command.run, command.num, command.seed, command.out, command.overwrite)
        if not command.common.json:
            print(f"{written['out']}: {written['num']} rows of {command.run}, seed {command.seed}")
        return written
    out, name = command.out, run_name(command.run)
    if out is not None and out.suffix not in KINDS:
        raise UserError(f"--out {out}: unknown kind '{out.suffix}'; use .npy, .npz, .png, .gif or a folder")
    at_least(("num", command.num, 1), ("batch", command.batch, 1), ("steps", command.steps, 0))
    check_new(out, command.overwrite)
    with context.processes() as processes:
        return _sample(command, context, processes, out, name)


def _sample(command: SampleCommand, context: Context, processes: Processes, out: Path | None, name: str) -> dict[str, Any]:
    from springwell.app.writing import Drawing, write_samples, write_trajectory

    with processes.first():
        model = load_model(command.run, context, processes.device)
    if out is None and Path(command.run).is_dir():
        kind = ".png" if command.trajectory or len(model.event_shape) == 3 else ".npy"
        out = Path(command.run) / f"{'trajectory' if command.trajectory else 'samples'}{kind}"
    elif out is None:
        out = Path(f"{name}-trajectory.png" if command.trajectory else f"{name}.png")
    check_new(out, command.overwrite)
    writable(out.parent)
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
    with write_errors(out):
        written = (write_trajectory if command.trajectory else write_samples)(drawing, out)
    if not command.common.json and processes.main:
        print(f"{out}: {written['num']} samples of {command.run}, seed {command.seed}")
    return {"run": command.run, "out": str(out), "seed": command.seed, **written}

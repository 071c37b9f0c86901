"""springwell interpolate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from springwell.app.cli import common as cli
from springwell.errors import UserError


@dataclass(frozen=True)
class InterpolateCommand(cli.Command):
    """Draw paths of samples that lead from one sample to another."""

    run: cli.ModelName
    seeds: tuple[int, ...] = (0, 1)
    """Seeds of the two ends of a path; each end is sample 0 of its seed. Four seeds make two paths, and so on. With --manifold,
    four seeds are the corners of a surface."""
    num: int = 8
    """Number of samples along a path, or along one side of a surface, including the ends."""
    manifold: cli.Flag = False
    """Draw a surface of samples between four seeds."""
    tests: Literal["blended", "own"] = "blended"
    """How Metropolis tests are decided. blended: the ends decide, so that paths are continuous. own: every sample decides for
    itself, so that each is a sample of the model, but paths jump in places."""
    out: cli.File = None
    """File to write: .png (one row per path), .gif (images only; a surface is shown along its border), .npy or .npz. Default:
    NAME-interpolation.png, and for images also NAME-interpolation.gif."""
    overwrite: cli.Overwrite = False
    batch: cli.Number = None
    """Number of chains that run in parallel. Default: as many as fit in memory."""
    steps: cli.Number = None
    """Number of MCMC steps per level. Default: the run's setting."""
    label: cli.ClassName = None
    guidance: cli.Guidance = 1.0


def interpolate_command(command: InterpolateCommand, context: cli.Context) -> dict[str, Any]:
    import torch

    from springwell.app.writing import MAX_GRID
    from springwell.applications.interpolate import interpolate

    seeds, num, groups = command.seeds, command.num, _groups(command)
    cli.at_least(("num", num, 2), ("batch", command.batch, 1), ("steps", command.steps, 0))
    if command.out is not None and command.out.suffix not in (".png", ".gif", ".npy", ".npz"):
        raise UserError(f"--out {command.out}: unknown kind '{command.out.suffix}'; use .png, .gif, .npy or .npz")
    model = cli.of_class(cli.load_model(command.run, context), command.label, command.guidance)
    images = len(model.event_shape) == 3
    if not images and command.out is not None and command.out.suffix == ".gif":
        raise UserError(f"--out {command.out}: an animation shows images, and this model draws vectors; use .png or .npy")
    stem, kinds = f"{cli.run_name(command.run)}-interpolation", (".png", ".gif") if images else (".png",)
    outs = [command.out] if command.out else [Path(f"{stem}{kind}") for kind in kinds]
    if outs[0].suffix == ".png" and num * (num if command.manifold else len(seeds) // 2) > MAX_GRID:
        raise UserError(f"--num {num}: a picture holds at most {MAX_GRID} samples; use fewer, or --out with .npy or .npz")
    samples = sum(num ** (len(group) // 2) for group in groups)
    cli.check_size(num, samples, math.prod(model.event_shape))
    cli.check_new(command.out, command.overwrite)
    cli.writable(outs[0].parent)
    with context.reporter.bar("sampling (levels x samples)", samples * (model.schedule.num_levels + 1)) as bar:
        paths = [interpolate(model, g, num, command.tests, command.steps, command.batch, bar.advance).cpu() for g in groups]
    # A row per path, or the rows of the surface.
    rows = paths[0] if command.manifold else torch.stack(paths)
    for out in outs:
        with cli.write_errors(out):
            _write(rows, command.manifold, out)
    step = (rows[:, 1:] - rows[:, :-1]).flatten(2).norm(dim=2)
    largest, mean, pairs = float(step.max()), float(step.mean()), step.numel()
    what = f"largest distance of neighbours {largest:.3f}, mean {mean:.3f}, {pairs} pairs"
    context.tell(f"{', '.join(map(str, outs))}: {len(rows)} x {num} samples of {command.run}; {what}")
    drawn = {"out": [str(out) for out in outs], "seeds": list(seeds), "shape": list(rows.shape), "tests": command.tests}
    return {"run": command.run, **drawn, "distance_largest": largest, "distance_mean": mean, "distance_pairs": pairs}


def _groups(command: InterpolateCommand) -> list[list[int]]:
    """Returns the seeds of every path, or of the surface."""
    from springwell.applications.interpolate import check_seeds

    seeds, listed = command.seeds, " ".join(map(str, command.seeds))
    if command.manifold and len(seeds) != 4:
        raise UserError(f"--seeds {listed}: a surface has 4 corners; give 4 seeds")
    if len(seeds) < 2 or len(seeds) % 2:
        raise UserError(f"--seeds {listed}: every path has two ends; give 2, 4, 6, ... seeds")
    groups = [list(seeds)] if command.manifold else [list(seeds[i : i + 2]) for i in range(0, len(seeds), 2)]
    for group in groups:
        check_seeds(group)
    return groups


def _write(rows: Any, surface: bool, out: Path) -> None:
    """Writes samples ``[rows, num, ...]`` as a picture, an animation or numbers."""
    from springwell.app.plots import paths_figure, save_figure
    from springwell.app.writing import save_samples
    from springwell.data import pictures

    images, num = rows.ndim == 5, rows.shape[1]
    shown = pictures.to_bytes(rows.flatten(0, 1)) if images else rows.flatten(0, 1).numpy()
    if out.suffix in (".npy", ".npz"):
        save_samples(shown.reshape(*rows.shape[:2], *shown.shape[1:]), out)
    elif not images:
        save_figure(paths_figure(rows, f"{len(rows)} paths of {num} samples"), out)
    elif out.suffix == ".png":
        pictures.save_png(pictures.grid(shown, num), out)
    else:
        frames = _border(rows) if surface else rows.transpose(0, 1)
        pictures.save_gif([pictures.grid(pictures.to_bytes(frame)) for frame in frames], out)


def _border(rows: Any) -> list[Any]:
    """Returns the images along the border of a surface, one per frame, from corner A by B, D and C back to A."""
    n = len(rows) - 1
    sides = [[(0, i), (i, n), (n, n - i), (n - i, 0)] for i in range(n)]
    walk = [place for side in zip(*sides, strict=True) for place in side]
    return [rows[i, j][None] for i, j in [*walk, (0, 0)]]

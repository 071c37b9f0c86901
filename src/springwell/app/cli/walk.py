"""springwell levels | walk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from springwell.app.cli import common as cli
from springwell.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from springwell.model import Model


@dataclass(frozen=True)
class LevelsCommand(cli.Command):
    """Write the density and the score of every level of a two-dimensional model on a grid."""

    run: cli.ModelName
    out: Path = Path("levels.npz")
    """File to write, .npz. It holds log_density [T, 96, 96], indexed by level, y and x, and score [T, 16, 16, 2]."""
    overwrite: cli.Overwrite = False
    label: cli.ClassName = None
    guidance: cli.Guidance = 1.0


@dataclass(frozen=True)
class WalkCommand(cli.Command):
    """Run chains from your own starting points, at one level, with or without its spring."""

    run: cli.ModelName
    start: tyro.conf.Positional[Path]
    """File of starting points in the data's units: a .csv with a row of names, a .npy, or the array samples of an .npz. Images
    are numbers [N, C, H, W] in [-1, 1], or bytes [N, H, W, C]."""
    steps: int = 100
    """Number of steps."""
    step_size: float = 0.1
    """Step size, in the data's units."""
    kernel: Literal["langevin", "mala", "hmc", "nuts"] = "mala"
    """Kernel of the chains. langevin has no Metropolis test."""
    num_leapfrog: int = 2
    """Number of leapfrog steps in one HMC step."""
    level: int = 0
    """Noise level whose density the chains follow."""
    spring: tuple[float, float] | None = None
    """Fixed end of the spring, x_{t+1} / scale_t, for models of the plane. Default: no spring."""
    seed: int = 0
    """Seed of the noise. The noise of step n depends only on the seed and on n."""
    first: int = 0
    """Number of the first step, to continue earlier chains."""
    out: Path = Path("walk.npz")
    """File to write: .csv, .npy, or .npz with samples and the mean acceptance of every step; .png for images."""
    overwrite: cli.Overwrite = False
    label: cli.ClassName = None
    guidance: cli.Guidance = 1.0


def _kind(out: Path, *kinds: str) -> None:
    if out.suffix not in kinds:
        raise UserError(f"--out {out}: unknown kind '{out.suffix}'; use {', '.join(kinds)}")


def levels_command(command: LevelsCommand, context: cli.Context) -> dict[str, Any]:
    from springwell.app.writing import save_arrays
    from springwell.evaluation.plane import check_plane, landscape

    _kind(command.out, ".npz")
    cli.check_new(command.out, command.overwrite)
    cli.writable(command.out.parent)
    model = cli.of_class(cli.load_model(command.run, context), command.label, command.guidance)
    check_plane(model, command.run)
    found = landscape(model)
    with cli.write_errors(command.out):
        save_arrays(command.out, found)
    num = model.schedule.num_levels
    context.tell(f"{command.out}: log-densities of {num} levels of {command.run}, normalised over the window, nats")
    return {"run": command.run, "out": str(command.out), "num_levels": num}


def walk_command(command: WalkCommand, context: cli.Context) -> dict[str, Any]:
    from springwell.errors import DivergenceError
    from springwell.evaluation.walk import Walk
    from springwell.samplers import make_kernel

    _kind(command.out, ".csv", ".npy", ".npz", ".png")
    cli.at_least(("steps", command.steps, 1), ("first", command.first, 0), ("num-leapfrog", command.num_leapfrog, 1))
    if not 0 < command.step_size < float("inf"):
        raise UserError(f"--step-size {command.step_size:g}: must be above 0")
    cli.check_new(command.out, command.overwrite)
    cli.writable(command.out.parent)
    model = cli.of_class(cli.load_model(command.run, context), command.label, command.guidance)
    if command.spring is not None and model.event_shape != (2,):
        raise UserError(f"--spring: {command.run} is not a model of the plane")
    x = _start(command.start, model)
    kernel = make_kernel(command.kernel, command.num_leapfrog)
    walk = Walk(model, kernel, command.step_size, command.level, command.spring, command.seed)
    accepted = []
    with context.reporter.bar("steps", command.steps) as bar:
        for moved in walk.steps(x, command.steps, command.first):
            x, info = moved
            accepted.append(1.0 if info.acceptance is None else float(info.acceptance.mean()))
            bar.advance()
    if not bool(x.isfinite().all()):
        raise DivergenceError("the chains ran away; use a smaller --step-size, or a --kernel with a Metropolis test")
    with cli.write_errors(command.out):
        _write(command.out, x, model, accepted)
    mean = sum(accepted) / len(accepted)
    rate = f", acceptance {mean:.2f}" if kernel.tested else ""
    context.tell(f"{command.out}: {len(x)} chains of {command.run} after {command.steps} steps at level {command.level}{rate}")
    return {"run": command.run, "out": str(command.out), "num": len(x), "acceptance": mean if kernel.tested else None}


def _start(path: Path, model: Model) -> Tensor:
    """Returns the points of a file, ``[N, *event_shape]``, in the data's units. Raises UserError."""
    import numpy as np
    import torch

    from springwell.data.images import scaled

    try:
        x = _numbers(path)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{path}: cannot be read as numbers ({str(error).splitlines()[0]})") from None
    if x.dtype == np.uint8 and x.ndim == 4:
        return scaled(torch.from_numpy(x).permute(0, 3, 1, 2).contiguous())
    found = torch.from_numpy(x.astype(np.float32))
    model.standardised(found, str(path))
    if not len(found) or not bool(found.isfinite().all()):
        raise UserError(f"{path}: needs at least one row of finite numbers")
    return found


def _numbers(path: Path) -> np.ndarray:
    import numpy as np

    if path.suffix == ".csv":
        return np.loadtxt(path, np.float32, delimiter=",", skiprows=1, ndmin=2)
    found = np.load(path)
    return np.asarray(found["samples"] if isinstance(found, np.lib.npyio.NpzFile) else found)


def _write(out: Path, x: Tensor, model: Model, accepted: list[float]) -> None:
    import numpy as np

    from springwell.app.writing import save_arrays
    from springwell.data import pictures

    numbers = x.cpu().numpy()
    if out.suffix == ".png":
        if len(model.event_shape) != 3:
            raise UserError(f"--out {out}: a picture shows images, and this model is of vectors; use .csv, .npy or .npz")
        pictures.save_png(pictures.grid(pictures.to_bytes(model.finished(model.standardised(x)))), out)
    elif out.suffix == ".csv":
        names = ",".join("xy" if model.event_shape == (2,) else map(str, range(numbers[0].size)))
        np.savetxt(out, numbers.reshape(len(numbers), -1), "%.9g", ",", header=names, comments="")
    elif out.suffix == ".npy":
        np.save(out, numbers)
    else:
        save_arrays(out, {"samples": numbers, "acceptance": np.array(accepted)})

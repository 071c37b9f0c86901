r"""Jobs on models of the plane.

Everything is shown in the data's units at level t, x_t. The conditional of Eq. 4 is in y_t = scale_t x_t, so that

    log p(x_t | x_{t+1}) = f(scale_t x_t, t) - |x_t - e|^2 / (2 (sigma_{t+1} / scale_t)^2) + const,     e = x_{t+1} / scale_t,

and e is the end of the spring that the page lets one drag.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from springwell.app.studio import recipes
from springwell.app.studio.desk import CancelledError, Desk, finite
from springwell.app.studio.options import Options
from springwell.conditional import Conditional
from springwell.energy.base import at_level
from springwell.errors import UserError
from springwell.model import Model
from springwell.noise import Stream
from springwell.samplers import LogDensity, make_kernel
from springwell.samplers.base import begin

CELLS = 96
COARSE_CELLS = 64
ARROWS = 16
# Half the side of the window, in standard deviations of the data.
WINDOW = 2.8
MOST_PARTICLES = 2000
FEWEST_POINTS = 20
MOST_POINTS = 20_000
# Seconds between two pictures of a landscape that forms.
LOOK_EVERY = 0.3
KERNELS = ("langevin", "mala", "hmc", "nuts")


def window(model: Model) -> list[float]:
    """[left, right, bottom, top] of what is shown, in the data's units; a square."""
    (x, y), half = model.shift.tolist(), WINDOW * float(model.scale.max())
    return [x - half, x + half, y - half, y + half]


def nodes(extent: list[float], cells: int) -> Tensor:
    """The centres of cells x cells squares ``[cells^2, 2]``, row by row from the bottom."""
    left, right, bottom, top = extent
    middle = (torch.arange(cells) + 0.5) / cells
    y, x = torch.meshgrid(bottom + (top - bottom) * middle, left + (right - left) * middle, indexing="ij")
    return torch.stack([x, y], -1).reshape(-1, 2)


def log_density(model: Model, level: int, extent: list[float], cells: int) -> np.ndarray:
    """log p of level t at the nodes ``[cells, cells]``, normalised over the window."""
    with torch.no_grad():
        f = -model.energy(nodes(extent, cells), level).double()
    area = (extent[1] - extent[0]) * (extent[3] - extent[2]) / cells**2
    return (f - f.logsumexp(0) - float(np.log(area))).float().cpu().numpy().reshape(cells, cells)


def _plane_model(desk: Desk, options: Options) -> Model:
    model = desk.model(options.text("model"))
    if model.event_shape != (2,):
        raise UserError(f"{options.text('model')}: is no model of the plane; choose one of two dimensions")
    return model


def about_levels(model: Model) -> list[dict[str, Any]]:
    """What the page shows of every level: its noise, its spring's width in the units of x_t, and the chains' step size."""
    schedule, width = model.schedule, float(model.scale.mean())
    rows = zip(
        schedule.sigma_cum[:-1].tolist(),
        (schedule.sigma[1:] / schedule.scale).tolist(),
        schedule.spring.tolist(),
        (model.step_size / schedule.scale.to(model.step_size)).tolist(),
        strict=True,
    )
    return [
        {"noise": noise, "spring": width * spring if held else None, "step_size": width * step}
        for noise, spring, held, step in rows
    ]


def levels(desk: Desk, options: Options) -> dict[str, Any]:
    """The density of every level on a grid, and its score on a coarser one, level 0 first."""
    model, name = _plane_model(desk, options), options.text("model")
    extent, kept, scores = window(model), [], []
    about = {"extent": extent, "num_levels": model.schedule.num_levels, "levels": about_levels(model)}
    for level in range(model.schedule.num_levels):
        kept.append(log_density(model, level, extent, CELLS))
        score = model.score(nodes(extent, ARROWS), level).cpu().numpy().astype(np.float32).reshape(ARROWS, ARROWS, 2)
        scores.append(score)
        arrays = {"log_density": kept[-1], "score": score}
        desk.emit("level", arrays, f"level {level}", level=level, **about)
        desk.progress(level + 1, model.schedule.num_levels, "levels")
    middle = (np.arange(CELLS) + 0.5) / CELLS
    x = extent[0] + (extent[1] - extent[0]) * middle
    y = extent[2] + (extent[3] - extent[2]) * middle
    desk.result(log_density=np.stack(kept), score=np.stack(scores), x=x, y=y, level=np.arange(len(kept)))
    return {"recipe": recipes.levels(name, extent, CELLS)}


def chains(desk: Desk, options: Options) -> dict[str, Any]:
    """Some steps of chains from given positions, at the density of a level or on its spring.

    The page keeps the positions, so that nothing is lost with a connection. Steps have the noise of their number.
    """
    model = _plane_model(desk, options)
    level = options.whole("level", 0, model.schedule.num_levels - 1)
    frames, thin = options.whole("frames", 1, 60), options.whole("thin", 1, 50)
    kernel = make_kernel(options.choice("kernel", KERNELS), options.whole("num_leapfrog", 1, 50))
    first, seed = options.whole("first", 0, 2**31 - 1), options.seed()
    x = torch.from_numpy(np.array(options.array("positions", np.float32, (None, 2))))
    if not 1 <= len(x) <= MOST_PARTICLES:
        raise UserError(f"positions: {len(x)} particles; use 1 ... {MOST_PARTICLES}")
    scale = float(model.schedule.scale[level])
    # Step sizes are the data's, as positions are; chains run in y = scale_t u.
    step_size = options.number("step_size", 1e-6, 1e3) * scale / float(model.scale.mean())
    y = scale * model.standardised(x)
    target = _target(model, options, level, y)
    state, delta = begin(kernel, y, target, step_size, check=False)
    noise = model.noise(seed, torch.arange(len(x)), Stream.LONGRUN_FREE + first)
    path, accepted = [], []
    for number in range(frames * thin):
        state, info = kernel.step(state, target, delta, noise)
        if info.acceptance is not None:
            accepted.append(float(info.acceptance.mean()))
        if (number + 1) % thin == 0:
            path.append(model.shift + model.scale * state.y / scale)
            desk.check()
    moved = torch.stack(path)
    lost = int((~torch.isfinite(moved[-1]).all(-1)).sum())
    # Where a chain without a test ran away, it starts again where it was.
    moved = torch.where(torch.isfinite(moved), moved, x.to(moved))
    acceptance = float(np.mean(accepted)) if accepted else None
    recipe = recipes.chains(options.text("model"), options, frames * thin)
    arrays = {"frames": moved.cpu().numpy().astype(np.float32)}
    return {"acceptance": acceptance, "lost": lost, "recipe": recipe, "arrays": arrays}


def _target(model: Model, options: Options, level: int, y: Tensor) -> LogDensity:
    """What the chains sample: the well alone, or the well and the spring."""
    t = torch.full((len(y),), level, device=y.device)
    if not options.flag("spring"):
        return at_level(model.energy_function, t)
    if not bool(model.schedule.spring[level]):
        raise UserError(f"level {level}: has no spring in this model")
    end = torch.tensor([[options.number("end_x", -1e6, 1e6), options.number("end_y", -1e6, 1e6)]])
    x_next = float(model.schedule.scale[level]) * model.standardised(end)
    return Conditional(model.energy_function, model.schedule, t, x_next.expand_as(y).contiguous())


def train(desk: Desk, options: Options) -> dict[str, Any]:
    """Trains a model of the plane on drawn points, from the beginning or from where it was stopped.

    The points go to runs/NAME.npy and the run to runs/NAME, where ``springwell train`` would have put it.
    """
    from springwell.app.api import train_run
    from springwell.app.config import with_fields
    from springwell.app.presets import recipe_for
    from springwell.app.studio.runs import drawing_name
    from springwell.training.loop import Hooks

    name = drawing_name(options.text("name", 60))
    out, data = desk.runs / name, desk.runs / f"{name}.npy"
    iterations, seed = options.whole("iterations", 10, 100_000), options.seed()
    if not options.flag("resume"):
        _save_points(options.array("points", np.float32, (None, 2)), out, data)
    config = with_fields(
        recipe_for((2,)),
        data=f"npy:{data}",
        iterations=iterations,
        seed=seed,
        # A person watches: iterations are to be quick, and the average is to follow them.
        batch=256,
        ema=0.98,
        warmup=min(100, iterations // 4),
        log_every=20,
        checkpoint_every=500,
        preview_every=5,
    )
    looked, began = 0.0, time.monotonic()
    last: dict[str, np.ndarray] = {}

    def look(model: Model, path: Path) -> None:
        nonlocal looked, last
        now = time.monotonic()
        if now - looked < LOOK_EVERY and model.iteration < iterations:
            return
        extent = window(model)
        shown = {f"log_density_{t}": log_density(model, t, extent, COARSE_CELLS) for t in range(model.schedule.num_levels)}
        about: dict[str, Any] = {"num_levels": model.schedule.num_levels, "levels": about_levels(model)}
        # What a look costs is time that training does not have.
        looked = max(now, 3 * time.monotonic() - 2 * now - LOOK_EVERY)
        last = {**shown, "extent": np.array(extent), "iteration": np.array(model.iteration)}
        desk.emit("landscape", shown, iteration=model.iteration, seconds=round(now - began, 2), extent=extent, **about)

    try:
        result = train_run(config, out, desk.device, _Stopping(desk), Hooks(preview=look))
    finally:
        desk.known.clear()
    desk.result(points=np.load(data), **last)
    return {
        "status": result.status,
        "iteration": result.iteration,
        "run": str(out),
        "recipe": recipes.train(config, out),
        "seconds": finite(result.seconds),
    }


def _save_points(points: np.ndarray, out: Path, data: Path) -> None:
    if not FEWEST_POINTS <= len(points) <= MOST_POINTS:
        raise UserError(f"points: {len(points)} are drawn; training needs {FEWEST_POINTS} ... {MOST_POINTS}")
    if out.exists() or data.exists():
        raise UserError(f"{out}: exists; choose another name, or continue it")
    data.parent.mkdir(parents=True, exist_ok=True)
    np.save(data, points)


class _Stopping(Desk):
    """Tells the page of training; where the page stops it, training is interrupted as by Ctrl-C, which saves it."""

    def __init__(self, desk: Desk):
        self.__dict__.update(desk.__dict__)

    def progress(self, done: int, total: int, what: str) -> None:
        import signal

        try:
            super().progress(done, total, "iterations")
        except CancelledError:
            self._cancelled = 0
            signal.raise_signal(signal.SIGINT)

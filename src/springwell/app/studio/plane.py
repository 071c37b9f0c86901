"""Jobs on models of the plane: densities, chains, training on drawn data. All is shown in the data's units at level t, x_t."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from springwell.app.studio import recipes
from springwell.app.studio.desk import CancelledError, Desk, finite
from springwell.app.studio.options import Options
from springwell.errors import UserError
from springwell.evaluation.plane import check_plane, landscape, log_density, window
from springwell.evaluation.walk import Walk
from springwell.model import Model
from springwell.samplers import make_kernel

COARSE_CELLS = 64
MOST_PARTICLES = 2000
FEWEST_POINTS = 20
MOST_POINTS = 20_000
MOST_PICTURES = 90
# Seconds between two pictures of a landscape that forms.
LOOK_EVERY = 0.3
KERNELS = ("langevin", "mala", "hmc", "nuts")


def _plane_model(desk: Desk, options: Options) -> Model:
    model = desk.chosen(options)
    check_plane(model, options.text("model"))
    return model


def about_levels(model: Model) -> list[dict[str, Any]]:
    """What the page shows of every level: its noise, its spring's two widths in the units of x_t, and the chains' step size."""
    schedule, width = model.schedule, model.scale
    rows = zip(
        schedule.sigma_cum[:-1].tolist(),
        (schedule.sigma[1:] / schedule.scale).tolist(),
        schedule.spring.tolist(),
        (model.step_size / schedule.scale.to(model.step_size)).tolist(),
        strict=True,
    )
    return [
        {"noise": noise, "spring": (spring * width).tolist() if held else None, "step_size": step * float(width.mean())}
        for noise, spring, held, step in rows
    ]


def levels(desk: Desk, options: Options) -> dict[str, Any]:
    """The density of every level on a grid, and its score on a coarser one, level 0 first."""
    model, known = _plane_model(desk, options), desk.model(options.text("model"))
    num = model.schedule.num_levels
    about = {"extent": window(model), "num_levels": num, "levels": about_levels(model), "classes": list(known.classes)}

    def show(level: int, log_p: np.ndarray, score: np.ndarray) -> None:
        desk.emit("level", {"log_density": log_p, "score": score}, f"level {level}", level=level, **about)
        desk.progress(level + 1, num, "levels")

    desk.result(**landscape(model, show))
    return {"recipe": recipes.levels(options.text("model"), options.values)}


def chains(desk: Desk, options: Options) -> dict[str, Any]:
    """Some steps of chains from given positions, at the density of a level or on its spring.

    The page keeps the positions, so that nothing is lost with a connection. Steps have the noise of their number.
    """
    model = _plane_model(desk, options)
    frames, thin = options.whole("frames", 1, 60), options.whole("thin", 1, 50)
    kernel = make_kernel(options.choice("kernel", KERNELS), options.whole("num_leapfrog", 1, 50))
    x = torch.from_numpy(np.array(options.array("positions", np.float32, (None, 2))))
    if not 1 <= len(x) <= MOST_PARTICLES:
        raise UserError(f"positions: {len(x)} particles; use 1 ... {MOST_PARTICLES}")
    end = [options.number(name, -1e6, 1e6) for name in ("end_x", "end_y")] if options.flag("spring") else None
    level = options.whole("level", 0, model.schedule.num_levels - 1)
    walk = Walk(model, kernel, options.number("step_size", 1e-6, 1e3), level, end, options.seed())
    path, accepted = [], []
    for number, (position, info) in enumerate(walk.steps(x, frames * thin, options.whole("first", 0, 2**31 - 1)), 1):
        if info.acceptance is not None:
            accepted.append(float(info.acceptance.mean()))
        if number % thin == 0:
            path.append(position)
            desk.check()
    moved = torch.stack(path)
    lost = int((~torch.isfinite(moved[-1]).all(-1)).sum())
    # Where a chain without a test ran away, it starts again where it was.
    moved = torch.where(torch.isfinite(moved), moved, x.to(moved))
    acceptance = float(np.mean(accepted)) if accepted else None
    options.whole("since", 0, 2**31 - 1)
    recipe = recipes.walk(options.text("model"), options.values, "start.csv", "particles.csv")
    arrays = {"frames": moved.cpu().numpy().astype(np.float32)}
    return {"acceptance": acceptance, "lost": lost, "recipe": recipe, "arrays": arrays}


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
    film: list[np.ndarray] = []

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
        # Half of the pictures are let go whenever there are too many for a film of a few seconds.
        film.append(np.stack(list(shown.values())))
        if len(film) > MOST_PICTURES:
            del film[1:-1:2]
        desk.emit("landscape", shown, iteration=model.iteration, seconds=round(now - began, 2), extent=extent, **about)

    try:
        result = train_run(config, out, desk.device, _Stopping(desk), Hooks(preview=look))
    finally:
        desk.known.clear()
    desk.result(points=np.load(data), **last, **({"film": np.stack(film)} if film else {}))
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

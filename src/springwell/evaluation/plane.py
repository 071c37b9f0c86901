"""The densities of all levels of a model of the plane, on a grid, with their scores on a coarser one.

Everything is in the data's units at level t, x_t, and normalised over the window that is shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from springwell.errors import UserError
from springwell.model import Model

CELLS = 96
ARROWS = 16
# Half the side of the window, in standard deviations of the data.
WINDOW = 2.8


def check_plane(model: Model, name: str = "model") -> None:
    """Refuses models of anything but points in the plane."""
    if model.event_shape != (2,):
        raise UserError(f"{name}: is no model of the plane; choose one of two dimensions")


def window(model: Model) -> list[float]:
    """[left, right, bottom, top] of what is shown, in the data's units; a square."""
    (x, y), half = model.shift.tolist(), WINDOW * float(model.scale.max())
    return [x - half, x + half, y - half, y + half]


def middles(low: float, high: float, cells: int) -> np.ndarray:
    """The centres of equal cells between two edges."""
    return low + (high - low) * (np.arange(cells) + 0.5) / cells


def nodes(extent: list[float], cells: int) -> Tensor:
    """The centres of cells x cells squares ``[cells^2, 2]``, row by row from the bottom."""
    left, right, bottom, top = extent
    x, y = np.meshgrid(middles(left, right, cells), middles(bottom, top, cells))
    return torch.from_numpy(np.stack([x.ravel(), y.ravel()], -1)).float()


def log_density(model: Model, level: int, extent: list[float], cells: int = CELLS) -> np.ndarray:
    """log p of level t at the nodes ``[cells, cells]``, normalised over the window."""
    with torch.no_grad():
        f = -model.energy(nodes(extent, cells), level).double()
    area = (extent[1] - extent[0]) * (extent[3] - extent[2]) / cells**2
    return (f - f.logsumexp(0) - math.log(area)).float().cpu().numpy().reshape(cells, cells)


def score(model: Model, level: int, extent: list[float], cells: int = ARROWS) -> np.ndarray:
    """The score of level t at the nodes ``[cells, cells, 2]``."""
    return model.score(nodes(extent, cells), level).cpu().numpy().astype(np.float32).reshape(cells, cells, 2)


def landscape(
    model: Model, watch: Callable[[int, np.ndarray, np.ndarray], None] = lambda level, log_p, score: None
) -> dict[str, np.ndarray]:
    """``log_density`` ``[T, 96, 96]`` and ``score`` ``[T, 16, 16, 2]`` of all levels, and ``level``, ``y``, ``x`` of the first.

    Args:
        model: A model of the plane.
        watch: Receives each level, its log-density and its score.
    """
    check_plane(model)
    extent = window(model)
    tables, scores = [], []
    for level in range(model.schedule.num_levels):
        tables.append(log_density(model, level, extent))
        scores.append(score(model, level, extent))
        watch(level, tables[-1], scores[-1])
    left, right, bottom, top = extent
    axes = {"x": middles(left, right, CELLS), "y": middles(bottom, top, CELLS), "level": np.arange(len(tables))}
    return {"log_density": np.stack(tables), "score": np.stack(scores), **axes}

"""Figures: points, densities, curves, reports."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from springwell.data.source import open_data
from springwell.data.toy import log_density
from springwell.evaluation.quadrature import evaluate, plane_grid
from springwell.model import Model
from springwell.pictures import Bytes, grid, save_png, to_bytes

LIMIT = 3.0
PREVIEW_IMAGES = 36
_CELLS = 240
_TITLE = 8


def new_figure(rows: int, columns: int, size: float = 2.1) -> tuple[Any, Any]:
    """A grid of square panels without ticks, on a canvas that needs no screen."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(columns * size, rows * size + 0.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False)
    for ax in axes.flat:
        ax.set(xticks=[], yticks=[], aspect="equal")
    return figure, axes


def figure_bytes(figure: Any) -> Bytes:
    """A figure as a picture ``[H, W, 3]``."""
    figure.set_dpi(100)
    figure.canvas.draw()
    return np.asarray(figure.canvas.buffer_rgba())[..., :3].copy()


def save_figure(figure: Any, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=200)
    return path


def panel_grid(limit: float = LIMIT) -> Tensor:
    """The points at which panels show densities ``[M, 2]``."""
    return plane_grid(limit, _CELLS)


def draw_density(ax: Any, log_value: Tensor, limit: float = LIMIT, title: str = "") -> None:
    """A density given by its log at :func:`panel_grid`, each panel on its own scale."""
    value = (log_value - log_value[torch.isfinite(log_value)].max()).exp().nan_to_num(0).view(_CELLS + 1, _CELLS + 1).T
    top = float(value.flatten().quantile(0.998))
    ax.imshow(
        value.cpu(),
        origin="lower",
        extent=(-limit, limit, -limit, limit),
        cmap="magma",
        vmin=0,
        vmax=top or 1,
        interpolation="bilinear",
    )
    ax.set_title(title, fontsize=_TITLE)


def draw_points(ax: Any, x: Tensor, limit: float = LIMIT, title: str = "") -> None:
    inside = x[(x.abs() <= limit).all(-1)].cpu()
    ax.scatter(inside[:, 0], inside[:, 1], s=1.2, c="#20456e", alpha=0.5, linewidths=0)
    if outside := len(x) - len(inside):
        ax.text(0.98, 0.02, f"{outside} of {len(x)} outside", transform=ax.transAxes, ha="right", va="bottom", fontsize=5)
    ax.set(xlim=(-limit, limit), ylim=(-limit, limit))
    ax.set_title(title, fontsize=_TITLE)


def first_two(x: Tensor) -> Tensor:
    """The first two coordinates of vectors; a single one is drawn on a line."""
    return x[:, :2] if x.shape[1] > 1 else torch.cat([x, torch.zeros_like(x)], 1)


def vectors_figure(x: Tensor, title: str, limit: float | None = None) -> Any:
    """The first two coordinates of vectors as points."""
    figure, axes = new_figure(1, 1, 4.0)
    draw_points(axes[0, 0], first_two(x), limit=limit or largest(x), title=title)
    return figure


def largest(*values: Tensor) -> float:
    """A limit that all points are within."""
    return 1.05 * max(float(x.abs().max()) for x in values)


def data_log_density(data: str, a: float, sigma: float, limit: float = LIMIT) -> Tensor:
    toy = open_data(data).toy
    assert toy is not None
    return log_density(toy, panel_grid(limit), a, sigma)


def level_log_density(model: Model, t: int, limit: float = LIMIT) -> Tensor:
    """Unnormalised log-density of x_t on the panel's grid (standardised coordinates)."""
    scale = float(model.schedule.scale[t])

    def f(x: Tensor) -> Tensor:
        with torch.no_grad():
            return model.f(scale * x.to(model.device), t).cpu()

    return evaluate(f, panel_grid(limit))


def report(model: Model, samples: Tensor, path: Path, title: str = "") -> Path:
    """Data, learned density and samples side by side (standardised coordinates)."""
    toy = open_data(model.config.data).toy
    figure, axes = new_figure(1, 3 if toy is not None else 2, 2.6)
    panels = list(axes[0])
    if toy is not None:
        a, sigma = float(model.schedule.a_cum[0]), float(model.schedule.sigma_cum[0])
        draw_density(panels.pop(0), data_log_density(model.config.data, a, sigma), title=f"data (noise {sigma:.2g})")
    draw_density(panels[0], level_log_density(model, 0), title="learned density exp f(y, 0)")
    draw_points(panels[1], (samples - model.shift) / model.scale, title=f"{len(samples)} samples")
    if title:
        figure.suptitle(title, fontsize=_TITLE + 1)
    return save_figure(figure, path)


def image_report(samples: Tensor, held_out: Tensor, path: Path, title: str = "") -> Path:
    """Grids of samples and of held-out data side by side."""
    figure, axes = new_figure(1, 2, 4.0)
    for ax, x, what in zip(axes[0], (samples, held_out), ("samples", "held-out images"), strict=True):
        picture = grid(to_bytes(x))
        ax.imshow(picture[..., 0] if picture.shape[-1] == 1 else picture, cmap="gray", vmin=0, vmax=255)
        ax.set_title(f"{len(x)} {what}", fontsize=_TITLE)
        ax.axis("off")
    if title:
        figure.suptitle(title, fontsize=_TITLE + 1)
    return save_figure(figure, path)


def preview(model: Model, path: Path) -> None:
    """A picture of a model in training; vectors of other dimensions show their first two coordinates."""
    if len(model.event_shape) == 3:
        save_png(grid(to_bytes(model.sample(PREVIEW_IMAGES, seed=0))), path)
        return
    samples = model.sample(1024, seed=0)
    title = f"{model.config.data}, iteration {model.iteration}"
    if model.event_shape == (2,):
        report(model, samples, path, title)
        return
    figure, axes = new_figure(1, 1, 3.0)
    u = (samples - model.shift) / model.scale
    draw_points(axes[0, 0], first_two(u), title=title)
    save_figure(figure, path)


def curves(path: Path, metrics: Sequence[dict[str, Any]]) -> Path:
    """Per-level statistics over the iterations of a run."""
    from matplotlib import colormaps

    names = ("loss", "f_pos", "displacement", "acceptance", "step_size")
    figure, axes = new_figure(1, len(names), 2.6)
    metrics = [line for line in metrics if all(isinstance(line.get(name), list) for name in names)]
    iterations = [line["iteration"] for line in metrics]
    num_levels = min((len(line[name]) for line in metrics for name in names), default=0)
    shown = sorted({round(i * (num_levels - 1) / min(7, max(1, num_levels - 1))) for i in range(8)} & set(range(num_levels)))
    for ax, name in zip(axes[0], names, strict=True):
        ax.set(aspect="auto")
        ax.set_title(name, fontsize=_TITLE)
        ax.set_xlabel("iteration", fontsize=_TITLE)
        ax.xaxis.set_major_locator(_ticks(3))
        ax.yaxis.set_major_locator(_ticks(4))
        ax.tick_params(labelsize=7)
        for t in shown:
            colour = colormaps["viridis"](0.9 * t / max(1, num_levels - 1))
            values = [line[name][t] if line[name][t] is not None else math.nan for line in metrics]
            ax.plot(iterations, values, color=colour, lw=1, label=f"t = {t}")
    axes[0, 0].legend(fontsize=6)
    return save_figure(figure, path)


def _ticks(number: int) -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(number)

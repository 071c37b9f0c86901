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
from springwell.likelihood.bracket import Bracket
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


def neighbours(path: Path, samples: Tensor, nearest: np.ndarray) -> None:
    """A row per sample: the sample, then its nearest training images, uint8 ``[N, K, C, H, W]``, nearest first."""
    rows = [np.concatenate([to_bytes(x[None]), near.transpose(0, 2, 3, 1)]) for x, near in zip(samples, nearest, strict=False)]
    save_png(grid(np.concatenate(rows), len(rows[0])), path)


def levels(path: Path, result: dict[str, Any]) -> Path:
    """Energy gap and acceptance of every level."""
    figure, axes = new_figure(1, 2, 3.0)
    t = range(len(result["acceptance"]))
    gap, error = (
        [math.nan if v is None else v for v in result[name]] for name in ("f_gap_levels", "f_gap_levels_standard_error")
    )
    few = len(gap) <= 50
    axes[0, 0].errorbar(t, gap, error, fmt="o" if few else "-", color="#20456e", ms=3, lw=1, elinewidth=0.5)
    axes[0, 0].axhline(0, color="0.6", lw=0.8)
    axes[0, 0].set_title("f gap, data less samples (nats)", fontsize=_TITLE)
    axes[0, 1].plot(t, result["acceptance"], "o-" if few else "-", color="#20456e", ms=3, lw=1)
    axes[0, 1].set_title("acceptance", fontsize=_TITLE)
    axes[0, 1].set(ylim=(0, 1.05))
    for ax in axes[0]:
        ax.set(aspect="auto")
        ax.set_xlabel("level t", fontsize=_TITLE)
        ax.xaxis.set_major_locator(ticks(6, integer=True))
        ax.yaxis.set_major_locator(ticks(5))
        ax.tick_params(labelsize=7)
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


def curves(path: Path, metrics: Sequence[dict[str, Any]], measured: Sequence[dict[str, Any]] = ()) -> Path:
    """Per-level statistics over the iterations of a run, and the FID where it was ``measured``."""
    from matplotlib import colormaps

    names = ("loss", "f_pos", "displacement", "acceptance", "step_size")
    fids = [(line["iteration"], line["fid"], line["num_samples"]) for line in measured if line.keys() >= {"fid", "num_samples"}]
    figure, axes = new_figure(1, len(names) + bool(fids), 2.6)
    metrics = [line for line in metrics if all(isinstance(line.get(name), list) for name in names)]
    iterations = [line["iteration"] for line in metrics]
    num_levels = min((len(line[name]) for line in metrics for name in names), default=0)
    shown = sorted({round(i * (num_levels - 1) / min(7, max(1, num_levels - 1))) for i in range(8)} & set(range(num_levels)))
    titles = (*names, f"FID ({fids[-1][2]:,} samples)") if fids else names
    for ax, title in zip(axes[0], titles, strict=True):
        ax.set(aspect="auto")
        ax.set_title(title, fontsize=_TITLE)
        ax.set_xlabel("iteration", fontsize=_TITLE)
        ax.xaxis.set_major_locator(ticks(3))
        ax.yaxis.set_major_locator(ticks(4))
        ax.tick_params(labelsize=7)
    if fids:
        axes[0, -1].plot([row[0] for row in fids], [row[1] for row in fids], "o-", color="#20456e", lw=1, ms=3)
    for ax, name in zip(axes[0], names, strict=False):
        for t in shown:
            colour = colormaps["viridis"](0.9 * t / max(1, num_levels - 1))
            values = [line[name][t] if line[name][t] is not None else math.nan for line in metrics]
            ax.plot(iterations, values, color=colour, lw=1, label=f"t = {t}")
    axes[0, 0].legend(fontsize=6)
    return save_figure(figure, path)


def bracket(path: Path, found: Bracket, title: str = "") -> Path:
    """Bounds of log Z over the number of densities, and the log-weights of the last round."""
    figure, axes = new_figure(1, 2, 3.4)
    left, right = axes[0]
    ks = [r.num_densities for r in found.rounds]
    bounds = [
        ("forward AIS, from below", [r.forward for r in found.rounds], "^-"),
        ("SMC", [r.smc for r in found.rounds], "s-"),
    ]
    bounds += [(f"reverse from {s}", [r.upper[s] for r in found.rounds], "v-") for s in found.upper]
    colours = ("#20456e", "#6b9ac4", "#b5482a", "#d99a5b", "#7a5c8e")
    for (name, values, style), colour in zip(bounds, colours, strict=False):
        errors = [e.standard_error for e in values]
        left.errorbar(ks, [e.value for e in values], errors, fmt=style, color=colour, ms=4, lw=1, elinewidth=0.7, label=name)
    left.axhspan(found.value - found.standard_error, found.value + found.standard_error, color="0.88", zorder=0)
    left.set_xscale("log", base=2)
    left.set_xticks(ks, [str(k) for k in ks])
    left.minorticks_off()
    left.margins(x=0.2, y=0.3)
    left.set_xlabel("intermediate densities (grey: Bennett's estimate)", fontsize=_TITLE)
    left.set_title("bounds of log Z (nats)", fontsize=_TITLE)
    shown = dict(zip(found.log_weights, (colours[0], *colours[2:]), strict=False))
    low, high = (float(v) for v in torch.cat([w.flatten() for w in found.log_weights.values()]).aminmax())
    for name, colour in shown.items():
        label = name if name == "forward" else f"reverse from {name}"
        right.hist(
            found.log_weights[name].flatten().cpu().numpy(),
            bins=40,
            range=(low, high),
            histtype="step",
            color=colour,
            label=label,
        )
    right.set_title(f"log-weights of chains, {ks[-1]} densities", fontsize=_TITLE)
    right.set_xlabel("nats", fontsize=_TITLE)
    for ax in (left, right):
        ax.set(aspect="auto")
        ax.yaxis.set_major_locator(ticks(5))
        ax.tick_params(labelsize=7)
        ax.legend(fontsize=6)
    right.xaxis.set_major_locator(ticks(4))
    if title:
        figure.suptitle(title, fontsize=_TITLE + 1)
    return save_figure(figure, path)


def ticks(number: int, integer: bool = False) -> Any:
    """A locator of about so many ticks."""
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(number, integer=integer)

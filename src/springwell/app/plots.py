"""Figures: points, densities, curves, reports."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from springwell.data.pictures import Bytes, grid, save_png, to_bytes
from springwell.data.toy import TOY_DATA, log_density, toy_data
from springwell.likelihood.bracket import Bracket
from springwell.likelihood.quadrature import evaluate, plane_grid
from springwell.model import Model
from springwell.schedule import spread_levels

LIMIT = 3.0
PREVIEW_IMAGES = 36
_CELLS = 240
_TITLE = 8
_BLUE, _RED = "#20456e", "#b3432b"


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


def new_charts(rows: int, columns: int, size: float = 3.0, num_ticks: int = 5) -> tuple[Any, Any]:
    """A grid of panels with about ``num_ticks`` ticks on each axis."""
    from matplotlib.ticker import MaxNLocator

    figure, axes = new_figure(rows, columns, size)
    for ax in axes.flat:
        ax.set(aspect="auto")
        ax.tick_params(labelsize=_TITLE - 1, which="both")
        ax.xaxis.set_major_locator(MaxNLocator(num_ticks, integer=True))
        ax.yaxis.set_major_locator(MaxNLocator(num_ticks))
    return figure, axes


def figure_bytes(figure: Any) -> Bytes:
    """A figure as a picture ``[H, W, 3]``."""
    _shrink_texts(figure)
    figure.set_dpi(100)
    figure.canvas.draw()
    return np.asarray(figure.canvas.buffer_rgba())[..., :3].copy()


def save_figure(figure: Any, path: Path, title: str = "") -> Path:
    if title:
        figure.suptitle(title, fontsize=_TITLE + 1)
    _shrink_texts(figure)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=200)
    return path


def _shrink_texts(figure: Any) -> None:
    """Titles and labels that have matplotlib's size get that of our figures."""
    for ax in figure.axes:
        for text in (ax.title, ax.xaxis.label, ax.yaxis.label):
            text.set_fontsize(min(_TITLE, text.get_fontsize()))


def panel_grid() -> Tensor:
    """The points at which panels show densities ``[M, 2]``."""
    return plane_grid(LIMIT, _CELLS)


def draw_density(ax: Any, log_value: Tensor, title: str = "") -> None:
    """A density given by its log at :func:`panel_grid`, each panel on its own scale."""
    value = (log_value - log_value[torch.isfinite(log_value)].max()).exp().nan_to_num(0).view(_CELLS + 1, _CELLS + 1).T
    top = float(value.flatten().quantile(0.998))
    where = {"origin": "lower", "extent": (-LIMIT, LIMIT, -LIMIT, LIMIT)}
    ax.imshow(value.cpu(), cmap="magma", vmin=0, vmax=top or 1, interpolation="bilinear", **where)
    ax.set(title=title)


def draw_points(ax: Any, x: Tensor, limit: float = LIMIT, title: str = "") -> None:
    inside = x[(x.abs() <= limit).all(-1)].cpu()
    ax.scatter(inside[:, 0], inside[:, 1], s=1.2, c=_BLUE, alpha=0.5, linewidths=0)
    if outside := len(x) - len(inside):
        ax.text(0.98, 0.02, f"{outside} of {len(x)} outside", transform=ax.transAxes, ha="right", va="bottom", fontsize=5)
    ax.set(xlim=(-limit, limit), ylim=(-limit, limit), title=title)


def first_two(x: Tensor) -> Tensor:
    """The first two coordinates of vectors; a single one is drawn on a line."""
    return x[:, :2] if x.shape[1] > 1 else torch.cat([x, torch.zeros_like(x)], 1)


def vectors_figure(x: Tensor, title: str, limit: float | None = None) -> Any:
    """The first two coordinates of vectors as points."""
    figure, axes = new_figure(1, 1, 4.0)
    draw_points(axes[0, 0], first_two(x), limit=limit or largest(x), title=title)
    return figure


def paths_figure(paths: Tensor, title: str) -> Any:
    """Paths of vectors ``[P, N, D]``, their first two coordinates, as lines through their points."""
    figure, axes = new_figure(1, 1, 4.0)
    for path in paths:
        axes[0, 0].plot(*first_two(path).T, "o-", ms=2, lw=0.6)
    limit = largest(paths)
    axes[0, 0].set(xlim=(-limit, limit), ylim=(-limit, limit), title=title)
    return figure


def conditional_figure(x: Tensor, hidden: Tensor, exact: tuple[Tensor, Tensor] | None, title: str) -> Any:
    """A histogram of every hidden coordinate of vectors ``[N, D]``, with the exact density (nodes, values) if it is known."""
    columns = hidden.nonzero()[:, 0].tolist()
    figure, axes = new_charts(1, len(columns), 3.2)
    for ax, i in zip(axes[0], columns, strict=True):
        ax.hist(x[:, i].numpy(), bins=40, density=True, color="#7fa3c7", label=f"{len(x)} samples")
        if exact is not None:
            shown = exact[1] > 1e-4 * exact[1].max()
            left, right = float(exact[0][shown].min()), float(exact[0][shown].max())
            ax.plot(*exact, color="#20456e", lw=1, label="exact")
            ax.set(xlim=(left - 0.3, right + 0.3))
        ax.set(xlabel=f"coordinate {i}", yticks=[])
        ax.legend(fontsize=6)
    figure.suptitle(title, fontsize=_TITLE + 1)
    return figure


def largest(*values: Tensor) -> float:
    """A limit that all points are within."""
    return 1.05 * max(float(x.abs().max()) for x in values)


def data_log_density(data: str, a: float, sigma: float) -> Tensor:
    return log_density(toy_data(data), panel_grid(), a, sigma)


def level_log_density(model: Model, t: int) -> Tensor:
    """Unnormalised log-density of x_t on the panel's grid (standardised coordinates)."""
    scale = float(model.schedule.scale[t])

    def f(x: Tensor) -> Tensor:
        with torch.no_grad():
            return model.f(scale * x.to(model.device), t).cpu()

    return evaluate(f, panel_grid())


def report(model: Model, samples: Tensor, path: Path, title: str = "") -> Path:
    """Data, learned density and samples side by side (standardised coordinates)."""
    name = model.metadata.get("name", "")
    toy = toy_data(name) if name in TOY_DATA else None
    figure, axes = new_figure(1, 3 if toy is not None else 2, 2.6)
    panels = list(axes[0])
    if toy is not None:
        a, sigma = float(model.schedule.a_cum[0]), float(model.schedule.sigma_cum[0])
        draw_density(panels.pop(0), data_log_density(name, a, sigma), title=f"data (noise {sigma:.2g})")
    draw_density(panels[0], level_log_density(model, 0), title="learned density exp f(y, 0)")
    draw_points(panels[1], (samples - model.shift) / model.scale, title=f"{len(samples)} samples")
    return save_figure(figure, path, title)


def draw_images(ax: Any, x: Tensor, columns: int | None = None) -> None:
    """A grid of images ``[N, C, H, W]`` in [-1, 1]."""
    ax.imshow(grid(to_bytes(x), columns).squeeze(), cmap="gray", vmin=0, vmax=255, interpolation="nearest")


def image_report(samples: Tensor, held_out: Tensor, path: Path, title: str = "") -> Path:
    """Grids of samples and of held-out data side by side."""
    figure, axes = new_figure(1, 2, 4.0)
    for ax, x, what in zip(axes[0], (samples, held_out), ("samples", "held-out images"), strict=True):
        draw_images(ax, x)
        ax.set(title=f"{len(x)} {what}")
        ax.axis("off")
    return save_figure(figure, path, title)


def neighbours(path: Path, samples: Tensor, nearest: np.ndarray) -> None:
    """A row per sample: the sample, then its nearest training images, uint8 ``[N, K, C, H, W]``, nearest first."""
    rows = [np.concatenate([to_bytes(x[None]), near.transpose(0, 2, 3, 1)]) for x, near in zip(samples, nearest, strict=False)]
    save_png(grid(np.concatenate(rows), len(rows[0])), path)


def levels(path: Path, result: dict[str, Any]) -> Path:
    """Energy gap and acceptance of every level."""
    figure, axes = new_charts(1, 2)
    left, right = axes[0]
    t = range(len(result["acceptance"]))
    gap, error = (
        [math.nan if v is None else v for v in result[name]] for name in ("f_gap_levels", "f_gap_levels_standard_error")
    )
    few = len(gap) <= 50
    left.errorbar(t, gap, error, fmt="o" if few else "-", color=_BLUE, ms=3, lw=1, elinewidth=0.5)
    left.axhline(0, color="0.6", lw=0.8)
    left.set(title="f gap, data less samples (nats)", xlabel="level t")
    right.plot(t, result["acceptance"], "o-" if few else "-", color=_BLUE, ms=3, lw=1)
    right.set(title="acceptance", xlabel="level t", ylim=(0, 1.05))
    return save_figure(figure, path)


def longrun(path: Path, result: dict[str, Any]) -> Path:
    """Step size and acceptance over t; f gap, MMD and distance to the data over the steps, with and without spring."""
    runs = list(result["runs"].values())
    marginal = result.get("marginal", [])
    images = "nearest" in runs[0]
    figure, axes = new_charts(2, 2 + images)
    few = len(result["step_size"]) <= 50
    style = {"marker": "o", "ms": 3, "lw": 1} if few else {"lw": 1}
    axes[0, 0].plot(result["step_size"], color=_BLUE, **style)
    axes[0, 0].set(yscale="log", xlabel="level t", title=f"step size of {result['method']}")
    for number, run in enumerate(runs):
        colour = _shade(number, len(runs))
        axes[0, 1].plot(run["acceptance"] or [], color=colour, label=f"{run['steps_per_level']} per level", **style)
    axes[0, 1].set(ylim=(0, 1.05), xlabel="level t", title="acceptance")
    axes[0, 1].axhspan(0.6, 0.9, color="0.93", zorder=0)
    axes[0, 1].legend(fontsize=6)
    _over_steps(axes[1, 0], runs, marginal, "f_gap", "f gap, data less samples (nats)", 0.0)
    _over_steps(axes[1, 1], runs, marginal, "mmd2", "MMD^2 to held-out data", runs[-1].get("mmd2_null_95"))
    if images:
        known = result["held_out"]["nearest"]
        _over_steps(axes[0, 2], runs, marginal, "nearest", "distance to the nearest training image", known)
        if moved := [(row["steps"], row["moved"]) for row in marginal if row["steps"]]:
            axes[1, 2].plot([m[0] for m in moved], [m[1] for m in moved], "s--", color=_RED, ms=3, lw=1)
            axes[1, 2].set(xscale="log", xlabel="steps without spring", title="distance from where they began")
        else:
            axes[1, 2].axis("off")
    return save_figure(figure, path)


def _over_steps(ax: Any, runs: list[Any], marginal: list[Any], name: str, title: str, line: float | None) -> None:
    """A measure over the total number of steps; chains without spring go on where the longest run ended."""
    free = [row for row in marginal if row["steps"]]
    for rows, total, style, label in (
        (runs, "total_steps", {"fmt": "o-", "color": _BLUE}, "with springs"),
        (free, "steps", {"fmt": "s--", "color": _RED}, "then without"),
    ):
        if known := [row for row in rows if name in row]:
            steps, values = [row[total] for row in known], [row[name] for row in known]
            ax.errorbar(
                steps, values, [row.get(f"{name}_standard_error", 0.0) for row in known], ms=3, lw=1, label=label, **style
            )
    if line is not None:
        ax.axhline(line, color="0.6", lw=0.8)
    ax.set(xscale="log", xlabel="steps in all, or without spring", title=title)
    ax.legend(fontsize=6)


def long_samples(path: Path, samples: dict[str, Tensor]) -> Path:
    """Rows of the same samples after more and more steps."""
    figure, axes = new_figure(len(samples), 1, 1.0)
    columns = min(16, max(map(len, samples.values())))
    figure.set_size_inches(0.45 * columns + 0.8, 0.5 * len(samples) + 0.1)
    figure.get_layout_engine().set(w_pad=0.08)
    for ax, (name, x) in zip(axes[:, 0], samples.items(), strict=True):
        draw_images(ax, x[:columns], columns)
        ax.set_ylabel(name, fontsize=6, rotation=0, ha="right", va="center")
    return save_figure(figure, path)


def long_points(path: Path, samples: dict[str, Tensor]) -> Path:
    """The same for vectors, a panel of points each."""
    figure, axes = new_figure(1, len(samples))
    limit = largest(*samples.values())
    for ax, (name, x) in zip(axes[0], samples.items(), strict=True):
        draw_points(ax, first_two(x), limit, name)
    return save_figure(figure, path)


def diagnosis(path: Path, rows: Sequence[tuple[str, Tensor, Tensor | None]]) -> Path:
    """A row per level: traces of log p, ranks of the chains, and the energies beside their changes.

    Args:
        path: Where to.
        rows: Name, log p ``[S, C]``, Hamiltonian ``[S, C]`` or None.
    """
    figure, axes = new_charts(len(rows), 3, 2.2, num_ticks=4)
    for (left, middle, right), (name, log_p, energy) in zip(axes, rows, strict=True):
        steps, num_chains = log_p.shape
        for chain in range(min(num_chains, 8)):
            left.plot(log_p[:, chain].cpu(), lw=0.5, color=_shade(chain, 8))
        left.set(ylabel=name, title="log p over the steps (nats)")
        rank = log_p.flatten().argsort().argsort().view_as(log_p).cpu()
        bins = 20
        counts = torch.stack([torch.histc(rank[:, c].float(), bins, 0, log_p.numel()) for c in range(num_chains)])
        middle.imshow(counts * bins / steps, cmap="RdBu_r", vmin=0, vmax=2, aspect="auto", interpolation="nearest")
        middle.set(title="share of each chain in the ranks of log p", ylabel="chain", xticks=[], yticks=[])
        if energy is None:
            right.axis("off")
        else:
            centred, change = (energy - energy.mean()).flatten().cpu(), energy.diff(dim=0).flatten().cpu()
            span = float(max(centred.abs().max(), change.abs().max()))
            for values, label, colour in ((centred, "energy", _BLUE), (change, "its change", _RED)):
                right.hist(values.numpy(), 40, (-span, span), density=True, histtype="step", color=colour, label=label)
            right.legend(fontsize=6)
            right.set(title="Hamiltonian, less its mean (nats)")
    return save_figure(figure, path)


def _shade(number: int, total: int) -> Any:
    from matplotlib import colormaps

    return colormaps["viridis"](0.9 * number / max(1, total - 1))


def preview(model: Model, path: Path) -> None:
    """A picture of a model in training; vectors of other dimensions show their first two coordinates."""
    if len(model.event_shape) == 3:
        save_png(grid(to_bytes(model.sample(PREVIEW_IMAGES, seed=0))), path)
        return
    samples = model.sample(1024, seed=0)
    title = f"{model.metadata.get('name', '')}, iteration {model.iteration}"
    if model.event_shape == (2,):
        report(model, samples, path, title)
        return
    figure, axes = new_figure(1, 1, 3.0)
    u = (samples - model.shift) / model.scale
    draw_points(axes[0, 0], first_two(u), title=title)
    save_figure(figure, path)


_CHAINS = ("loss", "f_pos", "displacement", "acceptance", "step_size")
_SCORES = ("loss", "score_error", "noise_error", "excess")


def curves(path: Path, metrics: Sequence[dict[str, Any]], measured: Sequence[dict[str, Any]] = ()) -> Path:
    """Per-level statistics over the iterations of a run, and the FID where it was ``measured``."""
    names = _SCORES if metrics and "score_error" in metrics[-1] else _CHAINS
    counts = ("num_samples", "num_reference")
    fids = [line for line in measured if line.keys() >= {"iteration", "fid", *counts}]
    # FIDs of other counts are no points of the same curve.
    fids = [line for line in fids if all(line[count] == fids[-1][count] for count in counts)]
    figure, axes = new_charts(1, len(names) + bool(fids), 2.6, num_ticks=3)
    metrics = [line for line in metrics if all(isinstance(line.get(name), list) for name in names)]
    iterations = [line["iteration"] for line in metrics]
    num_levels = min((len(line[name]) for line in metrics for name in names), default=0)
    shown = spread_levels(num_levels, 8)
    titles: tuple[str, ...] = names
    if fids:
        titles = (*names, "FID ({:,} samples, {:,} images)".format(*(fids[-1][count] for count in counts)))
    for ax, title in zip(axes[0], titles, strict=True):
        ax.set(title=title, xlabel="iteration")
    if fids:
        axes[0, -1].plot([line["iteration"] for line in fids], [line["fid"] for line in fids], "o-", color=_BLUE, lw=1, ms=3)
    for ax, name in zip(axes[0], names, strict=False):
        for t in shown:
            colour = _shade(t, num_levels)
            values = [line[name][t] if line[name][t] is not None else math.nan for line in metrics]
            ax.plot(iterations, values, color=colour, lw=1, label=f"t = {t}")
    axes[0, 0].legend(fontsize=6)
    return save_figure(figure, path)


def bracket(path: Path, found: Bracket, title: str = "") -> Path:
    """Bounds of log Z over the number of densities, and the log-weights of the last round."""
    figure, axes = new_charts(1, 2, 3.4)
    left, right = axes[0]
    ks = [r.num_densities for r in found.rounds]
    bounds = [("SMC, from below", [r.smc for r in found.rounds], "s-")]
    # Along the noise SMC is the forward run itself.
    along_noise = found.along_noise
    if not along_noise:
        bounds.insert(0, ("forward AIS, from below", [r.forward for r in found.rounds], "^-"))
    bounds += [(f"reverse from {s}", [r.upper[s] for r in found.rounds], "v-") for s in found.upper]
    colours = ("#20456e", "#6b9ac4", "#b5482a", "#d99a5b", "#7a5c8e")
    for (name, values, style), colour in zip(bounds, colours[along_noise:], strict=False):
        errors = [e.standard_error for e in values]
        left.errorbar(ks, [e.value for e in values], errors, fmt=style, color=colour, ms=4, lw=1, elinewidth=0.7, label=name)
    quoted, error, name = found.quoted
    left.axhspan(quoted - error, quoted + error, color="0.88", zorder=0)
    left.set_xscale("log", base=2)
    left.set_xticks(ks, [str(k) for k in ks])
    left.minorticks_off()
    left.margins(x=0.2, y=0.3)
    left.set(xlabel=f"intermediate densities (grey: {name})", title="bounds of log Z (nats)")
    shown = dict(zip(found.log_weights, (colours[0], *colours[2:]), strict=False))
    low, high = (float(v) for v in torch.cat([w.flatten() for w in found.log_weights.values()]).aminmax())
    for name, colour in shown.items():
        label = name if name == "forward" else f"reverse from {name}"
        weights = found.log_weights[name].flatten().cpu().numpy()
        right.hist(weights, bins=40, range=(low, high), histtype="step", color=colour, label=label)
    right.set(title=f"log-weights of {'systems' if along_noise else 'chains'}, {ks[-1]} densities", xlabel="nats")
    for ax in (left, right):
        ax.legend(fontsize=6)
    return save_figure(figure, path, title)


def pairs(path: Path, data: np.ndarray, samples: np.ndarray, names: Sequence[str]) -> Path:
    """Every pair of the named first columns: data below the diagonal, samples above, histograms of both on it."""
    num = len(names)
    figure, axes = new_figure(num, num, 1.6)
    for i in range(num):
        for j in range(num):
            ax = axes[i, j]
            ax.set_aspect("auto")
            low, high = np.quantile(data[:, [j, i]], [0.002, 0.998], axis=0)
            pad = 0.1 * (high - low) + 1e-9
            ax.set_xlim(low[0] - pad[0], high[0] + pad[0])
            if i == j:
                edges = np.linspace(low[0] - pad[0], high[0] + pad[0], 31)
                ax.hist(data[:, i], edges, density=True, color=_BLUE, alpha=0.5)
                ax.hist(samples[:, i], edges, density=True, color=_RED, histtype="step")
                ax.set(title=names[i])
                continue
            ax.set_ylim(low[1] - pad[1], high[1] + pad[1])
            shown, colour = (data, _BLUE) if i > j else (samples[: len(data)], _RED)
            ax.plot(shown[:, j], shown[:, i], ".", markersize=1, color=colour)
    figure.suptitle("blue: data\nred: samples", fontsize=_TITLE)
    return save_figure(figure, path)


def quantiles(path: Path, data: np.ndarray, samples: np.ndarray, names: Sequence[str], most: int = 36) -> Path:
    """Quantiles of the samples against those of the data, a panel a column; on the line where the two laws agree."""
    shown = min(len(names), most)
    columns = min(6, shown)
    figure, axes = new_figure(-(-shown // columns), columns)
    levels = np.linspace(0.005, 0.995, 199)
    for ax in axes.flat[shown:]:
        ax.set_axis_off()
    for i, ax in zip(range(shown), axes.flat, strict=False):
        a, b = np.quantile(data[:, i], levels), np.quantile(samples[:, i], levels)
        ax.plot(a[[0, -1]], a[[0, -1]], color="0.7", linewidth=1)
        ax.plot(a, b, ".", markersize=2, color=_BLUE)
        ends = {"ticks": a[[0, -1]], "labels": [f"{value:.3g}" for value in a[[0, -1]]], "fontsize": _TITLE - 3}
        ax.set_xticks(**ends)
        ax.set_yticks(**ends)
        ax.set_aspect("auto")
        ax.set(title=names[i])
    figure.supxlabel("quantiles of the data", fontsize=_TITLE)
    figure.supylabel("of the samples", fontsize=_TITLE)
    return save_figure(figure, path)

"""Draws the pictures of the pages "Learn": python tools/figures.py [NAME ...], into docs/figures. About a minute of one core.

The checkerboard, the digits and MNIST are the models that ship; the mixture on a line has exact energies.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch
from matplotlib import pyplot as plt
from torch import Tensor

import springwell as sw
from springwell.app.plots import LIMIT, draw_density, draw_images, draw_points, level_log_density, panel_grid
from springwell.conditional import Conditional
from springwell.likelihood import Settings, bracket, plain_path
from springwell.noise import Noise

FOLDER = Path(__file__).parent.parent / "docs" / "figures"
BLUE, RED, GREEN, GREY = "#2a6fbb", "#c8402f", "#3a8f4d", "0.45"
WEIGHTS, MODES, WIDTH = (0.75, 0.25), (-2.0, 2.0), 0.35


def line_log_density(x: Tensor, a: float = 1.0, sigma: float = 0.0) -> Tensor:
    """log p of the mixture on a line, x ``[...]``, after scaling by a and noise sigma: exact."""
    variance = (a * WIDTH) ** 2 + sigma**2
    terms = [math.log(w) - (x - a * m) ** 2 / (2 * variance) for w, m in zip(WEIGHTS, MODES, strict=True)]
    return torch.logsumexp(torch.stack(terms), 0) - 0.5 * math.log(2 * math.pi * variance)


def well_and_spring() -> Any:
    """The well, the spring and their sum on a line, for three ends of the spring."""
    y = torch.linspace(-4, 4, 400)
    f, sigma = line_log_density(y), 1.0
    figure, axes = plt.subplots(1, 4, figsize=(9.6, 2.3), sharey=True)
    axes[0].fill_between(y, f.exp(), color=BLUE, alpha=0.5)
    axes[0].set_title("the well: exp f(y)")
    for ax, end in zip(axes[1:], (-2.0, 0.2, 2.0), strict=True):
        both = f - (end - y) ** 2 / (2 * sigma**2)
        held = (both - torch.logsumexp(both, 0)).exp() / (y[1] - y[0])
        ax.fill_between(y, 0.75 * held / held.max(), color=RED, alpha=0.55)
        ax.plot(y, 0.75 * (-((end - y) ** 2) / (2 * sigma**2)).exp(), color=GREY, linestyle="--")
        ax.plot([end], [0], "o", color="black", markersize=5, clip_on=False)
        ax.set_title(f"held to {end:g}")
    for ax in axes:
        ax.set(yticks=[], xlim=(-4, 4), ylim=(0, 0.95), xlabel="y")
    return figure


def weights_of_modes() -> Any:
    """Shares of the two modes after chains on f alone and after the ladder of springs, with exact energies."""
    schedule = sw.NoiseSchedule.log_snr(16, high=6, low=-5)

    def energy(y: Tensor, t: Tensor) -> Tensor:
        scale, a, sigma = (v[t].float() for v in (schedule.scale, schedule.a_cum[:-1], schedule.sigma_cum[:-1]))
        variance = (scale * a * WIDTH) ** 2 + (scale * sigma) ** 2
        terms = [math.log(w) - (y[:, 0] - scale * a * m) ** 2 / (2 * variance) for w, m in zip(WEIGHTS, MODES, strict=True)]
        return torch.logsumexp(torch.stack(terms), 0)

    noise = Noise(0, torch.arange(4000))
    start = noise.normal(1)
    chains, _ = sw.samplers.run_chain(sw.samplers.mala(), start, lambda x: line_log_density(x[:, 0]), 0.4, 160, noise)
    sampler = sw.LevelSampler(sw.samplers.mala(), num_steps=10, step_size=0.7 * schedule.sigma[1:].float())
    ladder = sw.Model(energy, schedule, sampler, event_shape=(1,)).sample(4000, seed=0)
    figure, axes = plt.subplots(1, 2, figsize=(7.2, 2.3), sharey=True)
    y = torch.linspace(-4, 4, 400)
    for ax, x, title in (
        (axes[0], chains, "f alone: 160 steps from noise"),
        (axes[1], ladder, "16 levels of 10 steps, each with its spring"),
    ):
        ax.hist(x[:, 0], 80, range=(-4, 4), density=True, color=BLUE, alpha=0.5)
        ax.plot(y, line_log_density(y).exp(), color=RED)
        share = float((x[:, 0] < 0).float().mean())
        ax.set(title=title, yticks=[], xlabel=f"left mode: {100 * share:.0f} % of 4,000 chains; the truth is 75 %")
    return figure


def hops() -> Any:
    """The checkerboard on its way to noise, and what level t adds: data above, learned densities below."""
    model = sw.load("checkerboard")
    data, schedule = sw.toy_data("checkerboard"), model.schedule
    x = (data.sample(Noise(0, torch.arange(4000))) - model.shift) / model.scale
    figure, axes = plt.subplots(2, schedule.num_levels + 1, figsize=(9.6, 4.0))
    for t in range(schedule.num_levels + 1):
        draw_points(
            axes[0, t], schedule.diffuse(x, t, Noise(1, torch.arange(4000))), title=f"x_{t}: noise {schedule.sigma_cum[t]:.2f}"
        )
        if t < schedule.num_levels:
            draw_density(axes[1, t], level_log_density(model, t), title=f"exp f( . , {t}), learned")
    axes[1, -1].axis("off")
    return figure


def spring_in_the_plane() -> Any:
    """The learned energy of level 0, two ends of its spring, and what is left to sample."""
    model = sw.load("checkerboard")
    grid, schedule = panel_grid(), model.schedule
    scale, sigma = float(schedule.scale[0]), float(schedule.sigma[1])
    well = level_log_density(model, 0)
    figure, axes = plt.subplots(1, 3, figsize=(7.2, 2.5))
    draw_density(axes[0], well, title="the well, level 0")
    for ax, end in zip(axes[1:], ((-0.6, 0.5), (0.9, -0.9)), strict=True):
        spring = -((scale * grid.cpu() - torch.tensor(end)) ** 2).sum(-1) / (2 * sigma**2)
        draw_density(ax, well + spring.view(well.shape), title="well and spring")
        x_next = torch.tensor(end).expand(300, 2)
        conditional = Conditional(model.energy_function, schedule, torch.zeros(300, dtype=torch.long), x_next)
        y, _ = model.level_sampler(40).draw(conditional, Noise(0, torch.arange(300)))
        ax.plot(*(y / scale).T, ".", color="white", markersize=1.5)
        ax.plot([end[0] / scale], [end[1] / scale], "o", color=RED, markersize=6)
        ax.add_patch(mpl.patches.Circle((end[0] / scale, end[1] / scale), sigma / scale, fill=False, color=RED))
        ax.set(xlim=(-LIMIT, LIMIT), ylim=(-LIMIT, LIMIT))
    return figure


def images() -> Any:
    """Eight samples of MNIST at ten of the 72 levels, from noise to image."""
    model = sw.load("mnist")
    shown = (72, 60, 48, 40, 32, 24, 16, 8, 4, 0)
    rows = {t: x for t, x, _ in model.trajectory(torch.arange(8), seed=3) if t in shown}
    figure, ax = plt.subplots(figsize=(7.2, 5.8))
    draw_images(ax, torch.stack([rows[t] for t in shown], 1).flatten(0, 1).clamp(-1, 1), columns=len(shown))
    side = ax.get_xlim()[1] / len(shown)
    ax.set(yticks=[], xticks=[(i + 0.5) * side for i in range(len(shown))], xticklabels=[f"t = {t}" for t in shown])
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    return figure


def brackets() -> Any:
    """Bounds of log Z over the number of densities; and two bounds that agree although a mode is missed."""
    wide = torch.linspace(0.1, 2.0, 48)

    def log_q(x: Tensor) -> Tensor:
        return -0.5 * (x / wide).square().sum(-1) - 0.05 * x.pow(4).sum(-1)

    line = torch.linspace(-12, 12, 20001, dtype=torch.float64)
    parts = [(-0.5 * (line / w) ** 2 - 0.05 * line**4).exp().sum() * (line[1] - line[0]) for w in wide.double()]
    truth = float(torch.stack(parts).log().sum())
    exact = torch.stack([_draw(line, w, 64, i) for i, w in enumerate(wide.double())], 1)
    figure, axes = plt.subplots(1, 2, figsize=(8.4, 2.7))
    counts = (4, 8, 16, 32, 64, 128)
    found = [bracket(plain_path(log_q, (48,)), {"draws": exact}, Settings(0.01, n, n, chains=8)) for n in counts]
    for values, colour, name in (
        ([f.lower for f in found], BLUE, "from below: chains from noise"),
        ([f.highest for f in found], RED, "from above: chains from draws"),
    ):
        axes[0].errorbar(
            counts,
            [v.value for v in values],
            [v.standard_error for v in values],
            color=colour,
            label=name,
            marker="o",
            capsize=3,
        )
    axes[0].axhline(truth, color="black", linestyle=":", label="the truth")
    axes[0].set(xscale="log", xticks=counts, xticklabels=counts, xlabel="densities on the way", ylabel="log Z, nats")
    axes[0].minorticks_off()
    axes[0].legend(frameon=False)
    _missed_mode(axes[1])
    return figure


def _draw(line: Tensor, width: Tensor, num: int, seed: int) -> Tensor:
    """Draws of one factor by its distribution function on a grid."""
    weight = (-0.5 * (line / width) ** 2 - 0.05 * line**4).exp().cumsum(0)
    u = torch.rand(num, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return line[torch.searchsorted(weight / weight[-1], u).clamp(max=len(line) - 1)].float()


def _missed_mode(ax: Any) -> None:
    modes = torch.tensor([[0.0, 0.0], [40.0, 0.0]])

    def log_q(x: Tensor) -> Tensor:
        return (-2 * (x[:, None] - modes).square().sum(-1)).logsumexp(-1)

    settings = Settings(tolerance=0.1, densities=32, budget=64, systems=8, chains=128)
    eps = 0.5 * Noise(0, torch.arange(settings.num), 1).normal(2)
    sources = {"chains": modes[0] + eps, "data": modes[torch.arange(settings.num) % 2] + eps}
    found = bracket(plain_path(log_q, (2,)), sources, settings)
    bounds = {"from below": found.lower, "from above: chains": found.upper["chains"], "from above: data": found.upper["data"]}
    for i, (bound, colour) in enumerate(zip(bounds.values(), (BLUE, RED, GREEN), strict=True)):
        ax.errorbar([i], [bound.value], [bound.standard_error], color=colour, marker="o", capsize=4)
    ax.axhline(math.log(math.pi), color="black", linestyle=":")
    ax.set(xticks=range(3), xlim=(-0.5, 2.5), title=f"verdict: {found.verdict}", ylabel="log Z, nats")
    ax.set_xticklabels([name.replace(": ", ":\n") for name in bounds])


FIGURES: dict[str, Callable[[], Any]] = {
    "well-and-spring": well_and_spring,
    "weights-of-modes": weights_of_modes,
    "hops": hops,
    "spring-in-the-plane": spring_in_the_plane,
    "images": images,
    "brackets": brackets,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", choices=[*FIGURES, []], help=f"of {', '.join(FIGURES)}; default: all"
    )
    mpl.use("Agg")
    plt.rcParams.update({"font.size": 8, "axes.titlesize": 8.5, "axes.spines.top": False, "axes.spines.right": False})
    for name in parser.parse_args().names or FIGURES:
        figure = FIGURES[name]()
        figure.tight_layout()
        figure.savefig(FOLDER / f"learn-{name}.png", dpi=110)
        print(FOLDER / f"learn-{name}.png")


if __name__ == "__main__":
    main()

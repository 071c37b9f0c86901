"""Figure 3 of the paper: samples of every level of progressive sampling (top), the learned density of each (bottom)."""

from __future__ import annotations

from typing import Any

import torch

from springwell.app.plots import draw_density, draw_points, level_log_density, new_figure, panel_grid
from springwell.app.presets import preset
from springwell.paper.common import Study, scaled, write

NUM_SAMPLES = 4000


def reproduce(study: Study) -> dict[str, Any]:
    data, seed, scale = study.data or "checkerboard", study.seed, study.scale
    model = study.trained(scaled(preset(data), seed, scale), f"{data}-recovery")
    levels, num = model.schedule.num_levels, study.samples(NUM_SAMPLES)
    figure, axes = new_figure(2, levels + 1, 2.0)
    numbers: dict[str, Any] = {"data": data, "seed": seed, "scale": scale, "num_samples": num, "levels": []}
    for column, (t, x, acceptance) in enumerate(model.trajectory(torch.arange(num), seed)):
        noise = float(model.schedule.sigma_cum[t])
        draw_points(axes[0, column], x, title=f"$x_{t}$, noise {noise:.2f}")
        if t == levels:
            # The noisiest law is not learned: it is the standard normal.
            draw_density(axes[1, column], -0.5 * panel_grid().square().sum(-1), title="N(0, I)")
        else:
            draw_density(axes[1, column], level_log_density(model, t), title=f"exp f(·, {t})")
        row = {"t": t, "sigma_cum": noise, "standard_deviation": [round(float(s), 4) for s in x.std(0)]}
        row["acceptance"] = None if t == levels else float(acceptance.mean())
        row["step_size"] = None if t == levels else float(model.step_size[t])
        numbers["levels"].append(row)
    axes[0, 0].set(ylabel="samples")
    axes[1, 0].set(ylabel="learned density")
    return write(study.out, "fig3", figure, numbers)

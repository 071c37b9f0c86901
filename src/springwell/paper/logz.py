"""The paper's estimate of log Z by ratios of levels, on a T1k model: how it settles with samples and with HMC steps (Sec. 4.3).

The left panel shows log Z_0 from the first n chains, the right one the standard deviation of the log-ratios of every level:
far above 1 a few samples carry the mean. Each curve is of another number of HMC steps per level after the normal
approximation. The values are lower bounds if the chains are faithful; curves of different numbers of steps that disagree say
that they are not.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch

from springwell.app.build import measurable_data
from springwell.app.plots import new_charts
from springwell.evaluation.points import evaluation_points
from springwell.likelihood.bits import to_bits
from springwell.likelihood.ratios import Ratios, level_ratios, tune_steps
from springwell.noise import Noise, Stream
from springwell.paper.common import Study, finished, markdown, write
from springwell.store.parts import Parts

STEPS = (0, 1, 4)
NUM_CHAINS = 64
BATCH = 64
_COLOURS = ("0.6", "#6b9ac4", "#20456e", "#b5482a")


def reproduce(study: Study) -> dict[str, Any]:
    seed = study.seed
    ((name, model),) = finished(study, ("-t1k",)).items()
    num = max(16, round(study.scale * NUM_CHAINS))
    points = evaluation_points(model, measurable_data(model), 10_000, seed=seed)
    nats = float((model.level_f(points.x_0) + points.log_volume).mean())
    dim, levels = math.prod(model.event_shape), model.schedule.num_levels
    # log Z_0 is of y_0; the density of x_0 has it less D log scale_0.
    offset = dim * math.log(float(model.schedule.scale[0]))
    kept = Parts(study.out / "runs" / f"logz-{name}-{seed}-{model.fingerprint()[:16]}")
    what = (model.energy_function, model.schedule, model.event_shape)
    (tuned,) = kept.run("steps", [lambda: {"step_size": tune_steps(*what, seed)}], model.device)
    sizes = sorted({max(1, round(num ** (i / 24))) for i in range(25)})
    figure, axes = new_charts(1, 2, 3.4)
    rows: list[list[str]] = []
    numbers: dict[str, Any] = {"model": name, "seed": seed, "num_chains": num, "sizes": sizes, "steps": {}}
    for steps, colour in zip(STEPS, _COLOURS, strict=False):

        def compute(first: int, steps: int) -> dict[str, torch.Tensor]:
            index = torch.arange(first, min(first + BATCH, num), device=model.device)
            noise = Noise(seed, index, Stream.RATIOS + 2 + steps)
            return level_ratios(*what, noise, steps, tuned["step_size"], watch=bar.advance)._asdict()

        with study.reporter.bar(f"{steps} HMC steps per level", levels * -(-num // BATCH)) as bar:
            tasks = [partial(compute, first, steps) for first in range(0, num, BATCH)]
            parts = kept.run(f"ratios-{steps}-{num}", tasks, model.device)
        acceptance = torch.stack([part["acceptance"] for part in parts]).mean(0)
        found = Ratios(torch.cat([part["log_ratio"] for part in parts], 1), acceptance)
        value, error = found.estimate()
        curve = found.curve(sizes)
        optimistic = to_bits(value - offset - nats, dim)
        numbers["steps"][str(steps)] = {
            "log_z_0": value,
            "log_z_0_standard_error": error,
            "bound": "lower, if chains are faithful",
            "curve": curve,
            "acceptance": [float(acceptance.min()), float(acceptance.mean())],
            "bits_per_dim_optimistic": optimistic,
            "bits_per_dim_standard_error_log_z": to_bits(error, dim),
            "num_images": len(points.x_0),
        }
        accepted = f"{float(acceptance.min()):.2f} ... {float(acceptance.max()):.2f}" if steps else "-"
        bits = f"{optimistic:.3f} +- {to_bits(error, dim):.3f}"
        rows.append([str(steps), f"{value:.2f} +- {error:.2f}", bits, accepted])
        axes[0, 0].plot(sizes, curve, color=colour, lw=1, label=f"{steps} HMC steps")
        axes[0, 1].plot(found.log_ratio.std(1).cpu(), color=colour, lw=0.7, label=f"{steps} HMC steps")
    axes[0, 0].set(xscale="log", xlabel="samples", title="log Z_0 by ratios of levels (nats)")
    axes[0, 1].set(yscale="log", xlabel="level t", title="spread of the log-ratio of levels t and t + 1 (nats)")
    for ax in axes[0]:
        ax.legend(fontsize=6)
    headings = ["HMC steps", "log Z_0, nats (lower bound)", "bits/dim (optimistic)", "acceptance"]
    table = f"{name}, {num} chains, {len(points.x_0)} test images\n\n{markdown(headings, rows)}"
    return write(study.out, "fig-logz", figure, numbers, table)

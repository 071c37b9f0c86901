"""The adapted ladder against the authors' T6 rule: same network, data, batch and learning rate, equal gradient evaluations."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from springwell.app.config import Config, with_fields
from springwell.app.plots import draw_images, new_figure
from springwell.app.presets import preset
from springwell.data.source import open_data
from springwell.errors import UserError
from springwell.evaluation.neighbours import nearest
from springwell.evaluation.toy import mmd
from springwell.noise import Noise, Stream
from springwell.paper.common import Study, coarse_ladder, scaled, write

NUM_SAMPLES = 256


def authors_rule(ladder: Config, reference: Config) -> Config:
    """``ladder`` with the levels, chains and output scale of the T6 preset ``reference``, at equal gradient evaluations."""
    config = replace(ladder, schedule=reference.schedule, sampler=reference.sampler)
    config = with_fields(config, output_scale="step", base_precision=0.0)
    total = ladder.training.iterations * ladder.gradient_evaluations()
    return with_fields(config, iterations=max(1, round(total / config.gradient_evaluations())))


def reproduce(study: Study) -> dict[str, Any]:
    data, seed, scale = study.data or "digits", study.seed, study.scale
    if data not in ("digits", "mnist"):
        raise UserError(f"--data {data}: has no pair of presets to compare; use digits or mnist")
    ladder = scaled(coarse_ladder(data), seed, scale)
    configs = {"ladder": ladder, "authors' rule": authors_rule(ladder, preset(f"{data}-t6"))}
    source = open_data(data, ladder.images, study.reporter)
    num = study.samples(NUM_SAMPLES)
    held_out = source.held_out(Noise(seed, torch.arange(min(num, source.num_held_out or num)), Stream.DATA))
    figure, axes = new_figure(1, 3, 3.2)
    rows = source.rows
    assert rows is not None

    def distance(x: Tensor) -> float:
        """Median distance to the nearest training image, root mean square per value."""
        return float(nearest(x.clamp(-1, 1), rows)[0].median())

    numbers: dict[str, Any] = {"data": data, "seed": seed, "scale": scale, "num_samples": len(held_out)}
    numbers["held-out data"] = {"nearest": distance(held_out)}
    panels = {"held-out data": held_out}
    for name, config in configs.items():
        model = study.trained(config, re.sub(r"\W+", "-", f"{data}-{name}"))
        panels[name] = x = model.sample(len(held_out), seed=seed)
        mmd2, null = mmd(x.flatten(1), held_out.flatten(1), seed=seed)
        numbers[name] = {
            "iterations": config.training.iterations,
            "gradient_evaluations": config.training.iterations * config.gradient_evaluations(),
            "mmd2": mmd2,
            "mmd2_null_95": null,
            "nearest": distance(x),
        }
    for ax, (name, x) in zip(axes[0], panels.items(), strict=True):
        draw_images(ax, x[:64])
        row = numbers[name]
        note = f"MMD^2 {row['mmd2']:.1e} (null {row['mmd2_null_95']:.1e})" if "mmd2" in row else ""
        ax.set(title=f"{name}\n{note}\nnearest training image at {row['nearest']:.2f}")
    return write(study.out, f"ladder-{data}", figure, numbers)

r"""Measuring a model of images by what the model itself knows.

acceptance    of the chains at generation, per level (1 without a Metropolis test)
f_gap         mean f(y_0, 0) of held-out data after the initial noise, less that of samples; nats, up to no constant, because
              both are of the same level. Samples of a model that matches its data have a gap of 0; a positive gap says that
              chains stop short of where the model puts its mass, or that the model prefers data it has not seen
outside       share of samples with a value outside [-1.2, 1.2], and share of values
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from springwell.data.source import open_data
from springwell.errors import UserError
from springwell.evaluation.toy import DATA_STREAM
from springwell.generate import Sample
from springwell.model import Model
from springwell.noise import Noise
from springwell.progress import Reporter, Silent

LIMIT = 1.2


def evaluate_images(
    model: Model, num: int = 256, seed: int = 0, reporter: Reporter | None = None
) -> tuple[dict[str, Any], Tensor, Tensor]:
    """Measures a model of images.

    Args:
        model: The model.
        num: Samples, and held-out images.
        seed: Of the samples.
        reporter: Is told of progress.

    Returns:
        Names and values, with sample counts and standard errors; the samples; the held-out images.
    """
    reporter = reporter or Silent()
    data = open_data(model.config.data, model.config.images, reporter)
    if data.event_shape != model.event_shape:
        shapes = f"{list(data.event_shape)}, the model's {list(model.event_shape)}"
        raise UserError(f"--data {model.config.data}: its images have shape {shapes}; restore the data it was trained on")
    num = min(num, data.num_held_out or num)
    num_levels = model.schedule.num_levels
    x_0 = torch.empty(num, *model.event_shape, device=model.device)
    acceptance = torch.zeros(num_levels, num, device=model.device)

    def watch(first: int, sample: Sample) -> None:
        rows = slice(first, first + len(sample.x))
        if sample.t < num_levels:
            acceptance[sample.t, rows] = sample.acceptance
        if sample.t == 0:
            x_0[rows] = sample.x
        bar.advance(len(sample.x))

    with reporter.bar("sampling (levels x samples)", num * (num_levels + 1)) as bar:
        samples = torch.cat(list(model.sample_batches(num, seed, watch=watch)))
    noise = Noise(seed, torch.arange(num, device=model.device), DATA_STREAM)
    held_out = data.held_out(noise)
    diffused = model.schedule.diffuse(held_out, torch.zeros(num, dtype=torch.long, device=model.device), noise)
    f_data, f_samples = _f(model, diffused), _f(model, (x_0 - model.shift) / model.scale)
    outside = samples.abs().flatten(1) > LIMIT
    result = {
        "data": model.config.data,
        "iteration": model.iteration,
        "initial_noise": float(model.schedule.sigma_cum[0]),
        "num_samples": num,
        "seed": seed,
        "f_data": float(f_data.mean()),
        "f_samples": float(f_samples.mean()),
        "f_gap": float(f_data.mean() - f_samples.mean()),
        "f_gap_standard_error": math.sqrt(float(f_data.var() + f_samples.var()) / num) if num > 1 else None,
        "outside": LIMIT,
        "outside_samples": float(outside.any(1).double().mean()),
        "outside_values": float(outside.double().mean()),
        "acceptance": [round(a, 4) for a in acceptance.mean(1).tolist()],
    }
    return result, samples, data.shift.to(held_out) + data.scale.to(held_out) * held_out


def _f(model: Model, x: Tensor) -> Tensor:
    """f(scale_0 x, 0) ``[N]``, float64; x in standardised coordinates."""
    with torch.no_grad():
        parts = x.split(model.automatic_batch())
        return torch.cat([model.f(model.schedule.scale[0].to(part.dtype) * part).double() for part in parts])

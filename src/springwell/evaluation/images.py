r"""Measuring a model of images by what the model itself knows.

acceptance    of the chains at generation, per level (1 without a Metropolis test)
f_gap         mean f(y_0, 0) of held-out data after the initial noise, less that of samples; nats, up to no constant, because
              both are of the same level. Samples of a model that matches its data have a gap of 0; a positive gap says that
              chains stop short of where the model puts its mass, or that the model prefers data it has not seen
levels        the same gap at every level t, of held-out data diffused to it and of the samples on their way
outside       share of samples with a value outside [-1.2, 1.2], and share of values
neighbours    whether samples are copies: see :mod:`springwell.evaluation.neighbours`
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from springwell.data.source import DataSource
from springwell.evaluation.calibration import calibrated
from springwell.evaluation.neighbours import memorisation
from springwell.generate import Sample
from springwell.model import Model
from springwell.noise import Noise, Stream
from springwell.progress import SILENT, Reporter

LIMIT = 1.2


class Measured(NamedTuple):
    """Names and values, with sample counts and standard errors; samples; held-out images; neighbours of the first samples."""

    result: dict[str, Any]
    samples: Tensor
    held_out: Tensor
    neighbours: np.ndarray


def evaluate_images(model: Model, data: DataSource, num: int = 256, seed: int = 0, reporter: Reporter = SILENT) -> Measured:
    """Measures a model of images.

    Args:
        model: The model.
        data: Its data.
        num: Samples, and held-out images.
        seed: The seed of the samples.
        reporter: Receives progress updates.
    """
    num = min(num, data.num_held_out or num)
    num_levels, batch = model.schedule.num_levels, model.automatic_batch()
    acceptance, f_samples, f_data = (torch.zeros(num_levels, num, dtype=torch.float64, device=model.device) for _ in range(3))

    def watch(first: int, sample: Sample) -> None:
        rows = slice(first, first + len(sample.x))
        if sample.t < num_levels:
            acceptance[sample.t, rows] = sample.acceptance.double()
            f_samples[sample.t, rows] = model.level_f((sample.x - model.shift) / model.scale, sample.t, batch)
        bar.advance(len(sample.x))

    with reporter.bar("sampling (levels x samples)", num * (num_levels + 1)) as bar:
        samples = torch.cat(list(model.sample_batches(num, seed, watch=watch)))
    noise = Noise(seed, torch.arange(num, device=model.device), Stream.DATA)
    held_out = data.held_out(noise)
    for t in range(num_levels):
        f_data[t] = model.level_f(model.schedule.diffuse(held_out, t, noise), t, batch)
    gap = f_data.mean(1) - f_samples.mean(1)
    errors = ((f_data.var(1) + f_samples.var(1)) / num).sqrt() if num > 1 else [math.nan] * num_levels
    assert data.rows is not None
    images = data.shift.to(held_out) + data.scale.to(held_out) * held_out
    copies, neighbours = memorisation(samples, images, data.rows, reporter=reporter)
    outside = samples.abs().flatten(1) > LIMIT
    result = {
        "data": model.metadata.get("name", ""),
        "iteration": model.iteration,
        "initial_noise": float(model.schedule.sigma_cum[0]),
        "num_samples": num,
        "seed": seed,
        "f_data": float(f_data[0].mean()),
        "f_samples": float(f_samples[0].mean()),
        "f_gap": float(gap[0]),
        "f_gap_standard_error": _number(errors[0]),
        "outside": LIMIT,
        "outside_samples": float(outside.any(1).double().mean()),
        "outside_values": float(outside.double().mean()),
        **copies,
        "num_train": len(data.rows),
        "acceptance": [round(a, 4) for a in acceptance.mean(1).tolist()],
        "f_gap_levels": [_number(g) for g in gap],
        "f_gap_levels_standard_error": [_number(e) for e in errors],
        **calibrated(model, data, num, seed),
    }
    return Measured(result, samples, images, neighbours)


def _number(value: Tensor | float) -> float | None:
    return None if math.isnan(value) else float(f"{float(value):.6g}")

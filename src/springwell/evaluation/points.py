"""Data at which a density is measured: dequantised where that is due, and after the schedule's initial noise."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from springwell.data.source import DataSource
from springwell.likelihood.bits import check_range, log_volume
from springwell.likelihood.decoder import decoded_volume, frequencies
from springwell.model import Model
from springwell.noise import Noise, Stream

Split = Literal["train", "test"]
# Of training images that frequencies are counted in.
MOST_ROWS = 60_000


class Points(NamedTuple):
    """Data at which a model is measured.

    Attributes:
        x_0: ``[N, ...]``, standardised, after the initial noise.
        log_volume: ``[N]``, float64: log v(x_0); for data without grey values, the log of the change of units.
        cell: c; 0 for data without grey values.
        dequantised: Whether grey values were spread over their cells.
    """

    x_0: Tensor
    log_volume: Tensor
    cell: float
    dequantised: bool


class Measurable(NamedTuple):
    """Data that are not augmented, and whether their grey values are spread over their cells."""

    source: DataSource
    dequantised: bool

    def frequencies(self) -> Tensor | None:
        """How often each pixel of the training images takes each grey value, for the decoder; None if there is no need."""
        rows, cell = self.source.rows, self.source.cell
        if rows is None or not cell or self.dequantised:
            return None
        num_values = round(2 / cell) + 1
        values = torch.from_numpy(np.asarray(rows[:MOST_ROWS])).float().div_(127.5 * cell).round_().long()
        return frequencies(values, num_values)


def must_dequantise(model: Model) -> bool:
    """Whether data have to be dequantised to have a density at all: there is no initial noise."""
    return float(model.schedule.sigma_cum[0]) == 0


def evaluation_points(model: Model, data: Measurable, num: int, split: Split = "test", seed: int = 0) -> Points:
    """The first ``num`` of the test split, or training data drawn at random.

    Args:
        model: The model.
        data: Its data.
        num: How many; no more than there are.
        split: ``test`` or ``train``.
        seed: The seed of the noise and of the drawing.
    """
    x, x_0 = noisy_data(model, data, num, split, seed)
    return Points(x_0, _log_volume(model, data, x, x_0), data.source.cell, data.dequantised)


def noisy_data(
    model: Model, data: Measurable, num: int, split: Split = "test", seed: int = 0, stream: int = Stream.POINTS
) -> tuple[Tensor, Tensor]:
    """Data in standardised coordinates, and x_0 of them, after the initial noise; arguments as for the points."""
    source = data.source
    if split == "test" and source.num_held_out is not None:
        num = min(num, source.num_held_out)
    noise = Noise(seed, torch.arange(num, device=model.device), stream)
    x = (source.held_out if split == "test" else source.sample)(noise)
    if source.cell:
        check_range(x, source.cell if data.dequantised else 0.0, "data")
    return x, model.schedule.diffuse(x, 0, noise)


def _log_volume(model: Model, data: Measurable, x: Tensor, x_0: Tensor) -> Tensor:
    """log v(x_0) ``[N]``: by the decoder that knows frequencies where it applies; without grey values, the change of units."""
    cell = data.source.cell
    if not cell:
        return torch.full((len(x),), -float(model.scale.double().log().sum()), dtype=torch.float64, device=x.device)
    a, sigma = float(model.schedule.a_cum[0]), float(model.schedule.sigma_cum[0])
    log_pi = data.frequencies() if sigma > 0 else None
    if log_pi is None:
        return log_volume(x_0, a, sigma, cell, data.dequantised)
    return decoded_volume(x_0, ((x + 1) / cell).round().long(), log_pi.to(x_0.device), a, sigma, cell)

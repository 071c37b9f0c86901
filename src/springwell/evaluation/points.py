"""Data at which a density is measured: dequantised where that is due, and after the schedule's initial noise."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from springwell.data.source import DataSource
from springwell.likelihood.bits import check_range, log_volume
from springwell.model import Model
from springwell.noise import Noise, Stream

Split = Literal["train", "test"]


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


def must_dequantise(model: Model) -> bool:
    """Whether data have to be dequantised to have a density at all: there is no initial noise."""
    return float(model.schedule.sigma_cum[0]) == 0


def evaluation_points(
    model: Model, data: Measurable, num: int, split: Split = "test", seed: int = 0, stream: int = Stream.POINTS
) -> Points:
    """The first ``num`` of the test split, or training data drawn at random.

    Args:
        model: The model.
        data: Its data.
        num: How many; no more than there are.
        split: ``test`` or ``train``.
        seed: Of the noise and of the drawing.
        stream: Of the noise.
    """
    source = data.source
    if split == "test" and source.num_held_out is not None:
        num = min(num, source.num_held_out)
    noise = Noise(seed, torch.arange(num, device=model.device), stream)
    x = (source.held_out if split == "test" else source.sample)(noise)
    return noisy_points(model, x, noise, source.cell, data.dequantised)


def noisy_points(model: Model, x: Tensor, noise: Noise, cell: float, dequantised: bool) -> Points:
    """x_0 of standardised data ``x``, which are dequantised already if they are to be."""
    if cell:
        check_range(x, cell if dequantised else 0.0, "data")
    level = torch.zeros(len(x), dtype=torch.long, device=x.device)
    x_0 = model.schedule.diffuse(x, level, noise)
    if cell:
        a, sigma = float(model.schedule.a_cum[0]), float(model.schedule.sigma_cum[0])
        volume = log_volume(x_0, a, sigma, cell, dequantised)
    else:
        volume = torch.full((len(x),), -float(model.scale.double().log().sum()), dtype=torch.float64, device=x.device)
    return Points(x_0, volume, cell, dequantised)

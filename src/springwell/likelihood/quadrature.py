r"""Integrals over the plane: log Z = log int exp f(x) dx by the trapezoidal rule on [-B, B]^2.

For smooth functions that vanish at the boundary the rule converges faster than any power of the spacing h. Its error is
estimated by the change from spacing 2h to h (the nodes of the coarse rule are every other node of the fine one) plus the
mass found in the outer quarter of the box, beyond which the rest is smaller still.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

HALF_WIDTH = 6.0
NUM_CELLS = 512
_CHUNK = 1 << 15


class Normaliser(NamedTuple):
    """log Z in nats, an estimate of its error, and the values it rests on.

    Attributes:
        log_z: The estimate.
        error: Estimated absolute error.
        points: Nodes ``[M, 2]``.
        log_value: f at the nodes ``[M]``, float64.
        cell: Area that belongs to each node.

    Examples:
        >>> z = sw.likelihood.normaliser(lambda x: -x.square().sum(-1) / 2)
        >>> z.points.shape, z.log_value.shape
        (torch.Size([263169, 2]), torch.Size([263169]))
    """

    log_z: float
    error: float
    points: Tensor
    log_value: Tensor
    cell: float


def plane_grid(half_width: float, num_cells: int, device: torch.device | str = "cpu") -> Tensor:
    """Nodes of a square grid ``[(n+1)^2, 2]``, the first coordinate running slowest."""
    axis = torch.linspace(-half_width, half_width, num_cells + 1, dtype=torch.float64, device=device)
    return torch.cartesian_prod(axis, axis)


def evaluate(function: Callable[[Tensor], Tensor], points: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """``function`` at many points, in pieces that fit the cache; float64."""
    return torch.cat([function(part.to(dtype)).double() for part in points.split(_CHUNK)])


def normaliser(
    log_function: Callable[[Tensor], Tensor],
    device: torch.device | str = "cpu",
    half_width: float = HALF_WIDTH,
    num_cells: int = NUM_CELLS,
) -> Normaliser:
    """log int exp(log_function) over the plane, for log_function: x ``[N, 2]`` -> ``[N]``.

    Examples:
        >>> z = sw.likelihood.normaliser(lambda x: -x.square().sum(-1) / 2)
        >>> abs(z.log_z - math.log(2 * math.pi)) < 1e-6
        True
    """
    points = plane_grid(half_width, num_cells, device)
    log_value = evaluate(log_function, points)
    cell = (2 * half_width / num_cells) ** 2
    log_z = float(log_value.logsumexp(0)) + math.log(cell)
    square = log_value.view(num_cells + 1, num_cells + 1)
    coarse = float(square[::2, ::2].logsumexp((0, 1))) + math.log(4 * cell)
    outer = points.abs().amax(-1) > 0.75 * half_width
    outside = math.exp(float(log_value[outer].logsumexp(0)) + math.log(cell) - log_z)
    return Normaliser(log_z, abs(log_z - coarse) + outside, points, log_value, cell)

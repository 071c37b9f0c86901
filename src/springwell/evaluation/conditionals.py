r"""Vectors with one hidden coordinate, whose exact conditional can be computed, F(m | o) = int_{-B}^m p(o, .) / int p(o, .).

If samples m_i have the conditional law given their o_i, the values F(m_i | o_i) are uniform (Rosenblatt's transform), and the
Kolmogorov distance of their empirical distribution from the uniform is below 1.36 / sqrt(N) in 95 of 100 cases.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from springwell.data.toy import ToyData, log_density
from springwell.model import Model

HALF_WIDTH = 5.0
NUM_CELLS = 500
_ROWS = 500


def conditional_density(log_p: Callable[[Tensor], Tensor], x: Tensor, hidden: int) -> tuple[Tensor, Tensor]:
    """Nodes ``[M]`` and p(m | o_i) at them ``[N, M]``, float64, by the trapezoidal rule.

    Args:
        log_p: x ``[N, D]`` -> the joint log-density ``[N]`` up to a constant.
        x: The points ``[N, D]``, of which the other coordinates are given.
        hidden: The coordinate that is integrated.
    """
    nodes = torch.linspace(-HALF_WIDTH, HALF_WIDTH, NUM_CELLS + 1, dtype=torch.float64, device=x.device)
    rows = []
    for part in x.double().split(_ROWS):
        points = part[:, None, :].repeat(1, len(nodes), 1)
        points[..., hidden] = nodes
        log_value = log_p(points.flatten(0, 1)).double().view(len(part), -1)
        value = (log_value - log_value.max(1, keepdim=True).values).exp()
        rows.append(value / torch.trapezoid(value, nodes)[:, None])
    return nodes, torch.cat(rows)


def pit(log_p: Callable[[Tensor], Tensor], x: Tensor, hidden: int) -> Tensor:
    """F(m_i | o_i) ``[N]`` of every point; see :func:`conditional_density` for the arguments."""
    nodes, density = conditional_density(log_p, x, hidden)
    cumulative = torch.nn.functional.pad(torch.cumulative_trapezoid(density, nodes), (1, 0))
    position = ((x[:, hidden].double() - nodes[0]) / (nodes[1] - nodes[0])).clamp(0, NUM_CELLS - 1e-9)
    cell = position.long()
    left, right = (cumulative.gather(1, c[:, None])[:, 0] for c in (cell, cell + 1))
    return torch.lerp(left, right, position - cell)


def kolmogorov(u: Tensor) -> tuple[float, float]:
    """The Kolmogorov distance of values ``[N]`` from the uniform law, and its null level (95 %)."""
    n, u = len(u), u.sort().values
    rank = torch.arange(n, dtype=u.dtype, device=u.device)
    distance = float(torch.maximum((u - rank / n).max(), ((rank + 1) / n - u).max()))
    return distance, 1.358 / math.sqrt(n)


def against_exact(model: Model, toy: ToyData, x_0: Tensor, hidden: int) -> tuple[tuple[Tensor, Tensor], dict[str, float]]:
    """Compares samples at level 0 with the exact conditionals of the data and of the model.

    Args:
        model: A model of vectors.
        toy: The data, whose density is known.
        x_0: Samples ``[N, D]`` at level 0.
        hidden: The coordinate that was hidden.

    Returns:
        The nodes and the mean density of the data's conditional at them; the Kolmogorov distances and their null level.
    """
    a, sigma = float(model.schedule.a_cum[0]), float(model.schedule.sigma_cum[0])

    def data(points: Tensor) -> Tensor:
        return log_density(toy, points, a, sigma)

    found: dict[str, float] = {}
    for name, law in (("data", data), ("model", lambda points: model.log_prob(points.float()))):
        found[f"ks_{name}"], found["ks_null_95"] = kolmogorov(pit(law, x_0, hidden))
    nodes, density = conditional_density(data, x_0, hidden)
    return (nodes.cpu(), density.mean(0).cpu()), found

r"""Jumps between the modes of a conditional: iterated sampling importance resampling (i-SIR).

The spring itself is a proposal. With z_1 ... z_J ~ N(x_{t+1}, sigma_{t+1}^2 I) and z_0 = y the present position, the importance
weight of a candidate under log p(. | x_{t+1}) is exp f(z) alone, and

    y' = z_j  with probability  exp f(z_j) / sum_i exp f(z_i)

leaves the conditional invariant for every J. Langevin steps never cross a deep valley, so they cannot tell a model how much
weight its modes deserve; one such jump can, wherever the spring is wide enough to reach both. It takes J + 1 evaluations of f
and no gradient. In high dimensions proposals are hardly ever taken, and the step does nothing but cost.

References:
    Andrieu, Lee, Vihola, "Uniform ergodicity of the iterated conditional SMC and geometric ergodicity of particle Gibbs
    samplers", Bernoulli 2018.
"""

from __future__ import annotations

import torch
from torch import Tensor

from springwell.energy.base import EnergyFunction, at_level
from springwell.noise import Noise
from springwell.schedule import NoiseSchedule, expand


def jump(
    y: Tensor, energy: EnergyFunction, schedule: NoiseSchedule, t: Tensor, x_next: Tensor, num_proposals: int, noise: Noise
) -> Tensor:
    """One step of i-SIR for every chain; chains at levels without spring stay where they are. Arguments: see :func:`choose`."""
    candidates, chosen = choose(y, energy, schedule, t, x_next, num_proposals, noise)
    return candidates[chosen, torch.arange(len(y), device=y.device)]


@torch.no_grad()
def choose(
    y: Tensor, energy: EnergyFunction, schedule: NoiseSchedule, t: Tensor, x_next: Tensor, num_proposals: int, noise: Noise
) -> tuple[Tensor, Tensor]:
    """The candidates ``[J + 1, N, ...]`` of every chain, of which the first is y, and the number ``[N]`` of the chosen one.

    Args:
        y: Positions ``[N, ...]``.
        energy: f(y, t).
        schedule: The noise levels.
        t: Levels ``[N]``.
        x_next: x_{t+1} ``[N, ...]``.
        num_proposals: J.
        noise: For N chains.
    """
    event = y.shape[1:]
    eps = noise.normal(num_proposals, *event).transpose(0, 1)
    candidates = torch.cat([y[None], x_next + expand(schedule.sigma[t + 1], x_next) * eps])
    f = at_level(energy, t.repeat(num_proposals + 1))(candidates.flatten(0, 1)).view(num_proposals + 1, -1)
    f[1:].masked_fill_(~schedule.spring[t], -torch.inf)
    # A candidate where f is nan is never taken; argmax over Gumbel-perturbed weights draws from their softmax.
    gumbel = -torch.log(-torch.log(noise.uniform(num_proposals + 1).T))
    chosen = (f.nan_to_num(nan=-torch.inf) + gumbel).argmax(0)
    return candidates, chosen

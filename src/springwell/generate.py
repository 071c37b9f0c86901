r"""Progressive sampling (Gao et al. 2021, Alg. 2).

    x_T ~ N(0, I);   for t = T-1 ... 0:  y = K steps at log p(. | x_{t+1}), started at x_{t+1};   x_t = y / scale_t

K = 0 takes one draw from the normal approximation instead; with ``denoised_start`` chains start at a damped one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from springwell.conditional import gradient, normal_approximation
from springwell.energy.base import EnergyFunction, at_level
from springwell.noise import Noise
from springwell.samplers.chains import Chains, run_conditional
from springwell.schedule import NoiseSchedule


class Sample(NamedTuple):
    """x_t ``[N, ...]`` of one level, and the acceptance ``[N]`` of the chains that drew it."""

    t: int
    x: Tensor
    acceptance: Tensor


def progressive(
    energy: EnergyFunction,
    schedule: NoiseSchedule,
    chains: Chains,
    event_shape: tuple[int, ...],
    noise: Noise,
) -> Iterator[Sample]:
    """Yields x_T, x_{T-1}, ..., x_0, one sample per element of ``noise``.

    Args:
        energy: f(y, t).
        schedule: The noise levels.
        chains: How every level is sampled.
        event_shape: Shape of one sample.
        noise: The samples' randomness.
    """
    x = noise.normal(*event_shape)
    acceptance = torch.ones(len(noise), device=x.device)
    yield Sample(schedule.num_levels, x, acceptance)
    for level in reversed(range(schedule.num_levels)):
        t = torch.full((len(noise),), level, device=x.device)
        first = x
        if chains.denoised_start and chains.num_steps:
            first = normal_approximation(energy, schedule, t, x, noise.normal(*event_shape), damped=True)
        y, acceptance = run_conditional(chains, energy, schedule, t, x, first, noise)
        x = y / schedule.scale[level].to(y.dtype)
        yield Sample(level, x, acceptance)


def denoise(energy: EnergyFunction, schedule: NoiseSchedule, x_0: Tensor) -> Tensor:
    """The posterior mean of x_data given x_0, E[x_data | x_0] = (x_0 + sigmabar_0^2 grad log p(x_0)) / abar_0."""
    level = torch.zeros(len(x_0), dtype=torch.long, device=x_0.device)
    scale = schedule.scale[0].to(x_0.dtype)
    grad_y = gradient(at_level(energy, level), scale * x_0)
    variance, a = (schedule.sigma_cum[0] ** 2).to(x_0.dtype), schedule.a_cum[0].to(x_0.dtype)
    return (x_0 + variance * scale * grad_y) / a

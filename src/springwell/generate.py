r"""Progressive sampling (Gao et al. 2021, Alg. 2).

    x_T ~ N(0, I);   for t = T-1 ... 0:  y = K steps at log p(. | x_{t+1}), started at x_{t+1};   x_t = y / scale_t

K = 0 takes one draw from the normal approximation instead. With ``denoised_start`` chains start at a damped one; with K = 0
that is the draw.

If x_{t+1} has the law of level t + 1, and levels are noisy versions of one another, y_t has the law exp f(y, t). Where they are
not (a sum of two models' energies, an energy with a likelihood added), a *sweep* takes y_t nearer to it, whatever x_{t+1} was:

    x_{t+1} ~ N(y_t, sigma_{t+1}^2 I);   y_t: K steps at log p(. | x_{t+1}), started at y_t

are the two halves of a Gibbs step on exp(f(y, t) - |x - y|^2 / (2 sigma_{t+1}^2)), whose marginal of y is exp f(y, t). With
Metropolis-tested chains sweeps leave that law invariant for every K and every step size.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from springwell.conditional import gradient, normal_approximation
from springwell.energy.base import EnergyFunction, at_level
from springwell.level import Chains, run_conditional
from springwell.noise import Noise
from springwell.schedule import NoiseSchedule, expand


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
    sweeps: int = 0,
) -> Iterator[Sample]:
    """Yields x_T, x_{T-1}, ..., x_0, one sample per element of ``noise``.

    Args:
        energy: f(y, t).
        schedule: The noise levels.
        chains: How every level is sampled.
        event_shape: Shape of one sample.
        noise: The samples' randomness.
        sweeps: Sweeps of every level after its first chain.
    """
    x = noise.normal(*event_shape)
    acceptance = torch.ones(len(noise), device=x.device)
    yield Sample(schedule.num_levels, x, acceptance)
    for level in reversed(range(schedule.num_levels)):
        t = torch.full((len(noise),), level, device=x.device)
        first = x
        if chains.denoised_start and chains.num_steps:
            first = normal_approximation(energy, schedule, t, x, noise.normal(*event_shape), damped=True)
        y, acceptance = sample_level(chains, energy, schedule, t, x, first, noise, sweeps)
        x = y / schedule.scale[level].to(y.dtype)
        yield Sample(level, x, acceptance)


def sample_level(
    chains: Chains,
    energy: EnergyFunction,
    schedule: NoiseSchedule,
    t: Tensor,
    x_next: Tensor,
    start: Tensor,
    noise: Noise,
    sweeps: int = 0,
) -> tuple[Tensor, Tensor]:
    """Draws y_t given x_{t+1}, then sweeps; returns y_t and the mean acceptance ``[N]`` of each chain.

    Args:
        chains: How.
        energy: f(y, t).
        schedule: The noise levels.
        t: Levels ``[N]``.
        x_next: x_{t+1} ``[N, ...]``.
        start: Where the chains start ``[N, ...]``.
        noise: For N chains.
        sweeps: How often x_{t+1} is drawn again, given y_t, and y_t given that.
    """
    y, acceptance = run_conditional(chains, energy, schedule, t, x_next, start, noise)
    for _ in range(sweeps):
        x_next = y + expand(schedule.sigma[t + 1], y) * noise.normal(*y.shape[1:])
        y, accepted = run_conditional(chains, energy, schedule, t, x_next, y, noise)
        acceptance = acceptance + accepted
    return y, acceptance / (sweeps + 1)


def denoise(energy: EnergyFunction, schedule: NoiseSchedule, x_0: Tensor) -> Tensor:
    """The posterior mean of x_data given x_0, E[x_data | x_0] = (x_0 + sigmabar_0^2 grad log p(x_0)) / abar_0."""
    level = torch.zeros(len(x_0), dtype=torch.long, device=x_0.device)
    scale = schedule.scale[0].to(x_0.dtype)
    grad_y = gradient(at_level(energy, level), scale * x_0)
    variance, a = (schedule.sigma_cum[0] ** 2).to(x_0.dtype), schedule.a_cum[0].to(x_0.dtype)
    return (x_0 + variance * scale * grad_y) / a

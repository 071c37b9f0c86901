r"""Progressive sampling (Gao et al. 2021, Alg. 2).

    x_T ~ N(0, I);   for t = T-1 ... 0:  y ~ p(. | x_{t+1}), by a LevelSampler;   x_t = y / scale_t

If x_{t+1} has the law of level t + 1, and levels are noisy versions of one another, y_t has the law exp f(y, t). Where they are
not (a sum of two models' energies, an energy with a likelihood added), a *sweep* takes y_t nearer to it, whatever x_{t+1} was:

    x_{t+1} ~ N(y_t, sigma_{t+1}^2 I);   y_t: K steps at log p(. | x_{t+1}), started at y_t

are the two halves of a Gibbs step on exp(f(y, t) - |x - y|^2 / (2 sigma_{t+1}^2)), whose marginal of y is exp f(y, t). With
Metropolis-tested chains sweeps leave that law invariant for every K and every step size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from springwell.conditional import Conditional
from springwell.energy.base import EnergyFunction, at_level
from springwell.level import LevelSampler
from springwell.noise import Noise
from springwell.samplers import gradient
from springwell.schedule import NoiseSchedule

Draw = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class Sample(NamedTuple):
    """x_t ``[N, ...]`` of one level, and the acceptance ``[N]`` of the chains that drew it."""

    t: int
    x: Tensor
    acceptance: Tensor


def descend(schedule: NoiseSchedule, x: Tensor, draw: Draw, top: int | None = None) -> Iterator[Sample]:
    """Goes down the levels: the loop of Alg. 2. Yields the start, then every level.

    Args:
        schedule: The noise levels.
        x: Where to start ``[N, ...]``, x_top.
        draw: (t ``[N]``, x_{t+1}) -> y_t and the acceptance ``[N]``.
        top: The level above the first one that is drawn. Default: T.
    """
    top = schedule.num_levels if top is None else top
    yield Sample(top, x, torch.ones(len(x), device=x.device))
    for level in reversed(range(top)):
        y, acceptance = draw(torch.full((len(x),), level, device=x.device), x)
        x = y / schedule.scale[level].to(y.dtype)
        yield Sample(level, x, acceptance)


def progressive(
    energy: EnergyFunction,
    schedule: NoiseSchedule,
    sampler: LevelSampler,
    event_shape: tuple[int, ...],
    noise: Noise,
    sweeps: int = 0,
) -> Iterator[Sample]:
    """Yields x_T, x_{T-1}, ..., x_0, one sample per element of ``noise``.

    Args:
        energy: f(y, t).
        schedule: The noise levels.
        sampler: How every level is drawn.
        event_shape: Shape of one sample.
        noise: The samples' randomness.
        sweeps: Sweeps of every level after its first draw.

    Examples:
        >>> from springwell.generate import progressive
        >>> model, noise = sw.load("checkerboard"), sw.Noise(0, torch.arange(3))
        >>> for t, x_t, acceptance in progressive(model.energy_function, model.schedule, model.sampler, (2,), noise):
        ...     print(t, tuple(x_t.shape))
        4 (3, 2)
        3 (3, 2)
        2 (3, 2)
        1 (3, 2)
        0 (3, 2)
    """

    def draw(t: Tensor, x_next: Tensor) -> tuple[Tensor, Tensor]:
        conditional = Conditional(energy, schedule, t, x_next)
        y, acceptance = sampler.draw(conditional, noise)
        for _ in range(sweeps):
            y, accepted = sampler.sweep(conditional, y, noise)
            acceptance = acceptance + accepted
        return y, acceptance / (sweeps + 1)

    return descend(schedule, noise.normal(*event_shape), draw)


def posterior_mean(energy: EnergyFunction, schedule: NoiseSchedule, x_t: Tensor, t: int) -> Tensor:
    """E[x_data | x_t] = (x_t + sigmabar_t^2 grad log p_t(x_t)) / abar_t of x_t ``[N, ...]``, by one gradient."""
    level = torch.full((len(x_t),), t, device=x_t.device)
    scale = schedule.scale[t].to(x_t.dtype)
    grad_y = gradient(at_level(energy, level), scale * x_t)
    variance, a = (schedule.sigma_cum[t] ** 2).to(x_t.dtype), schedule.a_cum[t].to(x_t.dtype)
    return (x_t + variance * scale * grad_y) / a


def denoise(energy: EnergyFunction, schedule: NoiseSchedule, x_0: Tensor) -> Tensor:
    """The posterior mean of x_data given x_0."""
    return posterior_mean(energy, schedule, x_0, 0)

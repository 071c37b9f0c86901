r"""The well and the spring: the conditional EBM of one noise level (Gao et al. 2021, Eq. 4).

    log p(y_t | x_{t+1}) = f(y_t, t) - ||x_{t+1} - y_t||^2 / (2 sigma_{t+1}^2) + const

A level without spring has precision 0 in place of 1 / sigma_{t+1}^2, and this is f alone.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from springwell.energy.base import EnergyFunction, at_level
from springwell.noise import Noise
from springwell.schedule import NoiseSchedule, expand

LogDensity = Callable[[Tensor], Tensor]


def value_and_grad(logdensity: LogDensity, y: Tensor) -> tuple[Tensor, Tensor]:
    """log p(y) ``[N]`` and its gradient ``[N, ...]``, detached."""
    with torch.enable_grad():
        y = y.detach().requires_grad_()
        value = logdensity(y)
        (grad,) = torch.autograd.grad(value.sum(), y)
    return value.detach(), grad


def conditional(energy: EnergyFunction, schedule: NoiseSchedule, t: Tensor, x_next: Tensor) -> LogDensity:
    """y -> log p(y_t | x_{t+1}) + const (Eq. 4), for chains at levels t ``[N]``."""
    f = at_level(energy, t)
    half_precision = (0.5 * schedule.spring_precision[t]).to(x_next.dtype)

    def logdensity(y: Tensor) -> Tensor:
        return f(y) - half_precision * (y - x_next).flatten(1).square().sum(-1)

    return logdensity


def normal_approximation(energy: EnergyFunction, schedule: NoiseSchedule, t: Tensor, x_next: Tensor, noise: Noise) -> Tensor:
    """Draws y ~ N(x_{t+1} + sigma_{t+1}^2 grad f(x_{t+1}, t), sigma_{t+1}^2 I): the conditional for small sigma (Sec. 3.3)."""
    _, grad = value_and_grad(at_level(energy, t), x_next)
    sigma = expand(schedule.sigma[t + 1], x_next)
    return x_next + sigma**2 * grad + sigma * noise.normal(*x_next.shape[1:])

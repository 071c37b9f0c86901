r"""The well and the spring: the conditional EBM of one noise level (Gao et al. 2021, Eq. 4).

    log p(y_t | x_{t+1}) = f(y_t, t) - ||x_{t+1} - y_t||^2 / (2 sigma_{t+1}^2) + const

A level without spring has precision 0 in place of 1 / sigma_{t+1}^2, and this is f alone.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from springwell.energy.base import EnergyFunction, at_level
from springwell.schedule import NoiseSchedule, expand

LogDensity = Callable[[Tensor], Tensor]
# Standard deviations of a distance's root mean square.
FARTHEST = 4.0


class Conditional:
    """y -> log p(y_t | x_{t+1}) + const (Eq. 4), for chains at fixed levels.

    Args:
        energy: f(y, t).
        schedule: The noise levels.
        t: Levels ``[N]``.
        x_next: x_{t+1} ``[N, ...]``.
    """

    def __init__(self, energy: EnergyFunction, schedule: NoiseSchedule, t: Tensor, x_next: Tensor):
        self.f, self.x_next = at_level(energy, t), x_next
        self.precision = expand(schedule.spring_precision[t], x_next).expand_as(x_next).contiguous()

    def __call__(self, y: Tensor) -> Tensor:
        stretch = y - self.x_next
        return self.f(y) - 0.5 * inner(self.precision * stretch, stretch)

    def value_and_grad(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """log p and its gradient; the spring's part is known, so only the well is differentiated."""
        value, grad = value_and_grad(self.f, y)
        stretch = y - self.x_next
        pull = self.precision * stretch
        return torch.sub(value, inner(pull, stretch), alpha=0.5), grad - pull

    def grad(self, y: Tensor) -> Tensor:
        """The gradient alone."""
        _, grad = value_and_grad(self.f, y)
        return torch.addcmul(grad, self.precision, self.x_next - y)


def inner(u: Tensor, v: Tensor) -> Tensor:
    """Inner product of each sample's values ``[N]``."""
    return torch.linalg.vecdot(u.flatten(1), v.flatten(1))


def value_and_grad(logdensity: LogDensity, y: Tensor) -> tuple[Tensor, Tensor]:
    """log p(y) ``[N]`` and its gradient ``[N, ...]``, detached, for any callable."""
    if isinstance(logdensity, Conditional):
        return logdensity.value_and_grad(y)
    with torch.enable_grad():
        y = y.detach().requires_grad_()
        value = logdensity(y)
        (grad,) = torch.autograd.grad(value, y, torch.ones_like(value))
    return value.detach(), grad


def gradient(logdensity: LogDensity, y: Tensor) -> Tensor:
    """The gradient of log p at y ``[N, ...]``, detached, for any callable."""
    return logdensity.grad(y) if isinstance(logdensity, Conditional) else value_and_grad(logdensity, y)[1]


def normal_approximation(
    energy: EnergyFunction,
    schedule: NoiseSchedule,
    t: Tensor,
    x_next: Tensor,
    eps: Tensor,
    damped: bool = False,
    cut: bool = False,
) -> Tensor:
    r"""A Gaussian guess of y_t given x_{t+1}, at noise eps.

        y = x_{t+1} + s sigma_{t+1}^2 grad f(x_{t+1}, t) + sqrt(s) sigma_{t+1} eps

    s = 1 is the conditional for small sigma (Sec. 3.3). ``damped`` takes s = schedule.posterior_share, with which it is exact
    for a single data point at any sigma: the start for chains on wide hops, where s = 1 overshoots.

    f is little known at x_{t+1}, which has more noise than y_t, and may be steep there; but |x_{t+1} - y_t|^2 is D sigma^2 up
    to a share of sqrt(2 / D), whatever the data. ``cut`` bounds the damped drift, by that sqrt(1 - s) sigma in root mean square
    at most, four standard deviations above it. Chains would not come back from farther off, and training, which lowers f where
    chains are, would make f steeper yet.
    """
    grad = gradient(at_level(energy, t), x_next)
    sigma = expand(schedule.sigma[t + 1], x_next)
    if not damped:
        return x_next + sigma**2 * grad + sigma * eps
    share = expand(schedule.posterior_share[t], x_next)
    drift = share * sigma**2 * grad
    if cut:
        size = expand(drift.flatten(1).square().mean(-1).sqrt(), drift)
        longest = (1 + FARTHEST / (2 * drift[0].numel()) ** 0.5) * (1 - share).sqrt() * sigma
        drift = (longest / size).clamp(max=1) * drift
    return x_next + drift + share.sqrt() * sigma * eps

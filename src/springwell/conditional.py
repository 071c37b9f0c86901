r"""The well and the spring: the conditional EBM of one noise level (Gao et al. 2021, Eq. 4).

    log p(y_t | x_{t+1}) = f(y_t, t) - ||x_{t+1} - y_t||^2 / (2 sigma_{t+1}^2) + const

A level without spring has precision 0 in place of 1 / sigma_{t+1}^2, and this is f alone.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from springwell.energy.base import EnergyFunction, at_level
from springwell.samplers.target import gradient, value_and_grad
from springwell.schedule import NoiseSchedule
from springwell.shapes import expand, inner

# Standard deviations of a distance's root mean square.
FARTHEST = 4.0


class Conditional:
    """y -> log p(y_t | x_{t+1}) + const (Eq. 4), for chains at fixed levels. It is a :class:`springwell.samplers.Target`.

    Args:
        energy: f(y, t).
        schedule: The noise levels.
        t: Levels ``[N]``.
        x_next: x_{t+1} ``[N, ...]``.

    Examples:
        >>> schedule = sw.NoiseSchedule.from_sigmas([0.5, 0.9])
        >>> well = lambda y, t: -y.square().sum(-1) / 2  # standard normal
        >>> conditional = sw.Conditional(well, schedule, torch.tensor([0]), torch.tensor([[1.0, 0.0]]))
        >>> conditional(torch.zeros(1, 2))  # no well here, and a spring of width 1/2 that is stretched by 1
        tensor([-2.])
    """

    def __init__(self, energy: EnergyFunction, schedule: NoiseSchedule, t: Tensor, x_next: Tensor):
        self.energy, self.schedule, self.level = energy, schedule, t
        self.f = at_level(energy, t)
        self._hold(x_next)

    def _hold(self, x_next: Tensor) -> None:
        self.x_next = x_next
        self.precision = expand(self.schedule.spring_precision[self.level], x_next).expand_as(x_next).contiguous()

    def held_to(self, x_next: Tensor) -> Conditional:
        """The same wells on springs that are held to another x_{t+1}."""
        other = copy.copy(self)
        other._hold(x_next)
        return other

    @property
    def sigma(self) -> Tensor:
        """sigma_{t+1}, in a shape that broadcasts against y."""
        return expand(self.schedule.sigma[self.level + 1], self.x_next)

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

    @torch.no_grad()
    def proposals(self, y: Tensor, eps: Tensor) -> tuple[Tensor, Tensor]:
        """Candidates ``[J + 1, N, ...]`` for a jump and their log-weights ``[J + 1, N]``; see :mod:`springwell.samplers.jumps`.

        The first candidate is y; the others come from the spring. A level without spring keeps y.

        Args:
            y: Positions ``[N, ...]``.
            eps: Standard normals ``[J, N, ...]``.
        """
        candidates = torch.cat([y[None], self.x_next + self.sigma * eps])
        num = len(candidates)
        log_weight = at_level(self.energy, self.level.repeat(num))(candidates.flatten(0, 1)).view(num, -1)
        log_weight[1:].masked_fill_(~self.schedule.spring[self.level], -torch.inf)
        return candidates, log_weight

    def ancestral(self, eps: Tensor) -> Tensor:
        r"""A Gaussian guess of y_t given x_{t+1} from the score of the noisier level, at noise eps.

            y = x_{t+1} + sigma_{t+1}^2 grad log p(x_{t+1}) + sqrt(s) sigma_{t+1} eps,        s = schedule.posterior_share

        The mean is E[y_t | x_{t+1}] (Tweedie), exactly, if the energy of level t + 1 is the log-density of x_{t+1}; x_T is
        standard normal. It suits energies that are log-densities; those of recovery likelihood with K = 0 have learned
        :meth:`normal_approximation` instead, whose drift is that of level t.
        """
        schedule, x_next = self.schedule, self.x_next
        above = (self.level + 1).clamp(max=schedule.num_levels - 1)
        scale = expand(schedule.scale[above], x_next)
        score = scale * gradient(at_level(self.energy, above), scale * x_next)
        score = torch.where(expand(self.level + 1 == schedule.num_levels, x_next), -x_next, score)
        share = expand(schedule.posterior_share[self.level], x_next)
        return x_next + self.sigma**2 * score + share.sqrt() * self.sigma * eps

    def normal_approximation(self, eps: Tensor, damped: bool = False, cut: bool = False) -> Tensor:
        r"""A Gaussian guess of y_t given x_{t+1}, at noise eps.

            y = x_{t+1} + s sigma_{t+1}^2 grad f(x_{t+1}, t) + sqrt(s) sigma_{t+1} eps

        s = 1 is the conditional for small sigma (Sec. 3.3). ``damped`` takes s = schedule.posterior_share, with which the guess
        is exact for a single data point at any sigma: the start for chains on wide hops, where s = 1 overshoots. Without chains
        after it (K = 0) it is biased for broad data: training rests where the slope of f is (1 + s) / 2s times the true one,
        1.09 at T = 72 and 1.8 at T = 12 levels of log-SNR 7 to -5.

        f is little known at x_{t+1}, which has more noise than y_t, and may be steep there; but |x_{t+1} - y_t|^2 is D sigma^2
        up to a share of sqrt(2 / D), whatever the data. ``cut`` limits the damped drift's root mean square to sqrt(1 - s)
        sigma, plus four standard deviations. Chains would not come back from farther off, and training, which lowers f where
        chains are, would make f steeper yet.
        """
        grad, sigma, x_next = gradient(self.f, self.x_next), self.sigma, self.x_next
        if not damped:
            return x_next + sigma**2 * grad + sigma * eps
        share = expand(self.schedule.posterior_share[self.level], x_next)
        drift = share * sigma**2 * grad
        if cut:
            size = expand(drift.flatten(1).square().mean(-1).sqrt(), drift)
            longest = (1 + FARTHEST / (2 * drift[0].numel()) ** 0.5) * (1 - share).sqrt() * sigma
            drift = (longest / size).clamp(max=1) * drift
        return x_next + drift + share.sqrt() * sigma * eps

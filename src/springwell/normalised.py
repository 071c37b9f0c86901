r"""The objective ``normalised``: f(y, sigma) becomes log p_sigma(y) itself, constant and all.

For y_i = x_i + sigma_i eps_i the density p of y has derivatives that are means over what cannot be seen,

    space:  sigma_i d log p / d y_i          = E[ -eps_i      | y ]
    noise:  d log p / d log sigma_i          = E[ eps_i^2 - 1 | y ]

so that least squares finds them. Both come from one backward pass of f. With D coordinates and all sigma_i = sigma,

    space  = |sigma grad_y f + eps|^2 / D
    noise  = sum_i (d f / d log sigma_i - eps_i^2 + 1)^2 / (2 D)
    total  = (d f / d log sigma - |eps|^2 + D)^2 / (2 D),               d f / d log sigma = sum_i d f / d log sigma_i
    loss   = space + w_noise noise + w_total total

``noise`` and ``space`` are sums of D terms of order 1 and balance each other in every dimension. ``total`` alone (Guth et al.)
would do, but it is a single number with a standard deviation of up to (2 D)^(1/2), and its gradient is D times as large as
that of ``space``. It remains useful with a small weight: it sees errors that are equal in all coordinates, which ``noise``
sees D times less.

The target eps_i^2 - 1 is noisy. With u = sigma grad f, without a gradient, and a limit c,

    eps_i^2 - 1 + 2 clip(u_i, -c, c) (eps_i + u_i)

has the same mean at the truth, where u_i = E[-eps_i | y], but not the part of the variance that comes from u_i itself: for
c = infinity it is u_i^2 - 1 + (eps_i + u_i)^2. The limit is to keep a wrong u from feeding itself: c = 1 was enough on 8 x 8
digits and not on MNIST, where training diverged. c = 0 is the plain target.

f is now right up to one constant for all y and all sigma; what f is for sigma -> infinity gives it
(:mod:`springwell.energy.residual`).

The classifier between noise levels needs no derivative along the noise. sigma and sigma' are drawn from the same law, y comes
with sigma, and a logistic regression with logit f(y, sigma) - f(y, sigma') has to say which of the two y came with:

    classifier = softplus(f(y, sigma') - f(y, sigma))

Of an energy that knows classes, f(y, sigma | c), every sample has its label c; a share of them, drawn anew at every step, is
given none, so that one network learns the density of every class and that of all data (label dropout).

Recovery likelihood (:class:`springwell.objectives.Recovery`) can be added, on the levels that the noise is drawn from: its
chains lower f wherever they go and no data are.

References:
    Guth, Kadkhodaie, Simoncelli, "Learning normalized image densities via dual score matching", 2025.
    Gutmann, Hyvarinen, "Noise-contrastive estimation", AISTATS 2010.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from springwell.energy.base import EnergyFunction
from springwell.energy.residual import LevelEnergy
from springwell.errors import UserError
from springwell.noise import Noise, as_noise
from springwell.objectives import Outcome, Recovery, random_levels
from springwell.schedule import NoiseSchedule
from springwell.shapes import expand

NoiseEnergy = Callable[[Tensor, Tensor], Tensor]
# What training reports of every level, and what it reports of the chains of recovery likelihood.
SCORES, CHAINS = ("score_error", "noise_error", "excess", "inner", "square"), ("displacement", "acceptance")
# Share of the running mean of a level's error that one sample leaves.
MEMORY = 0.99
# Half the distance of float32 numbers around 1, and the change of log p by it, in nats, that is too much.
ROUNDING, MOST_ROUNDING = 2**-24, 0.1


class Derivatives(NamedTuple):
    """f and its derivatives at y.

    Attributes:
        f: ``[N]``.
        space: ``[N, ...]``: sigma grad_y f.
        noise: ``[N, ...]``: d f / d log sigma_i.
    """

    f: Tensor
    space: Tensor
    noise: Tensor


class Losses(NamedTuple):
    """Losses of every sample ``[N]``, and what diagnostics need.

    Attributes:
        space: Error of the score; its least value is the share of eps that y does not tell.
        noise: Error of the derivatives along the noise of each coordinate.
        total: Error of the derivative along the noise of all coordinates.
        excess: d f / d log sigma less its target, whose mean is 0 at the truth.
        inner: -<eps, sigma grad f>; its mean over that of ``square`` is the calibration c, 1 at the truth.
        square: |sigma grad f|^2.
    """

    space: Tensor
    noise: Tensor
    total: Tensor
    excess: Tensor
    inner: Tensor
    square: Tensor


def derivatives(energy: NoiseEnergy, y: Tensor, sigma: Tensor, create_graph: bool = False) -> Derivatives:
    """Both derivatives from one backward pass.

    Args:
        energy: f(y, sigma), sigma of the shape of y.
        y: ``[N, ...]``.
        sigma: ``[N]``.
        create_graph: Whether the result is to be differentiated once more, as training does.
    """
    with torch.enable_grad():
        y = y.detach().requires_grad_()
        log_sigma = expand(sigma.detach().log(), y).expand_as(y).contiguous().requires_grad_()
        f = energy(y, log_sigma.exp())
        space, noise = torch.autograd.grad(f.sum(), (y, log_sigma), create_graph=create_graph)
    return Derivatives(f, expand(sigma, y) * space, noise)


def noise_target(eps: Tensor, u: Tensor, limit: float = 0.0) -> Tensor:
    """What d f / d log sigma_i is to be on average, of the shape of eps: see the head of this module.

    Args:
        eps: The noise.
        u: sigma grad f, of the same shape.
        limit: c.
    """
    target = eps.square() - 1
    if limit:
        u = u.detach()
        target = target + 2 * u.clamp(-limit, limit) * (eps + u)
    return target


def normalised_losses(energy: NoiseEnergy, x: Tensor, sigma: Tensor, eps: Tensor, limit: float = 0.0) -> Losses:
    """The losses of data x ``[N, ...]`` with noise sigma ``[N]`` times eps ``[N, ...]``; ``limit`` is that of the target."""
    found = derivatives(energy, x + expand(sigma, x) * eps, sigma, create_graph=True)
    dim, e, u = x[0].numel(), eps.flatten(1), found.space.flatten(1)
    error = found.noise.flatten(1) - noise_target(e, u, limit)
    excess = error.sum(-1)
    noise = error.square().sum(-1) / (2 * dim)
    inner, square = -(e * u).sum(-1), u.square().sum(-1)
    return Losses((u + e).square().sum(-1) / dim, noise, excess.square() / (2 * dim), excess, inner.detach(), square.detach())


def classifier_loss(energy: NoiseEnergy, y: Tensor, sigma: Tensor, other: Tensor) -> Tensor:
    """Which of two noises y ``[N, ...]`` came with: ``[N]``. ``sigma`` is the true one, both are drawn from one law."""
    return F.softplus(energy(y, other) - energy(y, sigma))


class Weights(NamedTuple):
    """Weights of the terms, beside the score's 1.

    Attributes:
        noise: Of the derivatives along the noise of every coordinate.
        total: Of their sum.
        classifier: Of the classifier between noise levels.
        recovery: Of recovery likelihood.
        balance: A level's loss is weighed by (its mean error)^-balance: 0 leaves the losses as they are, 1 makes every level
            count alike.
        limit: Of the control variate in the target along the noise; 0 for the plain target.
    """

    noise: float = 1.0
    total: float = 0.01
    classifier: float = 0.0
    recovery: float = 0.0
    balance: float = 0.5
    limit: float = 0.0


class Focus(NamedTuple):
    """Where the noise is drawn: a ``share`` of the batch log-normal around ``sigma``, the rest evenly over the levels."""

    share: float = 0.0
    sigma: float = 0.3
    width: float = 1.0


@dataclass
class Normalised:
    """Both derivatives of log p, in space and along the noise; see the head of this module.

    Attributes:
        energy: A LevelEnergy: f(y, t) that knows its noise as a continuous variable.
        schedule: The noise levels. Noise is drawn between them, too.
        weights: Of the terms.
        focus: Where most noise is drawn.
        recovery: The objective that ``weights.recovery`` adds, with the sampler of its chains.
        differentiated: The same energy as the loss differentiates it: under data parallelism, its wrapper.
        label_dropout: Share of samples whose label is withheld.
    """

    energy: Any
    schedule: NoiseSchedule
    weights: Weights = field(default_factory=Weights)
    focus: Focus = field(default_factory=Focus)
    recovery: Recovery | None = None
    differentiated: EnergyFunction | None = None
    label_dropout: float = 0.1

    def __post_init__(self) -> None:
        if not isinstance(self.energy, LevelEnergy):
            kind = type(self.energy).__name__
            raise UserError(f"energy: is a {kind}; the normalised objective needs a LevelEnergy, which knows its noise")
        if float(self.schedule.sigma_cum[0]) == 0:
            raise UserError("schedule: has no initial noise, so its data have no density at level 0; set initial_noise")
        sigma, dim = float(self.energy.sigma[0]), math.prod(self.energy.energy.event_shape)
        if (error := dim**0.5 * ROUNDING / sigma) > MOST_ROUNDING:
            least = f"set initial_noise to {dim**0.5 * ROUNDING / MOST_ROUNDING:.2g} or more"
            what = f"float32 rounds data of {dim} numbers so that log p changes by {error:.2g} nats"
            raise UserError(f"schedule: starts at the noise {sigma:.2g}, at which {what}; {least}")
        if self.weights.recovery and self.recovery is None:
            raise UserError(f"weights: recovery={self.weights.recovery:g}, but no recovery objective is given")

    @property
    def names(self) -> tuple[str, ...]:
        """The statistics, in their order; chains have theirs."""
        return (*SCORES, *CHAINS) if self.weights.recovery else SCORES

    def __call__(self, x: Tensor, noise: Noise | Generator, t: Tensor | None = None, label: Tensor | None = None) -> Outcome:
        noise = as_noise(noise, x)
        num_levels = self.schedule.num_levels
        t = random_levels(num_levels, noise) if t is None else t
        sigma, level = self.draw_noise(t, noise.uniform(), x.dtype)
        f: Any = self.differentiated or self.energy
        if label is not None:
            f = partial(f, label=torch.where(noise.uniform() < self.label_dropout, -1, label))
        if self.energy.dropout:
            f = partial(f, dropout=noise)
        losses = normalised_losses(f, x, sigma, eps := noise.normal(*x.shape[1:]), self.weights.limit)
        error = losses.space + self.weights.noise * losses.noise + self.weights.total * losses.total
        loss = self._balance(error, level) * error
        if self.weights.classifier:
            other, _ = self.draw_noise(random_levels(num_levels, noise), noise.uniform(), x.dtype)
            y = x + expand(sigma, x) * eps
            loss = loss + self.weights.classifier * classifier_loss(f, y, sigma, other)
        values = (losses.space, losses.noise, losses.excess, losses.inner, losses.square)
        statistics = {name: value.detach() for name, value in zip(SCORES, values, strict=True)}
        if self.weights.recovery and self.recovery is not None:
            recovered = self.recovery(x, noise, level)
            loss = loss + self.weights.recovery * recovered.loss
            statistics |= {name: recovered.statistics[name] for name in CHAINS}
        return Outcome(loss, {"level": level, **statistics})

    def draw_noise(self, t: Tensor, u: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """sigma ``[N]`` at the position (t + u) / T of its law, and the level ``[N]`` below it."""
        num_levels = self.schedule.num_levels
        log_sigma = self.energy.sigma.log()
        place = (t + u.double()) / num_levels
        if self.focus.share:
            place = _warped(place, *self._law)
        level = (place * num_levels).long().clamp(max=num_levels - 1)
        drawn = torch.lerp(log_sigma[level], log_sigma[level + 1], place * num_levels - level)
        return drawn.exp().to(dtype), level

    @cached_property
    def _law(self) -> tuple[Tensor, Tensor]:
        """Positions along the levels, and the distribution function of the mixture that the focus asks for at them."""
        log_sigma, focus = self.energy.sigma.log(), self.focus
        grid = torch.linspace(0, 1, 2001, dtype=torch.float64, device=log_sigma.device)
        num_levels = len(log_sigma) - 1
        index = (grid * num_levels).long().clamp(max=num_levels - 1)
        at = torch.lerp(log_sigma[index], log_sigma[index + 1], grid * num_levels - index)
        bell = torch.exp(-0.5 * ((at - math.log(focus.sigma)) / focus.width) ** 2)
        cumulative = ((1 - focus.share) + focus.share * bell / bell.mean()).cumsum(0)
        return grid, (cumulative - cumulative[0]) / (cumulative[-1] - cumulative[0])

    @torch.no_grad()
    def _balance(self, error: Tensor, level: Tensor) -> Tensor:
        """Weights ``[N]``, after the running mean of every level has taken note of the errors."""
        if not self.weights.balance:
            return torch.ones_like(error)
        mean = self.energy.level_error
        count = torch.zeros_like(mean).index_add_(0, level, torch.ones_like(error))
        total = torch.zeros_like(mean).index_add_(0, level, error.detach())
        # A level with many samples in the batch moves further than one with a single sample.
        mean.lerp_(total / count.clamp(min=1), torch.where(count > 0, 1 - MEMORY**count, 0.0))
        return mean.clamp(min=1e-6)[level] ** -self.weights.balance


def _warped(place: Tensor, grid: Tensor, cumulative: Tensor) -> Tensor:
    """Positions in [0, 1) along the levels, from uniform ones, by the inverse of a distribution function on a grid."""
    right = torch.searchsorted(cumulative, place).clamp(1, len(grid) - 1)
    left = right - 1
    share = (place - cumulative[left]) / (cumulative[right] - cumulative[left]).clamp(min=1e-12)
    return torch.lerp(grid[left], grid[right], share.clamp(0, 1)).clamp(max=1 - 1e-9)

r"""Step sizes that follow their acceptance, and masses that follow the target's variance.

    log delta_t <- log delta_t + rate (acceptance_t - target)                              (Robbins and Monro)

for every level t that had chains in this batch: what training does, with a small rate, and what the paper's rule takes here,
with rate 1. Thousands of chains make an acceptance a precise number. That of MALA in high dimensions, 2 Phi(-c delta^3), falls
by at most 1.5 per unit of log delta, so that a step is a contraction. For few chains there is dual averaging,

    Hbar <- (1 - 1 / (m + m_0)) Hbar + (target - acceptance) / (m + m_0)
    log delta = mu - sqrt(m) / gamma Hbar,      log deltabar <- m^-kappa log delta + (1 - m^-kappa) log deltabar

with m the number of updates, which freezes at the average deltabar (Hoffman and Gelman, Eq. 6). Chains come in groups, for
instance one per level, and a group has one step size.

The step sizes belong to the run: they are saved with it, and frozen before anything is measured, because a kernel that goes on
adapting does not leave its target invariant.

References:
    Hoffman, Gelman, "The No-U-Turn sampler", JMLR 2014, Sec. 3.2.
    Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from springwell.conditional import LogDensity
from springwell.errors import UserError
from springwell.noise import Noise
from springwell.samplers.base import Kernel, begin
from springwell.samplers.checks import check_end
from springwell.schedule import expand


def adapt_step_size(step_size: Tensor, acceptance: Tensor, count: Tensor, target: float, rate: float = 0.05) -> Tensor:
    """One update of the step sizes of all levels.

    Args:
        step_size: ``[T]``.
        acceptance: ``[T]``: sum of the mean acceptances of the chains of each level.
        count: ``[T]``: number of chains of each level.
        target: The acceptance to settle at.
        rate: Largest relative change of an update.
    """
    error = acceptance / count.clamp(min=1) - target
    return step_size * (rate * error * (count > 0)).exp()


class DualAveraging(NamedTuple):
    """Dual averaging of one step size per group of chains. All fields are ``[G]``, float64.

    Attributes:
        log_step: log delta, to be used next.
        log_average: log deltabar, to be frozen.
        error: Hbar.
        mu: Where log delta is drawn to, log(reach delta_0).
        num_updates: m; for a group without chains it stands still.
    """

    log_step: Tensor
    log_average: Tensor
    error: Tensor
    mu: Tensor
    num_updates: Tensor

    @classmethod
    def start(cls, step_size: Tensor, reach: float = 10.0) -> DualAveraging:
        """Nothing yet. A reach above 1 tries large steps first, which cost less; 1 stays near a good guess."""
        log_step = step_size.double().log()
        zero = torch.zeros_like(log_step)
        return cls(log_step, log_step, zero, log_step + math.log(reach), zero)

    def update(
        self,
        acceptance: Tensor,
        target: float,
        present: Tensor | None = None,
        gamma: float = 0.05,
        m_0: float = 10.0,
        kappa: float = 0.75,
    ) -> DualAveraging:
        """The state after one more step.

        Args:
            acceptance: ``[G]``: mean acceptance of the chains of each group.
            target: The acceptance to settle at.
            present: ``[G]``: which groups had chains. None for all.
            gamma: How strongly delta is drawn to mu.
            m_0: How much the first updates are held back.
            kappa: How fast deltabar forgets.
        """
        m = self.num_updates + 1
        error = torch.lerp(self.error, target - acceptance.double(), 1 / (m + m_0))
        log_step = self.mu - m.sqrt() / gamma * error
        new = DualAveraging(log_step, torch.lerp(self.log_average, log_step, m**-kappa), error, self.mu, m)
        if present is None:
            return new
        return DualAveraging(*[torch.where(present, a, b) for a, b in zip(new, self, strict=True)])

    @property
    def step_size(self) -> Tensor:
        """delta ``[G]``, for the next step of adaptation."""
        return self.log_step.exp()

    @property
    def frozen(self) -> Tensor:
        """deltabar ``[G]``, for everything after adaptation."""
        return self.log_average.exp()


def group_means(values: Tensor, group: Tensor, num_groups: int) -> Tensor:
    """The mean ``[G]`` of the values ``[N]`` of every group, float64; nan for a group without chains."""
    total = torch.zeros(num_groups, dtype=torch.float64, device=values.device).index_add_(0, group, values.double())
    return total / torch.bincount(group, minlength=num_groups)


class Tuned(NamedTuple):
    """Step sizes to be frozen.

    Attributes:
        step_size: ``[G]``.
        acceptance: ``[G]``: what the pilot's chains had with them, after adaptation.
        y: Where the pilot's chains ended ``[N, ...]``.
        num_steps: Steps that every chain has made.
    """

    step_size: Tensor
    acceptance: Tensor
    y: Tensor
    num_steps: int


def tune_step_size(
    kernel: Kernel,
    logdensity: LogDensity,
    y: Tensor,
    step_size: Tensor,
    noise: Noise,
    band: tuple[float, float] = (0.6, 0.9),
    num_steps: int = 100,
    group: Tensor | None = None,
    max_rounds: int = 5,
    levels: Sequence[int] | None = None,
    dual_averaging: bool = False,
) -> Tuned:
    """Finds the step size at which the mean acceptance of a pilot of chains lies in a band: the paper's rule per level.

    In every round of ``num_steps`` the first half adapts to the middle of the band, and the second half measures the acceptance
    at the last step size. Rounds end when every group is inside the band. Groups that never get there are named in a warning.
    The paper has 1000 chains, 100 steps and [0.6, 0.9].

    Args:
        kernel: A kernel with a Metropolis test.
        logdensity: y -> ``[N]``.
        y: Where the pilot's chains start ``[N, ...]``.
        step_size: First guesses ``[G]``.
        noise: For N chains.
        band: Lowest and highest acceptance.
        num_steps: Steps of a round.
        group: The group of every chain ``[N]``, for instance its level. None: all in one.
        max_rounds: When to give up.
        levels: The level of every group, to be named in errors and warnings. Default: the number of the group.
        dual_averaging: Adapt by dual averaging, and freeze at its average: for few chains per group, whose acceptance is noisy.
    """
    low, high = band
    if not 0 < low < high < 1:
        raise UserError(f"band ({low:g}, {high:g}): needs 0 < low < high < 1")
    if num_steps < 2 or max_rounds < 1:
        raise UserError(f"num_steps {num_steps}, max_rounds {max_rounds}: need at least 2 steps and 1 round")
    step_size = torch.atleast_1d(step_size)
    num_groups = len(step_size)
    names = list(range(num_groups)) if levels is None else list(levels)
    grouped = group is not None
    group = torch.zeros(len(y), dtype=torch.long, device=y.device) if group is None else group
    if group.shape != y.shape[:1] or not bool(((group >= 0) & (group < num_groups)).all()):
        raise UserError(f"group: needs [{len(y)}] numbers in 0 ... {num_groups - 1}, one per chain")
    level = torch.tensor(names, device=y.device)[group] if grouped else None
    state, logdensity, _ = begin(kernel, y, logdensity, step_size[group], True, level)

    delta, target = step_size.double(), 0.5 * (low + high)
    count, adapting, done = torch.bincount(group, minlength=num_groups), num_steps // 2, 0
    for _ in range(max_rounds):
        total, averaging = torch.zeros_like(delta), DualAveraging.start(delta, reach=1.0)
        for i in range(num_steps):
            state, info = kernel.step(state, logdensity, expand(delta[group], y), noise)
            if info.acceptance is None:
                raise UserError("tune_step_size: this kernel has no Metropolis test; use mala, hmc or nuts")
            accepted = torch.zeros_like(delta).index_add_(0, group, info.acceptance.double())
            if i < adapting and dual_averaging:
                averaging = averaging.update(accepted / count.clamp(min=1), target, count > 0)
                delta = averaging.step_size if i + 1 < adapting else averaging.frozen
            elif i < adapting:
                delta = adapt_step_size(delta, accepted, count, target, rate=1.0)
            else:
                total += accepted
        done += num_steps
        acceptance = total / (count * (num_steps - adapting))
        outside = (count > 0) & ~((acceptance >= low) & (acceptance <= high))
        if not bool(outside.any()):
            break
    check_end(state.y, done, level)
    for t in outside.nonzero().flatten().tolist():
        where = f"level {names[t]}: " if grouped else ""
        found = f"acceptance {float(acceptance[t]):.3g} at step size {float(delta[t]):.3g} after {done} steps"
        advice = "start the chains nearer to the target, or give another first step size"
        warnings.warn(f"{where}{found}, outside [{low:g}, {high:g}]; {advice}", RuntimeWarning, stacklevel=2)
    return Tuned(delta.to(step_size.dtype), acceptance, state.y, done)


class Welford(NamedTuple):
    """Running mean and variance of every coordinate, over chains and steps.

    Attributes:
        num_draws: How many.
        mean: Of the shape of one draw, float64.
        square: Sum of squared deviations from the mean.
    """

    num_draws: int
    mean: Tensor
    square: Tensor

    @classmethod
    def start(cls, y: Tensor) -> Welford:
        """Nothing yet, for draws shaped like those of y ``[N, ...]``."""
        zero = torch.zeros_like(y[0], dtype=torch.float64)
        return cls(0, zero, zero)

    def update(self, y: Tensor) -> Welford:
        """The state after the draws of N chains ``[N, ...]``."""
        y, n = y.double(), len(y)
        count = self.num_draws + n
        mean = y.mean(0)
        shift = mean - self.mean
        square = self.square + (y - mean).square().sum(0) + shift.square() * (self.num_draws * n / count)
        return Welford(count, self.mean + shift * (n / count), square)

    @property
    def variance(self) -> Tensor:
        """The unbiased estimate."""
        return self.square / (self.num_draws - 1)

    @property
    def inverse_mass(self) -> Tensor:
        """The variance, drawn a little towards 1e-3 as long as there are few draws, to be the diagonal of M^{-1}."""
        return (self.num_draws * self.variance + 5 * 1e-3) / (self.num_draws + 5)


def interpolate(x: Tensor, xs: Tensor, ys: Tensor) -> Tensor:
    """Piecewise linear through (xs, ys), xs rising, and constant beyond its ends."""
    right = torch.searchsorted(xs, x).clamp(max=len(xs) - 1)
    left = (right - 1).clamp(min=0)
    share = ((x - xs[left]) / (xs[right] - xs[left])).nan_to_num(0.0).clamp(0, 1)
    return ys[left] + (ys[right] - ys[left]) * share.to(ys)

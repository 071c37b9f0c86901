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
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from springwell.errors import UserError
from springwell.noise import Noise, as_noise
from springwell.samplers.base import Kernel, State, begin, check_kernel
from springwell.samplers.checks import as_step_size, check_end
from springwell.samplers.target import LogDensity, level_of
from springwell.shapes import expand

# How strongly delta is drawn to mu, how much the first updates are held back, and how fast deltabar forgets.
GAMMA, M_0, KAPPA = 0.05, 10.0, 0.75


def adapt_step_size(step_size: Tensor, acceptance: Tensor, count: Tensor, target: float, rate: float = 0.05) -> Tensor:
    """One update of the step sizes of all levels.

    Args:
        step_size: ``[T]``.
        acceptance: ``[T]``: sum of the mean acceptances of the chains of each level.
        count: ``[T]``: number of chains of each level.
        target: The acceptance to settle at.
        rate: Largest relative change of an update.

    Examples:
        >>> sw.samplers.adapt_step_size(torch.tensor([1.0, 1.0]), torch.tensor([9.0, 4.0]), torch.tensor([10, 10]), target=0.6)
        tensor([1.0151, 0.9900])
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

    Examples:
        >>> state = sw.samplers.DualAveraging.start(torch.tensor([0.1]), reach=1.0)
        >>> state.update(torch.tensor([0.99]), target=0.6).step_size > 0.1  # too many accepted, so a larger step
        tensor([True])
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
    ) -> DualAveraging:
        """The state after one more step.

        Args:
            acceptance: ``[G]``: mean acceptance of the chains of each group.
            target: The acceptance to settle at.
            present: ``[G]``: which groups had chains. None for all.
        """
        m = self.num_updates + 1
        error = torch.lerp(self.error, target - acceptance.double(), 1 / (m + M_0))
        log_step = self.mu - m.sqrt() / GAMMA * error
        new = DualAveraging(log_step, torch.lerp(self.log_average, log_step, m**-KAPPA), error, self.mu, m)
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


class Tuned(NamedTuple):
    """Step sizes to be frozen.

    Attributes:
        step_size: ``[G]``.
        acceptance: ``[G]``: what the pilot's chains had with them, after adaptation.
        y: Where the pilot's chains ended ``[N, ...]``.
        num_steps: Steps that every chain has made.

    Examples:
        >>> f, noise = lambda y: -y.square().sum(-1) / 2, sw.Noise(0, torch.arange(100))
        >>> tuned = sw.samplers.tune_step_size(sw.samplers.mala(), f, noise.normal(2), 0.5, noise)
        >>> tuned.step_size.shape, tuned.y.shape
        (torch.Size([1]), torch.Size([100, 2]))
    """

    step_size: Tensor
    acceptance: Tensor
    y: Tensor
    num_steps: int


class Tuning(NamedTuple):
    """How a pilot of chains looks for a step size; the paper has [0.6, 0.9] and 100 steps, by 1000 chains.

    Attributes:
        band: Lowest and highest acceptance.
        num_steps: Steps of a round. The first half adapts, the second half measures.
        max_rounds: When to give up.
        dual_averaging: Adapt by dual averaging, and freeze at its average: for few chains per group, whose acceptance is noisy.

    Examples:
        >>> f, noise = lambda y: -y.square().sum(-1) / 2, sw.Noise(0, torch.arange(100))
        >>> tuning = sw.samplers.Tuning(band=(0.7, 0.8), num_steps=200)
        >>> tuned = sw.samplers.tune_step_size(sw.samplers.mala(), f, noise.normal(2), 0.5, noise, tuning=tuning)
        >>> 0.7 <= float(tuned.acceptance) <= 0.8
        True
    """

    band: tuple[float, float] = (0.6, 0.9)
    num_steps: int = 100
    max_rounds: int = 5
    dual_averaging: bool = False

    def check(self) -> None:
        """Refuses values that cannot work."""
        low, high = self.band
        if not 0 < low < high < 1:
            raise UserError(f"band=({low:g}, {high:g}): needs 0 < low < high < 1")
        if self.num_steps < 2 or self.max_rounds < 1:
            raise UserError(f"num_steps={self.num_steps}, max_rounds={self.max_rounds}: need at least 2 steps and 1 round")


def tune_step_size(
    kernel: Kernel,
    logdensity: LogDensity,
    y: Tensor,
    step_size: Tensor | float,
    noise: Noise | Generator,
    group: Tensor | None = None,
    tuning: Tuning | None = None,
) -> Tuned:
    """Finds the step size at which the mean acceptance of a pilot of chains lies in a band: the paper's rule per level.

    In every round the first half of the steps adapts to the middle of the band, and the second half measures the acceptance at
    the last step size. Rounds end when every group is inside the band. Groups that never get there are named in a warning.

    Args:
        kernel: A kernel with a Metropolis test.
        logdensity: y -> ``[N]``.
        y: Where the pilot's chains start ``[N, ...]``.
        step_size: First guesses ``[G]``, or one number.
        noise: For N chains.
        group: The group of every chain ``[N]``, for instance its level. None: all in one.
        tuning: How; see :class:`Tuning`.

    Examples:
        >>> f, noise = lambda y: -y.square().sum(-1) / 2, sw.Noise(0, torch.arange(100))
        >>> tuned = sw.samplers.tune_step_size(sw.samplers.mala(), f, noise.normal(2), 0.5, noise)
        >>> 0.6 <= float(tuned.acceptance) <= 0.9
        True
    """
    tuning = tuning or Tuning()
    tuning.check()
    check_kernel(kernel, y, logdensity)
    if not kernel.tested:
        raise UserError("tune_step_size: this kernel has no Metropolis test; use mala, hmc or nuts")
    first = as_step_size(step_size, y.device).reshape(-1)
    num_groups = len(first)
    chains = torch.zeros(len(y), dtype=torch.long, device=y.device) if group is None else group
    if chains.shape != y.shape[:1] or not bool(((chains >= 0) & (chains < num_groups)).all()):
        raise UserError(f"group: needs [{len(y)}] numbers in 0 ... {num_groups - 1}, one per chain")
    state, _ = begin(kernel, y, logdensity, first[chains])
    pilot = _Pilot(kernel, logdensity, chains, torch.bincount(chains, minlength=num_groups), as_noise(noise, y))
    delta, done = first.double(), 0
    for _ in range(tuning.max_rounds):
        state, delta, acceptance = pilot.round(state, delta, tuning)
        done += tuning.num_steps
        outside = (pilot.sizes > 0) & ~((acceptance >= tuning.band[0]) & (acceptance <= tuning.band[1]))
        if not bool(outside.any()):
            break
    check_end(state.y, done, level_of(logdensity))
    for g in outside.nonzero().flatten().tolist():
        found = f"acceptance {float(acceptance[g]):.3g} at step size {float(delta[g]):.3g} after {done} steps"
        advice = "start the chains nearer to the target, or give another first step size"
        where = "" if group is None else f"{_name(logdensity, chains, g)}: "
        band = "[{:g}, {:g}]".format(*tuning.band)
        warnings.warn(f"{where}{found}, outside {band}; {advice}", RuntimeWarning, stacklevel=2)
    return Tuned(delta.to(first.dtype), acceptance, state.y, done)


def _name(logdensity: LogDensity, group: Tensor, number: int) -> str:
    """What a group is called: its level, if the target names levels."""
    level = level_of(logdensity)
    if level is None:
        return f"group {number}"
    return f"level {int(level if isinstance(level, int) else level[group == number][0])}"


class _Pilot(NamedTuple):
    """The chains of a pilot, in groups of these sizes."""

    kernel: Kernel
    logdensity: LogDensity
    group: Tensor
    sizes: Tensor
    noise: Noise

    def round(self, state: State, delta: Tensor, tuning: Tuning) -> tuple[State, Tensor, Tensor]:
        """One round: the chains' last state, the step sizes ``[G]``, and the acceptance ``[G]`` that was measured with them."""
        target, adapting = 0.5 * sum(tuning.band), tuning.num_steps // 2
        total, averaging = torch.zeros_like(delta), DualAveraging.start(delta, reach=1.0)
        for i in range(tuning.num_steps):
            state, info = self.kernel.step(state, self.logdensity, expand(delta[self.group], state.y), self.noise)
            assert info.acceptance is not None
            accepted = torch.zeros_like(delta).index_add_(0, self.group, info.acceptance.double())
            if i >= adapting:
                total += accepted
            elif tuning.dual_averaging:
                averaging = averaging.update(accepted / self.sizes.clamp(min=1), target, self.sizes > 0)
                delta = averaging.step_size if i + 1 < adapting else averaging.frozen
            else:
                delta = adapt_step_size(delta, accepted, self.sizes, target, rate=1.0)
        return state, delta, total / (self.sizes * (tuning.num_steps - adapting))


class Welford(NamedTuple):
    """Running mean and variance of every coordinate of draws ``[N, ...]``, over chains and steps.

    Attributes:
        num_draws: How many.
        mean: Of the shape of one draw, float64.
        square: Sum of squared deviations from the mean.

    Examples:
        >>> y = torch.randn(1000, 2, generator=torch.Generator().manual_seed(0))
        >>> seen = sw.samplers.Welford.start(y).update(y[:300]).update(y[300:])
        >>> torch.allclose(seen.variance, y.double().var(0))
        True
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

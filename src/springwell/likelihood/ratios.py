r"""The paper's estimator of the partition function (Gao et al. 2021, Sec. 4.3): ratios of neighbouring levels.

    log Z_0 = log Z_T + sum_t log mean_i exp( f(y_{t+1, i}, t) - f(y_{t+1, i}, t + 1) ),       t = T-1 ... 0

f(y, T) is the log-density of N(0, I), so Z_T = 1, and y_{T, i} are its draws. Both levels are densities on the same space, so
the ratio Z_t / Z_{t+1} = E exp(f(y, t) - f(y, t + 1)) over y of level t + 1 needs no change of coordinates, only overlap: with
the small hops of T1k a_{t+1} is near 1, and with those of wide ladders a few samples carry all the weight. y_{t, i} comes from
progressive sampling: the normal approximation of p(y_t | x_{t+1}), then HMC steps of 2 leapfrogs at the conditional, whose
step sizes a pilot tunes to an acceptance in [0.6, 0.9] and freezes.

Each log-mean is a stochastic *lower* bound of its ratio if the chains are faithful, so bits per dimension from their sum are
optimistic; if chains have not reached where a level has its mass, nothing here notices. :mod:`springwell.likelihood.bracket`
does.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from springwell.conditional import Conditional
from springwell.energy.base import EnergyFunction
from springwell.errors import UserError
from springwell.generate import descend
from springwell.level import LevelSampler
from springwell.likelihood.annealed import jackknife, log_mean, standard_normal
from springwell.noise import Noise, Stream
from springwell.samplers.adaptation import Tuning, interpolate, tune_step_size
from springwell.samplers.hmc import hmc
from springwell.schedule import NoiseSchedule, spread_levels

NUM_LEAPFROG = 2
_PILOT_LEVELS, _PILOT_CHAINS = 24, 8


class Ratios(NamedTuple):
    """log-ratios of every chain.

    Attributes:
        log_ratio: ``[T, N]``, float64: f(y_{t+1, i}, t) - f(y_{t+1, i}, t + 1), by t.
        acceptance: ``[T]``: of the chains that drew y_t.

    Examples:
        >>> found = sw.likelihood.Ratios(torch.zeros(4, 64, dtype=torch.float64), torch.ones(4))  # equal levels
        >>> found.estimate()
        (0.0, 0.0)
    """

    log_ratio: Tensor
    acceptance: Tensor

    def curve(self, sizes: list[int]) -> list[float]:
        """log Z_0 from the first n chains, for every n of ``sizes``."""
        return [float(log_mean(self.log_ratio[:, :n]).sum()) for n in sizes]

    def estimate(self, num_groups: int = 8) -> tuple[float, float]:
        """log Z_0 from all chains, and its standard error by the jackknife over groups of chains."""
        num = self.log_ratio.shape[1]
        if num < 2 * num_groups:
            raise UserError(f"chains {num}: needs at least {2 * num_groups} for {num_groups} groups")
        group = torch.arange(num, device=self.log_ratio.device) * num_groups // num
        without = torch.stack([log_mean(self.log_ratio[:, group != g]).sum() for g in range(num_groups)]).double()
        return float(log_mean(self.log_ratio).sum()), jackknife(without)


def tune_steps(energy: EnergyFunction, schedule: NoiseSchedule, event_shape: tuple[int, ...], seed: int = 0) -> Tensor:
    """Step sizes ``[T]`` of HMC at the conditionals: tuned at levels spread over the ladder, interpolated between them.

    Examples:
        >>> model = sw.load("checkerboard")
        >>> sw.likelihood.tune_steps(model.energy_function, model.schedule, model.event_shape).shape
        torch.Size([4])
    """
    num_levels = schedule.num_levels
    chosen = spread_levels(num_levels, _PILOT_LEVELS)
    index = torch.arange(_PILOT_CHAINS, device=schedule.device)
    noise = Noise(seed, index, Stream.RATIOS)
    starts: dict[int, tuple[Tensor, Tensor]] = {}

    def guess(t: Tensor, x_next: Tensor) -> tuple[Tensor, Tensor]:
        y, acceptance = LevelSampler(num_steps=0, start="denoised").draw(Conditional(energy, schedule, t, x_next), noise)
        starts[int(t[0])] = (x_next, y)
        return y, acceptance

    *_, (_, x, _) = descend(schedule, noise.normal(*event_shape), guess)
    t = torch.tensor([level for level in chosen for _ in index], device=x.device)
    x_next, y = (torch.cat([starts[level][i] for level in chosen]) for i in (0, 1))
    target = Conditional(energy, schedule, t, x_next)
    group = torch.arange(len(chosen), device=x.device).repeat_interleave(len(index))
    # In units of the spring, which is what limits the step on narrow hops.
    first = 0.5 * schedule.sigma[1:][chosen].to(x.dtype)
    pilot = Noise(seed, torch.arange(len(y), device=x.device), Stream.RATIOS + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        tuned = tune_step_size(hmc(NUM_LEAPFROG), target, y, first, pilot, group, Tuning(num_steps=20))
    # In few dimensions any step is accepted; more than a quarter of a period of the spring would turn back.
    share = (tuned.step_size / schedule.sigma[1:][chosen]).double().clamp(max=0.5 * math.pi / NUM_LEAPFROG).log()
    every = torch.arange(num_levels, device=x.device)
    return interpolate(every, torch.tensor(chosen, device=x.device), share).exp() * schedule.sigma[1:]


def level_ratios(
    energy: EnergyFunction,
    schedule: NoiseSchedule,
    event_shape: tuple[int, ...],
    noise: Noise,
    num_steps: int,
    step_size: Tensor,
    watch: Callable[[], None] = lambda: None,
) -> Ratios:
    """The log-ratios of one batch of chains.

    Args:
        energy: f(y, t).
        schedule: The noise levels, all of them with their spring.
        event_shape: Shape of one sample.
        noise: For N chains.
        num_steps: HMC steps after the normal approximation; 0 for none.
        step_size: ``[T]``.
        watch: Is called after every level.

    Examples:
        >>> schedule = sw.NoiseSchedule.log_snr(8, high=5, low=-5)
        >>> def energy(y, t):  # exact up to log 2 at every level, for data N(0, I)
        ...     return -y.square().sum(-1) / (2 * schedule.scale[t].float() ** 2) + math.log(2)
        >>> noise = sw.Noise(0, torch.arange(4096))
        >>> found = sw.likelihood.level_ratios(energy, schedule, (2,), noise, num_steps=2, step_size=0.5 * schedule.sigma[1:])
        >>> value, error = found.estimate()
        >>> abs(value - math.log(2 * 2 * math.pi * schedule.scale[0] ** 2)) < 0.2
        True
    """
    if not bool(schedule.spring.all()):
        raise UserError("ratios of levels: the normal approximation needs every spring; use `springwell likelihood`")
    if num_steps < 0:
        raise UserError(f"num_steps={num_steps}: must be 0 or more")
    # The paper's approximation, undamped, whatever the number of steps.
    guess, chains = LevelSampler(num_steps=0), LevelSampler(hmc(NUM_LEAPFROG), num_steps, step_size.float())
    x = noise.normal(*event_shape)
    y, here = x, standard_normal(x).double()
    rows: list[Tensor] = []

    def draw(t: Tensor, x_next: Tensor) -> tuple[Tensor, Tensor]:
        nonlocal y, here
        conditional = Conditional(energy, schedule, t, x_next)
        with torch.no_grad():
            rows.append(conditional.f(y).double() - here)
        y, acceptance = chains.run(conditional, guess.draw(conditional, noise)[0], noise)
        with torch.no_grad():
            here = conditional.f(y).double()
        watch()
        return y, acceptance

    accepted = [sample.acceptance.mean() for sample in descend(schedule, x, draw)][1:]
    return Ratios(torch.stack(rows[::-1]), torch.stack(accepted[::-1]))

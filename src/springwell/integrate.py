r"""Samples from few gradients: an exponential integrator of second order along some of the levels.

With lambda = log(abar / sigmabar), the noisy data x_t of a model whose scores are right follow

    x_s = (sigmabar_s / sigmabar_t) x_t + sigmabar_s int e^lambda D(x_lambda, lambda) dlambda          (probability flow)

where D(x_t) = E[x_data | x_t] = (x_t + sigmabar_t^2 grad log p_t(x_t)) / abar_t costs one gradient. The linear part is exact;
D is extrapolated linearly in lambda from the last two levels, whose distance is r times the present hop h:

    x_s = (sigmabar_s / sigmabar_t) x_t + abar_s (1 - e^-h) D',      D' = D_t + (D_t - D_before) / (2 r)

A hop may also add noise, as the reverse diffusion does, which corrects errors of earlier hops:

    x_s = (sigmabar_s / sigmabar_t) e^-h x_t + abar_s (1 - e^-2h) D' + sigmabar_s (1 - e^-2h)^(1/2) eps

Scores that are learned have errors at the noisiest levels, where an image takes its shape, and the flow carries them down to
x_0: on MNIST hops with noise have half the KID of the flow at equal cost. So they are the default. The flow (``stochastic`` is
False) needs fewer hops where the scores are exact, and its x_0 depends on x_T alone.

At x_T the data are Gaussian noise and D = abar_T x_T costs nothing. All other levels cost one gradient each.

Reference:
    Lu, Zhou, Bao, Chen, Li, Zhu, "DPM-Solver++: fast solver for guided sampling of diffusion probabilistic models", 2022.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from springwell.energy.base import EnergyFunction
from springwell.errors import UserError, whole_number
from springwell.generate import Sample, posterior_mean
from springwell.noise import Noise
from springwell.schedule import NoiseSchedule, spread_levels


@dataclass(frozen=True)
class Integrator:
    """Goes down the levels in hops of second order; takes the place of a LevelSampler for whole samples.

    Attributes:
        evaluations: Gradients per sample, of which the last denoises x_0. At most the number of levels.
        stochastic: Whether hops add noise; if not, samples follow the probability flow.

    Examples:
        >>> import springwell as sw
        >>> model = sw.load("mnist")
        >>> x = next(model.sample_batches(2, seed=0, sampler=sw.Integrator(6)))
        >>> x.shape
        torch.Size([2, 1, 28, 28])
    """

    evaluations: int = 18
    stochastic: bool = True

    def __post_init__(self) -> None:
        whole_number("evaluations", self.evaluations, 2)

    def description(self) -> dict[str, Any]:
        """What it is, for JSON."""
        return {"integrator": "second order", "evaluations": self.evaluations, "stochastic": self.stochastic}

    def levels(self, num_levels: int) -> list[int]:
        """The levels that are visited, from the noisiest down to 0, in equal steps."""
        if self.evaluations > num_levels:
            raise UserError(
                f"evaluations={self.evaluations}: more than the {num_levels} levels of the model; use at most those"
            )
        return spread_levels(num_levels, self.evaluations)[::-1]

    def trajectory(
        self, energy: EnergyFunction, schedule: NoiseSchedule, event_shape: tuple[int, ...], noise: Noise
    ) -> Iterator[Sample]:
        """Yields x_T and the levels that are visited down to x_0, one sample per element of ``noise``.

        Args:
            energy: f(y, t).
            schedule: The noise levels.
            event_shape: Shape of one sample.
            noise: The samples' randomness.
        """
        a, sigma = schedule.a_cum.tolist(), schedule.sigma_cum.tolist()
        if sigma[0] == 0:
            raise UserError("evaluations: needs a schedule with initial noise, and this model's schedule has none")
        t, x = schedule.num_levels, noise.normal(*event_shape)
        one = torch.ones(len(x), device=x.device)
        yield Sample(t, x, one)
        mean = a[t] * x
        before: tuple[Tensor, float] | None = None
        for s in self.levels(schedule.num_levels):
            h = math.log(a[s] / sigma[s]) - math.log(a[t] / sigma[t])
            target = mean if before is None else mean + (mean - before[0]) * (h / (2 * before[1]))
            if self.stochastic:
                kept = math.exp(-2 * h)
                x = (sigma[s] / sigma[t] * math.exp(-h)) * x + (a[s] * (1 - kept)) * target
                x = x + (sigma[s] * math.sqrt(1 - kept)) * noise.normal(*event_shape)
            else:
                x = (sigma[s] / sigma[t]) * x + (a[s] * -math.expm1(-h)) * target
            yield Sample(s, x, one)
            if s > 0:
                before, mean, t = (mean, h), posterior_mean(energy, schedule, x, s), s

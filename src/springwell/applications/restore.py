r"""Restoration: an image given a measurement of it, y_obs = A(x) + sigma_n eps, by sampling the posterior.

    log p(x | y_obs) = log p(x) - |y_obs - A(x)|^2 / (2 sigma_n^2) + const

The measurement is part of the energy of every level. What it says of x_t is p(y_obs | x_t), an integral over x given x_t, for
which the Gaussian guess is taken that is exact for data N(mu, s^2 I) and a linear A with A A^T = c I:

    x | x_t  ~  N(xhat_t, r_t^2 I),     xhat_t = mu + abar_t s^2 (x_t - abar_t mu) / (abar_t^2 s^2 + sigmabar_t^2),
                                        r_t^2  = s^2 sigmabar_t^2 / (abar_t^2 s^2 + sigmabar_t^2)
    f(y, t | y_obs) = f(y, t) - |y_obs - A(xhat_t(y / scale_t))|^2 / (2 (sigma_n^2 + c r_t^2)).

For other operators c is the largest eigenvalue of A^T A, of a nonlinear one the largest of J^T J at 0 and at some draws of
N(0, I), J being its derivative: what x_t leaves open is then overrated rather than underrated, and the
measurement is never much stiffer than the spring. In general this is a guide, which at noisy levels only decides where the
chains of the next level start. At level 0, r_0 is the initial noise (0.03 for the ladders of images), and without initial noise
xhat_0 = x_0 and r_0 = 0: there the energy is the log-posterior itself, for any operator and any data. Sweeps
(:mod:`springwell.generate`) leave exp f(y, t | y_obs) invariant at every level, and so the posterior of the model at the last
one. Without sweeps, the law of x_0 is as good as the guide was.

Step sizes are the model's, made smaller where the measurement is stiffer than the spring: by (1 + lambda sigma_{t+1}^2)^{-1/2},
lambda being the largest curvature that the measurement adds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from springwell.applications.batches import Draws, check_values, in_batches, repeated
from springwell.applications.operators import checked
from springwell.data.formats import first_line
from springwell.energy.base import EnergyFunction, at_level
from springwell.errors import UserError
from springwell.generate import Sample, progressive
from springwell.level import LevelSampler
from springwell.model import Model
from springwell.noise import Noise, Stream
from springwell.schedule import NoiseSchedule
from springwell.shapes import expand

_PROBES = 8
_POWER_ITERATIONS = 30

Operator = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Measurement:
    """y_obs = A(x) + sigma_n eps.

    Attributes:
        operator: A: differentiable, ``[N, *event_shape]`` to ``[N, ...]``, each sample by itself.
        noise: sigma_n > 0.
        event_shape: Shape of one sample.
        device: Where to compute.
        name: What the operator is called.

    Examples:
        >>> from springwell.applications import Measurement
        >>> Measurement(lambda x: x[..., ::2], noise=0.1, event_shape=(1, 8, 8)).shape
        (1, 8, 4)
    """

    operator: Operator
    noise: float
    event_shape: tuple[int, ...]
    device: torch.device | str = "cpu"
    name: str = "operator"

    def __post_init__(self) -> None:
        if not 0 < self.noise < math.inf:
            what = "must be positive and finite; a small value for a precise one"
            raise UserError(f"noise {self.noise:g} of the measurement: {what}")

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Shape of an observation."""
        return tuple(self.operator(torch.zeros(1, *self.event_shape, device=self.device)).shape[1:])

    @cached_property
    def curvature(self) -> float:
        """c: the largest eigenvalue of J^T J, J being the operator's derivative, at 0 and at normal draws."""
        try:
            largest = self._largest_eigenvalue()
        except RuntimeError as error:
            raise UserError(f"{self.name}: cannot be differentiated ({first_line(error)})") from None
        if not math.isfinite(largest):
            raise UserError(f"{self.name}: its derivative is not finite at 0 or at normal draws; make it so")
        return largest

    def _largest_eigenvalue(self) -> float:
        """By power iteration, at every point by itself: at 0 alone, |x| and x^2 would look flat."""
        noise, largest = Noise(0, torch.arange(_PROBES, device=self.device), Stream.PROBES), 0.0
        v, points = noise.normal(*self.event_shape), noise.normal(*self.event_shape)
        points[0] = 0
        with torch.enable_grad():
            points.requires_grad_()
            image = self.operator(points)
            u = torch.zeros_like(image, requires_grad=True)
            # J^T u is linear in u, and J v is the derivative of <J^T u, v> by u.
            (pulled,) = torch.autograd.grad(image, points, u, create_graph=True)
            for _ in range(_POWER_ITERATIONS):
                v = v / expand(v.flatten(1).norm(dim=1).clamp(min=1e-30), v)
                (j_v,) = torch.autograd.grad(pulled, u, v, retain_graph=True)
                largest = float(j_v.flatten(1).square().sum(-1).max())
                (v,) = torch.autograd.grad(image, points, j_v, retain_graph=True)
        return largest


class Posterior:
    """f(y, t | y_obs), an energy.

    Args:
        energy: f(y, t).
        schedule: The noise levels.
        measurement: A and sigma_n, in the model's coordinates.
        observation: y_obs ``[N, ...]``.
        mean: mu of the Gaussian guess.
        variance: s^2 of the Gaussian guess.

    Examples:
        >>> from springwell.applications import Measurement, Posterior
        >>> model = sw.load("checkerboard")
        >>> seen = Measurement(lambda x: x[:, :1], noise=0.1, event_shape=(2,))  # the first coordinate
        >>> f = Posterior(model.energy_function, model.schedule, seen, observation=torch.zeros(3, 1))
        >>> f(torch.zeros(3, 2), torch.tensor([0, 1, 2])).shape
        torch.Size([3])
    """

    def __init__(
        self,
        energy: EnergyFunction,
        schedule: NoiseSchedule,
        measurement: Measurement,
        observation: Tensor,
        mean: float = 0.0,
        variance: float = 1.0,
    ):
        self.energy, self.measurement, self.observation = energy, measurement, observation
        a, noise = schedule.a_cum[:-1], schedule.sigma_cum[:-1] ** 2
        total = a**2 * variance + noise
        # xhat = offset + slope y, and 1 / (sigma_n^2 + c r^2).
        slope = a * variance / (total * schedule.scale)
        offset = mean - schedule.scale * slope * a * mean
        self.precision = 1 / (measurement.noise**2 + measurement.curvature * variance * noise / total)
        self.slope, self.offset = slope, offset
        self.curvature = measurement.curvature * slope**2 * self.precision

    def __call__(self, y: Tensor, t: Tensor) -> Tensor:
        return self.at(t)(y)

    def at(self, t: Tensor) -> Callable[[Tensor], Tensor]:
        f, observation = at_level(self.energy, t), repeated(self.observation, len(t))

        def posterior(y: Tensor) -> Tensor:
            slope, offset = (expand(value[t], y) for value in (self.slope, self.offset))
            residual = (observation - self.measurement.operator(offset + slope * y)).flatten(1)
            return f(y) - 0.5 * self.precision[t].to(y.dtype) * residual.square().sum(-1)

        return posterior

    def sampler(self, sampler: LevelSampler, schedule: NoiseSchedule) -> LevelSampler:
        """The model's sampler with steps for this energy."""
        factor = (1 + self.curvature * schedule.sigma[1:] ** 2).rsqrt()
        step_size = sampler.steps(torch.arange(schedule.num_levels, device=schedule.device))
        return sampler.with_steps(step_size * factor.to(step_size))


class Restoration(NamedTuple):
    """Samples of the posterior and what they say.

    Attributes:
        samples: ``[B, num, ...]``.
        mean: ``[B, ...]``: the mean of the samples, an estimate of the posterior mean.
        std: ``[B, ...]``: their standard deviation, value by value; nan for a single sample.

    Examples:
        >>> from springwell.applications import Draws, restore
        >>> found = restore(sw.load("checkerboard"), torch.tensor([[0.4, 0.4]]), lambda x: x, 0.2, Draws(num=4))
        >>> found.samples.shape, found.std.shape
        (torch.Size([1, 4, 2]), torch.Size([1, 2]))
    """

    samples: Tensor
    mean: Tensor
    std: Tensor


@torch.inference_mode(False)
def restore(model: Model, observation: Tensor, operator: Operator, noise: float, draws: Draws | None = None) -> Restoration:
    """Samples of x given observations of it.

    Args:
        model: The model.
        observation: y_obs ``[B, ...]``.
        operator: A: differentiable, from ``[N, *event_shape]`` in the data's units, each sample by itself.
        noise: sigma_n, in the units of A(x).
        draws: How many samples, and how.

    Examples:
        >>> from springwell.applications import Draws, restore
        >>> y = torch.tensor([[0.4, 0.4]])
        >>> found = restore(sw.load("checkerboard"), y, operator=lambda x: x, noise=0.2, draws=Draws(num=4))
        >>> found.samples.shape, found.mean.shape
        (torch.Size([1, 4, 2]), torch.Size([1, 2]))
    """
    operator, draws = checked(operator), draws or Draws()
    measurement = Measurement(lambda u: operator(model.shift + model.scale * u), noise, model.event_shape, model.device)
    why = f": this operator makes {list(measurement.shape)} of {list(model.event_shape)}"
    check_values("observation", observation, measurement.shape, why)
    observation = observation.to(model.shift)
    plain = model.level_sampler(draws.num_steps)
    number = draws.numbered(len(observation), model.device)

    def run(i: Tensor, j: Tensor) -> Iterator[Sample]:
        posterior = Posterior(model.energy_function, model.schedule, measurement, observation[i])
        sampler, drawn = posterior.sampler(plain, model.schedule), model.noise(draws.seed, j, Stream.RESTORATION + number[i])
        return progressive(posterior, model.schedule, sampler, model.event_shape, drawn, draws.sweeps)

    samples = in_batches(model, run, len(observation), draws)
    return Restoration(samples, samples.mean(1), samples.std(1) if draws.num > 1 else torch.full_like(samples[:, 0], torch.nan))

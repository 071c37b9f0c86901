"""Models whose every level is known in closed form, for tests."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from springwell.data.toy import ToyData, log_density
from springwell.energy import ScaledEnergy
from springwell.level import LevelSampler
from springwell.model import Model
from springwell.schedule import NoiseSchedule


class GaussianEnergy:
    """Exact f(y, t) of data N(mean, variance I): y_t = scale_t x_t is Gaussian at every level."""

    def __init__(self, schedule: NoiseSchedule, mean: float = 0.0, variance: float = 1.0):
        self.mean = schedule.scale * schedule.a_cum[:-1] * mean
        self.variance = schedule.scale**2 * (schedule.a_cum[:-1] ** 2 * variance + schedule.sigma_cum[:-1] ** 2)

    def __call__(self, y: Tensor, t: Tensor) -> Tensor:
        mean, variance = (v[t].to(y.dtype)[:, None] for v in (self.mean, self.variance))
        return -((y.flatten(1) - mean).square() / (2 * variance)).sum(-1)


class MixtureEnergy:
    """Exact f(y, t) of one-dimensional data: a mixture of two Gaussians."""

    def __init__(self, schedule: NoiseSchedule, weight: float = 0.3, centre: float = 1.5, width: float = 0.2):
        a, self.scale = schedule.a_cum[:-1], schedule.scale
        self.centres = torch.stack([-centre * a * self.scale, centre * a * self.scale], -1)
        self.variance = self.scale**2 * (a**2 * width**2 + schedule.sigma_cum[:-1] ** 2)
        self.log_weights = torch.tensor([math.log(weight), math.log(1 - weight)])

    def __call__(self, y: Tensor, t: Tensor) -> Tensor:
        square = (y - self.centres[t].to(y.dtype)).square()
        return (self.log_weights.to(y.dtype) - square / (2 * self.variance[t].to(y.dtype)[:, None])).logsumexp(-1)


def with_pairs(schedule: NoiseSchedule, y_t: Tensor, x_next: Tensor) -> NoiseSchedule:
    """The schedule whose pairs are these, whatever the data."""
    other = replace(schedule)
    object.__setattr__(other, "pair", lambda x, t, noise: (y_t, x_next))
    return other


def within(estimate: float, expected: float, standard_error: float, number: float = 4.5) -> bool:
    return abs(estimate - expected) <= number * standard_error


def check_moments(x: Tensor, mean: float, variance: float, slack: float = 0.0) -> None:
    """Mean, variance and third moment of independent Gaussian draws, within 4.5 standard errors plus ``slack``."""
    x = x.double().flatten()
    n, s = len(x), math.sqrt(variance)
    assert within(float(x.mean()), mean, s / math.sqrt(n) + slack / 4.5)
    assert within(float((x - mean).square().mean()), variance, variance * math.sqrt(2 / n) + slack / 4.5)
    assert within(float((x - mean).pow(3).mean()), 0.0, s**3 * math.sqrt(15 / n) + slack / 4.5)


class GaussianNetwork(torch.nn.Module):
    """:class:`GaussianEnergy` as a network."""

    def __init__(self, schedule: NoiseSchedule):
        super().__init__()
        self.f = GaussianEnergy(schedule)

    def forward(self, y: Tensor, t: Tensor) -> Tensor:
        return self.f(y, t)


def gaussian_model(dim: int = 3, num_levels: int = 9) -> Model:
    """A model of data N(0, I) whose every level is exact."""
    schedule = NoiseSchedule.log_snr(num_levels, 4.0, -5.0)
    energy = ScaledEnergy(GaussianNetwork(schedule), schedule, "none")
    sampler = LevelSampler("mala", 40, (0.45 * schedule.sigma[1:]).float(), "denoised")
    return Model(energy, schedule, sampler, event_shape=(dim,))


class CorrelatedEnergy:
    """Exact f(y, t) of data N(mean, covariance), any covariance."""

    def __init__(self, schedule: NoiseSchedule, mean: Tensor, covariance: Tensor):
        a, scale, eye = schedule.a_cum[:-1], schedule.scale, torch.eye(len(mean), dtype=torch.float64)
        variance = scale**2 * schedule.sigma_cum[:-1] ** 2
        self.mean = (scale * a)[:, None] * mean
        self.precision = torch.linalg.inv((scale * a)[:, None, None] ** 2 * covariance + variance[:, None, None] * eye)

    def __call__(self, y: Tensor, t: Tensor) -> Tensor:
        z = y.flatten(1) - self.mean[t].to(y.dtype)
        return -0.5 * torch.einsum("ni,nij,nj->n", z, self.precision[t].to(y.dtype), z)


class ToyEnergy:
    """Exact f(y, t) of two-dimensional data; all chains of a batch are at one level."""

    def __init__(self, toy: ToyData, schedule: NoiseSchedule):
        self.toy, self.schedule = toy, schedule

    def __call__(self, y: Tensor, t: Tensor) -> Tensor:
        s, level = self.schedule, int(t[0])
        x = y / s.scale[level].to(y.dtype)
        return log_density(self.toy, x, float(s.a_cum[level]), float(s.sigma_cum[level])).to(y.dtype)


def check_gaussian(x: Tensor, mean: Tensor, covariance: Tensor, slack: float = 0.0) -> None:
    """Means and covariances of independent draws ``[N, D]``, all within 4.5 standard errors plus ``slack``."""
    x, n = x.double(), len(x)
    variance = covariance.diagonal()
    z = x - mean
    errors = (z.mean(0)).abs() - 4.5 * (variance / n).sqrt()
    assert float(errors.max()) <= slack, errors
    # Var of a product of two Gaussians with means 0: v_i v_j + c_ij^2.
    standard_error = ((variance[:, None] * variance[None, :] + covariance**2) / n).sqrt()
    errors = (z.T @ z / n - covariance).abs() - 4.5 * standard_error
    assert float(errors.max()) <= slack, errors

"""Laws with known moments and quantiles, and the comparison of independent draws with them."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import stats
from scipy.special import polygamma
from torch import Tensor

from springwell.noise import Noise

# The chance that a correct sampler fails one call of `check_law`, which fixed seeds turn into never or always.
FALSE_ALARM = 1e-4
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)


def noise(n, seed, **options):
    return Noise(seed, torch.arange(n), ahead=16, dtype=torch.float64, **options)


@dataclass
class Law:
    """A density on R^d by its log (up to a constant), moments, marginals, and a place to start away from its centre."""

    logdensity: Any
    mean: Tensor
    covariance: Tensor
    third: Tensor
    marginals: list[Any]
    start: Tensor


def gaussian_law(covariance):
    precision, d = torch.linalg.inv(covariance), len(covariance)
    sd = covariance.diagonal().sqrt()
    return Law(
        lambda y: -0.5 * torch.linalg.vecdot(y, y @ precision.to(y.dtype)),
        torch.zeros(d, dtype=torch.float64),
        covariance,
        torch.zeros(d, dtype=torch.float64),
        [stats.norm(0, float(s)) for s in sd],
        sd,
    )


def correlated_pair():
    return gaussian_law(torch.tensor([[1.0, 0.9 * 0.5], [0.9 * 0.5, 0.25]], dtype=torch.float64))


def correlated_hundred():
    """An autoregression, y_i = y_{i-1} / 2 + sqrt(3/4) eps_i: eigenvalues of the covariance from 1/3 to 3."""
    place = torch.arange(100)
    law = gaussian_law(0.5 ** (place[:, None] - place).abs().double())
    law.logdensity = lambda y: -0.5 * (y[:, 0].square() + (y[:, 1:] - 0.5 * y[:, :-1]).square().sum(-1) / 0.75)
    law.start = (-1.0) ** place.double()
    return law


def skewed():
    """Logarithms of three gamma variables of shapes 2, 3 and 6; their cumulants are polygamma functions."""
    shape = torch.tensor([2.0, 3.0, 6.0], dtype=torch.float64)
    mean, variance, third = (torch.from_numpy(polygamma(k, shape.numpy())) for k in range(3))
    return Law(
        lambda y: (shape.to(y.dtype) * y - y.exp()).sum(-1),
        mean,
        torch.diag(variance),
        third,
        [stats.loggamma(float(a)) for a in shape],
        mean - 2,
    )


class _Mixture:
    """The marginal w N(-c, s^2) + (1 - w) N(c, s^2)."""

    def __init__(self, w, c, s):
        self.w, self.parts = w, (stats.norm(-c, s), stats.norm(c, s))

    def ppf(self, q):
        grid = np.linspace(-12, 12, 200_001)
        return np.interp(q, self.w * self.parts[0].cdf(grid) + (1 - self.w) * self.parts[1].cdf(grid), grid)


def mixture():
    """0.3 N((-c, 0), I) + 0.7 N((c, 0), I), 3.2 standard deviations apart, begun in the lighter mode."""
    w, c = 0.3, 1.6
    centre = torch.tensor([c, 0.0], dtype=torch.float64)

    def logdensity(y):
        square = torch.stack([(y + centre).square().sum(-1), (y - centre).square().sum(-1)])
        return torch.logsumexp(torch.tensor([[math.log(w)], [math.log(1 - w)]], dtype=y.dtype) - 0.5 * square, 0)

    mean, variance = (1 - 2 * w) * c, 4 * w * (1 - w) * c**2
    # The third central moment of a two-point law with values -c, c.
    third = variance * 2 * c * (2 * w - 1)
    return Law(
        logdensity,
        torch.tensor([mean, 0.0], dtype=torch.float64),
        torch.diag(torch.tensor([1 + variance, 1.0], dtype=torch.float64)),
        torch.tensor([third, 0.0], dtype=torch.float64),
        [_Mixture(w, c, 1.0), stats.norm()],
        -centre,
    )


def funnel(scale):
    """Neal's funnel, v ~ N(0, scale^2), x_i ~ N(0, e^v): (v / scale, x e^{-v/2}) is standard normal."""
    law = gaussian_law(torch.eye(4, dtype=torch.float64))

    def logdensity(y):
        v, x = y[:, 0], y[:, 1:]
        return -0.5 * (v / scale).square() - 0.5 * x.square().sum(-1) * (-v).exp() - 0.5 * x.shape[1] * v

    law.logdensity = logdensity
    return law


def straighten(y, scale):
    """The standard normal of a draw of the funnel."""
    return torch.cat([y[:, :1] / scale, y[:, 1:] * (-0.5 * y[:, :1]).exp()], 1)


def limit(comparisons):
    """How many standard errors the largest of so many comparisons may be off."""
    return float(stats.norm.isf(FALSE_ALARM / (2 * comparisons)))


def check_law(y: Tensor, law: Law) -> None:
    """Mean, covariance, third central moments and quantiles of independent draws ``[N, d]``, within their standard errors."""
    y, n, d = y.double(), len(y), y.shape[1]
    centred = y - law.mean
    z_mean = centred.mean(0) / (law.covariance.diagonal() / n).sqrt()

    rows, columns = torch.tril_indices(d, d)
    products = centred[:, rows] * centred[:, columns]
    z_covariance = (products.mean(0) - law.covariance[rows, columns]) / (products.std(0) / math.sqrt(n))

    cubes = centred**3
    z_third = (cubes.mean(0) - law.third) / (cubes.std(0) / math.sqrt(n))

    q = torch.tensor(LEVELS, dtype=torch.float64)
    points = torch.tensor(np.array([m.ppf(np.array(LEVELS)) for m in law.marginals]))
    below = (y[:, :, None] <= points).double().mean(0)
    z_quantiles = (below - q) / (q * (1 - q) / n).sqrt()

    found = {"mean": z_mean, "covariance": z_covariance, "third": z_third, "quantiles": z_quantiles}
    bound = limit(sum(z.numel() for z in found.values()))
    for name, z in found.items():
        worst = float(z.abs().max())
        assert worst < bound, f"{name}: {worst:.1f} standard errors off, at most {bound:.1f} by chance"

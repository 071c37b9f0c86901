"""Exact densities against independent computations: total mass, Monte Carlo, brute-force convolution."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from springwell.data.toy import TOY_DATA, Tube, log_density, toy_data
from springwell.errors import UserError
from springwell.likelihood.quadrature import plane_grid
from springwell.noise import Noise

NAMES = list(TOY_DATA)
NOISY = {"a": 0.98, "sigma": 0.2}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("noisy", [False, True])
def test_density_integrates_to_one(name, noisy):
    grid = plane_grid(4.0, 256)
    log_p = log_density(toy_data(name), grid, **(NOISY if noisy else {}))
    # The clean checkerboard has edges; on nodes that include each square's lower edges only, the rule is exact.
    assert float(log_p.exp().sum()) * (8 / 256) ** 2 == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("noisy", [False, True])
def test_samples_follow_the_density(name, noisy):
    """Counts in a 12 x 12 grid of bins against the integral of the density over each: a chi-square test."""
    toy, n = toy_data(name), 40_000
    noise = Noise(0, torch.arange(n), dtype=torch.float64)
    x = toy.sample(noise)
    if noisy:
        x = NOISY["a"] * x + NOISY["sigma"] * noise.normal(2)
    cells, per_cell = 12, 24
    axis = -3 + (torch.arange(cells * per_cell, dtype=torch.float64) + 0.5) * (6 / (cells * per_cell))
    p = log_density(toy, torch.cartesian_prod(axis, axis), **(NOISY if noisy else {})).exp()
    expected = p.view(cells, per_cell, cells, per_cell).sum((1, 3)) * (axis[1] - axis[0]) ** 2 * n
    column = ((x + 3) / 6 * cells).floor().long()
    inside = ((column >= 0) & (column < cells)).all(-1)
    counts = torch.bincount(column[inside, 0] * cells + column[inside, 1], minlength=cells**2).double()
    expected = expected.flatten()
    large = expected > 8
    statistic = float(((counts - expected)[large] ** 2 / expected[large]).sum())
    assert stats.chi2.sf(statistic, int(large.sum())) > 1e-3
    assert float(counts[~large].sum()) == pytest.approx(n - float(expected[large].sum()), abs=5 * math.sqrt(n))


@pytest.mark.parametrize("name", NAMES)
def test_noisy_density_is_the_convolution(name):
    """log_density with noise against a brute-force integral of the clean density times the Gaussian."""
    toy, a, sigma = toy_data(name), 0.9, 0.3
    h = 8 / 400
    axis = -4 + h * (torch.arange(400, dtype=torch.float64) + 0.5)
    grid = torch.cartesian_prod(axis, axis)
    clean = log_density(toy, grid).exp()
    points = torch.tensor([[0.0, 0.0], [1.3, -0.4], [-0.9, 1.1], [2.2, 2.4]], dtype=torch.float64)
    square = torch.cdist(points, a * grid).square()
    brute = (torch.exp(-square / (2 * sigma**2)) / (2 * math.pi * sigma**2) * clean).sum(-1) * h**2
    # The midpoint rule's relative error is about (a h d / sigma^2)^2 / 24 at distance d from the support; here d < 1.
    rtol = (a * h / sigma**2) ** 2 / 24 * 2
    torch.testing.assert_close(log_density(toy, points, a, sigma).exp(), brute, rtol=rtol, atol=1e-9)


def test_ring_density_is_a_bessel_function():
    """The exact density of a blurred circle of radius r is exp(-(|x| - r)^2 / 2 s^2) I0e(|x| r / s^2) / (2 pi s^2)."""
    toy = toy_data("rings")
    assert isinstance(toy, Tube)
    x = torch.tensor([[0.1, 0.2], [1.0, 0.0], [0.0, -1.52], [1.9, 1.0]], dtype=torch.float64)
    norm, s2 = x.norm(dim=-1), toy.width**2
    expected = sum(
        torch.exp(-((norm - r) ** 2) / (2 * s2)) * torch.special.i0e(norm * r / s2) / (2 * math.pi * s2) / 4
        for r in (0.5, 1.0, 1.5, 2.0)
    )
    torch.testing.assert_close(log_density(toy, x).exp(), expected, rtol=1e-9, atol=0)


@pytest.mark.parametrize("name", ["two_moons", "pinwheel", "two_spirals"])
def test_quadrature_along_curves_has_converged(name):
    """At random points of the support, adaptive integration along the curve gives the same density to 1e-9."""
    toy = toy_data(name)
    assert isinstance(toy, Tube)
    low, high = {"two_moons": (0, 1), "pinwheel": (-2.5, 2.5), "two_spirals": (0, 1)}[name]
    law = {"two_moons": lambda v: 1.0, "pinwheel": lambda v: math.exp(-v * v / 2), "two_spirals": lambda v: 2 * v}[name]
    total = integrate.quad(law, low, high)[0]
    x = toy.sample(Noise(7, torch.arange(5), dtype=torch.float64))
    ours = toy.mode_log_density(x)[:, 0].exp()
    for point, value in zip(x, ours, strict=True):

        def integrand(v, point=point):
            centre = toy.curve(torch.zeros(1, dtype=torch.float64), torch.tensor([v], dtype=torch.float64))[0]
            return law(v) / total * math.exp(-float((point - centre).square().sum()) / (2 * toy.width**2))

        exact = integrate.quad(integrand, low, high, limit=500, epsabs=1e-13)[0] / (2 * math.pi * toy.width**2 * toy.num_modes)
        assert float(value) == pytest.approx(exact, rel=1e-7, abs=1e-9)


def test_checkerboard_far_tail_does_not_cancel():
    toy = toy_data("checkerboard")
    x = torch.tensor([[2.5, 1.5], [6.0, 0.0], [-9.0, 9.0]], dtype=torch.float64)
    log_p = log_density(toy, x, 1.0, 0.1)
    assert bool(torch.isfinite(log_p).all())
    # Beyond the edge at 2, the density is an edge's: (1/8) Phi(-5), the other coordinate well inside.
    assert float(log_p[0]) == pytest.approx(math.log(0.125) + stats.norm.logcdf(-5.0), abs=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_modes_share_the_density(name):
    toy = toy_data(name)
    x = toy.sample(Noise(3, torch.arange(8000)))
    share = torch.bincount(toy.mode_log_density(x).argmax(-1), minlength=toy.num_modes) / 8000
    # Neighbouring modes overlap a little, so the shares are those of the modes up to 5 standard errors and 2 %.
    fair = 1 / toy.num_modes
    assert float((share - fair).abs().max()) < 5 * math.sqrt(fair / 8000) + 0.02


@pytest.mark.parametrize("name", NAMES)
def test_data_are_standardised(name):
    x = toy_data(name).sample(Noise(3, torch.arange(20_000)))
    assert float(x.mean(0).abs().max()) < 0.06
    assert float(x.std(0).min()) > 0.6
    assert float(x.std(0).max()) < 1.3


def test_unknown_name():
    with pytest.raises(UserError, match="'cifar': unknown; choose checkerboard"):
        toy_data("cifar")


def test_more_nodes_change_nothing():
    toy = toy_data("rings")
    assert isinstance(toy, Tube)
    finer = dataclasses.replace(toy, nodes=(np.arange(2048) / 2048, np.full(2048, 1 / 2048)))
    x = plane_grid(2.5, 40)
    torch.testing.assert_close(log_density(finer, x), log_density(toy, x), rtol=1e-9, atol=1e-9)

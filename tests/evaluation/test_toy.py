"""The measures against closed forms: Gaussians, known divergences, the null of the MMD."""

import math

import pytest
import torch

from springwell.data.toy import log_density, toy_data
from springwell.evaluation.toy import divergences, mmd, mode_coverage
from springwell.likelihood.quadrature import normaliser
from springwell.noise import Noise


def test_normaliser_of_a_gaussian():
    covariance = torch.tensor([[0.5, 0.2], [0.2, 0.3]])
    precision = torch.linalg.inv(covariance)
    z = normaliser(lambda x: -0.5 * ((x - 0.3) @ precision * (x - 0.3)).sum(-1))
    exact = math.log(2 * math.pi) + 0.5 * float(torch.logdet(covariance))
    assert abs(z.log_z - exact) < 1e-6
    assert z.error < 1e-6


def test_normaliser_reports_what_it_cannot_resolve():
    """Spikes finer than the grid and mass at the edge of the box show in the error estimate."""
    spike = normaliser(lambda x: -0.5 * (x / 0.004).square().sum(-1))
    exact = math.log(2 * math.pi * 0.004**2)
    assert spike.error > 0.1
    assert abs(spike.log_z - exact) < 3 * spike.error
    wide = normaliser(lambda x: -0.5 * (x / 4).square().sum(-1))
    assert wide.error > 0.1


@pytest.mark.parametrize("name", ["checkerboard", "two_moons"])
def test_the_truth_has_no_divergence(name):
    toy = toy_data(name)
    z = normaliser(lambda x: log_density(toy, x, 0.99, 0.1) + 3.7)
    result = divergences(toy, 0.99, 0.1, z)
    assert z.log_z == pytest.approx(3.7, abs=1e-6)
    assert abs(result["kl"]) < 1e-6
    assert result["tv"] < 1e-6
    assert result["quadrature_mass_of_data"] == pytest.approx(1, abs=1e-9)


def test_kl_and_entropy_of_a_known_pair():
    """Data eight_gaussians, model one Gaussian: KL from the data's entropy and second moment; entropy by Monte Carlo."""
    toy = toy_data("eight_gaussians")
    variance = 1.5
    z = normaliser(lambda x: -x.square().sum(-1) / (2 * variance))
    result = divergences(toy, 1.0, 0.2, z)
    second_moment = 1.4**2 + 2 * (0.1**2 + 0.2**2)
    nll = math.log(2 * math.pi * variance) + second_moment / (2 * variance)
    # The Gaussian's tails beyond the box are missing from log Z, and the error estimate covers them.
    assert abs(result["nll"] - nll) < z.error + 1e-9 < 1e-3
    noise = Noise(0, torch.arange(50_000), dtype=torch.float64)
    log_p = log_density(toy, toy.sample(noise) + 0.2 * noise.normal(2), 1.0, 0.2)
    assert abs(result["entropy"] + float(log_p.mean())) < 4.5 * float(log_p.std()) / math.sqrt(50_000)
    assert result["kl"] == pytest.approx(result["nll"] - result["entropy"])


def test_total_variation_of_half_the_data():
    """A model that lacks half of the modes is at distance 1/2."""
    toy = toy_data("eight_gaussians")
    half = [0, 2, 4, 6]
    z = normaliser(lambda x: toy.mode_log_density(x, 1.0, 0.05)[:, half].logsumexp(-1).clamp(min=-600))
    assert divergences(toy, 1.0, 0.05, z)["tv"] == pytest.approx(0.5, abs=1e-3)


def test_mmd_finds_a_shift_and_keeps_its_level():
    def draw(seed):
        return toy_data("two_moons").sample(Noise(seed, torch.arange(500)))

    rejected = sum(value > level for value, level in (mmd(draw(2 * i), draw(2 * i + 1), seed=i) for i in range(60)))
    # 60 tests at 5 %: more than 9 would have probability below 0.3 %.
    assert rejected <= 9
    value, level = mmd(draw(0), draw(1) + 0.15)
    assert value > 3 * level


def test_mmd_is_unbiased_for_gaussian_kernels():
    """Mean over repetitions of MMD^2 of two equal laws is 0 within its standard error."""
    values = [mmd(*(Noise(i, torch.arange(100), s).normal(2) for s in (0, 1)), permutations=1)[0] for i in range(200)]
    values = torch.tensor(values)
    assert abs(float(values.mean())) < 4.5 * float(values.std()) / math.sqrt(200)


def test_mode_coverage_counts_what_is_there():
    toy = toy_data("eight_gaussians")
    data = toy.sample(Noise(0, torch.arange(4000)))
    full = mode_coverage(toy, data, data, 1.0, 0.0)
    assert full["modes_covered"] == 8
    assert full["off_support"] < 0.005
    one = data[toy.mode_log_density(data).argmax(-1) == 3]
    assert mode_coverage(toy, one, data, 1.0, 0.0)["modes_covered"] == 1
    assert mode_coverage(toy, torch.zeros(10, 2), data, 1.0, 0.0)["off_support"] == 1

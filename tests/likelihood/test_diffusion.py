"""Walks along the noise: exact for Gaussians, bounds from both sides for everything else."""

import math

import pytest
import torch
from torch import Tensor, nn

from springwell.energy.prior import Prior
from springwell.energy.residual import ResidualEnergy
from springwell.likelihood.annealed import estimate
from springwell.likelihood.diffusion import denoising_walk, noising_walk
from springwell.noise import Noise


class Nothing(nn.Module):
    """A network that adds a constant to f."""

    def __init__(self, head: float = 0.0):
        super().__init__()
        self.head = head

    def forward(self, inputs: Tensor, log_sigma: Tensor) -> tuple[Tensor, Tensor]:
        zero = torch.zeros_like(inputs[:, 0])
        return zero, zero + self.head


def ladder(num: int, low: float = 0.05, high: float = 5.0) -> Tensor:
    return torch.logspace(math.log10(low), math.log10(high), num + 1, dtype=torch.float64)


def mixture(weight: float = 0.3) -> Prior:
    return Prior(
        torch.tensor([[1.0] * 3, [-1.0] * 3]),
        torch.tensor([[0.2] * 3, [0.0] * 3]),
        torch.tensor([[1 - weight] * 3, [weight] * 3]),
    )


@pytest.mark.parametrize("num", [1, 4, 32])
def test_weights_of_a_gaussian_are_one_in_any_number_of_steps(num: int) -> None:
    """The Gaussian guess is then the exact reversal, so denoising and noising are the same law of paths."""
    energy = ResidualEnergy(Nothing(), Prior.gaussian(torch.full((1, 4, 4), 0.3), 0.5), 0.7)
    walk, y = denoising_walk(energy, ladder(num), Noise(0, torch.arange(64)), 4)
    assert float(walk.log_weight.abs().max()) < 1e-3
    back = noising_walk(energy, ladder(num), y, Noise(1, torch.arange(64)), 4)
    assert float(back.log_weight.abs().max()) < 1e-3


def test_a_constant_is_found_from_both_sides() -> None:
    head = 0.1
    energy = ResidualEnergy(Nothing(head), Prior.gaussian(torch.zeros(3), 0.5), 0.7)
    s = 0.05
    expected = 3 * 0.49 / (0.49 + s**2) * math.log1p(0.49 / s**2) * math.tanh(head)
    walk, y = denoising_walk(energy, ladder(40), Noise(0, torch.arange(2048)), 8)
    back = noising_walk(energy, ladder(40), y, Noise(1, torch.arange(2048)), 8)
    for found in (estimate(walk), estimate(back, True)):
        assert abs(found.value - expected) < 4.5 * found.standard_error + 0.02


@pytest.mark.parametrize("smc", [False, True])
def test_a_mixture_with_an_atom_has_log_z_zero_from_both_sides(smc: bool) -> None:
    energy = ResidualEnergy(Nothing(), mixture(), 1.0)
    resample = Noise(5, torch.arange(8), dtype=torch.float64) if smc else None
    walk, _ = denoising_walk(energy, ladder(64), Noise(0, torch.arange(4096)), 8, resample)
    y = energy.prior.sample(Noise(2, torch.arange(4096)), 0.05)
    back = noising_walk(energy, ladder(64), y, Noise(1, torch.arange(4096)), 8)
    for found in (estimate(walk), estimate(back, True)):
        assert abs(found.value) < 4.5 * found.standard_error + 1e-3


def test_weights_narrow_with_the_number_of_steps() -> None:
    energy = ResidualEnergy(Nothing(), mixture(), 1.0)
    few, many = (denoising_walk(energy, ladder(k), Noise(0, torch.arange(2048)), 8)[0].log_weight.var() for k in (16, 64))
    assert float(many) < 0.5 * float(few)


def test_prior_draws_have_the_mixtures_moments() -> None:
    y = mixture(0.3).sample(Noise(0, torch.arange(100_000)), 0.5).double()
    mean, variance = 0.7 * 1 - 0.3, 0.7 * (0.2 + 1) + 0.3 + 0.25 - 0.16
    assert abs(float(y.mean()) - mean) < 4.5 * math.sqrt(variance / y.numel())
    assert float(y.var()) == pytest.approx(variance, rel=0.02)

"""Bits per dimension: the change of variables, the volume of decoders, scores and AUROC."""

import math

import pytest
import torch

from springwell.errors import UserError
from springwell.evaluation.scores import auroc
from springwell.likelihood import bits
from springwell.likelihood.bits import check_range, log_volume, to_bits
from tests.likelihood.targets import noise


def test_eight_bit_data_of_a_uniform_model_take_eight_bits():
    """g = 1 / (2 + c) per dimension, on cells of 8-bit data: log2 256 bits/dim."""
    cell, dim = 1 / 127.5, 12
    x = torch.zeros(3, dim)
    volume = log_volume(x, 1.0, 0.0, cell, True)
    torch.testing.assert_close(volume, torch.full((3,), -dim * math.log(127.5)).double())
    log_g = -dim * math.log(2 + cell)
    assert to_bits(-(log_g + float(volume[0])), dim) == pytest.approx(8.0)


@pytest.mark.parametrize("dequantised", [True, False])
@pytest.mark.parametrize("sigma", [0.01, 0.05, 0.3])
def test_the_volume_is_that_of_a_decoder(dequantised, sigma):
    """v(x_0)^-1 = sum_b q(x_0 | b), with q by quadrature over the cell, near the middle and at the ends of the range."""
    cell, a = 0.125, math.sqrt(1 - sigma**2)
    x_0 = torch.tensor([[-1.02], [-0.7], [0.03], [0.99]])
    values = torch.linspace(-1, 1, 17).double()
    inside = (torch.arange(4001).double() + 0.5) / 4001 - 0.5 if dequantised else torch.zeros(1).double()
    centres = a * (values[:, None] + cell * inside)
    q = torch.exp(-0.5 * ((x_0.double()[:, :, None] - centres) / sigma) ** 2).mean(-1) / (sigma * math.sqrt(2 * math.pi))
    torch.testing.assert_close(log_volume(x_0, a, sigma, cell, dequantised), -q.sum(1).log(), rtol=1e-5, atol=1e-5)


def test_images_larger_than_what_is_computed_at_once_have_the_same_volume(monkeypatch):
    """One after the other, or two at a time with one left over."""
    x_0 = torch.rand(5, 6, generator=torch.Generator().manual_seed(0)) * 2 - 1
    expected = log_volume(x_0, 0.9, 0.3, 0.125, True)
    for pixels in (4, 12):
        monkeypatch.setattr(bits, "_PIXELS_AT_ONCE", pixels)
        torch.testing.assert_close(log_volume(x_0, 0.9, 0.3, 0.125, True), expected, rtol=0, atol=0)


def test_bits_bound_the_code_length_of_a_known_model():
    """One pixel, g = N(0, s^2): the mean of the bound over its draws is above -log2 P(b) of the exact decoder model."""
    cell, sigma = 0.125, 0.05
    a, s = math.sqrt(1 - sigma**2), 0.4
    values = torch.linspace(-1, 1, 17).double()
    grid = torch.linspace(-3, 3, 20_001).double()
    g = torch.exp(-0.5 * (grid / s) ** 2) / (s * math.sqrt(2 * math.pi))
    edges = [(grid[:, None] - a * (values + side * cell / 2)) / sigma for side in (-1, 1)]
    q = (torch.special.ndtr(edges[0]) - torch.special.ndtr(edges[1])) / (a * cell)
    decoder = q / q.sum(1, keepdim=True).clamp(min=1e-300)
    p_b = (g[:, None] * decoder).sum(0) * (grid[1] - grid[0])
    b, draws = 5, noise(20_000)
    x_0 = a * (values[b] + cell * (draws.uniform() - 0.5)) + sigma * draws.normal()
    log_g = -0.5 * (x_0 / s) ** 2 - math.log(s * math.sqrt(2 * math.pi))
    bound = log_g + log_volume(x_0[:, None], a, sigma, cell, True)
    assert float(bound.mean()) <= float(p_b[b].log())
    # One-sample importance weights average to P(b) itself.
    weights = bound.exp()
    assert abs(float(weights.mean()) - float(p_b[b])) <= 4 * float(weights.std()) / math.sqrt(len(weights))


def test_data_without_density_and_out_of_range_are_refused():
    with pytest.raises(UserError, match="no density; dequantise them, or give the schedule an initial_noise"):
        log_volume(torch.zeros(1, 2), 1.0, 0.0, 0.1, False)
    with pytest.raises(UserError, match=r"values in \[0, 255\]; needs images in \[-1, 1\]"):
        check_range(torch.tensor([[0.0, 255.0]]), 1 / 127.5)
    with pytest.raises(UserError, match="not finite"):
        check_range(torch.tensor([[math.nan]]), 1 / 127.5)


def test_auroc():
    """P(a > b) of two normals a distance d apart is Phi(d / sqrt 2); ties count half."""
    a, b = 0.8 + noise(3000, 1).normal(), noise(2000, 2).normal()
    value, error = auroc(a, b)
    expected = float(torch.special.ndtr(torch.tensor(0.8 / math.sqrt(2)).double()))
    assert abs(value - expected) <= 4 * error
    assert 0.005 < error < 0.01
    assert auroc(torch.ones(4), torch.ones(5)) == (0.5, 0.0)
    assert auroc(torch.tensor([2.0, 3.0]), torch.tensor([0.0, 1.0]))[0] == 1.0

"""The decoder that knows how often pixels take their values."""

import math

import torch

from springwell.likelihood import bits
from springwell.likelihood.decoder import decoded_volume, frequencies


def test_equal_frequencies_are_the_decoder_without() -> None:
    values = torch.randint(17, (20, 1, 4, 4), generator=torch.Generator().manual_seed(0))
    a, sigma, cell = 0.99, 0.05, 1 / 8
    x_0 = a * (cell * values - 1) + sigma * torch.randn(values.shape, generator=torch.Generator().manual_seed(1))
    equal = torch.full((17, 1, 4, 4), -math.log(17), dtype=torch.float64)
    expected = bits.log_volume(x_0, a, sigma, cell, dequantised=False)
    torch.testing.assert_close(decoded_volume(x_0, values, equal, a, sigma, cell), expected, rtol=1e-6, atol=1e-6)


def test_the_exact_density_costs_at_least_the_entropy_and_little_more() -> None:
    """Independent pixels with frequencies pi: g is a mixture, and the bound with the same pi is the entropy itself."""
    generator = torch.Generator().manual_seed(2)
    pi = torch.tensor([0.8, 0.05, 0.05, 0.1], dtype=torch.float64)
    values = torch.multinomial(pi, 40_000, replacement=True, generator=generator).view(10_000, 4)
    cell, sigma = 2 / 3, 1 / 3
    x_0 = cell * values - 1 + sigma * torch.randn(values.shape, generator=generator, dtype=torch.float64)
    centres = cell * torch.arange(4) - 1
    log_g = (pi.log() - 0.5 * ((x_0[..., None] - centres) / sigma) ** 2).logsumexp(-1) - math.log(
        sigma * math.sqrt(2 * math.pi)
    )
    nll = -(log_g.sum(-1) + decoded_volume(x_0, values, pi.log()[:, None].expand(4, 4), 1.0, sigma, cell))
    exact = -pi.log()[values].sum(-1)
    torch.testing.assert_close(nll, exact, rtol=1e-6, atol=1e-6)


def test_frequencies_sum_to_one_and_know_each_pixel() -> None:
    values = torch.stack([torch.zeros(1000), torch.arange(1000) % 4], -1).long()
    log_pi = frequencies(values, 4, count=1.0)
    torch.testing.assert_close(log_pi.exp().sum(0), torch.ones(2, dtype=torch.float64))
    assert float(log_pi[0, 0].exp()) > 0.999
    torch.testing.assert_close(log_pi[:, 1].exp(), torch.full((4,), 0.25, dtype=torch.float64), atol=1e-3, rtol=1e-3)

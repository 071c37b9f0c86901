"""Energies that are log-densities: exact where untrained, bounded, float32-safe, and right at every level."""

import math

import pytest
import torch
from torch import Tensor, nn

from springwell.energy.prior import Prior
from springwell.energy.residual import LevelEnergy, NoiseMLP, NoiseUNet, ResidualEnergy, dropped, num_inputs
from springwell.errors import UserError
from springwell.likelihood.annealed import level_path, standard_normal
from springwell.noise import Noise
from springwell.normalised import derivatives
from springwell.schedule import NoiseSchedule
from springwell.shapes import expand

SHAPES = {2: (2,), 64: (1, 8, 8), 784: (1, 28, 28)}


def gaussian_energy(dim: int, variance: float = 0.3, mean: float = -0.5) -> ResidualEnergy:
    shape = SHAPES[dim]
    prior = Prior.gaussian(torch.full(shape, mean), variance)
    network: nn.Module
    if len(shape) == 1:
        network = NoiseMLP(dim, num_inputs(prior), width=16, depth=1, num_fourier=8)
    else:
        network = NoiseUNet((1, *shape[1:]), num_inputs(prior), width=8, unshuffle=2, dense_units=8)
    return ResidualEnergy(network, prior, math.sqrt(variance))


def stirred(energy: ResidualEnergy, std: float = 0.2) -> ResidualEnergy:
    """The same energy with random weights in place of zeros."""
    generator = torch.Generator().manual_seed(3)
    for p in energy.network.parameters():
        with torch.no_grad():
            p.add_(std * torch.randn(p.shape, generator=generator) / max(1, p[0].numel()) ** 0.5)
    return energy


def gaussian_log_density(y: Tensor, mean: float, variance: Tensor) -> Tensor:
    y = y.double().flatten(1)
    variance = variance.double()
    return -(y - mean).square().sum(-1) / (2 * variance) - 0.5 * y.shape[1] * (2 * math.pi * variance).log()


@pytest.mark.parametrize("dim", [2, 64, 784])
def test_untrained_is_the_gaussian(dim: int) -> None:
    energy = gaussian_energy(dim)
    sigma = torch.tensor([0.002, 0.03, 0.5, 5.0, 50.0])
    shape = (5, *SHAPES[dim])
    x = -0.5 + math.sqrt(0.3) * torch.randn(shape) + expand(sigma, torch.empty(shape)) * torch.randn(shape)
    expected = gaussian_log_density(x, -0.5, 0.3 + sigma.double() ** 2)
    torch.testing.assert_close(energy(x, sigma).double(), expected, rtol=1e-6, atol=2e-6 * dim)


@pytest.mark.parametrize("dim", [2, 64, 784])
def test_untrained_derivatives_are_the_gaussians(dim: int) -> None:
    energy = gaussian_energy(dim)
    y, sigma = torch.randn(4, *SHAPES[dim]), torch.tensor([0.01, 0.3, 1.0, 20.0])
    found = derivatives(energy, y, sigma)
    s = sigma.view(-1, *[1] * len(SHAPES[dim]))
    v = 0.3 + s**2
    torch.testing.assert_close(found.space, -s * (y + 0.5) / v, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.noise, s**2 * (y + 0.5) ** 2 / v**2 - s**2 / v, rtol=1e-4, atol=1e-5)


def mixture_prior() -> Prior:
    mean = torch.tensor([[0.2], [-1.0], [1.0]])
    variance = torch.tensor([[0.1], [0.0], [0.01]])
    return Prior(mean, variance, torch.tensor([[0.3], [0.6], [0.1]]))


@pytest.mark.parametrize("sigma", [0.01, 0.1, 2.0])
def test_prior_is_normalised_and_its_score_is_its_gradient(sigma: float) -> None:
    prior = mixture_prior().double()
    y = torch.linspace(-15, 15, 300_001, dtype=torch.float64)[:, None].requires_grad_()
    value = prior(y, torch.tensor(sigma, dtype=torch.float64))
    assert float(value.log_density.detach().exp().sum() * 1e-4) == pytest.approx(1, abs=1e-6)
    (grad,) = torch.autograd.grad(value.log_density.sum(), y)
    torch.testing.assert_close(value.scaled_score, sigma * grad, rtol=1e-6, atol=1e-9)


def test_prior_of_data_with_atoms_has_their_frequencies() -> None:
    x = torch.cat([torch.full((600, 2), -1.0), torch.full((100, 2), 1.0), 0.2 + 0.3 * torch.randn(300, 2)])
    prior = Prior.fit(x, atoms=[(-1.0, -1.0), (1.0, 1.0)], count=0.0)
    torch.testing.assert_close(prior.log_weight.exp(), torch.tensor([[0.3], [0.6], [0.1]]).expand(3, 2))
    torch.testing.assert_close(prior.mean[0], x[700:].mean(0))
    torch.testing.assert_close(prior.variance[0], x[700:].var(0, correction=0))


@pytest.mark.parametrize("dim", [2, 64])
def test_noise_of_every_coordinate_adds_up_to_the_noise_of_all(dim: int) -> None:
    energy = stirred(gaussian_energy(dim)).double()
    y, sigma = torch.randn(3, *SHAPES[dim], dtype=torch.float64), torch.tensor([0.05, 0.4, 3.0], dtype=torch.float64)
    each = derivatives(energy, y, sigma)
    torch.testing.assert_close(each.f, energy(y, sigma))
    step = 1e-4
    difference = (energy(y, sigma * math.exp(step)) - energy(y, sigma * math.exp(-step))) / (2 * step)
    torch.testing.assert_close(each.noise.flatten(1).sum(-1), difference, rtol=1e-5, atol=1e-5)


def test_energy_is_the_residual_of_its_denoiser() -> None:
    energy, broad = stirred(gaussian_energy(2)).double(), 1.3
    energy.broad_std.fill_(broad)
    y, sigma = torch.randn(5, 2, dtype=torch.float64), torch.full((5,), 0.2, dtype=torch.float64)
    s, v = sigma[:, None], 0.3 + sigma[:, None] ** 2
    b = -(y + 0.5) / v
    scaled = torch.stack([y / v.sqrt(), s * b], 1)
    out, head = energy.network(scaled, s.log())
    kappa = broad**2 / (broad**2 + s**2)
    denoised = y + s**2 * b + s * kappa * out
    h = (kappa * torch.log1p(0.3 / s**2) * torch.tanh(head)).sum(-1)
    expected = gaussian_log_density(y, -0.5, v[:, 0]) + (s * b).square().sum(-1) / 2
    expected = expected - (y - denoised).square().sum(-1) / (2 * sigma**2) + h
    torch.testing.assert_close(energy(y, sigma), expected)


@pytest.mark.parametrize("sigma", [0.002, 0.02])
def test_rounding_is_far_below_a_nat(sigma: float) -> None:
    """float32 against float64 at the least noise, 784 dimensions, atoms and a network whose outputs are of order 1."""
    shape = (1, 28, 28)
    x = torch.where(torch.rand(16, *shape) < 0.8, -1.0, torch.rand(16, *shape))
    prior = Prior.fit(x, atoms=[(-1.0, -1.0)])
    network = NoiseUNet(shape, num_inputs(prior), width=16, unshuffle=2, dense_units=16)
    energy = stirred(ResidualEnergy(network, prior, 0.5), std=0.5)
    y, s = x + sigma * torch.randn(x.shape), torch.full((16,), sigma)
    single = energy(y, s).double()
    error = (energy.double()(y.double(), s.double()) - single).abs().max()
    assert float(single.std()) > 1
    assert float(error) < 0.02


def test_energy_is_bounded_by_the_prior_and_the_head() -> None:
    energy = stirred(gaussian_energy(64), std=3.0)
    y = torch.randn(50, 1, 8, 8) * torch.logspace(-1, 3, 50).view(-1, 1, 1, 1)
    sigma = torch.full((50,), 0.1)
    value = energy.prior(y, sigma.view(-1, 1, 1, 1))
    most = value.log_density + value.scaled_score.square() / 2 + math.log1p(0.3 / 0.01)
    assert bool((energy(y, sigma) <= most.flatten(1).sum(-1) + 1e-2).all())


@pytest.mark.parametrize("top_spring", [True, False])
def test_level_energy_is_the_log_density_of_every_level(top_spring: bool) -> None:
    schedule = NoiseSchedule.log_snr(7, 6.0, -5.0, top_spring=top_spring)
    energy = LevelEnergy(gaussian_energy(64), schedule)
    t = torch.arange(7)
    y = torch.randn(7, 1, 8, 8)
    a, scale = schedule.a_cum[:-1], schedule.scale
    variance = scale**2 * (a**2 * 0.3 + schedule.sigma_cum[:-1] ** 2)
    means = (scale * a * -0.5).tolist()
    expected = torch.stack([gaussian_log_density(y[i : i + 1], means[i], variance[i])[0] for i in range(7)])
    torch.testing.assert_close(energy(y, t).double(), expected, rtol=1e-6, atol=1e-3)


def test_level_path_of_an_exact_energy_ends_at_the_change_of_scale() -> None:
    """log int exp f(scale_0 x, 0) dx = -D log scale_0, by importance sampling from the density itself."""
    schedule = NoiseSchedule.log_snr(5, 6.0, -5.0)
    path = level_path(LevelEnergy(gaussian_energy(2), schedule), schedule, (2,))
    a, s = float(schedule.a_cum[0]), float(schedule.sigma_cum[0])
    std = math.sqrt(a**2 * 0.3 + s**2)
    z = torch.randn(4, 2)
    x = -0.5 * a + std * z
    log_ratio = path.at(path.length, 4)(x) - (standard_normal(z) - 2 * math.log(std))
    torch.testing.assert_close(log_ratio, torch.full((4,), -2 * math.log(float(schedule.scale[0]))), atol=1e-5, rtol=1e-5)


def test_a_floating_point_level_is_the_noise_itself() -> None:
    schedule = NoiseSchedule.log_snr(7, 6.0, -5.0)
    energy = LevelEnergy(stirred(gaussian_energy(2)), schedule)
    y, t = torch.randn(7, 2), torch.arange(7)
    sigma = (schedule.sigma_cum / schedule.a_cum)[:-1].float()
    shrink = (schedule.scale * schedule.a_cum[:-1]).float()
    torch.testing.assert_close(energy(shrink[:, None] * y, t) + 2 * shrink.log(), energy(y, sigma), rtol=1e-5, atol=1e-5)


def test_moments_and_atoms_of_data_are_taken_and_saved() -> None:
    x = torch.where(torch.rand(3000, 1, 8, 8) < 0.7, -1.0, 0.4 * torch.randn(3000, 1, 8, 8))
    network = NoiseUNet((1, 8, 8), 3, width=8, unshuffle=1, dense_units=8)
    energy = ResidualEnergy(network, Prior.outline((1, 8, 8), 1))
    energy.start_at(x, [(-1.0, -1.0)])
    other = ResidualEnergy(NoiseUNet((1, 8, 8), 3, width=8, unshuffle=1, dense_units=8), Prior.outline((1, 8, 8), 1))
    other.load_state_dict(energy.state_dict())
    assert float(other.data_std) == pytest.approx(float((x - x.mean(0)).square().mean().sqrt()), rel=0.02)
    y, sigma = x[:5] + 0.1 * torch.randn(5, 1, 8, 8), torch.full((5,), 0.1)
    torch.testing.assert_close(other(y, sigma), energy(y, sigma))
    black = other.prior.log_weight[1].exp()
    assert float((black - (x == -1).float().mean(0)).abs().max()) < 0.02


def test_an_image_size_that_cannot_be_halved_is_named() -> None:
    with pytest.raises(
        UserError, match=r"images of 10x10: height and width must be multiples of 4 \(unshuffle=2, halvings: 1\)"
    ):
        NoiseUNet((1, 10, 10), width=8, unshuffle=2)


def test_dropout_keeps_the_mean_and_drops_its_share() -> None:
    h = torch.full((100, 4, 10, 10), 2.0)
    found = dropped(h, 0.2, Noise(0, torch.arange(100)))
    share = float((found == 0).double().mean())
    assert abs(share - 0.2) < 4.5 * (0.2 * 0.8 / h.numel()) ** 0.5
    assert torch.equal(found.unique(), torch.tensor([0.0, 2.5]))
    assert dropped(h, 0.2, None) is h


def test_dropout_belongs_to_the_sample_and_to_training() -> None:
    prior = Prior.gaussian(torch.zeros(1, 8, 8), 0.3)
    plain, dropping = (NoiseUNet((1, 8, 8), num_inputs(prior), 8, unshuffle=1, dense_units=8, dropout=d) for d in (0.0, 0.3))
    dropping.load_state_dict(plain.state_dict())
    bare, energy = (stirred(ResidualEnergy(network, prior)) for network in (plain, dropping))
    y, sigma = torch.randn(6, 1, 8, 8), torch.full((6,), 0.3)
    assert torch.equal(energy(y, sigma), bare(y, sigma))
    found = energy(y, sigma, Noise(0, torch.arange(6)))
    assert bool((found != bare(y, sigma)).all())
    # The last two samples alone have the same numbers dropped.
    torch.testing.assert_close(energy(y[4:], sigma[4:], Noise(0, torch.arange(4, 6))), found[4:])
    assert LevelEnergy(energy, NoiseSchedule.log_snr(4, 4.0, -4.0)).dropout == 0.3

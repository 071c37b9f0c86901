"""Walks along the noise: exact for Gaussians, bounds from both sides for everything else."""

import math
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from springwell.energy.prior import Prior
from springwell.energy.residual import LevelEnergy, ResidualEnergy
from springwell.likelihood.annealed import Plan, Walkers, estimate, log_mean
from springwell.likelihood.bracket import PILOT_CHAINS, Settings, bracket
from springwell.likelihood.diffusion import Moves, NoisePath, denoising_walk, noising_walk, normal_log_density, point
from springwell.noise import Noise, Stream
from springwell.samplers import hmc
from springwell.schedule import NoiseSchedule


class Nothing(nn.Module):
    """A network that adds a constant to f."""

    def __init__(self, head: float = 0.0):
        super().__init__()
        self.head = head

    def forward(self, inputs: Tensor, log_sigma: Tensor) -> tuple[Tensor, Tensor]:
        zero = torch.zeros_like(inputs[:, 0])
        return zero, zero + self.head


class Wrong(nn.Module):
    """A network whose levels disagree: F is proportional to y."""

    def forward(self, inputs: Tensor, log_sigma: Tensor) -> tuple[Tensor, Tensor]:
        return 0.4 * inputs[:, 0], torch.zeros_like(inputs[:, 0])


def wrong_gaussian(sigma: float) -> tuple[ResidualEnergy, float, float]:
    """An energy of 3 coordinates whose exp f(., sigma) is a Gaussian, its standard deviation and its log Z."""
    v, s_square = 0.5, 0.49
    energy = ResidualEnergy(Wrong(), Prior.gaussian(torch.zeros(3), v), math.sqrt(s_square))
    step = s_square / (s_square + sigma**2) * 0.4 / math.sqrt(s_square + sigma**2)
    precision = (1 - 2 * sigma * step) / (v + sigma**2) + step**2
    return energy, precision**-0.5, -1.5 * math.log(precision * (v + sigma**2))


@pytest.mark.parametrize(
    ("n", "smc", "step"), [(1, False, 0), (4, False, 0), (4, True, 0), (8, True, 0), (1, False, 1.2), (4, True, 1.2)]
)
def test_estimates_of_z_and_of_its_inverse_are_unbiased(n: int, smc: bool, step: float) -> None:
    """Few steps between levels that disagree: weights spread, most systems are resampled, and both means are exact."""
    energy, std, log_z = wrong_gaussian(0.05)
    num = 4000
    f = energy(y := std * Noise(3, torch.arange(num)).normal(3), torch.full((num,), 0.05))
    exact = -0.5 * (y / std).square().sum(-1) - 1.5 * math.log(2 * math.pi * std**2)
    torch.testing.assert_close(f, exact + log_z, rtol=1e-4, atol=1e-4)
    noises = [Noise(4 + i, torch.arange(num * n)) for i in range(2)]
    resample = [Noise(6 + i, torch.arange(num), dtype=torch.float64) if smc else None for i in range(2)]
    moves = Moves(energy, 2, [step] * 7) if step else None
    there, _ = denoising_walk(energy, ladder(6), noises[0], num, resample[0], moves=moves)
    back = noising_walk(energy, ladder(6), y, noises[1], resample[1], moves)
    if smc and not step:
        assert float(there.ess.min()) < 0.5  # Some were resampled.
    for ratio in ((there.log_ratio - log_z).exp(), (back.log_ratio + log_z).exp()):
        assert float(ratio.std()) > 0.02
        assert abs(float(ratio.mean()) - 1) < 4.5 * float(ratio.std()) / math.sqrt(num)


def test_moves_narrow_the_weights_of_levels_that_disagree() -> None:
    """Chains that rest at every level forget what earlier hops spoilt; the pilot leads their acceptance to its aim."""
    schedule = NoiseSchedule.log_snr(8, 6.0, -3.2)
    low = float(schedule.sigma_cum[0] / schedule.a_cum[0])
    energy, _, _ = wrong_gaussian(low)
    path, spread = NoisePath(LevelEnergy(energy, schedule), schedule), {}
    for num_leapfrog in (0, 4):
        plan = path.plan(Noise(0, torch.arange(400)), num_leapfrog, lambda: None)
        moves = path.moves(plan, 32)
        found, _ = denoising_walk(energy, path.sigmas(32, plan), Noise(1, torch.arange(4000)), moves=moves)
        spread[num_leapfrog] = float(found.log_weight.std())
    assert spread[4] < 0.7 * spread[0]
    assert moves is not None
    here = point(energy, torch.randn(4000, 3), 1.0)
    kernel, density = hmc(4), lambda y: energy(y, torch.ones(len(y)))
    step = torch.tensor(moves.step_size[int((path.sigmas(32, plan) - 1.0).abs().argmin())])
    _, info = kernel.step(kernel.init(here.y, density), density, step, Noise(3, torch.arange(4000)))
    assert info.acceptance is not None
    assert float(info.acceptance.mean()) == pytest.approx(0.7, abs=0.15)


def test_draws_of_systems_follow_the_energy_where_single_chains_do_not() -> None:
    """Levels that disagree lead plain denoising astray; a chain drawn by its weight from many has the energy's variance."""
    schedule = NoiseSchedule.log_snr(8, 6.0, -3.2)
    low = float(schedule.sigma_cum[0] / schedule.a_cum[0])
    energy, std, _ = wrong_gaussian(low)
    path, num, wanted = NoisePath(LevelEnergy(energy, schedule), schedule), 4000, (std * float(schedule.a_cum[0])) ** 2
    plan = path.plan(Noise(2, torch.arange(64)), 0, lambda: None)
    found = {}
    for n in (1, 64):
        resample = Noise(1, torch.arange(num), dtype=torch.float64)
        square = path.draw(plan, 16, Noise(0, torch.arange(num * n)), resample).square()
        assert square.shape == (num, 3)
        found[n] = (float(square.mean()) - wanted) / (float(square.std()) / math.sqrt(square.numel()))
    assert abs(found[1]) > 15
    assert abs(found[64]) < 4.5


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
    back = noising_walk(energy, ladder(num), y[:16], Noise(1, torch.arange(64)))
    assert float(back.log_weight.abs().max()) < 1e-3


def test_a_constant_is_found_from_both_sides() -> None:
    head = 0.1
    energy = ResidualEnergy(Nothing(head), Prior.gaussian(torch.zeros(3), 0.5), 0.7)
    s = 0.05
    expected = 3 * 0.49 / (0.49 + s**2) * math.log1p(0.49 / s**2) * math.tanh(head)
    walk, y = denoising_walk(energy, ladder(40), Noise(0, torch.arange(2048)), 8)
    back = noising_walk(energy, ladder(40), y[:256], Noise(1, torch.arange(2048)))
    for found in (estimate(walk), estimate(back, True)):
        assert abs(found.value - expected) < 4.5 * found.standard_error + 0.02


@pytest.mark.parametrize("smc", [False, True])
def test_a_mixture_with_an_atom_has_log_z_zero_from_both_sides(smc: bool) -> None:
    energy = ResidualEnergy(Nothing(), mixture(), 1.0)
    resample = Noise(5, torch.arange(8), dtype=torch.float64) if smc else None
    walk, _ = denoising_walk(energy, ladder(64), Noise(0, torch.arange(4096)), 8, resample)
    y = energy.prior.sample(Noise(2, torch.arange(1024)), 0.05)
    resample = Noise(6, torch.arange(1024), dtype=torch.float64) if smc else None
    back = noising_walk(energy, ladder(64), y, Noise(1, torch.arange(4096)), resample)
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


def two_points() -> NoisePath:
    """Data at -1 and 1 in each of four coordinates: exact at every noise, with reversals that are far from Gaussian at some."""
    points = torch.tensor([-1.0, 1.0])[:, None].expand(2, 4)
    prior = Prior(points, torch.full((2, 4), 1e-4), torch.full((2, 4), 0.5))
    schedule = NoiseSchedule.log_snr(16, 6.0, -4.0)
    return NoisePath(LevelEnergy(ResidualEnergy(Nothing(), prior, 1.0), schedule), schedule)


def test_a_plan_puts_steps_where_weights_spread_and_keeps_the_ends() -> None:
    calls: list[int] = []
    path = two_points()
    plan = path.plan(Noise(0, torch.arange(1000)), 0, lambda: calls.append(1))
    assert len(calls) == path.pilot_stops
    even, planned = path.sigmas(64), path.sigmas(64, plan)
    torch.testing.assert_close(planned[[0, -1]], torch.tensor([path.low, path.high], dtype=torch.float64))
    assert bool((planned.diff() > 0).all())
    # A hop of length h has a weight of standard deviation c(s) h where covariances are missed, and c(s) h^(3/2) where third
    # cumulants are. Steps of density rho(s) then have a variance proportional to int c^2 / rho ds or to int c^2 / rho^2 ds.
    c = plan.length.diff() / plan.length[-1] * len(plan.length.diff())
    rho = 0.8 * c + 0.2
    least, most = (float((c.square() / rho**power).mean() / c.square().mean()) for power in (2, 1))
    assert most < 0.5
    even_walk, planned_walk = (
        denoising_walk(path.energy, sigma, Noise(1, torch.arange(4000)), 4000)[0].log_ratio for sigma in (even, planned)
    )
    assert least < float(planned_walk.var() / even_walk.var()) < most


def test_a_gaussian_needs_no_plan() -> None:
    schedule = NoiseSchedule.log_snr(16, 6.0, -4.0)
    energy = LevelEnergy(ResidualEnergy(Nothing(), Prior.gaussian(torch.zeros(3), 0.5), 1.0), schedule)
    path = NoisePath(energy, schedule)
    plan = path.plan(Noise(0, torch.arange(64)), 0, lambda: None)
    assert float(plan.length[-1]) < 1e-3


@pytest.mark.parametrize("backwards", [False, True])
def test_all_that_a_walk_tells_is_in_the_same_units(backwards: bool) -> None:
    """The change of variable from y to x_0 belongs to the estimate, to every weight and to every density on the way."""
    path = two_points()
    assert abs(path.offset) > 0.001
    ones = torch.ones(2, dtype=torch.float64)
    plan = Plan(torch.arange(2).double(), torch.arange(2).double(), ones, ones, 0)
    x = path.start(Noise(0, torch.arange(8))) if not backwards else torch.ones(4, 4)
    found = path.walk(plan, 6, Walkers(x, Noise(1, torch.arange(8)), 4), backwards, lambda: None)
    sign = -1 if backwards else 1
    torch.testing.assert_close(sign * found.log_ratio, log_mean(sign * found.log_weight))
    torch.testing.assert_close(found.partial[:, -1], found.log_ratio)


def test_a_pilot_leads_steps_to_their_acceptance() -> None:
    """Tiny steps are always accepted, so the next one down is longer by exp(0.15 (1 - target)); frozen ones stay."""
    energy = ResidualEnergy(Nothing(), Prior.gaussian(torch.zeros(3), 0.5), 1.0)
    here = point(energy, Noise(0, torch.arange(6)).normal(3), 0.8)
    for target, factor in ((0.7, math.exp(0.15 * 0.3)), (0.2, math.exp(0.15 * 0.8)), (None, 1.0)):
        moves = Moves(energy, 2, [1e-4] * 3, target)
        moves(2, 0.8, here, Noise(1, torch.arange(6)))
        assert moves.step_size == pytest.approx([1e-4, 1e-4 * factor, 1e-4], rel=1e-5)


@pytest.mark.parametrize("num_leapfrog", [0, 3])
def test_gradients_are_counted(num_leapfrog: int) -> None:
    """Every evaluation of the network is one, but for the last f, which is not differentiated."""
    calls: list[int] = []
    network = Nothing()
    network.register_forward_hook(lambda *arguments: calls.append(1))
    energy = ResidualEnergy(network, Prior.gaussian(torch.zeros(3), 0.5), 1.0)
    moves = Moves(energy, num_leapfrog, [0.5] * 6) if num_leapfrog else None
    walk, _ = denoising_walk(energy, ladder(5), Noise(0, torch.arange(4)), moves=moves)
    assert walk.num_gradients == len(calls) - 1


def test_a_bracket_along_the_noise_has_the_value_between_its_bounds() -> None:
    """Levels that disagree, and draws that are exact: 3 coordinates in units of the schedule's level 0."""
    schedule = NoiseSchedule.log_snr(9, 6.0, -6.0)
    sigma = float(schedule.sigma_cum[0] / schedule.a_cum[0])
    energy, std, log_z = wrong_gaussian(sigma)
    path, settings = NoisePath(LevelEnergy(energy, schedule), schedule), Settings(0.5, 24, 24, systems=8, chains=64)
    x = std * float(schedule.a_cum[0]) * Noise(1, torch.arange(160)).normal(3)
    found = bracket(path, {"exact": x}, settings)
    # f is a log-density of y_0 = scale_0 x_0.
    wanted = log_z - 3 * math.log(float(schedule.scale[0]))
    assert abs(found.value - wanted) <= 4 * found.standard_error < 0.1
    assert found.lower.value - 3 * found.lower.standard_error <= wanted
    assert wanted <= found.upper["exact"].value + 3 * found.upper["exact"].standard_error


def test_along_the_noise_every_row_of_a_source_has_a_system_and_noise_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The streams and the sizes of all draws: 4 systems of 8 chains denoise; as many of 8 chains noise as there are rows."""
    schedule, used = NoiseSchedule.log_snr(4, 6.0, -6.0), []

    def recorded(seed: int, index: Tensor, stream: int, **options: Any) -> Noise:
        used.append((int(stream) - Stream.BRACKET, len(index)))
        return Noise(seed, index, stream, **options)

    monkeypatch.setattr(sys.modules["springwell.likelihood.bracket"], "Noise", recorded)
    energy, std, _ = wrong_gaussian(float(schedule.sigma_cum[0] / schedule.a_cum[0]))
    path, settings = NoisePath(LevelEnergy(energy, schedule), schedule), Settings(1e-9, 2, 4, systems=4, chains=8, batch=64)
    x = std * float(schedule.a_cum[0]) * Noise(1, torch.arange(12)).normal(3)
    bracket(path, {"a": x, "b": x}, settings)
    pilot, *walks = used
    assert pilot == (0, PILOT_CHAINS)
    expected = []
    for k in (2, 4):
        expected += [(16 * k, 4 * 8), (16 * k + 8, 4)]
        for stream in (16 * k + 2, 16 * k + 3):
            # 12 rows are 96 chains, in batches of at most 64.
            expected += [(stream, 8 * 8), (stream + 8, 8), (stream, 4 * 8), (stream + 8, 4)]
    assert walks == expected


@pytest.mark.parametrize("std", [torch.tensor([0.5, 2.0, 1.0]), 0.7])
def test_the_density_of_a_hop_is_that_of_independent_normals(std: Tensor | float) -> None:
    x, mean = Noise(0, torch.arange(5)).normal(3), torch.tensor([0.0, 1.0, -1.0])
    expected = torch.distributions.Normal(mean.double(), torch.as_tensor(std).double()).log_prob(x.double()).sum(-1)
    torch.testing.assert_close(normal_log_density(x, mean, std), expected, rtol=1e-5, atol=1e-5)

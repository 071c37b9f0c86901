"""Annealing against closed forms: Gaussians through their levels, mixtures, and the identities behind the bounds."""

import math

import pytest
import torch

from springwell.errors import DivergenceError, UserError
from springwell.likelihood import annealed
from springwell.likelihood.annealed import (
    Path,
    Plan,
    Walkers,
    average,
    effective_share,
    estimate,
    level_path,
    log_mean,
    picked,
    pilot,
    plain_path,
    pooled,
    standard_normal,
    walk,
)
from springwell.schedule import NoiseSchedule
from tests.exact import GaussianEnergy
from tests.likelihood.targets import Mixture, noise, ring


def gaussian(dim, variance=0.25, mean=0.3):
    """Levels of Gaussian data, exact log Z in the coordinates x_0, and exact draws."""
    schedule = NoiseSchedule.log_snr(8, 5, -5)
    energy = GaussianEnergy(schedule, mean, variance)
    scale = float(schedule.scale[0])
    sd, centre = math.sqrt(float(energy.variance[0])) / scale, float(energy.mean[0]) / scale
    log_z = dim * (0.5 * math.log(2 * math.pi) + math.log(sd))
    return level_path(energy, schedule, (dim,)), log_z, lambda num, seed: centre + sd * noise(num, seed, 7).normal(dim)


def walks(path, exact, num_densities, systems, chains, pilot_chains=64):
    """Forward AIS, reverse AIS from exact draws, SMC; with independent noise."""
    plan, num = pilot(path, noise(pilot_chains, 0, 1)), systems * chains
    forward, sequential = noise(num, 0, 2), noise(num, 0, 3)
    return (
        walk(path, plan, num_densities, Walkers(forward.normal(*path.event_shape), forward, systems)),
        walk(path, plan, num_densities, Walkers(exact(num, 5), noise(num, 0, 4), systems), backwards=True),
        walk(
            path,
            plan,
            num_densities,
            Walkers(sequential.normal(*path.event_shape), sequential, systems, resample=noise(systems, 0, 6)),
        ),
    )


@pytest.mark.parametrize(
    ("dim", "num_densities", "chains", "bound"), [(2, 48, 4096, 0.01), (64, 96, 64, 0.001 * 64 * math.log(2) * 5)]
)
def test_gaussian_data_through_its_levels(dim, num_densities, chains, bound):
    """Within 3 standard errors and 0.01 nats in two dimensions; in 64, within 3 standard errors and 0.005 bits/dim."""
    path, log_z, exact = gaussian(dim)
    forward, reverse, sequential = walks(path, exact, num_densities, 16, chains)
    lower, upper, smc = estimate(forward), estimate(reverse, True), estimate(sequential)
    assert (lower.bound, upper.bound, smc.bound) == ("lower", "upper", "lower")
    thermodynamic = average(sequential.thermodynamic)
    for value, error in [*[(e.value, e.standard_error) for e in (lower, upper, smc)], thermodynamic]:
        assert abs(value - log_z) <= 3 * error
        assert abs(value - log_z) <= bound
    assert 0.5 < lower.acceptance[0] <= lower.acceptance[1] < 1
    # Jensen: the mean of log w is below log Z forwards and above it backwards, by more than its standard error.
    assert lower.mean_log_weight < log_z < upper.mean_log_weight
    assert lower.num_chains == 16 * chains
    assert lower.ess > 0.2 * chains


@pytest.mark.slow
def test_gaussian_data_in_3072_dimensions():
    """SMC within 3 standard errors, and 0.001 bits/dim = 2.13 nats of 3072 dimensions."""
    path, log_z, _ = gaussian(3072)
    plan = pilot(path, noise(32, 0, 1, torch.float32))
    source = noise(128, 0, 2, torch.float32)
    found = estimate(walk(path, plan, 1024, Walkers(source.normal(3072), source, 8, resample=noise(8, 0, 3))))
    assert abs(found.value - log_z) <= min(3 * found.standard_error, 0.001 * 3072 * math.log(2))


@pytest.mark.parametrize(
    ("mixture", "chains", "bound"), [(Mixture(ring(8, 2.0), 0.3), 512, 0.02), (Mixture(ring(4, 1.5, 32), 0.5), 128, 0.2)]
)
def test_mixtures_from_the_standard_normal(mixture, chains, bound):
    """log Z = 3 by construction; modes are found because the normal covers them all. 4 standard errors of four estimates."""
    dim = mixture.centres.shape[1]
    forward, reverse, sequential = walks(plain_path(mixture, (dim,)), mixture.sample, 64, 16, chains)
    found = [estimate(forward), estimate(reverse, True), estimate(sequential)]
    for value, error in [*[(e.value, e.standard_error) for e in found], average(sequential.thermodynamic)]:
        assert abs(value - 3.0) <= 4 * error
        assert error < bound


def test_weights_average_to_z_even_if_chains_do_not_move():
    """With steps of size 0 AIS is plain importance sampling, and E w = Z still: the path cancels but for its ends."""
    target = Mixture(torch.tensor([[0.2, 0.0]]), 0.9, log_z=-1.5)
    path = plain_path(target, (2,))
    still = Plan(
        torch.tensor([0.0, 1.0]).double(), torch.tensor([0.0, 1.0]).double(), torch.full((2,), 1e-12), torch.ones(2), 1
    )
    source = noise(20_000)
    x = source.normal(2)
    found = walk(path, still, 5, Walkers(x, source, num_systems=10))
    plain = target(x) - standard_normal(x)
    torch.testing.assert_close(found.log_weight.flatten(), plain, rtol=1e-9, atol=1e-9)
    value, error = pooled(found.log_ratio)
    assert abs(value + 1.5) <= 4 * error
    torch.testing.assert_close(found.log_ratio, log_mean(plain.view(10, -1)), rtol=1e-9, atol=1e-9)


def test_estimates_that_agree_are_pooled_and_others_averaged():
    """Of logs ~ N(0, 0.1^2) the log of the mean is 0.1^2 / 2; that of N(0, 10^2) hangs on the largest one."""
    logs = noise(400).normal(8).double()
    for spread, centre in ((0.1, 0.005), (10.0, 0.0)):
        found = torch.tensor([pooled(spread * row) for row in logs], dtype=torch.float64)
        z = (found[:, 0] - centre) / found[:, 1]
        # Student's t with 7 degrees of freedom: standard deviation sqrt(7 / 5), and 2.365 is the quantile of 97.5 %.
        assert abs(float(z.mean())) <= 4 * math.sqrt(7 / 5 / 400)
        assert abs(float((z.abs() > 2.365).double().mean()) - 0.05) <= 4 * math.sqrt(0.05 * 0.95 / 400)
    wide = 10 * logs
    assert all(pooled(row)[0] <= float(log_mean(row)) for row in wide)


def test_densities_follow_the_length_and_stop_at_nodes():
    position = torch.arange(5).double()
    plan = Plan(position, torch.tensor([0.0, 0.0, 0.0, 9.0, 9.0]).double(), torch.ones(5), torch.ones(5), 2)
    s = plan.densities(100)
    assert {0.0, 1.0, 2.0, 3.0, 4.0} <= set(s.tolist())
    assert bool((s.diff() > 0).all())
    # 80 of 100 steps go where all of the length is, and a quarter of the remaining 20.
    assert abs(int(((s > 2) & (s <= 3)).sum()) - 85) <= 2


def test_few_densities_of_many_nodes_are_nodes():
    position = torch.linspace(0, 1000, 65).double().round()
    plan = Plan(position, position, torch.ones(65), torch.ones(65), 2)
    s = plan.densities(100)
    assert torch.equal(s, s.round())
    assert len(s) == 101


def test_results_do_not_depend_on_what_runs_beside_them():
    """A system's estimate is the same computed alone."""
    mixture = Mixture(ring(8, 2.0), 0.3)
    path = plain_path(mixture, (2,))
    plan = pilot(path, noise(32, 0, 1))
    from springwell.noise import Noise

    def run(first, last):
        source = Noise(0, torch.arange(16 * first, 16 * last), 2, dtype=torch.float64)
        resample = Noise(0, torch.arange(first, last), 3, dtype=torch.float64)
        return walk(path, plan, 12, Walkers(source.normal(2), source, last - first, resample=resample))

    together, alone = run(0, 4), run(2, 3)
    torch.testing.assert_close(together.log_ratio[2:3], alone.log_ratio, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(together.thermodynamic[2:3], alone.thermodynamic, rtol=1e-10, atol=1e-10)


def test_effective_share():
    log_w = torch.tensor([[0.0, 0.0, 0.0, 0.0], [0.0, -math.inf, -math.inf, -math.inf]]).double()
    torch.testing.assert_close(effective_share(log_w), torch.tensor([1.0, 0.25]).double())


def test_chains_that_collapse_are_named():
    """A cusp so steep that no step which twenty updates can reach is accepted."""
    with pytest.raises(UserError, match=r"chains collapse at N\(0, I\) ... density 1: acceptance 0"):
        pilot(plain_path(lambda x: -1e30 * x.abs().sum(-1), (2,)), noise(16))


def test_what_cannot_be_annealed_is_named():
    with pytest.raises(UserError, match="at least one density"):
        Path([], (2,))
    path = plain_path(lambda x: torch.full((len(x),), math.nan) * x[:, 0], (2,))
    with pytest.raises((UserError, DivergenceError), match=r"not finite|collapse|start"):
        pilot(path, noise(8))
    plan = Plan(torch.tensor([0.0, 1.0]).double(), torch.tensor([0.0, 1.0]).double(), torch.ones(2), torch.ones(2), 1)
    with pytest.raises(UserError, match=r"x: has shape \[4, 3\]; needs \[R n, 2\]"):
        walk(plain_path(standard_normal, (2,)), plan, 3, Walkers(torch.zeros(4, 3), noise(4)))
    with pytest.raises(UserError, match="number of densities 0"):
        plan.densities(0)


def test_every_node_takes_the_place_that_is_nearest():
    """By definition, for lengths that put nodes anywhere between places."""
    lengths = noise(20).uniform(6).cumsum(-1)
    for length in lengths - lengths[:, :1]:
        plan = Plan(torch.arange(6).double(), length, torch.ones(6), torch.ones(6), 2)
        expected = plan.places(37)
        for node in range(6):
            expected[(plan.places(37) - node).abs().argmin()] = node
        torch.testing.assert_close(plan.densities(37), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("length", "stops"), [(1, 17), (20, 41), (100, 65)])
def test_a_pilot_stops_twice_per_node_and_at_the_start(length, stops):
    path = Path([lambda num: standard_normal] * length, (1,))
    assert path.pilot_stops == stops


def test_weights_that_are_not_numbers_pick_chains_that_exist():
    """So that a walk ends with the error that names them, and not with an index out of range."""
    found = picked(torch.tensor([[0.0, torch.nan, 1.0]]).double(), torch.tensor([[0.1, 0.5, 0.9]]).double())
    assert bool(((found >= 0) & (found < 3)).all())


def test_the_spread_beyond_which_the_jackknife_is_not_trusted():
    """The logs of eight estimates are 3.9 or 4.1 standard deviations wide: the log of the mean, and the mean of the logs."""
    logs = noise(1).normal(8)[0].double()
    logs = (logs - logs.mean()) / logs.std()
    assert pooled(3.9 * logs)[0] == pytest.approx(float(log_mean(3.9 * logs)))
    assert pooled(4.1 * logs) == pytest.approx((0.0, 4.1 / math.sqrt(8)), abs=1e-12)


def test_systems_are_resampled_at_one_uniform_and_equal_distances(monkeypatch):
    places, plain = [], annealed.resampled
    monkeypatch.setattr(annealed, "resampled", lambda log_w, place: places.append(place) or plain(log_w, place))
    path, _, exact = gaussian(2)
    walks(path, exact, 4, systems=3, chains=8)
    assert places
    for place in places:
        assert bool((place[:, :1] > 0).all() & (place[:, :1] < 1 / 8).all())
        torch.testing.assert_close(place.diff(dim=1), torch.full((3, 7), 1 / 8), check_dtype=False)


def test_a_pilot_judges_leapfrogs_at_the_middles_of_five_stretches_and_takes_the_cheapest_in_sum(monkeypatch):
    """Of 16 positions: 2, 5, 8, 11 and 14. L = 4 is the cheapest of all in sum, and at no stop alone."""
    path, reached, stops = plain_path(Mixture(torch.zeros(1, 2), 0.5), (2,)), [], []
    monkeypatch.setattr(path, "at", lambda s, num: reached.append(s) or Path.at(path, s, num))

    def costs(here, there, x, step_size, noise):
        stops.append(16 * reached[-1] - 1)
        found = torch.tensor([9.0, 9.0, 3.0, 9.0], dtype=torch.float64)
        found[(0, 1, 3)[len(stops) % 3]] = 2.0
        return found

    monkeypatch.setattr(annealed, "_costs", costs)
    assert pilot(path, noise(16)).num_leapfrog == 4
    assert stops == [2, 5, 8, 11, 14]
    assert pilot(path, noise(16), 2).num_leapfrog == 2
    assert len(stops) == 5

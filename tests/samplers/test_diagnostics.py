"""Diagnostics against theory, and against ArviZ."""

import math

import pytest
import torch

from springwell.errors import UserError
from springwell.noise import Noise
from springwell.samplers import hmc, langevin, record_chain
from springwell.samplers.diagnostics import (
    _per_parameter,
    autocovariance,
    ebfmi,
    energy_drift,
    ess_bulk,
    ess_mean,
    ess_tail,
    rank_normalise,
    split_rhat,
    standard_error,
    summarise,
)
from tests.samplers import laws


def autoregression(phi, num_steps, num_chains, num_parameters, seed=0):
    """x_i = phi x_{i-1} + sqrt(1 - phi^2) eps, stationary: its ESS per draw is (1 - phi) / (1 + phi)."""
    eps = Noise(seed, torch.arange(num_steps), dtype=torch.float64).normal(num_chains, num_parameters)
    x = [eps[0]]
    for e in eps[1:]:
        x.append(phi * x[-1] + math.sqrt(1 - phi**2) * e)
    return torch.stack(x)


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9, -0.5])
def test_effective_sizes_of_an_autoregression(phi):
    """Over 50 parameters, the mean estimate is within 10 % of theory, and the spread of means is what it stands for.

    The estimator is biased by about tau / n, 4 % for phi = 0.9, and by the noise of where its sum ends.
    """
    draws = autoregression(phi, 1000, 4, 50)
    theory = 4000 * (1 - phi) / (1 + phi)
    for estimate in (ess_mean(draws), ess_bulk(draws)):
        assert float(estimate.mean()) == pytest.approx(theory, rel=0.1)
    error = standard_error(draws)
    assert float(error.mean()) == pytest.approx(theory**-0.5, rel=0.1)
    z = draws.flatten(0, 1).mean(0) / error
    assert float(z.square().mean()) == pytest.approx(1, abs=4.5 * math.sqrt(2 / 50))


def test_tails_of_independent_draws():
    assert float(ess_tail(autoregression(0.0, 1000, 4, 50)).mean()) == pytest.approx(4000, rel=0.05)


def test_rhat_sees_locations_scales_and_trends():
    """Of four chains one is shifted, one is wider, or all drift: each is seen, and agreement is 1."""
    good = autoregression(0.3, 500, 4, 20)
    assert float(split_rhat(good).max()) < 1.02
    shifted, wider = good.clone(), good.clone()
    shifted[:, 0] += 1
    wider[:, 0] *= 3
    drifting = good + torch.linspace(0, 1.5, 500)[:, None, None]
    for bad in (shifted, wider, drifting):
        assert float(split_rhat(bad).min()) > 1.05


def test_rhat_is_invariant_to_monotone_maps_up_to_its_fold():
    x = autoregression(0.5, 200, 4, 3)
    torch.testing.assert_close(ess_bulk(x), ess_bulk(x.exp()))
    torch.testing.assert_close(ess_tail(x), ess_tail(x.sinh()))
    torch.testing.assert_close(split_rhat(x), split_rhat(7 * x - 3))


def test_ranks_share_ties():
    x = torch.tensor([2.0, 1.0, 2.0, 3.0, 2.0]).double().view(5, 1, 1)
    rank = torch.tensor([3.0, 1.0, 3.0, 5.0, 3.0]).double()
    torch.testing.assert_close(rank_normalise(x).flatten(), torch.special.ndtri((rank - 0.375) / 5.25))


def test_autocovariance_is_its_sum():
    x = autoregression(0.7, 30, 2, 1)
    centred = x - x.mean(0)
    direct = torch.stack([(centred[: 30 - k] * centred[k:]).sum(0) / 30 for k in range(30)])
    torch.testing.assert_close(autocovariance(x), direct, rtol=1e-10, atol=1e-12)


def test_ebfmi_of_an_autoregression():
    """E (H_i - H_{i-1})^2 = 2 (1 - phi) Var H."""
    for phi in (0.0, 0.8):
        energy = autoregression(phi, 5000, 20, 1)[..., 0]
        assert float(ebfmi(energy).mean()) == pytest.approx(2 * (1 - phi), rel=0.05)


def test_drift_of_energies():
    """A rise of one standard deviation over the run moves the second half up by a half."""
    energy = autoregression(0.5, 1000, 50, 1)[..., 0]
    still = energy_drift(energy)
    assert abs(still.z) < 4.5
    rising = energy_drift(energy + torch.linspace(0, 1, 1000)[:, None])
    assert rising.size == pytest.approx(0.5 / math.sqrt(1 + 1 / 12), abs=0.05)
    assert rising.z > 10
    assert math.isnan(energy_drift(energy[:, :1]).z)


def known_draws():
    """Sums of waves: no random numbers, a shifted chain, ties."""
    i, c, k = torch.meshgrid(torch.arange(101.0), torch.arange(3.0), torch.arange(4.0), indexing="ij")
    x = torch.sin(1.7 * i + 2.3 * c + 0.9 * k) + torch.cos(0.13 * (i + 5 * c) * (1 + k)) + 0.2 * c * (k == 1)
    return torch.where(k == 2, (3 * x.double()).round(), x.double())


# ArviZ 0.23.4: rhat, and ess of the methods bulk, tail and mean, for `known_draws`.
ARVIZ = [
    [0.99224793, 1.00673405, 0.99128516, 0.99077],
    [50.357652, 78.946889, 117.411637, 178.78216],
    [351.727065, 189.787099, 338.854113, 350.177751],
    [49.609007, 82.680667, 115.567051, 177.28872],
]


def test_numbers_of_arviz():
    for function, expected in zip((split_rhat, ess_bulk, ess_tail, ess_mean), ARVIZ, strict=True):
        torch.testing.assert_close(function(known_draws()), torch.tensor(expected).double(), rtol=1e-6, atol=0)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("num_steps", "num_chains"), [(100, 4), (101, 2), (57, 3), (8, 2), (400, 1)])
def test_definitions_are_those_of_arviz(num_steps, num_chains):
    arviz = pytest.importorskip("arviz")
    x = torch.cat([autoregression(phi, num_steps, num_chains, 3, seed=1) for phi in (-0.6, 0.0, 0.9)], 2)
    x[..., 1], x[..., 4], x[:, 0, 5] = x[..., 1].exp(), x[..., 4].round(), x[:, 0, 5] + 1
    theirs = [
        (ess_bulk, lambda a: arviz.ess(a, method="bulk")),
        (ess_tail, lambda a: arviz.ess(a, method="tail")),
        (ess_mean, lambda a: arviz.ess(a, method="mean")),
    ]
    if num_chains > 1:
        theirs.append((split_rhat, arviz.rhat))
    for ours, function in theirs:
        expected = torch.tensor([float(function(x[..., k].T.numpy())) for k in range(x.shape[2])])
        torch.testing.assert_close(ours(x), expected.double(), rtol=1e-6, atol=0)


def test_many_parameters_go_piece_by_piece(monkeypatch):
    x = autoregression(0.5, 50, 4, 12)
    whole = [function(x.view(50, 4, 3, 2, 2)) for function in (split_rhat, ess_bulk, ess_tail, ess_mean)]
    monkeypatch.setattr("springwell.samplers.diagnostics.NUMBERS_AT_ONCE", 1000)
    for function, expected in zip((split_rhat, ess_bulk, ess_tail, ess_mean), whole, strict=True):
        assert expected.shape == (3, 2, 2)
        torch.testing.assert_close(function(x).view(3, 2, 2), expected)


def test_constant_chains_are_no_evidence():
    """R-hat of a parameter that never changes is nan, not 1."""
    assert bool(split_rhat(torch.zeros(100, 4, 2)).isnan().all())


def test_too_few_draws_are_refused():
    with pytest.raises(UserError, match=r"draws: have shape \[3, 4\]; need \[S, N, ...\] of S >= 4"):
        ess_bulk(torch.zeros(3, 4))


def test_summary_of_a_trace():
    """HMC on a known law: converged, energies explored, nothing divergent; Langevin's chains have no energies to tell."""
    law, n = laws.skewed(), 40
    start = law.mean.expand(n, -1)
    trace = record_chain(hmc(5), start, law.logdensity, torch.tensor(0.4), 300, laws.noise(n, 1), thin=2)
    summary = summarise(trace)
    assert trace.draws.shape == (150, n, 3)
    assert summary.num_gradients == 300 * 5 * n
    assert summary.num_divergent == 0
    assert float(summary.rhat.max()) < 1.05
    assert float(summary.ess_bulk.min()) > 1000
    assert 0.6 < summary.acceptance < 1
    assert summary.ebfmi > 0.5
    mean, error = trace.draws.flatten(0, 1).mean(0), standard_error(trace.draws)
    assert float(((mean - law.mean) / error).abs().max()) < 4.5

    plain = summarise(record_chain(langevin(), start, law.logdensity, torch.tensor(0.1), 50, laws.noise(n, 2)))
    assert plain.acceptance is None
    assert plain.ebfmi is None
    assert plain.num_gradients == 50 * n


def test_parameters_are_divided_by_the_numbers_of_all_their_steps_and_chains(monkeypatch):
    """8 steps of 3 chains are 24 numbers for each parameter, so 100 numbers at once are 4 of the 10 parameters."""
    monkeypatch.setattr("springwell.samplers.diagnostics.NUMBERS_AT_ONCE", 100)
    seen = []
    _per_parameter(lambda part: seen.append(part.shape) or part[0, 0], torch.zeros(8, 3, 10))
    assert seen == [(8, 3, 4), (8, 3, 4), (8, 3, 2)]

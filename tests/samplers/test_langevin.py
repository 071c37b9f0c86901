"""Kernels against closed forms: invariance, the bias of unadjusted Langevin, detailed balance."""

import math

import pytest
import torch
from scipy import stats

from springwell.noise import Noise
from springwell.samplers import langevin, make_kernel, mala, run_chain
from tests.exact import check_moments, within


def gaussian(precision):
    return lambda y: -0.5 * precision * y.square().sum(-1)


def skewed(y):
    """log density of log G, G ~ Gamma(3): light tail on one side, heavy on the other."""
    return (3 * y - y.exp()).sum(-1)


def noise(n, seed=0, **options):
    return Noise(seed, torch.arange(n), ahead=16, **options)


@pytest.mark.parametrize("step", [0.3, 1.0, 1.7])
def test_mala_leaves_a_gaussian_invariant_at_every_step_size(step):
    n, precision = 20_000, 4.0
    start = noise(n, 1).normal(2) / precision**0.5
    y, acceptance = run_chain(mala(), start, gaussian(precision), torch.full((n,), step / precision**0.5), 10, noise(n, 2))
    check_moments(y, 0.0, 1 / precision)
    assert 0 < float(acceptance.mean()) < 1


def test_mala_leaves_a_skewed_law_invariant():
    n = 20_000
    u = noise(n, 3, dtype=torch.float64).uniform(1)
    start = torch.from_numpy(stats.gamma(3).ppf(u.numpy())).log()
    y, _ = run_chain(mala(), start, skewed, torch.full((n,), 0.8), 20, noise(n, 4, dtype=torch.float64))
    assert stats.kstest(y.exp().flatten().numpy(), stats.gamma(3).cdf).pvalue > 1e-3


def test_mala_converges_from_far_away():
    n = 5000
    start = torch.full((n, 1), -4.0, dtype=torch.float64)
    y, _ = run_chain(mala(), start, skewed, torch.full((n,), 0.8), 100, noise(n, 5, dtype=torch.float64))
    assert stats.kstest(y.exp().flatten().numpy(), stats.gamma(3).cdf).pvalue > 1e-3


def test_mala_is_reversible():
    """E[g(y) h(y')] = E[h(y) g(y')] for a stationary, reversible chain."""
    n = 200_000
    u = noise(n, 6, dtype=torch.float64).uniform(1)
    start = torch.from_numpy(stats.gamma(3).ppf(u.numpy())).log()
    y, _ = run_chain(mala(), start, skewed, torch.full((n,), 1.0), 1, noise(n, 7, dtype=torch.float64))
    g, h = torch.tanh, lambda v: (v > 1.2).double()
    difference = (g(start) * h(y) - h(start) * g(y)).flatten()
    assert within(float(difference.mean()), 0.0, float(difference.std()) / math.sqrt(n))
    assert float((start != y).double().mean()) > 0.5


@pytest.mark.parametrize("step", [0.2, 0.8, 1.2])
def test_langevin_has_its_known_bias(step):
    """Unadjusted Langevin on a Gaussian of precision p has variance 1 / (p (1 - p delta^2 / 4))."""
    n, precision = 20_000, 2.0
    delta = step / precision**0.5
    variance = 1 / (precision * (1 - precision * delta**2 / 4))
    start = noise(n, 8).normal(2) * variance**0.5
    y, acceptance = run_chain(langevin(), start, gaussian(precision), torch.full((n,), delta), 15, noise(n, 9))
    check_moments(y, 0.0, variance)
    assert bool((acceptance == 1).all())


def test_langevin_step_is_equation_5():
    y = torch.tensor([[0.3, -0.2], [1.0, 2.0]])
    delta = torch.tensor([0.1, 0.5])
    moved, _ = run_chain(langevin(0.9), y, gaussian(3.0), delta, 1, noise(2, 10))
    expected = y + delta[:, None] ** 2 / 2 * (-3.0 * y) + 0.9 * delta[:, None] * noise(2, 10).normal(2)
    torch.testing.assert_close(moved, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["langevin", "mala", "hmc", "nuts"])
def test_a_chain_does_not_depend_on_its_neighbours(name):
    start = noise(50, 11).normal(3)
    step = torch.linspace(0.1, 0.9, 50)
    whole, _ = run_chain(make_kernel(name), start, gaussian(1.0), step, 12, Noise(4, torch.arange(50), ahead=12))
    part, _ = run_chain(make_kernel(name), start[20:30], gaussian(1.0), step[20:30], 12, Noise(4, torch.arange(20, 30)))
    assert torch.equal(whole[20:30], part)


@pytest.mark.parametrize(("name", "evaluations"), [("langevin", 7), ("mala", 8)])
def test_no_gradient_is_wasted(name, evaluations):
    calls = []

    def counted(y):
        calls.append(len(y))
        return -0.5 * y.square().sum(-1)

    run_chain(make_kernel(name), torch.zeros(3, 2), counted, torch.ones(3), 7, noise(3))
    assert len(calls) == evaluations


def test_a_proposal_without_density_is_never_taken():
    """A hard wall: log p is nan beyond 1. The chain stays inside, and acceptance counts the refusals."""
    n = 2000

    def walled(y):
        return torch.where(y[:, 0].abs() < 1, 0.0 * y[:, 0], torch.nan)

    y, acceptance = run_chain(mala(), torch.zeros(n, 1), walled, torch.full((n,), 0.8), 50, noise(n, 12))
    assert float(y.abs().max()) < 1
    assert bool(torch.isfinite(acceptance).all())
    assert 0.3 < float(acceptance.mean()) < 0.9
    assert stats.kstest(y.flatten().numpy(), stats.uniform(-1, 2).cdf).pvalue > 1e-3


@pytest.mark.parametrize("name", ["langevin", "mala"])
def test_a_step_counts_the_gradients_that_it_takes(name):
    evaluations = 0

    def counted(y):
        nonlocal evaluations
        evaluations += 1
        return gaussian(1.0)(y)

    kernel = make_kernel(name)
    state = kernel.init(torch.zeros(3, 2), counted)
    # A kernel that begins with a gradient has it for its first step; the one that does not takes it there.
    evaluations = 0
    _, info = kernel.step(state, counted, torch.tensor(0.1), noise(3))
    assert info.num_gradients == evaluations == 1

"""The no-U-turn sampler's trees against their definition: sub-trees, turns, weights, lengths."""

import math

import pytest
import torch
from scipy import stats

from springwell.errors import UserError
from springwell.noise import Noise
from springwell.samplers import nuts, record_chain, value_and_grad
from springwell.samplers.integrator import Phase, draw_momentum, hamiltonian, leapfrog
from springwell.samplers.nuts import _Walk, completed_subtrees
from tests.samplers import laws


def test_every_balanced_subtree_is_tested_once():
    """Of 64 leaves: all [a 2^j, (a + 1) 2^j) with j >= 1, and the slots still hold what they began with."""
    tested, slots = [], {}
    for n in range(64):
        if n % 2 == 0:
            slots[n.bit_count()] = n
        for first in completed_subtrees(n):
            assert slots[first.bit_count()] == first
            tested.append((first, n + 1))
    expected = [(a << j, (a + 1) << j) for j in range(1, 7) for a in range(64 >> j)]
    assert sorted(tested) == sorted(expected)
    assert len(slots) <= 6


def turns(p, inverse_mass):
    """The definition, by recursion: a stretch of 2^k momenta ``[2^k, d]`` that turns, or one of whose halves does."""
    if len(p) == 1:
        return False
    rho = p.sum(0) - 0.5 * (p[0] + p[-1])
    turning = float((inverse_mass * p[0]) @ rho) <= 0 or float((inverse_mass * p[-1]) @ rho) <= 0
    half = len(p) // 2
    return turning or turns(p[:half], inverse_mass) or turns(p[half:], inverse_mass)


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_a_doubling_ends_where_the_definition_says(depth):
    """Three unequal frequencies, step sizes up to the largest stable one: there short stretches turn where long ones do not."""
    n = 400
    inverse_mass = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)

    def f(y):
        return -0.5 * (y.square() * torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)).sum(-1)

    y, p = laws.noise(n, 0).normal(2, 3).unbind(1)
    z = Phase(y, p, *value_and_grad(f, y))
    delta = torch.linspace(0.05, 0.7, n, dtype=torch.float64)[:, None]
    walk = _Walk(f, hamiltonian(z, inverse_mass), inverse_mass, 1000.0)
    u = laws.noise(n, 1).uniform(2**depth)
    _, _, completed = walk.grow(z, delta, 2**depth, torch.ones(n, dtype=torch.bool), u)

    momenta = []
    for _ in range(2**depth):
        z = leapfrog(z, f, delta, inverse_mass)
        momenta.append(z.p)
    p = torch.stack(momenta, 1)
    expected = torch.tensor([not turns(chain, inverse_mass) for chain in p])
    assert torch.equal(completed, expected)
    assert 0.01 < float(expected.double().mean()) < 0.99


def test_points_of_a_doubling_are_drawn_by_weight():
    """The same eight leaves for all chains: their frequencies are those of exp(-H), and the proposal's energy is its own."""
    n, leaves = 20_000, 8
    f = laws.skewed().logdensity
    y, p = torch.tensor([[0.5, 1.5, 2.5]]).double(), torch.tensor([[0.6, -0.9, 0.8]]).double()
    one = Phase(y, p, *value_and_grad(f, y))
    delta, path = torch.tensor([[0.42]], dtype=torch.float64), []
    z = one
    for _ in range(leaves):
        z = leapfrog(z, f, delta)
        path.append(z)
    start = Phase(*[v.expand(n, *v.shape[1:]) for v in one])
    walk = _Walk(f, hamiltonian(start), None, 1000.0)
    # One momentum and a rising target let the doubling run to its end or not; the draw is by weight among all its leaves.
    tree, _, _ = walk.grow(start, delta.expand(n, 1), leaves, torch.ones(n, dtype=torch.bool), laws.noise(n, 2).uniform(leaves))
    made = int(walk.num_leaves[0])
    positions = torch.stack([z.y[0] for z in path[:made]])
    chosen = torch.cdist(tree.proposal.y, positions).argmin(1)
    weight = torch.stack([(hamiltonian(one) - hamiltonian(z))[0] for z in path[:made]])
    counts = torch.bincount(chosen, minlength=made).numpy()
    assert made >= 4
    assert float(weight.max() - weight.min()) > 0.1
    assert stats.chisquare(counts, n * torch.softmax(weight, 0).numpy()).pvalue > 1e-4
    torch.testing.assert_close(tree.proposal.log_weight, weight[chosen])
    torch.testing.assert_close(tree.log_weight, torch.logsumexp(weight, 0).expand(n))


@pytest.mark.filterwarnings("ignore:acceptance 1")
def test_trajectories_are_as_long_as_the_target_is_wide():
    """With the step fixed, a Gaussian ten times wider takes ten times the leapfrog steps; the depth bounds them."""
    n, length = 400, {}
    for width in (1.0, 10.0):
        f = lambda y, w=width: -0.5 * (y / w).square().sum(-1)  # noqa: E731
        trace = record_chain(nuts(), width * laws.noise(n, 3).normal(5), f, torch.full((n,), 0.2), 2, laws.noise(n, 4))
        length[width] = float(trace.info.num_gradients.double().mean())
        assert bool((trace.info.num_gradients < 2**trace.info.depth).all())
        assert not bool(trace.info.divergent.any())
    assert 6 < length[10.0] / length[1.0] < 16
    trace = record_chain(nuts(3), 10 * laws.noise(n, 3).normal(5), f, torch.full((n,), 0.2), 2, laws.noise(n, 4))
    assert int(trace.info.num_gradients.max()) == 7
    assert int(trace.info.depth.max()) == 3


def test_no_gradient_is_wasted():
    """A batch evaluates its log-density once to begin, and then once for every leapfrog step of its longest trajectories."""
    calls = []

    def counted(y):
        calls.append(len(y))
        return -0.5 * y.square().sum(-1)

    n, kernel = 30, nuts()
    state = kernel.init(laws.noise(n, 5).normal(2), counted)
    _, info = kernel.step(state, counted, torch.full((n, 1), 0.3, dtype=torch.float64), laws.noise(n, 6))
    assert int(info.num_gradients.max()) <= len(calls) - 1 < 2 ** int(info.depth.max())
    assert calls == [n] * len(calls)


def test_energies_are_those_of_the_next_state():
    law, n = laws.skewed(), 300
    trace = record_chain(nuts(), laws.noise(n, 7).normal(3), law.logdensity, torch.full((n,), 0.4), 20, laws.noise(n, 8))
    # The energy is potential plus chi-square_3 / 2 from the momentum: on average 3/2 above -log p, and the law's own spread.
    kinetic = trace.info.energy[5:] + torch.stack([law.logdensity(y) for y in trace.draws[5:]])
    assert bool((kinetic >= -1e-9).all())
    error = float(kinetic.mean(0).std()) / math.sqrt(n)
    assert abs(float(kinetic.mean()) - 1.5) < 4.5 * error


def test_divergences_end_trajectories_and_are_never_taken():
    """Steps far too large for half of the chains: those are divergent and stay; nan beyond a wall is a divergence too."""
    n = 100
    step = torch.cat([torch.full((n,), 0.5), torch.full((n,), 100.0)])[:, None]
    y = laws.noise(2 * n, 9).normal(4)
    kernel = nuts(5)
    f = lambda y: -0.5 * y.square().sum(-1)  # noqa: E731
    state, info = kernel.step(kernel.init(y, f), f, step, laws.noise(2 * n, 10))
    assert not bool(info.divergent[:n].any())
    assert bool(info.divergent[n:].all())
    assert torch.equal(state.y[n:], y[n:])
    assert bool((info.acceptance[n:] == 0).all())

    def walled(y):
        return torch.where(y[:, 0].abs() < 1, 0.0 * y[:, 0], torch.nan)

    start = torch.zeros(1000, 1, dtype=torch.float64)
    trace = record_chain(kernel, start, walled, torch.tensor(0.4), 30, Noise(11, torch.arange(1000)))
    assert float(trace.draws.abs().max()) < 1
    assert stats.kstest(trace.draws[-1].flatten().numpy(), stats.uniform(-1, 2).cdf).pvalue > 1e-3


@pytest.mark.parametrize("depth", [0, -1, 99])
def test_depth_must_make_sense(depth):
    with pytest.raises(UserError, match=f"max_depth={depth}"):
        nuts(depth)


def test_the_change_of_the_energy_is_the_end_less_the_start():
    law, n = laws.skewed(), 50
    y, kernel = laws.noise(n, 1).normal(3), nuts()
    _, info = kernel.step(kernel.init(y, law.logdensity), law.logdensity, torch.tensor(0.4), laws.noise(n, 2))
    start = hamiltonian(Phase(y, draw_momentum(laws.noise(n, 2), y, None), *value_and_grad(law.logdensity, y)), None)
    torch.testing.assert_close(info.energy_change, info.energy - start)
    assert float(info.energy_change.abs().max()) > 1e-3


def test_a_trajectory_that_never_turns_ends_after_ten_doublings():
    def flat(y):
        return 0 * y.sum(-1)

    kernel, y = nuts(), torch.zeros(1, 1, dtype=torch.float64)
    _, info = kernel.step(kernel.init(y, flat), flat, torch.tensor(1e-6), laws.noise(1, 3))
    assert (int(info.depth), int(info.num_gradients)) == (10, 2**10 - 1)

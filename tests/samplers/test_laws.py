"""MALA, HMC and NUTS against laws with known moments and quantiles; joint distribution tests; independence of neighbours.

Thousands of chains start at one point away from the centre and run until they have forgotten it. Their last positions are then
independent draws, whose standard errors are known.
"""

import math

import pytest
import torch
from scipy import stats

from springwell.noise import Noise
from springwell.samplers import hmc, mala, nuts, record_chain, run_chain
from springwell.samplers.diagnostics import ebfmi, ess_bulk, split_rhat
from tests.exact import within
from tests.samplers import laws

KERNELS = {"mala": mala(), "hmc": hmc(4), "nuts": nuts()}

# Step size and number of steps of each kernel.
SETTINGS = {
    "correlated_pair": {"mala": (0.30, 500), "hmc": (0.25, 100), "nuts": (0.35, 15)},
    "correlated_hundred": {"mala": (0.5, 200), "hmc": (0.4, 50), "nuts": (0.4, 8)},
    "skewed": {"mala": (0.65, 120), "hmc": (0.5, 40), "nuts": (0.6, 15)},
    "mixture": {"mala": (1.3, 250), "hmc": (0.7, 80), "nuts": (0.8, 30)},
}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("law", SETTINGS)
def test_moments_and_quantiles(law, kernel):
    target, (step, num_steps), n = getattr(laws, law)(), SETTINGS[law][kernel], 3000
    start = target.start.expand(n, -1)
    y, acceptance = run_chain(
        KERNELS[kernel], start, target.logdensity, torch.tensor(step).expand(n), num_steps, laws.noise(n, 1)
    )
    laws.check_law(y, target)
    assert 0.5 < float(acceptance.mean()) < 0.99


@pytest.mark.parametrize("kernel", ["hmc", "nuts"])
def test_a_mass_matrix_changes_the_way_and_not_the_law(kernel):
    """The pair's scales differ by 2; a wrong mass slows chains down, but what they sample stays."""
    target, n, wrong = laws.correlated_pair(), 3000, torch.tensor([0.5, 1.5])
    chosen = hmc(4, wrong) if kernel == "hmc" else nuts(inverse_mass=wrong)
    start = target.start.expand(n, -1)
    num_steps = 100 if kernel == "hmc" else 20
    y, _ = run_chain(chosen, start, target.logdensity, torch.full((n,), 0.25), num_steps, laws.noise(n, 2))
    laws.check_law(y, target)


@pytest.mark.parametrize(("kernel", "step", "num_steps"), [("hmc", 0.25, 250), ("nuts", 0.35, 30)])
def test_mild_funnel(kernel, step, num_steps):
    """v ~ N(0, 0.5^2): the neck is narrow enough for one step size to serve everywhere."""
    target, n = laws.funnel(0.5), 4000
    y, _ = run_chain(
        KERNELS[kernel],
        torch.zeros(n, 4, dtype=torch.float64),
        target.logdensity,
        torch.full((n,), step),
        num_steps,
        laws.noise(n, 3),
    )
    laws.check_law(laws.straighten(y, 0.5), target)


def test_neals_own_funnel_is_out_of_reach_and_shows_it():
    """v ~ N(0, 3^2): no kernel here manages the neck with one step size; the diagnostics say so."""
    target, n = laws.funnel(3.0), 16
    trace = record_chain(
        nuts(6), torch.zeros(n, 4, dtype=torch.float64), target.logdensity, torch.full((n,), 0.5), 80, laws.noise(n, 4)
    )
    v = trace.draws[..., 0]
    assert float(split_rhat(v)) > 1.05
    assert float(ess_bulk(v)) < 0.1 * v.numel()
    assert float(ebfmi(trace.info.energy).min()) < 0.3
    assert bool(trace.info.divergent.any())


@pytest.mark.parametrize("kernel", KERNELS)
def test_joint_distribution(kernel):
    """Geweke's test: theta ~ prior, x | theta ~ N(theta, 1); theta <- kernel at its posterior, x anew, and so on.

    Every pair then has the law of the first one, for any step size, if and only if the kernel leaves each posterior invariant.
    A test function of both, E[theta x] = E[theta^2], is compared beside the moments and quantiles of the prior.
    """
    prior, n, cycles = laws.skewed(), 10_000, 8
    step = {"mala": 0.9, "hmc": 0.6, "nuts": 0.5}[kernel]
    u = laws.noise(n, 5).uniform(3).numpy()
    theta = torch.stack([torch.from_numpy(m.ppf(u[:, i])) for i, m in enumerate(prior.marginals)], 1)
    random = laws.noise(n, 6)
    for _ in range(cycles):
        x = theta + random.normal(3)

        def posterior(t, x=x):
            return prior.logdensity(t) - 0.5 * (x - t).square().sum(-1)

        state = KERNELS[kernel].init(theta, posterior)
        theta = KERNELS[kernel].step(state, posterior, torch.tensor(step, dtype=torch.float64), random)[0].y
    laws.check_law(theta, prior)
    x = theta + random.normal(3)
    excess = theta * x - theta.square()
    z = excess.mean(0) / (excess.std(0) / math.sqrt(n))
    assert float(z.abs().max()) < laws.limit(3)


def test_hmc_is_reversible():
    """E[g(y) h(y')] = E[h(y) g(y')] for a stationary, reversible chain."""
    n, law = 100_000, laws.skewed()
    u = laws.noise(n, 7).uniform(3).numpy()
    start = torch.stack([torch.from_numpy(m.ppf(u[:, i])) for i, m in enumerate(law.marginals)], 1)
    y, _ = run_chain(hmc(3), start, law.logdensity, torch.full((n,), 0.6), 1, laws.noise(n, 8))
    g, h = torch.tanh, lambda v: (v > law.mean).double()
    difference = (g(start) * h(y) - h(start) * g(y)).sum(1)
    assert within(float(difference.mean()), 0.0, float(difference.std()) / math.sqrt(n))
    assert float((start != y).double().mean()) > 0.5


def test_hmc_with_one_leapfrog_step_is_mala():
    law, start = laws.skewed(), laws.noise(100, 9).normal(3)
    step = torch.full((100,), 0.5)
    a, accepted_a = run_chain(mala(), start, law.logdensity, step, 20, laws.noise(100, 10))
    b, accepted_b = run_chain(hmc(1), start, law.logdensity, step, 20, laws.noise(100, 10))
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(accepted_a, accepted_b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kernel", [hmc(3, torch.tensor([0.5, 1.0, 2.0])), nuts(6, torch.tensor([0.5, 1.0, 2.0]))])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.filterwarnings("ignore:acceptance")
def test_a_chain_does_not_depend_on_its_neighbours(kernel, dtype):
    """Step sizes, lengths of trajectories and divergences differ between chains; each chain's values are its own to the bit."""
    n, law = 60, laws.skewed()
    # Chains with the largest steps hardly move, which is as it should be, and warned of.
    start, step = laws.noise(n, 11).normal(3).to(dtype), torch.logspace(-1.5, 0.6, n)
    whole = record_chain(kernel, start, law.logdensity, step, 15, Noise(12, torch.arange(n), ahead=15))
    part = record_chain(kernel, start[20:40], law.logdensity, step[20:40], 15, Noise(12, torch.arange(20, 40)))
    assert whole.draws.dtype == dtype
    for a, b in zip((whole.draws, *whole.info), (part.draws, *part.info), strict=True):
        assert (a is None and b is None) or torch.equal(a[:, 20:40], b)


def test_image_shaped_chains_sample_what_flat_ones_do():
    law, n = laws.skewed(), 50
    start, step = laws.noise(n, 13).normal(3), torch.full((n,), 0.5)
    flat, _ = run_chain(nuts(), start, law.logdensity, step, 10, laws.noise(n, 14))
    shaped, _ = run_chain(nuts(), start.view(n, 1, 3, 1), lambda y: law.logdensity(y.view(n, 3)), step, 10, laws.noise(n, 14))
    assert torch.equal(flat, shaped.view(n, 3))


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS)
def test_joint_distribution_of_many(kernel):
    """Geweke's test with 50 times the draws, for 7 times smaller errors, in float32 and with one more target."""
    prior, random = stats.gumbel_r(), Noise(15, torch.arange(500_000), ahead=16)
    theta = torch.from_numpy(prior.ppf(random.uniform(1).double().numpy())).float()
    for _ in range(8):
        x = theta + random.normal(1)

        def posterior(t, x=x):
            return (-t - (-t).exp() - 0.5 * (x - t).square()).sum(-1)

        state = KERNELS[kernel].init(theta, posterior)
        theta = KERNELS[kernel].step(state, posterior, torch.tensor(0.7), random)[0].y
    assert stats.kstest(theta.flatten().double().numpy(), prior.cdf).pvalue > 1e-4

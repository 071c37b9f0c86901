"""Sampling one conditional: closed-form posteriors, jumps between modes, adaptation."""

import math

import pytest
import torch

from springwell.conditional import Conditional
from springwell.energy import at_level
from springwell.level import LevelSampler
from springwell.noise import Noise
from springwell.samplers import adapt_step_size, gradient, mala, value_and_grad
from springwell.samplers.jumps import choose, take
from springwell.schedule import NoiseSchedule
from tests.exact import GaussianEnergy, MixtureEnergy, check_moments, within

SCHEDULE = NoiseSchedule.from_sigmas([0.5, 0.8], 0.1)


def jump(y, conditional, num_proposals, noise):
    """One jump between modes, without the chain that follows."""
    eps = noise.normal(num_proposals, *y.shape[1:]).transpose(0, 1)
    candidates, log_weight = conditional.proposals(y, eps)
    return take(candidates, choose(log_weight, noise))


def posterior(schedule, energy, level, x_next):
    """Mean and variance of y_t given x_{t+1}, for Gaussian data."""
    prior, spring = 1 / float(energy.variance[level]), float(schedule.spring_precision[level])
    variance = 1 / (prior + spring)
    return variance * (prior * float(energy.mean[level]) + spring * x_next), variance


def test_conditional_gradient_is_its_derivative():
    energy, t = MixtureEnergy(SCHEDULE), torch.tensor([0, 1, 1])
    conditional = Conditional(energy, SCHEDULE, t, torch.tensor([[0.3], [-1.0], [2.0]], dtype=torch.float64))
    y = torch.tensor([[0.1], [0.4], [1.1]], dtype=torch.float64)
    value, grad = conditional.value_and_grad(y)
    plain_value, plain_grad = value_and_grad(lambda z: conditional(z), y)
    torch.testing.assert_close(value, plain_value)
    torch.testing.assert_close(grad, plain_grad)
    torch.testing.assert_close(conditional.grad(y), plain_grad)


def test_chains_sample_the_closed_form_posterior():
    n, x = 20_000, 0.7
    energy = GaussianEnergy(SCHEDULE, mean=0.4, variance=0.3)
    for level in (0, 1):
        mean, variance = posterior(SCHEDULE, energy, level, x)
        t, x_next = torch.full((n,), level), torch.full((n, 1), x)
        for proposals in (0, 4):
            sampler = LevelSampler("mala", 25, torch.full((2,), 1.2 * variance**0.5), jump_proposals=proposals)
            y, _ = sampler.draw(Conditional(energy, SCHEDULE, t, x_next), Noise(0, torch.arange(n)))
            check_moments(y, mean, variance)


def test_normal_approximation_has_its_moments():
    n = 20_000
    energy = GaussianEnergy(SCHEDULE, mean=0.4, variance=0.3)
    t, x_next = torch.zeros(n, dtype=torch.long), torch.full((n, 1), 0.7)
    y = Conditional(energy, SCHEDULE, t, x_next).normal_approximation(Noise(0, torch.arange(n)).normal(2))
    score = -(0.7 - float(energy.mean[0])) / float(energy.variance[0])
    sigma = float(SCHEDULE.sigma[1])
    check_moments(y, 0.7 + sigma**2 * score, sigma**2)


def test_jumps_find_the_weights_of_separated_modes_where_langevin_steps_do_not():
    """Two modes 24 widths apart, seen from the middle: the posterior has the prior's weights, 0.3 and 0.7."""
    schedule, n = NoiseSchedule.from_sigmas([0.9], 0.0), 20_000
    energy = MixtureEnergy(schedule, weight=0.3, centre=1.2, width=0.1)
    t, x_next = torch.zeros(n, dtype=torch.long), torch.zeros(n, 1)
    start = torch.full((n, 1), -1.2 * float(schedule.scale[0]))
    conditional = Conditional(energy, schedule, t, x_next)
    stuck, _ = LevelSampler("mala", 20, 0.04).run(conditional, start, Noise(0, torch.arange(n)))
    assert float((stuck > 0).double().mean()) == 0
    free, _ = LevelSampler("mala", 100, 0.04, jump_proposals=16).run(conditional, start, Noise(0, torch.arange(n)))
    assert within(float((free > 0).double().mean()), 0.7, (0.21 / n) ** 0.5)


def test_one_jump_leaves_the_conditional_invariant():
    schedule, n = NoiseSchedule.from_sigmas([0.7], 0.0), 100_000
    energy = GaussianEnergy(schedule, mean=0.5, variance=0.2)
    mean, variance = posterior(schedule, energy, 0, 0.4)
    t, x_next = torch.zeros(n, dtype=torch.long), torch.full((n, 1), 0.4)
    exact = mean + variance**0.5 * Noise(1, torch.arange(n)).normal(1)
    y = jump(exact, Conditional(energy, schedule, t, x_next), 3, Noise(2, torch.arange(n)))
    check_moments(y, mean, variance)
    assert float((y != exact).double().mean()) > 0.3


def test_levels_without_spring_do_not_jump():
    schedule = NoiseSchedule.t6()
    t = torch.tensor([4, 5] * 50)
    y = Noise(0, torch.arange(100)).normal(2)
    moved = jump(y, Conditional(GaussianEnergy(schedule), schedule, t, y), 8, Noise(1, torch.arange(100)))
    assert torch.equal(moved[t == 5], y[t == 5])
    assert bool((moved[t == 4] != y[t == 4]).any())


def test_adaptation_settles_at_the_target():
    """From steps 20 times too small and too large, the acceptance of a Gaussian settles at 0.65 +- 0.02."""
    n, target = 500, 0.65
    step, kernel = torch.tensor([0.05, 20.0]), mala()
    t = torch.arange(2 * n) % 2
    y = Noise(0, torch.arange(2 * n)).normal(5)
    history = []
    for i in range(400):
        state = kernel.init(y, lambda z: -0.5 * z.square().sum(-1))
        state, info = kernel.step(
            state, lambda z: -0.5 * z.square().sum(-1), step[t, None], Noise(1, torch.arange(2 * n), stream=i)
        )
        y = state.y
        total = torch.zeros(2).index_add(0, t, info.acceptance)
        step = adapt_step_size(step, total, torch.full((2,), float(n)), target)
        history.append(total / n)
    settled = torch.stack(history[-100:]).mean(0)
    torch.testing.assert_close(settled, torch.full((2,), target), rtol=0, atol=0.02)
    assert float((step[0] / step[1]).log().abs()) < 0.1


def test_adaptation_leaves_levels_without_chains_alone():
    step = torch.tensor([0.3, 0.4])
    new = adapt_step_size(step, torch.tensor([0.9, 0.0]), torch.tensor([1.0, 0.0]), 0.6)
    assert float(new[1]) == float(step[1])
    assert float(new[0]) > float(step[0])


def test_a_denoised_start_stays_near_however_steep_f_is():
    """A drift that is as long as data can make it is left as it is; a longer one is cut and keeps its direction."""
    dim, t = 50, torch.zeros(3, dtype=torch.long)
    sigma, share = float(SCHEDULE.sigma[1]), float(SCHEDULE.posterior_share[0])
    natural = (1 - share) ** 0.5 * sigma
    direction = torch.randn(3, dim, generator=torch.Generator().manual_seed(0))
    direction = direction / direction.square().mean(-1, keepdim=True).sqrt()
    slope = torch.tensor([0.9, 1.3, 1e6])[:, None] * natural / (share * sigma**2) * direction
    start = torch.ones(3, dim)
    steep = Conditional(lambda y, t: (slope * y).sum(-1), SCHEDULE, t, start)
    drift = steep.normal_approximation(0 * start, damped=True, cut=True) - start
    torch.testing.assert_close(drift, torch.tensor([0.9, 1.3, 1.4])[:, None] * natural * direction, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("num_points", [1, 3])
def test_the_drift_of_data_is_not_cut(num_points):
    """By the exact f of noisy points it is at most sqrt(1 - s) sigma in the mean, and hardly ever cut."""
    num, dim = 2000, 40
    noise = Noise(0, torch.arange(num))
    points = torch.randn(num_points, dim, generator=torch.Generator().manual_seed(1))
    x = points[torch.arange(num) % num_points]
    for level in range(SCHEDULE.num_levels):
        t = torch.full((num,), level)
        factor, std = SCHEDULE.scale[level] * SCHEDULE.a_cum[level], SCHEDULE.scale[level] * SCHEDULE.sigma_cum[level]
        _, x_next = SCHEDULE.pair(x, t, noise)

        def energy(y, t, centres=float(factor) * points, variance=float(std) ** 2):
            return (-(y[:, None] - centres).square().sum(-1) / (2 * variance)).logsumexp(-1)

        uncut = SCHEDULE.posterior_share[level] * SCHEDULE.sigma[level + 1] ** 2 * gradient(at_level(energy, t), x_next)
        natural = (1 - SCHEDULE.posterior_share[level]).sqrt() * SCHEDULE.sigma[level + 1]
        share = uncut.square().mean(-1).sqrt() / natural
        assert float(share.square().mean()) < 1 + 4.5 * (2 / dim / num) ** 0.5
        conditional = Conditional(energy, SCHEDULE, t, x_next)
        cut = conditional.normal_approximation(torch.zeros_like(x), damped=True, cut=True) - x_next
        assert ((cut - uncut.float()).abs().amax(-1) > 1e-4).float().mean() < 1e-3


def test_the_noise_of_the_ancestral_guess_is_the_posteriors_share():
    """y(eps) - y(0) = sqrt(s) sigma eps at every level."""
    energy, t = GaussianEnergy(SCHEDULE, mean=0.4, variance=0.3), torch.tensor([0, 1])
    conditional = Conditional(energy, SCHEDULE, t, torch.tensor([[0.7], [-0.3]], dtype=torch.float64))
    eps = torch.tensor([[1.7], [-0.6]], dtype=torch.float64)
    spread = SCHEDULE.posterior_share[t].sqrt() * SCHEDULE.sigma[1:][t]
    torch.testing.assert_close(conditional.ancestral(eps) - conditional.ancestral(0 * eps), spread[:, None] * eps)


def test_a_candidate_is_drawn_by_its_weight_and_never_if_its_weight_is_no_number():
    n, weight = 20_000, torch.tensor([0.1, math.nan, 0.6, 0.3])
    chosen = choose(weight.log()[:, None].expand(4, n), Noise(0, torch.arange(n)))
    for share, p in zip((torch.bincount(chosen, minlength=4) / n).tolist(), (0.1, 0.0, 0.6, 0.3), strict=True):
        assert abs(share - p) <= 4 * math.sqrt(p * (1 - p) / n)

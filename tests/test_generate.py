"""Progressive sampling with exact energies gives the data back, for every kind of schedule."""

import itertools

import pytest
import torch

from springwell.generate import denoise, progressive
from springwell.level import LevelSampler
from springwell.noise import Noise
from springwell.samplers import Info, Kernel, State
from springwell.schedule import NoiseSchedule
from tests.exact import GaussianEnergy, MixtureEnergy, check_moments, within

MEAN, VARIANCE = 0.5, 0.4


def run(schedule, energy, steps, n=6000, fraction=0.9, jumps=0, denoised=False):
    # A well of a Gaussian held by its spring has variance v; steps near v^(1/2) mix in a few iterations.
    variance = 1 / (1 / GaussianEnergy(schedule, MEAN, VARIANCE).variance + schedule.spring_precision)
    start = "denoised" if denoised else "noisy"
    sampler = LevelSampler("mala", steps, fraction * variance.sqrt().float(), start, jumps)
    *_, (t, x, _) = progressive(energy, schedule, sampler, (1,), Noise(0, torch.arange(n)))
    assert t == 0
    return x


@pytest.mark.parametrize(
    "schedule",
    [
        NoiseSchedule.t6(),
        NoiseSchedule.log_snr(5),
        NoiseSchedule.from_sigmas([0.6, 0.7, 0.8, 0.95], 0.05),
        NoiseSchedule.marginal(0.1),
        NoiseSchedule.log_snr(8, initial_noise=0.0, top_spring=False),
    ],
    ids=["t6", "log-snr", "sigmas", "marginal", "no initial noise"],
)
def test_gaussian_data_come_back(schedule):
    x = run(schedule, GaussianEnergy(schedule, MEAN, VARIANCE), 25)
    a, sigma = float(schedule.a_cum[0]), float(schedule.sigma_cum[0])
    # x_T is drawn from N(0, I) though it has mean abar_T m; what is left of that after the springs is below 0.02.
    check_moments(x, a * MEAN, a**2 * VARIANCE + sigma**2, slack=0.02)


def test_a_denoised_start_changes_nothing_but_the_way():
    schedule = NoiseSchedule.log_snr(5)
    x = run(schedule, GaussianEnergy(schedule, MEAN, VARIANCE), 25, denoised=True)
    a, sigma = float(schedule.a_cum[0]), float(schedule.sigma_cum[0])
    check_moments(x, a * MEAN, a**2 * VARIANCE + sigma**2, slack=0.02)


def test_normal_approximation_along_t1k():
    """K = 0 with a thousand levels: the discretisation error is of the order of the hops' variance, 0.02."""
    schedule = NoiseSchedule.t1k()
    x = run(schedule, GaussianEnergy(schedule, MEAN, VARIANCE), 0, n=4000)
    check_moments(x, MEAN, VARIANCE, slack=0.02)


def test_damped_normal_approximation_along_wide_hops():
    """K = 0 with a denoised start is exact for a single data point, however wide the hops; without, it is far off."""
    schedule = NoiseSchedule.log_snr(5)
    a, sigma = float(schedule.a_cum[0]), float(schedule.sigma_cum[0])
    energy = GaussianEnergy(schedule, MEAN, 0.0)
    check_moments(run(schedule, energy, 0, denoised=True), a * MEAN, sigma**2, slack=1e-4)
    assert float(run(schedule, energy, 0).var()) > 2 * sigma**2


def test_mixture_keeps_its_weights():
    schedule, n = NoiseSchedule.from_sigmas([0.5, 0.6, 0.7, 0.8, 0.9], 0.05), 8000
    x = run(schedule, MixtureEnergy(schedule, 0.3, 1.2, 0.15), 20, n, fraction=0.5, jumps=8)
    assert within(float((x < 0).double().mean()), 0.3, (0.21 / n) ** 0.5 + 0.004)


def test_denoising_is_the_posterior_mean():
    schedule = NoiseSchedule.from_sigmas([0.5], 0.3)
    energy = GaussianEnergy(schedule, MEAN, VARIANCE)
    x_0 = torch.tensor([[0.2], [1.4]], dtype=torch.float64)
    a, sigma = float(schedule.a_cum[0]), float(schedule.sigma_cum[0])
    gain = a * VARIANCE / (a**2 * VARIANCE + sigma**2)
    torch.testing.assert_close(denoise(energy, schedule, x_0), MEAN + gain * (x_0 - a * MEAN))


@pytest.mark.parametrize("sweeps", [0, 3])
def test_acceptance_is_the_mean_over_a_draw_and_its_sweeps(sweeps):
    """Draw and sweeps have the acceptances 1, 1/2, 1/3, ... in turn, at every level."""
    schedule, counted = NoiseSchedule.from_sigmas([0.5, 0.8]), itertools.count()

    def step(state, logdensity, step_size, noise):
        return state, Info(torch.full((4,), 1 / (1 + next(counted) % (sweeps + 1))))

    sampler = LevelSampler(Kernel(lambda y, f: State(y), step), 1, 0.1)
    noise = Noise(0, torch.arange(4))
    first, *levels = progressive(GaussianEnergy(schedule), schedule, sampler, (1,), noise, sweeps)
    assert first.acceptance.tolist() == [1.0] * 4
    expected = sum(1 / (1 + i) for i in range(sweeps + 1)) / (sweeps + 1)
    for level in levels:
        torch.testing.assert_close(level.acceptance, torch.full((4,), expected))

"""Guidance on the line, with exact energies: tested chains have the guided law, classifier-free guidance has another."""

import math

import pytest
import torch

from springwell.applications.compose import product
from springwell.energy.labelled import guided
from springwell.level import LevelSampler
from springwell.model import Model
from springwell.schedule import NoiseSchedule
from tests.exact import GaussianEnergy, within

SCHEDULE = NoiseSchedule.log_snr(16, 6.0, -6.0)
WEIGHT, NUM = 4.0, 3000


def densities(y, t):
    """log p_t(y) and log p_t(y | c) of two Gaussian classes that overlap, up to one constant."""
    left, right = (GaussianEnergy(SCHEDULE, centre, 0.5)(y, t) for centre in (-0.8, 0.8))
    return torch.logaddexp(left, right) - math.log(2), right


def energy(y, t):
    every, one = densities(y, t)
    return guided(every, one, WEIGHT, math.log(2))


def moments(f):
    """Mean and variance of exp f(., 0) in the coordinates of x_0, by quadrature."""
    x = torch.linspace(-8, 8, 8001, dtype=torch.float64)
    log_p = f(float(SCHEDULE.scale[0]) * x[:, None], torch.zeros(len(x), dtype=torch.long))
    p = torch.softmax(log_p, 0)
    mean = float((p * x).sum())
    return mean, float((p * x**2).sum()) - mean**2


def drawn(num_steps, sweeps, f=energy):
    sampler = LevelSampler("mala", num_steps, (0.7 * SCHEDULE.sigma[1:]).float(), "ancestral")
    model = Model(f, SCHEDULE, sampler, event_shape=(1,))
    model.sweeps = sweeps
    return model.sample(NUM)[:, 0].double()


def test_chains_with_a_metropolis_test_draw_from_the_guided_energy():
    (mean, variance), x = moments(energy), drawn(5, 6)
    assert within(float(x.mean()), mean, (variance / NUM) ** 0.5)
    assert within(float(x.var()), variance, float((x - x.mean()).square().std()) / NUM**0.5)


def test_classifier_free_guidance_does_not():
    (mean, variance), x = moments(energy), drawn(0, 0)
    assert not within(float(x.mean()), mean, (variance / NUM) ** 0.5, 10)


@pytest.mark.parametrize("which", [0, 1])
def test_without_guidance_the_same_sampler_is_right(which):
    """Levels of one density are noisy versions of one another: what is wrong above is guidance, not the sampler."""

    def f(y, t):
        return densities(y, t)[which]

    (mean, variance), x = moments(f), drawn(0, 0, f)
    # 16 Gaussian hops have an error of their own.
    assert abs(float(x.mean()) - mean) < 0.03 + 4.5 * (variance / NUM) ** 0.5


def test_a_product_of_a_model_and_a_ratio_is_guidance():
    """p p(c | x)^w as a composition: the model of all data, and w log p(c | x) as a term."""
    sampler = LevelSampler("mala", 5, (0.7 * SCHEDULE.sigma[1:]).float(), "ancestral")
    whole = Model(lambda y, t: densities(y, t)[0], SCHEDULE, sampler, event_shape=(1,))

    def ratio(x):
        every, one = densities(float(SCHEDULE.scale[0]) * x, torch.zeros(len(x), dtype=torch.long))
        return one - every

    x = torch.linspace(-2, 2, 9)[:, None]
    f = energy(float(SCHEDULE.scale[0]) * x, torch.zeros(9, dtype=torch.long))
    torch.testing.assert_close(-product([whole, ratio], [1.0, WEIGHT]).energy(x), f, rtol=1e-4, atol=1e-4)

"""Guidance on the line, with exact energies: chains and rejection have the guided law, classifier-free guidance has another."""

import math

import pytest
import torch
from torch import nn

from springwell.applications.compose import product
from springwell.data.toy import toy_data
from springwell.energy.residual import LevelEnergy
from springwell.errors import UserError
from springwell.evaluation.toy import mmd
from springwell.level import LevelSampler
from springwell.model import Model
from springwell.noise import Noise
from springwell.schedule import NoiseSchedule
from tests.exact import within

SCHEDULE = NoiseSchedule.log_snr(16, 6.0, -6.0)
WEIGHT, NUM = 4.0, 3000


class Overlapping(nn.Module):
    """f(y, sigma | c) of equally many data of Gaussian classes N(-0.8, 1/2) and N(0.8, 1/2), normalised; -1 for all data."""

    event_shape = (1,)

    def forward(self, y, sigma, dropout=None, label=None):
        variance = 0.5 + sigma**2
        left, right = (-((y[:, 0] - m) ** 2) / (2 * variance) - 0.5 * torch.log(2 * math.pi * variance) for m in (-0.8, 0.8))
        every = torch.logaddexp(left, right) - math.log(2)
        return every if label is None else torch.where(label < 0, every, torch.where(label == 0, left, right))


def classes(num_steps=0):
    sampler = LevelSampler("mala", num_steps, (0.7 * SCHEDULE.sigma[1:]).float(), "ancestral")
    return Model(LevelEnergy(Overlapping(), SCHEDULE, ("left", "right")), SCHEDULE, sampler, event_shape=(1,))


def moments(weight):
    """Mean and variance of p(x) p(right | x)^w in the coordinates of x_0, by quadrature."""
    a, sigma = float(SCHEDULE.a_cum[0]), float(SCHEDULE.sigma_cum[0])
    x, variance = torch.linspace(-8, 8, 8001, dtype=torch.float64), 0.5 * a**2 + sigma**2
    left, right = (-((x - a * m) ** 2) / (2 * variance) for m in (-0.8, 0.8))
    every = torch.logaddexp(left, right)
    p = torch.softmax(every + weight * (right - every), 0)
    mean = float((p * x).sum())
    return mean, float((p * x**2).sum()) - mean**2


def check(x, weight):
    (mean, variance), x = moments(weight), x[:, 0].double()
    assert within(float(x.mean()), mean, (variance / NUM) ** 0.5)
    assert within(float(x.var()), variance, float((x - x.mean()).square().std()) / NUM**0.5)


@pytest.mark.parametrize("weight", [WEIGHT, 0.5])
def test_chains_with_a_metropolis_test_draw_from_the_guided_energy(weight):
    check(classes(5).given("right", weight, sweeps=6).sample(NUM), weight)


def test_rejection_draws_from_the_guided_density():
    check(classes(5).given("right", WEIGHT, sweeps=1, rejection=True).sample(NUM), WEIGHT)
    with pytest.raises(AssertionError):
        check(classes(5).given("right", sweeps=1).sample(NUM), WEIGHT)


def test_a_sample_by_rejection_depends_on_its_seed_and_number_alone():
    guided = classes().given("right", 20.0, rejection=True)
    x = guided.sample(70, seed=1)
    assert torch.equal(guided.sample(5, seed=1), x[:5])
    assert torch.equal(torch.cat(list(guided.sample_batches(70, seed=1, batch=64, start=60))), x[60:])
    # What is kept at once is the class's own sample.
    same = (x == classes().given("right").sample(70, seed=1))[:, 0]
    assert 0 < int(same.sum()) < 70


def test_rejection_that_keeps_too_little_ends():
    with pytest.raises(UserError, match=r"rejection: kept \d+ of 64 samples after 100 draws of the class for each"):
        classes().given("right", 1e6, rejection=True).sample(64)
    with pytest.raises(UserError, match=r"guidance=0\.5: rejection needs at least 1"):
        classes().given("right", 0.5, rejection=True)


def test_classifier_free_guidance_draws_from_another_law():
    mean, variance = moments(WEIGHT)
    x = classes().given("right", WEIGHT).sample(NUM)[:, 0].double()
    assert not within(float(x.mean()), mean, (variance / NUM) ** 0.5, 10)


@pytest.mark.parametrize("weight", [0, 1])
def test_without_guidance_the_same_sampler_is_right(weight):
    """Levels of one density are noisy versions of one another: what is wrong above is guidance, not the sampler."""
    whole = classes()
    x = whole.given("right", weight).sample(NUM)
    mean, variance = moments(weight)
    # 16 Gaussian hops have an error of their own.
    assert abs(float(x.mean()) - mean) < 0.03 + 4.5 * (variance / NUM) ** 0.5
    if weight == 0:
        assert torch.equal(x, whole.sample(NUM))


def test_a_product_of_a_model_and_a_ratio_is_guidance():
    """p p(c | x)^w as a composition: the model of all data, and w log p(c | x) as a term."""
    whole, x = classes(5), torch.linspace(-2, 2, 9)[:, None]
    composed = product([whole, lambda x: whole.classify(x)[:, 1].float()], [1.0, WEIGHT])
    # p p(c | x)^w = p(c) p(x | c) p(c | x)^(w - 1)
    f = -whole.given("right", WEIGHT).energy(x) + math.log(1 / 2)
    torch.testing.assert_close(-composed.energy(x), f, rtol=1e-4, atol=1e-4)


class Arms(nn.Module):
    """The exact f(y, sigma | c) of the five arms of the pinwheel, for batches of one noise."""

    event_shape = (2,)
    toy = toy_data("pinwheel")

    def forward(self, y, sigma, dropout=None, label=None):
        by_class = self.toy.mode_log_density(y, 1.0, float(sigma[0])).to(y.dtype)
        every = by_class.logsumexp(-1)
        if label is None:
            return every
        one = by_class.gather(1, label.clamp(min=0)[:, None])[:, 0] + math.log(5)
        return torch.where(label < 0, every, one)


def test_guided_draws_in_the_plane_are_at_the_null_level():
    """Class 0 of the pinwheel, guided by 20: MMD^2 from exact draws, which are the exact class's, weighted by p(c | x)^19."""
    num, weight, schedule = 400, 20.0, NoiseSchedule.log_snr(12, 6.0, -6.0)
    sampler = LevelSampler("mala", 5, (0.4 * schedule.sigma[1:]).float(), "ancestral")
    whole = Model(LevelEnergy(Arms(), schedule, tuple("01234")), schedule, sampler, event_shape=(2,))
    noise = Noise(1, torch.arange(6 * num), dtype=torch.float64)
    x, label = Arms.toy.labelled(noise)
    a, sigma = float(schedule.a_cum[0]), float(schedule.sigma_cum[0])
    x = a * x + sigma * noise.normal(2)
    log_posterior = Arms.toy.mode_log_density(x, a, sigma).log_softmax(-1)[:, 0]
    exact = x[(label == 0) & (noise.uniform().log() <= (weight - 1) * log_posterior)]
    guided = whole.given(0, weight, sweeps=2, rejection=True).sample(num).double()
    distance, null = mmd(guided, exact[:num])
    assert len(exact) >= num
    assert distance < null
    plain = whole.given(0, weight).sample(num, num_steps=0).double()
    far, _ = mmd(plain, exact[:num])
    assert far > 5 * null

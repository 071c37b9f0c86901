"""Which data a likelihood is measured on, at which noise a profile is, and what a tolerance is a share of."""

import math

import pytest
import torch

from springwell.data.source import DataSource
from springwell.evaluation.likelihood import measure, settings_for
from springwell.evaluation.points import Measurable, evaluation_points
from springwell.evaluation.scores import score
from springwell.level import LevelSampler
from springwell.model import Model
from springwell.noise import Noise, Stream
from springwell.schedule import NoiseSchedule
from tests.exact import GaussianEnergy, gaussian_model

TEST, TRAIN = 0.5, -0.5


def split_data(model):
    """Held-out data at one point, training data at another."""

    def at(value):
        return lambda noise: torch.full((len(noise), *model.event_shape), value)

    return Measurable(DataSource(model.event_shape, at(TRAIN), at(TEST), model.shift, model.scale, num_held_out=30), False)


@pytest.mark.parametrize(("split", "centre"), [("test", TEST), ("train", TRAIN)])
def test_points_are_of_the_split_that_is_asked_for(split, centre):
    model = gaussian_model()
    x_0 = evaluation_points(model, split_data(model), 1000, split).x_0
    assert len(x_0) == (30 if split == "test" else 1000)
    a, sigma = float(model.schedule.a_cum[0]), float(model.schedule.sigma_cum[0])
    assert abs(float(x_0.mean()) - a * centre) < 4.5 * sigma / math.sqrt(x_0.numel())


def test_a_likelihood_is_of_held_out_data_and_its_chains_start_there():
    model = gaussian_model()
    settings = settings_for(model, 0.1, systems=4, chains=4, densities=4, budget=4)
    found = measure(model, split_data(model), settings, 30, burn=0)
    # The held-out point and its mirror image are equally likely: only the points tell them apart.
    assert float(found.points.x_0.mean()) > 0.4
    assert found.record["split"] == "test"


def test_chains_from_data_start_at_held_out_data():
    """Training data far out have f of hundreds of nats less."""
    model = gaussian_model()
    data = split_data(model)
    far = data._replace(source=DataSource(model.event_shape, lambda noise: noise.normal(3) + 20.0, data.source.held_out,
                                          model.shift, model.scale, num_held_out=30))  # fmt: skip
    settings = settings_for(model, 0.1, systems=4, chains=4, densities=4, budget=4)
    chains = measure(model, far, settings, 30, burn=0).record["sources"]["held-out data"]
    assert chains["mean_f_before"] > -20


def test_a_tolerance_in_bits_per_dimension_is_one_in_nats_of_the_whole():
    assert settings_for(gaussian_model(dim=3), 0.01).tolerance == pytest.approx(0.01 * 3 * math.log(2))


def test_a_profile_has_every_level_at_its_own_noise():
    """Data N(0.4, 0.6 I): f of the image diffused to level t, written out."""
    schedule, num = NoiseSchedule.from_sigmas([0.3, 0.6, 0.9], 0.2), 5
    energy = GaussianEnergy(schedule, 0.4, 0.6)
    model = Model(lambda y, t: energy(y, t), schedule, LevelSampler("mala", 1, 0.1), event_shape=(1, 2, 2))
    x = torch.randn(num, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    found = score(model, x, seed=3)
    noise = Noise(3, torch.arange(num), Stream.SCORES)
    noise.uniform(1, 2, 2)
    assert found.levels == [0, 1, 2]
    for t in found.levels:
        a, sigma = float(schedule.a_cum[t]), float(schedule.sigma_cum[t])
        x_t = a * x + sigma * noise.normal(1, 2, 2)
        expected = -((x_t - a * 0.4).square() / (2 * (a**2 * 0.6 + sigma**2))).flatten(1).sum(-1)
        torch.testing.assert_close(found.profile[:, t].float(), expected, rtol=1e-4, atol=1e-4)

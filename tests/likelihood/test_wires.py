"""Which data a likelihood is measured on, at which noise a profile is, and what a tolerance is a share of."""

import math

import pytest
import torch

from springwell.app.cli.likelihood import likelihood_lines
from springwell.data.source import DataSource
from springwell.energy.prior import Prior
from springwell.energy.residual import LevelEnergy, NoiseMLP, ResidualEnergy
from springwell.evaluation.likelihood import _figures, measure, settings_for
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


def test_a_crossed_bracket_quotes_its_lower_bound_in_figures_and_lines():
    model = gaussian_model()
    settings = settings_for(model, 0.1, systems=4, chains=4, densities=4, budget=4)
    found = measure(model, split_data(model), settings, 30, burn=1)
    crossed = found.bracket._replace(verdict="crossed")
    figures = _figures(model, found.points, crossed)
    assert figures["nll"] == figures["nll_optimistic"] != _figures(model, found.points, found.bracket)["nll"]
    assert figures["nll_standard_error_log_z"] == crossed.lower.standard_error
    assert any("Bennett" in line for line in likelihood_lines(found.record))
    assert found.record["num_classes"] == 0
    assert "all classes together" in likelihood_lines({**found.record, "num_classes": 10})[0]
    assert not any("Bennett" in line for line in likelihood_lines({**found.record, **figures, **crossed.record()}))


def test_a_claim_is_the_exact_density_of_noisy_data_in_their_units():
    """An untrained energy is the Gaussian of its prior: nats per point, written out, from what the energy claims."""
    schedule, shift, scale = NoiseSchedule.log_snr(9, 4.0, -5.0), torch.tensor([1.0, -5.0, 0.0]), torch.tensor([0.1, 3.0, 20.0])
    energy = LevelEnergy(ResidualEnergy(NoiseMLP(3, 2, 8, 1), Prior.gaussian(torch.full((3,), 0.4), 0.6)), schedule)
    model = Model(energy, schedule, LevelSampler("mala", 1, 0.1), shift, scale)
    settings = settings_for(model, 0.1, systems=4, chains=4, densities=4, budget=4)
    found = measure(model, split_data(model), settings, 30, burn=1)
    a, sigma = float(schedule.a_cum[0]), float(schedule.sigma_cum[0])
    law = torch.distributions.Normal(shift + scale * a * 0.4, scale * math.sqrt(a**2 * 0.6 + sigma**2))
    exact = -float(law.log_prob(shift + scale * found.points.x_0).sum(-1).double().mean())
    assert found.record["nll_claimed"] == pytest.approx(exact, abs=1e-4)
    assert found.record["claim"] == pytest.approx(-3 * math.log(float(schedule.scale[0])))


def test_noisy_grey_values_cost_their_frequencies_under_the_exact_density():
    """Independent pixels: g is a mixture of noisy grey values, and with the decoder -log of their frequencies is left."""
    schedule, cell = NoiseSchedule.from_sigmas([0.3, 0.6, 0.9], 0.3), 2 / 3
    generator = torch.Generator().manual_seed(0)
    values = torch.multinomial(torch.tensor([0.7, 0.1, 0.05, 0.15]), 200 * 4, True, generator=generator).view(200, 1, 2, 2)
    x, unit = cell * values - 1, torch.ones(1, 2, 2)
    source = DataSource((1, 2, 2), lambda noise: x[: len(noise)], lambda noise: x[: len(noise)], 0 * unit, unit,
                        num_held_out=50, cell=cell, rows=(85 * values).byte().numpy())  # fmt: skip
    data = Measurable(source, False)
    model = Model(lambda y, t: -y.flatten(1).sum(-1), schedule, LevelSampler("mala", 1, 0.1), event_shape=(1, 2, 2))
    points, log_pi = evaluation_points(model, data, 50), data.frequencies()
    a, sigma = float(schedule.a_cum[0]), float(schedule.sigma_cum[0])
    law = torch.distributions.Normal(a * (cell * torch.arange(4).view(4, 1, 1, 1, 1).double() - 1), sigma)
    log_g = (log_pi[:, None] + law.log_prob(points.x_0.double())).logsumexp(0).flatten(1).sum(-1)
    exact = log_pi.gather(0, values[:50, 0].view(50, 2, 2)[:, None].view(50, 1, 2, 2)).flatten(1).sum(-1)
    torch.testing.assert_close(log_g + points.log_volume, exact, rtol=1e-5, atol=1e-5)


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

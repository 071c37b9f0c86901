"""The paper's estimator where every level is known."""

import math
from types import SimpleNamespace

import pytest
import torch

from springwell.errors import UserError
from springwell.likelihood import ratios
from springwell.likelihood.ratios import level_ratios, tune_steps
from springwell.schedule import NoiseSchedule
from tests.exact import GaussianEnergy
from tests.likelihood.targets import noise


@pytest.mark.parametrize("dim", [2, 16])
def test_gaussian_data(dim):
    """log Z_0 of y_0 within 4 standard errors, and the curve ends at the estimate."""
    schedule = NoiseSchedule.linear(100)
    energy = GaussianEnergy(schedule, 0.2, 0.5)
    steps = tune_steps(energy, schedule, (dim,))
    found = level_ratios(energy, schedule, (dim,), noise(1000, 1), 4, steps)
    exact = 0.5 * dim * math.log(2 * math.pi * float(energy.variance[0]))
    value, error = found.estimate(16)
    assert abs(value - exact) <= 4 * error
    assert error < 0.02 * dim
    assert float(found.acceptance.min()) > 0.5
    assert found.curve([100, 1000])[-1] == pytest.approx(value)


def test_each_ratio_is_that_of_its_levels():
    """log Z_t / Z_{t+1} of every level, in the coordinates y_t; 5 standard errors of 100 comparisons."""
    schedule = NoiseSchedule.linear(100)
    energy = GaussianEnergy(schedule, 0.0, 0.5)
    num = 2000
    found = level_ratios(energy, schedule, (2,), noise(num, 2), 4, tune_steps(energy, schedule, (2,)))
    log_z = torch.cat([torch.log(2 * math.pi * energy.variance), torch.zeros(1).double()])
    ratio = found.log_ratio.exp()
    error = ratio.std(1) / ratio.mean(1) / math.sqrt(num)
    assert bool(((ratio.mean(1).log() - (log_z[:-1] - log_z[1:])).abs() <= 5 * error + 1e-6).all())


def test_levels_without_spring_are_refused():
    schedule = NoiseSchedule.t6()
    with pytest.raises(UserError, match="needs every spring"):
        level_ratios(GaussianEnergy(schedule), schedule, (2,), noise(4), 0, torch.ones(6))
    with pytest.raises(UserError, match="at least 16"):
        level_ratios(
            GaussianEnergy(NoiseSchedule.linear(3)), NoiseSchedule.linear(3), (2,), noise(4), 0, torch.ones(3)
        ).estimate()


def test_steps_of_all_levels_are_the_same_share_of_their_springs_if_those_of_the_pilot_are(monkeypatch):
    """The pilot tunes some levels; between them the step over the spring's width is interpolated."""
    monkeypatch.setattr(ratios, "tune_step_size", lambda kernel, target, y, first, *rest: SimpleNamespace(step_size=first / 5))
    schedule = NoiseSchedule.from_sigmas([0.1 + 0.02 * t for t in range(30)], 0.05)
    steps = tune_steps(GaussianEnergy(schedule), schedule, (2,))
    torch.testing.assert_close(steps, 0.1 * schedule.sigma[1:], check_dtype=False)


def test_the_acceptance_of_every_level_is_that_of_its_own_chains():
    """Steps of a tenth of a spring are taken, and steps of ten springs are not."""
    schedule = NoiseSchedule.from_sigmas([0.3, 0.4, 0.5, 0.6], 0.2)
    share = torch.tensor([0.1, 10.0, 0.1, 0.1])
    found = level_ratios(GaussianEnergy(schedule), schedule, (16,), noise(64), 4, share * schedule.sigma[1:])
    assert found.acceptance.shape == (4,)
    assert [bool(acceptance > 0.5) for acceptance in found.acceptance] == [True, False, True, True]

"""Calibration of scores and drift of chains, against energies whose answers are known."""

import pytest
import torch

from springwell.app.cli.evaluate import evaluation_lines, level_lines
from springwell.data.arrays import array_source
from springwell.evaluation.calibration import calibrated, calibration, drift
from springwell.level import LevelSampler
from springwell.model import Model
from springwell.schedule import NoiseSchedule

SCHEDULE = NoiseSchedule.log_snr(6, 5.0, -5.0)


@pytest.fixture(scope="module")
def data():
    return array_source(torch.randn(20_000, 3, generator=torch.Generator().manual_seed(0)) * 2 + 1)


def model(steepness: float) -> Model:
    """Exact energies of N(0, I) data, times a factor."""

    def energy(y, t):
        return -steepness * y.square().sum(-1) / (2 * SCHEDULE.scale[t].float() ** 2)

    return Model(energy, SCHEDULE, LevelSampler("mala", 5, 0.3), shift=torch.ones(3), scale=torch.full((3,), 2.0))


@pytest.mark.parametrize("steepness", [1.0, 1.25, 0.8])
def test_calibration_is_one_over_the_steepness(data, steepness):
    found = calibration(model(steepness), data, 2000)
    assert found.num == 2000
    assert bool(((found.value - 1 / steepness).abs() <= 4.5 * found.standard_error).all())


def test_a_constant_level_is_compared_with_the_noise_it_has(data):
    """The score of level t at the noise of another level has another length: c_t depends on which level is asked."""

    def wrong(y, t):
        return -y.square().sum(-1) / (2 * SCHEDULE.scale[t.clamp(max=2)].float() ** 2)

    right = model(1.0)
    shifted = Model(wrong, SCHEDULE, right.sampler, shift=right.shift, scale=right.scale)
    found = calibration(shifted, data, 2000)
    expected = (SCHEDULE.scale[torch.arange(6).clamp(max=2)] / SCHEDULE.scale) ** 2
    assert bool(((found.value - expected).abs() <= 4.5 * found.standard_error).all())


def test_a_level_without_noise_has_no_calibration(data):
    schedule = NoiseSchedule.from_sigmas([0.5, 0.7, 0.9])
    assert float(schedule.sigma_cum[0]) == 0

    def energy(y, t):
        return -y.square().sum(-1) / (2 * schedule.scale[t].float() ** 2)

    bare = Model(energy, schedule, LevelSampler("mala", 5, 0.3), shift=torch.ones(3), scale=torch.full((3,), 2.0))
    found = calibration(bare, data, 2000)
    assert found.levels == [1, 2]
    assert bool(((found.value - 1).abs() <= 4.5 * found.standard_error).all())


def test_chains_drift_only_where_level_0_is_not_the_datas_law(data):
    still, moving = (drift(model(steepness), data, 512) for steepness in (1.0, 1.5))
    assert abs(still["drift"]) < 4 * still["drift_standard_error"]
    # Data have mean f -1.5 x 3/2; chains at 1.5 times the precision reach -3/2.
    assert moving["drift"] == pytest.approx(0.75, abs=4 * moving["drift_standard_error"])
    assert 0.5 < still["drift_acceptance"] <= 1


def test_both_are_written_down(data):
    found = calibrated(model(1.0), data, 100, 0)
    assert found["calibration_levels"] == list(range(6))
    assert len(found["calibration"]) == len(found["calibration_standard_error"]) == 6
    assert found["drift_chains"] == 64


def test_every_level_is_printed():
    c = [round(0.9 + 0.01 * t, 4) for t in range(14)]
    lines = level_lines({"calibration": c, "calibration_levels": [5 * t for t in range(14)]})
    assert lines[0].startswith("c_t       levels 0 ... 55: 0.900 0.910 ")
    assert lines[1] == "c_t       levels 60 ... 65: 1.020 1.030"
    assert level_lines({}) == []
    drifted = {"drift": 0.0, "drift_standard_error": 1.0, "drift_chains": 4, "drift_steps": 9, "calibration_num": 8}
    measured = {"calibration": c, "calibration_levels": list(range(14)), "calibration_standard_error": c, **drifted}
    plane = {"num_samples": 3, "mmd2": 0.0, "mmd2_null_95": 0.0, **measured}
    assert evaluation_lines(plane)[-2:] == level_lines(measured)

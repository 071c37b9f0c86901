"""The noise schedule: the authors' numbers, closed forms, and the laws of diffuse and pair."""

import json
import math
from pathlib import Path

import pytest
import torch

from springwell.errors import UserError
from springwell.noise import Noise
from springwell.schedule import NoiseSchedule, spread_levels

OFFICIAL = json.loads((Path(__file__).parent / "fixtures" / "official_schedule.json").read_text())
ALL = {
    "t6": NoiseSchedule.t6(),
    "t6 without initial noise": NoiseSchedule.t6(initial_noise=0.0),
    "t1k": NoiseSchedule.t1k(),
    "log-snr": NoiseSchedule.log_snr(10),
    "marginal": NoiseSchedule.marginal(0.1),
    "sigmas": NoiseSchedule.from_sigmas([0.3, 0.6, 0.95], 0.05),
}


def test_t6_is_the_authors():
    schedule = NoiseSchedule.t6()
    for name, ours in (
        ("sigmas", schedule.sigma),
        ("a_s", schedule.a),
        ("a_s_cum", schedule.a_cum),
        ("sigmas_cum", schedule.sigma_cum),
    ):
        torch.testing.assert_close(ours, torch.tensor(OFFICIAL[name], dtype=torch.float64), rtol=0, atol=1e-6)
    torch.testing.assert_close(schedule.scale, torch.tensor(OFFICIAL["a_s_prev"][1:], dtype=torch.float64), rtol=0, atol=1e-6)
    assert schedule.spring.tolist() == [bool(v) for v in OFFICIAL["is_recovery"][1:]]


def test_t6_step_sizes_and_loss_weights_follow_their_formula():
    schedule = NoiseSchedule.t6()
    for t in range(6):
        c_square = float(schedule.sigma_cum[t] / schedule.sigma_cum[0])
        expected = math.sqrt(2e-4 * c_square) * float(schedule.sigma[t + 1])
        assert float(schedule.langevin_step[t]) == pytest.approx(expected, rel=1e-12)
        assert float(schedule.loss_weight[t]) == pytest.approx(float(schedule.sigma[1] / schedule.sigma[t + 1]), rel=1e-12)


def test_t1k_has_linear_variances_and_no_initial_noise():
    schedule = NoiseSchedule.t1k()
    assert schedule.num_levels == 1000
    expected = torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64)
    torch.testing.assert_close(schedule.sigma[1:] ** 2, expected, rtol=1e-12, atol=0)
    assert float(schedule.sigma[0]) == 0
    assert bool(schedule.spring.all())


@pytest.mark.parametrize("num_levels", [1, 2, 5, 6, 10, 100, 999, 1000, 1001, 4000])
def test_any_number_of_levels_keeps_the_total_noise(num_levels):
    total = NoiseSchedule.t1k().a_cum[-1].log()
    for schedule in (NoiseSchedule.linear(num_levels), NoiseSchedule.t6(num_levels)):
        assert schedule.num_levels == num_levels
        # Finer ladders split each beta in equal parts, which changes the product in second order of beta only.
        assert float(schedule.a_cum[-1].log()) == pytest.approx(float(total), rel=2e-2)


@pytest.mark.parametrize("num_levels", [1, 2, 12])
def test_log_snr_steps_are_equal(num_levels):
    schedule = NoiseSchedule.log_snr(num_levels, 7, -5)
    log_snr = 2 * (schedule.a_cum / schedule.sigma_cum).log()
    torch.testing.assert_close(log_snr, torch.linspace(7, -5, num_levels + 1, dtype=torch.float64), rtol=0, atol=1e-9)
    without = NoiseSchedule.log_snr(num_levels, 7, -5, initial_noise=0.0)
    assert float(without.sigma[0]) == 0
    torch.testing.assert_close(without.sigma_cum[1:], schedule.sigma_cum[1:], rtol=1e-9, atol=0)


@pytest.mark.parametrize("name", ALL)
def test_springs_and_scales_are_values(name):
    schedule = ALL[name]
    for t in range(schedule.num_levels):
        if schedule.spring[t]:
            assert float(schedule.scale[t]) == float(schedule.a[t + 1])
            assert float(schedule.spring_precision[t]) == pytest.approx(float(schedule.sigma[t + 1]) ** -2)
        else:
            assert float(schedule.scale[t]) == 1
            assert float(schedule.spring_precision[t]) == 0
    assert not ALL["t6"].spring[-1]
    assert not ALL["marginal"].spring[-1]


@pytest.mark.parametrize("name", ALL)
def test_diffuse_and_pair_have_the_right_moments(name):
    """Means and covariances of (x_t, y_t, x_{t+1}) given x, each within 5 standard errors."""
    schedule, n = ALL[name], 40_000
    x = torch.full((n, 1), 1.3)
    for level in sorted({0, schedule.num_levels // 2, schedule.num_levels - 1}):
        t = torch.full((n,), level)
        x_t = schedule.diffuse(x, t, Noise(1, torch.arange(n))).double()
        a_cum, sigma_cum = float(schedule.a_cum[level]), float(schedule.sigma_cum[level])
        assert abs(float(x_t.mean()) - 1.3 * a_cum) <= 5 * sigma_cum / n**0.5 + 1e-6
        assert abs(float(x_t.var()) - sigma_cum**2) <= 5 * sigma_cum**2 * (2 / n) ** 0.5 + 1e-6

        y_t, x_next = (v.double()[:, 0] for v in schedule.pair(x, t, Noise(2, torch.arange(n))))
        scale, a, sigma = float(schedule.scale[level]), float(schedule.a[level + 1]), float(schedule.sigma[level + 1])
        x_from_y = y_t / scale
        residual = x_next - a * x_from_y
        assert abs(float(y_t.mean()) - 1.3 * a_cum * scale) <= 5 * scale * sigma_cum / n**0.5 + 1e-6
        assert abs(float(residual.mean())) <= 5 * sigma / n**0.5 + 1e-6
        assert abs(float(residual.var()) - sigma**2) <= 5 * sigma**2 * (2 / n) ** 0.5 + 1e-6
        covariance = float(((residual - residual.mean()) * (x_from_y - x_from_y.mean())).mean())
        assert abs(covariance) <= 5 * sigma * sigma_cum / n**0.5 + 1e-6
        if schedule.spring[level]:
            torch.testing.assert_close(residual, x_next - y_t, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: NoiseSchedule.t6(0),
        lambda: NoiseSchedule.linear(-3),
        lambda: NoiseSchedule.log_snr(4, -1, 2),
        lambda: NoiseSchedule.from_sigmas([]),
        lambda: NoiseSchedule.from_sigmas([0.5, 1.2]),
        lambda: NoiseSchedule.from_sigmas([0.5, -0.5]),
        lambda: NoiseSchedule.from_sigmas([0.5, 0.0]),
        lambda: NoiseSchedule.from_sigmas([0.5, 1.0]),
        lambda: NoiseSchedule.from_sigmas([0.5], initial_noise=1.0),
        lambda: NoiseSchedule.log_snr(4, 5, -5, initial_noise=0.9),
        lambda: NoiseSchedule.from_sigmas([0.5, math.nan]),
    ],
)
def test_impossible_schedules_are_refused(make):
    with pytest.raises(UserError):
        make()


def test_spread_levels_are_even_and_have_both_ends():
    assert spread_levels(1000, 5) == [0, 250, 500, 749, 999]
    assert spread_levels(1001, 12) == [0, 91, 182, 273, 364, 455, 545, 636, 727, 818, 909, 1000]
    assert spread_levels(4, 50) == [0, 1, 2, 3]
    assert spread_levels(1, 50) == [0]
    assert spread_levels(7, 1) == [0]
    assert spread_levels(0, 8) == []


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: NoiseSchedule(3, torch.ones(3, dtype=torch.bool)), "sigma: is an int; give a tensor"),
        (lambda: NoiseSchedule(torch.full((4,), 0.5), [True] * 3), "spring: is a list; give a tensor"),
        (lambda: NoiseSchedule.log_snr(3, high="a"), "log-SNR a ... -5.0: must be numbers that fall"),
        (lambda: NoiseSchedule.log_snr(3, -5, 5), "log-SNR -5 ... 5: must be numbers that fall"),
        (lambda: NoiseSchedule.log_snr(3, 40), "log-SNR 40 ... -5.0: starts at the noise 2.1e-09, which"),
    ],
)
def test_what_a_schedule_cannot_be_made_of(make, words):
    with pytest.raises(UserError) as error:
        make()
    assert str(error.value).startswith(words)

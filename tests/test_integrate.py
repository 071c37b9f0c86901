"""The integrator follows the probability flow of exact energies, to second order in its hops."""

import pytest
import torch

from springwell.errors import UserError
from springwell.integrate import Integrator
from springwell.level import LevelSampler
from springwell.model import Model
from springwell.noise import Noise
from springwell.schedule import NoiseSchedule
from tests.exact import GaussianEnergy, MixtureEnergy, check_moments, within

MEAN, VARIANCE = 0.5, 0.4
SCHEDULE = NoiseSchedule.log_snr(256, 6.0, -8.0)


def ends(integrator, energy, num, dtype=torch.float64, schedule=SCHEDULE):
    samples = list(integrator.trajectory(energy, schedule, (1,), Noise(0, torch.arange(num), dtype=dtype)))
    assert [sample.t for sample in samples] == [schedule.num_levels, *integrator.levels(schedule.num_levels)]
    return samples[0].x, samples[-1].x


def error(evaluations):
    """Largest distance from the exact flow of Gaussian data, x_0 = abar_0 m + (v_0 / v_T)^(1/2) (x_T - abar_T m)."""
    start, end = ends(Integrator(evaluations, stochastic=False), GaussianEnergy(SCHEDULE, MEAN, VARIANCE), 200)
    a, v = SCHEDULE.a_cum[[0, -1]], SCHEDULE.a_cum[[0, -1]] ** 2 * VARIANCE + SCHEDULE.sigma_cum[[0, -1]] ** 2
    exact = a[0] * MEAN + (v[0] / v[1]).sqrt() * (start - a[1] * MEAN)
    return float((end - exact).abs().max())


def test_the_error_on_gaussian_data_falls_with_the_square_of_the_number_of_hops():
    coarse, middle, fine = error(18), error(52), error(256)
    # 17, 51 and 255 hops, all of equal length: ratios 9 and 25 in the limit; first order would have 3 and 5.
    assert 6 < coarse / middle < 14
    assert 15 < middle / fine < 35
    assert fine < 2e-3


def test_stochastic_hops_have_the_law_of_the_data():
    _, x = ends(Integrator(128), GaussianEnergy(SCHEDULE, MEAN, VARIANCE), 6000)
    a, sigma = float(SCHEDULE.a_cum[0]), float(SCHEDULE.sigma_cum[0])
    check_moments(x, a * MEAN, a**2 * VARIANCE + sigma**2, slack=0.01)


@pytest.mark.parametrize("stochastic", [False, True])
def test_modes_keep_their_weights(stochastic):
    num = 8000
    _, x = ends(Integrator(64, stochastic), MixtureEnergy(SCHEDULE, 0.3, 1.2, 0.15), num)
    assert within(float((x < 0).double().mean()), 0.3, (0.21 / num) ** 0.5 + 0.004)


def test_a_model_spends_as_many_gradients_as_asked_and_denoises_last():
    exact, calls = GaussianEnergy(SCHEDULE, MEAN, VARIANCE), []

    def energy(y, t):
        calls.append(int(t[0]))
        return exact(y, t)

    model = Model(energy, SCHEDULE, LevelSampler("mala", 0, 0.1, "denoised"), event_shape=(1,), denoise=True)
    x = model.sample(16, seed=0, evaluations=9)
    assert calls == Integrator(9).levels(256)
    assert calls[-1] == 0
    torch.testing.assert_close(model.sample(4, seed=0, evaluations=9), x[:4])
    noisy, flow = (next(model.sample_batches(16, seed=0, sampler=Integrator(9, stochastic))) for stochastic in (True, False))
    assert torch.equal(x, noisy)
    assert not torch.allclose(x, flow, atol=0.1)


def test_what_cannot_work_is_said():
    with pytest.raises(UserError, match=r"^evaluations=300: more than the 256 levels"):
        Integrator(300).levels(256)
    with pytest.raises(UserError, match=r"^evaluations=1"):
        Integrator(1)
    clean = NoiseSchedule.t1k()
    with pytest.raises(UserError, match="needs a schedule with initial noise"):
        next(Integrator(9).trajectory(GaussianEnergy(clean), clean, (1,), Noise(0, torch.arange(2))))

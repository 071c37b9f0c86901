"""Posteriors against closed forms: any linear operator with Gaussian data, any level with the data of the guess."""

import math
import sys
import warnings

import numpy as np
import pytest
import torch
from scipy import ndimage

from springwell.applications.batches import Draws
from springwell.applications.operators import (
    average_pool,
    blur,
    box_kernel,
    checked,
    enlarged,
    gaussian_kernel,
    load_function,
    median_filter,
    named_blur,
)
from springwell.applications.restore import Measurement, Posterior, restore
from springwell.errors import UserError
from springwell.generate import progressive
from springwell.level import LevelSampler
from springwell.noise import Noise, Stream
from springwell.schedule import NoiseSchedule
from tests.exact import CorrelatedEnergy, GaussianEnergy, check_gaussian
from tests.images import small_model

# The package has a function of the module's name.
restore_module = sys.modules[restore.__module__]
SHAPE = (1, 2, 4)
MEAN = torch.linspace(-0.5, 0.5, 8, dtype=torch.float64)


def covariance():
    """Neighbours agree: exp(-distance / 1.5), and a little of their own."""
    row, column = torch.arange(8) // 4, torch.arange(8) % 4
    distance = ((row[:, None] - row) ** 2 + (column[:, None] - column) ** 2).double().sqrt()
    return 0.7 * (torch.exp(-distance / 1.5) + 0.1 * torch.eye(8))


def matrix(operator):
    """A of a linear operator ``[M, 8]``."""
    return operator(torch.eye(8, dtype=torch.float64).view(8, *SHAPE)).flatten(1).T


@pytest.mark.parametrize(
    ("operator", "noise"),
    [(lambda x: x, 0.3), (average_pool(2), 0.2), (blur(gaussian_kernel(0.6)), 0.3)],
    ids=["denoise", "superres", "deblur"],
)
def test_gaussian_posteriors(operator, noise):
    """Mean and covariance within 4.5 Monte-Carlo standard errors, without initial noise; the guess (mean 0, variance 1) is
    wrong, and sweeps make up for it."""
    n, schedule = 2000, NoiseSchedule.log_snr(8, initial_noise=0.0)
    prior, a = covariance(), matrix(operator)
    observation = torch.linspace(0.8, -0.3, len(a), dtype=torch.float64)
    gain = prior @ a.T @ torch.linalg.inv(a @ prior @ a.T + noise**2 * torch.eye(len(a)))
    expected, spread = MEAN + gain @ (observation - a @ MEAN), prior - gain @ a @ prior

    measured = operator(torch.zeros(1, *SHAPE)).shape[1:]
    posterior = Posterior(
        CorrelatedEnergy(schedule, MEAN, prior),
        schedule,
        Measurement(operator, noise, SHAPE),
        observation.view(1, *measured).expand(n, *measured),
    )
    sampler = posterior.sampler(LevelSampler("mala", 6, 0.5 * schedule.sigma[1:]), schedule)
    *_, (_, x, acceptance) = progressive(
        posterior, schedule, sampler, SHAPE, Noise(0, torch.arange(n), dtype=torch.float64), sweeps=12
    )
    assert 0.3 < float(acceptance.mean()) < 0.99
    check_gaussian(x.flatten(1), expected, spread)


def test_the_guess_is_exact_at_every_level_for_its_own_data():
    """Data N(0.2, 0.5 I) with initial noise, A the mean of pairs: p(y_obs | x_t) is Gaussian, and the energy says so."""
    schedule = NoiseSchedule.from_sigmas([0.5, 0.7, 0.9], 0.2)
    pool, mean, variance, noise = average_pool(2), 0.2, 0.5, 0.3
    measurement = Measurement(pool, noise, SHAPE)
    assert measurement.shape == (1, 1, 2)
    generator = torch.Generator().manual_seed(0)
    observation, y = (torch.randn(1, *shape, dtype=torch.float64, generator=generator) for shape in (measurement.shape, SHAPE))
    energy = GaussianEnergy(schedule, mean, variance)
    posterior = Posterior(energy, schedule, measurement, observation, mean, variance)
    for level in range(3):
        t = torch.tensor([level])
        a, s2 = float(schedule.a_cum[level]), float(schedule.sigma_cum[level] ** 2)
        x_t = y / schedule.scale[level]
        # x given x_t, by Bayes' rule in precisions, then A and the noise of the measurement.
        precision = 1 / variance + a**2 / s2
        centre = (mean / variance + a * x_t / s2) / precision
        law = torch.distributions.Normal(pool(centre), (noise**2 + 0.25 / precision) ** 0.5)
        other = torch.zeros_like(observation)
        expected = law.log_prob(observation).sum() - law.log_prob(other).sum()
        without = Posterior(energy, schedule, measurement, other, mean, variance)
        torch.testing.assert_close((posterior(y, t) - without(y, t))[0], expected)


def test_the_curvature_is_that_of_the_operator():
    for operator in (average_pool(2), blur(gaussian_kernel(0.8)), blur(box_kernel(3))):
        largest = float(torch.linalg.matrix_norm(matrix(operator), 2) ** 2)
        found = Measurement(operator, 1.0, SHAPE).curvature
        assert 0.9 * largest < found <= 1.0001 * largest


def test_operators_that_are_flat_at_zero_shorten_steps_too():
    """The largest |2 x|^2 of 56 normal draws is above 4; |FFT| keeps x times sqrt(8), which is along a direction of its own."""

    def phaseless(x):
        return torch.fft.fft2(x).abs()

    assert Measurement(torch.square, 1.0, SHAPE).curvature > 4
    assert 7.9 < Measurement(phaseless, 1.0, SHAPE).curvature < 8.1
    model = small_model()
    x = model.sample(2, seed=5)
    samples = restore(model, phaseless(x), phaseless, 0.05, Draws(num=2)).samples
    # By Parseval's identity the magnitudes tell the norm of x; steps that are too long leave it by orders of magnitude.
    norm = x.flatten(1).norm(dim=-1)[:, None].expand(2, 2)
    torch.testing.assert_close(samples.flatten(2).norm(dim=-1), norm, rtol=0.05, atol=0)


def test_derivatives_that_are_not_finite_are_refused():
    for operator in (lambda x: x.square().sqrt(), lambda x: x * torch.inf):
        with pytest.raises(UserError, match="operator: its derivative is not finite"):
            restore(small_model(), torch.zeros(1, 1, 8, 8), operator, 0.1)


def test_chains_that_stand_still_are_named():
    """Observed are squares of 9, where the square is far steeper than at normal draws."""
    with pytest.warns(RuntimeWarning, match="the chains stand still"):
        restore(small_model(), torch.full((1, 1, 8, 8), 81.0), torch.square, 0.05)


@pytest.mark.parametrize(
    "operator", [lambda x: x, average_pool(2), blur(gaussian_kernel(1.0))], ids=["denoise", "superres", "deblur"]
)
def test_chains_may_start_at_the_damped_guess_however_precise_the_measurement(operator):
    """The guess moves by share sigma^2 times the gradient; it overshoots for good where the curvature times that exceeds 2."""
    schedule, shape = NoiseSchedule.log_snr(12, 7, -5), (1, 28, 28)
    measurement = Measurement(operator, 1e-3, shape)
    posterior = Posterior(GaussianEnergy(schedule), schedule, measurement, torch.zeros(1, *measurement.shape))
    assert float((schedule.posterior_share * schedule.sigma[1:] ** 2 * posterior.curvature).max()) < 2


def test_operators():
    x = torch.arange(16.0).view(1, 1, 4, 4)
    assert average_pool(2)(x).flatten().tolist() == [2.5, 4.5, 10.5, 12.5]
    kernel = gaussian_kernel(1.0)
    assert float(kernel.sum()) == pytest.approx(1)
    # A grey image is shown beside coloured ones.
    assert torch.equal(enlarged(x, (3, 8, 8)), x.repeat_interleave(2, 2).repeat_interleave(2, 3).repeat(1, 3, 1, 1))
    # Flat images stay flat up to the border, which is mirrored.
    torch.testing.assert_close(blur(kernel)(torch.full((2, 3, 8, 9), 0.7)), torch.full((2, 3, 8, 9), 0.7))


def test_the_median_filter_is_that_of_scipy_on_images_of_any_shape():
    x = Noise(0, torch.arange(2)).normal(3, 5, 8)
    expected = ndimage.median_filter(x.numpy(), size=(1, 1, 3, 3), mode="reflect")
    torch.testing.assert_close(median_filter(x), torch.from_numpy(expected), rtol=0, atol=0)


def test_samples_of_a_model_and_their_summary():
    model = small_model()
    observation = torch.rand(2, 1, 4, 4, generator=torch.Generator().manual_seed(0)) * 2 - 1
    found = restore(model, observation, average_pool(2), 0.1, Draws(num=3, sweeps=1))
    assert found.samples.shape == (2, 3, 1, 8, 8)
    torch.testing.assert_close(found.mean, found.samples.mean(1))
    torch.testing.assert_close(found.std, found.samples.std(1))
    again = restore(model, observation[1:], average_pool(2), 0.1, Draws(num=1, sweeps=1, numbers=[1]))
    torch.testing.assert_close(again.samples[0, 0], found.samples[1, 0], rtol=1e-4, atol=1e-4)
    assert bool(again.std.isnan().all())
    with pytest.raises(UserError, match=r"observation: has shape \[1, 8, 8\]"):
        restore(model, torch.zeros(1, 1, 8, 8), average_pool(2), 0.1)
    with pytest.raises(UserError, match="noise 0"):
        restore(model, observation, average_pool(2), 0.0)
    with pytest.raises(UserError, match="operator: fails on a batch of 1"):
        restore(model, observation, lambda x: x.view(3, 7), 0.1)
    with pytest.raises(UserError, match="operator: cannot be differentiated"):
        restore(model, observation, lambda x: average_pool(2)(x).detach(), 0.1)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"observation": torch.zeros(1, 1, 8, 8, dtype=torch.uint8)}, "observation: is torch.uint8; needs floating point"),
        ({"observation": torch.full((1, 1, 8, 8), torch.nan)}, "observation: has values that are not finite"),
        ({"noise": torch.inf}, "noise inf of the measurement"),
        ({"sweeps": -1}, "sweeps=-1"),
        ({"batch": 0}, "batch=0: must be at least 1"),
        ({"num": 0}, "num=0"),
        ({"seed": 2**64}, "out of range"),
        ({"numbers": [1, 2]}, "2 for 1 observations"),
    ],
)
def test_arguments_that_cannot_be_used(changed, words):
    arguments = {"observation": torch.zeros(1, 1, 8, 8), "operator": lambda x: x, "noise": 0.1}
    how = {name: changed.pop(name) for name in list(changed) if name not in arguments}
    with pytest.raises(UserError, match=words):
        restore(small_model(), **{**arguments, **changed}, draws=Draws(**how))


def test_steps_are_shortened_where_the_measurement_is_stiffer_than_the_spring(monkeypatch):
    """x itself is measured: c = 1, xhat = slope y and 1 / (sigma_n^2 + r^2) by Bayes' rule for data N(0, I)."""
    model, noise = small_model(), 0.01
    schedule, seen = model.schedule, []
    a, s2 = schedule.a_cum[:-1], schedule.sigma_cum[:-1] ** 2
    slope, r2 = a / ((a**2 + s2) * schedule.scale), s2 / (a**2 + s2)
    curvature = slope**2 / (noise**2 + r2)
    expected = model.step_size / (1 + curvature * schedule.sigma[1:] ** 2).sqrt()

    def watched(energy, schedule, sampler, *arguments):
        seen.append(sampler.steps(torch.arange(schedule.num_levels)))
        return progressive(energy, schedule, sampler, *arguments)

    monkeypatch.setattr(restore_module, "progressive", watched)
    restore(model, torch.zeros(1, 1, 8, 8), lambda x: x, noise, draws=Draws(num=1))
    torch.testing.assert_close(seen[0], expected.float(), rtol=1e-3, atol=0)
    assert bool((expected < 0.9 * model.step_size).all())


def test_kernels_have_their_size_sum_and_width():
    for size in (1, 3, 5):
        torch.testing.assert_close(box_kernel(size), torch.ones(size, size).double() / size**2)
    for width, side in ((0.2, 3), (1.0, 7), (2.0, 13)):
        kernel = gaussian_kernel(width)
        assert kernel.shape == (side, side)
        # Neighbours of the centre: exp(-1 / (2 width^2)) of it.
        centre = side // 2
        assert float(kernel[centre, centre + 1] / kernel[centre, centre]) == pytest.approx(math.exp(-0.5 / width**2))


def test_kernels_by_name(tmp_path):
    x = torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(named_blur("box:3", 9)(x), blur(box_kernel(3))(x))
    torch.testing.assert_close(named_blur("box:1", 9)(x), x)
    for total in (1.0, 1.0005):
        np.save(tmp_path / "kernel.npy", np.full((3, 3), total / 9))
        torch.testing.assert_close(named_blur(str(tmp_path / "kernel.npy"), 9)(x), total * blur(box_kernel(3))(x))
    np.save(tmp_path / "kernel.npy", np.full((3, 3), 1.01 / 9))
    with pytest.raises(UserError, match=r"sums to 1.01, not to 1"):
        named_blur(str(tmp_path / "kernel.npy"), 9)
    for text in ("box:0", "box:11", "gaussian:0", "gaussian:10"):
        with pytest.raises(UserError, match="cannot be used"):
            named_blur(text, 9)


@pytest.mark.parametrize(
    ("operator", "what"),
    [
        (lambda x: [1.0], "list"),
        (lambda x: x.long(), "torch.int64"),
        (lambda x: x.sum(), r"shape \[\]"),
        (lambda x: x[:1], "shape"),
    ],
)
def test_operators_make_a_row_of_floats_for_each_sample(operator, what):
    with pytest.raises(UserError, match=f"operator: makes .*{what}.*needs a tensor of floats with a row for each sample"):
        checked(operator)(torch.zeros(2, 3))


@pytest.mark.filterwarnings("ignore:level .. acceptance 1 over")
def test_every_observation_has_a_stream_of_its_own(monkeypatch):
    """Sample j of the observation numbered i: stream RESTORATION + i, index j."""
    model, seen = small_model(), []

    def watched(energy, schedule, sampler, shape, noise, sweeps):
        seen.append(noise.every(1).normal(4)[:4])
        return progressive(energy, schedule, sampler, shape, noise, sweeps)

    monkeypatch.setattr(restore_module, "progressive", watched)
    restore(model, torch.zeros(2, 1, 8, 8), lambda x: x, 0.5, draws=Draws(num=2, seed=3, numbers=[0, 5]))
    stream = Stream.RESTORATION + torch.tensor([0, 0, 5, 5])
    assert torch.equal(seen[0], Noise(3, torch.tensor([0, 1, 0, 1]), stream).normal(4))


def test_chains_without_a_test_are_not_judged_by_their_acceptance():
    """Langevin's counts as 1, which would be a reason to warn of steps that are too small."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        restore(small_model(kernel="langevin"), torch.zeros(1, 1, 8, 8), lambda x: x, 0.5)


def test_the_file_of_an_operator_may_hold_dataclasses(tmp_path):
    (tmp_path / "own.py").write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass Scale:\n    by: float = 2.0\n\ndef f(x):\n    return Scale().by * x\n"
    )
    assert load_function(f"{tmp_path / 'own.py'}:f")(torch.ones(1)).tolist() == [2]

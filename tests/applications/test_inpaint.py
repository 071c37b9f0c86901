"""Hidden values against the exact conditional; seen ones untouched."""

import math

import pytest
import torch

import springwell as sw
from springwell.applications.batches import Draws
from springwell.applications.inpaint import Hidden, inpaint, inpaint_levels
from springwell.data.toy import log_density, toy_data
from springwell.errors import UserError
from springwell.evaluation.conditionals import kolmogorov, pit
from springwell.level import LevelSampler
from springwell.noise import Noise
from springwell.schedule import NoiseSchedule
from tests.exact import CorrelatedEnergy, ToyEnergy, check_gaussian
from tests.images import small_model

# Kolmogorov's distance exceeds this over sqrt(N) in one of 1000 samples from the right law.
KS = 1.95


def toy_pit(name, schedule, x_0):
    a, sigma, toy = float(schedule.a_cum[0]), float(schedule.sigma_cum[0]), toy_data(name)
    return pit(lambda x: log_density(toy, x, a, sigma), x_0, 1)


@pytest.mark.parametrize(("name", "given"), [("eight_gaussians", 0.6), ("checkerboard", 0.5)])
def test_sweeps_draw_from_the_exact_conditional(name, given):
    schedule, n = NoiseSchedule.from_sigmas([0.6, 0.7, 0.8, 0.95], 0.05), 600
    sampler = LevelSampler("mala", 5, 0.4 * schedule.sigma[1:].float(), jump_proposals=16)
    x = torch.tensor([[given, 100.0]]).repeat(n, 1)
    hidden = torch.tensor([False, True])
    energy = ToyEnergy(toy_data(name), schedule)
    *_, (_, x_0, _) = inpaint_levels(energy, schedule, sampler, x, hidden, Noise(0, torch.arange(n)), sweeps=25)
    assert kolmogorov(toy_pit(name, schedule, x_0))[0] < KS / math.sqrt(n)
    if name == "checkerboard":
        # Without sweeps the row nearer to the centre gets too much, which a test of this size must see.
        *_, (_, x_0, _) = inpaint_levels(energy, schedule, sampler, x, hidden, Noise(0, torch.arange(n)))
        assert kolmogorov(toy_pit(name, schedule, x_0))[0] > KS / math.sqrt(n)


@pytest.mark.slow
def test_the_trained_checkerboard_has_the_exact_conditional():
    model, n = sw.load("checkerboard"), 1000
    x = torch.tensor([[0.5, 0.0]]).repeat(n, 1)
    noise = Noise(0, torch.arange(n))
    energy, hidden = model.energy_function, torch.tensor([False, True])
    *_, (_, x_0, _) = inpaint_levels(energy, model.schedule, model.level_sampler(5), x, hidden, noise, sweeps=25)
    assert kolmogorov(toy_pit("checkerboard", model.schedule, x_0))[0] < KS / math.sqrt(n)


def test_gaussian_conditional_in_many_dimensions():
    """Without initial noise the result is the conditional of the data; mean and covariance are known."""
    schedule, n = NoiseSchedule.log_snr(8, initial_noise=0.0), 3000
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(4, 4, dtype=torch.float64, generator=generator) / 2
    covariance, mean = root @ root.T + 0.2 * torch.eye(4), torch.tensor([0.3, -0.2, 0.1, 0.4], dtype=torch.float64)
    hidden = torch.tensor([True, False, True, False])
    seen = torch.tensor([0.9, -0.5], dtype=torch.float64)
    gain = covariance[hidden][:, ~hidden] @ torch.linalg.inv(covariance[~hidden][:, ~hidden])
    expected = mean[hidden] + gain @ (seen - mean[~hidden])
    spread = covariance[hidden][:, hidden] - gain @ covariance[~hidden][:, hidden]

    x = torch.zeros(n, 4, dtype=torch.float64)
    x[:, ~hidden] = seen
    sampler = LevelSampler("mala", 5, 0.6 * schedule.sigma[1:])
    noise = Noise(0, torch.arange(n), dtype=torch.float64)
    energy = CorrelatedEnergy(schedule, mean, covariance)
    *_, (_, x_0, _) = inpaint_levels(energy, schedule, sampler, x, hidden, noise, sweeps=15)
    torch.testing.assert_close(x_0[:, ~hidden], x[:, ~hidden])
    check_gaussian(x_0[:, hidden], expected, spread)


def test_hidden_values_of_the_input_do_not_matter_and_candidates_belong_to_their_chains():
    held, hidden = torch.arange(12.0).view(3, 2, 2), torch.tensor([[True, False], [False, True]])
    rest = Hidden(lambda y, t: y.flatten(1).sum(-1), held, hidden.flatten().nonzero()[:, 0])
    whole = rest.whole(-torch.ones(6, 2))
    assert torch.equal(whole[3:], whole[:3])
    assert whole[1].tolist() == [[-1, 5], [6, -1]]
    model, mask = small_model(), torch.zeros(1, 8, 8, dtype=torch.bool)
    mask[..., :4] = True
    x = torch.linspace(-1, 1, 64).view(1, 1, 8, 8)
    assert torch.equal(inpaint(model, x, mask), inpaint(model, torch.where(mask, 7.0, x), mask))


@pytest.mark.parametrize("sampler", [{}, {"num_steps": 0, "kernel": "langevin"}], ids=["chains", "normal approximation"])
def test_what_is_seen_comes_back_and_samples_depend_on_their_number_alone(sampler):
    model = small_model(denoise=True, **sampler)
    x = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0)) * 2 - 1
    mask = torch.zeros(1, 8, 8, dtype=torch.bool)
    mask[:, 2:6, 1:5] = True
    drawn = inpaint(model, x, mask, Draws(num=3, sweeps=1))
    assert drawn.shape == (2, 3, 1, 8, 8)
    assert torch.equal(drawn[:, :, ~mask], x[:, None][:, :, ~mask].expand(2, 3, -1))
    assert len({tuple(row) for row in drawn[:, :, mask].flatten(0, 1).tolist()}) == 6
    second = inpaint(model, x[1:], mask, Draws(num=2, sweeps=1, numbers=[1]))
    torch.testing.assert_close(second, drawn[1:, :2], rtol=1e-4, atol=1e-4)


def test_masks_that_cannot_be_used():
    model, x = small_model(), torch.zeros(1, 1, 8, 8)
    for mask, words in (
        (torch.zeros(1, 8, 8, dtype=torch.bool), "hides nothing"),
        (torch.ones(1, 8, 8, dtype=torch.bool), "hides everything"),
        (torch.ones(8, 8, dtype=torch.bool), "of shape"),
        (torch.ones(1, 8, 8), "torch.float32"),
    ):
        with pytest.raises(UserError, match=words):
            inpaint(model, x, mask)


def test_arguments_that_cannot_be_used():
    model, x, mask = small_model(), torch.zeros(1, 1, 8, 8), torch.zeros(1, 8, 8, dtype=torch.bool)
    mask[..., :4] = True
    nan = torch.full_like(x, torch.nan)
    for y, options, words in (
        (x[0], {}, r"x: has shape \[8, 8\]"),
        (x[..., :4], {}, r"needs \[1, 8, 8\]"),
        (x.to(torch.uint8), {}, "x: is torch.uint8; needs floating point"),
        (nan, {}, "x: has values that are not finite"),
        (x, {"sweeps": -1}, "sweeps=-1"),
        (x, {"batch": 0}, "batch=0"),
        (x, {"seed": -(2**63) - 1}, "out of range"),
        (x, {"numbers": [-1]}, "numbers"),
    ):
        with pytest.raises(UserError, match=words):
            inpaint(model, y, mask, Draws(**options))
    # What is hidden may be anything.
    assert bool(inpaint(model, torch.where(mask, nan, x), mask).isfinite().all())


@pytest.mark.parametrize("start", ["noisy", "denoised"])
def test_without_chains_every_sweep_guesses_anew_from_the_level_above(start):
    """Two sweeps at every level, written out for a Gaussian: which seen values, which sigma and which noise each guess has."""
    schedule, n, sweeps = NoiseSchedule.from_sigmas([0.4, 0.6, 0.8], 0.2), 5, 2
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(3, 3, dtype=torch.float64, generator=generator) / 2
    mean, covariance = torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64), root @ root.T + 0.3 * torch.eye(3)
    energy = CorrelatedEnergy(schedule, mean, covariance)
    x, hidden = torch.randn(n, 3, dtype=torch.float64, generator=generator), torch.tensor([True, False, True])

    def noise():
        return Noise(5, torch.arange(n), dtype=torch.float64)

    sampler = LevelSampler("langevin", 0, start=start)
    *_, (_, found, _) = inpaint_levels(energy, schedule, sampler, x, hidden, noise(), sweeps)

    drawn, path = noise(), [torch.where(hidden, 0.0, x)]
    for a, sigma in zip(schedule.a, schedule.sigma, strict=True):
        path.append(a * path[-1] + sigma * drawn.normal(3))
    expected = torch.where(hidden, drawn.normal(3), path[-1])
    for t in (2, 1, 0):
        sigma, seen_above = schedule.sigma[t + 1], path[t + 2]
        share = schedule.posterior_share[t] if start == "denoised" else 1.0

        def guess(x_next):
            slope = -(x_next - energy.mean[t]) @ energy.precision[t]  # noqa: B023
            return x_next + share * sigma**2 * slope + share**0.5 * sigma * drawn.normal(3)  # noqa: B023

        y = guess(expected)
        for _ in range(sweeps):
            y[:, hidden] += sigma * drawn.normal(2)
            y = guess(torch.where(hidden, y, seen_above))
        expected = torch.where(hidden, y / schedule.scale[t], path[t + 1])
    torch.testing.assert_close(found, expected)

"""Noise as a value, paths between samples: their ends, their law, their continuity."""

import pytest
import torch
from scipy import stats

from springwell.applications.interpolate import blended, blended_take, corner_weights, interpolate, spherical
from springwell.errors import UserError
from springwell.generate import progressive
from springwell.level import LevelSampler
from springwell.noise import MixedNoise, Noise
from springwell.samplers import hmc, langevin, mala
from springwell.schedule import NoiseSchedule
from tests.exact import MixtureEnergy
from tests.images import small_model


def test_a_seed_or_stream_per_sample_is_that_of_one_for_all():
    index = torch.tensor([4, 9])
    both = Noise(torch.tensor([7, -3]), index, stream=torch.tensor([2**40, 5]))
    each = [Noise(7, index[:1], stream=2**40), Noise(-3, index[1:], stream=5)]
    for _ in range(2):
        assert torch.equal(both.normal(3), torch.cat([noise.normal(3) for noise in each]))
        assert torch.equal(both.uniform(), torch.cat([noise.uniform() for noise in each]))


def test_mixed_noise_has_the_law_of_noise_and_the_numbers_of_a_pure_source():
    n = 20_000
    sources = [Noise(seed, torch.arange(n)) for seed in range(4)]
    weights = corner_weights(4, 3)[4].expand(n, 4)
    torch.testing.assert_close(weights.square().sum(-1), torch.ones(n, dtype=torch.float64))
    mixed = MixedNoise(sources, weights)
    assert stats.kstest(mixed.normal(2)[:, 1].numpy(), "norm").pvalue > 1e-4
    assert stats.kstest(mixed.uniform().numpy(), "uniform").pvalue > 1e-4
    pure = MixedNoise([Noise(seed, torch.arange(5)) for seed in (0, 1)], torch.tensor([[1.0, 0.0]] * 3 + [[0.0, 1.0]] * 2))
    zero, one = Noise(0, torch.arange(5)), Noise(1, torch.arange(5))
    for kind in ("normal", "uniform"):
        expected = torch.cat([getattr(zero, kind)(3)[:3], getattr(one, kind)(3)[3:]])
        assert torch.equal(getattr(pure, kind)(3), expected)


def test_weights_are_exact_at_the_ends():
    assert spherical(torch.tensor([0.0, 1.0])).tolist() == [[1, 0], [0, 1]]
    corners = corner_weights(4, 5)[[0, 4, 20, 24]]
    assert torch.equal(corners, torch.eye(4, dtype=torch.float64))


@pytest.mark.parametrize("tests", ["blended", "own"])
@pytest.mark.parametrize("sampler", [{}, {"kernel": "langevin"}, {"denoise": True}], ids=["mala", "langevin", "denoised"])
def test_ends_are_the_samples_of_their_seeds_bit_for_bit(tests, sampler):
    model = small_model(**sampler)
    path = interpolate(model, [3, 2**64 - 1], 5, tests)
    assert path.shape == (5, 1, 8, 8)
    assert torch.equal(path[0], model.sample(1, seed=3)[0])
    assert torch.equal(path[-1], model.sample(1, seed=2**64 - 1)[0])
    assert not torch.equal(path[1], path[0])


@pytest.mark.parametrize("tests", ["blended", "own"])
def test_corners_of_a_surface_and_batches_that_do_not_matter(tests):
    model, seeds = small_model(), [0, 1, 2, 3]
    surface = interpolate(model, seeds, 3, tests)
    for seed, corner in zip(seeds, (surface[0, 0], surface[0, -1], surface[-1, 0], surface[-1, -1]), strict=True):
        assert torch.equal(corner, model.sample(1, seed=seed)[0])
    torch.testing.assert_close(interpolate(model, seeds, 3, tests, batch=8), surface, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("kernel", "jumps"), [(langevin(), 0), (mala(), 0), (hmc(2), 0), (mala(), 4)], ids=["langevin", "mala", "hmc", "jumps"]
)
def test_neighbours_come_closer_as_one_over_num(kernel, jumps):
    """Two modes, and steps so large that tests fail. The distance of the points at w and w + h is h times a derivative, so that
    it must be an 8th for an 8th of h, up to the change of the derivative over h (some thousands, times h) and to rounding."""
    schedule = NoiseSchedule.from_sigmas([0.6, 0.7, 0.9], 0.1)
    w = torch.linspace(0.03, 0.97, 40, dtype=torch.float64)

    def distance(h: float) -> tuple[torch.Tensor, torch.Tensor]:
        weights = torch.cat([torch.eye(2, dtype=torch.float64), spherical(torch.cat([w, w + h]))])
        share = weights.square()
        index = torch.zeros(len(weights), dtype=torch.long)
        noise = MixedNoise([Noise(seed, index, dtype=torch.float64) for seed in (0, 1)], weights)
        sampler = LevelSampler(
            blended(kernel, share), 5, 0.9 * schedule.sigma[1:], jump_proposals=jumps, take=blended_take(share)
        )
        *_, (_, x, acceptance) = progressive(MixtureEnergy(schedule), schedule, sampler, (1,), noise)
        return (x[2 + len(w) :] - x[2 : 2 + len(w)]).abs()[:, 0], acceptance

    coarse, acceptance = distance(1e-7)
    fine, _ = distance(1.25e-8)
    assert float(coarse.median()) > 1e-8
    torch.testing.assert_close(fine, coarse / 8, rtol=0.01, atol=1e-12)
    assert not kernel.tested or float(acceptance.mean()) < 0.95


def test_bad_seeds_and_numbers():
    model = small_model()
    for seeds, num, words in (
        ([1], 8, "give two for a path"),
        ([1, 2**64], 8, f"seed={2**64}: out of range"),
        ([1, 2], 1, "at least its 2 ends"),
        ([1, 1], 8, "two are the same"),
        ([0, -1, 1, 2**64 - 1], 8, "two are the same"),
    ):
        with pytest.raises(UserError, match=words):
            interpolate(model, seeds, num)
    for options, words in (({"tests": "none"}, "tests='none': unknown"), ({"batch": -3}, "batch=-3: must be at least 1")):
        with pytest.raises(UserError, match=words):
            interpolate(model, [1, 2], **options)

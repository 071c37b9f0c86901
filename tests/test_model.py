"""A loaded model: samples that depend on (seed, index) alone, and its log-density."""

import math

import pytest
import torch

from springwell.errors import UserError
from springwell.progress import Silent
from springwell.store.run import load
from springwell.training.loop import train
from tests.training.tiny import changed, tiny


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    train(tiny(iterations=60), out, "cpu", Silent())
    return load(out)


def test_a_sample_depends_on_seed_and_index_alone(model):
    """The number asked for changes nothing; another batch size changes nothing but the rounding of matrix products."""
    reference = model.sample(200, seed=3, batch=200)
    assert torch.equal(model.sample(70, seed=3, batch=200), reference[:70])
    for batch in (1, 7, 64, 500):
        torch.testing.assert_close(model.sample(100, seed=3, batch=batch), reference[:100], rtol=0, atol=2e-4)
    assert not bool((model.sample(200, seed=4, batch=200) == reference).any())


def test_an_index_can_be_drawn_alone(model):
    *_, (_, some, _) = model.trajectory(torch.tensor([17, 3] * 8), seed=3)
    torch.testing.assert_close(some[:2], model.sample(20, seed=3)[[17, 3]], rtol=0, atol=2e-4)


def test_trajectory_goes_from_noise_to_data(model):
    levels = [t for t, _, _ in model.trajectory(torch.arange(50), seed=0)]
    assert levels == [4, 3, 2, 1, 0]


def test_log_density_integrates_to_one(model):
    axis = torch.linspace(-6, 6, 241)
    points = torch.cartesian_prod(axis, axis)
    total = float(model.log_density(points).exp().sum()) * 0.05**2
    assert total == pytest.approx(1, abs=1e-3)


def test_log_density_changes_variables(model, tmp_path):
    """Data in other units have the density of the transformed variable."""
    u = torch.randn(50, 2)
    before = model.log_density(u)
    model.shift, model.scale = torch.tensor([2.0, -1.0]), torch.tensor([3.0, 0.5])
    after = model.log_density(model.shift + model.scale * u)
    model.shift, model.scale = torch.zeros(2), torch.ones(2)
    torch.testing.assert_close(after, before - math.log(1.5), rtol=1e-5, atol=1e-5)


def test_log_density_names_a_wrong_shape(model):
    with pytest.raises(UserError, match=r"x has shape \[3\]; needs \[N, 2\]"):
        model.log_density(torch.zeros(3))


def test_denoising_is_applied_when_asked(model, tmp_path):
    plain = model.sample(50)
    model.config = changed(model.config, "sampler", denoise=True)
    assert not torch.equal(model.sample(50), plain)
    model.config = changed(model.config, "sampler", denoise=False)


def test_chains_that_stand_still_are_named_by_their_level(model):
    kept = model.step_size
    for size, words in ((1e3, "level 2: acceptance .* the chains stand still"), (1e-7, "level 2: acceptance 1 over")):
        model.step_size = kept.clone()
        model.step_size[2] = size
        with pytest.warns(RuntimeWarning, match=words):
            model.sample(50)
    model.step_size = kept


def test_impossible_requests(model):
    for options in ({"num": 0}, {"num": 5, "batch": 0}, {"num": 5, "num_steps": -1}, {"num": 5, "noise_scale": 0.9}):
        with pytest.raises(UserError):
            model.sample(**options)

"""Step sizes of all levels: tuned by a pilot, interpolated, frozen and kept."""

import numpy as np
import pytest
import torch

from springwell.errors import UserError
from springwell.evaluation.steps import Method, Pilot, kept_steps, standing, tune_levels
from springwell.noise import Noise
from springwell.progress import Silent
from springwell.samplers import make_kernel, run_chain
from springwell.store.parts import Parts
from tests.exact import gaussian_model

PILOT = Pilot(num_chains=64, num_steps=30)


FEW = Pilot(num_chains=4, num_steps=160, dual_averaging=True)


@pytest.mark.parametrize(
    ("method", "pilot"),
    [
        (Method("mala"), PILOT),
        (Method("hmc", 2), PILOT),
        (Method("hmc", 2), FEW),
        (Method("nuts"), PILOT),
        (Method("nuts"), FEW),
    ],
)
def test_every_level_is_inside_the_band_also_those_between(tmp_path, method, pilot):
    """Fresh chains at all nine levels, of which four were tuned; by many chains, and by four chains and dual averaging."""
    model = gaussian_model(40)
    steps = tune_levels(model, method, pilot._replace(max_levels=4))
    assert len(steps.levels) == 4
    assert len(steps.acceptance) == 5
    chains = standing(model, list(range(9)), 100, seed=1)
    noise, kernel = Noise(2, torch.arange(900)), make_kernel(method.kernel, method.num_leapfrog)
    _, accepted = run_chain(kernel, chains.y, chains.conditional(model), steps.step_size[chains.t], 10, noise)
    # A level's mean is over 1,000 probabilities, whose standard deviation is below 0.4: 0.06 are more than 4 standard errors.
    for level in accepted.view(9, 100).mean(1).tolist():
        assert 0.6 - 0.06 <= level <= 0.9 + 0.06


def test_chains_stand_at_progressive_samples(tmp_path):
    """x_{t+1} and y_t of the same samples: their regression is that of the exact joint law, y_t = a x_t."""
    model = gaussian_model()
    chains = standing(model, [2, 5], 4000, seed=0)
    assert chains.t.tolist() == [2] * 4000 + [5] * 4000
    for t in (2, 5):
        y, x_next = (value[chains.t == t].double().flatten() for value in (chains.y, chains.x_next))
        # Cov(y_t, x_{t+1}) = Var(y_t) = a^2, and Var(x_{t+1}) = 1, for data of unit variance.
        a_square, n = float(model.schedule.scale[t] ** 2), len(y)
        assert abs(float((y * x_next).mean()) - a_square) < 4.5 * (2 / n) ** 0.5 + 0.02
        assert abs(float(y.square().mean()) - a_square) < 4.5 * a_square * (2 / n) ** 0.5 + 0.02


@pytest.mark.filterwarnings("ignore:level")
def test_kept_steps_are_read_again_unless_anything_else_was_asked(tmp_path):
    model, quick = gaussian_model(), Pilot(num_chains=8, num_steps=10)
    first = kept_steps(model, Method(), quick, tmp_path, Silent())
    (path,) = tmp_path.glob("steps-hmc2/*/all-0.npz")
    parts = Parts(path.parent)
    known = parts.read("all-0")
    assert known["step_size"].tolist() == first.step_size.tolist()
    parts.write("all-0", {**known, "step_size": np.ones(9, np.float32)})
    again = kept_steps(model, Method(), quick, tmp_path, Silent())
    assert again == (first.method, again.step_size, first.marginal, first.levels, first.acceptance)
    assert again.step_size.tolist() == [1.0] * 9
    other = kept_steps(model, Method(), quick._replace(seed=1), tmp_path, Silent())
    assert other.step_size.tolist() != [1.0] * 9
    path.write_text("not a part")
    assert torch.equal(kept_steps(model, Method(), quick, tmp_path, Silent()).step_size, first.step_size)


def test_steps_with_those_of_chains_without_spring_serve_both(tmp_path):
    model, quick = gaussian_model(), Pilot(num_chains=8, num_steps=10)
    for free, known in ((False, {"springs-0"}), (True, {"springs-0", "all-0"}), (False, {"springs-0", "all-0"})):
        steps = kept_steps(model, Method(), quick._replace(free=free), tmp_path, Silent())
        assert {path.stem for path in tmp_path.glob("steps-hmc2/*/*.npz")} == known
        assert len(steps.acceptance) == len(steps.levels) + ("all-0" in known)


def test_a_batch_that_ran_out_of_memory_leaves_no_chains_behind(tmp_path, monkeypatch):
    model = gaussian_model()
    expected = standing(model, [0, 4], 8, seed=0)
    monkeypatch.setattr(model, "automatic_batch", lambda: 8)
    monkeypatch.setattr(model, "num_rows", lambda wanted: wanted)
    real = model._trajectory

    refused = []

    def small(index, *rest):
        for number, state in enumerate(real(index, *rest)):
            if number == 6 and len(index) > 4:
                refused.append(len(index))
                raise torch.OutOfMemoryError("out of memory")
            yield state

    monkeypatch.setattr(model, "_trajectory", small)
    for found, known in zip(standing(model, [0, 4], 8, seed=0), expected, strict=True):
        torch.testing.assert_close(found, known)
    assert refused == [8]


def test_langevin_keeps_the_steps_of_the_model(tmp_path):
    model = gaussian_model()
    steps = tune_levels(model, Method("langevin"))
    assert torch.equal(steps.step_size, model.step_size)
    assert steps.acceptance == []


def test_a_pilot_without_chains_is_refused(tmp_path):
    with pytest.raises(UserError, match="pilot of 0 chains per level: needs at least 1"):
        tune_levels(gaussian_model(), Method(), Pilot(num_chains=0))

"""bracket as a piece alone: any log-density, any number of rows, its log Z within the bounds."""

import pytest
import torch

import springwell as sw
from tests.likelihood.targets import Mixture, ring


def test_any_density_and_any_number_of_rows():
    """Two modes of unequal spread far from the origin; log Z is known, and sources have 57 and 131 rows."""
    target = Mixture(ring(2, 2.0) * 3 + 40, 1.5, log_z=5.0)
    sources = {"chains": target.sample(57, 1), "others": target.sample(131, 2)}
    found = sw.likelihood.bracket(target, sources, sw.likelihood.Settings(0.5, 16, 64), tolerance=0.6)
    assert found.settings.tolerance == 0.6
    assert [e.num_chains for e in found.upper.values()] == [56, 128]
    assert found.verdict == "ok"
    assert abs(found.value - 5.0) < 4 * found.standard_error + 0.02
    assert found.lower.value - 4 * found.lower.standard_error < 5.0 < found.highest.value + 4 * found.highest.standard_error


@pytest.mark.parametrize(
    ("target", "sources", "words"),
    [
        (3, {"x": torch.randn(40, 2)}, "target: is an int"),
        (torch.sum, {}, "sources: 0 given; give 1 to 6"),
        (torch.sum, torch.randn(40, 2), "sources: is a Tensor"),
        (torch.sum, {"x": torch.randn(15, 2)}, "'x' has 15 rows; needs at least 16"),
        (torch.sum, {"x": torch.arange(40)}, r"'x' is torch.int64 \[40\]"),
    ],
)
def test_wrong_arguments_are_one_sentence(target, sources, words):
    with pytest.raises(sw.UserError, match=words):
        sw.likelihood.bracket(target, sources, tolerance=0.1)


def test_a_crossed_bracket_gives_a_model_its_lower_bound():
    """Draws of a much narrower law lead reverse walks astray; what is quoted, and used, is the bound from below."""
    target = Mixture(torch.zeros(1, 2), 3.0, log_z=5.0)
    settings = sw.likelihood.Settings(0.1, 8, 8)
    narrow = {"narrow": 0.05 * target.sample(256, 1), "again": 0.05 * target.sample(256, 2)}
    found = sw.likelihood.bracket(sw.likelihood.plain_path(target, (2,)), narrow, settings)
    assert found.verdict == "crossed"
    assert found.quoted == (found.lower.value, found.lower.standard_error, "lower bound")
    assert found.record()["log_z"] == found.lower.value
    assert repr(found).startswith(f"<bracket, crossed: log Z {found.lower.value:.6g} ")
    assert "a network whose output is unbounded may have put it there" in found.reason
    schedule = sw.NoiseSchedule.from_sigmas([0.5])
    model = sw.Model(lambda y, t: target(y), schedule, sw.LevelSampler("mala", 1, 0.1), event_shape=(2,))
    model.use_log_z(found)
    assert model.log_z().value == found.lower.value
    assert model.log_z().verdict == "crossed"

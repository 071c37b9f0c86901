"""What the README promises of the presets. Minutes each."""

import pytest

from springwell.evaluation.toy import evaluate
from springwell.presets import preset
from springwell.progress import Silent
from springwell.training.run import load
from springwell.training.trainer import train
from tests.training.tiny import changed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "seed", "bound"),
    [
        *[("checkerboard", seed, 0.10) for seed in range(5)],
        *[(name, 0, 0.15) for name in ("eight_gaussians", "rings", "two_moons", "pinwheel", "two_spirals")],
    ],
)
def test_presets_reach_their_divergence(tmp_path, name, seed, bound):
    config = changed(preset(name), "training", seed=seed)
    train(config, tmp_path / "run", "cpu", Silent())
    result = evaluate(load(tmp_path / "run"))
    assert result["kl"] <= bound
    assert result["log_z_error"] < 0.01
    assert result["modes_covered"] == result["modes"]
    assert result["mmd2"] < 3 * result["mmd2_null_95"]
    assert result["off_support"] < 0.03

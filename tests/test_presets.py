"""The table of presets is the paper's, and what the README promises of them holds (minutes each)."""

import json
import subprocess
import sys

import numpy as np
import pytest

from springwell.app.api import load
from springwell.app.config import with_fields
from springwell.app.cost import estimate
from springwell.app.presets import PRESETS, preset
from springwell.data.source import open_data
from springwell.evaluation.toy import evaluate
from springwell.progress import Silent
from tests.data.published import cifar_binary, photographs, write_celeba, write_lsun
from tests.training.tiny import changed, train

PAPER = {
    # data, N, beta_1, batch, iterations, image size: the paper's appendix
    "cifar10-t6": ("cifar10", 8, 0.9, 256, 240_000, 32),
    "celeba-t6": ("celeba", 6, 0.5, 128, 880_000, 64),
    "lsun-church64-t6": ("lsun/church_outdoor", 2, 0.9, 128, 960_000, 64),
    "lsun-bedroom64-t6": ("lsun/bedroom", 2, 0.9, 128, 760_000, 64),
    "lsun-church128-t6": ("lsun/church_outdoor", 2, 0.5, 64, 840_000, 128),
    "lsun-bedroom128-t6": ("lsun/bedroom", 5, 0.5, 64, 580_000, 128),
}
PAPER_SIZE = [*PAPER, *[name for name in PRESETS if name.startswith(("cifar10", "celeba")) and name not in PAPER]]


@pytest.mark.parametrize("name", PAPER)
def test_rows_of_the_papers_table(name):
    config = preset(name)
    data, num_blocks, beta1, batch, iterations, size = PAPER[name]
    assert (config.data, config.network.num_blocks, config.training.beta1) == (data, num_blocks, beta1)
    assert (config.training.batch, config.training.iterations) == (batch, iterations)
    assert config.network.multipliers == {32: (1, 2, 2, 2), 64: (1, 2, 2, 2, 4), 128: (1, 2, 2, 2, 4, 4)}[size]
    assert (config.images.image_size or 32) == size
    assert (config.network.width, config.sampler.num_steps, config.sampler.noise_scale) == (128, 30, 0.99)
    assert (config.training.lr, config.training.warmup, config.training.ema, config.images.flip) == (1e-4, 1000, 0.999, True)
    assert (config.training.adam_eps, config.training.idle_start, config.training.ema_warmup) == (1e-7, True, False)


def test_the_papers_densities_are_of_dequantised_data_and_its_ablation_regresses_on_samples():
    assert all(preset(name).images.dequantise for name in ("cifar10-t1k", "digits-t1k"))
    assert preset("cifar10-t1k-dsm").objective.dsm_target == "sample"


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_valid_and_has_a_cost(name):
    config = preset(name)
    config.validate()
    cost = estimate(config)
    evaluations = config.gradient_evaluations() - 1
    assert cost.iteration_flops > config.training.batch * evaluations * cost.gradient_flops
    assert cost.memory_bytes > 5 * 4 * cost.parameters


MEASURE = """
import re, sys
from springwell.app.api import train_run
from springwell.app.config import with_fields
from springwell.app.presets import preset
from springwell.progress import Silent
config = with_fields(preset(sys.argv[1]), iterations=2, preview_every=0, batch=int(sys.argv[2]))
train_run(config, "run", "cpu", Silent())
# Of this program alone: rusage knows the peak of the process that started it as well.
print(int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024)
"""


@pytest.mark.parametrize(
    ("name", "batch"),
    [
        ("checkerboard", 512),
        pytest.param("checkerboard", 50_000, marks=pytest.mark.slow),
        pytest.param("digits", 1024, marks=pytest.mark.slow),
    ],
)
def test_memory_is_that_of_the_process_within_a_factor_of_two(tmp_path, name, batch):
    command = [sys.executable, "-c", MEASURE, name, str(batch)]
    peak = int(subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout)
    assert 0.5 < estimate(with_fields(preset(name), batch=batch)).memory_bytes / peak < 2


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A data root with a few generated images in the formats of the publishers."""
    root = tmp_path_factory.mktemp("data")
    rows = np.resize(photographs(24, 32, 32).transpose(0, 3, 1, 2), (10_000, 3, 32, 32))
    (root / "cifar-10-batches-bin").mkdir()
    for name in [*[f"data_batch_{i}" for i in range(1, 6)], "test_batch"]:
        (root / "cifar-10-batches-bin" / f"{name}.bin").write_bytes(cifar_binary(rows))
    write_celeba(root, photographs(8, 218, 178), [0, 0, 0, 0, 0, 0, 2, 2])
    for category in ("church_outdoor", "bedroom"):
        for split in ("train", "val"):
            write_lsun(root / "lsun" / f"{category}_{split}_lmdb", list(photographs(4, 160, 140)))
    return root


@pytest.mark.slow
@pytest.mark.parametrize("name", PAPER_SIZE)
def test_presets_of_paper_size_pass_an_iteration(springwell, tmp_path, published, name):
    options = ("--batch", 1, "--iterations", 1, "--preview-every", 0, "--no-evaluate", "--json")
    result = springwell("train", name, *options, "--data-root", published, "--out", tmp_path / "run", timeout=1800)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout.splitlines()[-1])["status"] == "finished"
    line = json.loads((tmp_path / "run" / "metrics.jsonl").read_text())
    known = [value for value in line["loss"] if value is not None]
    assert known
    assert all(abs(value) < 1e6 for value in known)


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
    result = evaluate(load(tmp_path / "run"), open_data(config.data))
    assert result["kl"] <= bound
    assert result["log_z_error"] < 0.01
    assert result["modes_covered"] == result["modes"]
    assert result["mmd2"] < 3 * result["mmd2_null_95"]
    assert result["off_support"] < 0.03


@pytest.mark.slow
@pytest.mark.parametrize(("name", "bound"), [("checkerboard", 0.034), ("two_moons", 0.008)])
def test_densities_of_the_plane_know_their_normaliser(tmp_path, name, bound):
    """What the model believes of log Z against quadrature, and a KL no worse than that of the preset with chains."""
    train(preset(f"{name}-density"), tmp_path / "run", "cpu", Silent())
    model = load(tmp_path / "run")
    result = evaluate(model, open_data(name))
    assert result["log_z_error"] < 0.001
    assert abs(model.log_z().correction) <= 0.02
    assert result["kl"] <= bound
    assert result["modes_covered"] == result["modes"]

"""Training on images: many processes, parts of a batch, precision, compilation, moving average, resumption."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from springwell import load, preset
from springwell.app.build import build_energy, build_schedule
from springwell.app.config import with_fields
from springwell.app.cost import estimate
from springwell.errors import UserError
from springwell.progress import Silent
from tests.listener import Listener
from tests.training.tiny import train

from .tiny import changed


def tiny_digits(**training):
    values = {"iterations": 12, "batch": 24, "warmup": 3, "log_every": 4, "checkpoint_every": 6, "preview_every": 0, **training}
    config = preset("digits")
    config = replace(config, training=replace(config.training, **values))
    config = changed(config, "schedule", num_levels=3)
    config = changed(config, "network", width=8, multipliers=(1, 2), num_blocks=1)
    return changed(config, "sampler", num_steps=2, sample_steps=2)


def weights(run):
    return load_file(run / "model.safetensors")


def assert_close(first, second, tolerance):
    """Per tensor, relative to the distance that training moved it being of order lr x iterations."""
    for name, value in first.items():
        difference = (second[name] - value).abs().max()
        assert difference < tolerance, f"{name}: {difference:.2g}"


@pytest.mark.parametrize(("dequantise", "initial_noise"), [(False, 0.0), (True, 0.0), (False, None)])
def test_data_without_a_density_are_named(tmp_path, dequantise, initial_noise):
    """Grey values need to be dequantised or noisy; a ladder's own initial noise is enough."""
    config, reporter = with_fields(tiny_digits(), dequantise=dequantise, initial_noise=initial_noise), Listener()
    train(config, tmp_path / "run", "cpu", reporter, stop_after=1)
    warned = [line for line in reporter.said if "have no density" in line]
    assert bool(warned) == (not dequantise and initial_noise == 0)
    assert all("(option dequantise) or add noise (option initial_noise)" in line for line in warned)


def test_resumed_is_bit_identical(tmp_path):
    config = tiny_digits()
    train(config, tmp_path / "whole", "cpu", Silent())
    for stop in (5, 4, None):
        train(config, tmp_path / "parts", "cpu", Silent(), stop_after=stop)
    first, second = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_parts_of_a_batch_add_up(tmp_path):
    """Four parts give the gradient of the whole, up to the order of float additions."""
    train(tiny_digits(iterations=3), tmp_path / "whole", "cpu", Silent())
    train(tiny_digits(iterations=3, accumulate=4), tmp_path / "parts", "cpu", Silent())
    assert_close(weights(tmp_path / "whole"), weights(tmp_path / "parts"), 1e-5)


def test_two_processes_give_the_result_of_one(python, tmp_path):
    options = [
        "--iterations", "5", "--batch", "24", "--num-levels", "3", "--width", "8", "--num-blocks", "1", "--num-steps", "2",
        "--sample-steps", "1", "--preview-every", "0", "--threads", "1", "--json", "--out",
    ]  # fmt: skip
    command = ["-m", "springwell", "train", "digits", *options]
    one = python.run([*command, "one"], cwd=tmp_path)
    two = python.run_together([*command, "two", "--accumulate", "2"], cwd=tmp_path)
    for result in (one, two):
        assert result.returncode == 0, result.stderr[-2000:]
    assert_close(weights(tmp_path / "one"), weights(tmp_path / "two"), 1e-5)


def test_bfloat16_trains_close_to_float32(tmp_path):
    """Five steps of Adam move every weight by at most 5 lr; bfloat16 moves most of them the same way."""
    config = tiny_digits(iterations=5, warmup=0, lr=1e-3)
    begin = {f"energy.{n}": v for n, v in build_energy(config, build_schedule(config), (1, 8, 8)).state_dict().items()}
    moved = {}
    for precision in ("fp32", "bf16"):
        train(changed(config, "training", precision=precision), tmp_path / precision, "cpu", Silent())
        end = weights(tmp_path / precision)
        moved[precision] = torch.cat([(end[n] - begin[n]).flatten() for n in begin if not n.endswith(".u")])
    assert torch.isfinite(moved["bf16"]).all()
    assert not torch.equal(moved["bf16"], moved["fp32"])
    assert torch.cosine_similarity(moved["bf16"], moved["fp32"], dim=0) > 0.8


def test_changed_images_are_noticed(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "x.npz", images=rng.integers(0, 256, (40, 8, 8), dtype=np.uint8))
    config = replace(tiny_digits(), data=f"npz:{tmp_path / 'x.npz'}")
    train(config, tmp_path / "run", "cpu", Silent(), stop_after=6)
    before = {p: p.read_bytes() for p in (tmp_path / "run" / "checkpoints").iterdir()}
    np.savez(tmp_path / "x.npz", images=rng.integers(0, 256, (40, 8, 8), dtype=np.uint8))
    with pytest.raises(UserError, match="data are not what they were"):
        train(config, tmp_path / "run", "cpu", Silent())
    assert {p: p.read_bytes() for p in (tmp_path / "run" / "checkpoints").iterdir()} == before


def test_a_new_checkpoint_survives_bad_ones_of_later_iterations(tmp_path):
    config = tiny_digits(checkpoint_every=4, keep=2)
    train(config, tmp_path / "run", "cpu", Silent(), stop_after=9)
    for path in (tmp_path / "run" / "checkpoints").glob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:100])
    for expected in (5, 10):
        result = train(config, tmp_path / "run", "cpu", Silent(), stop_after=5)
        assert result.iteration == expected


def test_a_failing_preview_does_not_end_training(tmp_path):
    def preview(model, path):
        raise OSError("no room")

    result = train(tiny_digits(preview_every=5), tmp_path / "run", "cpu", Silent(), preview)
    assert result.status == "finished"


def test_half_precision_needs_an_accelerator(tmp_path):
    if torch.accelerator.is_available():
        pytest.skip("there is one")
    with pytest.raises(UserError, match="precision='fp16'"):
        train(tiny_digits(precision="fp16"), tmp_path / "run", "cpu", Silent())


def test_the_moving_average_is_saved_with_its_own_spectral_norms(tmp_path):
    """The stored vectors are the top singular vectors of the stored weights, not those of the last iterate."""
    train(tiny_digits(), tmp_path / "run", "cpu", Silent())
    saved, vectors = weights(tmp_path / "run"), 0
    for name, u in saved.items():
        if name.endswith(".u"):
            matrix = saved[name[:-1] + "weight"].double().flatten(1)
            top = torch.linalg.matrix_norm(matrix, 2)
            torch.testing.assert_close((u.double() @ matrix).norm(), top, rtol=1e-5, atol=0)
            vectors += 1
    assert vectors > 5
    model = load(tmp_path / "run")
    x = model.sample(4, num_steps=1)
    assert x.shape == (4, 1, 8, 8)
    assert torch.isfinite(x).all()


@pytest.mark.parametrize(
    ("objective", "schedule", "num_steps"),
    [
        ("dsm", {"schedule": "linear", "num_levels": 10}, 1),
        ("recovery", {"schedule": "linear", "num_levels": 10}, 0),
        ("marginal", {"schedule": "marginal"}, 3),
    ],
)
def test_every_objective_trains_the_image_network(tmp_path, objective, schedule, num_steps):
    config = changed(tiny_digits(iterations=4), "schedule", **schedule)
    config = changed(config, "sampler", num_steps=num_steps, start="noisy")
    result = train(with_fields(config, objective=objective), tmp_path / "run", "cpu", Silent())
    assert result.status == "finished"
    before = build_energy(config, build_schedule(config), (1, 8, 8)).state_dict()
    after = weights(tmp_path / "run")
    # The slope of a network of (leaky) ReLUs does not change with a bias, so score matching leaves most of these alone.
    trained = [n for n in before if n.endswith("weight") and "temb_proj" not in n] if objective == "dsm" else list(before)
    for name in trained:
        assert not torch.equal(after[f"energy.{name}"], before[name]), name


def test_counted_operations_are_those_of_the_formula():
    """A network of one level and one block: convolutions and products counted by hand."""
    config = changed(preset("digits"), "network", width=8, multipliers=(1,), num_blocks=1)
    pixels, width = 64, 8
    convolutions = pixels * 9 * (1 * width + 2 * width * width)
    time = 4 * width * width + (4 * width) ** 2 + 4 * width * width + 4 * width * width
    cost = estimate(config)
    # Chains do the convolutions twice, forward and back to the input; time embedding and norms are computed once.
    norms = cost.gradient_flops - 2 * 2 * convolutions - 2 * time
    assert 0 <= norms < 0.1 * cost.gradient_flops
    batch, evaluations = config.training.batch, config.gradient_evaluations() - 1
    loss = cost.iteration_flops / batch - evaluations * cost.gradient_flops
    assert math.isclose(loss, 2 * 3 * 2 * convolutions, rel_tol=0.15)

"""springwell likelihood, score and reproduce, through the command line."""

import json
import math
import shutil
import warnings

import numpy as np
import pytest
import torch

from springwell.app.api import load, save
from springwell.app.build import measurable_data
from springwell.app.cli import main
from springwell.errors import UserError
from springwell.evaluation.points import evaluation_points
from springwell.store.run import read_log_z
from tests.images import small_model

QUICK = ["--densities", "4", "--budget", "8", "--chains", "4", "--repeats", "4", "--burn", "3", "--num", "40"]


def run(capsys, *arguments):
    """Exit code and the JSON object of a command."""
    with pytest.raises(SystemExit) as stop:
        main([*map(str, arguments), "--json"])
    captured = capsys.readouterr()
    return int(stop.value.code or 0), json.loads(captured.out.splitlines()[-1]), captured.err


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("models") / "small"
    save(small_model(), out)
    return out


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """Where the tests of `likelihood` write, so that the second finds the parts of the first."""
    return tmp_path_factory.mktemp("measured")


def test_likelihood_writes_what_log_density_reads(folder, out, capsys):
    with pytest.raises(UserError, match=r"log Z is not known; measure it, as in model\.use_log_z"):
        load(folder).log_prob(torch.zeros(1, 1, 8, 8))
    code, result, _ = run(capsys, "likelihood", folder, "--out", out, *QUICK)
    assert code == 0
    assert result["verdict"] in ("ok", "loose", "crossed", "missed-mode-suspected")
    assert [r["num_densities"] for r in result["rounds"]] in ([4], [4, 8])
    assert (out / "likelihood.png").read_bytes().startswith(b"\x89PNG")
    stored = json.loads((out / "likelihood.json").read_text())
    assert stored["dim"] == 64
    assert stored["num_images"] == 40
    assert stored["bits_per_dim_optimistic"] <= stored["bits_per_dim_conservative"] or stored["verdict"] != "ok"

    model = load(folder)
    model.use_log_z(read_log_z(out / "likelihood.json", model))
    z = model.log_z()
    assert (z.value, z.lower, z.verdict) == (stored["log_z"], stored["log_z_lower"], stored["verdict"])
    assert len(z.levels) == 3
    # Beside the model, it is found without being named.
    kept = shutil.copytree(folder, out / "kept")
    shutil.copy(out / "likelihood.json", kept)
    assert load(kept).log_z() == z
    points = evaluation_points(model, measurable_data(model), 40)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        log_g = model.log_prob(points.x_0)
    torch.testing.assert_close(log_g, model.level_f(points.x_0) - z.value)
    nll = -float((log_g + points.log_volume).mean())
    assert nll == pytest.approx(stored["nll"], rel=1e-6)
    assert stored["bits_per_dim"] == pytest.approx(nll / (64 * np.log(2)))

    # The same command finds its parts; another model's file is refused.
    _, again, _ = run(capsys, "likelihood", folder, "--out", out, *QUICK)
    assert again["log_z"] == result["log_z"]
    (out / "likelihood.json").write_text(json.dumps({**stored, "weights": "0", "iteration": 8}))
    for change in ({"log_z": math.nan}, {"log_z_levels": [1.0]}, {"log_z_levels": ["x", 1.0, 2.0]}, {"log_z_upper": None}):
        (tmp := out / "damaged.json").write_text(json.dumps({**stored, **change}))
        with pytest.raises(UserError, match="was not written by"):
            read_log_z(tmp, model)
    with pytest.raises(UserError, match=r"is of other weights .*iteration 8"):
        read_log_z(out / "likelihood.json", model)


def test_damaged_parts_are_computed_again(folder, out, capsys):
    _, before, _ = run(capsys, "likelihood", folder, "--out", out, *QUICK)
    parts = sorted((out / ".likelihood").rglob("*.npz"))
    assert len(parts) > 4
    parts[0].write_bytes(parts[0].read_bytes()[:100])
    parts[1].write_bytes(b"")
    parts[2].write_bytes(parts[2].read_bytes()[:-200] + bytes(200))
    _, after, _ = run(capsys, "likelihood", folder, "--out", out, *QUICK)
    assert after["log_z"] == before["log_z"]
    assert after["rounds"] == before["rounds"]


def test_chains_that_made_no_steps_are_doubted(folder, out, capsys):
    _, result, _ = run(capsys, "likelihood", folder, "--out", out, *QUICK, "--burn", "0", "--tolerance", "1000")
    assert result["verdict"] != "ok"
    assert "made no steps" in result["reason"]


def test_strict_tells_by_its_exit_code(folder, out, capsys):
    code, result, _ = run(capsys, "likelihood", folder, "--out", out, *QUICK, "--strict", "--tolerance", "1e-9")
    assert result["verdict"] != "ok"
    assert code == 1


def test_score_ranks_and_tells_apart(folder, tmp_path, capsys):
    noisy = np.random.default_rng(0).integers(0, 256, (60, 8, 8, 1), dtype=np.uint8)
    np.save(tmp_path / "noise.npy", noisy)
    out = tmp_path / "scores"
    code, result, _ = run(
        capsys, "score", folder, "digits@test", "--num", 50, "--against", tmp_path / "noise.npy", "--out", out
    )
    assert code == 0
    assert not result["normalised"]
    assert 0 <= result["auroc"] <= 1
    assert result["levels"] == [0, 1, 2]
    with np.load(out / "scores.npz") as arrays:
        assert arrays["score"].argsort()[:10].tolist() == result["least_likely"]
        assert arrays["profile"].shape == (50, 3)
        np.testing.assert_allclose(arrays["profile"][:, 0], arrays["score"])


def test_score_of_one_image_and_of_a_stale_likelihood(folder, tmp_path, capsys):
    code, result, _ = run(capsys, "score", folder, "digits@test", "--num", 1, "--out", tmp_path / "one")
    assert code == 0
    assert result["mean_standard_error"] is None
    (tmp_path / "likelihood.json").write_text("{}")
    code, result, _ = run(
        capsys, "score", folder, "digits@test", "--num", 2, "--likelihood", tmp_path / "likelihood.json", "--out", tmp_path
    )
    assert code == 2
    assert "was not written by" in result["error"]


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--budget", "0"], "--budget 0: must be at least 1"),
        (["--tolerance", "0"], "--tolerance 0: must be positive"),
        (["--repeats", "1"], "--repeats 1: must be at least 4"),
        (["--burn", "-1"], "--burn -1: must be at least 0"),
    ],
)
def test_bad_values(folder, tmp_path, capsys, arguments, what):
    code, result, err = run(capsys, "likelihood", folder, "--out", tmp_path, *arguments)
    assert code == 2
    assert what in result["error"]
    assert len(err.strip().splitlines()) == 1


def test_images_of_another_shape(folder, tmp_path, capsys):
    np.save(tmp_path / "colour.npy", np.full((30, 8, 8, 3), 128, np.uint8))
    code, result, _ = run(capsys, "score", folder, tmp_path / "colour.npy", "--out", tmp_path)
    assert code == 2
    assert "images have shape [3, 8, 8]; the model's have [1, 8, 8]" in result["error"]


def test_an_energy_that_is_not_finite_ends_in_one_line(tmp_path, capsys):
    model = small_model()
    with torch.no_grad():
        model.energy_function.log_scale.fill_(90.0)
    save(model, tmp_path / "steep")
    code, result, err = run(capsys, "likelihood", tmp_path / "steep", *QUICK)
    assert code == 2
    assert "finite" in result["error"]
    assert len(err.strip().splitlines()) == 1


def test_the_papers_estimate_and_bits_of_a_run(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(small_model(), tmp_path / "runs" / "small-t1k")
    code, result, _ = run(capsys, "reproduce", "bpd", "--data", "small", "--scale", "0.04")
    assert code == 0
    assert [(found["model"], found["seed"]) for found in result["runs"]] == [("small-t1k", s) for s in range(3)]
    assert all(found["burn"] == 8 for found in result["runs"])
    for line, found in zip(result["table"].splitlines()[-3:], result["runs"], strict=True):
        # Beside the lower bound, which a crossed bracket quotes, stands Bennett's value itself.
        bennett = found["bits_per_dim"] + (found["log_z_bennett"] - found["log_z"]) / (64 * math.log(2))
        shown = [float(cell.split()[0]) for cell in line.split("|")[3:6]]
        expected = [found["bits_per_dim_optimistic"], bennett, found["bits_per_dim_conservative"]]
        assert shown == pytest.approx(expected, abs=6e-4)
    code, result, _ = run(capsys, "reproduce", "fig-logz", "--data", "small", "--scale", "0.04")
    assert code == 0
    assert set(result["steps"]) == {"0", "1", "4"}
    assert result["num_chains"] == 16
    code, result, _ = run(capsys, "reproduce", "bpd", "--data", "cifar10")
    assert code == 2
    assert "there is no finished run runs/cifar10-t1k" in result["error"]


@pytest.mark.slow
def test_two_processes_find_what_one_finds(folder, python, tmp_path):
    command = ["-m", "springwell", "likelihood", str(folder), *QUICK[:-2], "--batch", "4", "--device", "cpu", "--out"]
    for start, out in ((python.run, "one"), (python.run_together, "two")):
        result = start([*command, out], cwd=tmp_path)
        assert result.returncode == 0, result.stderr[-2000:]
    one, two = (json.loads((tmp_path / out / "likelihood.json").read_text()) for out in ("one", "two"))
    assert one == two


@pytest.mark.parametrize("method", ["typicality", "multiscale"])
def test_score_by_other_methods_tells_noise_from_digits_and_names_files(folder, tmp_path, capsys, method):
    from PIL import Image

    rng = np.random.default_rng(0)
    images = tmp_path / "images"
    images.mkdir()
    for i in range(20):
        Image.fromarray(rng.integers(0, 256, (8, 8), dtype=np.uint8)).save(images / f"noise-{i:02d}.png")
    out = tmp_path / method
    words = ["--method", method, "--against", "digits@test", "--out", out, "--num", 20]
    code, result, _ = run(capsys, "score", folder, f"folder:{images}", *words)
    assert code == 0
    assert result["method"] == method
    assert all(name.startswith("noise-") for name in result["least_likely"])
    assert 0 <= result["auroc"] <= 1
    lines = (out / "scores.csv").read_text().splitlines()
    assert lines[0] == f"image,{method}"
    assert lines[1].startswith("noise-00.png,")
    code, result, _ = run(capsys, "score", folder, f"folder:{images}", *words)
    assert code == 2
    assert "exists" in result["error"]


def test_images_of_another_size_need_resize_which_warns(folder, tmp_path, capsys):
    from PIL import Image

    images = tmp_path / "large"
    images.mkdir()
    for i in range(3):
        Image.fromarray(np.full((16, 16), 40 * i, dtype=np.uint8)).save(images / f"{i}.png")
    code, result, _ = run(capsys, "score", folder, f"folder:{images}", "--out", tmp_path / "a")
    assert code == 2
    assert "--resize" in result["error"]
    code, result, err = run(capsys, "score", folder, f"folder:{images}", "--resize", "--out", tmp_path / "b")
    assert code == 0
    assert "0.999" in err

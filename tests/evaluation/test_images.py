"""What is measured of image models, against direct computation."""

import json
import math

import pytest
import torch

from springwell.data.source import open_data
from springwell.evaluation import images
from springwell.evaluation.images import evaluate_images
from springwell.noise import Noise, Stream
from tests.images import small_config, small_model

N = 24
DATA = open_data("digits", small_config().images)


@pytest.fixture(scope="module")
def measured():
    model = small_model()
    return model, *evaluate_images(model, DATA, N, seed=3)


def test_f_is_compared_at_level_0(measured):
    model, result, _, held_out, _ = measured
    noise = Noise(3, torch.arange(N), Stream.DATA)
    clean = DATA.held_out(noise)
    assert torch.equal(held_out, clean)
    a, sigma = float(model.schedule.a_cum[0]), float(model.schedule.sigma_cum[0])
    scale = float(model.schedule.scale[0])
    with torch.no_grad():
        f_data = model.f(scale * (a * clean + sigma * noise.normal(1, 8, 8)))
        f_samples = model.f(scale * model.sample(N, seed=3))
    assert result["f_data"] == pytest.approx(float(f_data.mean()), rel=1e-4)
    assert result["f_samples"] == pytest.approx(float(f_samples.mean()), rel=1e-4)
    assert result["f_gap"] == pytest.approx(float(f_data.mean() - f_samples.mean()), rel=1e-3, abs=1e-3)
    error = math.sqrt(float(f_data.var()) / N + float(f_samples.var()) / N)
    assert result["f_gap_standard_error"] == pytest.approx(error, rel=1e-3)


def test_samples_outside_are_counted(measured, monkeypatch):
    model, result, samples, *_ = measured
    assert torch.equal(samples, model.sample(N, seed=3))
    assert result["outside_values"] == float((samples.abs() > 1.2).double().mean())
    assert result["outside_samples"] == sum(bool((x.abs() > 1.2).any()) for x in samples) / N
    monkeypatch.setattr(images, "LIMIT", 1e9)
    assert evaluate_images(model, DATA, N, seed=3)[0]["outside_samples"] == 0


def test_acceptance_is_that_of_the_chains(measured):
    model, result, *_ = measured
    chains = {t: accepted for t, _, accepted in model.trajectory(torch.arange(N), seed=3)}
    few = evaluate_images(model, DATA, 5, seed=3)[0]
    for t in range(3):
        assert result["acceptance"][t] == pytest.approx(float(chains[t].mean()), abs=1e-4)
        assert few["acceptance"][t] == pytest.approx(float(chains[t][:5].mean()), abs=1e-4)


def test_the_command_writes_numbers_and_pictures(measured, tmp_path, monkeypatch, capsys):
    from springwell.app.cli import main

    model, *_ = measured
    monkeypatch.chdir(tmp_path)
    model.save(tmp_path / "run")
    with pytest.raises(SystemExit) as stop:
        main(["evaluate", "run", "--no-fid", "--num", "100", "--seed", "3", "--device", "cpu"])
    said = capsys.readouterr().out
    assert stop.value.code == 0
    written = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert written == {**evaluate_images(model, DATA, 100, seed=3)[0], "weights": model.fingerprint()}
    assert f"{written['f_gap']:+.2f} +- {written['f_gap_standard_error']:.2f} nats" in said
    assert (tmp_path / "run" / "report.png").read_bytes().startswith(b"\x89PNG")


def test_every_level_has_its_gap(measured):
    model, result, *_ = measured
    noise = Noise(3, torch.arange(N), Stream.DATA)
    clean = DATA.held_out(noise)
    on_the_way = {t: x for t, x, _ in model.trajectory(torch.arange(N), seed=3)}
    for t in range(model.schedule.num_levels):
        a, sigma, scale = (
            float(values[t]) for values in (model.schedule.a_cum, model.schedule.sigma_cum, model.schedule.scale)
        )
        with torch.no_grad():
            data = model.f(scale * (a * clean + sigma * noise.normal(1, 8, 8)), t)
            samples = model.f(scale * on_the_way[t], t)
        assert result["f_gap_levels"][t] == pytest.approx(float(data.mean() - samples.mean()), rel=1e-3, abs=1e-3)
        error = math.sqrt(float(data.var() + samples.var()) / N)
        assert result["f_gap_levels_standard_error"][t] == pytest.approx(error, rel=1e-3)

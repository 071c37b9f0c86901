"""Models that know classes, from the configuration to the command line."""

import json

import numpy as np
import pytest
import torch

import springwell as sw
from springwell.app.cli import main
from springwell.app.config import from_dict, to_dict, with_fields
from springwell.app.presets import PRESETS, preset
from springwell.errors import UserError
from springwell.normalised import Normalised
from tests.training.tiny import train

SMALL = {"width": 16, "depth": 1, "num_features": 16, "num_levels": 6, "iterations": 12, "batch": 32, "preview_every": 0}


def small(name="two_moons-cond", **values):
    return with_fields(preset(name), **{**SMALL, **values})


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("conditional") / "run"
    train(small("two_moons-density", classes=("all",)), out)
    return out


def run_command(*words):
    """The exit code of a command."""
    try:
        main(list(words))
    except SystemExit as stop:
        return stop.code or 0
    return 0


def refused(capsys, *words):
    """What the command line says in one line."""
    assert run_command(*words) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def test_only_a_recipe_with_classes_mentions_labels():
    for name, config in PRESETS.items():
        assert ("labels" in to_dict(config)) == name.endswith("-cond")
        assert from_dict(to_dict(config)) == config


def test_all_classes_are_saved_by_name(run):
    assert json.loads((run / "config.json").read_text())["labels"]["classes"] == ["0", "1"]
    model = sw.load(run)
    assert model.classes == ("0", "1")
    x = torch.zeros(3, 2)
    assert not torch.equal(model.given(0).energy(x), model.given(1).energy(x))
    assert any(name.endswith("classes.weight") and bool(t.any()) for name, t in model.tensors().items())


def test_a_model_without_classes_may_become_one_with_them(tmp_path):
    train(small("two_moons-density"), tmp_path / "plain")
    plain = sw.load(tmp_path / "plain")
    begun = sw.train(small(iterations=1, lr=1e-9), init_from=plain)
    x = torch.randn(5, 2, generator=torch.Generator().manual_seed(0))
    for model in (begun, begun.given(0), begun.given(1)):
        torch.testing.assert_close(model.energy(x), plain.energy(x), rtol=1e-4, atol=1e-4)


def test_a_model_with_classes_may_become_one_of_all_data(run):
    known = sw.load(run)
    for name, weight in known.tensors().items():
        if name.endswith("classes.weight"):
            weight.fill_(0.5)
    begun = sw.train(small("two_moons-density", iterations=1, lr=1e-9), init_from=known)
    assert begun.classes == ()
    x = torch.randn(5, 2, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(begun.energy(x), known.energy(x), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(begun.energy(x), known.given(0).energy(x), rtol=1e-3, atol=1e-3)


def test_every_step_learns_from_data_with_their_labels(monkeypatch):
    """Two blobs: the label of a point is the side that it is on."""
    label = torch.arange(400) % 2
    x = 0.3 * torch.randn(400, 2, generator=torch.Generator().manual_seed(0)) + torch.where(label == 1, 2.0, -2.0)[:, None]
    names, seen, objective = ["right" if c else "left" for c in label], [], Normalised.__call__

    def watched(self, x, noise, t=None, label=None):
        seen.append(((x[:, 0] > 0).long(), label))
        return objective(self, x, noise, t, label)

    monkeypatch.setattr(Normalised, "__call__", watched)
    model = sw.train(small("two_moons-density", iterations=3, classes=("all",)), data=(x, names))
    assert model.classes == ("left", "right")
    assert len(seen) == 3
    assert all(torch.equal(side, given) for side, given in seen)


def test_sample_draws_classes(run, tmp_path, capsys):
    out = tmp_path / "all.npz"
    assert run_command("sample", str(run), "--label", "all", "--num", "3", "--out", str(out), "--json") == 0
    found, model = np.load(out), sw.load(run)
    assert found["labels"].tolist() == ["0"] * 3 + ["1"] * 3
    expected = torch.cat([model.given(c).sample(3) for c in (0, 1)])
    torch.testing.assert_close(torch.from_numpy(found["samples"]), expected)
    one = tmp_path / "one.npy"
    guided = ["--guidance", "2", "--steps", "2", "--sweeps", "1"]
    assert run_command("sample", str(run), "--label", "1", "--num", "3", *guided, "--out", str(one)) == 0
    expected = model.given(1, guidance=2, sweeps=1).sample(3, num_steps=2)
    torch.testing.assert_close(torch.from_numpy(np.load(one)), expected)


def test_guidance_0_and_1_are_the_two_densities_on_the_command_line(run, tmp_path):
    def drawn(name, *words):
        out = tmp_path / f"{name}.npy"
        assert run_command("sample", str(run), "--num", "5", *words, "--out", str(out)) == 0
        return np.load(out)

    everything, one = drawn("all"), drawn("one", "--label", "1")
    assert np.array_equal(drawn("none", "--label", "1", "--guidance", "0"), everything)
    assert np.array_equal(drawn("full", "--label", "1", "--guidance", "1"), one)
    assert not np.array_equal(everything, one)
    kept = drawn("kept", "--label", "1", "--guidance", "3", "--rejection")
    expected = sw.load(run).given(1, guidance=3, rejection=True).sample(5)
    torch.testing.assert_close(torch.from_numpy(kept), expected)


def test_a_column_of_a_csv_file_is_learned(tmp_path, capsys):
    file, out = tmp_path / "table.csv", tmp_path / "run"
    rows = [(i / 50, i % 7, "red" if i % 2 else "blue") for i in range(100)]
    file.write_text("x,y,colour\n" + "".join(f"{x},{y},{c}\n" for x, y, c in rows))
    sizes = ["--width", "16", "--depth", "1", "--num-features", "16", "--iterations", "2", "--batch", "16"]
    words = ["train", "two_moons-density", "--data", f"csv:{file}", "--label-column", "colour", "--no-evaluate", *sizes]
    assert run_command(*words, "--classes", "all", "--out", str(out)) == 0
    assert sw.load(out).classes == ("blue", "red")
    assert run_command("classify", str(out), "--num", "5") == 0
    capsys.readouterr()
    assert "--label-column colour: needs classes; add --classes all" in refused(capsys, *words, "--out", str(tmp_path / "s"))
    assert "no labelled images" in refused(capsys, "classify", str(out), "--doubt", "3")


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (lambda i: "red", "has one class only, 'red'; classes need at least 2"),
        (lambda i: "red" if i % 7 else "", "1429 of 10000 rows have no label; label them or leave them out"),
        (str, "has 10,000 classes for 10,000 rows; at most 1,000 can be learned"),
    ],
)
def test_a_column_that_is_no_label_is_refused_in_one_line(tmp_path, capsys, label, message):
    file = tmp_path / "table.csv"
    file.write_text("x,y,colour\n" + "".join(f"{i / 50},{i % 7},{label(i)}\n" for i in range(10_000)))
    words = ["train", "two_moons-density", "--data", f"csv:{file}", "--label-column", "colour", "--classes", "all"]
    assert message in refused(capsys, *words, "--out", str(tmp_path / "run"))


def test_classify_measures_held_out_data(run, capsys):
    assert run_command("classify", str(run), "--num", "50", "--noise", "0", "0.5", "--json") == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row["noise"] for row in found["measures"]] == [0.0, 0.5]
    assert all(row["num"] == 50 and 0 <= row["accuracy"] <= 1 for row in found["measures"])


def test_what_cannot_be_is_said_in_one_line(run, tmp_path, capsys):
    assert "--label 7: unknown; the classes are 0, 1" in refused(capsys, "sample", str(run), "--label", "7")
    assert "--guidance 2: needs a class to guide towards; add --label" in refused(capsys, "sample", str(run), "--guidance", "2")
    assert "--rejection: needs --guidance above 1, not 1" in refused(capsys, "sample", str(run), "--label", "1", "--rejection")
    moving = ["--label", "1", "--guidance", "2", "--rejection", "--trajectory"]
    assert "--rejection: does not go with --trajectory" in refused(capsys, "sample", str(run), *moving)
    assert "checkerboard: knows no classes; use a model" in refused(capsys, "classify", "checkerboard")
    words = ("score", "digits", "digits@test", "--label", "1", "--likelihood", "likelihood.json")
    assert "--likelihood likelihood.json: is of all data; leave it out, or --label" in refused(capsys, *words)
    assert "knows no classes" in refused(capsys, "interpolate", "digits", "--label", "1")
    assert "--guidance 2: needs a class" in refused(capsys, "interpolate", "digits", "--guidance", "2")
    assert "knows no classes" in refused(capsys, "sample", "checkerboard", "--label", "1", "--out", str(tmp_path / "x.npy"))
    assert "do not go with --objective recovery" in refused(capsys, "train", "two_moons", "--classes", "all")
    npy = tmp_path / "x.npy"
    np.save(npy, np.random.default_rng(0).normal(size=(50, 2)))
    unlabelled = ["train", "two_moons-density", "--data", str(npy), "--classes", "all", "--out", str(tmp_path / "r")]
    assert "has no labels" in refused(capsys, *unlabelled)
    other = ["train", "two_moons-density", "--classes", "a", "b", "--out", str(tmp_path / "s")]
    assert "has the classes 0 1, not a b" in refused(capsys, *other)


def test_a_given_model_is_not_saved(run, tmp_path):
    with pytest.raises(UserError, match="is given the class '1'"):
        sw.load(run).given(1).save(tmp_path / "saved")

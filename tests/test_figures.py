"""Figures of the paper from the command line."""

import json

import pytest

from springwell.app.cli import main
from springwell.app.config import MarginalConfig
from springwell.app.presets import preset
from springwell.paper import fig2
from springwell.paper.common import scaled
from tests.test_cli import last_json

# The picture and the numbers at a small share of the iterations.
QUICK = ("--device", "cpu", "--threads", "1", "--json")


@pytest.fixture
def figure(tmp_path, monkeypatch, capsys):
    """Draws a figure in this process; the numbers beside it."""
    monkeypatch.chdir(tmp_path)

    def draw(name, scale):
        with pytest.raises(SystemExit) as done:
            main(["reproduce", name, "--scale", scale, *QUICK])
        printed = capsys.readouterr()
        assert done.value.code == 0, printed.err
        out = json.loads(printed.out.splitlines()[-1])
        assert (tmp_path / out["figure"]).read_bytes().startswith(b"\x89PNG")
        return json.loads((tmp_path / out["numbers"]).read_text())

    return draw


@pytest.mark.parametrize("name", fig2.DATA)
def test_the_two_models_of_figure_2_have_equally_many_gradients(name):
    for scale in (1.0, 0.01):
        recovery = scaled(preset(name), 0, scale)
        marginal = fig2.marginal(recovery, fig2.DATA[name])
        assert marginal.schedule == MarginalConfig(initial_noise=recovery.schedule.initial_noise)
        assert (marginal.sampler.num_steps, marginal.sampler.step_fraction) == (30, fig2.DATA[name])
        evaluations = [c.training.iterations * c.gradient_evaluations() for c in (recovery, marginal)]
        # Equal up to the rounding of the number of iterations.
        assert abs(evaluations[0] - evaluations[1]) <= marginal.gradient_evaluations() / 2


def test_figure_2_shows_both_models_of_every_data_set(figure, monkeypatch):
    # One row of the three, which all come about in the same way.
    monkeypatch.setattr(fig2, "DATA", {"checkerboard": fig2.DATA["checkerboard"]})
    ((name, rows),) = figure("fig2", "0.005")["data"].items()
    assert name == "checkerboard"
    assert set(rows) == {"recovery", "marginal"}
    assert abs(rows["recovery"]["gradient_evaluations"] - rows["marginal"]["gradient_evaluations"]) <= 31


def test_the_ladder_and_the_rule_have_equally_many_gradients(figure):
    numbers = figure("ladder", "0.001")
    ladder, rule = (numbers[kind]["gradient_evaluations"] for kind in ("ladder", "authors' rule"))
    assert abs(ladder - rule) <= 31


def test_figure_3_shows_every_level_and_a_second_call_uses_the_same_run(springwell, tmp_path):
    arguments = ("reproduce", "fig3", "--scale", "0.01", *QUICK)
    result = springwell(*arguments)
    assert result.returncode == 0, result.stderr
    out = last_json(result)
    assert (tmp_path / out["figure"]).read_bytes().startswith(b"\x89PNG")
    assert [level["t"] for level in json.loads((tmp_path / out["numbers"]).read_text())["levels"]] == [4, 3, 2, 1, 0]
    models = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("model.safetensors")}
    assert springwell(*arguments).returncode == 0
    assert {p: p.stat().st_mtime_ns for p in models} == models

"""Figures of the paper from the command line. A file of their own: they take minutes, and files run side by side."""

import json

import pytest

from tests.test_cli import last_json


@pytest.mark.parametrize("name", ["fig2", "fig3", "ladder"])
def test_figures_are_drawn_with_their_numbers(springwell, tmp_path, name):
    """At a hundredth of the iterations: the picture, the numbers beside it, and reuse of the runs by a second call."""
    arguments = ("reproduce", name, "--scale", "0.01", "--device", "cpu", "--threads", "1", "--json")
    result = springwell(*arguments)
    assert result.returncode == 0, result.stderr
    out = last_json(result)
    assert (tmp_path / out["figure"]).read_bytes().startswith(b"\x89PNG")
    numbers = json.loads((tmp_path / out["numbers"]).read_text())
    if name == "fig2":
        for rows in numbers["data"].values():
            recovery, marginal = rows["recovery"]["gradient_evaluations"], rows["marginal"]["gradient_evaluations"]
            # Equal up to the rounding of the number of iterations.
            assert abs(recovery - marginal) <= 31
    elif name == "ladder":
        ladder, rule = (numbers[kind]["gradient_evaluations"] for kind in ("ladder", "authors' rule"))
        assert abs(ladder - rule) <= 31
    else:
        assert [level["t"] for level in numbers["levels"]] == [4, 3, 2, 1, 0]
    if name == "fig3":
        models = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("model.safetensors")}
        assert springwell(*arguments).returncode == 0
        assert {p: p.stat().st_mtime_ns for p in models} == models

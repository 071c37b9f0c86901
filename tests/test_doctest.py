"""Every public object has a docstring with an example, and the examples run."""

from __future__ import annotations

import doctest
import inspect
import math
from types import ModuleType

import pytest
import torch

import springwell as sw
from springwell import applications, sklearn

METHODS = ("sample", "energy", "score", "log_prob")
PUBLIC = {
    **{name: getattr(sw, name) for name in sw.__all__ if not isinstance(getattr(sw, name), (ModuleType, str, dict))},
    **{f"Model.{name}": getattr(sw.Model, name) for name in METHODS},
    **{f"samplers.{name}": getattr(sw.samplers, name) for name in ("langevin", "mala", "hmc", "nuts")},
    **{f"applications.{name}": getattr(applications, name) for name in ("inpaint", "interpolate", "restore", "Product")},
    "likelihood.bracket": sw.likelihood.bracket,
    "EnergyDensity": sklearn.EnergyDensity,
}


@pytest.mark.parametrize("name", PUBLIC)
def test_the_example_of_a_public_object_runs(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = inspect.getdoc(PUBLIC[name]) or ""
    assert ">>>" in text, f"{name}: its docstring has no example"
    example = doctest.DocTestParser().get_doctest(text, {"sw": sw, "torch": torch, "math": math}, name, None, None)
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    runner.run(example)
    assert runner.failures == 0, capsys.readouterr().out

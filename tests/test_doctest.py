"""Every public object has a docstring that names its shapes, with an example, and the examples run.

Public is what the package and its exported modules list in ``__all__``, and what the pages of the reference show.
"""

from __future__ import annotations

import doctest
import inspect
import math
import re
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import Any

import pytest
import torch

import springwell as sw

MODULES = ("springwell", "springwell.likelihood", "springwell.samplers", "springwell.applications", "springwell.energy")
REFERENCE = Path(__file__).parent.parent / "docs" / "reference"
SHAPE = re.compile(r"``\[|torch\.Size")


def listed() -> dict[str, Any]:
    """The objects in ``__all__``; names for a type have no docstring of their own."""
    found = {
        f"{module}.{name}": getattr(import_module(module), name) for module in MODULES for name in import_module(module).__all__
    }
    return {name: value for name, value in found.items() if inspect.isroutine(value) or inspect.isclass(value)}


def shown() -> dict[str, Any]:
    """The objects of the reference's pages, and the members that a page chooses."""
    found: dict[str, Any] = {}
    for page in REFERENCE.glob("*.md"):
        for path, options in re.findall(r"^::: (\S+)\n((?:    .*\n)*)", page.read_text(), re.MULTILINE):
            value = resolve_name(path)
            if isinstance(value, ModuleType):
                own = {n: v for n, v in vars(value).items() if not n.startswith("_") and getattr(v, "__module__", "") == path}
                found |= {f"{path}.{n}": v for n, v in own.items() if inspect.isroutine(v) or inspect.isclass(v)}
                continue
            found[path] = value
            members = re.search(r"members: \[(.*)\]", options)
            found |= {f"{path}.{n}": inspect.getattr_static(value, n) for n in members[1].split(", ")} if members else {}
    return found


PUBLIC = {id(value): (name, value) for name, value in [*listed().items(), *shown().items()]}.values()
NAMES = dict(PUBLIC)


def test_the_reference_shows_what_is_public() -> None:
    assert {sw.train, sw.Model, sw.samplers.nuts, sw.likelihood.bracket} <= set(NAMES.values())
    assert len(NAMES) > 100


@pytest.mark.parametrize("name", NAMES)
def test_the_example_of_a_public_object_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = inspect.getdoc(NAMES[name]) or ""
    assert ">>>" in text, f"{name}: its docstring has no example"
    example = doctest.DocTestParser().get_doctest(text, {"sw": sw, "torch": torch, "math": math}, name, None, None)
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    runner.run(example)
    assert runner.failures == 0, capsys.readouterr().out


@pytest.mark.parametrize("name", NAMES)
def test_the_docstring_of_what_takes_or_gives_tensors_names_their_shapes(name: str) -> None:
    value = NAMES[name]
    function = value.fget if isinstance(value, property) else value
    try:
        annotations = [str(p.annotation) for p in inspect.signature(function).parameters.values()]
    except ValueError:
        annotations = []
    if "Tensor" in " ".join(annotations):
        assert SHAPE.search(inspect.getdoc(value) or ""), f"{name}: its docstring names no shape"

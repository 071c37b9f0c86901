"""The examples run, on small settings."""

import importlib.util
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
SMALL = {
    "interpolate": {"name": "digits", "num": 2},
    "inpaint": {"name": "digits", "num": 1, "images": 2},
    "restore": {"name": "digits", "num": 2, "images": 1, "sweeps": 0},
    "compose": {"num": 64, "sweeps": 1},
    "sketch": {"num": 1, "sweeps": 1},
}


# Run by tests/test_examples.py.
SCRIPTS = ("own_data", "own_network")


def test_every_example_is_run():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*SMALL, *SCRIPTS}


@pytest.mark.parametrize("name", SMALL)
def test_example(name, tmp_path):
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main(out=tmp_path / "out", **SMALL[name])
    assert any(path.read_bytes().startswith(b"\x89PNG") for path in (tmp_path / "out").glob("*.png"))

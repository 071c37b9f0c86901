"""The examples of one's own network and data run as they are, and stay short."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize("name", ["own_network", "own_data"])
def test_example_runs(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = EXAMPLES / f"{name}.py"
    assert len(path.read_text().splitlines()) <= 25
    runpy.run_path(str(path))
    assert "springwell model" in capsys.readouterr().out
    assert (tmp_path / "mine" / "model.safetensors").exists()

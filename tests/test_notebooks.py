"""The notebooks are executed, and hold the outputs of an execution."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parent.parent / "docs" / "notebooks").glob("*.ipynb"))


def test_there_are_notebooks() -> None:
    assert [path.name for path in NOTEBOOKS] == ["tables.ipynb"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_runs_from_top_to_bottom(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    notebook = nbformat.read(path, as_version=4)
    stored = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    made = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    # Numbers may differ between machines; what kinds of outputs there are may not.
    assert [[sorted(output.get("data", [])) for output in cell] for cell in stored] == [
        [sorted(output.get("data", [])) for output in cell] for cell in made
    ]
    assert sum("image/png" in output.get("data", {}) for cell in stored for output in cell) >= 4

"""The notebooks are executed, and hold the outputs of an execution."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parent.parent / "docs" / "notebooks").glob("*.ipynb"))


def test_there_are_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["1-plane", "2-own", "3-images", "4-likelihood", "5-tables"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_runs_from_top_to_bottom(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setenv("SPRINGWELL_SMALL", "1")
    notebook = nbformat.read(path, as_version=4)
    stored = kinds(notebook)
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    # Numbers may differ between machines and sizes; what kinds of outputs there are may not.
    assert kinds(notebook) == stored
    assert sum("image/png" in data for cell in stored for data in cell) >= 4


def kinds(notebook: nbformat.NotebookNode) -> list[list[list[str]]]:
    """The kinds of data that every cell shows. Printed text may come in one piece or in several, so it is left out."""
    cells = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    return [[sorted(output.data) for output in outputs if "data" in output] for outputs in cells]

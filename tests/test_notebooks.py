"""The notebooks are executed, and hold the outputs of an execution."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

from tests.interpreter import Interpreter

NOTEBOOKS = sorted((Path(__file__).parent.parent / "docs" / "notebooks").glob("*.ipynb"))


def test_there_are_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["1-plane", "2-own", "3-images", "4-likelihood", "5-tables"]


# The kernel is a grandchild of whoever starts it, and would take its parent for dead.
KERNEL = """
import os, sys
os.environ.pop("JPY_PARENT_PID", None)
from ipykernel import kernelapp
kernelapp.launch_new_instance(argv=["-f", sys.argv[1], "--matplotlib=inline"])
"""


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_runs_from_top_to_bottom(
    path: Path, python: Interpreter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Manager(AsyncKernelManager):
        """Starts kernels that have torch at once."""

        def format_kernel_cmd(self, extra_arguments: list[str] | None = None) -> list[str]:
            return python.command("-c", KERNEL, self.connection_file)

    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setenv("SPRINGWELL_SMALL", "1")
    notebook = nbformat.read(path, as_version=4)
    stored = kinds(notebook)
    folder = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, kernel_manager_class=Manager, kernel_name="python3", timeout=600, resources=folder).execute()
    # Numbers may differ between machines and sizes; what kinds of outputs there are may not.
    assert kinds(notebook) == stored
    assert sum("image/png" in data for cell in stored for data in cell) >= 4


def kinds(notebook: nbformat.NotebookNode) -> list[list[list[str]]]:
    """The kinds of data that every cell shows. Printed text may come in one piece or in several, so it is left out."""
    cells = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    return [[sorted(output.data) for output in outputs if "data" in output] for outputs in cells]

"""Executes the notebooks of docs/notebooks and stores their outputs: python tools/notebooks.py [NAME ...].

With SPRINGWELL_SMALL=1 in the environment, as in CI, they take seconds; what is stored is made without it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent.parent / "docs" / "notebooks"


def main() -> None:
    wanted = sys.argv[1:]
    for path in sorted(FOLDER.glob("*.ipynb")):
        if wanted and path.stem not in wanted:
            continue
        notebook = nbformat.read(path, as_version=4)
        with tempfile.TemporaryDirectory() as folder:
            os.environ["IPYTHONDIR"] = folder
            NotebookClient(notebook, timeout=1800, kernel_name="python3", resources={"metadata": {"path": folder}}).execute()
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)
        nbformat.write(notebook, path)
        print(path)


if __name__ == "__main__":
    main()

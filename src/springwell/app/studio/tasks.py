"""The table of tasks: what a page may ask for. It imports nothing heavy, because the server reads it."""

from __future__ import annotations

from typing import NamedTuple


class Task(NamedTuple):
    """A row of the table.

    Attributes:
        module: Where the function of the same name is, in this package.
        kept: Whether the job's last messages and its result are kept, so that a page that comes back sees it and files can be
            made of it. Short tasks, which a page repeats all the time, are not.
    """

    module: str
    kept: bool = True


# The process that reads files and writes downloads; all others are named by their model.
FILES = "files"
TASKS = {
    "models": Task("runs", kept=False),
    "run": Task("runs", kept=False),
    "preview": Task("runs", kept=False),
    "page": Task("runs", kept=False),
    "archive": Task("runs", kept=False),
    "decode": Task("images", kept=False),
    "download": Task("downloads", kept=False),
    "levels": Task("plane"),
    "chains": Task("plane", kept=False),
    "train": Task("plane"),
    "ready": Task("images", kept=False),
    "sample": Task("images"),
    "inpaint": Task("images"),
    "interpolate": Task("images"),
    "restore": Task("images"),
    "score": Task("images"),
    "photograph": Task("images", kept=False),
    "walk": Task("images", kept=False),
    "film": Task("images", kept=False),
}

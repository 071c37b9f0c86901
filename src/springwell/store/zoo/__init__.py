"""The models that ship with springwell: one folder each, with the files of a finished run and a card on how it was made."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent


def names() -> list[str]:
    return sorted(path.parent.name for path in FOLDER.glob("*/config.json"))


def folder(name: str) -> Path:
    return FOLDER / name

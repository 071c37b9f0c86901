"""Copies a finished run of a preset into the package, as a model that ships: python tools/ship.py RUN [--notes FILE].

RUN may be the folder of a model that ships already. ``--measured`` names the folder into which `springwell evaluate` or
`springwell likelihood` wrote something newer (its ``--out``).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from springwell.app.api import load_folder
from springwell.app.build import config_of
from springwell.app.card import card
from springwell.app.config import difference
from springwell.app.presets import preset
from springwell.errors import UserError
from springwell.store import zoo
from springwell.store.checkpoint import read_checkpoint
from springwell.store.files import read_json, write_atomically
from springwell.store.run import Run, read_log_z

MAX_BYTES = 8_000_000
MAX_LOG_BYTES = 250_000


def ship(run: Path, name: str, folder: Path = zoo.FOLDER, notes: str = "", measured: Path | None = None) -> Path:
    """Writes ``folder / name``, or refuses and writes nothing.

    Args:
        run: A finished and evaluated run of the preset ``name``.
        name: The preset, and what the model is loaded by.
        folder: Where the models that ship live.
        notes: What was found and tried, in Markdown; part of the card.
        measured: A folder whose measures replace those of the run.
    """
    source = Run(run)
    read_checkpoint(source.record_path)
    model = load_folder(run)
    for option, value, wanted in difference(config_of(model), preset(name)):
        raise UserError(
            f"{run}: was trained with {option} {value}, the preset {name} has {wanted}; train the preset as written"
        )
    newer = Run(measured or run)
    evaluated = newer if newer.evaluation_path.exists() else source
    evaluation = read_json(evaluated.evaluation_path)
    if evaluation["iteration"] != model.iteration:
        raise UserError(f"{run}: its evaluation is of iteration {evaluation['iteration']}; run springwell evaluate {run}")
    contents = {path: (run / path).read_bytes() for path in ("config.json", "model.safetensors", "model.json")}
    for path in ("evaluation.json", "report.png"):
        contents[path] = (evaluated.path / path).read_bytes()
    contents["metrics.jsonl"] = thinned(source.read_metrics())
    likelihood = None
    bracket = (newer if newer.likelihood_path.exists() else source).likelihood_path
    if bracket.exists():
        # Raises if it is of other weights.
        read_log_z(bracket, model)
        likelihood = read_json(bracket)
        contents["likelihood.json"] = bracket.read_bytes()
    contents["README.md"] = card(model, name, evaluation, likelihood, notes).encode()
    size = sum(map(len, contents.values()))
    if size > MAX_BYTES:
        largest = max(contents, key=lambda path: len(contents[path]))
        raise UserError(f"{run}: {size:,} bytes, of which {largest} {len(contents[largest]):,}; at most {MAX_BYTES:,} ship")
    target = folder / name
    target.mkdir(parents=True, exist_ok=True)
    for path, content in contents.items():
        write_atomically(target / path, content)
    return target


def thinned(metrics: list[dict[str, Any]]) -> bytes:
    """Every n-th line of a training log, counted from the last, with the smallest n that makes it short enough."""
    lines = [json.dumps(line).encode() + b"\n" for line in metrics]
    every = 1
    while sum(map(len, lines[::-1][::every])) > MAX_LOG_BYTES and every < len(lines):
        every += 1
    return b"".join(lines[::-1][::every][::-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--name", help="the preset; default: the name of the run directory")
    parser.add_argument("--notes", type=Path, help="Markdown for the card: what was found and tried")
    parser.add_argument("--measured", type=Path, help="where newer measures than those of the run are")
    options = parser.parse_args()
    try:
        notes = options.notes.read_text() if options.notes else ""
        print(ship(options.run, options.name or options.run.resolve().name, notes=notes, measured=options.measured))
    except UserError as error:
        sys.exit(f"ship: {error}")


if __name__ == "__main__":
    main()

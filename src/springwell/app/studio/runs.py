"""Runs and models that ship, as the Runs page and the report show them. Everything is read; nothing is loaded."""

from __future__ import annotations

import base64
import io
import math
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from springwell.app.studio.desk import Desk
from springwell.app.studio.options import Options
from springwell.errors import UserError
from springwell.schedule import spread_levels
from springwell.store import zoo
from springwell.store.files import parse_json, read_lines, read_regular
from springwell.store.run import Run

MOST_LINES = 200
MOST_LEVELS = 72
MOST_PREVIEWS = 12
MAX_PREVIEW = 8 << 20
MAX_CARD = 1 << 18
MAX_MODEL = 1 << 30
MODEL_FILES = ("config.json", "model.json", "model.safetensors", "likelihood.json", "README.md")
_DRAWING = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,40}")
_LEFT_OUT = ("iteration", "lr", "rollback", "inner", "square")


def drawing_name(text: str) -> str:
    """The name of a run on drawn data, which becomes a folder below the runs. Raises UserError."""
    if not _DRAWING.fullmatch(text):
        raise UserError(f"name={text!r}: use letters, digits, - and _, at most 41")
    return text


def folders(runs: Path) -> dict[str, Path]:
    """The folders of all models by their names: those that ship, and the runs below ``runs``, newest first."""
    below = [path.parent for pattern in ("*/config.json", "*/*/config.json") for path in runs.glob(pattern)]
    below.sort(key=lambda path: -_changed(path))
    own = {path.as_posix(): path for path in below}
    # A run in the present folder hides the model that ships under the same name.
    shipped = {f"zoo:{name}" if Run(name).config_path.exists() else name: zoo.folder(name) for name in zoo.names()}
    return {**shipped, **own}


def folder_of(name: str, runs: Path) -> Path:
    """The folder of a model that ships or of a run; no name leads anywhere else. Raises UserError."""
    found = folders(runs).get(name)
    if found is None:
        raise UserError(f"{name}: is neither a model that ships nor a run below {runs}")
    return found


def _changed(folder: Path) -> float:
    times = [path.stat().st_mtime for path in (folder / "metrics.jsonl", folder / "config.json") if path.exists()]
    return max(times, default=0.0)


def _json(path: Path) -> dict[str, Any]:
    """What a JSON file holds; nothing where it is missing or broken."""
    try:
        found = parse_json(path) if path.is_file() else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _shape(run: Run) -> list[int]:
    """The shape of one sample, from the record of the model or of a checkpoint; empty if it is not known yet."""
    records = [run.record_path, *sorted(run.checkpoints.glob("checkpoint-*.json"), reverse=True)]
    for path in records:
        shapes = _json(path).get("shapes", {})
        shape = shapes.get("shift", shapes.get("model.shift")) if isinstance(shapes, dict) else None
        if isinstance(shape, list) and all(isinstance(side, int) for side in shape):
            return shape
    return []


def summary(name: str, folder: Path) -> dict[str, Any]:
    """A line of the list: what the model is and how far its training is."""
    run = Run(folder)
    description, shape = _json(run.config_path), _shape(run)
    training = description.get("training", {})
    iterations = training.get("iterations") if isinstance(training, dict) else None
    lines = read_lines(run.metrics_path)
    done = lines[-1]["iteration"] if lines else _json(run.record_path).get("iteration", 0)
    return {
        "name": name,
        "title": name.removeprefix("zoo:"),
        "ships": folder.parent == zoo.FOLDER,
        "kind": {1: "plane" if shape == [2] else "vectors", 3: "images"}.get(len(shape), "unknown"),
        "shape": shape,
        "finished": run.finished,
        "iteration": done,
        "iterations": iterations if isinstance(iterations, int) else None,
        "changed": _changed(folder),
    }


def models(desk: Desk, options: Options) -> dict[str, Any]:
    """All models and runs."""
    found = [summary(name, folder) for name, folder in folders(desk.runs).items()]
    return {"models": found, "runs": desk.runs.as_posix()}


def run(desk: Desk, options: Options) -> dict[str, Any]:
    """One run with its card, curves, measures and the names of its previews."""
    name = options.text("name")
    return {"run": details(name, folder_of(name, desk.runs))}


def details(name: str, folder: Path) -> dict[str, Any]:
    """What the page and the report show of a run."""
    run = Run(folder)
    previews = sorted(path.name for path in run.previews.glob("*.png")) if run.previews.is_dir() else []
    chosen = [previews[i] for i in spread_levels(len(previews), MOST_PREVIEWS)] if previews else []
    pictures = [file for file in ("report.png", "curves.png", "samples.png") if (folder / file).is_file()]
    return {
        **summary(name, folder),
        "recipe": _recipe(run),
        "card": _text(folder / "README.md"),
        "config": _flat(_json(run.config_path)),
        "metrics": metrics(read_lines(run.metrics_path)),
        "fid": [_plain(line) for line in read_lines(run.fid_path)][:MOST_LINES],
        "evaluation": _plain(_json(run.evaluation_path)),
        "quality": _plain(_part(_json(run.evaluation_path), "quality")),
        "likelihood": _plain(_json(run.likelihood_path)),
        "previews": chosen,
        "pictures": pictures[:1],
    }


def metrics(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Every quantity of the log as a table, a row per line of the log and a column per level; the gap of f, the calibration."""
    lines = [line for line in lines if "rollback" not in line]
    lines = [lines[i] for i in spread_levels(len(lines), MOST_LINES)] if lines else []
    names = [name for name, value in (lines[-1] if lines else {}).items() if isinstance(value, list) and name not in _LEFT_OUT]
    num_levels = min((len(line[name]) for line in lines for name in names if isinstance(line.get(name), list)), default=0)
    shown = spread_levels(num_levels, MOST_LEVELS) if num_levels else []
    tables = {name: [_row(line.get(name), shown) for line in lines] for name in names}
    if lines and {"inner", "square"} <= lines[-1].keys():
        # c_t = -E<eps, s grad f> / E|s grad f|^2, 1 for the true score.
        rows = [(_row(line.get("inner"), shown), _row(line.get("square"), shown)) for line in lines]
        tables["calibration"] = [[a / b if a is not None and b else None for a, b in zip(*pair, strict=True)] for pair in rows]
    if "f_pos" in tables and "f_neg" in tables:
        pairs = zip(tables.pop("f_pos"), tables.pop("f_neg"), strict=True)
        gap = [[None if a is None or b is None else a - b for a, b in zip(*rows, strict=True)] for rows in pairs]
        tables = {"loss": tables.pop("loss"), "f_gap": gap, **tables} if "loss" in tables else {"f_gap": gap, **tables}
    return {"iteration": [line["iteration"] for line in lines], "levels": shown, "tables": tables}


def _row(values: Any, shown: list[int]) -> list[float | None]:
    values = values if isinstance(values, list) else []
    return [_number(values[t]) if t < len(values) else None for t in shown]


def _number(value: Any) -> float | None:
    known = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300 and math.isfinite(value)
    return float(value) if known else None


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Numbers, texts and lists of numbers of a file, all of them fit for JSON."""
    out: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, list):
            out[name] = [_number(item) for item in value[:2000]]
        elif isinstance(value, (str, bool)):
            out[name] = value if isinstance(value, bool) else value[:200]
        elif (number := _number(value)) is not None:
            out[name] = number
    return out


def _part(values: dict[str, Any], name: str) -> dict[str, Any]:
    part = values.get(name)
    return part if isinstance(part, dict) else {}


def _flat(description: dict[str, Any]) -> dict[str, str]:
    out: dict[str, str] = {}
    for name, value in description.items():
        fields = value if isinstance(value, dict) else {name: value}
        out |= {str(key): str(item)[:200] for key, item in fields.items()}
    return out


def _text(path: Path) -> str:
    """A card, without the header that the hub reads."""
    try:
        text = read_regular(path, MAX_CARD).decode(errors="replace") if path.is_file() else ""
    except (OSError, ValueError):
        return ""
    return re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL).strip()


def _recipe(run: Run) -> dict[str, str]:
    from springwell.app.config import from_dict
    from springwell.app.studio import recipes

    try:
        return recipes.run(from_dict(_json(run.config_path), str(run.config_path)))
    except UserError:
        return {"command": "", "python": ""}


def preview(desk: Desk, options: Options) -> dict[str, Any]:
    """A picture of a run."""
    folder = folder_of(options.text("name"), desk.runs)
    return {"arrays": {"file": np.frombuffer(picture(folder, options.text("file")), np.uint8)}}


def archive(desk: Desk, options: Options) -> dict[str, Any]:
    """A trained model as a .zip: its folder, which ``springwell.load`` reads after unpacking."""
    name = options.text("name")
    folder = folder_of(name, desk.runs)
    title, packed = Path(name.removeprefix("zoo:")).name, io.BytesIO()
    if not (folder / "model.json").is_file():
        raise UserError(f"{name}: its training has not saved a model yet")
    with zipfile.ZipFile(packed, "w") as file:
        for part in MODEL_FILES:
            if (folder / part).is_file():
                file.writestr(f"{title}/{part}", read_regular(folder / part, MAX_MODEL))
    return {"title": title, "arrays": {"file": np.frombuffer(packed.getvalue(), np.uint8)}}


def page(desk: Desk, options: Options) -> dict[str, Any]:
    """A run as a single HTML file."""
    from springwell.app.studio.report import report

    name = options.text("name")
    return {"arrays": {"file": np.frombuffer(report(name, folder_of(name, desk.runs)).encode(), np.uint8)}}


def picture(folder: Path, file: str) -> bytes:
    """The bytes of one of the pictures that :func:`details` names. Raises UserError."""
    known = {path.name: path for path in (*folder.glob("*.png"), *(folder / "previews").glob("*.png"))}
    if file not in known:
        raise UserError(f"{file}: is no picture of this run")
    data = read_regular(known[file], MAX_PREVIEW)
    if not data.startswith(b"\x89PNG\r\n\x1a\n"):
        raise UserError(f"{file}: is no PNG")
    return data


def as_address(data: bytes) -> str:
    """A PNG as an address that holds it."""
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"

"""The paper's tables, with what runs here measured beside them: never a number that no run has."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from springwell.app.api import FREE_FIELDS, SAMPLING_FIELDS
from springwell.app.config import Config, difference, from_dict
from springwell.app.presets import preset
from springwell.errors import UserError
from springwell.evaluation.weights import DIGEST
from springwell.paper.common import markdown
from springwell.store.files import read_json, write_atomically, write_json
from springwell.store.run import Run

# They change neither the objective, nor how long it is trained, nor how it is sampled: with others it is a run of the preset.
_HOW = (FREE_FIELDS - SAMPLING_FIELDS) | {"seed", "accumulate", "precision", "compile"}


Say = Callable[[dict[str, Any]], tuple[int, str]]


@dataclass(frozen=True)
class Row:
    """A row of the paper: its name, what the paper prints, and the preset that repeats it, if one does."""

    name: str
    values: tuple[str, ...]
    preset: str | None = None


@dataclass(frozen=True)
class Table:
    """A table of the paper.

    Attributes:
        title: What it shows.
        columns: What is measured: a heading, and what a run's measurements say of it, with the number of samples or images
            behind it; KeyError if they say nothing.
        rows: The rows.
    """

    title: str
    columns: tuple[tuple[str, Say], ...]
    rows: tuple[Row, ...]


def _fid(values: dict[str, Any]) -> tuple[int, str]:
    q = _published_inception(values)
    counts = f"{q['num_samples']:,} samples, {q['num_reference']:,} of {q['reference']}"
    return q["num_samples"], f"{_finite(q['fid']):.2f} ({counts})"


def _score(values: dict[str, Any]) -> tuple[int, str]:
    q = _published_inception(values)
    value = f"{_finite(q['inception_score']):.2f} +- {_finite(q['inception_score_std']):.2f}"
    return q["num_samples"], f"{value} ({q['num_samples']:,} samples)"


def _bits(values: dict[str, Any]) -> tuple[int, str]:
    r = values["likelihood"]
    low, high = (_finite(r[f"bits_per_dim_{side}"]) for side in ("optimistic", "conservative"))
    what = f"log Z from below and above: {r['verdict']}; {r['num_images']:,} {r['split']} images"
    return r["num_images"], f"{low:.2f} ... {high:.2f} +- {_finite(r['bits_per_dim_standard_error_data']):.2f} ({what})"


def _published_inception(values: dict[str, Any]) -> dict[str, Any]:
    """The measures by Inception; KeyError if it had other weights than those that published values are measured with."""
    found: dict[str, Any] = values["quality"]
    if found["inception_sha256"] != DIGEST:
        raise KeyError("inception_sha256")
    return found


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError(value)
    return value


TABLES = {
    "table1": Table(
        "CIFAR-10, unconditional, 50,000 samples; a selection of the published rows",
        (("FID", _fid), ("IS", _score)),
        (
            Row("WGAN-GP (Gulrajani et al. 2017)", ("36.4", "7.86")),
            Row("SNGAN (Miyato et al. 2018)", ("21.7", "8.22")),
            Row("NCSN (Song and Ermon 2019)", ("25.32", "8.87")),
            Row("NCSNv2 (Song and Ermon 2020)", ("10.87", "8.40")),
            Row("DDPM (Ho et al. 2020)", ("3.17", "9.46")),
            Row("EBM-IG (Du and Mordatch 2019)", ("38.2", "6.78")),
            Row("recovery likelihood, T = 1, K = 180", ("32.12", "6.72"), "cifar10-t1"),
            Row("recovery likelihood, T = 1000, K = 0", ("22.58", "7.71"), "cifar10-t1k"),
            Row("score matching, T = 1000", ("21.76", "7.76"), "cifar10-t1k-dsm"),
            Row("recovery likelihood, T = 6, K = 10", ("unstable", "unstable"), "cifar10-t6-k10"),
            Row("recovery likelihood, T = 6, K = 30", ("9.58", "8.30"), "cifar10-t6"),
            Row("recovery likelihood, T = 6, K = 50", ("9.36", "8.46"), "cifar10-t6-k50"),
            Row("adapted ladder, T = 12, K = 2", ("-", "-"), "cifar10-ladder"),
        ),
    ),
    "table3": Table(
        "CelebA 64 x 64, 50,000 samples; a selection of the published rows",
        (("FID", _fid),),
        (
            Row("NCSN (Song and Ermon 2019)", ("25.30",)),
            Row("NCSNv2 (Song and Ermon 2020)", ("10.23",)),
            Row("recovery likelihood, T = 6, K = 30", ("5.98",), "celeba-t6"),
            Row("adapted ladder, T = 12, K = 2", ("-",), "celeba-ladder"),
        ),
    ),
    "table-bpd": Table(
        "CIFAR-10, test images; a selection of the published rows",
        (("bits/dim", _bits),),
        (
            Row("Glow (Kingma and Dhariwal 2018)", ("3.35",)),
            Row("Flow++ (Ho et al. 2019)", ("3.08",)),
            Row("Sparse Transformer (Child et al. 2019)", ("2.80",)),
            Row("DDPM (Ho et al. 2020), a bound", ("<= 3.75",)),
            Row("recovery likelihood, T = 1000 (from a lower bound of log Z)", ("3.18",), "cifar10-t1k"),
            Row("adapted ladder, T = 12, K = 2", ("-",), "cifar10-ladder"),
        ),
    ),
}


def reproduce(name: str, out: Path, runs: Path) -> dict[str, Any]:
    """Writes NAME.md and NAME.json.

    Args:
        name: Which table.
        out: Where to.
        runs: A folder of run directories that `springwell evaluate` has measured.
    """
    table = TABLES[name]
    found = list(_evaluated(runs))
    lines: list[list[str]] = []
    numbers: list[dict[str, Any]] = []
    for row in table.rows:
        ours = [(folder, values) for name, folder, values in found if name == row.preset]
        chosen = [_best(ours, say) if row.preset else (None, "") for _, say in table.columns]
        cells = [cell for _, cell in chosen]
        command = f"`springwell train {row.preset}`" if row.preset else ""
        pairs = [cell for pair in zip(row.values, cells, strict=True) for cell in pair]
        lines.append([row.name, *pairs, command])
        numbers.append({"row": row.name, "paper": row.values, "ours": cells, "preset": row.preset})
        numbers[-1]["runs"] = [folder for folder, _ in chosen]
    headings = [heading for title, _ in table.columns for heading in (f"{title}, published", f"{title}, ours")]
    text = f"{table.title}\n\n{markdown(['', *headings, 'preset'], lines)}"
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / f"{name}.md", text + "\n")
    write_json(out / f"{name}.json", {"title": table.title, "rows": numbers})
    return {"table": text, "written": [str(out / f"{name}.md"), str(out / f"{name}.json")], "rows": numbers}


def _evaluated(runs: Path) -> Iterator[tuple[str, Path, dict[str, Any]]]:
    """(preset, folder, evaluation) of every finished and evaluated run of a preset below ``runs``."""
    presets = {row.preset: preset(row.preset) for table in TABLES.values() for row in table.rows if row.preset}
    for folder in sorted(runs.iterdir()) if runs.is_dir() else []:
        run = Run(folder)
        try:
            if not run.finished:
                continue
            config = from_dict(run.read_description(), str(run.config_path))
            values = _final(run.evaluation_path, config)
            if bits := _final(run.likelihood_path, config):
                values["likelihood"] = bits
        except UserError:
            continue
        for name, wanted in presets.items():
            if values and {field for field, *_ in difference(config, wanted)} <= _HOW:
                yield name, folder, values


def _final(path: Path, config: Config) -> dict[str, Any]:
    """What a file says of the end of the training; nothing if it is of an earlier iteration."""
    found = read_json(path) if path.exists() else None
    return found if isinstance(found, dict) and found.get("iteration") == config.training.iterations else {}


def _best(ours: list[tuple[Path, dict[str, Any]]], say: Say) -> tuple[str | None, str]:
    """The run that was measured with the most samples or images, the last of equals, and what it says."""
    most = 0
    best: tuple[str | None, str] = (None, "not run")
    for folder, values in ours:
        try:
            count, cell = say(values)
        except (KeyError, TypeError, ValueError):
            continue
        if count >= most:
            most, best = count, (str(folder), cell)
    return best

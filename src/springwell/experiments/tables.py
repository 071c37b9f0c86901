"""The paper's tables, with what runs here measured beside them: never a number that no run has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from springwell.config import difference
from springwell.errors import UserError
from springwell.experiments.common import markdown
from springwell.model import LIKELIHOOD
from springwell.presets import preset
from springwell.training.checkpoint import write_atomically
from springwell.training.run import FREE_FIELDS, Run, read_json

# They change neither the objective nor how long it is trained, so a run that differs in them alone is a run of the preset.
_HOW = FREE_FIELDS | {"seed", "accumulate", "precision", "compile"}


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
        columns: What is measured: (heading, where in evaluation.json, its spread).
        rows: The rows.
    """

    title: str
    columns: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...]
    rows: tuple[Row, ...]


_FID = ("FID", ("quality", "fid"), ())
_SCORE = ("IS", ("quality", "inception_score"), ("quality", "inception_score_std"))
_BITS = ("bits/dim", ("likelihood", "bits_per_dim"), ("likelihood", "bits_per_dim_standard_error"))

TABLES = {
    "table1": Table(
        "CIFAR-10, unconditional, 50,000 samples",
        (_FID, _SCORE),
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
        "CelebA 64 x 64, 50,000 samples",
        (_FID,),
        (
            Row("NCSN (Song and Ermon 2019)", ("25.30",)),
            Row("NCSNv2 (Song and Ermon 2020)", ("10.23",)),
            Row("recovery likelihood, T = 6, K = 30", ("5.98",), "celeba-t6"),
            Row("adapted ladder, T = 12, K = 2", ("-",), "celeba-ladder"),
        ),
    ),
    "table-bpd": Table(
        "CIFAR-10, test images",
        (_BITS,),
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
    lines, numbers = [], []
    for row in table.rows:
        ours = [(folder, values) for preset_name, folder, values in found if preset_name == row.preset] if row.preset else []
        folder, values = ours[-1] if ours else (None, {})
        cells = (
            [_cell(values, where, spread) for _, where, spread in table.columns] if row.preset else [""] * len(table.columns)
        )
        command = f"`springwell train {row.preset}`" if row.preset else ""
        pairs = [cell for pair in zip(row.values, cells, strict=True) for cell in pair]
        lines.append([row.name, *pairs, command])
        numbers.append(
            {"row": row.name, "paper": row.values, "ours": cells, "preset": row.preset, "run": folder and str(folder)}
        )
    headings = [heading for title, *_ in table.columns for heading in (f"{title}, published", f"{title}, ours")]
    text = f"{table.title}\n\n{markdown(['', *headings, 'preset'], lines)}"
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / f"{name}.md", text + "\n")
    write_atomically(out / f"{name}.json", json.dumps({"title": table.title, "rows": numbers}, indent=1) + "\n")
    return {"table": text, "written": [str(out / f"{name}.md"), str(out / f"{name}.json")], "rows": numbers}


def _evaluated(runs: Path) -> Iterator[tuple[str, Path, dict[str, Any]]]:
    """(preset, folder, evaluation) of every finished and evaluated run of a preset below ``runs``."""
    presets = {row.preset: preset(row.preset) for table in TABLES.values() for row in table.rows if row.preset}
    for folder in sorted(runs.iterdir()) if runs.is_dir() else []:
        run = Run(folder)
        try:
            values = read_json(run.evaluation_path) if run.evaluation_path.exists() else {}
            if (folder / LIKELIHOOD).exists():
                values = {**values, "likelihood": read_json(folder / LIKELIHOOD)}
            if not run.finished or not values:
                continue
            config = run.read_config()
        except (UserError, TypeError):
            continue
        for name, wanted in presets.items():
            if {field for field, *_ in difference(config, wanted)} <= _HOW and isinstance(values, dict):
                yield name, folder, values


def _cell(values: dict[str, Any], where: tuple[str, ...], spread: tuple[str, ...]) -> str:
    number = _look_up(values, where)
    if number is None:
        return "not run"
    error = _look_up(values, spread) if spread else None
    samples = _look_up(values, (where[0], "num_samples"))
    count = f" ({samples:,.0f} samples)" if samples is not None and where[0] == "quality" else ""
    return f"{number:.2f}" + ("" if error is None else f" +- {error:.2f}") + count


def _look_up(values: Any, where: tuple[str, ...]) -> float | None:
    for name in where:
        values = values.get(name) if isinstance(values, dict) else None
    return float(values) if isinstance(values, (int, float)) else None

"""Tables on the command line: springwell train table, and what sample, score and evaluate do with its run."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from springwell.app.cli import common as cli
from springwell.errors import UserError

if TYPE_CHECKING:
    import numpy as np

    from springwell.app.tables import TableModel
    from springwell.data.tables import Table

ABOUT = "The density of any table of numbers: csv:FILE, parquet:FILE or npy:FILE."
MOST_DRAWN = 6
DRIVERS = tuple(f"{what}_{i}" for i in (1, 2, 3) for what in ("driver", "pull"))


@dataclass(frozen=True)
class TableCommand(cli.Command):
    """Fit the density of a table."""

    data: Annotated[str, tyro.conf.arg(metavar="TABLE")]
    """csv:FILE, parquet:FILE or npy:FILE. A first column of text names the rows; all others must be numbers."""
    columns: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME", help_behavior_hint="")] = ()
    """Names of the columns to use. Default: all."""
    drop_missing: cli.Flag = False
    """Leave out rows with a missing cell."""
    out: cli.Folder = None
    """Run directory. Default: runs/NAME, where NAME is the name of the file."""
    transform: Literal["auto", "standard", "yeo-johnson", "spline"] = "auto"
    """How columns are transformed. auto: the transformation with the highest density of held-out rows."""
    iterations: cli.Number = None
    """Greatest number of updates of every energy. 0 fits a mixture only. Default: depends on the number of rows."""
    seed: int = 0
    """Seed of everything random."""

    def resolved(self, preset: str) -> TableCommand:
        """Returns the command with its run directory."""
        name = Path(self.data.partition(":")[2] or self.data).stem
        return dataclasses.replace(self, out=self.out or Path("runs") / name)


def train_table(command: TableCommand, context: cli.Context) -> dict[str, Any]:
    """Fits and writes the density of a table; refuses a folder that holds another run."""
    from springwell.app.tables import DESCRIPTION, MOST_REFERENCE, TableModel, save_table
    from springwell.data.tables import read_table
    from springwell.sklearn import EnergyDensity
    from springwell.tables.columns import column_notes

    assert command.out is not None
    context.set_threads()
    cli.at_least(("iterations", command.iterations, 0))
    if command.out.exists() and any(command.out.iterdir()):
        raise UserError(f"--out {command.out}: is not empty; choose another --out")
    table = read_table(command.data, columns=command.columns)
    table = _complete(table, f"--data {command.data}", command.drop_missing, context)
    if len(table.values) < 2:
        raise UserError(f"data={command.data!r}: has 1 row; a density needs at least 2")
    if table.values.shape[1] > len(table.values):
        context.reporter.warn(f"{command.data}: has more columns than rows, so covariances are poorly determined")
    start = time.perf_counter()
    fitted = EnergyDensity(command.iterations, command.transform, random_state=command.seed).fit(table.values)
    for note in column_notes(table.values, table.columns):
        context.reporter.warn(note)
    reference = table.values[:: -(-len(table.values) // MOST_REFERENCE)].astype(float)
    model = TableModel(fitted.density_, table.columns, str(Path(command.data)), reference, fitted.unseen_)
    with cli.write_errors(command.out):
        save_table(model, command.out)
    result = {
        "run": str(command.out),
        "rows": len(table.values),
        "columns": table.columns,
        "transform": fitted.transformation_,
        "components": len(fitted.density_.mixture.mean),
        "energies": len(fitted.density_.energies),
        "held_out": fitted.held_out_score_,
        "start_held_out": fitted.start_held_out_score_,
        "seconds": round(time.perf_counter() - start, 2),
    }
    parts = f"{result['components']} Gaussians, {result['energies']} energies, transform {result['transform']}"
    error = f"{fitted.unseen_.std() / len(fitted.unseen_) ** 0.5:.3f} nats a row, {len(fitted.unseen_)} rows"
    alone = f"; the mixture alone {fitted.start_held_out_score_:.3f}" if result["energies"] else ""
    context.tell(
        f"{command.out / DESCRIPTION}: {result['rows']} rows, {len(table.columns)} columns; {parts}",
        f"unseen    {fitted.held_out_score_:.3f} +- {error}{alone}",
    )
    return result


def _complete(table: Table, what: str, drop: bool, context: cli.Context) -> Table:
    """Returns the rows without missing cells. Other rows are left out with a warning, or refused."""
    import numpy as np

    from springwell.tables.columns import check_finite

    missing = np.isnan(table.values).any(1)
    if drop and missing.any():
        kept = np.flatnonzero(~missing)
        if not len(kept):
            raise UserError(f"{what}: every row misses a cell; leave out columns or fill them")
        context.reporter.warn(f"{what}: {missing.sum()} of {len(missing)} rows miss a cell and are left out")
        return table._replace(values=table.values[kept], rows=[str(table.rows[int(i)]) for i in kept])
    try:
        check_finite(table.values, table.columns, what)
    except UserError as error:
        hint = (
            f"; --drop-missing leaves out the {missing.sum()} of {len(missing)} rows that miss a cell" if missing.any() else ""
        )
        raise UserError(f"{error}{hint}") from None
    return table


def sample_table(run: str, num: int | None, seed: int, out: Path | None, overwrite: bool) -> dict[str, Any]:
    """Draws rows and writes them under the header of the table."""
    import torch

    from springwell.app.tables import load_table
    from springwell.data.tables import write_csv

    model, out = load_table(Path(run)), out or Path(run) / "samples.csv"
    if out.suffix != ".csv":
        raise UserError(f"--out {out}: samples of a table are written as .csv")
    cli.check_new(out, overwrite)
    cli.writable(out.parent)
    rows = model.density.sample(num or 1024, torch.Generator().manual_seed(seed))
    with cli.write_errors(out):
        write_csv(out, model.columns, [[f"{value:.9g}" for value in row] for row in rows.tolist()])
    return {"run": run, "out": str(out), "seed": seed, "num": len(rows)}


def score_table(command: Any, context: cli.Context) -> dict[str, Any]:
    """Ranks the rows of a table, and tells two tables apart if a second one is given."""
    import numpy as np
    import torch

    from springwell.app.tables import load_table
    from springwell.data.tables import write_csv
    from springwell.evaluation.outliers import percentile
    from springwell.evaluation.scores import auroc
    from springwell.store.files import write_json

    model = load_table(Path(command.run))
    folder = cli.place(command.run, command.out, "scores")
    out = folder / "scores.csv"
    cli.check_new(out, command.overwrite)
    rows, names = _rows_of(model, command.images, command.num, command.drop_missing, context)
    log_density = model.density.log_prob(rows)
    rank = model.ranking(command.method, command.seed)
    scores = log_density if command.method == "density" else rank(rows)
    ranks = percentile(log_density, model.unseen)
    result: dict[str, Any] = {
        "table": command.images,
        "num": len(rows),
        "method": command.method,
        "mean": float(log_density.mean()),
        "mean_standard_error": float(log_density.std(ddof=1) / np.sqrt(len(rows))) if len(rows) > 1 else None,
        "least_likely": [str(names[i]) for i in np.argsort(scores)[:10]],
    }
    if command.against:
        others, _ = _rows_of(model, command.against, command.num, command.drop_missing, context)
        other = rank(others)
        area, error = auroc(torch.from_numpy(scores), torch.from_numpy(other))
        spread = error if np.isfinite(error) else None
        result |= {"against": command.against, "against_num": len(others), "auroc": area, "auroc_standard_error": spread}
    numbers = {"log_density": log_density, "percentile": ranks}
    if command.method != "density":
        numbers[command.method] = scores
    cli.writable(folder)
    with cli.write_errors(folder):
        write_csv(out, ["row", *numbers, *DRIVERS], _score_lines(model, rows, names, list(numbers.values())))
        write_json(folder / "scores.json", result)
    mean = f"{result['mean']:.3f}{cli.plus_minus(result['mean_standard_error'], 3)} nats a row"
    lines = [
        f"score     mean log-density {mean}, {len(rows)} rows of {command.images}",
        f"outliers  by {command.method}, strangest first: {', '.join(result['least_likely'])}",
    ]
    if command.against:
        sets = f"{len(rows)} rows of {command.images} against {result['against_num']} of {command.against}"
        delong = cli.plus_minus(spread, 4, " (DeLong)")
        lines.append(f"auroc     {area:.4f}{delong}, {sets}; above 0.5 if the first table is the more usual one")
    context.tell(*lines, f"written: {out}, {folder / 'scores.json'}")
    return {"run": command.run, "out": str(folder), **result}


def _score_lines(
    model: TableModel, rows: np.ndarray, names: Sequence[Any], numbers: list[np.ndarray]
) -> Iterator[Sequence[object]]:
    """Yields the lines of scores.csv: a row's name, its numbers, and the columns with the largest scores, with those scores."""
    import numpy as np

    together = 10_000
    for first in range(0, len(rows), together):
        pull = model.density.drivers(rows[first : first + together])
        for i, (row, order) in enumerate(zip(pull, np.argsort(-np.abs(pull)), strict=True), first):
            top = [cell for j in order[: len(DRIVERS) // 2] for cell in (model.columns[j], f"{row[j]:.4g}")]
            yield [names[i], *(f"{column[i]:.7g}" for column in numbers), *top]


def _rows_of(
    model: TableModel, text: str, num: int | None, drop_missing: bool, context: cli.Context
) -> tuple[np.ndarray, Sequence[Any]]:
    """Returns the model's columns of a table, in the model's order, and the names of the rows. Other columns are ignored."""
    from springwell.data.tables import MissingColumnError, default_names, read_table

    try:
        table = read_table(text, text, model.columns)
    except MissingColumnError:
        table = read_table(text, text)
        missing = [name for name in model.columns if name not in table.columns]
        if len(table.columns) != len(model.columns):
            count = f"has {len(table.columns)} columns, but the model's table has {len(model.columns)}"
            raise UserError(f"{text}: {count}; missing: {', '.join(missing[:8])}") from None
        if default_names(len(model.columns)) not in (model.columns, table.columns):
            names = f"{', '.join(missing[:8])}; its columns are {', '.join(table.columns[:8])}"
            raise UserError(f"{text}: has no column {names}") from None
    table = table._replace(values=table.values[:num], columns=model.columns, rows=table.rows[:num])
    table = _complete(table, text, drop_missing, context)
    return table.values, table.rows


def evaluate_table(command: Any, context: cli.Context) -> dict[str, Any]:
    """Draws the pairs of columns and the quantiles of data and samples."""
    import numpy as np
    import torch

    from springwell.app import plots
    from springwell.app.tables import load_table
    from springwell.store.files import write_json

    model = load_table(Path(command.run))
    rows = _rows_of(model, command.data, None, False, context)[0] if command.data else model.reference
    folder = cli.place(command.run, command.out, "evaluation", data=command.data)
    num = command.num or 2000
    drawn = model.density.sample(num, torch.Generator().manual_seed(command.seed)).numpy()
    distance = [_kolmogorov(a, b) for a, b in zip(rows.T, drawn.T, strict=True)]
    log_density = model.density.log_prob(rows)
    result = {
        "num_rows": len(rows),
        "num_samples": num,
        "mean_log_density": float(log_density.mean()),
        "held_out": float(model.unseen.mean()),
        "kolmogorov": dict(zip(model.columns, distance, strict=True)),
        "kolmogorov_95": 1.36 * float(np.sqrt(1 / len(rows) + 1 / num)),
    }
    cli.writable(folder)
    with cli.write_errors(folder):
        write_json(folder / "evaluation.json", result)
        plots.pairs(folder / "pairs.png", rows[:2000], drawn, model.columns[:MOST_DRAWN])
        plots.quantiles(folder / "quantiles.png", rows, drawn, model.columns)
    worst = int(np.argmax(distance))
    level = f"for equal distributions, 95 % are below {result['kolmogorov_95']:.3f}"
    context.tell(
        f"ks        {distance[worst]:.3f} at most, column {model.columns[worst]}; {level}; {len(rows)} rows, {num} samples",
        f"written: {folder / 'evaluation.json'}, {folder / 'pairs.png'}, {folder / 'quantiles.png'}",
    )
    return {"run": command.run, "out": str(folder), "evaluation": result}


def _kolmogorov(a: np.ndarray, b: np.ndarray) -> float:
    """Returns the greatest distance between two empirical distribution functions."""
    import numpy as np

    at = np.concatenate([a, b])
    shares = [np.searchsorted(np.sort(x), at, side="right") / len(x) for x in (a, b)]
    return float(np.abs(shares[0] - shares[1]).max())

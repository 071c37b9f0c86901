"""Tables in files: csv:FILE, parquet:FILE and npy:FILE as numbers with the names of columns and rows."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from springwell.data.formats import UnusableDataError, load_npy
from springwell.errors import UserError
from springwell.store.files import write_atomically

KINDS = ("csv", "parquet", "npy")


class Table(NamedTuple):
    """Rows and columns.

    Attributes:
        values: ``[N, D]``, numbers.
        columns: D names.
        rows: N names: those of a first column of text, else the numbers 0, 1, ...
    """

    values: np.ndarray
    columns: list[str]
    rows: list[str]


def is_table(text: str) -> bool:
    """Whether ``text`` names a file that only a table can be in: csv or parquet."""
    kind = text.partition(":")[0]
    return kind in ("csv", "parquet") or Path(text).suffix in (".csv", ".parquet")


def read_table(text: str) -> Table:
    """The table that ``text`` names: KIND:FILE, or a FILE whose suffix is a kind. Raises UserError."""
    kind, colon, place = text.partition(":")
    if not colon or kind not in KINDS:
        kind, place = Path(text).suffix[1:], text
    if kind not in KINDS:
        raise UserError(f"data={text!r}: is not a table; give csv:FILE, parquet:FILE or npy:FILE")
    path = Path(place).expanduser()
    try:
        table = {"csv": _csv, "parquet": _parquet, "npy": _npy}[kind](path)
    except FileNotFoundError:
        raise UserError(f"data={text!r}: no such file") from None
    except (OSError, UnicodeDecodeError, csv.Error, UnusableDataError) as error:
        raise UserError(f"data={text!r}: cannot be read ({error})") from None
    if table.values.ndim != 2 or table.values.dtype.kind not in "fiu" or 0 in table.values.shape:
        found = f"{table.values.dtype} {list(table.values.shape)}"
        raise UserError(f"data={text!r}: found {found}; needs numbers, at least one row and one column")
    return table


def _named(values: np.ndarray) -> Table:
    return Table(values, [f"x{i}" for i in range(values.shape[-1])], [str(i) for i in range(len(values))])


def _npy(path: Path) -> Table:
    return _named(load_npy(path))


def _csv(path: Path) -> Table:
    with path.open(newline="", encoding="utf-8-sig") as file:
        lines = [line for line in csv.reader(file) if line]
    if len(lines) < 2:
        raise UnusableDataError("it has no rows below its header")
    header, body = lines[0], lines[1:]
    if all(_is_number(cell) for cell in header):
        header, body = [f"x{i}" for i in range(len(header))], lines
    for i, line in enumerate(body):
        if len(line) != len(header):
            raise UnusableDataError(f"row {i} has {len(line)} cells, and the header {len(header)}")
    return _columns(header, [list(column) for column in zip(*body, strict=True)])


def _parquet(path: Path) -> Table:
    try:
        from pyarrow import parquet
    except ImportError:
        raise UserError("parquet needs pyarrow; pip install 'springwell[tables]'") from None
    table = parquet.read_table(path)
    columns = [["" if cell is None else str(cell) for cell in column.to_pylist()] for column in table.columns]
    return _columns(table.column_names, columns)


def _columns(header: Sequence[str], columns: list[list[str]]) -> Table:
    """Numbers of columns of text; a first column that holds no numbers names the rows."""
    names = [str(i) for i in range(len(columns[0]))]
    kept, values = list(header), columns
    if len(columns) > 1 and not any(_is_number(cell) for cell in columns[0]):
        names, kept, values = columns[0], kept[1:], columns[1:]
    numbers = [_numbers(name, column) for name, column in zip(kept, values, strict=True)]
    return Table(np.stack(numbers, 1), kept, names)


def _numbers(name: str, column: list[str]) -> np.ndarray:
    try:
        return np.array([float(cell) if cell else np.nan for cell in column])
    except ValueError:
        i = next(i for i, cell in enumerate(column) if cell and not _is_number(cell))
        raise UnusableDataError(f"column {name!r} is text ({column[i]!r} in row {i}); drop it or make it numbers") from None


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def write_csv(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Writes a table, atomically."""
    import io

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    write_atomically(path, text.getvalue())

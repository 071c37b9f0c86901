"""Tables in files: csv:FILE, parquet:FILE and npy:FILE as numbers with the names of columns and rows.

A csv may have commas, semicolons or tabs between its cells, quoted cells, and the line ends of any system. A first line of
numbers alone is a row, not a header. A first column that has no name, or that holds no numbers, names the rows.
"""

from __future__ import annotations

import csv
import io
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from springwell.data.formats import UnusableDataError, load_npy
from springwell.data.spec import TABLES, parse_source
from springwell.errors import UserError, did_you_mean
from springwell.store.files import write_atomically

_SEPARATORS = ",;\t"
_DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+")
_MISSING = frozenset({"", "NA", "N/A", "NaN", "nan", "null", "NULL", "None"})


def default_names(num: int) -> list[str]:
    """What the columns of a table without a header are called."""
    return [f"x{i}" for i in range(num)]


class MissingColumnError(UserError):
    """A table lacks a column that it was asked for."""


class Table(NamedTuple):
    """Rows and columns.

    Attributes:
        values: ``[N, D]``, numbers; NaN where a cell is missing.
        columns: D names.
        rows: N names, or the numbers 0, 1, ...
    """

    values: np.ndarray
    columns: list[str]
    rows: Sequence[str] | Sequence[int]


def read_table(text: str, what: str = "", columns: Sequence[str] = ()) -> Table:
    """The table that ``text`` names: KIND:FILE, or a FILE whose suffix is a kind. Raises UserError, which calls it ``what``.

    Args:
        text: Names the file.
        what: What messages call it.
        columns: The columns to read, in this order; others may be text. Default: all.
    """
    spec, what = parse_source(text), what or f"data={text!r}"
    if spec.kind not in TABLES:
        raise UserError(f"{what}: is not a table; give csv:FILE, parquet:FILE or npy:FILE")
    if spec.split:
        raise UserError(f"{what}: a table is not divided; leave out @{spec.split}")
    with _reading(what, "cannot be read ({})"):
        table = {"csv": _csv, "parquet": _parquet, "npy": _npy}[spec.kind](spec.path, columns)
    if table.values.ndim != 2 or table.values.dtype.kind not in "fiu" or 0 in table.values.shape:
        found = f"{table.values.dtype} {list(table.values.shape)}"
        raise UserError(f"{what}: found {found}; needs numbers in rows and columns, at least one of each")
    return table


@contextmanager
def _reading(what: str, reason: str) -> Iterator[None]:
    """Errors of reading a table that begin with what it is called; ``reason`` says how others are worded."""
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"{what}: no such file") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{what}: is not text in UTF-8 (byte {error.start}); save it so") from None
    except MissingColumnError as error:
        raise MissingColumnError(f"{what}: {error}") from None
    except (OSError, csv.Error, UnusableDataError) as error:
        raise UserError(f"{what}: {reason.format(error)}") from None


def labelled_table(text: str, column: str) -> tuple[np.ndarray, list[str]]:
    """Vectors ``[N, D]`` of all columns but one of a CSV file, and the text of that one, the labels.

    Raises UserError.
    """
    spec, what = parse_source(text), f"data={text!r}"
    if spec.kind != "csv":
        raise UserError(f"{what}: label_column={column!r} names a column of a CSV file; give csv:FILE")
    with _reading(what, "{}"):
        header, lines = _cells(spec.path)
        if header.count(column) != 1:
            raise UnusableDataError(f"has no column {column!r}, only {', '.join(header)[:200]}")
        place = header.index(column)
        rows = list(lines)
        bad = next((i for i, line in enumerate(rows) if len(line) != len(header)), None)
        if bad is not None:
            raise UnusableDataError(f"row {bad} has {len(rows[bad])} cells, and the header {len(header)}")
        labels = ["" if (cell := line[place].strip()) in _MISSING else cell for line in rows]
        others = [[cell for i, cell in enumerate(line) if i != place] for line in rows]
        table = _rows([name for i, name in enumerate(header) if i != place], others)
    if not any(labels):
        raise UserError(f"{what}: column {column!r} has no labels; fill it in")
    return table.values, labels


def _npy(path: Path, wanted: Sequence[str]) -> Table:
    values = load_npy(path)
    values = values[:, None] if values.ndim == 1 else values
    rows, columns = values.shape if values.ndim == 2 else (0, 0)
    names = default_names(columns)
    if wanted:
        values, names = values[:, _places(wanted, names)], list(wanted)
    return Table(values, names, range(rows))


def _csv(path: Path, wanted: Sequence[str]) -> Table:
    return _rows(*_cells(path), wanted)


def _places(wanted: Sequence[str], names: Sequence[str]) -> list[int]:
    """Where the columns that are wanted are among all."""
    _check_names(names)
    for name in wanted:
        if name not in names:
            known = f"its columns are {', '.join(names)[:200]}"
            raise MissingColumnError(f"has no column {name!r}{did_you_mean(name, names) or f'; {known}'}")
    _check_names(wanted)
    return [names.index(name) for name in wanted]


def _cells(path: Path) -> tuple[list[str], Iterator[list[str]]]:
    """The names of the columns of a CSV file, and its rows, which are read while they are used."""
    lines = _lines(path)
    header = next(lines, [])
    if header and all(_is_number(cell) for cell in header):
        return default_names(len(header)), chain([header], lines)
    return [name.strip() for name in header], lines


def _lines(path: Path) -> Iterator[list[str]]:
    """The cells of every row that is not empty."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        first = next((line for line in file if line.strip()), "")
        file.seek(0)
        # Separators between quotes belong to a name.
        outside = "".join(first.split('"')[::2])
        cells = csv.reader(file, delimiter=max(_SEPARATORS, key=outside.count))
        yield from (line for line in cells if any(cell.strip() for cell in line))


def _rows(header: list[str], body: Iterable[list[str]], wanted: Sequence[str] = ()) -> Table:
    """The table of a header and the cells of its rows; numbers are kept eight bytes each while they are read."""
    numbers, names = array("d"), []
    named: bool | None = None
    places: Sequence[int] = _places(wanted, header) if wanted else ()
    lines = enumerate(body)
    for i, line in lines:
        if len(line) != len(header):
            raise UnusableDataError(f"row {i} has {len(line)} cells, and the header {len(header)}")
        if named is None:
            named = len(header) > 1 and (not header[0] or not (_is_number(line[0]) or line[0] in _MISSING))
            places = places or range(named, len(line))
        if named:
            names.append(line[0])
        try:
            numbers.extend(_number(line[j]) for j in places)
        except ValueError:
            raise _text_found(header, places, chain([(i, line)], lines)) from None
    if named is None:
        raise UnusableDataError("it has no rows below its header")
    columns = [header[j] for j in places]
    _check_names(columns)
    values = np.frombuffer(numbers, dtype=np.float64).reshape(-1, len(columns))
    return Table(values, columns, names if named else range(len(values)))


def _number(cell: str) -> float:
    """Raises ValueError."""
    try:
        return float(cell)
    except ValueError:
        if cell.strip() in _MISSING:
            return float("nan")
        raise


def _text_found(header: Sequence[str], places: Sequence[int], rest: Iterable[tuple[int, list[str]]]) -> UnusableDataError:
    """The error of a table with text, which names all columns of text and the columns that are left."""
    found: dict[int, str] = {}
    for i, line in rest:
        for j in places:
            if j not in found and j < len(line) and not (_is_number(line[j]) or line[j].strip() in _MISSING):
                found[j] = f"{header[j]!r} is text ({line[j][:40]!r} in row {i})"
                if _DECIMAL_COMMA.fullmatch(line[j].strip()):
                    found[j] += ", a number with a decimal comma: write a point"
    return _no_numbers(list(found.values()), [header[j] for j in places if j not in found])


def _no_numbers(found: Sequence[str], others: Sequence[str], most: int = 8) -> UnusableDataError:
    """The error of a table whose columns ``found`` are no numbers, and ``others`` are."""
    rest = f", and {len(found) - most} columns more" * (len(found) > most)
    texts = "; ".join(f"column {text}" for text in found[:most]) + rest
    them = "it" if len(found) == 1 else "them"
    if not others:
        return UnusableDataError(f"{texts}; make {them} numbers")
    kept = list(others) if len(others) <= 5 * most else "[...]"
    return UnusableDataError(f"{texts}; make {them} numbers, or leave {them} out by columns={kept}")


def _check_names(names: Sequence[str]) -> None:
    if twice := [name for i, name in enumerate(names) if name in names[:i]]:
        raise UnusableDataError(f"two columns are called {twice[0]!r}; rename one")


def _parquet(path: Path, wanted: Sequence[str]) -> Table:
    try:
        from pyarrow import ArrowException, parquet, types
    except ImportError:
        raise UserError("parquet needs pyarrow; pip install 'springwell[tables]'") from None
    try:
        table = parquet.read_table(path)
    except ArrowException as error:
        raise UnusableDataError(str(error).partition("\n")[0]) from None

    columns = dict(zip(table.column_names, table.columns, strict=True))
    _check_names(table.column_names)
    names: Sequence[str] | Sequence[int] = range(len(table))
    first = next(iter(columns), None)
    if (
        len(columns) > 1
        and first is not None
        and (types.is_string(columns[first].type) or types.is_large_string(columns[first].type))
    ):
        names = [str(cell) for cell in columns[first].to_pylist()]
        if first not in wanted:
            del columns[first]
    if wanted:
        _places(wanted, list(columns))
        columns = {name: columns[name] for name in wanted}
    tests = (types.is_integer, types.is_floating, types.is_decimal, types.is_boolean)
    others = [name for name, column in columns.items() if any(test(column.type) for test in tests)]
    if len(others) < len(columns):
        raise _no_numbers([f"{name!r} is {column.type}" for name, column in columns.items() if name not in others], others)
    values = np.empty((len(table), len(columns)))
    for i, column in enumerate(columns.values()):
        values[:, i] = column.cast("float64").to_numpy()
    return Table(values, list(columns), names)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Writes a table, atomically."""

    def write(file: BinaryIO) -> None:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
        text.flush()
        text.detach()

    write_atomically(path, write)

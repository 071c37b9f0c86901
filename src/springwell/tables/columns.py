"""What is worth knowing of a table's columns before its density is fitted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from springwell.errors import UserError

# Rows that columns are looked at in.
LOOK = 20_000
# The largest number of a table: the fourth powers of numbers have to be numbers.
MOST = 1e50
NOT_FINITE = "NaN and infinity have no density, so drop or fill such rows"


def check_finite(x: np.ndarray, names: Sequence[str], what: str = "X", missing: bool = False) -> None:
    """Refuses cells that are not finite or whose squares would overflow, and says which is the first.

    Args:
        x: ``[N, D]``.
        names: The names of the columns.
        what: Names the table.
        missing: Whether NaN stands for a missing cell, which is allowed.
    """
    for first in range(0, len(x), LOOK):
        rows = x[first : first + LOOK]
        bad = ~(np.abs(rows) <= MOST) & ~(missing & np.isnan(rows))
        if bad.any():
            row, column = (int(i) for i in np.argwhere(bad)[0])
            value = x[first + row, column]
            why = f"numbers beyond {MOST:g} are refused, so rescale the column" if np.isfinite(value) else NOT_FINITE
            raise UserError(f"{what}: row {first + row}, column {names[column]!r} is {value}; {why}")


def column_notes(x: np.ndarray, names: Sequence[str]) -> list[str]:
    """Lines about columns that have no density of their own: constant, equal to another, or whole numbers."""
    # Spread over the table, which may be sorted.
    rows = np.asarray(x[:: -(-len(x) // LOOK)], dtype=np.float64)
    constant = [i for i in range(x.shape[1]) if (rows[:, i] == rows[0, i]).all()]
    seen: dict[bytes, int] = {}
    twins = []
    for i in range(x.shape[1]):
        first = seen.setdefault(rows[:, i].tobytes(), i)
        if first != i and i not in constant:
            twins.append(f"{names[i]} = {names[first]}")
    whole = [i for i in range(x.shape[1]) if i not in constant and (rows[:, i] == np.round(rows[:, i])).all()]
    notes = []
    if constant:
        notes.append(
            f"constant columns, whose density is that of a noise of width 0.001: {_listed([names[i] for i in constant])}"
        )
    if twins:
        notes.append(f"equal columns, whose joint density is that of a noise of 0.1 % of their spread: {_listed(twins)}")
    if whole:
        listed = _listed([names[i] for i in whole])
        notes.append(f"columns of whole numbers, which have a probability and no density; p is that of a smooth law: {listed}")
    return notes


def _listed(names: Sequence[str], most: int = 8) -> str:
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + rest

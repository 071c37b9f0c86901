"""Classes of stored rows: their names, and a label for each row. No torch here: processes that decode images import it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from springwell.data.spec import UnusableDataError

MOST_CLASSES = 1000
_NONE = "has no labels, which classes need; put images into a sub-folder for each class, or use data that have labels"


class RowLabels(NamedTuple):
    """Labels of stored rows.

    Attributes:
        classes: Their names.
        train: int64 ``[N]``; -1 where there is none.
        test: int64 ``[M]``.
    """

    classes: tuple[str, ...]
    train: np.ndarray
    test: np.ndarray


def unlabelled() -> UnusableDataError:
    """What is said of data without labels."""
    return UnusableDataError(_NONE)


def numbered(train: Sequence[str], test: Sequence[str]) -> RowLabels:
    """The classes that rows name, in order, and the label of each row; an empty name is a missing label."""
    names = sorted({value for value in (*train, *test) if value}, key=_order)
    index = {name: i for i, name in enumerate(names)}
    found = (np.array([index.get(value, -1) for value in values], np.int64) for values in (train, test))
    return RowLabels(tuple(names), *found)


def _order(name: str) -> tuple[float, str]:
    """Numbers by their size, before words."""
    try:
        value = float(name)
    except ValueError:
        return math.inf, name
    return (value if math.isfinite(value) else math.inf), name


def checked(labels: RowLabels) -> RowLabels:
    """Refuses labels that no conditional model can use."""
    num, total = len(labels.classes), len(labels.train) + len(labels.test)
    missing = int((labels.train < 0).sum() + (labels.test < 0).sum())
    if missing == total:
        raise unlabelled()
    if missing:
        raise UnusableDataError(f"{missing} of {total} rows have no label; label them or leave them out")
    if num == 1:
        raise UnusableDataError(f"has one class only, {labels.classes[0]!r}; classes need at least 2")
    if num > MOST_CLASSES:
        raise UnusableDataError(f"has {num:,} classes for {total:,} rows; at most {MOST_CLASSES:,} can be learned")
    if absent := [name for c, name in enumerate(labels.classes) if not bool((labels.train == c).any())]:
        raise UnusableDataError(f"class {absent[0]!r} has no training rows; add some or leave it out")
    return labels

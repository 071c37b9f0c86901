"""What a page asks for, checked: every value is read by a method that says what would work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from springwell.errors import UserError


class Options:
    """The options and the arrays of a job.

    Args:
        values: The options, as JSON has them.
        arrays: The arrays that came with them.
    """

    def __init__(self, values: dict[str, Any], arrays: dict[str, np.ndarray] | None = None):
        self.values, self.arrays = values, arrays or {}

    def whole(self, name: str, least: int, most: int) -> int:
        """A whole number in a range."""
        value = self.values.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise UserError(f"{name}={value!r}: needs a whole number, {least} ... {most}")
        return value

    def number(self, name: str, least: float, most: float) -> float:
        """A number in a range."""
        value: Any = self.values.get(name)
        known = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not known or not least <= value <= most:
            raise UserError(f"{name}={value!r}: needs a number, {least:g} ... {most:g}")
        return float(value)

    def choice(self, name: str, choices: Sequence[str]) -> str:
        """One of some words."""
        value = self.values.get(name)
        if not isinstance(value, str) or value not in choices:
            raise UserError(f"{name}={value!r}: unknown; choose {', '.join(choices)}")
        return value

    def flag(self, name: str) -> bool:
        """True or false; false if not given."""
        value = self.values.get(name, False)
        if not isinstance(value, bool):
            raise UserError(f"{name}={value!r}: needs true or false")
        return value

    def text(self, name: str, longest: int = 200) -> str:
        """A short text."""
        value = self.values.get(name)
        if not isinstance(value, str) or not value or len(value) > longest:
            raise UserError(f"{name}: needs a text of 1 ... {longest} characters")
        return value

    def wholes(self, name: str, counts: Sequence[int]) -> list[int]:
        """A list of whole numbers of 32 bits, as many as one of ``counts``."""
        value = self.values.get(name)
        if not isinstance(value, list) or len(value) not in counts:
            raise UserError(f"{name}: needs {' or '.join(map(str, counts))} whole numbers")
        return [Options({name: item}).whole(name, 0, 2**31 - 1) for item in value]

    def seed(self) -> int:
        """The seed."""
        return self.whole("seed", 0, 2**31 - 1)

    def array(self, name: str, dtype: type, shape: Sequence[int | None]) -> np.ndarray:
        """An array of finite numbers; None in ``shape`` stands for any length."""
        value = self.arrays.get(name)
        wanted = " x ".join("any" if side is None else str(side) for side in shape)
        if value is None or value.dtype != dtype or value.ndim != len(shape):
            raise UserError(f"{name}: needs an array of {dtype.__name__}, {wanted}")
        if any(side is not None and side != found for side, found in zip(shape, value.shape, strict=True)):
            raise UserError(f"{name}: has the shape {' x '.join(map(str, value.shape))}; needs {wanted}")
        if not np.isfinite(value).all():
            raise UserError(f"{name}: has values that are not finite")
        return value

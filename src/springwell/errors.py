"""Errors that a user can mend. The command line prints their message as one line and exits with code 2."""

import difflib
from collections.abc import Iterable
from operator import index
from typing import Any


class UserError(ValueError):
    """A value that cannot be used; the message names it and says what would work.

    Examples:
        >>> sw.load("mnits")
        Traceback (most recent call last):
            ...
        springwell.errors.UserError: mnits: not a run, nor a model that ships; did you mean mnist?
    """


class UnknownLogZError(UserError):
    """log Z of a model was asked for, and nobody has measured it."""


class InterruptionError(RuntimeError):
    """Work that was interrupted and saved; the same command goes on.

    Examples:
        >>> isinstance(sw.InterruptionError("interrupted at iteration 10"), RuntimeError)
        True
    """


class DivergenceError(RuntimeError):
    """Training or sampling ran away; the message says what happened, at which level, and what to try.

    Examples:
        >>> try:
        ...     model = sw.load("checkerboard")
        ... except sw.DivergenceError as error:
        ...     print("lower the learning rate:", error)
    """


def kind_of(value: object) -> str:
    """What a value is, for a message: ``an int``, ``a Tensor``, ``the class MyEnergy``, ``None``."""
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def did_you_mean(name: str, known: Iterable[str], prefix: str = "") -> str:
    """The known name that is most like ``name``, as the end of a message."""
    near = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {prefix}{near[0]}?" if near else ""


def whole_number(name: str, value: Any, least: int | None = None) -> int:
    """The value of an argument that must be a whole number, of any integer type, and at least ``least``."""
    try:
        number = None if isinstance(value, bool) else index(value)
    except TypeError:
        number = None
    if number is None:
        raise UserError(f"{name}={value!r}: is not a whole number; give an int")
    if least is not None and number < least:
        raise UserError(f"{name}={number}: must be at least {least}")
    return number

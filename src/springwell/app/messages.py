"""Errors of the library speak of arguments; the command line speaks of options."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields

from springwell.app.config import SECTIONS

_QUOTES = "'\""
_VALUE = r"""'[^']*'|"[^"]*"|\([^()]*\)|\[(?:'[^']*'|"[^"]*"|[^\[\]'"])*\]|[^\s,;:()'"]+"""
_ARGUMENT = re.compile(rf"(?<![\w./=-])([a-z][a-z0-9_]*)=({_VALUE})")
_FIELDS = [f.name for kinds in SECTIONS.values() for cls in kinds.values() for f in fields(cls)]
_NAMES = sorted({*_FIELDS, "data", "init_from"}, key=len, reverse=True)
_LONG = "|".join(name for name in _NAMES if "_" in name)
# A field's name is an option where it cannot be an English word, or where a message begins with it.
_BARE = re.compile(rf"(?<![\w./=-])({_LONG})(?![\w=])|^({'|'.join(_NAMES)})(?=: )")


def as_options(text: str) -> str:
    """Returns ``text`` with its arguments written as options: ``batch=7`` as ``--batch 7``, ``flip=False`` as ``--no-flip``."""
    text = _BARE.sub(lambda match: f"--{match[0].replace('_', '-')}", text)
    return _ARGUMENT.sub(lambda match: _option(match[1].replace("_", "-"), match[2]), text)


def _option(name: str, value: str) -> str:
    if value in ("True", "False"):
        return f"--{name}" if value == "True" else f"--no-{name}"
    if value[0] in "([":
        parts = re.findall(r"""'[^']*'|"[^"]*"|[^\s,]+""", value[1:-1])
        return f"--{name} {' '.join(shlex.quote(_unquoted(part)) for part in parts)}".rstrip()
    return f"--{name} {_unquoted(value)}"


def _unquoted(text: str) -> str:
    return text[1:-1] if text[0] in _QUOTES else text

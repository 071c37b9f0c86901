"""First checks of what others wrote: that a file is one and how long it is, and that a pickle costs no more than its length.

A pickle of a few hundred bytes can keep its reader busy for years without running any code: a tuple of a tuple of a tuple ...,
each twice, has 2^n leaves for whoever hashes or prints it. :func:`check_pickle` walks through the opcodes and allows only text
as keys, so that nothing else is ever hashed, and only as many opcodes and places to remember objects as its reader can afford.
Whoever unpickles must not print, compare or copy what came out before its type is known.
"""

from __future__ import annotations

import errno
import os
import pickletools
import stat
from pathlib import Path
from typing import IO, Any

MAX_OPCODES = 1 << 19
_OUTSIDE = frozenset("EMPTY_SET ADDITEMS FROZENSET EXT1 EXT2 EXT4 NEXT_BUFFER READONLY_BUFFER".split())  # noqa: SIM905
_TEXT = frozenset(["str", "bytes", "bytes_or_str"])
_MARK = "mark"
_ENCODE = "_codecs encode"


def open_regular(path: Path | str) -> IO[bytes]:
    """A file for reading. Pipes and devices, which may never end, raise OSError, and none is waited for."""
    wait_not = getattr(os, "O_NONBLOCK", 0)
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "is a folder" if os.path.isdir(path) else "not a regular file")
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | wait_not))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file")
    return file


def read_regular(path: Path | str, most: int) -> bytes:
    """The content of a file of at most ``most`` bytes; raises OSError otherwise."""
    with open_regular(path) as file:
        # A file may grow, and some, as those of /proc, have no size.
        if os.fstat(file.fileno()).st_size > most or len(data := file.read(most + 1)) > most:
            raise OSError(errno.EFBIG, f"larger than {most >> 20} MiB" if most >> 20 else f"larger than {most} bytes")
    return data


def shown(text: Any) -> str:
    """What a file says, for a message: short, in one line, and nothing but text."""
    if isinstance(text, bytes):
        text = text[:80].decode("latin1")
    return "".join(c if c.isprintable() else "?" for c in text[:80]) if isinstance(text, str) else "something else"


def check_pickle(data: bytes | IO[bytes]) -> None:
    """Raises ValueError unless reading the pickle takes time and memory in proportion to its length.

    Args:
        data: The pickle, or a file, which is read to the end of the pickle.
    """
    stack: list[str] = []
    memo: dict[int, str] = {}
    argument: Any
    for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
        name = opcode.name
        if count >= MAX_OPCODES:
            raise ValueError(f"a pickle of more than {MAX_OPCODES} opcodes")
        if name in _OUTSIDE:
            raise ValueError(f"a pickle with {name}, which is not read")
        if name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(_at(memo, argument))
        elif name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            place = len(memo) if name == "MEMOIZE" else argument
            if place >= MAX_OPCODES:
                raise ValueError("a pickle that remembers more than it holds")
            memo[place] = _top(stack)
        else:
            _apply(opcode, argument, stack)


def _apply(opcode: pickletools.OpcodeInfo, argument: Any, stack: list[str]) -> None:
    """What an opcode does to the kinds of the values on the stack: text, a mark, or anything else."""
    name, before = opcode.name, [kind.name for kind in opcode.stack_before]
    taken: list[str] = []
    if _MARK in before:
        while (kind := _pop(stack)) != _MARK:
            taken.append(kind)
        taken.reverse()
        before = before[: before.index(_MARK)]
    held = [_pop(stack) for _ in before]
    if name == "SETITEM":
        taken = [held[1]]
    if name in ("SETITEM", "SETITEMS", "DICT") and not _TEXT.issuperset(taken[::2]):
        raise ValueError("a pickle with keys that are not text")
    if name not in ("POP", "MARK") and _MARK in held:
        raise ValueError("a pickle that is damaged")
    # Before there were opcodes for bytes, they were the result of a call.
    encoded = name == "REDUCE" and held[1] == _ENCODE
    found = _ENCODE if name == "GLOBAL" and argument == _ENCODE else "bytes" if encoded else ""
    stack.extend(found or kind.name for kind in opcode.stack_after)


def _pop(stack: list[str]) -> str:
    if not stack:
        raise ValueError("a pickle that is damaged")
    return stack.pop()


def _top(stack: list[str]) -> str:
    if not stack or stack[-1] == _MARK:
        raise ValueError("a pickle that is damaged")
    return stack[-1]


def _at(memo: dict[int, str], place: int) -> str:
    if place not in memo:
        raise ValueError("a pickle that is damaged")
    return memo[place]

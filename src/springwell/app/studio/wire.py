"""Messages between the page and the server: a JSON header, then arrays, in one binary frame.

    4 bytes, little endian: the header's length n  |  n bytes: the header, UTF-8  |  the arrays, one after another

The header's field ``arrays`` lists [name, dtype, shape] of each array in the order in which they follow.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from springwell.errors import UserError

# What typed arrays of a browser can hold.
DTYPES = {"uint8": np.uint8, "int32": np.int32, "float32": np.float32}
MAX_HEADER = 1 << 20
MAX_MESSAGE = 32 << 20


def pack(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None) -> bytes:
    """The frame of a header and its arrays."""
    listed, parts = [], []
    for name, array in (arrays or {}).items():
        listed.append([name, array.dtype.name, list(array.shape)])
        parts.append(np.ascontiguousarray(array).tobytes())
    text = json.dumps({**header, "arrays": listed}, allow_nan=False).encode()
    return b"".join([len(text).to_bytes(4, "little"), text, *parts])


def unpack(frame: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The header and the arrays of a frame. Raises UserError for anything else."""
    if len(frame) > MAX_MESSAGE:
        raise UserError(f"message: has {len(frame)} bytes; at most {MAX_MESSAGE} are taken")
    length = int.from_bytes(frame[:4], "little")
    if len(frame) < 4 or length > min(MAX_HEADER, len(frame) - 4):
        raise UserError("message: is cut short")
    try:
        header = json.loads(frame[4 : 4 + length].decode())
    except (ValueError, RecursionError):
        raise UserError("message: its header is no JSON") from None
    if not isinstance(header, dict):
        raise UserError("message: its header is no JSON object")
    return header, _arrays(header.pop("arrays", []), memoryview(frame)[4 + length :])


def _arrays(listed: Any, rest: memoryview) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    try:
        for name, kind, shape in listed:
            sides = [side for side in shape if isinstance(side, int) and 0 <= side <= MAX_MESSAGE]
            if not isinstance(name, str) or len(sides) != len(shape) or len(sides) > 4:
                raise ValueError
            dtype = np.dtype(DTYPES[kind])
            size = math.prod(sides) * dtype.itemsize
            if size > len(rest):
                raise ValueError
            arrays[name] = np.frombuffer(rest[:size], dtype).reshape(sides)
            rest = rest[size:]
    except (TypeError, ValueError, KeyError):
        raise UserError("message: its arrays are not what its header says") from None
    if len(rest):
        raise UserError(f"message: has {len(rest)} bytes more than its header says")
    return arrays

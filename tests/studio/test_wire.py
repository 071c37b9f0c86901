"""Messages come back as they were, and what is no message is refused in one line."""

import contextlib
import random

import numpy as np
import pytest

from springwell.app.studio.options import Options
from springwell.app.studio.wire import DTYPES, pack, unpack
from springwell.errors import UserError

ARRAYS = {
    "bytes": np.arange(12, dtype=np.uint8).reshape(3, 4),
    "odd": np.arange(3, dtype=np.uint8),
    "floats": np.linspace(-1, 1, 6, dtype=np.float32).reshape(1, 2, 3),
    "none": np.empty((0, 2), np.float32),
}


def test_round_trip():
    header, arrays = unpack(pack({"kind": "start", "text": "é \u2028"}, ARRAYS))
    assert header == {"kind": "start", "text": "é \u2028"}
    assert arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(arrays[name], array)


def test_json_has_no_infinity():
    with pytest.raises(ValueError, match="not JSON compliant"):
        pack({"value": float("nan")})


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x00",
        b"\xff\xff\xff\xff{}",
        b"\x02\x00\x00\x00[]",
        b"\x02\x00\x00\x00{}x",
        pack({"arrays": [["x", "float64", [1]]]})[:-1],
        b"\x04\x00\x00\x00nope",
    ],
)
def test_what_is_no_message_is_refused(frame):
    with pytest.raises(UserError, match="message"):
        unpack(frame)


@pytest.mark.parametrize(
    "listed",
    [
        [["x", "object", [1]]],
        [["x", "uint8", [-1]]],
        [["x", "uint8", [1.5]]],
        [["x", "uint8", [2**40]]],
        [["x", "uint8", [2**20, 2**20]]],
        [["x", "uint8", [1] * 9]],
        [[1, "uint8", [1]]],
        ["abc"],
        5,
        [None],
    ],
)
def test_arrays_that_are_not_there_are_refused(listed):
    import json

    text = json.dumps({"arrays": listed}).encode()
    with pytest.raises(UserError, match="arrays are not what its header says"):
        unpack(len(text).to_bytes(4, "little") + text)


def test_mutated_messages_are_refused_or_read():
    """3,000 mutations: each is read, or refused by one line."""
    good, generator = pack({"kind": "start", "options": {"num": 3}}, ARRAYS), random.Random(0)
    for _ in range(3000):
        frame = bytearray(good)
        for _ in range(generator.randrange(1, 6)):
            position = generator.randrange(len(frame) + 1)
            kind = generator.randrange(3)
            if kind == 0 and position < len(frame):
                frame[position] = generator.randrange(256)
            elif kind == 1:
                frame[position:position] = generator.randbytes(generator.randrange(1, 9))
            else:
                del frame[position : position + generator.randrange(1, 9)]
            frame = frame or bytearray(b"x")
        try:
            header, arrays = unpack(bytes(frame))
        except UserError:
            pass
        else:
            assert isinstance(header, dict)
            assert all(array.dtype in DTYPES.values() for array in arrays.values())


ODD = [None, True, -1, 10**30, 1e308, float("nan"), float("inf"), "", "x" * 999, [], {}, [1] * 5, "\x00"]


@pytest.mark.parametrize("value", ODD, ids=repr)
def test_options_are_in_their_range_or_refused(value):
    options = Options({"x": value, "seed": value})
    for read, allowed in (
        (lambda: options.whole("x", 0, 9), lambda v: type(v) is int and 0 <= v <= 9),
        (lambda: options.number("x", 0, 1), lambda v: 0 <= v <= 1),
        (lambda: options.choice("x", ("a", "b")), lambda v: v in ("a", "b")),
        (lambda: options.flag("x"), lambda v: v in (True, False)),
        (lambda: options.text("x"), lambda v: 0 < len(v) <= 200),
        (lambda: options.wholes("x", (2, 4)), lambda v: len(v) in (2, 4)),
        (options.seed, lambda v: 0 <= v < 2**31),
    ):
        with contextlib.suppress(UserError):
            assert allowed(read())


def test_arrays_have_the_shape_that_is_asked_for():
    options = Options({}, {"x": np.zeros((3, 2), np.float32), "bad": np.array([np.nan], np.float32)})
    assert options.array("x", np.float32, (None, 2)).shape == (3, 2)
    for name, dtype, shape in (
        ("x", np.uint8, (3, 2)),
        ("x", np.float32, (3, 3)),
        ("y", np.float32, (1,)),
        ("x", np.float32, (3,)),
    ):
        with pytest.raises(UserError, match=f"^{name}: "):
            options.array(name, dtype, shape)
    with pytest.raises(UserError, match="not finite"):
        options.array("bad", np.float32, (1,))

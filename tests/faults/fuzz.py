"""Bad bytes for everything that reads any: python -m tests.faults.fuzz [--number 10000] prints how each parser took them.

Inputs are mutations of good ones: flipped, overwritten, inserted, deleted, repeated and spliced bytes, and JSON with other
values in it. A parser may return, or refuse by one line of its own; it may not end in any other exception, take five seconds,
or ask for more than a gigabyte.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import gzip
import hashlib
import io
import json
import pickle
import random
import resource
import signal
import sys
import tempfile
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save

from springwell.app.api import load
from springwell.app.cli import parse
from springwell.app.config import from_dict, to_dict
from springwell.app.files import read_mask
from springwell.app.presets import PRESETS, preset
from springwell.app.studio.runs import details
from springwell.app.studio.wire import pack, unpack
from springwell.data import formats
from springwell.data.decode import Rule, UnreadableError, decode
from springwell.errors import UserError
from springwell.evaluation.weights import read_weights
from springwell.store.checkpoint import read_checkpoint, save_tensors
from springwell.store.files import read_lines
from springwell.store.run import Run, read_log_z

SECONDS = 5
BYTES = 1 << 30
ODD = [
    None,
    True,
    -1,
    0,
    1,
    1e308,
    -1e-308,
    2**63,
    10**400,
    "",
    "nan",
    "\x00",
    "é" * 50,
    [],
    {},
    [[]],
    {"a": {}},
    float("nan"),
    [1] * 99,
]


class Parser(NamedTuple):
    """Good inputs, and what reads one in an empty folder."""

    seeds: list[bytes]
    read: Callable[[bytes, Path], object]
    structured: bool = False


def mutated(rng: random.Random, seeds: list[bytes]) -> bytes:
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.choice([1, 1, 1, 2, 4, 16])):
        how, at = rng.randrange(7), rng.randrange(len(data) + 1)
        length = rng.choice([1, 2, 4, 8, 64])
        if how == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif how == 1:
            data[at : at + length] = rng.choice([b"\x00", b"\xff", b"\x7f", b"\x80"]) * length
        elif how == 2:
            data[at:at] = rng.randbytes(length)
        elif how == 3:
            del data[at : at + length]
        elif how == 4:
            del data[at:]
        elif how == 5:
            data[at:at] = data[at : at + length] * rng.choice([1, 3, 50])
        else:
            other = rng.choice(seeds)
            data[at:] = other[rng.randrange(len(other) + 1) :]
    return bytes(data)


def mutated_json(rng: random.Random, seeds: list[bytes]) -> bytes:
    value = json.loads(rng.choice(seeds))
    for _ in range(rng.choice([1, 1, 2, 5])):
        holder: Any = value
        while True:
            if not isinstance(holder, (dict, list)) or not holder:
                break
            key = rng.choice(list(holder)) if isinstance(holder, dict) else rng.randrange(len(holder))
            if rng.random() < 0.5 or not isinstance(holder[key], (dict, list)):
                how = rng.randrange(4)
                if how == 0:
                    del holder[key]
                elif how == 1 and isinstance(holder, dict):
                    holder[rng.choice(["", "x", "data", "sigma"])] = copy.deepcopy(rng.choice(ODD))
                else:
                    holder[key] = copy.deepcopy(rng.choice(ODD))
                break
            holder = holder[key]
    if rng.random() < 0.05:
        value = rng.choice(ODD)
    return json.dumps(value).encode()


def _file(name: str, read: Callable[[Path], object]) -> Callable[[bytes, Path], object]:
    def parse_file(data: bytes, folder: Path) -> object:
        path = folder / name
        path.write_bytes(data)
        return read(path)

    return parse_file


def _two_rows(read: Callable[[bytes, Path], object]) -> Callable[[bytes, Path], object]:
    """A batch of CIFAR-10 has 10,000 rows; two are as good to fuzz."""

    def parse_batch(data: bytes, folder: Path) -> object:
        with mock.patch.object(formats, "CIFAR_ROWS", 2):
            return read(data, folder)

    return parse_batch


def _image(kind: str, mode: str) -> bytes:
    out = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(out, format=kind)
    return out.getvalue()


def _npz(**arrays: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


def _checkpoint(data: bytes, folder: Path) -> object:
    """Half of the inputs have the right hash, so that what is behind it is reached."""
    path = folder / "checkpoint-00000001.safetensors"
    path.write_bytes(data)
    save_tensors(folder / "good.safetensors", {"x": torch.ones(2, 3)}, 1)
    record = json.loads((folder / "good.json").read_text())
    if zlib.crc32(data) % 2:
        record["sha256"] = hashlib.sha256(data).hexdigest()
    path.with_suffix(".json").write_text(json.dumps(record))
    return read_checkpoint(path.with_suffix(".json"))


def _record(data: bytes, folder: Path) -> object:
    save_tensors(folder / "checkpoint-00000001.safetensors", {"x": torch.ones(2, 3)}, 1)
    (folder / "checkpoint-00000001.json").write_bytes(data)
    return read_checkpoint(folder / "checkpoint-00000001.json")


def _studio_run(data: bytes, folder: Path) -> object:
    """Every file of a run that the page Runs reads."""
    for name in ("config.json", "metrics.jsonl", "fid.jsonl", "evaluation.json", "likelihood.json", "model.json", "README.md"):
        (folder / name).write_bytes(data)
    return json.dumps(details("run", folder), allow_nan=False)


def _config(data: bytes, folder: Path) -> object:
    (folder / "config.json").write_bytes(data)
    return from_dict(Run(folder).read_description(), "config.json")


def _words(data: bytes, folder: Path) -> object:
    return parse(data.decode().split("\n"))


def _command_lines() -> list[bytes]:
    lines = ["train checkerboard --lr 0.1 --batch 3", "sample run --num 5 --out a.png", "evaluate x --num 100 --json"]
    lines += ["fid a b --num 50 --image-size 8", "reproduce fig2 --scale 0.1", "data prepare digits out --workers 2"]
    lines += [
        "train digits --sigmas 0.1 0.2 --log-snr 3 -3 --multipliers 1 2 --clip None --no-flip",
        "presets --threads 2",
    ]
    lines += ["longrun x --steps 1 2 --band 0.6 0.9", "diagnose x --levels 0 1", "doctor --data-root d"]
    return [line.replace(" ", "\n").encode() for line in lines]


def mutated_words(rng: random.Random, seeds: list[bytes]) -> bytes:
    words = rng.choice(seeds).decode().split("\n")
    options = [
        f"--{name.replace('_', '-')}" for name in ("lr", "num", "seed", "sigmas", "out", "clip", "width", "json", "help")
    ]
    values = [
        "",
        "-1",
        "1e999",
        "nan",
        "None",
        "99999999999999999999",
        "é",
        "--",
        "-",
        "=",
        "\x00",
        "[1]",
        "True",
        "a b",
        "0x10",
    ]
    for _ in range(rng.choice([1, 1, 2, 3])):
        at = rng.randrange(1, len(words) + 1)
        how = rng.randrange(4)
        if how == 0:
            words.insert(at, rng.choice(options + values))
        elif how == 1 and at < len(words):
            words[at] = rng.choice(options + values)
        elif how == 2 and at < len(words):
            del words[at]
        else:
            words[at:at] = [rng.choice(options), rng.choice(values)]
    return "\n".join(words).encode(errors="replace")


def parsers() -> dict[str, Parser]:
    rng = np.random.default_rng(0)
    idx = b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (3, 4, 5)) + bytes(range(60))
    rows = rng.integers(0, 256, (12, 8, 8, 3), dtype=np.uint8)
    batch = {b"data": rng.integers(0, 256, (2, 3072), dtype=np.uint8), b"labels": [1, 2]}
    kinds = [
        ("PNG", "RGB"),
        ("PNG", "P"),
        ("JPEG", "RGB"),
        ("JPEG", "CMYK"),
        ("GIF", "L"),
        ("BMP", "RGB"),
        ("TIFF", "L"),
        ("WEBP", "RGB"),
    ]
    tensors = {"x": torch.ones(2, 3)}
    with tempfile.TemporaryDirectory() as name:
        save_tensors(Path(name) / "c.safetensors", {"x": torch.ones(2, 3)}, 1)
        record = (Path(name) / "c.json").read_bytes()
    zipped = io.BytesIO()
    torch.save({"Conv2d_1a_3x3.conv.weight": torch.ones(2, 2)}, zipped)
    legacy, array = io.BytesIO(), io.BytesIO()
    torch.save({"Conv2d_1a_3x3.conv.weight": torch.ones(2, 2)}, legacy, _use_new_zipfile_serialization=False)
    np.save(array, rows)
    config = [json.dumps(to_dict(preset(name))).encode() for name in PRESETS]
    message = pack({"kind": "start", "options": {"num": 3}}, {"x": np.zeros((2, 3), np.float32), "y": np.zeros(3, np.uint8)})
    log = b'{"iteration": 5, "loss": [1.0, null]}\n{"iteration": 10, "loss": [0.5, 2.0]}\n'
    model, names = load("checkerboard"), ("log_z", "log_z_lower", "log_z_upper", "log_z_standard_error")
    values = {
        "weights": model.fingerprint(),
        "data": "checkerboard",
        "iteration": model.iteration,
        "verdict": "ok",
        "log_z_levels": [1.0, None, 2.0, 3.0],
    }
    known = json.dumps({**values, **dict.fromkeys(names, 1.5)}).encode()
    nothing = lambda line: None  # noqa: E731
    return {
        "idx": Parser([idx], _file("train-images-idx3-ubyte", formats._read_idx)),
        "idx, gzip": Parser([gzip.compress(idx, mtime=0)], _file("train-images-idx3-ubyte.gz", formats._read_idx)),
        "CIFAR, binary": Parser([bytes(3073) * 2], _two_rows(formats._binary_batch)),
        "CIFAR, pickle": Parser([pickle.dumps(batch, n) for n in (0, 2, 4)], _two_rows(formats._python_batch)),
        "npz": Parser(
            [_npz(images=rows), _npz(train=rows, test=rows[:2])], _file("a.npz", lambda path: formats.npz(path, nothing))
        ),
        "npy": Parser([array.getvalue()], _file("a.npy", lambda path: formats.npy_rows(path, nothing))),
        "images": Parser([_image(*kind) for kind in kinds], lambda data, folder: decode(data, Rule(size=8))),
        "config.json": Parser(config, _config, True),
        "checkpoint, record": Parser([record], _record, True),
        "checkpoint, tensors": Parser([save(tensors)], _checkpoint),
        "Inception's weights": Parser([save(tensors), zipped.getvalue(), legacy.getvalue()], _weights),
        "mask": Parser([_image("PNG", "L"), _image("PNG", "1")], _file("mask.png", lambda path: read_mask(path, (1, 9, 7)))),
        "likelihood.json": Parser([known], _file("likelihood.json", lambda path: read_log_z(path, model)), True),
        "studio, messages": Parser([message], lambda data, folder: unpack(data)),
        "studio, runs": Parser([known, log, *config], _studio_run),
        "logs": Parser([log], _file("metrics.jsonl", read_lines)),
        "command line": Parser(_command_lines(), _words),
    }


def _weights(data: bytes, folder: Path) -> object:
    path = folder / ("a.safetensors" if data[8:9] == b"{" else "a.pth")
    path.write_bytes(data)
    return read_weights(path)


class TooLongError(BaseException):
    """An input took longer than it may."""


@contextlib.contextmanager
def limits() -> Iterator[None]:
    """Memory of this process bounded to what it has and a gigabyte."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + BYTES, before[1]))

    def late(number: int, frame: object) -> None:
        raise TooLongError

    kept = signal.signal(signal.SIGPROF, late)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, kept)
        resource.setrlimit(resource.RLIMIT_AS, before)


def fuzz(name: str, number: int, seed: int = 0) -> tuple[Counter[str], list[str]]:
    """How ``number`` inputs were taken: counts of ``read`` and ``refused``, and a line for each that was neither."""
    parser, counts, bad = parsers()[name], Counter[str](), []
    how = mutated_words if name == "command line" else mutated
    with tempfile.TemporaryDirectory() as root, limits(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(root)
        for i in range(number):
            rng = random.Random(f"{seed} {name} {i}")
            data = mutated_json(rng, parser.seeds) if parser.structured and i % 2 else how(rng, parser.seeds)
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            try:
                with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                    parser.read(data, folder)
                counts["read"] += 1
            except (UserError, formats.UnusableDataError, UnreadableError, SystemExit) as error:
                if isinstance(error, SystemExit) and error.code:
                    bad.append(f"{name} {i}: exit {error.code}")
                elif "\n" in str(error):
                    bad.append(f"{name} {i}: an error of several lines")
                counts["refused"] += 1
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                bad.append(f"{name} {i}: {type(error).__name__}: {str(error)[:200]}")
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
    return counts, bad


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--number", type=int, default=10_000)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--only", nargs="*")
    chosen = options.parse_args()
    print("| parser | inputs | read | refused in one line | anything else |\n|---|---|---|---|---|")
    for name in chosen.only or parsers():
        counts, bad = fuzz(name, chosen.number, chosen.seed)
        print(f"| {name} | {chosen.number:,} | {counts['read']:,} | {counts['refused']:,} | {len(bad)} |", flush=True)
        for line in bad[:5]:
            print(line, file=sys.stderr)


if __name__ == "__main__":
    main()

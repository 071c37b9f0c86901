"""Prepared sets: images decoded once, stored as arrays that are memory-mapped ever after.

A prepared set is a folder with ``train.npy`` and ``test.npy``, uint8 ``[N, C, H, W]``, and ``prepared.json``, which is written
last: the set is complete exactly when it is there. Until then, ``.parts/`` holds the plan and the parts that are done.
Preparing the same set again goes on from them, decodes those again that were damaged meanwhile, and ends with the same bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import multiprocessing
import os
import re
import shutil
import signal
import sys
import threading
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from springwell.data import worker
from springwell.data.classes import RowLabels, numbered
from springwell.data.collect import CHUNK, Encoded, Split, class_of
from springwell.data.decode import Decoded, Rule, UnreadableError, close_containers, decode, decode_all
from springwell.data.formats import Arrays, StoppedError, UnusableDataError, first_line, load_npy
from springwell.errors import InterruptionError
from springwell.progress import Reporter
from springwell.store.files import LOCK, file_sha256, locked, parse_json, write_atomically, write_json
from springwell.store.parts import Parts

FORMAT = 1
_LISTED = 1000
_BLOCK = 1 << 24
_CHUNK_BYTES = 1 << 25
_MAX_JSON = 1 << 26


Job = tuple[str, int, Split, list[Any]]


class Done(NamedTuple):
    """A part that is done: the number of its images, and (name, reason) of those that could not be read."""

    num_rows: int
    unreadable: list[tuple[str, str]]


@dataclass(frozen=True)
class Request:
    """What to prepare.

    Attributes:
        spec: As the user wrote it.
        image_size: Side of the images; None: as they are.
        out: Where to.
        workers: Number of processes that decode.
    """

    spec: str
    image_size: int | None
    out: Path
    workers: int


def is_prepared(path: Path) -> bool:
    """Whether there is a complete prepared set at ``path``."""
    return (path / "prepared.json").is_file()


def open_prepared(path: Path) -> tuple[Arrays, dict[str, Any]]:
    """The memory-mapped arrays of a prepared set, and its record."""
    if not path.exists():
        raise UnusableDataError(f"no such folder: {path}")
    if not is_prepared(path):
        begun = (path / ".parts").is_dir()
        what = "is not complete; run the same springwell data prepare again" if begun else "holds no prepared.json"
        raise UnusableDataError(f"{path} {what}")
    record = _read_record(path)
    arrays = []
    for name in ("train", "test"):
        file = path / f"{name}.npy"
        try:
            array = load_npy(file)
        except UnusableDataError as error:
            raise UnusableDataError(f"{file} cannot be read ({error}); prepare it again") from None
        if array.dtype != np.uint8 or list(array.shape) != [record[f"num_{name}"], *record["shape"]]:
            found = f"{array.dtype} {list(array.shape)}"
            raise UnusableDataError(f"{file} is {found}, not what prepared.json says; prepare it again")
        arrays.append(array)
    num_unreadable = record.get("num_unreadable")
    num_unreadable = num_unreadable if isinstance(num_unreadable, int) else 0
    return Arrays(arrays[0], arrays[1], num_unreadable=num_unreadable, labels=lambda: _read_labels(path, record)), record


def _read_labels(path: Path, record: dict[str, Any]) -> RowLabels:
    """The labels of a prepared set."""
    classes = record.get("classes")
    if classes is None:
        raise UnusableDataError(
            f"{path} was prepared without labels; remove it to prepare it again, or use data that have labels"
        )
    try:
        arrays = [np.array(load_npy(path / f"{name}-labels.npy"), np.int64) for name in ("train", "test")]
        right = [array.shape == (record[f"num_{name}"],) for name, array in zip(("train", "test"), arrays, strict=True)]
        if not all(right) or not all(isinstance(name, str) for name in classes):
            raise ValueError
        if any(len(array) and not -1 <= array.min() <= array.max() < len(classes) for array in arrays):
            raise ValueError
    except (UnusableDataError, ValueError, TypeError):
        raise UnusableDataError(f"{path}: its labels cannot be read; prepare it again") from None
    return RowLabels(tuple(classes), *arrays)


def _read_record(path: Path) -> dict[str, Any]:
    try:
        record = parse_json(path / "prepared.json", _MAX_JSON)
        if record["format"] != FORMAT:
            raise UnusableDataError(f"{path} has format {record['format']}, this version reads {FORMAT}; prepare it again")
        shape, counts = record["shape"], (record["num_train"], record["num_test"])
        whole = len(shape) == 3 and all(isinstance(n, int) and n > 0 for n in (*shape, *counts))
        if not whole or not isinstance(record["sha256"], dict):
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError):
        raise UnusableDataError(f"{path / 'prepared.json'} cannot be read; prepare the set again") from None
    return dict(record)


def prepare(request: Request, data: Arrays | Encoded, reporter: Reporter) -> dict[str, Any]:
    """Writes a prepared set, or finishes one, and returns its record.

    Args:
        request: What and where to.
        data: The images.
        reporter: Receives progress updates and a warning of unreadable images.
    """
    out, parts = request.out, request.out / ".parts"
    plan = {
        "format": FORMAT,
        "spec": request.spec,
        "image_size": request.image_size,
        "chunk": CHUNK,
        "fingerprint": data.fingerprint if isinstance(data, Encoded) else _array_digest(data),
    }
    try:
        _refuse_other(out, plan)
        if is_prepared(out):
            return _verified(out, reporter)
        if isinstance(data, Encoded):
            data = replace(data, rule=with_shape(data))
        parts.mkdir(parents=True, exist_ok=True)
        with locked(out, lambda: reporter.say(f"{out} is being prepared by another process; waiting"), reporter.warn):
            # Another process may have prepared it while this one waited.
            if is_prepared(out):
                shutil.rmtree(parts, ignore_errors=True)
                return _read_record(out)
            parts.mkdir(exist_ok=True)
            write_json(parts / "plan.json", plan)
            record = plan | _write_splits(request, data, reporter)
            write_json(out / "prepared.json", record)
            shutil.rmtree(parts, ignore_errors=True)
            return record
    except OSError as error:
        kept = "what is done is kept: make room and run the same command again"
        advice = kept if (parts / "plan.json").is_file() else "choose another place"
        raise UnusableDataError(f"{out} cannot be written ({first_line(error)}); {advice}") from None
    except KeyboardInterrupt:
        raise InterruptionError(f"interrupted; what is done is kept in {out}: run the same command to resume") from None


def _write_splits(request: Request, data: Arrays | Encoded, reporter: Reporter) -> dict[str, Any]:
    """Writes both arrays. Parts of a set that turns out to be unusable are removed."""
    try:
        if isinstance(data, Encoded):
            return _decoded_set(request, data, reporter)
        splits = {"train": (len(data.train), [data.train]), "test": (len(data.test), [data.test])}
        return _write_set(request.out, data.train.shape[1:], splits, []) | _write_labels(request.out, _known_labels(data))
    except StoppedError:
        raise
    except UnusableDataError:
        shutil.rmtree(request.out / ".parts", ignore_errors=True)
        for name in ("train", "test"):
            for file in (request.out / f"{name}.npy", request.out / f"{name}-labels.npy"):
                file.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            request.out.rmdir()
        raise


def _refuse_other(out: Path, plan: dict[str, Any]) -> None:
    """Raises if ``out`` holds anything but this set, whole or in part."""
    parts = out / ".parts"
    if is_prepared(out):
        known, what = _read_record(out), "already holds"
    elif (parts / "plan.json").is_file():
        try:
            known, what = dict(parse_json(parts / "plan.json", _MAX_JSON)), "holds a part of"
        except (OSError, ValueError, TypeError):
            raise UnusableDataError(f"{parts / 'plan.json'} cannot be read; remove {parts}") from None
    else:
        if out.exists() and (not out.is_dir() or {entry.name for entry in out.iterdir()} - {".parts", LOCK}):
            raise UnusableDataError(f"{out} exists and is not a prepared set; choose another place")
        return
    if any(known.get(name) != plan[name] for name in ("format", "spec", "image_size", "chunk")):
        size = known.get("image_size")
        held = f"{known.get('spec')} at {f'size {size}' if size else 'its own size'}"
        raise UnusableDataError(f"{out} {what} {held}; choose another place or remove it")
    if known.get("fingerprint") != plan["fingerprint"]:
        raise UnusableDataError(f"the images have changed since {out} was begun; choose another place or remove it")


def _verified(out: Path, reporter: Reporter) -> dict[str, Any]:
    _, record = open_prepared(out)
    for name in ("train", "test"):
        if file_sha256(out / f"{name}.npy") != record["sha256"].get(name):
            raise UnusableDataError(f"{out / name}.npy is not what was written; remove {out} and prepare it again")
    shutil.rmtree(out / ".parts", ignore_errors=True)
    reporter.say(f"{out} is complete already, and its checksums agree")
    return record


def with_shape(data: Encoded) -> Rule:
    """The rule with the shape of the first readable image, which all others are brought to."""
    first = None
    try:
        for name, reference in data.train.items(0):
            try:
                return replace(data.rule, shape=decode(data.train.container.read(reference), data.rule).shape)
            except Exception as error:
                first = first or f"{name}: {error if isinstance(error, UnreadableError) else first_line(error)}"
    finally:
        close_containers()
    raise UnusableDataError(f"none of the images for training can be read (first: {first})")


def _decoded_set(request: Request, data: Encoded, reporter: Reporter) -> dict[str, Any]:
    found = _decode_to_parts(request, data, reporter)
    unreadable, parts = _unreadable(found), Parts(request.out / ".parts")
    assert data.rule.shape is not None
    splits: dict[str, tuple[int, Iterable[np.ndarray]]] = {}
    for name, known in found.items():
        rows = _rows(parts, [f"{name}-{index:06d}" for index in sorted(known)])
        splits[name] = sum(part.num_rows for part in known.values()), rows
        if not splits[name][0]:
            raise UnusableDataError(f"no image of the {name} split can be read")
    record = _write_set(request.out, data.rule.shape, splits, unreadable)
    if data.by_folder:
        left_out = {name for name, _ in unreadable}
        names = ([class_of(name) for name, _ in split.items(0) if name not in left_out] for split in (data.train, data.test))
        record |= _write_labels(request.out, numbered(*names))
    if unreadable:
        first = f"{unreadable[0][0]}: {unreadable[0][1]}"
        total = sum(num for num, _ in splits.values()) + len(unreadable)
        reporter.warn(f"{len(unreadable)} of {total} images are unreadable and left out (first: {first})")
    counts = " and ".join(f"{num} {name}" for name, (num, _) in splits.items())
    channels, height, width = data.rule.shape
    grey = "grey like the first of them, so colours are dropped" if channels == 1 else "in colour"
    reporter.say(f"{request.out}: {counts} images of {height} x {width}, {grey}")
    return record


def _rows(parts: Parts, names: list[str]) -> Iterator[np.ndarray]:
    for name in names:
        if (found := parts.read(name)) is None:
            raise StoppedError(f"{name} is not what was written; run the same command again")
        yield found["rows"]


def _write_set(
    out: Path, shape: tuple[int, ...], splits: Mapping[str, tuple[int, Iterable[np.ndarray]]], unreadable: list[tuple[str, str]]
) -> dict[str, Any]:
    """Writes the arrays of all splits, {name: (number of rows, the rows)}, and returns what is known of them."""
    digests = {name: _write_npy(out, name, rows, num, shape) for name, (num, rows) in splits.items()}
    numbers = {f"num_{name}": num for name, (num, _) in splits.items()}
    listed = {"num_unreadable": len(unreadable), "unreadable": unreadable[:_LISTED]}
    return {"shape": list(shape), **numbers, **listed, "sha256": digests}


def _known_labels(data: Arrays) -> RowLabels | None:
    """The labels of a set that has any."""
    try:
        return None if data.labels is None else data.labels()
    except UnusableDataError:
        return None


def _write_labels(out: Path, labels: RowLabels | None) -> dict[str, Any]:
    """Writes the labels of all splits and returns the names of the classes, for the record."""
    if labels is None or not labels.classes:
        return {}
    for name, of_rows in (("train", labels.train), ("test", labels.test)):
        write_atomically(out / f"{name}-labels.npy", lambda file, rows=of_rows: np.save(file, rows))  # type: ignore[misc]
    return {"classes": list(labels.classes)}


def _write_npy(out: Path, name: str, arrays: Iterable[np.ndarray], num: int, shape: tuple[int, ...]) -> str:
    """Writes the rows of all ``arrays`` to one file, which appears when it is whole, and returns its SHA-256."""
    temporary, together = out / ".parts" / f"{name}.npy", max(1, _BLOCK // math.prod(shape))
    with temporary.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": (num, *shape)})
        for array in arrays:
            for start in range(0, len(array), together):
                file.write(array[start : start + together].tobytes())
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, out / f"{name}.npy")
    return file_sha256(out / f"{name}.npy")


def _array_digest(data: Arrays) -> str:
    digest = hashlib.sha256()
    for rows in (data.train, data.test):
        digest.update(str(rows.shape).encode() + np.ascontiguousarray(rows).tobytes())
    return digest.hexdigest()


def _done(parts: Parts, name: str, index: int, expected: int | None, shape: tuple[int, ...]) -> Done | None:
    """What is known of a part that is done; None if it is damaged, or not of ``expected`` images."""
    found = parts.read(f"{name}-{index:06d}") or {}
    rows, unreadable = found.get("rows", np.empty(0)), found.get("unreadable", np.empty(0))
    if rows.dtype != np.uint8 or rows.shape[1:] != shape or unreadable.dtype.kind != "U" or unreadable.shape[1:] != (2,):
        return None
    done = Done(len(rows), [(str(item), str(reason)) for item, reason in unreadable])
    return done if done.num_rows + len(done.unreadable) == expected else None


def _parts_done(parts: Parts, name: str, split: Split, shape: tuple[int, ...], length: int) -> dict[int, Done]:
    """The sound parts, by index. The others are removed, to be decoded again."""
    found = {}
    for part in parts.names(f"{name}-"):
        number = part.removeprefix(f"{name}-")
        index = int(number) if re.fullmatch("[0-9]{6}", number) else -1
        # The last part of a stream of unknown length may be shorter; it is decoded again as well.
        expected = length if split.num is None else min(length, split.num - index * length)
        if index >= 0 and (done := _done(parts, name, index, expected, shape)) is not None:
            found[index] = done
        else:
            parts.remove(part)
    return found


def _decode_to_parts(request: Request, data: Encoded, reporter: Reporter) -> dict[str, dict[int, Done]]:
    """Decodes what is not decoded yet and returns, for each split, all its parts by index."""
    parts, shape = Parts(request.out / ".parts"), data.rule.shape
    assert shape is not None
    length = max(1, min(CHUNK, _CHUNK_BYTES // math.prod(shape)))
    splits = {"train": data.train, "test": data.test}
    total = None if data.train.num is None or data.test.num is None else data.train.num + data.test.num
    found = {name: _parts_done(parts, name, split, shape, length) for name, split in splits.items()}
    unreadable = _unreadable(found)
    done = sum(part.num_rows for name in splits for part in found[name].values()) + len(unreadable)
    if done:
        reporter.say(f"{done} images are done already")
    workers = request.workers if total is None or total - done > 2 * length else 1
    title = f"preparing {request.spec}"
    with reporter.bar(title, total, done) if total else contextlib.nullcontext() as bar:
        for name, index, num, decoded in _decoded(_jobs(splits, found, length), data.rule, workers):
            if decoded.misfit:
                misfit, width, height = decoded.misfit
                sizes = f"{misfit} is {width} x {height} pixels, others are {shape[2]} x {shape[1]}"
                raise UnusableDataError(f"{sizes}; give image_size to crop and resize all")
            unreadable += decoded.unreadable
            done += num
            if total and 2 * len(unreadable) > total:
                first = ": ".join(unreadable[0])
                raise UnusableDataError(f"more than half of the {total} images are unreadable (first: {first})")
            texts = np.array(decoded.unreadable, dtype=np.str_).reshape(-1, 2)
            parts.write(f"{name}-{index:06d}", {"rows": decoded.rows, "unreadable": texts})
            found[name][index] = Done(len(decoded.rows), decoded.unreadable)
            if bar is not None:
                bar.advance(num)
            elif index % 40 == 39:
                reporter.say(f"{title}: {done} images")
    if 2 * len(unreadable) > done:
        first = ": ".join(_unreadable(found)[0])
        raise UnusableDataError(f"{len(unreadable)} of {done} images are unreadable (first: {first})")
    return found


def _unreadable(found: dict[str, dict[int, Done]]) -> list[tuple[str, str]]:
    """(name, reason) of every unreadable image, in the order of the images."""
    return [item for parts in found.values() for index in sorted(parts) for item in parts[index].unreadable]


def _jobs(splits: dict[str, Split], known: dict[str, Any], length: int) -> Iterator[Job]:
    """The chunks that are not known yet, from the first of each split on."""
    for name, split in splits.items():
        start = next(i for i in count() if i not in known[name])
        for index, items in enumerate(split.chunks(start, length), start):
            if index not in known[name]:
                yield name, index, split, items


def _decoded(jobs: Iterator[Job], rule: Rule, workers: int) -> Iterator[tuple[str, int, int, Decoded]]:
    """(split, chunk, number of images, result) of all jobs, in their order."""
    if workers == 1:
        try:
            for name, index, split, items in jobs:
                yield name, index, len(items), decode_all(split.container, items, rule)
        finally:
            close_containers()
        return
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    pool = ProcessPoolExecutor(workers, context, worker.start, (stop,))
    pending: deque[tuple[str, int, int, Future[Decoded]]] = deque()

    def finished(name: str, index: int, num: int, future: Future[Decoded]) -> tuple[str, int, int, Decoded]:
        return name, index, num, future.result()

    try:
        for name, index, split, items in jobs:
            with _bare_start():
                pending.append((name, index, len(items), pool.submit(worker.work, split.container, items, rule)))
            if len(pending) > 2 * workers:
                yield finished(*pending.popleft())
        while pending:
            yield finished(*pending.popleft())
    except BrokenProcessPool:
        died = "a process that decodes images died (out of memory?)"
        raise StoppedError(f"{died}; run the same command, with workers=1") from None
    finally:
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)


@contextlib.contextmanager
def _bare_start() -> Iterator[None]:
    """Starts processes that do not run the user's script again and that Ctrl-C does not reach.

    A spawned process imports the main module of its parent. Workers need nothing of it, and a script that trains without
    asking for ``__name__ == "__main__"`` would start over in each of them.
    """
    main = sys.modules["__main__"]
    is_main_thread = threading.current_thread() is threading.main_thread()
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN) if is_main_thread else None
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        if is_main_thread:
            signal.signal(signal.SIGINT, handler)

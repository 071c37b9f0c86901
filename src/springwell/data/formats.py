"""Image sets as their publishers store them, read into memory: digits, idx (MNIST), CIFAR-10's batches, npz.

Every reader returns uint8 arrays ``[N, C, H, W]`` and trusts nothing that it reads: magic numbers, dimensions and lengths are
checked, decompression is bounded, archives are read member by member and never extracted, and nothing is unpickled. What cannot
be used raises :class:`UnusableDataError`.
"""

from __future__ import annotations

import gzip
import math
import os
import pickletools
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from springwell.data.classes import RowLabels
from springwell.data.spec import UnusableDataError as UnusableDataError
from springwell.store.files import open_regular, read_regular, shown

CIFAR_ROWS = 10_000
_CIFAR_RECORD = 1 + 3 * 32 * 32
# Of bytes, and of numbers that become bytes.
_MAX_BYTES = 1 << 32
_MAX_NUMBERS = 1 << 30
_MAX_PICKLE = 1 << 26
_MAX_ARCHIVE = 1 << 28
_MAX_OPCODES = 1 << 19
_BLOCK = 1 << 20
_BROKEN = (OSError, EOFError, ValueError, zlib.error, tarfile.TarError, MemoryError)


class StoppedError(UnusableDataError):
    """Reading stopped for a reason outside the data; it can go on later."""


@dataclass(frozen=True)
class Arrays:
    """A data set in memory or memory-mapped.

    Attributes:
        train: uint8 ``[N, C, H, W]``.
        test: uint8 ``[M, C, H, W]``.
        num_values: How many grey values there are, evenly spaced over 0 ... 255 (and rounded).
        num_unreadable: Images that were left out because they could not be decoded.
        labels: Reads the labels of the rows; None where there are none.
    """

    train: np.ndarray
    test: np.ndarray
    num_values: int = 256
    num_unreadable: int = 0
    labels: Callable[[], RowLabels] | None = None


DIGITS = tuple("0123456789")
CLOTHES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle-boot")
CIFAR_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def every(rows: np.ndarray, period: int) -> Arrays:
    """Splits off every ``period``-th row, beginning with row ``period - 1``, as test rows."""
    last = np.arange(len(rows)) % period == period - 1
    return Arrays(rows[~last], rows[last])


def digits() -> Arrays:
    """scikit-learn's 1797 digits of 8 x 8 pixels. Their grey values 0 ... 16 become 0 ... 255; every 6th image is test."""
    from sklearn.datasets import load_digits

    found = load_digits()
    of_rows = every(found.target.astype(np.int64), 6)
    arrays = every(np.rint(found.images * (255 / 16)).astype(np.uint8)[:, None], 6)
    return replace(arrays, num_values=17, labels=lambda: RowLabels(DIGITS, of_rows.train, of_rows.test))


def idx(root: Path, folders: Sequence[str], source: str, classes: tuple[str, ...] = DIGITS) -> Arrays:
    """MNIST or a set in its format.

    Args:
        root: The data root.
        folders: Where to look, relative to ``root``.
        source: How to get the files, for the message when there are none.
        classes: Names of the labels.
    """
    for folder in folders:
        found = [
            next((p for p in (root / folder / name, root / folder / f"{name}.gz") if p.is_file()), None)
            for name in ("train-images-idx3-ubyte", "t10k-images-idx3-ubyte")
        ]
        if found[0] and found[1]:
            train, test = _read_idx(found[0]), _read_idx(found[1])
            if train.shape[1:] != test.shape[1:]:
                raise UnusableDataError(f"{found[0]} has images of {_by(train)}, {found[1].name} of {_by(test)}")
            return Arrays(train, test, labels=partial(_idx_labels, root / folder, classes, (len(train), len(test))))
        if found[0] or found[1]:
            missing = "t10k-images-idx3-ubyte" if found[0] else "train-images-idx3-ubyte"
            raise UnusableDataError(f"{root / folder / missing}(.gz) is missing; {source}")
    raise missing_data(root, [f"{folder}/train-images-idx3-ubyte(.gz)".removeprefix("./") for folder in folders], source)


def _idx_labels(folder: Path, classes: tuple[str, ...], numbers: tuple[int, int]) -> RowLabels:
    """The labels beside the images of a folder."""
    read = []
    for name, num in zip(("train-labels-idx1-ubyte", "t10k-labels-idx1-ubyte"), numbers, strict=True):
        path = next((p for p in (folder / name, folder / f"{name}.gz") if p.is_file()), None)
        if path is None:
            raise UnusableDataError(f"{folder / name}(.gz) is missing, and with it the labels; get it again")
        try:
            with open_regular(path) as stored, gzip.open(stored) if path.suffix == ".gz" else stored as file:
                head, data = file.read(8), _read_bytes(file, num)
        except _BROKEN as error:
            raise UnusableDataError(f"{path} cannot be read ({first_line(error)}); get it again") from None
        claimed = int.from_bytes(head[4:], "big")
        if head[:4] != b"\0\0\x08\x01" or claimed != num or len(data) != num or data.max(initial=0) >= len(classes):
            raise UnusableDataError(f"{path} is not an idx file of {num} labels 0 ... {len(classes) - 1}; get it again")
        read.append(data.astype(np.int64))
    return RowLabels(classes, read[0], read[1])


def missing_data(root: Path, looked: Sequence[str], source: str) -> UnusableDataError:
    """What to say when nothing is found."""
    return UnusableDataError(f"not found; looked in {root} for {', '.join(looked)}; {source}, or set data_root")


def _by(images: np.ndarray) -> str:
    return f"{images.shape[-2]} x {images.shape[-1]} pixels"


def _read_idx(path: Path) -> np.ndarray:
    try:
        with open_regular(path) as stored, gzip.open(stored) if path.suffix == ".gz" else stored as file:
            head = file.read(16)
            num, height, width = (int.from_bytes(head[i : i + 4], "big") for i in (4, 8, 12))
            if len(head) < 16 or head[:4] != b"\0\0\x08\x03":
                raise UnusableDataError(f"{path} is not an idx file of images (it begins with {head[:4].hex() or 'nothing'})")
            size = num * height * width
            if not (num and height and width) or height > 4096 or width > 4096 or size > _MAX_BYTES:
                raise UnusableDataError(f"{path} claims {num} images of {height} x {width} pixels, which cannot be")
            if path.suffix != ".gz" and path.stat().st_size != 16 + size:
                raise UnusableDataError(f"{path} has {path.stat().st_size} bytes, not {16 + size}; get it again")
            data, more = _read_bytes(file, size), file.read(1)
    except _BROKEN as error:
        raise UnusableDataError(f"{path} cannot be read ({first_line(error)}); get it again") from None
    if len(data) < size or more:
        raise UnusableDataError(f"{path} is {'too long' if more else 'truncated'}; get it again")
    return data.reshape(num, 1, height, width)


def _read_bytes(file: IO[bytes] | gzip.GzipFile, size: int) -> np.ndarray:
    """The next ``size`` bytes, or fewer at the end of the file, without a second copy of them."""
    data, count = np.empty(size, np.uint8), 0
    while count < size and (block := file.read(min(_BLOCK, size - count))):
        data[count : count + len(block)] = np.frombuffer(block, np.uint8)
        count += len(block)
    return data[:count]


def first_line(error: BaseException) -> str:
    """What an exception says, in one line of at most 300 characters."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")[:300]


def npz(path: Path, say: Callable[[str], None]) -> Arrays:
    """Arrays of one's own: ``train`` and ``test``, or one of ``images``, ``x``, ``samples``, ``arr_0``, split like npy:PATH.

    Args:
        path: The .npz file.
        say: Receives a line that says how floating-point values are read.
    """
    train, test = npz_rows(path, say)
    if test is None:
        if len(train) < 10:
            raise UnusableDataError(f"holds {len(train)} images; needs at least 10")
        return every(train, 10)
    return Arrays(train, test)


def npz_rows(path: Path, say: Callable[[str], None]) -> tuple[np.ndarray, np.ndarray | None]:
    """The images for training, or all of them, and those for testing, if the file tells them apart."""
    with _readable("npz"), open_regular(path) as stored:
        if not zipfile.is_zipfile(stored):
            raise UnusableDataError("is not a readable .npz file; write it with numpy.savez(PATH, train=..., test=...)")
        with zipfile.ZipFile(stored) as archive:
            held = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            pairs = [("train", "test"), ("x_train", "x_test"), *((name, "") for name in ("images", "x", "samples", "arr_0"))]
            names = next((pair for pair in pairs if pair[0] in held), None)
            if names is None:
                known, found = "train and test, or images, x, samples or arr_0", ", ".join(map(shown, islice(held, 20)))
                raise UnusableDataError(f"holds {found[:200] or 'nothing'}; needs an array named {known}")
            read = {name: _member(archive, held[name]) for name in names if name in held}
    rows = dict(zip(read, _as_bytes({name: _channels_first(array, name) for name, array in read.items()}, say), strict=True))
    train, test = rows[names[0]], rows.get(names[1])
    if test is not None and train.shape[1:] != test.shape[1:]:
        raise UnusableDataError(f"train has images {list(train.shape[1:])}, test {list(test.shape[1:])}; they must agree")
    return train, test


@contextmanager
def _readable(kind: str) -> Iterator[None]:
    """Whatever a library raises at a damaged file becomes UnusableDataError."""
    try:
        yield
    except UnusableDataError:
        raise
    except FileNotFoundError:
        raise UnusableDataError("no such file") from None
    except Exception as error:
        raise UnusableDataError(f"is not a readable .{kind} file of numbers ({first_line(error)})") from None


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(info) as file:
        shape, dtype, order, size = _npy_header(file)
        most = _MAX_BYTES if dtype == np.uint8 else _MAX_NUMBERS
        if size > most:
            use = "use folder:PATH" if dtype == np.uint8 else "save bytes (uint8), or use folder:PATH"
            raise UnusableDataError(f"'{shown(info.filename)}' has more than {most >> 20} MiB; {use}")
        if len(data := _read_bytes(file, min(size, info.file_size))) != size:
            raise ValueError(f"'{shown(info.filename)}' is truncated")
    return data.view(dtype).reshape(shape, order=order)


def load_npy(path: Path) -> np.ndarray:
    """The array of numbers or text in an .npy file, mapped into memory. Raises UnusableDataError."""
    with _readable("npy"), open_regular(path) as file:
        shape, dtype, order, size = _npy_header(file)
        if os.fstat(file.fileno()).st_size < file.tell() + size:
            raise ValueError("it is truncated")
        if size == 0:
            return np.empty(shape, dtype)
        return np.memmap(file, dtype, "r", file.tell(), shape, order)
    raise AssertionError


def _npy_header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any], Literal["C", "F"], int]:
    """Shape, type, order and number of bytes of the array that follows."""
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError("its version is {}.{}".format(*version))
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    if dtype.kind not in "biufcSU" or not dtype.itemsize:
        raise ValueError("it holds objects, not numbers")
    if len(shape) > 8 or not all(0 <= n < 1 << 48 for n in shape):
        raise ValueError("its shape cannot be")
    return shape, dtype, "F" if fortran else "C", math.prod(shape) * dtype.itemsize


def npy_rows(path: Path, say: Callable[[str], None]) -> np.ndarray:
    """The images of an .npy file."""
    rows = _channels_first(load_npy(path), path.name)
    if rows.size > _MAX_BYTES:
        raise UnusableDataError(f"has more than {_MAX_BYTES >> 20} Mi grey values; use folder:PATH")
    return _as_bytes({path.name: rows}, say)[0]


def _channels_first(array: np.ndarray, name: str) -> np.ndarray:
    found = f"'{name}' is {array.dtype} {list(array.shape)}"
    if array.dtype.kind not in "uif" or array.ndim not in (3, 4) or 0 in array.shape:
        raise UnusableDataError(f"{found}; needs uint8 or floats of shape [N, H, W], [N, H, W, C] or [N, C, H, W]")
    if array.ndim == 3:
        return array[:, None]
    first, last = array.shape[1] in (1, 3), array.shape[3] in (1, 3)
    if first == last:
        what = "could be [N, C, H, W] or [N, H, W, C]" if first else "has neither 1 nor 3 channels"
        raise UnusableDataError(f"{found}, which {what}; channels are 1 or 3, heights and widths are not")
    return array if first else array.transpose(0, 3, 1, 2)


def _as_bytes(arrays: dict[str, np.ndarray], say: Callable[[str], None]) -> list[np.ndarray]:
    """uint8 arrays. Integers are grey values; floats are in [-1, 1] if any is negative and in [0, 1] otherwise."""
    low, high = (float(f([f(array) for array in arrays.values()])) for f in (np.min, np.max))
    span = f"values from {low:.4g} to {high:.4g}"
    if all(array.dtype.kind in "ui" for array in arrays.values()):
        if low < 0 or high > 255:
            raise UnusableDataError(f"{span}; integers must be grey values 0 ... 255")
        if high <= 1:
            raise UnusableDataError(f"{span}; integers are grey values 0 ... 255, so these would all be black: multiply by 255")
        return [np.ascontiguousarray(array, dtype=np.uint8) for array in arrays.values()]
    if not (low >= -1 and high <= 1):
        raise UnusableDataError(f"{span}; floats must be in [0, 1] or in [-1, 1], or save bytes (uint8)")
    signed = low < 0
    say(f"floats, {span}, read as {'[-1, 1]' if signed else '[0, 1]'}")
    return [_grey_values(array, signed) for array in arrays.values()]


def _grey_values(array: np.ndarray, signed: bool) -> np.ndarray:
    """Bytes of floats, a few images at a time."""
    out, together = np.empty(array.shape, np.uint8), max(1, _BLOCK // math.prod(array.shape[1:]))
    for i in range(0, len(array), together):
        part = array[i : i + together]
        out[i : i + together] = np.rint((part + 1.0) * 127.5 if signed else part * 255.0)
    return out


def cifar10(root: Path) -> Arrays:
    """CIFAR-10, from its binary or its Python version, unpacked or not."""
    looked = ["cifar-10-batches-bin", "cifar-10-binary.tar.gz", "cifar-10-batches-py", "cifar-10-python.tar.gz"]
    for name in looked:
        path = root / name
        binary = "bin" in name
        names = [f"data_batch_{i}" + (".bin" if binary else "") for i in range(1, 6)]
        names.append("test_batch" + (".bin" if binary else ""))
        if path.is_dir():
            batches = _folder_batches(path, names)
        elif path.is_file():
            batches = _archive_batches(path, names)
        else:
            continue
        read = _binary_batch if binary else _python_batch
        found = {name: read(data, path / name) for name, data in batches}
        rows = {name: images for name, (images, _) in found.items()}
        labels = {name: of_rows for name, (_, of_rows) in found.items()}
        if absent := [name for name in names if name not in rows]:
            raise UnusableDataError(f"{path} lacks {absent[0]}; get it again, or set data_root")
        labelled = partial(_cifar_labels, path, [labels[name] for name in names])
        return Arrays(np.concatenate([rows[name] for name in names[:5]]), rows[names[5]], labels=labelled)
    raise missing_data(root, looked, "get it from www.cs.toronto.edu/~kriz/cifar.html")


def _cifar_labels(path: Path, parts: list[np.ndarray | None]) -> RowLabels:
    known = [part.astype(np.int64) for part in parts if part is not None]
    if len(known) < len(parts):
        raise UnusableDataError(f"{path}: its labels cannot be read; get the binary version, or set data_root")
    return RowLabels(CIFAR_CLASSES, np.concatenate(known[:-1]), known[-1])


def _folder_batches(path: Path, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    for name in names:
        try:
            yield name, read_regular(path / name, _MAX_PICKLE)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise UnusableDataError(f"{path / name} cannot be read ({first_line(error)})") from None


def _archive_batches(path: Path, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """The files of an archive. tarfile would read long names whole, however long, before it tells of them."""
    wanted, left = set(names), _MAX_ARCHIVE
    try:
        with open_regular(path) as stored, gzip.open(stored) as file:
            while wanted and any(head := file.read(tarfile.BLOCKSIZE)):
                member = tarfile.TarInfo.frombuf(head, "utf-8", "replace")
                padded = -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
                left -= tarfile.BLOCKSIZE + padded
                if not 0 <= member.size <= _MAX_PICKLE or left < 0:
                    return
                content = file.read(padded)
                if member.isreg() and (name := Path(member.name).name) in wanted:
                    wanted.discard(name)
                    yield name, content[: member.size]
    except _BROKEN as error:
        raise UnusableDataError(f"{path} cannot be read ({first_line(error)}); get it again") from None


def _binary_batch(data: bytes, path: Path) -> tuple[np.ndarray, np.ndarray]:
    if len(data) != CIFAR_ROWS * _CIFAR_RECORD:
        raise UnusableDataError(f"{path} has {len(data)} bytes, not {CIFAR_ROWS * _CIFAR_RECORD}; get it again")
    rows = np.frombuffer(data, np.uint8).reshape(CIFAR_ROWS, _CIFAR_RECORD)
    if rows[:, 0].max() > 9:
        raise UnusableDataError(f"{path} has labels above 9; it is not a batch of CIFAR-10")
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0]


def _python_batch(data: bytes, path: Path) -> tuple[np.ndarray, np.ndarray | None]:
    """The rows and the labels of a pickled batch.

    Nothing is unpickled: among the opcodes, the rows are the only text of their length, and the labels the only whole numbers
    between the word ``labels`` and the next one. Labels that are stored otherwise are None.
    """
    size = CIFAR_ROWS * 3072
    try:
        codes = [(code.name, v) for code, v, _ in islice(pickletools.genops(data), _MAX_OPCODES)]
        texts = [v for _, v in codes if isinstance(v, (str, bytes))]
        found = [v.encode("latin1") if isinstance(v, str) else v for v in texts if len(v) == size]
    except Exception as error:
        raise UnusableDataError(f"{path} cannot be read ({first_line(error)}); get it again") from None
    if len(found) != 1 or not {"u1", b"u1"}.intersection(texts):
        raise UnusableDataError(f"{path} does not hold one array uint8 [{CIFAR_ROWS}, 3072]; it is not a batch of CIFAR-10")
    return np.frombuffer(found[0], np.uint8).reshape(-1, 3, 32, 32), _pickled_labels(codes)


def _pickled_labels(codes: list[tuple[str, Any]]) -> np.ndarray | None:
    """The labels of a batch among its opcodes."""
    start = next((i for i, (_, v) in enumerate(codes) if v in ("labels", b"labels")), len(codes))
    end = next((i for i, (_, v) in enumerate(codes) if i > start and isinstance(v, (str, bytes))), len(codes))
    numbers = [v for name, v in codes[start:end] if name in ("INT", "BININT", "BININT1", "BININT2")]
    whole = len(numbers) == CIFAR_ROWS and all(0 <= v < len(CIFAR_CLASSES) for v in numbers)
    return np.array(numbers, np.uint8) if whole else None

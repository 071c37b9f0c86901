r"""Images as training data: bytes on disk or in memory, numbers in [-1, 1] for the network.

A byte b becomes

    x = b / 127.5 - 1,                          so 0 -> -1 and 255 -> 1;

dequantised, with u uniform in (0, 1) for every pixel,

    x = (b + u - 1/2) / 127.5 - 1,

uniform in a cell of width 1 / 127.5 around the same value. The density of a dequantised image of D numbers in these
coordinates is 127.5^D times that of its grey values, which is the D log 127.5 of a likelihood in bits per dimension.

A training batch is drawn uniformly with replacement. The row, the flip and the dequantisation of a sample follow from its
noise alone.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from springwell.data import collect, formats
from springwell.data.classes import checked, unlabelled
from springwell.data.decode import resize_rows
from springwell.data.formats import Arrays, UnusableDataError
from springwell.data.labels import Labels, labels_of_rows, rows_at
from springwell.data.options import ImageOptions
from springwell.data.prepare import Request, is_prepared, open_prepared, prepare, with_shape
from springwell.data.source import DataSource
from springwell.data.spec import IMAGE_CHOICES, Spec, parse
from springwell.devices import free_memory
from springwell.errors import InterruptionError, UserError
from springwell.noise import Noise
from springwell.progress import SILENT, Reporter
from springwell.store.parts import key_of

# Where they may be below the data root, and how to get them.
_MNIST = ("MNIST/raw", "mnist", "."), "get it from yann.lecun.com/exdb/mnist or by torchvision.datasets.MNIST", formats.DIGITS
_FASHION = (
    ("FashionMNIST/raw", "fashion-mnist", "fashion"),
    "get it from github.com/zalandoresearch/fashion-mnist",
    formats.CLOTHES,
)


def open_images(spec: str, images: ImageOptions | None = None, reporter: Reporter = SILENT) -> DataSource | None:
    """The image set that ``spec`` names; None if it names none.

    Args:
        spec: See :mod:`springwell.data.spec`.
        images: How to read it. Default: as published, not augmented.
        reporter: Receives updates of long work.
    """
    images = images or ImageOptions()
    with _named(spec):
        arrays = open_arrays(parse(spec), images, reporter)
    if arrays is None:
        return None
    return image_source(arrays, images)


def open_arrays(spec: Spec, images: ImageOptions, reporter: Reporter) -> Arrays | None:
    """The bytes of an image set, in its order; None if ``spec`` names none. Raises UnusableDataError."""
    if spec.kind == "prepared":
        arrays, record = open_prepared(spec.path)
        if images.image_size not in (None, *record["shape"][1:]):
            size = " x ".join(map(str, record["shape"][1:]))
            raise UnusableDataError(f"was prepared at {size} pixels, not image_size={images.image_size}; prepare it again")
        return arrays
    if spec.is_encoded:
        return _from_cache(spec, images, reporter)
    found = _find(spec, images, reporter)
    return found if isinstance(found, Arrays) else None


def prepare_images(
    spec: str, out: Path, images: ImageOptions | None = None, workers: int | None = None, reporter: Reporter = SILENT
) -> dict[str, Any]:
    """Writes the image set ``spec`` to the folder ``out``, to be used as ``prepared:OUT``, and returns its record.

    Args:
        spec: Any image set.
        out: A new folder, or one in which the same work was interrupted.
        images: How to read it; flips and dequantisation happen later, when batches are drawn.
        workers: Number of processes that decode. Default: one per available core.
        reporter: Receives progress updates.
    """
    images, parsed = images or ImageOptions(), parse(spec)
    with _named(spec):
        if parsed.kind == "prepared":
            raise UnusableDataError("is prepared already")
        found = _find(parsed, images, reporter)
        if found is None:
            raise UnusableDataError(f"is no set of images; choose {IMAGE_CHOICES}")
        return prepare(Request(str(parsed), _size(parsed, images), out, workers or _cores()), found, reporter)


def image_shape(spec: str, images: ImageOptions) -> tuple[int, ...] | None:
    """Shape of one image of ``spec``; of sets that have to be decoded, only one is. None if it names no images."""
    parsed = parse(spec)
    with _named(spec):
        found = open_prepared(parsed.path)[0] if parsed.kind == "prepared" else _find(parsed, images, SILENT)
        if isinstance(found, collect.Encoded):
            return tuple(with_shape(found).shape or ())
        return None if found is None else tuple(found.train.shape[1:])
    raise AssertionError


@contextmanager
def _named(spec: str) -> Iterator[None]:
    """Errors that begin with the name of the data set."""
    try:
        yield
    except UnusableDataError as error:
        raise UserError(f"data={spec!r}: {error}") from None
    except InterruptionError as error:
        raise InterruptionError(f"data={spec!r}: {error}") from None


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _root(images: ImageOptions) -> Path:
    return Path(images.data_root or os.environ.get("SPRINGWELL_DATA") or "~/data").expanduser()


def _size(spec: Spec, images: ImageOptions) -> int | None:
    """Side of the images; None: as they are."""
    return images.image_size or (64 if spec.kind in ("celeba", "lsun") else None)


def _find(spec: Spec, images: ImageOptions, reporter: Reporter) -> Arrays | collect.Encoded | None:
    root, size = _root(images), _size(spec, images)
    encoded: dict[str, Callable[[], collect.Encoded]] = {
        "folder": lambda: collect.folder(spec.path, size),
        "zip": lambda: collect.archive(spec.path, size),
        "hf": lambda: collect.hugging_face(spec.place, size),
        "lsun": lambda: collect.lsun(root, spec.place, size or 64),
        "celeba": lambda: collect.celeba(root, size or 64),
    }
    stored: dict[str, Callable[[], Arrays]] = {
        "digits": formats.digits,
        "mnist": lambda: formats.idx(root, *_MNIST),
        "fashion-mnist": lambda: formats.idx(root, *_FASHION),
        "cifar10": lambda: formats.cifar10(root),
        "npz": lambda: formats.npz(spec.path, lambda line: reporter.say(f"{spec}: {line}")),
    }
    if spec.kind in encoded:
        return encoded[spec.kind]()
    if spec.kind not in stored:
        return None
    arrays = stored[spec.kind]()
    resized = Arrays(resize_rows(arrays.train, size), resize_rows(arrays.test, size), labels=arrays.labels)
    return arrays if resized.train.shape == arrays.train.shape else resized


def _from_cache(spec: Spec, images: ImageOptions, reporter: Reporter) -> Arrays:
    """The set as it was prepared at its first use, or now."""
    root, size = _root(images), _size(spec, images)
    local = spec.kind in ("folder", "zip")
    place = spec.path if local else Path(spec.place.partition("@")[0]) if spec.kind == "hf" else root
    where = str(place.resolve()) if local or place.exists() else ""
    name = re.sub(r"[^A-Za-z0-9]+", "-", place.stem if local else spec.place if spec.kind == "hf" else str(spec))
    out = root / ".springwell" / f"{name.strip('-')[-40:]}-{size or 'full'}-{key_of(str(spec), size, where)}"
    if not is_prepared(out):
        found = _find(spec, images, reporter)
        assert isinstance(found, collect.Encoded)
        reporter.say(f"{spec}: decoding it once, into {out}")
        prepare(Request(str(spec), size, out, _cores()), found, reporter)
    elif local and place.exists():
        found = _find(spec, images, reporter)
        if isinstance(found, collect.Encoded) and found.fingerprint != open_prepared(out)[1].get("fingerprint"):
            changed = f"the images have changed since {out} was prepared from them"
            reporter.warn(f"{spec}: {changed}; remove it to prepare them again")
    return open_prepared(out)[0]


def image_source(arrays: Arrays, images: ImageOptions) -> DataSource:
    """Batches of the rows of ``arrays``."""
    event_shape = tuple(arrays.train.shape[1:])
    test, cell = _Rows(arrays.test), 255 / (arrays.num_values - 1)

    def held_out(noise: Noise) -> Tensor:
        rows = test(torch.arange(min(len(noise), len(arrays.test)), device=noise.device))
        return scaled(_dequantised(rows, cell, noise) if images.dequantise else rows)

    batches = _Batches(arrays.train, images.flip, cell if images.dequantise else None)

    def labels() -> Labels:
        if arrays.labels is None:
            raise unlabelled()
        return labels_of_rows(batches.drawn, held_out, checked(arrays.labels()))

    return DataSource(
        event_shape=event_shape,
        sample=batches,
        held_out=held_out,
        shift=torch.zeros(event_shape),
        scale=torch.ones(event_shape),
        num_held_out=len(arrays.test),
        fingerprint=_fingerprint(arrays.train),
        cell=cell / 127.5,
        rows=arrays.train,
        labels=labels,
    )


def _fingerprint(rows: np.ndarray) -> int:
    """63 bits of a hash of the shape and of rows that are spread over the set, few enough to be read at every start."""
    spread = rows[np.linspace(0, len(rows) - 1, min(len(rows), 256)).astype(np.int64)]
    digest = hashlib.sha256(repr(rows.shape).encode() + np.ascontiguousarray(spread).tobytes()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def scaled(images: Tensor) -> Tensor:
    """Numbers in [-1, 1] of bytes; of floats, which are overwritten, likewise."""
    return images.float().div_(127.5).sub_(1)


def _dequantised(images: Tensor, cell: float, noise: Noise) -> Tensor:
    """Grey values spread evenly over their cells, which tile the line."""
    values = (images.float() / cell).round_()
    return values.add_(noise.uniform(*images.shape[1:])[: len(images)]).sub_(0.5).mul_(cell)


class _Batches:
    """Draws training batches ``[N, C, H, W]``; dequantised if grey values have a ``cell``."""

    def __init__(self, rows: np.ndarray, flip: bool, cell: float | None):
        self.rows, self.flip, self.cell = _Rows(rows), flip, cell

    def __call__(self, noise: Noise) -> Tensor:
        return self.drawn(noise, None)[0]

    def drawn(self, noise: Noise, few: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Images, their rows and whether their labels are known; see :func:`springwell.data.labels.rows_at`."""
        # One float32 uniform has 24 bits, too few to choose evenly among millions of rows.
        u, fine = noise.uniform(2).double().unbind(1)
        index, known = rows_at(u + fine * 2.0**-24, len(self.rows), few)
        images = self.rows(index)
        if self.flip:
            mirrored = noise.uniform() < 0.5
            images = torch.where(mirrored.view(-1, 1, 1, 1), images.flip(-1), images)
        return scaled(images if self.cell is None else _dequantised(images, self.cell, noise)), index, known


class _Rows:
    """Rows by index, kept on the device that asks for them if they take less than a quarter of its free memory."""

    def __init__(self, rows: np.ndarray):
        self.rows = rows
        self._resident: dict[torch.device, Tensor | None] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.rows)

    def __call__(self, index: Tensor) -> Tensor:
        device = index.device
        if device.type == "cpu":
            return torch.from_numpy(self.rows[index.numpy()])
        with self._lock:
            if device not in self._resident:
                fits = self.rows.nbytes < (free_memory(device) or 0) / 4
                self._resident[device] = torch.from_numpy(np.array(self.rows)).to(device) if fits else None
        resident = self._resident[device]
        return torch.from_numpy(self.rows[index.cpu().numpy()]).to(device) if resident is None else resident[index]

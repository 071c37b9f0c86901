"""One encoded image to bytes ``[C, H, W]``. This runs in worker processes, so it imports Pillow and numpy and never torch.

Modes: 1, L and LA are grey; 16-bit grey (I;16, and I within 0 ... 65535) is divided by 257 and rounded; P, RGB, RGBA, CMYK,
YCbCr and the rest are colour. Transparency is composited on white. Of an animation the first frame is taken.

Sizes: an image is cropped to its central square and resized with the triangle filter, widened by the factor of reduction
(Pillow's BILINEAR). It is the filter of the authors' ``tf.image.resize(..., antialias=True)``, whose result they do not round
to bytes, as is done here.
"""

from __future__ import annotations

import io
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from springwell.store.files import read_regular

MAX_PIXELS = 1 << 27
MAX_FILE = 1 << 29
# Formats whose decoders are part of Pillow. EPS and its like would start another program.
_FORMATS = ("PNG", "JPEG", "MPO", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF")
_GREY = ("1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "I;16N")


class UnreadableError(Exception):
    """Why one image cannot be read."""


@dataclass(frozen=True)
class Rule:
    """What is done to every image of a set.

    Attributes:
        size: Side of the square that images are cropped and resized to; None: as they are.
        published: (width, height) that every image must have before it is cropped; None: any.
        orient: Whether to turn images as their EXIF data say.
        shape: (C, H, W) of the result; None while it is not known.
    """

    size: int | None = None
    published: tuple[int, int] | None = None
    orient: bool = True
    shape: tuple[int, int, int] | None = None


@dataclass(frozen=True)
class Container:
    """Where encoded images lie.

    Attributes:
        kind: ``files`` (a reference is a path), ``zip`` (a member's name), ``lmdb`` (a key) or ``bytes`` (the image itself).
        path: The path of the zip or LMDB.
    """

    kind: str
    path: str = ""

    def read(self, reference: Any) -> bytes:
        """The encoded image."""
        if self.kind == "files":
            return read_regular(reference, MAX_FILE)
        if self.kind == "lmdb":
            with _database(self.path).begin(buffers=False) as transaction:
                return bytes(transaction.get(reference) or b"")
        if self.kind == "bytes" and not isinstance(reference, bytes):
            raise UnreadableError("holds no image")
        size = len(reference) if self.kind == "bytes" else _archive(self.path).getinfo(reference).file_size
        if size > MAX_FILE:
            raise UnreadableError(f"larger than {MAX_FILE >> 20} MiB")
        return bytes(reference) if self.kind == "bytes" else _archive(self.path).read(reference)


@lru_cache(maxsize=2)
def _archive(path: str) -> zipfile.ZipFile:
    return zipfile.ZipFile(path)


@lru_cache(maxsize=2)
def _database(path: str) -> Any:
    return open_lmdb(path)


def open_lmdb(path: str) -> Any:
    """The LMDB at ``path``, for reading by any number of processes."""
    import lmdb

    return lmdb.open(path, readonly=True, lock=False, readahead=False, meminit=False, max_readers=1, subdir=Path(path).is_dir())


def close_containers() -> None:
    """Forgets the archives and databases that this process has open."""
    _archive.cache_clear()
    _database.cache_clear()


@lru_cache(maxsize=1)
def _formats() -> tuple[str, ...]:
    Image.init()
    return tuple(name for name in _FORMATS if name in Image.OPEN)


def decode(data: bytes, rule: Rule) -> np.ndarray:
    """uint8 ``[C, H, W]``. If the rule has a shape, its channels are used and its size is not enforced.

    Raises:
        UnreadableError: The image cannot be decoded.
    """
    with _opened(data) as image:
        if image.width * image.height > MAX_PIXELS:
            raise UnreadableError(f"{image.width} x {image.height} pixels are too many")
        if rule.published and image.size != rule.published:
            raise UnreadableError("is {} x {} pixels, not {} x {}".format(*image.size, *rule.published))
        turned = ImageOps.exif_transpose(image) if rule.orient else None
        return pixels(_resized(_eight_bits(turned or image), rule), rule)
    raise AssertionError


def header_size(data: bytes) -> tuple[int, int]:
    """(width, height) that an image says it has; nothing is decoded or turned. Raises UnreadableError."""
    with _opened(data) as image:
        return image.size
    raise AssertionError


@contextmanager
def _opened(data: bytes) -> Iterator[Image.Image]:
    """An encoded image, whose damage is raised as UnreadableError wherever it shows."""
    try:
        with Image.open(io.BytesIO(data), formats=_formats()) as image:
            yield image
    except UnreadableError:
        raise
    except UnidentifiedImageError:
        raise UnreadableError("not an image" if data else "empty") from None
    except Exception as error:
        raise UnreadableError((str(error).strip().splitlines() or [type(error).__name__])[0]) from None


def _eight_bits(image: Image.Image) -> Image.Image:
    """The image in mode L or RGB, opaque."""
    if image.mode == "F":
        raise UnreadableError("holds floating-point values, whose range is not known")
    if image.mode.startswith("I"):
        values = np.asarray(image)
        if values.min() < 0 or values.max() > 65535:
            raise UnreadableError(f"holds values of 32 bits ({values.min()} ... {values.max()})")
        return Image.fromarray(np.stack([((line.astype(np.int32) + 128) // 257).astype(np.uint8) for line in values]))
    mode = "L" if image.mode in _GREY else "RGB"
    if image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
    return image.convert(mode)


def _resized(image: Image.Image, rule: Rule) -> Image.Image:
    if rule.size is None:
        return image
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return image.crop((left, top, left + side, top + side)).resize((rule.size, rule.size), Image.Resampling.BILINEAR)


def pixels(image: Image.Image, rule: Rule) -> np.ndarray:
    """uint8 ``[C, H, W]`` of an image in mode L or RGB, with the channels of the rule."""
    if rule.shape is not None:
        image = image.convert("L" if rule.shape[0] == 1 else "RGB")
    array = np.asarray(image)
    return array[None] if array.ndim == 2 else np.ascontiguousarray(array.transpose(2, 0, 1))


def resize_rows(rows: np.ndarray, size: int | None) -> np.ndarray:
    """Images ``[N, C, H, W]`` cropped and resized as those of :func:`decode` are."""
    if size is None or rows.shape[2:] == (size, size):
        return rows
    out = np.empty((len(rows), rows.shape[1], size, size), np.uint8)
    rule = Rule(size)
    for i, row in enumerate(rows):
        image = Image.fromarray(row[0] if len(row) == 1 else np.ascontiguousarray(row.transpose(1, 2, 0)))
        out[i] = pixels(_resized(image, rule), rule)
    return out


@dataclass(frozen=True)
class Decoded:
    """What became of some images.

    Attributes:
        rows: uint8 ``[n, C, H, W]``, the readable ones.
        unreadable: (name, reason) of the others.
        misfit: (name, width, height) of the first whose size is not that of the set.
        stopped: Whether decoding was called off.
    """

    rows: np.ndarray
    unreadable: list[tuple[str, str]]
    misfit: tuple[str, int, int] | None = None
    stopped: bool = False


def decode_all(
    container: Container, items: Sequence[tuple[str, Any]], rule: Rule, stopped: Callable[[], bool] | None = None
) -> Decoded:
    """Decodes images one after the other.

    Args:
        container: Where they lie.
        items: (name, reference) of each.
        rule: With a shape, which every result has.
        stopped: Asked before every image whether to give up.
    """
    assert rule.shape is not None
    rows, unreadable = np.empty((len(items), *rule.shape), np.uint8), []
    count = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, reference in items:
            if stopped is not None and stopped():
                return Decoded(rows[:0], [], stopped=True)
            try:
                image = decode(container.read(reference), rule)
            except Exception as error:
                reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
                unreadable.append((name, reason.splitlines()[0]))
                continue
            if image.shape != rule.shape:
                return Decoded(rows[:0], [], misfit=(name, image.shape[2], image.shape[1]))
            rows[count] = image
            count += 1
    return Decoded(rows[:count], unreadable)

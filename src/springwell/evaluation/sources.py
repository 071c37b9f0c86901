"""Images to be measured, as bytes: a data set, a folder, an array, the samples of a model.

A source is written SOURCE or SOURCE@SPLIT, see :mod:`springwell.data.spec`. Without a split, a published set is its training
images, and a folder or an array is all its images. With one, a folder or an .npz is divided as it is for training. Images are
taken from the front, in their order.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from springwell.data import collect, formats
from springwell.data.decode import Container, Rule, UnreadableError, decode, resize_rows
from springwell.data.formats import UnusableDataError
from springwell.data.images import open_arrays
from springwell.data.options import ImageOptions
from springwell.data.pictures import to_bytes
from springwell.data.spec import IMAGE_CHOICES, Spec, parse_source
from springwell.errors import UserError
from springwell.integrate import Integrator
from springwell.level import LevelSampler
from springwell.model import Model
from springwell.progress import SILENT, Reporter

FEWEST = 20
MOST = 50_000
GREY = "{}: grey images; their channel is repeated three times"
UNREADABLE = 0.01
_MANY = 2000
_CHAINS = 512


@dataclass(frozen=True)
class Images:
    """Images that can be had by number, so that processes share them.

    Attributes:
        name: What they are called.
        num: How many there are.
        shape: (C, H, W), C = 1 or 3.
        rows: (start, stop) -> uint8 ``[stop - start, C, H, W]``.
        key: Tells them from other images, for the cache; empty where they cannot be told.
        num_unreadable: How many more there would be.
        together: How many are best asked for at once.
        names: Of their files, where they have some.
    """

    name: str
    num: int
    shape: tuple[int, ...]
    rows: Callable[[int, int], Tensor]
    key: str = ""
    num_unreadable: int = 0
    together: int = 1
    names: tuple[str, ...] = ()


def open_source(
    text: str,
    num: int | None = None,
    images: ImageOptions | None = None,
    reporter: Reporter = SILENT,
    fewest: int = FEWEST,
) -> Images:
    """The first images of a source.

    Args:
        text: SOURCE or SOURCE@SPLIT.
        num: How many; None for all there are, but 50,000 at most.
        images: Their size, and where data sets are.
        reporter: Receives updates of long work, and warnings of images that are left out.
        fewest: Refuse sources with fewer images.
    """
    images = images or ImageOptions()
    try:
        found = _open(text, num or MOST, images, reporter)
    except UnusableDataError as error:
        raise UserError(f"{text}: {error}") from None
    if found.num < max(fewest, num or 0):
        what = f"num={num} asks for more" if num is not None and num > found.num >= fewest else f"{fewest} are the fewest"
        raise UserError(f"{text}: has {found.num} images; {what}")
    return found


def _open(text: str, num: int, images: ImageOptions, reporter: Reporter) -> Images:
    spec = parse_source(text)
    if spec.kind == "folder" and not spec.split:
        return folder_images(text, spec.path, num, images.image_size, reporter)
    if spec.kind in ("npz", "npy"):
        return _array_file(text, spec, num, images.image_size, reporter)
    arrays = open_arrays(spec, images, reporter)
    if arrays is None:
        raise UnusableDataError(f"unknown; choose {IMAGE_CHOICES}, a folder, .npz or .npy, with @train or @test if need be")
    if bad := arrays.num_unreadable:
        total = len(arrays.train) + len(arrays.test) + bad
        _check_readable(text, bad, total, f"{bad:,} of {total:,} images could not be decoded", reporter)
    rows = arrays.test if spec.split == "test" else arrays.train
    return replace(array_images(text if spec.split else f"{text}@train", rows, num), num_unreadable=bad)


def _check_readable(name: str, bad: int, total: int, what: str, reporter: Reporter) -> None:
    """Warns of images that are left out; UnusableDataError if they are too many."""
    if bad > UNREADABLE * total:
        raise UnusableDataError(f"{what}, more than {UNREADABLE:.0%}; mend or remove them")
    reporter.warn(f"{name}: {what}; left out")


def array_images(name: str, rows: np.ndarray, num: int | None = None) -> Images:
    """Images of an array, uint8 ``[N, C, H, W]``."""
    rows = rows[:num]
    digest = hashlib.sha256(repr(rows.shape).encode())
    for start in range(0, len(rows), 4096):
        digest.update(np.ascontiguousarray(rows[start : start + 4096]).tobytes())
    # Rows may be memory-mapped and read-only, which torch does not know.
    return Images(
        name, len(rows), rows.shape[1:], lambda start, stop: torch.from_numpy(np.array(rows[start:stop])), digest.hexdigest()
    )


def model_images(
    name: str, model: Model | Sequence[Model], num: int, seed: int = 0, sampler: LevelSampler | Integrator | None = None
) -> Images:
    """Samples of a model, as `springwell sample` writes them; drawn by ``sampler``, if not as the model does.

    Several models, such as those of all classes, are drawn one after another, each as often as the others or once more.
    """
    models = [model] if isinstance(model, Model) else list(model)
    ends = [num * (i + 1) // len(models) for i in range(len(models))]

    def rows(start: int, stop: int) -> Tensor:
        found, first = [], start
        for one, end in zip(models, ends, strict=True):
            if first < (last := min(end, stop)):
                found += [x.cpu() for x in one.sample_batches(last, seed, start=first, sampler=sampler)]
                first = last
        return torch.from_numpy(to_bytes(torch.cat(found))).permute(0, 3, 1, 2)

    return Images(name, num, models[0].event_shape, rows, together=min(models[0].automatic_batch(), _CHAINS))


def _array_file(text: str, spec: Spec, num: int, size: int | None, reporter: Reporter) -> Images:
    def say(line: str) -> None:
        reporter.say(f"{text}: {line}")

    if spec.kind == "npy":
        if spec.split:
            raise UnusableDataError(f"an .npy is not divided; leave out @{spec.split}, or use an .npz")
        rows = formats.npy_rows(spec.path, say)
    elif spec.split:
        arrays = formats.npz(spec.path, say)
        rows = arrays.test if spec.split == "test" else arrays.train
    else:
        rows, test = formats.npz_rows(spec.path, say)
        if test is not None:
            raise UnusableDataError("holds train and test; choose one by @train or @test")
    return array_images(text, resize_rows(rows[:num], size))


def folder_images(
    name: str, path: Path, num: int | None = None, size: int | None = None, reporter: Reporter = SILENT
) -> Images:
    """All images of a folder, in three channels if any is in colour.

    Every image is decoded once to see which are readable, and a second time when its turn comes; none is kept. Up to 1 % of the
    folder may be unreadable.

    Args:
        name: What to call them.
        path: The folder.
        num: Only so many of the first.
        size: Crop to a square and resize to this side; None: as they are, which must be one size.
        reporter: Receives progress updates and warnings of unreadable images.
    """
    files, container = collect.listing(path), Container("files")
    if not files:
        raise UnusableDataError("holds no images (png, jpg, webp, gif, bmp, tif, ppm, jp2, avif)")
    good: list[str] = []
    bad: list[tuple[str, str]] = []
    shape: tuple[int, ...] = ()
    num_grey = 0
    with (reporter if len(files) >= _MANY else SILENT).bar(f"reading {name}", len(files)) as bar, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for file, _ in files:
            bar.advance()
            try:
                found = decode(container.read(str(path / file)), Rule(size)).shape
            except (UnreadableError, OSError) as error:
                bad.append((file, formats.first_line(error)))
                continue
            if shape and found[1:] != shape[1:]:
                sizes = f"{file} is {found[2]} x {found[1]} pixels, {good[0]} is {shape[2]} x {shape[1]}"
                raise UnusableDataError(f"{sizes}; give image_size to crop and resize all")
            good.append(file)
            num_grey += found[0] == 1
            shape = (max(found[0], shape[0] if shape else 0), *found[1:])
            if len(good) == num:
                break
    seen = len(good) + len(bad)
    if bad:
        what = f"{len(bad)} of {len(files)} images cannot be read (first: {bad[0][0]}: {bad[0][1]})"
        _check_readable(name, len(bad), len(files), what, reporter)
    if 0 < num_grey < len(good) and shape[0] > 1:
        reporter.say(f"{name}: {num_grey} of {len(good)} images are grey; their channel is repeated three times")
    rule = Rule(size, shape=(shape[0], shape[1], shape[2]))

    def rows(start: int, stop: int) -> Tensor:
        try:
            decoded = [decode(container.read(str(path / file)), rule) for file in good[start:stop]]
        except (UnreadableError, OSError) as error:
            raise UserError(f"{name}: an image has become unreadable ({formats.first_line(error)})") from None
        return torch.from_numpy(np.stack(decoded))

    state = [str(path.resolve()), size, len(good), *files[:seen]]
    key = hashlib.sha256(repr(state).encode()).hexdigest()
    return Images(name, len(good), shape, rows, key, len(bad), names=tuple(good))

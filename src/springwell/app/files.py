"""Images from files, and results as files: a folder in which an interrupted command goes on.

A source of images is what :mod:`springwell.data.spec` describes: a file, a folder, mnist@test. Every image has a number, its
position in the folder or data set, on which its samples depend.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from springwell.data import collect
from springwell.data.decode import Container, Rule, UnreadableError, decode, header_size
from springwell.data.formats import UnusableDataError, first_line
from springwell.data.options import ImageOptions
from springwell.data.spec import parse_source
from springwell.errors import InterruptionError, UserError
from springwell.evaluation.sources import FEWEST, open_source
from springwell.model import Model
from springwell.progress import SILENT, Reporter
from springwell.store.parts import Results


@dataclass(frozen=True)
class Image:
    """One image, read or not.

    Attributes:
        name: What it is called, and its results are.
        number: Its position.
        pixels: uint8 ``[C, H, W]``; None if it cannot be used.
        problem: Why it cannot.
    """

    name: str
    number: int
    pixels: Tensor | None = None
    problem: str = ""

    @property
    def digest(self) -> str:
        """SHA-256 of what its samples depend on: its number and its pixels."""
        return "" if self.pixels is None else sha256(f"{self.number} ".encode() + self.pixels.numpy().tobytes())


def sha256(content: bytes) -> str:
    """SHA-256, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def unique_names(names: Sequence[str]) -> list[str]:
    """What to call the images of some files, so that no two write the same file, capital letters or not.

    The files of an image are called NAME, NAME-0, NAME-1, ..., NAME-mean and NAME-std. Where those of two would collide, the
    names of all get their number, NAME_NUMBER, which ends in no such way and differs from the others.
    """
    stems = [Path(name).with_suffix("").as_posix().replace("/", "-") for name in names]
    there = Counter(stem.lower() for stem in stems)
    owners = (re.sub(r"-(\d+|mean|std)$", "", stem) for stem in there)
    if len(there) == len(stems) and all(owner == stem or owner not in there for owner, stem in zip(owners, there, strict=True)):
        return stems
    return [f"{stem}_{number}" for number, stem in enumerate(stems)]


def read_image(path: Path, shape: tuple[int, ...], resize: bool = False) -> Tensor:
    """The bytes ``[C, H, W]`` of an image that has, or is brought to, a shape. Raises UserError."""
    channels, height, width = shape
    if resize and height != width:
        raise UserError(f"{path}: --resize crops to a square, and {width} x {height} pixels are needed; resize it beforehand")
    rule = Rule(height, shape=(channels, height, width)) if resize else Rule()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            data = Container("files").read(str(path))
            size = header_size(data)
            # One of another size, however large, need not be decoded; it may yet be turned.
            if resize or sorted(size) == sorted((width, height)):
                pixels = decode(data, rule)
                size = pixels.shape[2], pixels.shape[1]
    except (UnreadableError, OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({first_line(error)})") from None
    if size != (width, height):
        found = f"is {size[0]} x {size[1]} pixels; {width} x {height} are needed"
        raise UserError(f"{path}: {found}; use --resize to crop and resize it")
    if pixels.shape[0] != channels:
        kinds = {1: "grey", 3: "in colour"}
        theirs, ours = kinds[pixels.shape[0]], kinds[channels]
        raise UserError(f"{path}: is {theirs}; the model's images are {ours}; use --resize to convert it")
    return torch.from_numpy(np.array(pixels))


def read_images(
    source: str,
    shape: tuple[int, ...],
    resize: bool = False,
    limit: int | None = None,
    reporter: Reporter = SILENT,
    out: Path | None = None,
) -> list[Image]:
    """The images of a source; in a folder, those that cannot be used are named and not raised.

    Args:
        source: A file, a folder, or a data set with its split.
        shape: (C, H, W) that images must have.
        resize: Whether to bring them to it.
        limit: Only so many of the first.
        reporter: Receives updates of long work.
        out: Where results go; a folder below the source is no part of it.
    """
    spec = parse_source(source)
    if spec.kind == "folder" and not spec.split:
        return _read_folder(source, spec.path, shape, resize, limit, out)
    if spec.kind in ("image", ""):
        if not spec.kind:
            raise UserError(f"{source}: no such file; give an image, a folder, or a data set and its split as in mnist@test")
        return [Image(spec.path.stem, 0, read_image(spec.path, shape, resize))]
    config = ImageOptions(image_size=shape[1] if resize else None)
    try:
        images = open_source(source, max(limit or FEWEST, FEWEST), config, reporter)
    except UserError:
        # There may be fewer, which are then all that is wanted.
        images = open_source(source, None, config, reporter)
    if images.shape != shape:
        found, wanted = (f"{s[2]} x {s[1]} pixels in {s[0]} channels" for s in (images.shape, shape))
        raise UserError(f"{source}: has images of {found}; {wanted} are needed")
    rows = images.rows(0, min(limit or FEWEST, images.num))
    return [Image(f"{number:06d}", number, row) for number, row in enumerate(rows)]


def _read_folder(
    source: str, path: Path, shape: tuple[int, ...], resize: bool, limit: int | None, out: Path | None
) -> list[Image]:
    try:
        names = [name for name, _ in collect.listing(path)]
    except UnusableDataError as error:
        raise UserError(f"{source}: {error}") from None
    if out is not None and path.resolve() in out.resolve().parents:
        below = out.resolve().relative_to(path.resolve())
        names = [name for name in names if below not in Path(name).parents]
    names = names[:limit]
    if not names:
        raise UserError(f"{source}: holds no images (png, jpg, webp, gif, bmp, tif, ppm, jp2, avif)")
    images = []
    for number, (file, name) in enumerate(zip(names, unique_names(names), strict=True)):
        try:
            images.append(Image(name, number, read_image(path / file, shape, resize)))
        except UserError as error:
            images.append(Image(name, number, problem=str(error)))
    return images


def read_mask(path: Path, shape: tuple[int, ...]) -> Tensor:
    """bool ``[C, H, W]``: the hidden pixels are those brighter than half of white."""
    try:
        pixels = read_image(path, (1, *shape[1:]))
    except UserError as error:
        if "in colour" not in str(error):
            raise UserError(f"--mask {str(error).removesuffix('; use --resize to crop and resize it')}") from None
        pixels = read_image(path, (3, *shape[1:])).float().mean(0, keepdim=True)
    return (pixels > 127).expand(shape)


def box_mask(box: Sequence[int], shape: tuple[int, ...]) -> Tensor:
    """bool ``[C, H, W]``: the pixels in the box (x, y, width, height) are hidden; (0, 0) is the upper left one."""
    x, y, w, h = box
    if not (0 <= x < x + w <= shape[2] and 0 <= y < y + h <= shape[1]):
        raise UserError(f"--box {','.join(map(str, box))}: leaves the image; it has {shape[2]} x {shape[1]} pixels")
    hidden = torch.zeros(shape, dtype=torch.bool)
    hidden[:, y : y + h, x : x + w] = True
    return hidden


def half_mask(side: str, shape: tuple[int, ...]) -> Tensor:
    """bool ``[C, H, W]``: the left, right, upper or lower half is hidden."""
    _, height, width = shape
    boxes = {
        "left": (0, 0, width // 2, height),
        "right": (width // 2, 0, width - width // 2, height),
        "top": (0, 0, width, height // 2),
        "bottom": (0, height // 2, width, height - height // 2),
    }
    return box_mask(boxes[side], shape)


def fill_folder(
    results: Results,
    images: Sequence[Image],
    model: Model,
    num: int,
    work: Callable[[list[Image], Callable[[int], None]], None],
    reporter: Reporter,
) -> None:
    """Goes through the images that have no NAME.png yet, or had other pixels or another number then.

    Args:
        results: The folder, and the settings by which that of another command is refused.
        images: The images.
        model: The model, by whose memory images are taken together.
        num: Samples of each.
        work: Writes the files of some images, of each NAME.png last, and tells of every level.
        reporter: Receives progress updates and warnings of images that cannot be used.
    """
    usable = [image for image in images if image.pixels is not None]
    if not usable:
        raise UserError(images[0].problem if len(images) == 1 else f"no image can be used (first: {images[0].problem})")
    names = set(results.begin({image.name: image.digest for image in usable}))
    left = [image for image in usable if image.name in names]
    if len(left) < len(usable):
        reporter.say(f"{results.out}: holds the results of {len(usable) - len(left)} images already")
    together, levels = max(1, model.automatic_batch() // num), model.schedule.num_levels + 1
    try:
        with reporter.bar("sampling (levels x samples)", max(1, len(left)) * num * levels) as bar:
            for start in range(0, len(left), together):
                work(left[start : start + together], bar.advance)
    except KeyboardInterrupt:
        raise InterruptionError(f"interrupted; {results.out} keeps what there is: run the same command to resume") from None
    for image in images:
        if image.pixels is None:
            reporter.warn(f"not done: {image.problem}")

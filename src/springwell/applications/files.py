"""Images from files, and results as files: a folder in which an interrupted command goes on.

A source of images is a file, a folder, or a data set with its split, such as mnist@test. Every image has a number, its position
in the folder or data set, on which its samples depend.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from springwell.config import ImageConfig
from springwell.data import collect
from springwell.data.decode import Container, Rule, UnreadableError, decode
from springwell.data.formats import UnusableDataError, first_line
from springwell.errors import InterruptionError, UserError
from springwell.evaluation.sources import FEWEST, open_source
from springwell.model import Model
from springwell.progress import Reporter
from springwell.writing import begin_folder


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


def read_image(path: Path, shape: tuple[int, ...], resize: bool = False) -> Tensor:
    """The bytes ``[C, H, W]`` of an image that has, or is brought to, a shape. Raises UserError."""
    channels, height, width = shape
    if resize and height != width:
        raise UserError(f"{path}: --resize crops to a square, and {width} x {height} pixels are needed; resize it beforehand")
    rule = Rule(height, shape=(channels, height, width)) if resize else Rule()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pixels = decode(Container("files").read(str(path)), rule)
    except (UnreadableError, OSError) as error:
        raise UserError(f"{path}: cannot be read ({first_line(error)})") from None
    if pixels.shape[1:] != (height, width):
        size = f"is {pixels.shape[2]} x {pixels.shape[1]} pixels; {width} x {height} are needed"
        raise UserError(f"{path}: {size}; use --resize to crop and resize it")
    if pixels.shape[0] != channels:
        kinds = {1: "grey", 3: "in colour"}
        raise UserError(
            f"{path}: is {kinds[pixels.shape[0]]}; the model's images are {kinds[channels]}; use --resize to convert it"
        )
    return torch.from_numpy(np.array(pixels))


def read_images(
    source: str, shape: tuple[int, ...], resize: bool = False, limit: int | None = None, reporter: Reporter | None = None
) -> list[Image]:
    """The images of a source; in a folder, those that cannot be used are named and not raised.

    Args:
        source: A file, a folder, or a data set with its split.
        shape: (C, H, W) that images must have.
        resize: Whether to bring them to it.
        limit: Only so many of the first.
        reporter: Is told of long work.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        try:
            names = [name for name, _ in collect.listing(path)][:limit]
        except UnusableDataError as error:
            raise UserError(f"{source}: {error}") from None
        if not names:
            raise UserError(f"{source}: holds no images (png, jpg, webp, gif, bmp, tif, ppm, jp2, avif)")
        plain = [Path(name).with_suffix("").as_posix().replace("/", "-") for name in names]
        alone = {name for name in plain if plain.count(name) == 1}
        return [
            _read(path / name, stem if stem in alone else name.replace("/", "-"), number, shape, resize)
            for number, (name, stem) in enumerate(zip(names, plain, strict=True))
        ]
    if path.exists() or "@" not in source:
        if not path.exists():
            raise UserError(f"{source}: no such file; give an image, a folder, or a data set and its split as in mnist@test")
        return [Image(path.stem, 0, read_image(path, shape, resize))]
    images = open_source(source, max(limit or FEWEST, FEWEST), ImageConfig(image_size=shape[1] if resize else None), reporter)
    if images.shape != shape:
        found, wanted = (f"{s[2]} x {s[1]} pixels in {s[0]} channels" for s in (images.shape, shape))
        raise UserError(f"{source}: has images of {found}; {wanted} are needed")
    rows = images.rows(0, min(limit or FEWEST, images.num))
    return [Image(f"{number:06d}", number, row) for number, row in enumerate(rows)]


def _read(path: Path, name: str, number: int, shape: tuple[int, ...], resize: bool) -> Image:
    try:
        return Image(name, number, read_image(path, shape, resize))
    except UserError as error:
        return Image(name, number, problem=str(error))


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


@dataclass(frozen=True)
class Folder:
    """A folder of results.

    Attributes:
        out: The folder.
        command: Which command writes it.
        record: Its settings, by which another command is refused.
    """

    out: Path
    command: str
    record: dict[str, Any]

    def fill(
        self,
        images: Sequence[Image],
        model: Model,
        num: int,
        work: Callable[[list[Image], Callable[[int], None]], None],
        reporter: Reporter,
    ) -> None:
        """Goes through the images that have no NAME.png yet.

        Args:
            images: The images.
            model: The model, by whose memory images are taken together.
            num: Samples of each.
            work: Writes the files of some images, of each NAME.png last, and tells of every level.
            reporter: Is told of progress and of images that cannot be used.
        """
        begin_folder(self.out, f"{self.command}.json", self.record, self.command)
        usable = [image for image in images if image.pixels is not None]
        if not usable:
            raise UserError(images[0].problem if len(images) == 1 else f"no image can be used (first: {images[0].problem})")
        left = [image for image in usable if not (self.out / f"{image.name}.png").exists()]
        if len(left) < len(usable):
            reporter.say(f"{self.out}: holds the results of {len(usable) - len(left)} images already")
        together, levels = max(1, model.automatic_batch() // num), model.schedule.num_levels + 1
        try:
            with reporter.bar("sampling (levels x samples)", max(1, len(left)) * num * levels) as bar:
                for start in range(0, len(left), together):
                    work(left[start : start + together], bar.advance)
        except KeyboardInterrupt:
            raise InterruptionError(f"interrupted; {self.out} keeps what there is: run the same command to go on") from None
        for image in images:
            if image.pixels is None:
                reporter.warn(f"not done: {image.problem}")

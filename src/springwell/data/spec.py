"""The one grammar that names data: SOURCE, or SOURCE@SPLIT where a part of the set is meant.

checkerboard, eight_gaussians, rings, ...       toys, of which the density is known
digits, mnist, fashion-mnist, cifar10, celeba   published sets of images, below the data root
lsun/CATEGORY                                   likewise
folder:PATH, zip:PATH                           images in a folder or in an archive
npz:PATH, npy:PATH                              arrays
csv:PATH, parquet:PATH                          tables; npy:PATH, too
hf:NAME, hf:NAME@CONFIG                         a set of the Hugging Face hub
prepared:PATH                                   what ``springwell data prepare`` wrote
PATH                                            a prepared set, a folder, a .zip, .npz, .npy, .csv or .parquet file, or an image
@train, @test                                   the split

A name comes before a path: a folder called mnist is ./mnist or folder:mnist.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

TOYS = ("checkerboard", "eight_gaussians", "rings", "two_moons", "pinwheel", "two_spirals")
NAMED = ("digits", "mnist", "fashion-mnist", "cifar10", "celeba")
TABLES = ("csv", "parquet", "npy")
KINDS = ("folder", "zip", "npz", "npy", "csv", "parquet", "hf", "prepared")
SPLITS = ("train", "test")
IMAGE_CHOICES = f"{', '.join(NAMED)}, lsun/CATEGORY, folder:PATH, zip:PATH, npz:PATH, hf:NAME, prepared:PATH"


class UnusableDataError(Exception):
    """Why data cannot be used, in one line without the name of the data set."""


@dataclass(frozen=True)
class Spec:
    """What a text names.

    Attributes:
        kind: One of ``TOYS``, ``NAMED`` and ``KINDS``, ``lsun``, or ``image`` for a file of one image; empty for nothing.
        place: The path, the category of lsun, or the name of a set on the hub.
        split: ``train``, ``test``, or empty if none is given.
    """

    kind: str
    place: str = ""
    split: str = ""

    def __str__(self) -> str:
        separator = "/" if self.kind == "lsun" else ":" if self.kind in KINDS else ""
        return f"{'' if self.kind == 'image' else self.kind}{separator}{self.place}"

    @property
    def path(self) -> Path:
        if not self.place:
            raise UnusableDataError(f"no path is given; write {self.kind}:PATH")
        return Path(self.place).expanduser()

    def absolute(self) -> Spec:
        """The same, with its path from the root of the file system, so that it is found from any folder."""
        local = self.place and self.kind in KINDS and self.kind != "hf"
        return replace(self, place=str(self.path.absolute())) if local else self

    @property
    def is_encoded(self) -> bool:
        """Whether the set holds image files, which are decoded once and kept."""
        return self.kind in ("celeba", "lsun", "folder", "zip", "hf")


def parse(text: str) -> Spec:
    """What ``text``, which has no split, names."""
    kind, colon, place = text.partition(":")
    if text in TOYS or text in NAMED:
        return Spec(text)
    if colon and kind in KINDS:
        return Spec(kind, place)
    if text.startswith("lsun/"):
        return Spec("lsun", text.removeprefix("lsun/"))
    path = Path(text).expanduser()
    if (path / "prepared.json").is_file():
        return Spec("prepared", text)
    if text and path.is_dir():
        return Spec("folder", text)
    if path.suffix.lower() in (".zip", ".npz", ".npy", ".csv", ".parquet"):
        return Spec(path.suffix[1:].lower(), text)
    return Spec("image" if path.is_file() else "", text)


def parse_source(text: str) -> Spec:
    """What ``text`` names, with its split."""
    whole, at, split = text.rpartition("@")
    return replace(parse(whole), split=split) if at and split in SPLITS and not Path(text).exists() else parse(text)

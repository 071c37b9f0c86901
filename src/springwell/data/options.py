"""How images are read. The command line shows these docstrings as help; it starts at once, so no torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta


@dataclass(frozen=True)
class ImageOptions:
    """How images are read."""

    image_size: Annotated[int, Meta(ge=1, le=4096)] | None = None
    """Crop to a square and resize to this size. Default: what the data set is published with (64 for celeba and lsun)."""
    flip: bool = False
    """Mirror every training image with probability 1/2."""
    dequantise: bool = False
    """Spread every grey value evenly over its cell (1/256 of the range; 1/17 for digits), so that images have a density."""
    data_root: str | None = None
    """Where data sets are looked for. Default: $SPRINGWELL_DATA, or ~/data."""


@dataclass(frozen=True)
class LabelOptions:
    """Classes: one energy for each class of the data, and one for all of them, in one network."""

    classes: tuple[str, ...] = ()
    """Learn the density of every class of the data: all, or the names of all classes. Needs objective normalised."""
    label_dropout: Annotated[float, Meta(gt=0, lt=1)] = 0.1
    """Share of samples whose label is withheld in training, which teaches the density of all data."""
    labelled: Annotated[int, Meta(ge=2, le=10**9)] | None = None
    """Use the labels of so many training rows, as many of each class as of any other. Default: all."""
    label_column: str | None = None
    """The column of a CSV file that holds the labels; the other columns are then the data."""

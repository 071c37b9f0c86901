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

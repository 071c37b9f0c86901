"""Images as files: bytes, grids, PNG and GIF."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from springwell.store.files import write_atomically

Bytes = npt.NDArray[np.uint8]
GAP = 2
_LEGIBLE = 64
_LARGEST = 4096


def to_bytes(x: Tensor) -> Bytes:
    """Images ``[N, C, H, W]`` in [-1, 1] as bytes ``[N, H, W, C]``, round((x + 1) 127.5), cut off at 0 and 255."""
    return ((x + 1) * 127.5).round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous().cpu().numpy()


def grid(images: Bytes, columns: int | None = None) -> Bytes:
    """Images ``[N, H, W, C]`` side by side on white, small ones magnified by a whole factor. Default: near square."""
    num, height, width, channels = images.shape
    columns = columns or math.ceil(math.sqrt(num))
    rows = -(-num // columns)
    longest = max(columns * (width + GAP), rows * (height + GAP))
    factor = max(1, min(_LEGIBLE // max(height, width), _LARGEST // longest))
    canvas = np.full((rows, columns, height * factor + GAP, width * factor + GAP, channels), 255, np.uint8)
    for i, image in enumerate(images):
        canvas[i // columns, i % columns, :-GAP, :-GAP] = image.repeat(factor, 0).repeat(factor, 1)
    picture = canvas.transpose(0, 2, 1, 3, 4).reshape(rows * canvas.shape[2], columns * canvas.shape[3], channels)
    return picture[:-GAP, :-GAP]


def save_png(picture: Bytes, path: Path) -> Path:
    """Writes a picture ``[H, W, C]``, C = 1 or 3."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda file: _image(picture).save(file, format="PNG"))
    return path


def save_gif(frames: Sequence[Bytes], path: Path) -> Path:
    """Writes an animation of about three seconds that rests on its last frame."""
    first, *rest = [_image(frame) for frame in frames]
    milliseconds = [max(40, 3000 // len(frames))] * len(rest) + [2000]
    options = {"format": "GIF", "save_all": True, "append_images": rest, "duration": milliseconds, "loop": 0}
    write_atomically(path, lambda file: first.save(file, **options))
    return path


def _image(picture: Bytes) -> Any:
    from PIL import Image

    return Image.fromarray(np.ascontiguousarray(picture[..., 0] if picture.shape[-1] == 1 else picture))

"""Data of one's own, in memory: a tensor, an array or a torch Dataset of vectors ``[N, D]`` or images ``[N, C, H, W]``."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from springwell.data.formats import Arrays
from springwell.data.images import image_source
from springwell.data.options import ImageOptions
from springwell.data.source import DataSource, Rows
from springwell.errors import UserError, kind_of

FEWEST = 20
# Every how manyth row is held out.
HELD_OUT = 10


def array_source(
    data: Tensor | np.ndarray | Dataset[Any], images: ImageOptions | None = None, name: str = "data"
) -> DataSource:
    """Batches of the rows of ``data``; every tenth row is held out.

    Args:
        data: Vectors ``[N, D]``, which are standardised, or images ``[N, C, H, W]``: bytes, or floats in [-1, 1].
        images: How images are read; flips and dequantisation.
        name: What errors call the data.
    """
    array = _array(data, name)
    if array.ndim not in (2, 4) or 0 in array.shape[1:] or array.dtype.kind not in "fiu":
        shape = f"{array.dtype} {list(array.shape)}"
        raise UserError(f"{name}: found {shape}; needs numbers of shape [N, D], or images [N, C, H, W]")
    if len(array) < FEWEST:
        raise UserError(f"{name}: has {len(array)} rows; needs at least {FEWEST}")
    return _images(array, images or ImageOptions(), name) if array.ndim == 4 else vector_source(array, name)


def _array(data: Any, name: str) -> np.ndarray:
    if isinstance(data, Tensor):
        # numpy has no bfloat16.
        return (data.float() if data.dtype == torch.bfloat16 else data).detach().cpu().numpy()
    if isinstance(data, np.ndarray):
        return data
    if isinstance(data, Dataset) and hasattr(data, "__len__"):
        rows = [data[i] for i in range(len(data))]
        # Labels and whatever else a row holds beside its sample are left alone.
        rows = [row[0] if isinstance(row, (tuple, list)) else row for row in rows]
        try:
            return np.stack([np.asarray(row) for row in rows])
        except ValueError as error:
            raise UserError(f"{name}: its rows cannot be stacked ({error}); give rows of one shape") from None
    raise UserError(f"{name}: is {kind_of(data)}; give a tensor, a numpy array or a torch Dataset [N, ...]")


def _images(array: np.ndarray, images: ImageOptions, name: str) -> DataSource:
    if array.shape[1] not in (1, 3):
        raise UserError(f"{name}: has {array.shape[1]} channels; needs images [N, C, H, W] with C = 1 or 3")
    if array.dtype != np.uint8:
        if array.dtype.kind != "f" or not bool(np.isfinite(array).all()) or np.abs(array).max() > 1:
            raise UserError(f"{name}: holds {array.dtype} images; needs bytes, or finite floats in [-1, 1]")
        array = np.round((array + 1) * 127.5).astype(np.uint8)
    held = np.arange(len(array)) % HELD_OUT == HELD_OUT - 1
    return image_source(Arrays(array[~held], array[held]), images)


def vector_source(array: np.ndarray, name: str) -> DataSource:
    """Batches of the rows of ``[N, D]``, in standardised coordinates."""
    bad = ~np.isfinite(array).all(1)
    if bad.any():
        first = int(np.flatnonzero(bad)[0])
        raise UserError(f"{name}: {int(bad.sum())} of {len(array)} rows are not finite (first: row {first}); remove them")
    rows = torch.from_numpy(np.array(array, np.float64, order="C"))
    shift, scale = rows.mean(0), rows.std(0)
    if not bool((scale > 0).all()):
        raise UserError(f"{name}: column {int((scale == 0).nonzero()[0])} is constant; drop it")
    usable = (scale > 1e-30) & (scale < 1e30) & (shift.abs() < 1e5 * scale)
    if not bool(usable.all()):
        i = int((~usable).nonzero()[0])
        numbers = f"mean {float(shift[i]):.3g}, spread {float(scale[i]):.3g}"
        raise UserError(f"{name}: column {i} has {numbers}, which float32 cannot hold; centre and scale it")
    rows = ((rows - shift) / scale).float()
    held = torch.arange(len(rows)) % HELD_OUT == HELD_OUT - 1
    train, test = rows[~held], rows[held]
    return DataSource(
        event_shape=(rows.shape[1],),
        sample=Rows(train),
        held_out=lambda noise: test[: len(noise)].to(noise.device),
        shift=shift.float(),
        scale=scale.float(),
        num_held_out=len(test),
        fingerprint=zlib.crc32(rows.numpy().tobytes()),
    )

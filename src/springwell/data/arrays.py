"""Your own data, in memory: a tensor, an array or a torch Dataset of vectors ``[N, D]`` or images ``[N, C, H, W]``."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from springwell.data.classes import RowLabels, checked, numbered
from springwell.data.formats import Arrays
from springwell.data.images import image_source
from springwell.data.labels import Labels, labels_of_rows, no_labels
from springwell.data.options import ImageOptions
from springwell.data.source import DataSource, Rows
from springwell.errors import UserError, kind_of
from springwell.noise import Noise

FEWEST = 20
# Every how manyth row is held out.
HELD_OUT = 10


def array_source(data: Tensor | np.ndarray | Dataset[Any] | tuple[Any, Any], images: ImageOptions | None = None) -> DataSource:
    """Batches of the rows of ``data``; every tenth row is held out.

    Args:
        data: Vectors ``[N, D]``, which are standardised, or images ``[N, C, H, W]``: bytes, or floats in [-1, 1]. A pair
            (data, labels ``[N]``), or a Dataset of such pairs, has labels too.
        images: How images are read; flips and dequantisation.
    """
    array, labels = _with_labels(data)
    if array.ndim not in (2, 4) or 0 in array.shape[1:] or array.dtype.kind not in "fiu":
        shape = f"{array.dtype} {list(array.shape)}"
        hint = "; add the missing dimension by data[:, None]" if array.ndim in (1, 3) else ""
        raise UserError(f"data: found {shape}; needs numbers of shape [N, D], or images [N, C, H, W]{hint}")
    if len(array) < FEWEST:
        raise UserError(f"data: has {len(array)} rows; needs at least {FEWEST}")
    if array.ndim == 4:
        return _images(array, images or ImageOptions(), labels)
    return vector_source(array, "data", labels)


def _with_labels(data: Any) -> tuple[np.ndarray, list[str]]:
    """The rows, and the names of their classes, if they have any."""
    labels: Any = ()
    if isinstance(data, tuple) and len(data) == 2:
        data, labels = data
    elif isinstance(data, Dataset) and hasattr(data, "__len__") and len(data):
        first = data[0]
        if isinstance(first, (tuple, list)) and len(first) > 1 and np.ndim(first[1]) == 0:
            labels = [data[i][1] for i in range(len(data))]
    array = _array(data)
    values = [str(value) for value in np.asarray(labels).tolist()]
    if values and len(values) != len(array):
        raise UserError(f"data: has {len(array)} rows and {len(values)} labels; give one label per row")
    return array, values


def _array(data: Any) -> np.ndarray:
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
            raise UserError(f"data: its rows cannot be stacked ({error}); give rows of one shape") from None
    raise UserError(f"data: is {kind_of(data)}; give a tensor, a numpy array or a torch Dataset [N, ...]")


def _images(array: np.ndarray, images: ImageOptions, labels: Sequence[str]) -> DataSource:
    if array.shape[1] not in (1, 3):
        hint = ", as data.transpose(0, 3, 1, 2) makes of [N, H, W, C]" if array.shape[3] in (1, 3) else ""
        raise UserError(f"data: has {array.shape[1]} channels; needs images [N, C, H, W] with C = 1 or 3{hint}")
    if array.dtype != np.uint8:
        if array.dtype.kind != "f" or not bool(np.isfinite(array).all()) or np.abs(array).max() > 1:
            raise UserError(f"data: holds {array.dtype} images; needs bytes, or finite floats in [-1, 1]")
        array = np.round((array + 1) * 127.5).astype(np.uint8)
    held = np.arange(len(array)) % HELD_OUT == HELD_OUT - 1
    return image_source(Arrays(array[~held], array[held], labels=(lambda: _divided(labels)) if labels else None), images)


def vector_source(array: np.ndarray, name: str, labels: Sequence[str] = ()) -> DataSource:
    """Batches of the rows of ``[N, D]``, in standardised coordinates; ``labels`` are the names of their classes, if any."""
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
    draw = Rows(train)

    def held_out(noise: Noise) -> Tensor:
        return test[: len(noise)].to(noise.device)

    def labelled() -> Labels:
        return labels_of_rows(draw.drawn, held_out, checked(_divided(labels)))

    return DataSource(
        event_shape=(rows.shape[1],),
        sample=draw,
        held_out=held_out,
        shift=shift.float(),
        scale=scale.float(),
        num_held_out=len(test),
        fingerprint=zlib.crc32(rows.numpy().tobytes()),
        labels=labelled if len(labels) else no_labels,
    )


def _divided(labels: Sequence[str]) -> RowLabels:
    """Labels of the training and of the held-out rows."""
    held = [i % HELD_OUT == HELD_OUT - 1 for i in range(len(labels))]
    parts = ([name for name, out in zip(labels, held, strict=True) if out is wanted] for wanted in (False, True))
    return numbered(*parts)

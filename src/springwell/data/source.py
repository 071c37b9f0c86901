"""One way to draw training batches, whatever the data: every sample follows from its noise alone.

Models are trained in standardised coordinates u = (x - shift) / scale. Toy data are standardised already.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from springwell.data.formats import UnusableDataError, load_npy
from springwell.data.labels import Labels, no_labels, rows_at
from springwell.data.options import ImageOptions
from springwell.data.spec import IMAGE_CHOICES, TABLES, Spec, parse
from springwell.data.toy import TOY_DATA, ToyData, toy_data
from springwell.errors import UserError
from springwell.noise import Noise
from springwell.progress import SILENT, Reporter


@dataclass(frozen=True)
class DataSource:
    """Data in standardised coordinates.

    Attributes:
        event_shape: Shape of one sample.
        sample: noise -> ``[N, *event_shape]``, the training data.
        held_out: noise -> ``[N, *event_shape]``, data that training never sees, no point twice.
        shift: ``[*event_shape]``; x = shift + scale * u.
        scale: ``[*event_shape]``.
        toy: The exact density, where there is one.
        num_held_out: How many held-out points there are; None if without end.
        fingerprint: Of the training data, by which a resumed run notices that they are others; 0 where nothing can change.
        cell: Distance of neighbouring grey values; 0 for data that are not quantised.
        rows: The training images as bytes ``[N, C, H, W]``; None for other data.
        labels: Reads the labels; raises UnusableDataError where there are none.
    """

    event_shape: tuple[int, ...]
    sample: Callable[[Noise], Tensor]
    held_out: Callable[[Noise], Tensor]
    shift: Tensor
    scale: Tensor
    toy: ToyData | None = None
    num_held_out: int | None = None
    fingerprint: int = 0
    cell: float = 0.0
    rows: np.ndarray | None = None
    labels: Callable[[], Labels] = no_labels

    def in_units(self, shift: Tensor, scale: Tensor) -> DataSource:
        """The same data in the standardised coordinates of a model that was trained on others.

        The density of toy data is known in their own coordinates alone.
        """
        shift, scale = shift.cpu(), scale.cpu()
        if torch.equal(shift, self.shift.cpu()) and torch.equal(scale, self.scale.cpu()):
            return self

        def converted(u: Tensor) -> Tensor:
            x = self.shift.to(u) + self.scale.to(u) * u
            return (x - shift.to(u)) / scale.to(u)

        return replace(
            self,
            sample=lambda noise: converted(self.sample(noise)),
            held_out=lambda noise: converted(self.held_out(noise)),
            labels=lambda: self.labels().converted(converted),
            shift=shift,
            scale=scale,
            toy=None,
        )


def open_data(
    spec: str, images: ImageOptions | None = None, reporter: Reporter | None = None, label_column: str | None = None
) -> DataSource:
    """The data set that ``spec`` names.

    Args:
        spec: The name of a toy, or what :mod:`springwell.data.spec` describes.
        images: How images are read. Default: as published, not augmented.
        reporter: Receives updates of long work, such as decoding a folder of images at its first use.
        label_column: The column of a table that holds labels; the others are then vectors.

    Examples:
        >>> digits = sw.open_data("digits")
        >>> digits.event_shape, digits.num_held_out
        ((1, 8, 8), 299)
        >>> digits.sample(sw.Noise(0, torch.arange(16))).shape
        torch.Size([16, 1, 8, 8])
    """
    if spec in TOY_DATA:
        toy = toy_data(spec)
        classes = tuple(map(str, range(toy.num_modes)))

        def labelled(noise: Noise, few: Tensor | None = None) -> tuple[Tensor, Tensor]:
            return toy.labelled(noise)

        labels = Labels(classes, labelled, toy.labelled)
        return DataSource((2,), toy.sample, toy.sample, torch.zeros(2), torch.ones(2), toy, labels=lambda: labels)
    if label_column is not None:
        from springwell.data.arrays import vector_source
        from springwell.data.tables import labelled_table

        values, names = labelled_table(spec, label_column)
        return vector_source(values, f"data={spec!r}", names)
    if (parsed := parse(spec)).kind == "npy":
        return _vectors(spec, parsed)
    if parsed.kind in TABLES:
        raise UserError(f"data={spec!r}: is a table; springwell.sklearn.EnergyDensity and `springwell train table` fit one")
    from springwell.data.images import open_images

    if (source := open_images(spec, images, reporter or SILENT)) is not None:
        return source
    raise UserError(f"data={spec!r}: unknown; choose {', '.join(TOY_DATA)}, {IMAGE_CHOICES}, or npy:PATH for vectors [N, D]")


def _vectors(spec: str, parsed: Spec) -> DataSource:
    from springwell.data.arrays import vector_source

    try:
        array = load_npy(parsed.path)
    except UnusableDataError as error:
        advice = "; write it with numpy.save" if "readable" in str(error) else ""
        raise UserError(f"data={spec!r}: {error}{advice}") from None
    if array.ndim != 2 or array.shape[0] < 20 or array.shape[1] < 1 or array.dtype.kind not in "fiu":
        found = f"{array.dtype} {list(array.shape)}"
        raise UserError(f"data={spec!r}: found {found}; needs numbers of shape [N, D], N >= 20, D >= 1")
    return vector_source(array, f"data={spec!r}")


class Rows:
    """Draws rows uniformly, with replacement."""

    def __init__(self, rows: Tensor):
        self.rows = rows

    def __call__(self, noise: Noise) -> Tensor:
        return self.drawn(noise, None)[0]

    def drawn(self, noise: Noise, few: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Rows, their numbers and whether their labels are known; see :func:`springwell.data.labels.rows_at`."""
        self.rows = self.rows.to(noise.device)
        index, known = rows_at(noise.uniform().double(), len(self.rows), few)
        return self.rows[index], index, known

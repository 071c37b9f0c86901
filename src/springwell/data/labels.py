"""Data that are drawn with their labels.

A label is a whole number 0 ... C - 1, and -1 where it is not known; ``classes`` names them. Labels come from where data lie:
beside the images of digits, MNIST, Fashion-MNIST and CIFAR-10, from the names of sub-folders, from a column of a CSV file, from
Python, and of toys from the mode that a point was drawn from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from springwell.data.classes import RowLabels, unlabelled
from springwell.data.spec import UnusableDataError
from springwell.noise import Noise, Stream


class DrawLabelled(Protocol):
    """Draws training data x ``[N, ...]`` and their labels ``[N]``.

    ``few`` are the rows whose labels are known: half of the draws are then from them, and the others have label -1.
    """

    def __call__(self, noise: Noise, few: Tensor | None = None) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True)
class Labels:
    """What is known of the classes of data.

    Attributes:
        classes: Names of the labels 0, 1, ...
        sample: Training data with labels; the same data as without.
        held_out: noise -> held-out data and their labels.
        train: Labels of the training rows ``[N]``; None for data without end.
    """

    classes: tuple[str, ...]
    sample: DrawLabelled
    held_out: Callable[[Noise], tuple[Tensor, Tensor]]
    train: np.ndarray | None = None

    def converted(self, convert: Callable[[Tensor], Tensor]) -> Labels:
        """The same labels of data in other coordinates."""

        def sample(noise: Noise, few: Tensor | None = None) -> tuple[Tensor, Tensor]:
            x, label = self.sample(noise, few)
            return convert(x), label

        def held_out(noise: Noise) -> tuple[Tensor, Tensor]:
            x, label = self.held_out(noise)
            return convert(x), label

        return replace(self, sample=sample, held_out=held_out)

    def limited(self, num: int, seed: int) -> Labels:
        """The same data, of which ``num`` training rows keep their label, as many of each class as of any other."""
        if self.train is None:
            raise UnusableDataError(f"labelled={num}: these data have no end; leave it out")
        num_classes = len(self.classes)
        if not num_classes <= num <= len(self.train):
            raise UnusableDataError(
                f"labelled={num}: out of range; use {num_classes} ... {len(self.train)}, one per class or more"
            )
        order = np.argsort(Noise(seed, torch.arange(len(self.train)), Stream.LABELS).uniform().numpy())
        by_class = [order[self.train[order] == c] for c in range(num_classes)]
        # Rounds of one row per class: the first ``num`` of them.
        turns = sorted((turn, c, row) for c, rows in enumerate(by_class) for turn, row in enumerate(rows[:num]))
        few = torch.tensor(sorted(int(row) for _, _, row in turns[:num]))
        return replace(self, sample=partial(self.sample, few=few))


def no_labels() -> Labels:
    """What data without labels say when asked for them."""
    raise unlabelled()


def rows_at(u: Tensor, num: int, few: Tensor | None) -> tuple[Tensor, Tensor]:
    """Rows ``[N]`` of ``num`` at uniforms u ``[N]`` in [0, 1), and whether their labels are known."""
    if few is None:
        return (u * num).long().clamp(max=num - 1), torch.ones_like(u, dtype=torch.bool)
    known, few = u < 0.5, few.to(u.device)
    among = few[(2 * u * len(few)).long().clamp(max=len(few) - 1)]
    return torch.where(known, among, ((2 * u - 1) * num).long().clamp(0, num - 1)), known


Drawn = Callable[[Noise, Tensor | None], tuple[Tensor, Tensor, Tensor]]


def labels_of_rows(drawn: Drawn, held_out: Callable[[Noise], Tensor], labels: RowLabels) -> Labels:
    """Rows with their labels.

    Args:
        drawn: (noise, few) -> data, their rows and whether their labels are known, by :func:`rows_at`.
        held_out: noise -> the first held-out rows.
        labels: Of all rows.
    """
    train, test = (torch.from_numpy(np.asarray(values, np.int64)) for values in (labels.train, labels.test))

    def sample(noise: Noise, few: Tensor | None = None) -> tuple[Tensor, Tensor]:
        x, index, known = drawn(noise, few)
        return x, torch.where(known, train.to(index.device)[index], -1)

    def first(noise: Noise) -> tuple[Tensor, Tensor]:
        x = held_out(noise)
        return x, test[: len(x)].to(x.device)

    return Labels(labels.classes, sample, first, labels.train)

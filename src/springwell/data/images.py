r"""Images as training data: bytes on disk or in memory, numbers in [-1, 1] for the network.

A byte b becomes

    x = b / 127.5 - 1,                          so 0 -> -1 and 255 -> 1;

dequantised, with u uniform in (0, 1) for every pixel,

    x = (b + u - 1/2) / 127.5 - 1,

uniform in a cell of width 1 / 127.5 around the same value. The density of a dequantised image of D numbers in these
coordinates is 127.5^D times that of its grey values, which is the D log 127.5 of a likelihood in bits per dimension.

A training batch is drawn uniformly with replacement. The row, the flip and the dequantisation of a sample follow from its
noise alone.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from springwell.config import ImageConfig
from springwell.data import formats
from springwell.data.formats import Arrays, UnusableDataError
from springwell.data.source import DataSource
from springwell.errors import UserError
from springwell.noise import Noise
from springwell.progress import Reporter, Silent

_MNIST = ("MNIST/raw", "mnist", ".")
_FASHION = ("FashionMNIST/raw", "fashion-mnist", "fashion")


def data_root(images: ImageConfig) -> Path:
    """Where data sets are looked for."""
    return Path(images.data_root or os.environ.get("SPRINGWELL_DATA") or "~/data").expanduser()


def open_images(spec: str, images: ImageConfig | None = None, reporter: Reporter | None = None) -> DataSource | None:
    """The image set that ``--data spec`` names; None if it names none.

    Args:
        spec: The name, or KIND:PATH.
        images: How to read it. Default: as published, not augmented.
        reporter: Is told of long work.
    """
    images = images or ImageConfig()
    try:
        arrays = _read(spec, images, reporter or Silent())
    except UnusableDataError as error:
        raise UserError(f"--data {spec}: {error}") from None
    return None if arrays is None else image_source(arrays, images)


def _read(spec: str, images: ImageConfig, reporter: Reporter) -> Arrays | None:
    root = data_root(images)
    if spec == "digits":
        return formats.digits()
    if spec == "mnist":
        return formats.idx(root, _MNIST, "get it from yann.lecun.com/exdb/mnist or by torchvision.datasets.MNIST")
    if spec == "fashion-mnist":
        return formats.idx(root, _FASHION, "get it from github.com/zalandoresearch/fashion-mnist")
    if spec == "cifar10":
        return formats.cifar10(root)
    return None


def image_source(arrays: Arrays, images: ImageConfig) -> DataSource:
    """Batches of the rows of ``arrays``."""
    event_shape = tuple(arrays.train.shape[1:])
    test = _Rows(arrays.test)
    return DataSource(
        event_shape=event_shape,
        sample=_Batches(arrays.train, images.flip, images.dequantise),
        held_out=lambda noise: _scaled(test(torch.arange(min(len(noise), len(arrays.test)), device=noise.device))),
        shift=torch.zeros(event_shape),
        scale=torch.ones(event_shape),
        num_held_out=len(arrays.test),
    )


def _scaled(images: Tensor) -> Tensor:
    return images.float() / 127.5 - 1


class _Batches:
    """Draws training batches ``[N, C, H, W]``."""

    def __init__(self, rows: np.ndarray, flip: bool, dequantise: bool):
        self.rows, self.flip, self.dequantise = _Rows(rows), flip, dequantise

    def __call__(self, noise: Noise) -> Tensor:
        images = self.rows((noise.uniform().double() * len(self.rows)).long())
        if self.flip:
            mirrored = noise.uniform() < 0.5
            images = torch.where(mirrored.view(-1, 1, 1, 1), images.flip(-1), images)
        if self.dequantise:
            return _scaled(images.float() + noise.uniform(*images.shape[1:]) - 0.5)
        return _scaled(images)


class _Rows:
    """Rows by index, kept on the device that asks for them if they take less than a quarter of its free memory."""

    def __init__(self, rows: np.ndarray):
        self.rows = rows
        self._resident: dict[torch.device, Tensor | None] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.rows)

    def __call__(self, index: Tensor) -> Tensor:
        device = index.device
        if device.type == "cpu":
            return torch.from_numpy(self.rows[index.numpy()])
        with self._lock:
            if device not in self._resident:
                fits = self.rows.nbytes < _free_memory(device) / 4
                self._resident[device] = torch.from_numpy(np.array(self.rows)).to(device) if fits else None
        resident = self._resident[device]
        return torch.from_numpy(self.rows[index.cpu().numpy()]).to(device) if resident is None else resident[index]


def _free_memory(device: torch.device) -> int:
    """Bytes; 0 where the backend does not tell."""
    query = getattr(getattr(torch, device.type, None), "mem_get_info", None)
    return 0 if query is None else int(query(device)[0])

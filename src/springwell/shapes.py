"""What every module needs of batches of samples of any shape ``[N, ...]``."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def as_tensor(x: Tensor | np.ndarray) -> Tensor:
    """A tensor as it is, or a copy of an array, whose byte order and strides may be ones that torch does not take."""
    return x if isinstance(x, Tensor) else torch.from_numpy(np.array(x, x.dtype.newbyteorder("="), order="C"))


def expand(values: Tensor, x: Tensor) -> Tensor:
    """Gives one value per sample, ``[N]``, a shape that broadcasts over samples ``[N, ...]``; numbers take the type of x."""
    values = values.to(x.dtype) if values.is_floating_point() else values
    return values.view(-1, *[1] * (x.ndim - 1))


def inner(u: Tensor, v: Tensor) -> Tensor:
    """Inner product of each sample's values, ``[N]``."""
    return torch.linalg.vecdot(u.flatten(1), v.flatten(1))

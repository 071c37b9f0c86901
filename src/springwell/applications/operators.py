r"""What measures an image: averaging over blocks, blurring by a kernel. Both are linear and act on each channel.

superres   A x = means over s x s blocks
deblur     A x = k * x, the image mirrored at its border; k sums to 1
"""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from springwell.data.formats import first_line
from springwell.errors import UserError


def average_pool(factor: int) -> Callable[[Tensor], Tensor]:
    """Means over blocks of ``factor`` x ``factor`` pixels."""
    return lambda x: F.avg_pool2d(x, factor)


def gaussian_kernel(width: float) -> Tensor:
    """A Gaussian of standard deviation ``width`` pixels, cut off at three of them, ``[k, k]``, k odd."""
    radius = max(1, math.ceil(3 * width))
    line = torch.exp(-0.5 * (torch.arange(-radius, radius + 1, dtype=torch.float64) / width) ** 2)
    line = line / line.sum()
    return torch.outer(line, line)


def box_kernel(size: int) -> Tensor:
    """A square of ``size`` x ``size`` pixels, ``size`` odd."""
    return torch.full((size, size), size**-2.0, dtype=torch.float64)


def blur(kernel: Tensor) -> Callable[[Tensor], Tensor]:
    """Convolution by ``kernel`` ``[h, w]``, both odd; the image is mirrored at its border."""
    height, width = kernel.shape
    if height % 2 == 0 or width % 2 == 0:
        raise UserError(f"kernel: is {width} x {height}; both sides must be odd, so that it has a centre")

    def operator(x: Tensor) -> Tensor:
        channels, weight = x.shape[1], kernel.to(x)
        rows, columns = (mirrored(x.shape[2 + i], side // 2, x.device) for i, side in enumerate((height, width)))
        padded = x.index_select(2, rows).index_select(3, columns)
        return F.conv2d(padded, weight.expand(channels, 1, height, width), groups=channels)

    return operator


def mirrored(size: int, border: int, device: torch.device) -> Tensor:
    """Which pixel of a line of ``size`` stands at -border ... size - 1 + border when the line is mirrored at both ends."""
    position = torch.arange(-border, size + border, device=device) % (2 * size)
    return torch.where(position < size, position, 2 * size - 1 - position)


def median_filter(x: Tensor) -> Tensor:
    """The median of the 3 x 3 pixels around each, the image mirrored at its border ``[N, C, H, W]``."""
    rows, columns = (mirrored(side, 1, x.device) for side in x.shape[2:])
    padded = x.index_select(2, rows).index_select(3, columns)
    return padded.unfold(2, 3, 1).unfold(3, 3, 1).flatten(-2).median(-1).values


def enlarged(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Images ``[N, 1 or C, H, W]`` at the size of ``shape`` (C, H, W), each pixel a block."""
    x = x if x.shape[2:] == shape[1:] else F.interpolate(x, size=shape[1:], mode="nearest")
    return x.expand(-1, shape[0], -1, -1)


def checked(operator: Callable[[Tensor], Tensor], name: str = "operator") -> Callable[[Tensor], Tensor]:
    """The operator, whose failures name it and the batch in one line."""

    def measured(x: Tensor) -> Tensor:
        with _named(f"{name}: fails on a batch of {len(x)}"):
            y = operator(x)
        if not isinstance(y, Tensor) or not y.is_floating_point() or y.ndim == 0 or len(y) != len(x):
            what = f"{y.dtype} of shape {list(y.shape)}" if isinstance(y, Tensor) else type(y).__name__
            raise UserError(f"{name}: makes {what} of {list(x.shape)}; needs a tensor of floats with a row for each sample")
        return y

    return measured


def load_function(text: str) -> Callable[[Tensor], Tensor]:
    """The function that FILE.py:FUNCTION names, checked; the file is executed."""
    path, _, name = text.rpartition(":")
    module_name = "_springwell_operator"
    spec = importlib.util.spec_from_file_location(module_name, path) if path.endswith(".py") else None
    if spec is None or spec.loader is None or not Path(path).is_file():
        raise UserError(f"operator={text!r}: no such file; write FILE.py:FUNCTION")
    # Dataclasses look up their own module by its name.
    module = sys.modules[module_name] = importlib.util.module_from_spec(spec)
    with _named(f"operator={text!r}: the file fails"):
        spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        raise UserError(f"operator={text!r}: {path} has no function '{name}'")
    return checked(function, f"operator={text!r}")


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Turns whatever foreign code raises into one line; even an exit."""
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"{what} ({type(error).__name__}: {first_line(error)})") from None

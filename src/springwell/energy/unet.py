r"""A U-Net whose product with its input is an energy.

    e    = silu(W_1 silu(W_0 [sin, cos](t)))                                   time embedding
    block(h) = shortcut(h) + conv(silu(conv(silu(h)) + W e))                   second convolution starts at 0
    down:  N blocks a level, 2x2 average pooling between levels
    lowest level, if asked for: h + D_1 silu(D_0 silu(h) + W e)                D over all positions, D_1 starts at 0
    up:    enlarge, join what left the level on the way down, N blocks;        U = conv(silu(h)), starts at 0
    net  = <y, c tanh(U / c)> + sum over pixels of silu(h_lowest) . W_f e,     c = 8, W_f starts at 0

The log-density of data x with noise of variance sigma^2 is (phi(y) - |y|^2 / 2) / sigma^2 + const with

    phi(y) = sigma^2 log E exp((<y, x> - |x|^2 / 2) / sigma^2),        grad phi(y) = E[x | y],

and where one image x accounts for y, phi = <y, E[x | y]> - |x|^2 / 2 + const: an inner product with what a denoising U-Net
computes, and a weight of that image, which does not change with y and which U and the sum over pixels have to learn. The tanh
keeps net below a multiple of |y|, so that the base term makes f integrable.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from springwell.energy.image import ImageEnergy
from springwell.energy.mlp import sinusoidal

BOUND = 8.0


class UNetBlock(nn.Module):
    """One residual block."""

    def __init__(self, num_in: int, num_out: int, num_time: int):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(num_in, num_out, 3, padding=1), nn.Conv2d(num_out, num_out, 3, padding=1)
        self.time = nn.Linear(num_time, num_out)
        self.shortcut = nn.Conv2d(num_in, num_out, 1) if num_in != num_out else nn.Identity()
        nn.init.zeros_(self.conv2.weight)

    def forward(self, h: Tensor, time: Tensor) -> Tensor:
        """time: ``self.time`` of the embedding, ``[N, num_out]``."""
        r = self.conv1(F.silu(h)) + time[:, :, None, None]
        out: Tensor = self.shortcut(h) + self.conv2(F.silu(r))
        return out


class DenseMap(nn.Module):
    """From every position of a level to every other, through ``num_units`` numbers: it knows the whole of an image where a few
    convolutions see a part."""

    reduced = 32

    def __init__(self, num_channels: int, num_positions: int, num_units: int, num_time: int):
        super().__init__()
        self.reduce, self.restore = nn.Conv2d(num_channels, self.reduced, 1), nn.Conv2d(self.reduced, num_channels, 1)
        self.dense0 = nn.Linear(self.reduced * num_positions, num_units)
        self.dense1 = nn.Linear(num_units, self.reduced * num_positions)
        self.time = nn.Linear(num_time, num_units)
        nn.init.zeros_(self.restore.weight)

    def forward(self, h: Tensor, time: Tensor) -> Tensor:
        """time: ``self.time`` of the embedding, ``[N, num_units]``."""
        r = self.reduce(F.silu(h))
        v = self.dense1(F.silu(self.dense0(r.flatten(1)) + time))
        out: Tensor = h + self.restore(v.view(r.shape))
        return out


class _Prepared(NamedTuple):
    """What depends on t: each block's part, down and up, the dense map's, and the weights of the sum over pixels."""

    down: list[list[Tensor]]
    dense: Tensor | None
    up: list[list[Tensor]]
    head: Tensor


class EnergyUNet(ImageEnergy):
    """Maps images y ``[N, C, H, W]`` and levels t ``[N]`` to ``[N]``.

    Args:
        channels: C.
        width: Channels of the first level.
        multipliers: Channels of each level, as multiples of ``width``.
        num_blocks: Residual blocks per level, N, on the way down and on the way up.
        unshuffle: Side of the pixel blocks that are folded into channels first.
        dense_units: Of a dense map over the lowest level; 0 for none, and then the network takes images of any size.
        image_size: Height and width, which a dense map has to know.

    Examples:
        >>> from springwell.energy import EnergyUNet
        >>> network = EnergyUNet(channels=1, width=8, multipliers=(1, 2), num_blocks=1)
        >>> network(torch.zeros(3, 1, 8, 8), torch.tensor([0, 1, 5])).shape
        torch.Size([3])
    """

    def __init__(
        self,
        channels: int = 3,
        width: int = 128,
        multipliers: Sequence[int] = (1, 2, 2, 2),
        num_blocks: int = 2,
        unshuffle: int = 1,
        dense_units: int = 0,
        image_size: tuple[int, int] = (32, 32),
    ):
        super().__init__(len(multipliers) - 1, unshuffle)
        self.width = width
        num_time = 2 * width
        widths = [width * multiplier for multiplier in multipliers]
        self.dense0, self.dense1 = nn.Linear(width, num_time), nn.Linear(num_time, num_time)
        self.conv_in = nn.Conv2d(channels * unshuffle**2, width, 3, padding=1)

        def blocks(num_in: int, num_out: int) -> nn.ModuleList:
            sizes = [num_in] + [num_out] * (num_blocks - 1)
            return nn.ModuleList(UNetBlock(size, num_out, num_time) for size in sizes)

        self.down = nn.ModuleList(blocks(a, b) for a, b in pairwise([width, *widths]))
        self.up = nn.ModuleList(blocks(lower + upper, upper) for lower, upper in pairwise(reversed(widths)))
        self.conv_out = nn.Conv2d(widths[0], channels * unshuffle**2, 3, padding=1)
        self.head = nn.Linear(num_time, widths[-1])
        factor = unshuffle * 2**self.num_halvings
        num_positions = (image_size[0] // factor) * (image_size[1] // factor)
        self.dense = DenseMap(widths[-1], num_positions, dense_units, num_time) if dense_units else None
        for layer in (self.conv_out, self.head):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(cast("Tensor", layer.bias))

    def _prepare(self, t: Tensor) -> _Prepared:
        with self._casting(t, enabled=False):
            e = F.silu(self.dense1(F.silu(self.dense0(sinusoidal(t, self.width, self.dense0.weight.dtype)))))
            down, up = ([[block.time(e) for block in level] for level in _levels(part)] for part in (self.down, self.up))
            return _Prepared(down, None if self.dense is None else self.dense.time(e), up, self.head(e))

    def _evaluate(self, y: Tensor, prepared: _Prepared) -> Tensor:
        with self._casting(y):
            h = F.pixel_unshuffle(y, self.unshuffle) if self.unshuffle > 1 else y
            h = self.conv_in(h.contiguous(memory_format=torch.channels_last))
            passed: list[Tensor] = []
            for i, (level, times) in enumerate(zip(_levels(self.down), prepared.down, strict=True)):
                h = F.avg_pool2d(h, 2) if i else h
                for block, time in zip(level, times, strict=True):
                    h = block(h, time)
                passed.append(h)
            h = lowest = passed.pop() if self.dense is None else self.dense(passed.pop(), prepared.dense)
            for level, times in zip(_levels(self.up), prepared.up, strict=True):
                h = torch.cat([F.interpolate(h, scale_factor=2.0), passed.pop()], 1)
                for block, time in zip(level, times, strict=True):
                    h = block(h, time)
            u = self.conv_out(F.silu(h))
            u = F.pixel_shuffle(u, self.unshuffle) if self.unshuffle > 1 else u
        product = (y * BOUND * torch.tanh(u.to(y.dtype) / BOUND)).sum((1, 2, 3))
        return product + (F.silu(lowest.to(y.dtype)).sum((2, 3)) * prepared.head).sum(-1)


def _levels(part: nn.ModuleList) -> list[list[UNetBlock]]:
    return cast("list[list[UNetBlock]]", part)

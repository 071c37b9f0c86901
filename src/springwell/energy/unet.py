r"""A U-Net whose product with its input is an energy.

    net  = <y, c tanh(U(y, t) / c)> + (the ResNet's sum over pixels),        c = 4

The way down of U is the ResNet; the way up mirrors it: enlarge, join what left the level on the way down, N blocks.

The log-density of data x with noise of variance sigma^2 is (phi(y) - |y|^2 / 2) / sigma^2 + const with

    phi(y) = sigma^2 log E exp((<y, x> - |x|^2 / 2) / sigma^2),        grad phi(y) = E[x | y],

and phi is nearly <y, E[x | y]> where one image accounts for y: an inner product with what a denoising U-Net computes. The tanh
keeps net below a multiple of |y|, so that the base term makes f integrable. The last layers start at 0, and f at the base term.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from springwell.energy.resnet import EnergyResNet, ResBlock, SpectralLayer, Weights

_BOUND = 4.0


class EnergyUNet(EnergyResNet):
    """Maps images y ``[N, C, H, W]`` and levels t ``[N]`` to ``[N]``; takes what :class:`EnergyResNet` takes."""

    def __init__(
        self,
        channels: int = 3,
        width: int = 128,
        multipliers: Sequence[int] = (1, 2, 2, 2),
        num_blocks: int = 2,
        unshuffle: int = 1,
        spectral_norm: bool = True,
    ):
        super().__init__(channels, width, multipliers, num_blocks, unshuffle, spectral_norm)
        self.ups = nn.ModuleList()
        for lower, multiplier in pairwise(reversed(multipliers)):
            num_out = width * multiplier
            sizes = [width * lower + num_out] + [num_out] * (num_blocks - 1)
            blocks = [ResBlock(size, num_out, 4 * width, spectral_norm, shortcut=1) for size in sizes]
            self.ups.append(nn.ModuleList(blocks))
        self.conv_out = SpectralLayer(channels * unshuffle**2, width * multipliers[0], 3, 3, spectral=False)
        nn.init.zeros_(self.conv_out.weight)
        nn.init.zeros_(self.dense_final.weight)

    def _weights(self, e: Tensor) -> Weights:
        ups = [[block.prepare(e) for block in level] for level in cast("list[list[ResBlock]]", self.ups)]
        return super()._weights(e)._replace(ups=ups, conv_out=self.conv_out.normalised())

    def _activate(self, h: Tensor, inplace: bool = False) -> Tensor:
        return F.silu(h)

    def _evaluate(self, y: Tensor, weights: Weights) -> Tensor:
        with self._casting(y):
            *passed, lowest = self._levels(y, weights)
            h = lowest
            for skip, level in zip(reversed(passed), weights.ups, strict=True):
                h = torch.cat([F.interpolate(h, scale_factor=2.0), skip], 1)
                for block in level:
                    h = self._block(h, block)
            weight, bias = weights.conv_out
            h = F.conv2d(self._activate(h), weight, bias, padding=1)
            u = F.pixel_shuffle(h, self.unshuffle) if self.unshuffle > 1 else h
        product = (y * _BOUND * torch.tanh(u.float() / _BOUND)).sum((1, 2, 3))
        return product + self._pooled(lowest, weights)

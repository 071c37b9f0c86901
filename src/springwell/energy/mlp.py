r"""A network for vectors that can represent sharp edges.

    h_0 = silu(W_in sin(Omega y + phi) + e_0(t))
    h_i = h_{i-1} + silu(W_i h_{i-1} + e_i(t))
    net = w . h

with fixed random frequencies Omega of several bandwidths and phases phi (Rahimi and Recht 2007; Tancik et al. 2020) and e(t) a
linear map of a sinusoidal embedding of the level.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def sinusoidal(t: Tensor, width: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """[sin, cos] of the raw level t at ``width // 2`` frequencies from 1 down to 1/10000 (App. B)."""
    half = width // 2
    frequency = torch.exp(-math.log(10000) / (half - 1) * torch.arange(half, device=t.device, dtype=dtype))
    phase = t.to(dtype)[:, None] * frequency
    return torch.cat([phase.sin(), phase.cos()], -1)


class FourierMLP(nn.Module):
    """Fourier features and a residual multilayer perceptron.

    Args:
        dim: Dimension of y.
        num_levels: T.
        width: Hidden units.
        depth: Hidden layers.
        num_features: Number of random frequencies, each with a random phase.
        bandwidths: Standard deviations of the frequencies, in equal shares.
    """

    frequencies: Tensor
    phases: Tensor
    embedding: Tensor

    def __init__(
        self,
        dim: int,
        num_levels: int,
        width: int = 128,
        depth: int = 2,
        num_features: int = 64,
        bandwidths: Sequence[float] = (1.5, 5.0),
    ):
        super().__init__()
        bandwidth = torch.tensor([bandwidths[i % len(bandwidths)] for i in range(num_features)])
        self.register_buffer("frequencies", torch.randn(num_features, dim) * bandwidth[:, None])
        self.register_buffer("phases", 2 * math.pi * torch.rand(num_features))
        self.register_buffer("embedding", sinusoidal(torch.arange(num_levels), 64), persistent=False)
        self.time = nn.Linear(64, width * depth)
        self.layers = nn.ModuleList(nn.Linear(num_features if i == 0 else width, width) for i in range(depth))
        self.out = nn.Linear(width, 1, bias=False)
        # A flat start: f is the base term alone, whose conditionals every chain can sample.
        nn.init.zeros_(self.out.weight)

    def _levels(self, t: Tensor) -> Sequence[Tensor]:
        table = self.time(self.embedding)
        return F.embedding(t, table).chunk(len(self.layers), -1)

    def _evaluate(self, y: Tensor, levels: Sequence[Tensor], weights: Sequence[tuple[Tensor, Tensor]], out: Tensor) -> Tensor:
        features = torch.sin(F.linear(y, self.frequencies, self.phases))
        h = F.silu(F.linear(features, *weights[0]) + levels[0])
        for (weight, bias), e in zip(weights[1:], levels[1:], strict=True):
            h = h + F.silu(F.linear(h, weight, bias) + e)
        return F.linear(h, out)[:, 0]

    def _weights(self) -> list[tuple[Tensor, Tensor]]:
        return [(layer.weight, layer.bias) for layer in self.layers if isinstance(layer, nn.Linear)]

    def forward(self, y: Tensor, t: Tensor) -> Tensor:
        return self._evaluate(y, self._levels(t), self._weights(), self.out.weight)

    def at(self, t: Tensor) -> Callable[[Tensor], Tensor]:
        """y -> net(y, t) with the level's part computed once and without gradients of the weights."""
        with torch.no_grad():
            levels = self._levels(t)
        weights, out = [(weight.detach(), bias.detach()) for weight, bias in self._weights()], self.out.weight.detach()
        return lambda y: self._evaluate(y, levels, weights, out)

r"""A network for vectors that can represent sharp edges.

    h_0 = silu(W_in sin(Omega y + phi) + e_0(t))
    h_i = h_{i-1} + silu(W_i h_{i-1} + e_i(t))
    net = w . h

with fixed random frequencies Omega of several bandwidths and phases phi (Rahimi and Recht 2007; Tancik et al. 2020) and e(t) a
linear map of a sinusoidal embedding of the level.

Chains need the gradient with respect to y, thousands of times at the same weights. It is written out here, since building a
graph for it costs more than the products at small batches:

    g_d = w,    g_{i-1} = g_i + W_i' (silu'(W_i h_{i-1} + e_i) g_i)
    grad net = Omega' (cos(Omega y + phi) W_in' (silu'(W_in sin(Omega y + phi) + e_0) g_0))
"""

from __future__ import annotations

import math
from collections.abc import Sequence

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

    Examples:
        >>> from springwell.energy import FourierMLP
        >>> FourierMLP(dim=2, num_levels=4)(torch.zeros(3, 2), torch.tensor([0, 1, 3])).shape
        torch.Size([3])
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

    def at(self, t: Tensor) -> HeldMLP:
        """y -> net(y, t) with the level's part computed once and without gradients of the weights."""
        with torch.no_grad():
            return HeldMLP(self, self._levels(t))


class HeldMLP:
    """y -> net(y, t) of a FourierMLP at fixed levels and weights, with its gradient in closed form.

    Args:
        network: The network.
        levels: e_i of every layer, ``[N, width]`` each.
    """

    def __init__(self, network: FourierMLP, levels: Sequence[Tensor]):
        self.network, self.levels = network, levels
        self.weights = [(weight.detach(), bias.detach()) for weight, bias in network._weights()]
        self.out = network.out.weight.detach()

    def __call__(self, y: Tensor) -> Tensor:
        return self.network._evaluate(y, self.levels, self.weights, self.out)

    @torch.no_grad()
    def value_and_grad(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """net ``[N]`` and its gradient ``[N, D]``, detached."""
        phase = F.linear(y, self.network.frequencies, self.network.phases)
        before = F.linear(phase.sin(), *self.weights[0]) + self.levels[0]
        h, inputs = F.silu(before), [before]
        for (weight, bias), e in zip(self.weights[1:], self.levels[1:], strict=True):
            before = F.linear(h, weight, bias) + e
            h = h + F.silu(before)
            inputs.append(before)
        g = self.out.expand(len(y), -1)
        for (weight, _), before in zip(self.weights[:0:-1], inputs[:0:-1], strict=True):
            g = g + torch.ops.aten.silu_backward(g, before) @ weight
        g = torch.ops.aten.silu_backward(g, inputs[0]) @ self.weights[0][0]
        return F.linear(h, self.out)[:, 0], (g * phase.cos()) @ self.network.frequencies

    def grad(self, y: Tensor) -> Tensor:
        """The gradient ``[N, D]`` alone, detached."""
        return self.value_and_grad(y)[1]

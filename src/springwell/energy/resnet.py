r"""The paper's network for images (Gao et al. 2021, App. B): a wide ResNet without normalisation.

    e    = W_1 lrelu(W_0 [sin, cos](t))                                        time embedding
    h    = conv(y)
    each level, N blocks:   h <- shortcut(h) + g (conv(lrelu(conv(lrelu(h)) + W lrelu(e))) + b)
    between levels:         2x2 average pooling
    net  = sum over pixels of relu(h)  .  W_f lrelu(e)

with leaky slope 0.2, a learned factor g per channel, and a 3x3 convolution as shortcut where widths differ. Every weight but
W_f has its spectral norm sigma divided out; that of the second convolution of a block, whose weights start near zero, is only
bounded: W min(sigma, 1) / sigma with sigma + 1e-6 for sigma. The singular vectors follow the weights by one power iteration
per optimiser step (:meth:`EnergyResNet.follow_weights`), and are exact in evaluation mode.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from springwell.energy.image import ImageEnergy
from springwell.energy.mlp import sinusoidal
from springwell.errors import UserError

SLOPE = 0.2
_TINY = 1e-6


class SpectralLayer(nn.Module):
    """The weights of one layer; what is used is :meth:`normalised`.

    Args:
        shape: The shape of the weight: [out, in] or [out, in, 3, 3].
        bound_only: Whether weights start near zero, get a learned factor per output, and their norm is bounded by 1 but not
            divided out.
        spectral: Whether the spectral norm is controlled at all.
    """

    u: Tensor

    def __init__(self, *shape: int, bound_only: bool = False, spectral: bool = True):
        super().__init__()
        self.bound_only, self.spectral = bound_only, spectral
        self.weight, self.bias = nn.Parameter(torch.empty(shape)), nn.Parameter(torch.zeros(shape[0]))
        nn.init.xavier_uniform_(self.weight, gain=1e-5 if bound_only else 1.0)
        if bound_only:
            self.gain = nn.Parameter(torch.ones(shape[0]))
        if spectral:
            self.register_buffer("u", F.normalize(torch.randn(shape[0]), dim=0))

    @torch.no_grad()
    def power_iteration(self) -> None:
        matrix = self.weight.flatten(1)
        self.u.copy_(F.normalize(matrix @ F.normalize(matrix.T @ self.u, dim=0), dim=0))

    @torch.no_grad()
    def exact_vector(self) -> None:
        matrix = self.weight.flatten(1).double()
        self.u.copy_(torch.linalg.eigh(matrix @ matrix.T).eigenvectors[:, -1])

    def normalised(self) -> tuple[Tensor, Tensor]:
        """Weight and bias after normalisation, with the factor per output multiplied in."""
        weight: Tensor = self.weight
        bias: Tensor = self.bias
        if self.spectral:
            matrix = weight.flatten(1)
            v = F.normalize(matrix.detach().T @ self.u, dim=0)
            sigma = self.u @ (matrix @ v)
            weight = weight / (sigma + _TINY).clamp(min=1) if self.bound_only else weight / sigma
        if self.bound_only:
            weight, bias = weight * self.gain.view(-1, *[1] * (weight.ndim - 1)), bias * self.gain
        return weight, bias


class _Block(NamedTuple):
    """Normalised weights of a block; the first convolution's bias is part of ``time``."""

    conv1: Tensor
    time: Tensor
    conv2: tuple[Tensor, Tensor]
    shortcut: tuple[Tensor, Tensor] | None


class _Weights(NamedTuple):
    """Everything that depends on the weights and t alone."""

    conv_in: tuple[Tensor, Tensor]
    levels: list[list[_Block]]
    head: Tensor


class ResBlock(nn.Module):
    """The layers of one residual block."""

    def __init__(self, num_in: int, num_out: int, num_time: int, spectral: bool):
        super().__init__()
        self.conv1 = SpectralLayer(num_out, num_in, 3, 3, spectral=spectral)
        self.conv2 = SpectralLayer(num_out, num_out, 3, 3, bound_only=True, spectral=spectral)
        self.temb_proj = SpectralLayer(num_out, num_time, spectral=spectral)
        self.shortcut = SpectralLayer(num_out, num_in, 3, 3, spectral=spectral) if num_in != num_out else None

    def prepare(self, e: Tensor) -> _Block:
        """e: lrelu of the time embedding ``[N, num_time]``."""
        conv1, bias = self.conv1.normalised()
        time = F.linear(e, *self.temb_proj.normalised()) + bias
        shortcut = None if self.shortcut is None else self.shortcut.normalised()
        return _Block(conv1, time[:, :, None, None], self.conv2.normalised(), shortcut)


class EnergyResNet(ImageEnergy):
    """Maps images y ``[N, C, H, W]`` and levels t ``[N]`` to ``[N]``.

    Args:
        channels: C.
        width: Channels of the first level.
        multipliers: Channels of each level, as multiples of ``width``.
        num_blocks: Residual blocks per level, N.
        unshuffle: Side of the pixel blocks that are folded into channels first.
        spectral_norm: Whether spectral norms are controlled.

    Examples:
        >>> from springwell.energy import EnergyResNet
        >>> network = EnergyResNet(channels=1, width=8, multipliers=(1, 2), num_blocks=1)
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
        spectral_norm: bool = True,
    ):
        super().__init__(len(multipliers) - 1, unshuffle)
        self.width = width
        num_time = 4 * width
        self.dense0 = SpectralLayer(num_time, width, spectral=spectral_norm)
        self.dense1 = SpectralLayer(num_time, num_time, spectral=spectral_norm)
        self.conv_in = SpectralLayer(width, channels * unshuffle**2, 3, 3, spectral=spectral_norm)
        self.levels = nn.ModuleList()
        num_in = width
        for multiplier in multipliers:
            num_out = width * multiplier
            sizes = [num_in] + [num_out] * (num_blocks - 1)
            self.levels.append(nn.ModuleList(ResBlock(size, num_out, num_time, spectral_norm) for size in sizes))
            num_in = num_out
        self.dense_final = SpectralLayer(num_in, num_time, spectral=False)

    def _spectral_layers(self) -> Iterator[SpectralLayer]:
        return (layer for layer in self.modules() if isinstance(layer, SpectralLayer) and layer.spectral)

    def follow_weights(self) -> None:
        """One power iteration of every spectral norm: to be called once after each optimiser step."""
        for layer in self._spectral_layers():
            layer.power_iteration()

    def train(self, mode: bool = True) -> EnergyResNet:
        """Evaluation mode makes the singular vectors exact: those of a moving average would otherwise be stale."""
        if not mode:
            for layer in self._spectral_layers():
                layer.exact_vector()
        return super().train(mode)

    def _prepare(self, t: Tensor) -> _Weights:
        with self._casting(t, enabled=False):
            weight, bias = self.dense0.normalised()
            e = F.linear(sinusoidal(t, self.width, weight.dtype), weight, bias)
            e = F.leaky_relu(F.linear(F.leaky_relu(e, SLOPE), *self.dense1.normalised()), SLOPE)
            levels = [[block.prepare(e) for block in level] for level in cast("list[list[ResBlock]]", self.levels)]
            return _Weights(self.conv_in.normalised(), levels, F.linear(e, *self.dense_final.normalised()))

    def _evaluate(self, y: Tensor, prepared: _Weights) -> Tensor:
        with self._casting(y):
            h = F.pixel_unshuffle(y, self.unshuffle) if self.unshuffle > 1 else y
            h = F.conv2d(h.contiguous(memory_format=torch.channels_last), *prepared.conv_in, padding=1)
            for i, level in enumerate(prepared.levels):
                if i:
                    h = F.avg_pool2d(h, 2)
                for block in level:
                    r = F.conv2d(F.leaky_relu(h, SLOPE), block.conv1, padding=1) + block.time
                    r = F.conv2d(F.leaky_relu_(r, SLOPE), *block.conv2, padding=1)
                    h = r + (h if block.shortcut is None else F.conv2d(h, *block.shortcut, padding=1))
        return (F.relu(h.to(y.dtype)).sum((2, 3)) * prepared.head).sum(-1)

    @classmethod
    def from_official(cls, arrays: Mapping[str, Any]) -> EnergyResNet:
        """The network with the weights of the authors' release.

        Args:
            arrays: numpy arrays in TensorFlow's layout (HWIO, [in, out]) named ``conv_in.W``, ``temb.dense0.W``,
                ``temb.dense1.W``, ``temb.dense_final.W`` and ``level{i}.block{j}.{conv1,conv2,temb_proj,shortcut}.W``, each
                with ``.b``, ``.g`` (factor per channel of conv2) and ``.sn_u``. Width, multipliers and N follow from them.
        """
        shapes = {name: tuple(array.shape) for name, array in arrays.items()}
        if len(shapes.get("conv_in.W", ())) != 4:
            raise UserError("official weights: 'conv_in.W' [3, 3, in, out] is missing; they are not of the authors' network")
        *_, channels, width = shapes["conv_in.W"]
        multipliers: list[int] = []
        while (name := f"level{len(multipliers)}.block0.conv1.W") in shapes:
            multipliers.append(shapes[name][-1] // width)
        num_blocks = 0
        while f"level0.block{num_blocks}.conv1.W" in shapes:
            num_blocks += 1
        if not multipliers or not num_blocks:
            raise UserError("official weights: 'level0.block0.conv1.W' is missing; they are not of the authors' network")
        network = cls(channels, width, multipliers, num_blocks)
        state = {}
        for name in network.state_dict():
            source = _official_name(name)
            if source not in arrays:
                found_blocks = f"{len(multipliers)} levels of {num_blocks} blocks"
                raise UserError(f"official weights: '{source}' is missing; found {found_blocks}")
            value = torch.as_tensor(arrays[source], dtype=torch.float32)
            if source.endswith(".W"):
                value = value.permute(3, 2, 0, 1) if value.ndim == 4 else value.T
            state[name] = value.flatten() if source.endswith(".sn_u") else value.contiguous()
            if state[name].shape != network.state_dict()[name].shape:
                found, wanted = list(state[name].shape), list(network.state_dict()[name].shape)
                raise UserError(f"official weights: '{source}' is {found} in torch's layout, expected {wanted}")
        network.load_state_dict(state)
        return network


def _official_name(name: str) -> str:
    """levels.0.1.conv2.gain -> level0.block1.conv2.g, dense0.weight -> temb.dense0.W."""
    *path, kind = name.split(".")
    kind = {"weight": "W", "bias": "b", "gain": "g", "u": "sn_u"}[kind]
    if path[0] == "levels":
        return f"level{path[1]}.block{path[2]}.{path[3]}.{kind}"
    prefix = "temb." if path[0].startswith("dense") else ""
    return f"{prefix}{path[0]}.{kind}"

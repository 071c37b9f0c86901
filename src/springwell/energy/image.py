"""What the networks for images share: sizes, precision, and a part that depends on the level alone, prepared once per chain."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from springwell.errors import UserError


def check_size(height: int, width: int, num_halvings: int, unshuffle: int) -> None:
    """Raises UserError for an image size that cannot be folded and pooled down to the last level."""
    factor = unshuffle * 2**num_halvings
    if height % factor or width % factor:
        raise UserError(
            f"images of {height}x{width}: height and width must be multiples of {factor} (unshuffle={unshuffle}, halvings: "
            f"{num_halvings}); resize or pad them, with image_size={max(factor, round(height / factor) * factor)} if they are "
            "files, or use fewer multipliers"
        )


class ImageEnergy(nn.Module, ABC):
    """Maps images y ``[N, C, H, W]`` and levels t ``[N]`` to ``[N]``.

    Args:
        num_halvings: How often images are halved.
        unshuffle: Side of the pixel blocks that are folded into channels first.

    Examples:
        >>> from springwell.energy import EnergyUNet, ImageEnergy
        >>> isinstance(EnergyUNet(channels=1, width=8, multipliers=(1, 2), num_blocks=1), ImageEnergy)
        True
    """

    def __init__(self, num_halvings: int, unshuffle: int):
        super().__init__()
        self.num_halvings, self.unshuffle = num_halvings, unshuffle
        self.autocast: torch.dtype | None = None
        self._network: Callable[[Tensor, Any], Tensor] = self._evaluate

    @abstractmethod
    def _prepare(self, t: Tensor) -> Any:
        """Everything that depends on the weights and t alone."""

    @abstractmethod
    def _evaluate(self, y: Tensor, prepared: Any) -> Tensor:
        """net(y, t), from y and what ``_prepare`` made of t."""

    def check_size(self, height: int, width: int) -> None:
        """Raises UserError for an image size that this network does not take."""
        check_size(height, width, self.num_halvings, self.unshuffle)

    def accelerate(self, precision: torch.dtype | None = None, compiled: bool = False) -> None:
        """Computes the convolutions in ``precision`` and compiles the network, if asked for."""
        self.autocast = precision
        self._network = torch.compile(self._evaluate) if compiled else self._evaluate

    def _casting(self, like: Tensor, enabled: bool = True) -> AbstractContextManager[Any]:
        """Where the convolutions are computed in lower precision; time embedding and head never are."""
        return nullcontext() if self.autocast is None else torch.autocast(like.device.type, self.autocast, enabled)

    def forward(self, y: Tensor, t: Tensor) -> Tensor:
        return self._network(y, self._prepare(t))

    def at(self, t: Tensor) -> Callable[[Tensor], Tensor]:
        """y -> net(y, t): spectral norms and time embedding computed once, without gradients of the weights."""
        with torch.no_grad():
            prepared = self._prepare(t)
        return lambda y: self._network(y, prepared)

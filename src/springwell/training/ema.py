"""The exponential moving average of the weights: the model that is sampled and measured."""

from __future__ import annotations

import torch
from torch import nn


@torch.no_grad()
def update_ema(average: nn.Module, current: nn.Module, decay: float, iteration: int | None) -> None:
    """average <- decay average + (1 - decay) current, with a shorter memory in the first iterations, if they are counted."""
    weight = 1 - (decay if iteration is None else min(decay, (1 + iteration) / (10 + iteration)))
    torch._foreach_lerp_(list(average.parameters()), list(current.parameters()), weight)
    for kept, buffer in zip(average.buffers(), current.buffers(), strict=True):
        kept.copy_(buffer)

"""What lower precision does to the gradient of a network of 8 x 8 images."""

import torch

from springwell.energy import at_level
from springwell.samplers import gradient


def bfloat16_error(network):
    """Of the gradient, relative; the gradient itself stays float32."""
    y, t = torch.randn(16, 1, 8, 8), torch.arange(16) % 4
    exact = gradient(at_level(network, t), y)
    network.accelerate(torch.bfloat16)
    rough = gradient(at_level(network, t), y)
    assert rough.dtype == torch.float32
    return float((rough - exact).norm() / exact.norm())

r"""What every energy shares: the sign, the output scale and the base term.

    f(y, t) = scale_t net(y, t) - precision_t |y|^2 / 2

is **+log density up to a constant**. Four rules for the scale, each with the weight that its loss needs:

    step      scale_t = 1 / s_t^2,    weight_t = s_t^2 sigma_1 / sigma_{t+1}      (the authors': the network's part of the
                                                                                   Langevin drift is then 0.5 grad net)
    learned   scale_t = exp(g_t),     weight_t = sigmabar_t                       (g_t starts at -log sigmabar_t)
    variance  the same, but g_t starts at -2 log sigmabar_t: grad net is then of the size of the data at every level
    none      scale_t = 1,            weight_t = 1

The base term has one precision for all levels, or that of the noise: with precision_t = 1 / (a_{t+1} sigmabar_t)^2 the base
term alone is the noisy density of the data point 0, and what a U-Net energy <y, U> adds is the denoised image.

Any callable of (y, t) serves as an energy wherever the library takes one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from springwell.devices import Operations
from springwell.samplers import gradient
from springwell.schedule import NoiseSchedule
from springwell.shapes import expand

EnergyFunction = Callable[[Tensor, Tensor], Tensor]
# Of 1 / sigmabar_t, where learned scales start.
_POWERS = {"learned": 1, "variance": 2}


def at_level(energy: EnergyFunction, t: Tensor) -> Callable[[Tensor], Tensor]:
    """y -> f(y, t) for chains at fixed t ``[N]``; whatever depends on t and the weights alone is computed here, once.

    An energy that has a method ``at(t)`` provides this itself; any other callable is used as it is.

    Examples:
        >>> from springwell.energy import at_level
        >>> f = at_level(lambda y, t: -(t + 1) * y.square().sum(-1), torch.tensor([0, 3]))
        >>> f(torch.ones(2, 2))
        tensor([-2., -8.])
    """
    at = getattr(energy, "at", None)
    return at(t) if at is not None else lambda y: energy(y, t)


def gradient_operations(energy: EnergyFunction, event_shape: tuple[int, ...], device: torch.device | str) -> int:
    """Multiplications and additions of one gradient of f, for one sample on a device, which may be ``meta``."""
    y, t = torch.zeros(1, *event_shape, device=device), torch.zeros(1, dtype=torch.long, device=device)
    with Operations() as counted:
        gradient(at_level(energy, t), y)
    return counted.total


class ScaledEnergy(nn.Module):
    """A network with its output scale and Gaussian base term.

    Args:
        network: Maps (y, t) to ``[N]``; may offer ``at(t)``.
        schedule: Provides the scales.
        rule: ``step``, ``learned``, ``variance`` or ``none``.
        base_precision: Precision of the base term; ``noise`` is that of every level's noise.

    Examples:
        >>> from springwell.energy import FourierMLP, ScaledEnergy
        >>> energy = ScaledEnergy(FourierMLP(dim=2, num_levels=4), sw.NoiseSchedule.log_snr(4, high=5, low=-5))
        >>> energy(torch.zeros(3, 2), torch.tensor([0, 1, 3])).shape
        torch.Size([3])
    """

    scale: Tensor
    precision: Tensor
    loss_weight: Tensor

    def __init__(
        self,
        network: nn.Module,
        schedule: NoiseSchedule,
        rule: Literal["step", "learned", "variance", "none"] = "learned",
        base_precision: float | Literal["noise"] = 0.0,
    ):
        super().__init__()
        self.network, self.rule, self.has_base = network, rule, base_precision != 0
        # Without initial noise sigmabar_0 is 0; level 0 then takes the noise of the next.
        noise = torch.where(schedule.sigma_cum > 0, schedule.sigma_cum, schedule.sigma[1])[:-1]
        if rule == "step":
            s_square = schedule.langevin_step**2
            scale, weight = 1 / s_square, s_square * schedule.loss_weight
        elif rule in _POWERS:
            weight, scale = noise, 1 / noise ** _POWERS[rule]
            self.log_scale = nn.Parameter(scale.log().float())
        else:
            scale = weight = torch.ones(schedule.num_levels)
        self.register_buffer("scale", scale.float(), persistent=False)
        precision = (schedule.scale * noise) ** -2 if base_precision == "noise" else torch.full_like(noise, base_precision)
        self.register_buffer("precision", precision.float(), persistent=False)
        self.register_buffer("loss_weight", weight.float(), persistent=False)

    def _level(self, t: Tensor) -> tuple[Tensor, Tensor]:
        return (self.log_scale.exp() if self.rule in _POWERS else self.scale)[t], self.precision[t]

    def _combine(self, output: Tensor, y: Tensor, scale: Tensor, precision: Tensor) -> Tensor:
        f = scale * output.to(y.dtype)
        if self.has_base:
            f = f - 0.5 * precision * y.flatten(1).square().sum(-1)
        return f

    def forward(self, y: Tensor, t: Tensor) -> Tensor:
        return self._combine(self.network(y, t), y, *self._level(t))

    def follow_weights(self) -> None:
        """Brings up to date what the network keeps beside its weights; to be called after every optimiser step."""
        follow = getattr(self.network, "follow_weights", None)
        if follow is not None:
            follow()

    def at(self, t: Tensor) -> Callable[[Tensor], Tensor]:
        network, (scale, precision) = at_level(self.network, t), self._level(t)
        scale = scale.detach()
        if hasattr(network, "value_and_grad"):
            return _Scaled(self, network, scale, precision)
        if getattr(self.network, "autocast", None) != torch.float16:
            return lambda y: self._combine(network(y), y, scale, precision)

        def half(y: Tensor) -> Tensor:
            output = _TimesGradient.apply(network(_TimesGradient.apply(y, scale)), 1 / scale)
            return self._combine(output, y, scale, precision)

        return half


class _Scaled:
    """y -> f(y, t) at fixed levels, by a network that knows its own gradient."""

    def __init__(self, energy: ScaledEnergy, network: Any, scale: Tensor, precision: Tensor):
        self.energy, self.network, self.scale, self.precision = energy, network, scale, precision

    def __call__(self, y: Tensor) -> Tensor:
        return self.energy._combine(self.network(y), y, self.scale, self.precision)

    @torch.no_grad()
    def value_and_grad(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """f ``[N]`` and its gradient ``[N, ...]``, detached."""
        value, grad = self.network.value_and_grad(y)
        grad = expand(self.scale, y) * grad
        if self.energy.has_base:
            grad = grad - expand(self.precision, y) * y
        return self.energy._combine(value, y, self.scale, self.precision), grad

    def grad(self, y: Tensor) -> Tensor:
        """The gradient ``[N, ...]`` alone, detached."""
        return self.value_and_grad(y)[1]


class _TimesGradient(torch.autograd.Function):
    """The identity, whose gradient is multiplied by a factor per sample.

    One around the other, with factors scale and 1 / scale, they keep a large scale out of the network's backward pass, where
    half precision would overflow. The weights' gradients would come out wrong, but chains have none.
    """

    @staticmethod
    def forward(ctx: Any, y: Tensor, factor: Tensor) -> Tensor:
        ctx.save_for_backward(factor)
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (factor,) = ctx.saved_tensors
        return grad * factor.view(-1, *[1] * (grad.ndim - 1)), None

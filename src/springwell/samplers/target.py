"""What a chain samples: any callable y -> log p(y) ``[N]``, or an object that knows its gradient itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from springwell.errors import UserError, kind_of

LogDensity = Callable[[Tensor], Tensor]


class Target(Protocol):
    """A log-density that computes its own gradients, for instance because a part of them is known in closed form.

    Kernels accept any callable; where it also has these two methods, they are used in place of automatic differentiation.
    An attribute ``level`` (an integer, or int64 ``[N]``) names the chains' levels in errors and warnings.

    Examples:
        >>> class Normal:
        ...     def __call__(self, y):
        ...         return -y.square().sum(-1) / 2
        ...     def value_and_grad(self, y):
        ...         return self(y), -y
        ...     def grad(self, y):
        ...         return -y
        >>> sw.samplers.gradient(Normal(), torch.ones(1, 2))
        tensor([[-1., -1.]])
    """

    def __call__(self, y: Tensor) -> Tensor:
        """log p(y) up to a constant, ``[N]``."""
        ...

    def value_and_grad(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """log p(y) ``[N]`` and its gradient ``[N, ...]``, both detached."""
        ...

    def grad(self, y: Tensor) -> Tensor:
        """The gradient ``[N, ...]`` alone, detached."""
        ...


def value_and_grad(logdensity: LogDensity | Target, y: Tensor) -> tuple[Tensor, Tensor]:
    """log p(y) ``[N]`` and its gradient ``[N, ...]``, detached, for any callable.

    Examples:
        >>> sw.samplers.value_and_grad(lambda y: -y.square().sum(-1) / 2, torch.ones(1, 2))
        (tensor([-1.]), tensor([[-1., -1.]]))
    """
    own = getattr(logdensity, "value_and_grad", None)
    if own is not None:
        return own(y)
    with torch.enable_grad():
        y = y.detach().requires_grad_()
        value = logdensity(y)
        check_value(value, y)
        (grad,) = torch.autograd.grad(value, y, torch.ones_like(value))
    return value.detach(), grad


def check_value(value: object, y: Tensor) -> None:
    """Refuses what a log-density returned at y ``[N, ...]``, if it is not one number per chain that depends on y."""
    needs = f"needs [{len(y)}], one number per chain"
    if not isinstance(value, Tensor):
        raise UserError(f"log-density: returned {kind_of(value)} for y of shape {list(y.shape)}; {needs}")
    if value.shape != y.shape[:1]:
        raise UserError(f"log-density: returned shape {list(value.shape)} for y of shape {list(y.shape)}; {needs}")
    if not value.requires_grad and y.requires_grad:
        raise UserError("log-density: has no gradient with respect to y; compute it from y by torch, without detach or no_grad")


def gradient(logdensity: LogDensity | Target, y: Tensor) -> Tensor:
    """The gradient of log p at y ``[N, ...]``, detached, for any callable.

    Examples:
        >>> sw.samplers.gradient(lambda y: -y.square().sum(-1) / 2, torch.ones(1, 2))
        tensor([[-1., -1.]])
    """
    own = getattr(logdensity, "grad", None)
    return own(y) if own is not None else value_and_grad(logdensity, y)[1]


def level_of(logdensity: LogDensity | Target) -> Tensor | int | None:
    """The levels that a target names, for messages; None where it names none."""
    return getattr(logdensity, "level", None)

r"""Langevin dynamics, with and without the Metropolis test.

    y' = y + (delta^2 / 2) grad log p(y) + delta eps                                                         (Eq. 5)

MALA takes y' with probability min(1, p(y') q(y | y') / (p(y) q(y' | y))), where q(. | y) = N(y + (delta^2 / 2) grad log p(y),
delta^2 I), and so leaves p invariant for every step size delta. A kernel is a pure function

    (state, logdensity, step_size, noise) -> (state, info)

on a batch of independent chains; step sizes (anything that broadcasts against y), acceptance and randomness belong to each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from springwell.conditional import LogDensity, gradient, inner, value_and_grad
from springwell.noise import Noise
from springwell.schedule import expand


class State(NamedTuple):
    """What the next step needs. Langevin needs the position alone."""

    y: Tensor
    logdensity: Tensor | None = None
    grad: Tensor | None = None


class Info(NamedTuple):
    """Acceptance probability ``[N]`` of the step; None where there is no test."""

    acceptance: Tensor | None


class Kernel(NamedTuple):
    """How to begin a chain and how to go on.

    Attributes:
        init: (y, logdensity) -> state.
        step: (state, logdensity, step_size, noise, noise_scale) -> (state, info).
    """

    init: Callable[[Tensor, LogDensity], State]
    step: Callable[..., tuple[State, Info]]


def _langevin_init(y: Tensor, logdensity: LogDensity) -> State:
    return State(y)


def _langevin_step(
    state: State, logdensity: LogDensity, step_size: Tensor, noise: Noise, noise_scale: float = 1.0
) -> tuple[State, Info]:
    y, delta = state.y, step_size
    eps = noise.normal(*y.shape[1:])
    if noise_scale != 1:
        eps = noise_scale * eps
    # Eq. 5, as y + delta (delta / 2 grad + eps).
    y = torch.addcmul(y, delta, torch.addcmul(eps, delta, gradient(logdensity, y), value=0.5))
    return State(y), Info(None)


def _mala_init(y: Tensor, logdensity: LogDensity) -> State:
    return State(y, *value_and_grad(logdensity, y))


def _mala_step(
    state: State, logdensity: LogDensity, step_size: Tensor, noise: Noise, noise_scale: float = 1.0
) -> tuple[State, Info]:
    y, log_p, grad = state
    assert log_p is not None
    assert grad is not None
    delta, eps = step_size, noise.normal(*y.shape[1:])
    # y' - y = delta u, and in the same units the way back is -delta u = (delta^2 / 2) grad' + delta eps'.
    u = torch.addcmul(eps, delta, grad, value=0.5)
    proposal = torch.addcmul(y, delta, u)
    log_p_new, grad_new = value_and_grad(logdensity, proposal)
    eps_back = torch.addcmul(u, delta, grad_new, value=0.5)
    log_ratio = torch.add(log_p_new - log_p, inner(eps - eps_back, eps + eps_back), alpha=0.5)
    # A proposal where the density is not finite is never taken.
    acceptance = log_ratio.clamp(max=0).exp().nan_to_num(nan=0.0)
    accept = noise.uniform() < acceptance
    take = accept.view(-1, *[1] * (y.ndim - 1))
    new = State(torch.where(take, proposal, y), torch.where(accept, log_p_new, log_p), torch.where(take, grad_new, grad))
    return new, Info(acceptance)


langevin = Kernel(_langevin_init, _langevin_step)
mala = Kernel(_mala_init, _mala_step)
KERNELS = {"langevin": langevin, "mala": mala}


def run_chain(
    kernel: Kernel,
    y: Tensor,
    logdensity: LogDensity,
    step_size: Tensor,
    num_steps: int,
    noise: Noise,
    noise_scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Runs ``num_steps`` steps from y. Memory does not grow with their number and nothing is read back to the host.

    Args:
        kernel: :data:`langevin` or :data:`mala`.
        y: Start ``[N, ...]``.
        logdensity: y -> ``[N]``.
        step_size: delta ``[N]``.
        num_steps: K.
        noise: For N chains.
        noise_scale: Factor on the Langevin noise; 1 is the correct dynamics.

    Returns:
        The last position, and the mean acceptance ``[N]`` of each chain (1 where there is no test).
    """
    state = kernel.init(y.detach(), logdensity)
    acceptance, tested = step_size.new_zeros(len(y)), 0
    # Spread over the sample once: products of equal shapes are twice as fast as broadcast ones.
    step_size = expand(step_size, y).expand_as(y).contiguous()
    for _ in range(num_steps):
        state, info = kernel.step(state, logdensity, step_size, noise, noise_scale)
        if info.acceptance is not None:
            acceptance += info.acceptance
            tested += 1
    return state.y, acceptance / tested if tested else torch.ones_like(acceptance)

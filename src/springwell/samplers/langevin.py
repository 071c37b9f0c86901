r"""Langevin dynamics, with and without the Metropolis test.

    y' = y + (delta^2 / 2) grad log p(y) + delta eps                                                         (Eq. 5)

MALA takes y' with probability min(1, p(y') q(y | y') / (p(y) q(y' | y))), where q(. | y) = N(y + (delta^2 / 2) grad log p(y),
delta^2 I), and so leaves p invariant for every step size delta. Without the test the chain's law is off by O(delta^2).
"""

from __future__ import annotations

import torch
from torch import Tensor

from springwell.conditional import LogDensity, gradient, inner, value_and_grad
from springwell.noise import Noise
from springwell.samplers.base import Info, Kernel, State, evaluated, init_with_gradient, spread


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


def _mala_step(
    state: State, logdensity: LogDensity, step_size: Tensor, noise: Noise, noise_scale: float = 1.0
) -> tuple[State, Info]:
    y, log_p, grad = evaluated(state)
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
    take = spread(accept, y)
    new = State(torch.where(take, proposal, y), torch.where(accept, log_p_new, log_p), torch.where(take, grad_new, grad))
    return new, Info(acceptance)


langevin = Kernel(_langevin_init, _langevin_step)
mala = Kernel(init_with_gradient, _mala_step)

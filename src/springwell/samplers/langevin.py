r"""Langevin dynamics, with and without the Metropolis test.

    y' = y + (delta^2 / 2) grad log p(y) + delta eps                                                         (Eq. 5)

MALA takes y' with probability min(1, p(y') q(y | y') / (p(y) q(y' | y))), where q(. | y) = N(y + (delta^2 / 2) grad log p(y),
delta^2 I), and so leaves p invariant for every step size delta. Without the test the chain's law is off by O(delta^2).
"""

from __future__ import annotations

import torch
from torch import Tensor

from springwell.errors import UserError
from springwell.noise import Noise
from springwell.samplers.base import Info, Kernel, State, evaluated, init_with_gradient
from springwell.samplers.target import LogDensity, gradient, value_and_grad
from springwell.shapes import expand, inner


def _langevin_init(y: Tensor, logdensity: LogDensity) -> State:
    return State(y)


def _mala_step(state: State, logdensity: LogDensity, step_size: Tensor, noise: Noise) -> tuple[State, Info]:
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
    take = expand(accept, y)
    new = State(torch.where(take, proposal, y), torch.where(accept, log_p_new, log_p), torch.where(take, grad_new, grad))
    return new, Info(acceptance)


def langevin(noise_scale: float = 1.0) -> Kernel:
    """The kernel of unadjusted Langevin dynamics, without a Metropolis test.

    Args:
        noise_scale: Factor on the noise; 1 is the correct dynamics, and the authors generate with 0.99.

    Examples:
        >>> log_density = lambda y: -y.square().sum(-1) / 2
        >>> noise = sw.Noise(0, torch.arange(100))
        >>> y, acceptance = sw.samplers.run_chain(sw.samplers.langevin(), torch.zeros(100, 2), log_density, 0.3, 10, noise)
        >>> y.shape, acceptance.shape
        (torch.Size([100, 2]), torch.Size([100]))
    """
    if not 0 <= noise_scale <= 1:
        raise UserError(f"noise_scale={noise_scale:g}: out of range; use a value in [0, 1]")

    def step(state: State, logdensity: LogDensity, step_size: Tensor, noise: Noise) -> tuple[State, Info]:
        y, delta = state.y, step_size
        eps = noise.normal(*y.shape[1:])
        if noise_scale != 1:
            eps = noise_scale * eps
        # Eq. 5, as y + delta (delta / 2 grad + eps).
        y = torch.addcmul(y, delta, torch.addcmul(eps, delta, gradient(logdensity, y), value=0.5))
        return State(y), Info(None)

    return Kernel(_langevin_init, step, False, "langevin", {"noise_scale": noise_scale})


def mala() -> Kernel:
    """The kernel of Langevin dynamics with a Metropolis test, which leaves log p invariant for every step size.

    Examples:
        >>> log_density = lambda y: -y.square().sum(-1) / 2
        >>> noise = sw.Noise(0, torch.arange(100))
        >>> y, acceptance = sw.samplers.run_chain(sw.samplers.mala(), torch.zeros(100, 2), log_density, 0.9, 10, noise)
        >>> y.shape, acceptance.shape
        (torch.Size([100, 2]), torch.Size([100]))
    """
    return Kernel(init_with_gradient, _mala_step, name="mala")

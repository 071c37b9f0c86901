r"""The leapfrog integrator of Hamiltonian dynamics.

With momentum p ~ N(0, M) and H(y, p) = -log p(y) + p^T M^{-1} p / 2, a step of size delta is a kick, a drift and a kick,

    p <- p + (delta / 2) grad log p(y),      y <- y + delta M^{-1} p,      p <- p + (delta / 2) grad log p(y).

It is reversible (negate p and come back), preserves volume, and its error in H is O(delta^2) over a fixed time. M is the
identity or diagonal; a negative delta runs time backwards.

References:
    Neal, "MCMC using Hamiltonian dynamics", Handbook of Markov Chain Monte Carlo, 2011.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from springwell.errors import UserError
from springwell.noise import Noise
from springwell.samplers.target import LogDensity, value_and_grad
from springwell.shapes import inner


class Phase(NamedTuple):
    """A point of phase space: position and momentum ``[N, ...]``, log p(y) ``[N]`` and its gradient."""

    y: Tensor
    p: Tensor
    logdensity: Tensor
    grad: Tensor


def velocity(p: Tensor, inverse_mass: Tensor | None) -> Tensor:
    """M^{-1} p."""
    return p if inverse_mass is None else inverse_mass.to(p) * p


def leapfrog(z: Phase, logdensity: LogDensity, step_size: Tensor, inverse_mass: Tensor | None = None) -> Phase:
    """One step, with one gradient.

    Args:
        z: Where to start.
        logdensity: y -> ``[N]``.
        step_size: delta; anything that broadcasts against y, of either sign.
        inverse_mass: Diagonal of M^{-1}; anything that broadcasts against y. None for the identity.
    """
    p = torch.addcmul(z.p, step_size, z.grad, value=0.5)
    y = torch.addcmul(z.y, step_size, velocity(p, inverse_mass))
    log_p, grad = value_and_grad(logdensity, y)
    return Phase(y, torch.addcmul(p, step_size, grad, value=0.5), log_p, grad)


def hamiltonian(z: Phase, inverse_mass: Tensor | None = None) -> Tensor:
    """H(y, p) ``[N]``."""
    return torch.add(-z.logdensity, inner(z.p, velocity(z.p, inverse_mass)), alpha=0.5)


def draw_momentum(noise: Noise, y: Tensor, inverse_mass: Tensor | None = None) -> Tensor:
    """p ~ N(0, M), of the type of y."""
    eps = noise.normal(*y.shape[1:]).to(y.dtype)
    return eps if inverse_mass is None else eps * inverse_mass.to(y).rsqrt()


def check_inverse_mass(inverse_mass: Tensor | None) -> None:
    """Refuses a mass matrix that is not positive."""
    if inverse_mass is not None and not bool(((inverse_mass > 0) & torch.isfinite(inverse_mass)).all()):
        raise UserError(f"inverse mass {float(inverse_mass.min()):g}: must be positive and finite everywhere")

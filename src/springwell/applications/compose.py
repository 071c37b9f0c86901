r"""Energies made of energies.

    product      f = sum_i w_i f_i                     density  prod_i p_i^{w_i}, up to its normaliser
    mixture      f = log sum_i exp(c_i + f_i)          density  sum_i e^{c_i} Z_i p_i, up to its normaliser
    tempered     f = beta f_1                          density  p_1^beta: sharper for beta > 1, flatter for beta < 1

A weight may be negative, which divides a density out; it is then for the caller to see that what remains can be normalised.
A mixture takes the shares e^{c_i} Z_i, and a trained energy has an unknown Z_i: with c_i = log share_i - log Z_i the shares are
the caller's. In two dimensions ``model.normaliser().log_z`` is log Z_i at level 0.

All of them act level by level. The sum of the energies of level t is not the energy of the noisy product (noise and product do
not commute), so that levels are no longer noisy versions of one another, and y_t drawn given x_{t+1} does not have the law
exp f(y, t). Sweeps (:mod:`springwell.generate`) make up for that at every level, and the density that they leave invariant at
level 0 is the product of the level-0 densities itself. Mixtures do commute with noise and need none, provided that each level
has the same shares; tempering needs them as products do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from springwell.energy.base import EnergyFunction, at_level
from springwell.errors import UserError


class Product:
    """f(y, t) = sum_i w_i f_i(y, t).

    Args:
        energies: The f_i, each of the same noise levels and coordinates.
        weights: w_i; 1 if not given.
    """

    def __init__(self, energies: Sequence[EnergyFunction], weights: Sequence[float] | None = None):
        self.energies, self.weights = _checked("product", energies, weights, 1.0)

    def __call__(self, y: Tensor, t: Tensor) -> Tensor:
        return self.at(t)(y)

    def at(self, t: Tensor) -> Callable[[Tensor], Tensor]:
        parts = [at_level(energy, t) for energy in self.energies]

        def f(y: Tensor) -> Tensor:
            return torch.stack([weight * part(y) for weight, part in zip(self.weights, parts, strict=True)]).sum(0)

        return f


class Mixture:
    """f(y, t) = log sum_i exp(c_i + f_i(y, t)).

    Args:
        energies: The f_i, each of the same noise levels and coordinates.
        log_weights: c_i; 0 if not given.
    """

    def __init__(self, energies: Sequence[EnergyFunction], log_weights: Sequence[float] | None = None):
        self.energies, self.log_weights = _checked("mixture", energies, log_weights, 0.0)

    def __call__(self, y: Tensor, t: Tensor) -> Tensor:
        return self.at(t)(y)

    def at(self, t: Tensor) -> Callable[[Tensor], Tensor]:
        parts = [at_level(energy, t) for energy in self.energies]

        def f(y: Tensor) -> Tensor:
            return torch.stack([c + part(y) for c, part in zip(self.log_weights, parts, strict=True)]).logsumexp(0)

        return f


def tempered(energy: EnergyFunction, beta: float) -> Product:
    """f(y, t) = beta f_1(y, t), beta > 0: the density to the power beta."""
    if not 0 < beta < math.inf:
        raise UserError(f"beta {beta:g}: must be positive and finite")
    return Product([energy], [beta])


def _checked(
    name: str, energies: Sequence[EnergyFunction], weights: Sequence[float] | None, default: float
) -> tuple[list[EnergyFunction], list[float]]:
    weights = [default] * len(energies) if weights is None else list(weights)
    if not energies or len(weights) != len(energies):
        found = f"{len(energies)} energies and {len(weights)} weights"
        raise UserError(f"{name}: has {found}; give at least one, and a weight each")
    if not all(map(math.isfinite, weights)):
        raise UserError(f"{name}: has the weights {', '.join(map(str, weights))}; all must be finite")
    return list(energies), weights

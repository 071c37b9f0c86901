r"""An energy that knows classes, given one of them: an ordinary energy, which every sampler and every estimator takes.

    given      f(y, sigma | c)                                                  log p(y | c)
    guided     f(y, sigma) + w min(f(y, sigma | c) - f(y, sigma), -log p(c))    log p(y) p(c | y)^w, up to a constant

w = 0 is the density of all data and w = 1 that of class c. Larger weights prefer what is typical of the class and of no other.
p(c | y) is at most 1, so that the minimum changes nothing of true densities. Learned ones are wrong by a few nats where no data
are, and w would multiply that; the minimum keeps such places from becoming likely.

Classifier-free guidance follows the *score* of the guided energy of every noise level, as if these energies were noisy versions
of one another. They are not, for w other than 0 and 1, so that what it draws has another law than exp f of level 0. Here the
guided energy is known as a function: chains with a Metropolis test leave exp f invariant, at every level, and sweeps
(:mod:`springwell.generate`) bring y_t to it.

References:
    Ho, Salimans, "Classifier-free diffusion guidance", 2022.
    Du et al., "Reduce, reuse, recycle: compositional generation with energy-based diffusion models and MCMC", ICML 2023.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from springwell.energy.prior import Prior
from springwell.energy.residual import ResidualEnergy
from springwell.noise import Noise


class Labelled(nn.Module):
    """f(y, sigma) of an energy that knows classes, given a label.

    Args:
        energy: f(y, sigma | c).
        label: c; -1 for all data.
        guidance: w.
        share: p(c), the class's share of the data.
    """

    label: Tensor

    def __init__(self, energy: ResidualEnergy, label: int, guidance: float = 1.0, share: float = 0.5):
        super().__init__()
        self.energy = energy
        # Tensors, so that fingerprints tell one label from another.
        self.register_buffer("label", torch.tensor(label))
        self.register_buffer("guidance", torch.tensor(guidance, dtype=torch.float64))
        self.weight, self.most = guidance, -math.log(share)

    @property
    def prior(self) -> Prior:
        return self.energy.prior

    @property
    def event_shape(self) -> tuple[int, ...]:
        return self.energy.event_shape

    @property
    def log_z(self) -> float | None:
        """What the energy believes of its normaliser: 0 of a density of data, unknown of a guided one."""
        return 0.0 if self.weight in (0.0, 1.0) else None

    def forward(self, y: Tensor, sigma: Tensor, dropout: Noise | None = None) -> Tensor:
        label = self.label.expand(len(y))
        if self.weight == 1:
            return self.energy(y, sigma, dropout, label=label)
        if self.weight == 0:
            return self.energy(y, sigma, dropout)
        # Both in one pass.
        sigma = sigma.expand(len(y), *sigma.shape[1:])
        labels = torch.cat([torch.full_like(label, -1), label])
        every, one = self.energy(torch.cat([y, y]), torch.cat([sigma, sigma]), label=labels).chunk(2)
        return guided(every, one, self.weight, self.most)


def guided(every: Tensor, one: Tensor, weight: float, most: float) -> Tensor:
    """f + w min(f(. | c) - f, -log p(c)) of f, f(. | c), w and -log p(c)."""
    return every + weight * (one - every).clamp(max=most)

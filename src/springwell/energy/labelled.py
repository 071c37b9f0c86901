r"""An energy that knows classes, given one of them: an ordinary energy, which every sampler and every estimator takes.

    given      f(y, sigma | c)                                              log p(y | c)
    guided     f(y, sigma | c) + (w - 1) log p(c | y, sigma),    w > 1      log p(y) p(c | y)^w, up to a constant
               f(y, sigma) + w (f(y, sigma | c) - f(y, sigma)),  0 <= w <= 1
               f(y, sigma) + w log p(c | y, sigma),              w < 0

w = 0 is the density of all data and w = 1 that of class c. Larger weights prefer what is typical of the class and of no other.
p(c | y) is at most 1, and learned densities are to keep that: they are wrong by a few nats where no data are, and w would
multiply that. Two estimates of it do:

    few classes    p(c | y) = p(c) p(y | c) / sum_c' p(c') p(y | c')        Bayes' rule; a pass for every class
    many classes   p(c | y) = min(p(c) p(y | c) / p(y), 1)                  two passes, whatever the number of classes

The first is the better one, since it is constant, and its error 0, wherever one class alone is likely.

Classifier-free guidance follows the *score* of the guided energy of every noise level, as if these energies were noisy versions
of one another. They are not, for w other than 0 and 1, so that what it draws has another law than exp f of level 0. Here the
guided energy is known as a function: chains with a Metropolis test leave exp f invariant, at every level, and sweeps
(:mod:`springwell.generate`) bring y_t to it. For w > 1 there is a shorter way: a draw of the class that is kept with
probability p(c | x)^(w - 1), and drawn again otherwise, has the guided law (:meth:`springwell.model.Model.given`,
``rejection``).

References:
    Ho, Salimans, "Classifier-free diffusion guidance", 2022.
    Du et al., "Reduce, reuse, recycle: compositional generation with energy-based diffusion models and MCMC", ICML 2023.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from springwell.energy.prior import Prior
from springwell.energy.residual import ResidualEnergy
from springwell.noise import Noise

FEW_CLASSES = 8
"""The largest number of classes whose densities are all computed for p(c | y)."""


class Labelled(nn.Module):
    """f(y, sigma) of an energy that knows classes, given a label.

    Args:
        energy: f(y, sigma | c).
        label: c.
        guidance: w.
        share: p(c), the class's share of the data; the other classes share the rest alike.
        num_classes: C.
    """

    label: Tensor

    def __init__(self, energy: ResidualEnergy, label: int, guidance: float = 1.0, share: float = 0.5, num_classes: int = 2):
        super().__init__()
        self.energy = energy
        # Tensors, so that fingerprints tell one label from another.
        self.register_buffer("label", torch.tensor(label))
        self.register_buffer("guidance", torch.tensor(guidance, dtype=torch.float64))
        self.weight, self.share, self.num_classes, self.number = guidance, share, num_classes, label

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
        weight = self.weight
        if weight == 1:
            return self.energy(y, sigma, dropout, label=self.label.expand(len(y)))
        if weight == 0:
            return self.energy(y, sigma, dropout)
        if 0 < weight < 1 or self.num_classes > FEW_CLASSES:
            every, one = self._passes(y, sigma, [-1, self.number])
            if 0 < weight < 1:
                return torch.lerp(every, one, weight)
            log_posterior = (one - every + math.log(self.share)).clamp(max=0)
        else:
            by_class = torch.stack(self._passes(y, sigma, range(self.num_classes)), -1)
            one, log_posterior = by_class[:, self.number], posterior(by_class, self.number, self.share)
            every = self.energy(y, sigma) if weight < 0 else one
        return one + (weight - 1) * log_posterior if weight > 1 else every + weight * log_posterior

    def _passes(self, y: Tensor, sigma: Tensor, labels: Sequence[int]) -> tuple[Tensor, ...]:
        """f ``[N]`` given each of the labels, in one pass of the network."""
        num = len(labels)
        sigma = sigma.expand(len(y), *sigma.shape[1:])
        label = torch.tensor(list(labels), device=y.device).repeat_interleave(len(y))
        return self.energy(torch.cat([y] * num), torch.cat([sigma] * num), label=label).chunk(num)


def class_shares(label: int, share: float, num_classes: int) -> list[float]:
    """The shares of all classes if class c has this share and the others the rest, alike."""
    return [share if c == label else (1 - share) / (num_classes - 1) for c in range(num_classes)]


def posterior(log_prob: Tensor, label: int, share: float) -> Tensor:
    """log p(c | y) ``[N]`` by Bayes' rule from log p(y | c) ``[N, C]``, with the shares of :func:`class_shares`."""
    prior = log_prob.new_tensor(class_shares(label, share, log_prob.shape[-1]))
    return (log_prob + prior.log()).log_softmax(-1)[..., label]

r"""A closed-form density of noisy data, from which an energy starts: every coordinate a mixture of Gaussians.

    p(x) = prod_i sum_k w_ki N(x_i; m_ki, s_ki^2)

With noise of standard deviation sigma_i the variances become v_ki = s_ki^2 + sigma_i^2, and everything stays explicit:

    B(y, sigma)  = sum_i log sum_k w_ki N(y_i; m_ki, v_ki)                          log-density
    r_ki         = w_ki N(y_i; m_ki, v_ki) / sum_j w_ji N(y_i; m_ji, v_ji)           responsibilities
    sigma_i b_i  = -sum_k r_ki sigma_i (y_i - m_ki) / v_ki,       b = grad_y B       score, times the noise

One component is the Gaussian of the data's mean and variance. Images have *atoms* beside it: values that many pixels take
exactly, such as a black background. An atom is a component of variance 0; without it a network would have to build a slope of
1 / sigma from an input of size 1, which no network of ordinary weights does at sigma = 0.002.

The noise sigma may differ between coordinates. The density stays exact, and so do its derivatives along each sigma_i.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from springwell.shapes import expand

_LOG_2PI = math.log(2 * math.pi)


class PriorValues(NamedTuple):
    """The prior at y, by coordinate.

    Attributes:
        log_density: ``[N, ...]``: the terms of B.
        scaled_score: ``[N, ...]``: sigma b.
        atoms: ``[K - 1, N, ...]``: responsibilities of all components but the first.
    """

    log_density: Tensor
    scaled_score: Tensor
    atoms: Tensor


class Prior(nn.Module):
    """A mixture of Gaussians for every coordinate.

    Args:
        mean: m ``[K, *event_shape]``.
        variance: s^2, likewise. The first component is the broad one, the others are atoms.
        weight: w, likewise; positive, summing to 1 over K.
    """

    mean: Tensor
    variance: Tensor
    log_weight: Tensor

    def __init__(self, mean: Tensor, variance: Tensor, weight: Tensor):
        super().__init__()
        self.register_buffer("mean", mean.float())
        self.register_buffer("variance", variance.float())
        self.register_buffer("log_weight", weight.log().float())

    @classmethod
    def gaussian(cls, mean: Tensor, variance: Tensor | float) -> Prior:
        """N(mean, variance), mean ``[*event_shape]``."""
        spread = torch.as_tensor(variance, dtype=mean.dtype).expand(mean.shape)
        return cls(mean[None], spread[None].clone(), torch.ones_like(mean)[None])

    @classmethod
    def fit(cls, x: Tensor, atoms: Sequence[tuple[float, float]] = (), count: float = 10.0) -> Prior:
        """Moments of data ``[N, ...]``, and how often each coordinate takes the value of an atom.

        Args:
            x: Data.
            atoms: Lowest and highest value of each atom. Equal values make an exact atom; a narrow range makes a narrow
                component with the moments of the data in that range.
            count: Strength of the smoothing: each coordinate's moments and weights are mixed with those of ``count`` draws
                from all coordinates together.
        """
        x = x.double()
        hits_of = [(x > low - 1e-6) & (x < high + 1e-6) for low, high in atoms]
        is_atom = torch.stack(hits_of) if hits_of else x.new_zeros(0, *x.shape).bool()
        values = [x[hit].mean() for hit in hits_of]
        widths = [x[hit].var() if high > low else x.new_zeros(()) for hit, (low, high) in zip(hits_of, atoms, strict=True)]
        rest = (~is_atom.any(0)).double()
        shared_weight = torch.stack([rest.mean(), *[hit.double().mean() for hit in is_atom]])
        shared_mean = (rest * x).sum() / rest.sum()
        shared_variance = (rest * (x - shared_mean).square()).sum() / rest.sum()
        number = rest.sum(0)
        mean = ((rest * x).sum(0) + count * shared_mean) / (number + count)
        variance = ((rest * (x - mean).square()).sum(0) + count * shared_variance) / (number + count)
        hits = torch.stack([number, *[hit.double().sum(0) for hit in is_atom]])
        weight = (hits + count * expand(shared_weight, x)) / (len(x) + count)
        means = torch.stack([mean, *[torch.full_like(mean, float(a)) for a in values]])
        variances = torch.stack([variance, *[torch.full_like(mean, float(w)) for w in widths]])
        return cls(means, variances, weight)

    @classmethod
    def outline(cls, event_shape: tuple[int, ...], num_atoms: int = 0) -> Prior:
        """N(0, 1) and atoms of no weight, to be replaced by what data or a file say."""
        shape = (num_atoms + 1, *event_shape)
        return cls(torch.zeros(shape), torch.ones(shape), torch.full(shape, 1 / (num_atoms + 1)))

    @property
    def event_shape(self) -> tuple[int, ...]:
        return tuple(self.mean.shape[1:])

    @property
    def num_atoms(self) -> int:
        return len(self.mean) - 1

    def forward(self, y: Tensor, sigma: Tensor) -> PriorValues:
        """Values at y ``[N, ...]`` with noise sigma, which broadcasts against y."""
        log_density, scaled_score = [], []
        for m, s_square, log_w in zip(self.mean, self.variance, self.log_weight, strict=True):
            v = s_square + sigma.square()
            e = (y - m) * v.rsqrt()
            log_density.append(log_w - 0.5 * (e.square() + v.log() + _LOG_2PI))
            scaled_score.append(-sigma * v.rsqrt() * e)
        if not self.num_atoms:
            return PriorValues(log_density[0], scaled_score[0], y.new_zeros(0, *y.shape))
        parts = torch.stack(log_density)
        total = parts.logsumexp(0)
        r = (parts - total).exp()
        return PriorValues(total, (r * torch.stack(scaled_score)).sum(0), r[1:])

r"""A mixture of Gaussians with full covariances, as the density of vectors with any noise.

    B(y, sigma) = log sum_k w_k N(y; m_k, C_k + sigma^2 I)

With C_k = U diag(l) U' the noise adds sigma^2 to the eigenvalues l, so that B costs the same at every noise. Its score is
explicit: with the responsibilities r_k,

    grad_y B = -sum_k r_k (C_k + sigma^2 I)^-1 (y - m_k).

Given some of the coordinates, the others follow a mixture again: that of the conditionals of the components, each weighed by
the density that it gives to what is known.
"""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor, nn

_LOG_2PI = math.log(2 * math.pi)
# Numbers that are computed together.
_CACHED = 1 << 16


class Mixture(nn.Module):
    """Gaussians with weights w ``[K]``, means ``[K, D]`` and covariances ``[K, D, D]``, in float64."""

    log_weight: Tensor
    mean: Tensor
    variance: Tensor
    axes: Tensor

    def __init__(self, weight: Tensor, mean: Tensor, covariance: Tensor):
        super().__init__()
        variance, axes = torch.linalg.eigh(covariance.double())
        self.register_buffer("log_weight", weight.double().log())
        self.register_buffer("mean", mean.double())
        self.register_buffer("variance", variance.clamp(min=0.0))
        self.register_buffer("axes", axes)

    @classmethod
    def outline(cls, num: int, dim: int) -> Mixture:
        """N(0, I), ``num`` times, to be replaced by what data or a file say."""
        eye = torch.eye(dim, dtype=torch.float64)
        return cls(torch.full((num,), 1 / num), torch.zeros(num, dim), eye.expand(num, dim, dim))

    @classmethod
    def joined(cls, mixtures: list[Mixture], shares: Tensor) -> Mixture:
        """The mixture of mixtures with their ``shares``, all positive."""
        out = cls.outline(1, mixtures[0].dim)
        out.log_weight = torch.cat([m.log_weight + s.log() for m, s in zip(mixtures, shares.double(), strict=True)])
        for name in ("mean", "variance", "axes"):
            setattr(out, name, torch.cat([getattr(m, name) for m in mixtures]))
        return out

    @property
    def dim(self) -> int:
        """D."""
        return self.mean.shape[1]

    def covariance(self) -> Tensor:
        """``[K, D, D]``."""
        return (self.axes * self.variance[:, None]) @ self.axes.mT

    def log_parts(self, y: Tensor, sigma: float = 0.0) -> Tensor:
        """log w_k N(y; m_k, C_k + sigma^2 I) ``[K, N]`` at y ``[N, D]``, float64."""
        variance = self.variance + sigma**2
        # One product whitens y for all components; few rows at a time stay in the cache.
        inward = self.axes * variance.rsqrt()[:, None]
        shift = (self.mean[:, None] @ inward).flatten()
        inward = inward.transpose(0, 1).flatten(1)
        log_peak = self.log_weight - 0.5 * (variance.log() + _LOG_2PI).sum(-1)
        together = max(16, _CACHED // len(shift))
        square = [(part @ inward - shift).view(-1, *self.mean.shape).square().sum(-1) for part in y.double().split(together)]
        return log_peak[:, None] - 0.5 * torch.cat(square).T

    def forward(self, y: Tensor, sigma: float = 0.0) -> Tensor:
        """B ``[N]``, float64."""
        return self.log_parts(y, sigma).logsumexp(0)

    def score(self, y: Tensor, sigma: float = 0.0) -> Tensor:
        """grad_y B ``[N, D]``, float64."""
        r = self.log_parts(y, sigma).softmax(0)[..., None]
        z = y.double() @ self.axes - (self.mean[:, None] @ self.axes)
        return -(r * ((z / (self.variance[:, None] + sigma**2)) @ self.axes.mT)).sum(0)

    def sample(self, num: int, generator: Generator) -> Tensor:
        """``[num, D]`` draws, float64."""
        k = torch.multinomial(self.log_weight.exp(), num, replacement=True, generator=generator)
        e = torch.randn(num, self.dim, dtype=torch.float64, generator=generator) * self.variance[k].sqrt()
        return self.mean[k] + (self.axes[k] @ e[..., None])[..., 0]

    def mapped(self, matrix: Tensor, shift: Tensor) -> Mixture:
        """The mixture of shift + y M for M = ``matrix`` ``[D, D]``."""
        covariance = matrix.T @ self.covariance() @ matrix
        return Mixture(self.log_weight.exp(), shift + self.mean @ matrix, covariance)

    def marginal(self, known: Tensor) -> Mixture:
        """The mixture of the coordinates of the bool mask ``known`` ``[D]`` alone."""
        return Mixture(self.log_weight.exp(), self.mean[:, known], self.covariance()[:, known][:, :, known])

    def given(self, known: Tensor, values: Tensor) -> Mixture:
        """The mixture of the other coordinates where those of the bool mask ``known`` ``[D]`` have ``values``."""
        covariance, rest = self.covariance(), ~known
        seen = covariance[:, known][:, :, known]
        gain = torch.linalg.solve(seen, covariance[:, known][:, :, rest])
        gap = values.double() - self.mean[:, known]
        mean = self.mean[:, rest] + (gap[:, None] @ gain)[:, 0]
        left = covariance[:, rest][:, :, rest] - covariance[:, rest][:, :, known] @ gain
        weight = self.marginal(known).log_parts(values.double()[None])[:, 0].softmax(0)
        return Mixture(weight, mean, 0.5 * (left + left.mT))

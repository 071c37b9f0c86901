r"""The density that an energy of a table starts from: a mixture of Gaussians in transformed, whitened columns.

    z = T(x)                          every column by itself (:mod:`springwell.tables.transform`)
    u = W (z - mean),  W = C^(-1/2)   C the covariance of z, shrunk towards its diagonal
    p(u) = sum_k w_k N(u; m_k, C_k)

The mixture's EM shrinks every covariance towards the one that all components share, as if it had seen ``strength`` more rows of
the shared one. Several numbers of components and strengths are fitted. What rows that a fit has not seen get from it, in all
folds, decides: EM finds the weights with which the candidates predict these rows best (stacking), and a mixture of mixtures is
a mixture.

References:
    Smyth, Wolpert, "Linearly combining density estimators via stacking", Machine Learning 1999.
    Fraley, Raftery, "Bayesian regularization for normal mixture estimation and model-based clustering", J. Classification 2007.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor, nn

from springwell.energy.mixture import Mixture
from springwell.tables.transform import Affine, Transform

# Rows that mixtures are fitted to.
MOST_ROWS = 4_000
# Rows of the shared covariance that a component's own is mixed with, in units of D + 2.
STRENGTHS = (0.4, 3.0)
NUM_COMPONENTS = (1, 2, 3, 5, 9, 16, 28)
# Above so many rows one fold judges in place of five.
ONE_FOLD = 2_500
# Below so many rows all five folds choose the transform, else two of them.
FEW_ROWS = 600
# Rows of the diagonal that the covariance of all rows is mixed with.
SHRINKAGES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
# The least variance in any direction, in units of a column's variance.
FLOOR = 1e-6
# Width, in units of a column's, of the noise without which constant and dependent columns have no density.
NOISE = 1e-3
_ITERATIONS = 40
_NEGLIGIBLE = 0.02


class Coordinates(nn.Module):
    """x -> u, its inverse, and the logarithm of the volume that it changes.

    Args:
        transform: z = T(x).
        mean: Of z.
        covariance: Of z, positive definite.
    """

    mean: Tensor
    inward: Tensor
    outward: Tensor

    def __init__(self, transform: Transform, mean: Tensor, covariance: Tensor):
        super().__init__()
        self.transform = transform
        values, axes = torch.linalg.eigh(covariance.double())
        values = values.clamp(min=FLOOR)
        self.register_buffer("mean", mean.double())
        self.register_buffer("inward", (axes * values.rsqrt()) @ axes.T)
        self.register_buffer("outward", (axes * values.sqrt()) @ axes.T)

    @classmethod
    def fit(cls, kind: str, x: Tensor) -> Coordinates:
        """The coordinates of data ``[N, D]``, float64."""
        transform = Transform.fit(kind, x)
        z, _ = transform(x)
        return cls(transform, z.mean(0), shrunk(z))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """u ``[N, D]`` and log |du / dx| ``[N]``, float64."""
        z, log_slope = self.transform(x)
        return (z - self.mean) @ self.inward, log_slope.sum(-1) + torch.linalg.slogdet(self.inward)[1]

    def inverse(self, u: Tensor) -> Tensor:
        """x of u."""
        return self.transform.inverse(self.mean + u.double() @ self.outward)


def shrunk(z: Tensor) -> Tensor:
    """The covariance of z ``[N, D]``, mixed with its diagonal as much as rows in other folds want."""
    counts = torch.tensor(SHRINKAGES, dtype=z.dtype)[:, None, None]

    def mixed(rows: Tensor, counts: Tensor) -> Tensor:
        covariance = torch.cov(rows.T, correction=0).reshape(z.shape[1], -1)
        diagonal = covariance.diagonal().clamp(min=FLOOR).diag()
        floor = FLOOR * torch.eye(len(covariance), dtype=z.dtype)
        return (len(rows) * covariance + counts * diagonal) / (len(rows) + counts) + floor

    if len(z) < 10:
        return mixed(z, counts[-1])
    likelihood = torch.zeros(len(counts), dtype=z.dtype)
    for f in range(5):
        judged = torch.arange(len(z)) % 5 == f
        rows = z[~judged]
        normals = Mixture(torch.ones(len(counts)), rows.mean(0).expand(len(counts), -1), mixed(rows, counts))
        likelihood += normals.log_parts(z[judged]).sum(1)
    return mixed(z, counts[likelihood.argmax()])


class Candidate(NamedTuple):
    """A mixture to be fitted: its number of components, and the strength of the shrinkage in units of D + 2."""

    num: int
    strength: float


# What transforms are compared by.
QUICK = (Candidate(1, 1.0), Candidate(5, 3.0))


def candidates(num_rows: int) -> list[Candidate]:
    """What is tried for a table of so many rows."""
    most = max(1, num_rows // 8)
    return [Candidate(k, s) for k in NUM_COMPONENTS if k <= most for s in (STRENGTHS if k > 1 else STRENGTHS[:1])]


def fit_mixture(u: Tensor, candidate: Candidate, seed: int) -> Mixture:
    """EM with shrunk covariances, from the clusters that k-means finds in u ``[N, D]``, float64."""
    from sklearn.cluster import KMeans

    num = min(candidate.num, len(torch.unique(u, dim=0)))
    count = candidate.strength * (u.shape[1] + 2)
    clusters = KMeans(num, n_init=1, random_state=seed).fit(u.numpy()).labels_
    r = torch.nn.functional.one_hot(torch.from_numpy(clusters.astype(np.int64)), num).double()
    mixture, before = _maximised(u, r, count), -torch.inf
    for _ in range(_ITERATIONS if num > 1 else 0):
        parts = mixture.log_parts(u)
        total = parts.logsumexp(0)
        if float(total.mean()) < before + 1e-3:
            break
        before = float(total.mean())
        mixture = _maximised(u, (parts - total).exp().T, count)
    return mixture


def _maximised(u: Tensor, r: Tensor, count: float) -> Mixture:
    """The mixture of responsibilities r ``[N, K]``."""
    n, dim = u.shape
    size = r.sum(0)
    mean = (r.T @ u) / size.clamp(min=1e-9)[:, None]
    scatter = torch.stack([(u - m).T @ ((u - m) * weight[:, None]) for m, weight in zip(mean, r.T, strict=True)])
    eye = torch.eye(dim, dtype=u.dtype)
    shared = scatter.sum(0)
    shared = (shared + shared.diagonal().mean() * eye / n) / (n + 1)
    covariance = (scatter + count * shared) / (size + count)[:, None, None]
    return Mixture((size + 1) / (n + len(size)), mean, covariance + FLOOR * eye)


def stacked(log_densities: Tensor, num_steps: int = 300) -> Tensor:
    """Weights ``[C]`` of candidates whose log-densities at unseen rows are ``[N, C]``, by EM; small ones become 0."""
    weights = torch.full((log_densities.shape[1],), 1 / log_densities.shape[1], dtype=torch.float64)
    for _ in range(num_steps):
        weights = (log_densities + weights.log()).softmax(1).mean(0)
    kept = torch.where(weights < _NEGLIGIBLE, 0.0, weights)
    return kept / kept.sum()


class Start(NamedTuple):
    """A fitted start.

    Attributes:
        coordinates: x -> u.
        mixture: The density of u.
        parts: The mixtures that it was stacked from.
        weights: The weights of the parts.
        scores: Mean log-density of unseen rows by transform, nats.
        unseen: Log-densities of training rows, each by a stack that has not seen it.
    """

    coordinates: Coordinates
    mixture: Mixture
    parts: tuple[Candidate, ...]
    weights: Tensor
    scores: dict[str, float]
    unseen: Tensor

    def refitted(self, x: Tensor, seed: int) -> Mixture:
        """The same stack in the same coordinates, of other rows."""
        x = some_rows(x, seed)
        u, _ = self.coordinates(with_noise(x, noise_widths(x), Generator().manual_seed(seed)))
        return Mixture.joined([fit_mixture(u, c, seed) for c in self.parts], self.weights)


def some_rows(x: Tensor, seed: int, most: int = MOST_ROWS) -> Tensor:
    """At most so many rows, drawn without replacement."""
    if len(x) <= most:
        return x
    return x[torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:most].sort().values]


def noise_widths(x: Tensor) -> Tensor:
    """The width ``[D]`` of the noise that columns of data ``[N, D]`` need to have a density: 0 where none depends on others."""
    scale = Affine.quartiles(x).scale
    z = (x - x.mean(0)) / Affine.moments(x).scale
    correlation = torch.cov(z.T, correction=0).reshape(x.shape[1], -1)
    constant = correlation.diagonal() < 0.5
    twins = (correlation.triu(1).abs() > 1 - 1e-12).any()
    dependent = len(x) > x.shape[1] and torch.linalg.eigvalsh(correlation)[0] < FLOOR
    return NOISE * scale if constant.any() or twins or dependent else torch.zeros_like(scale)


def with_noise(x: Tensor, width: Tensor, generator: Generator) -> Tensor:
    """x + width * e, e normal."""
    return x + width * torch.randn(x.shape, generator=generator, dtype=x.dtype) if bool(width.any()) else x


def folds_of(num_rows: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Rows to fit to and rows to judge by: five folds, or one of them where there are many rows."""
    order = torch.randperm(num_rows, generator=torch.Generator().manual_seed(seed))
    parts = order.tensor_split(min(5, num_rows))
    split = [(torch.cat([p for j, p in enumerate(parts) if j != i]).sort().values, part) for i, part in enumerate(parts)]
    return split if num_rows <= ONE_FOLD else split[:1]


def fit_start(x: Tensor, kinds: Sequence[str], seed: int) -> Start:
    """The start of data ``[N, D]``, float64: the transform among ``kinds`` and the stack that unseen rows prefer."""
    x = some_rows(x, seed)
    noisy = with_noise(x, noise_widths(x), Generator().manual_seed(seed))
    scores = {}
    if len(kinds) > 1:
        folds = folds_of(len(x), seed)[: 5 if len(x) < FEW_ROWS else 2]
        scores = {kind: float(_stack(x, noisy, kind, QUICK, folds, seed)[1].mean()) for kind in kinds}
    kind = max(kinds, key=lambda name: scores.get(name, 0.0))
    tried = candidates(len(x))
    weights, unseen = _stack(x, noisy, kind, tried, folds_of(len(x), seed), seed)
    parts = tuple(c for c, w in zip(tried, weights, strict=True) if float(w) > 0)
    coordinates = Coordinates.fit(kind, noisy)
    scores = scores or {kind: float(unseen.mean())}
    start = Start(coordinates, Mixture.outline(1, x.shape[1]), parts, weights[weights > 0], scores, unseen)
    return start._replace(mixture=start.refitted(x, seed))


def _stack(
    x: Tensor, noisy: Tensor, kind: str, tried: Sequence[Candidate], folds: Sequence[tuple[Tensor, Tensor]], seed: int
) -> tuple[Tensor, Tensor]:
    """The weights of candidates, and the log-densities that unseen rows get with them."""
    scores = []
    for fitted, judged in folds:
        coordinates = Coordinates.fit(kind, noisy[fitted])
        u, _ = coordinates(noisy[fitted])
        v, log_volume = coordinates(x[judged])
        scores.append(torch.stack([fit_mixture(u, c, seed)(v) + log_volume for c in tried], 1))
    log_densities = torch.cat(scores)
    weights = stacked(log_densities)
    return weights, (log_densities + weights.log()).logsumexp(1)

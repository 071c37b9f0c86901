"""The fitted density of a table: the start and the energies that unseen rows prefer, with their shares.

    p(x) = |du / dx| [ s_0 p_mixture(u) + s_1 exp f_1(u) + s_2 exp f_2(u) + ... ]

Every term integrates to 1, and so does p. Nothing here is estimated by sampling but what is said to be.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor, nn

from springwell.energy.columns import ColumnEnergy, ColumnNetwork
from springwell.energy.mixture import Mixture
from springwell.errors import UserError
from springwell.tables.start import Coordinates
from springwell.tables.transform import Affine, Spline, Transform, YeoJohnson

# Rows that are computed together.
CHUNK = 1024
# Candidates for every draw of what is not given, and the least number of them.
CANDIDATES, FEWEST_CANDIDATES = 16, 4096


class Conditional(NamedTuple):
    """Draws of rows some of whose columns are given.

    Attributes:
        x: ``[num, D]``.
        effective: How many of the candidates their importance weights are worth.
        log_density: The log-density of what is given, nats, in the table's units.
        error: Its standard error.
    """

    x: Tensor
    effective: float
    log_density: float
    error: float


class TableDensity(nn.Module):
    """p(x) of rows x ``[N, D]`` in their own units.

    Args:
        coordinates: x -> u.
        mixture: The first term.
        energies: The others.
        shares: ``[1 + len(energies)]``: s.
    """

    log_share: Tensor

    def __init__(self, coordinates: Coordinates, mixture: Mixture, energies: list[ColumnEnergy], shares: Tensor):
        super().__init__()
        self.coordinates, self.mixture, self.energies = coordinates, mixture, nn.ModuleList(energies)
        self.register_buffer("log_share", shares.double().log())
        self.eval()

    @property
    def dim(self) -> int:
        """The number of columns."""
        return self.mixture.dim

    def _terms(self, u: Tensor) -> Tensor:
        """log of the terms of the sum ``[N, 1 + M]``."""
        return torch.stack([term(u) for term in (self.mixture, *self.energies)], 1) + self.log_share

    def forward(self, x: Tensor) -> Tensor:
        """log p ``[N]``, nats, float64; differentiable with respect to x."""
        u, log_volume = self.coordinates(x)
        return self._terms(u).logsumexp(1) + log_volume

    @torch.no_grad()
    def log_prob(self, x: np.ndarray) -> np.ndarray:
        """log p ``[N]`` of an array of any length, in pieces."""
        return np.concatenate([self(rows).numpy() for rows in pieces(x)])

    @torch.enable_grad()
    def score(self, x: np.ndarray) -> np.ndarray:
        """The gradient of log p ``[N, D]`` with respect to every column."""
        parts = []
        for rows in pieces(x):
            rows = rows.requires_grad_()
            (gradient,) = torch.autograd.grad(self(rows).sum(), rows)
            parts.append(gradient.numpy())
        return np.concatenate(parts)

    @torch.no_grad()
    def drivers(self, x: np.ndarray) -> np.ndarray:
        """The score ``[N, D]`` with respect to z, the column made Gaussian: dx / dz is the column's spread where the row lies.

        Far out, where a column has few values, its spread is large and its score small; their product still names the column.
        """
        log_slope = np.concatenate([self.coordinates.transform(rows)[1].numpy() for rows in pieces(x)])
        return self.score(x) * np.exp(-log_slope)

    @torch.no_grad()
    def start_norms(self, x: np.ndarray, sigmas: Sequence[float]) -> np.ndarray:
        """sigma |score| ``[N, L]`` of the mixture with noise sigma, in whitened coordinates, over the L noises."""
        parts = []
        for rows in pieces(x):
            u, _ = self.coordinates(rows)
            parts.append(torch.stack([s * self.mixture.score(u, s).norm(dim=1) for s in sigmas], 1).numpy())
        return np.concatenate(parts)

    @torch.no_grad()
    def sample(self, num: int, generator: Generator) -> Tensor:
        """``[num, D]`` exact draws, float64."""
        term = torch.multinomial(self.log_share.exp(), num, replacement=True, generator=generator)
        u = torch.empty(num, self.dim, dtype=torch.float64)
        for i, part in enumerate((self.mixture, *self.energies)):
            for index in torch.nonzero(term == i)[:, 0].split(CHUNK):
                u[index] = part.sample(len(index), generator)
        return self.coordinates.inverse(u)

    @torch.no_grad()
    def sample_given(self, known: Tensor, values: Tensor, num: int, generator: Generator) -> Conditional:
        """Draws of the other columns where those of the bool mask ``known`` ``[D]`` have ``values``.

        The mixture's conditional is explicit and proposes candidates; importance weights correct them to p, and draws are
        resampled by the weights. The mean weight gives the density of what is known, too.
        """
        if not bool(known.any()) or bool(known.all()):
            raise UserError("given: needs at least one column, and leaves at least one to be drawn")
        count = max(FEWEST_CANDIDATES, CANDIDATES * num)
        z, log_ratio, log_density, error = self._candidates(known, values, count, generator)
        weight = log_ratio.softmax(0)
        index = torch.multinomial(weight, num, replacement=True, generator=generator)
        x = self.coordinates.transform.inverse(z[index])
        x[:, known] = values.double()
        return Conditional(x, float(1 / weight.square().sum()), log_density, error)

    def _candidates(self, known: Tensor, values: Tensor, num: int, generator: Generator) -> tuple[Tensor, Tensor, float, float]:
        """Candidates z ``[num, D]`` of the mixture given ``values``, log p / mixture at them, and log p(values) with its error.

        With the mixture's marginal m, p(values) = m(values) E[p(z) / mixture(z)].
        """
        coordinates = self.coordinates
        filled = torch.zeros(1, self.dim, dtype=torch.float64)
        filled[0, known] = values.double()
        z_known, slope = coordinates.transform(filled)
        in_z = self.mixture.mapped(coordinates.outward, coordinates.mean)
        z = z_known.repeat(num, 1)
        z[:, ~known] = in_z.given(known, z_known[0, known]).sample(num, generator)
        u = (z - coordinates.mean) @ coordinates.inward
        log_ratio = torch.cat([self._terms(part).logsumexp(1) - self.mixture(part) for part in u.split(CHUNK)])
        ratio = log_ratio.exp()
        log_density = in_z.marginal(known)(z_known[:, known])[0] + slope[0, known].sum() + ratio.mean().log()
        return z, log_ratio, float(log_density), float(ratio.std() / ratio.mean() / num**0.5)

    @torch.no_grad()
    def log_prob_given(self, x: np.ndarray, num: int = FEWEST_CANDIDATES) -> tuple[np.ndarray, np.ndarray]:
        """log p ``[N]`` of the cells of each row that are not NaN, the others integrated out, and its standard error ``[N]``.

        The mixture's integral is explicit. That of the energies is the mean over ``num`` candidates of the mixture.
        """
        log_density, error = np.zeros(len(x)), np.zeros(len(x))
        given = ~np.isnan(x)
        whole = given.all(1)
        if whole.any():
            log_density[whole] = self.log_prob(x[whole])
        in_z = self.mixture.mapped(self.coordinates.outward, self.coordinates.mean)
        for pattern in np.unique(given[~whole], axis=0):
            index = np.flatnonzero((given == pattern).all(1))
            known = torch.from_numpy(pattern)
            if len(self.energies) and known.any():
                for i in index:
                    cells = torch.from_numpy(np.array(x[i, pattern], dtype=np.float64))
                    found = self._candidates(known, cells, num, Generator().manual_seed(0))
                    log_density[i], error[i] = found[2:]
            elif known.any():
                z, slope = self.coordinates.transform(torch.from_numpy(np.nan_to_num(np.array(x[index], dtype=np.float64))))
                log_density[index] = (in_z.marginal(known)(z[:, known]) + slope[:, known].sum(1)).numpy()
        return log_density, error

    def description(self) -> dict[str, Any]:
        """What has to be known, beside the tensors, to build the density again; for JSON."""
        transform = self.coordinates.transform
        splines = [stage for stage in transform.stages if isinstance(stage, Spline)]
        sizes = [[len(e.network.up), e.network.inward.out_features, e.network.num_pieces] for e in self.energies]  # type: ignore[union-attr, arg-type]
        return {
            "dim": self.dim,
            "transform": transform.kind,
            "knots": splines[0].knots.shape[1] if splines else 0,
            "components": len(self.mixture.mean),
            "energies": sizes,
        }

    @classmethod
    def from_description(cls, description: dict[str, Any]) -> TableDensity:
        """A density of the sizes that a description says, to be filled by ``load_state_dict``."""
        dim, kind = int(description["dim"]), str(description["transform"])
        zero, one = torch.zeros(dim), torch.ones(dim)
        stages: list[nn.Module] = [Affine(zero, one)]
        if kind != "standard":
            stages += [YeoJohnson(one), Affine(zero, one)]
        if kind == "spline":
            grid = torch.arange(float(description["knots"])).expand(dim, -1)
            stages += [Spline(grid, grid, torch.ones_like(grid), torch.ones(dim, 2)), Affine(zero, one)]
        coordinates = Coordinates(Transform(kind, stages), zero, torch.eye(dim))
        energies = [
            ColumnEnergy(ColumnNetwork(dim, width, depth, num_pieces), torch.arange(dim))
            for depth, width, num_pieces in description["energies"]
        ]
        shares = torch.full((1 + len(energies),), 1 / (1 + len(energies)))
        return cls(coordinates, Mixture.outline(int(description["components"]), dim), energies, shares)


def pieces(x: np.ndarray) -> Iterator[Tensor]:
    """Rows ``[N, D]`` as float64 tensors, some thousands at a time."""
    for first in range(0, len(x), CHUNK):
        # A copy, since a caller's array may be read-only, which torch has no notion of.
        yield torch.from_numpy(np.array(x[first : first + CHUNK], dtype=np.float64))

r"""How the density of a table is fitted, without anything to tune.

1. Some rows are held out. The others give the start (:mod:`springwell.tables.start`).
2. Energies are trained by maximum likelihood, each with an order of columns of its own, as long as the held-out rows gain.
3. The held-out rows decide, by stacking, the shares of the start and of the energies. If the energies gain less than a standard
   error, the start stays alone: the fit is never worse than its start beyond chance.
4. The mixture is fitted again, to all rows.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor, nn

from springwell.energy.columns import ColumnEnergy, ColumnNetwork
from springwell.energy.mixture import Mixture
from springwell.tables.density import TableDensity
from springwell.tables.start import MOST_ROWS, Coordinates, Start, fit_start, noise_widths, stacked, with_noise
from springwell.tables.transform import KINDS
from springwell.training.ema import update_ema

# The fewest rows of which some are held out.
FEWEST = 40
MOST_HELD_OUT = 4000
# Numbers that are transformed once and kept; beyond them every batch is transformed anew.
KEPT = 1 << 25
BATCH = 256
EMA = 0.99


class Recipe(NamedTuple):
    """How energies are trained.

    Attributes:
        num_energies: How many, each with its own order of columns.
        iterations: Updates of each, at most.
        width: Hidden units.
        weight_decay: Of AdamW.
        held_out: Share of the rows.
        lr: Its greatest learning rate.
    """

    num_energies: int
    iterations: int
    width: int
    weight_decay: float
    held_out: float = 0.15
    lr: float = 2e-3


class Fitted(NamedTuple):
    """A fit and how it came about.

    Attributes:
        density: The density.
        unseen: Log-densities of rows that the fit had not seen, nats: the held-out rows, or all of a small table by folds.
        start_unseen: Their mean by the start alone.
        scores: Mean log-density of unseen rows by transform.
        iterations: Updates of every energy until it was best.
    """

    density: TableDensity
    unseen: np.ndarray
    start_unseen: float
    scores: dict[str, float]
    iterations: tuple[int, ...]


def recipe_for(num_rows: int, dim: int) -> Recipe:
    """What suits a table of so many rows and columns."""
    if num_rows < 300 or dim == 1:
        return Recipe(0, 200, 64, 0.3)
    if num_rows < 2500:
        return Recipe(2, 200, 64, 0.3)
    if num_rows < 50_000:
        return Recipe(3, 500, 128, 0.01, 0.1, 4e-3)
    return Recipe(2, 3000, 192, 0.01, 0.05)


class Rows:
    """Batches of u of some rows of X, without a copy of X.

    Args:
        x: ``[N, D]``.
        index: The rows.
        coordinates: x -> u.
        width: ``[D]``: of the noise that is added to x.
    """

    def __init__(self, x: np.ndarray, index: np.ndarray, coordinates: Coordinates, width: Tensor):
        self.x, self.index, self.coordinates, self.width = x, index, coordinates, width
        self.noise = Generator().manual_seed(len(index))
        self.kept = (
            torch.cat([self._u(part) for part in np.array_split(index, 1 + len(index) // 10_000)])
            if (index.size * x.shape[1] <= KEPT)
            else None
        )

    def _u(self, index: np.ndarray) -> Tensor:
        return self.coordinates(with_noise(as_rows(self.x, index), self.width, self.noise))[0].float()

    def draw(self, num: int, generator: Generator) -> Tensor:
        """``[num, D]``, with replacement."""
        i = torch.randint(len(self.index), (num,), generator=generator)
        return self.kept[i] if self.kept is not None else self._u(self.index[i.numpy()])


def as_rows(x: np.ndarray, index: np.ndarray) -> Tensor:
    """The rows ``index`` of X, float64."""
    return torch.from_numpy(np.asarray(x[index], dtype=np.float64))


@contextmanager
def one_thread() -> Iterator[None]:
    """Work on small matrices, which torch's threads slow down: a fit of 10,000 x 10 takes 62 s with two and 35 s with one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@one_thread()
def fit_table(
    x: np.ndarray,
    seed: int = 0,
    kinds: Sequence[str] = KINDS,
    recipe: Recipe | None = None,
) -> Fitted:
    """Fits the density of rows ``[N, D]``.

    Args:
        x: Finite numbers.
        seed: The seed.
        kinds: Transforms to choose from.
        recipe: How energies are trained. Default: what suits the table.
    """
    num, dim = x.shape
    recipe = recipe or recipe_for(num, dim)
    order = np.random.default_rng(seed).permutation(num)
    num_held = min(MOST_HELD_OUT, int(recipe.held_out * num)) if recipe.num_energies and num >= FEWEST else 0
    held, train = np.sort(order[:num_held]), np.sort(order[num_held:])
    chosen = np.sort(order[num_held : num_held + MOST_ROWS])
    start = fit_start(as_rows(x, chosen), kinds, seed)
    if not num_held:
        return _alone(start, start.mixture, ())
    width = noise_widths(as_rows(x, chosen))
    rows, judged = Rows(x, train, start.coordinates, width), start.coordinates(as_rows(x, held))
    energies, iterations = [], []
    for i in range(recipe.num_energies):
        energy, best = train_energy(rows, judged[0], recipe, seed + i)
        energies.append(energy)
        iterations.append(best)
    return _combined(x, np.sort(order[:MOST_ROWS]), start, energies, judged, tuple(iterations), seed)


def _alone(start: Start, mixture: Mixture, iterations: tuple[int, ...]) -> Fitted:
    """The fit by the start alone."""
    density = TableDensity(start.coordinates, mixture, [], torch.ones(1))
    return Fitted(density, start.unseen.numpy(), float(start.unseen.mean()), start.scores, iterations)


def _combined(
    x: np.ndarray,
    chosen: np.ndarray,
    start: Start,
    energies: list[ColumnEnergy],
    judged: tuple[Tensor, Tensor],
    iterations: tuple[int, ...],
    seed: int,
) -> Fitted:
    """The stack of the start and the energies, if held-out rows gain by it, with a mixture of all rows."""
    u, log_volume = judged
    with torch.no_grad():
        log_densities = torch.stack([start.mixture(u), *[energy(u) for energy in energies]], 1)
    weights = stacked(log_densities)
    gain = (log_densities + weights.log()).logsumexp(1) - log_densities[:, 0]
    mixture = start.refitted(as_rows(x, chosen), seed)
    if float(gain.mean()) < float(gain.std()) / math.sqrt(len(gain)):
        return _alone(start, mixture, iterations)
    kept = [energy for energy, w in zip(energies, weights[1:], strict=True) if float(w) > 0]
    # The start keeps a small share, by which it proposes candidates of conditional draws everywhere.
    shares = torch.cat([weights[:1].clamp(min=0.01), weights[1:][weights[1:] > 0]])
    density = TableDensity(start.coordinates, mixture, kept, shares / shares.sum())
    alone = log_densities[:, 0] + log_volume
    return Fitted(density, (alone + gain).numpy(), float(alone.mean()), start.scores, iterations)


def train_energy(rows: Rows, held_out: Tensor, recipe: Recipe, seed: int) -> tuple[ColumnEnergy, int]:
    """An energy by maximum likelihood, as it was when held-out rows ``[N, D]`` liked it best, and its iteration then."""
    dim = held_out.shape[1]
    generator = Generator().manual_seed(seed)
    order = torch.randperm(dim, generator=generator)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        energy = ColumnEnergy(ColumnNetwork(dim, recipe.width), order)
        average, best, best_value, best_at = copy.deepcopy(energy).eval(), energy, -math.inf, 0
        optimiser = torch.optim.AdamW(energy.parameters(), recipe.lr, weight_decay=recipe.weight_decay, fused=True)
        every = max(5, recipe.iterations // 40)
        for i in range(recipe.iterations):
            for group in optimiser.param_groups:
                group["lr"] = recipe.lr * min(1, (i + 1) / 50) * max(0.02, 1 - i / recipe.iterations)
            loss = -energy(rows.draw(BATCH, generator)).mean()
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(energy.parameters(), 5.0)
            optimiser.step()
            update_ema(average, energy, EMA, i - 1)
            with torch.no_grad():
                if (i + 1) % every == 0 and (value := float(average(held_out).mean())) > best_value:
                    best, best_value, best_at = copy.deepcopy(average), value, i + 1
            if i - best_at > 8 * every:
                break
    return best.eval(), best_at

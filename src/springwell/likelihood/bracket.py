r"""A bracket of log Z that can be believed, or says why not.

    lower     forward AIS, or SMC, whichever says more: their errors are on this side whatever the chains do
    upper_s   reverse AIS from source s: an upper bound if the source has drawn from q exactly, and only then

Reverse chains that start where forward chains ended would confirm whatever these missed: of two modes forward finds one, and
both "bounds" agree on half of Z. So there are at least two sources, and neither knows of the forward run: chains that came
down from noise, and chains that began at held-out data, both after many steps at the last density. What they cannot both reach
shows as disagreement. With gap_s = upper_s - lower, all with their standard errors,

    crossed                  some gap_s is negative by more than 4.5 standard errors, or by 3 of them and the tolerance: that
                             source has not drawn from q. The bracket is reported as it is; nothing is sorted
    missed-mode-suspected    some sources agree with the forward run and others do not; or all gaps stay when the number of
                             densities doubles, though the gap of an annealing that is too fast would halve
    loose                    some gap_s is wider than the tolerance
    ok                       every |gap_s|, with two standard errors, is within the tolerance, and no source is seen to drift

The number K of densities doubles until the verdict is ok, or the budget ends. The value between the bounds is Bennett's: the C
at which mean sigmoid(log w - C) over forward chains equals mean sigmoid(C - log w) over reverse ones, w being the weight of
the forward walk in both cases.

References:
    Grosse, Ghahramani, Adams, "Sandwiching the marginal likelihood using bidirectional Monte Carlo", 2015.
    Bennett, "Efficient estimation of free energy differences from Monte Carlo data", J. Computational Physics 1976.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path as FilePath
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from springwell.errors import UserError
from springwell.likelihood.annealed import Estimate, Path, Plan, Walk, average, estimate, jackknife, join, pilot, pooled, walk
from springwell.noise import Noise, Stream
from springwell.progress import Bar, Reporter, Silent
from springwell.store.files import write_atomically

CERTAIN = 4.5
LIKELY = 3.0
STUCK = 0.75
# Every source has a stream of noise of its own, of 16 for each number of densities.
MAX_SOURCES = 6
PILOT_CHAINS = 64


@dataclass(frozen=True)
class Settings:
    """How a bracket is computed.

    Attributes:
        tolerance: Widest gap that is good enough, nats.
        densities: K of the first round.
        budget: Largest K.
        systems: R, independent repeats, from whose spread standard errors come.
        chains: n, chains of a system.
        seed: Of everything.
        batch: Chains that are computed side by side, whole systems.
        num_leapfrog: L; None for the pilot's choice.
    """

    tolerance: float
    densities: int = 64
    budget: int = 1024
    systems: int = 8
    chains: int = 64
    seed: int = 0
    batch: int = 1024
    num_leapfrog: int | None = None

    def check(self) -> None:
        if self.budget < 1 or self.densities < 1:
            raise UserError(f"budget {self.budget}, densities {self.densities}: must both be at least 1")
        if self.systems < 4 or self.chains < 2:
            raise UserError(f"systems {self.systems}, chains {self.chains}: needs at least 4 systems of 2 chains")
        if not self.tolerance > 0:
            raise UserError(f"tolerance {self.tolerance:g}: must be positive")

    @property
    def num(self) -> int:
        return self.systems * self.chains


@dataclass
class Work:
    """Where finished parts of long work are kept, and who does them; processes share a folder and take turns.

    Attributes:
        folder: None: nothing is kept.
        rank: Of this process.
        world: How many there are.
        barrier: Waits for all processes.
        reporter: Is told of progress.
    """

    folder: FilePath | None = None
    rank: int = 0
    world: int = 1
    barrier: Callable[[], AbstractContextManager[Any]] = nullcontext
    reporter: Reporter = field(default_factory=Silent)

    def parts(self, name: str, compute: Sequence[Callable[[], dict[str, Tensor]]], device: torch.device | str) -> list[Any]:
        """The results of ``compute``, in order: read where they are kept, computed by one process each where not."""
        if self.folder is None:
            return [part() for part in compute]
        self.folder.mkdir(parents=True, exist_ok=True)
        paths = [self.folder / f"{name}-{i}.npz" for i in range(len(compute))]
        for i, (path, part) in enumerate(zip(paths, compute, strict=True)):
            if i % self.world == self.rank and _load(path, "cpu") is None:
                _save(path, part())
        with self.barrier():
            pass
        found = [_load(path, device) for path in paths]
        if lost := [path for path, part in zip(paths, found, strict=True) if part is None]:
            raise UserError(f"{lost[0]}: is not there; its process has ended? Run the same command again")
        return found


def _load(path: FilePath, device: torch.device | str) -> dict[str, Tensor] | None:
    """None for a part that is not there or damaged."""
    try:
        with np.load(path) as arrays:
            return {key: torch.from_numpy(value).to(device) for key, value in arrays.items()}
    except (OSError, ValueError, EOFError, KeyError, TypeError, zipfile.BadZipFile, zlib.error):
        return None


def _save(path: FilePath, values: dict[str, Tensor]) -> None:
    arrays: dict[str, Any] = {key: value.cpu().numpy() for key, value in values.items()}
    write_atomically(path, lambda file: np.savez(file, **arrays))


class Round(NamedTuple):
    """Bounds with K densities; nats."""

    num_densities: int
    forward: Estimate
    smc: Estimate
    upper: dict[str, Estimate]

    @property
    def lower(self) -> Estimate:
        """Of the two lower bounds the one that says more; too high by more than b nats with probability at most 2 exp(-b)."""
        return max(self.forward, self.smc, key=lambda bound: bound.value - 2 * bound.standard_error)

    def gap(self, source: str) -> tuple[float, float]:
        """upper - lower and its standard error."""
        upper = self.upper[source]
        return upper.value - self.lower.value, math.hypot(upper.standard_error, self.lower.standard_error)


class Bracket(NamedTuple):
    """The bounds of log Z and what to think of them; nats.

    Attributes:
        verdict: ``ok``, ``loose``, ``crossed`` or ``missed-mode-suspected``.
        reason: Why, in one line.
        value: Bennett's estimate, from the forward chains and those of all sources.
        standard_error: Of ``value``, over systems.
        rounds: Of every K, the last one being the result.
        thermodynamic: Thermodynamic integration with the chains of SMC, and its standard error; no bound.
        log_z_levels: log Z on the way, at every node of the path, by SMC.
        plan: The pilot's.
        settings: What was asked for.
        log_weights: log w of all chains of the last round: ``forward`` and the sources, sign as log Z.
    """

    verdict: str
    reason: str
    value: float
    standard_error: float
    rounds: list[Round]
    thermodynamic: tuple[float, float]
    log_z_levels: list[float]
    plan: Plan
    settings: Settings
    log_weights: dict[str, Tensor]

    @property
    def lower(self) -> Estimate:
        return self.rounds[-1].lower

    @property
    def upper(self) -> dict[str, Estimate]:
        return self.rounds[-1].upper

    @property
    def highest(self) -> Estimate:
        """The most cautious upper bound."""
        return max(self.upper.values(), key=lambda upper: upper.value)

    def record(self) -> dict[str, Any]:
        """Everything but tensors, for JSON."""
        return {
            "verdict": self.verdict,
            "reason": self.reason,
            "log_z": self.value,
            "log_z_standard_error": self.standard_error,
            "log_z_lower": self.lower.value,
            "log_z_lower_standard_error": self.lower.standard_error,
            "log_z_upper": self.highest.value,
            "log_z_upper_standard_error": self.highest.standard_error,
            "gap": {s: dict(zip(("nats", "standard_error"), self.rounds[-1].gap(s), strict=True)) for s in self.upper},
            "thermodynamic_integration": dict(zip(("value", "standard_error"), self.thermodynamic, strict=True)),
            "log_z_levels": self.log_z_levels,
            "rounds": [
                {
                    "num_densities": r.num_densities,
                    "forward": r.forward.record(),
                    "smc": r.smc.record(),
                    "reverse": {s: upper.record() for s, upper in r.upper.items()},
                }
                for r in self.rounds
            ],
            "num_leapfrog": self.plan.num_leapfrog,
            "thermodynamic_length": float(self.plan.length[-1]),
            "settings": asdict(self.settings),
        }


def judge(rounds: Sequence[Round], tolerance: float) -> tuple[str, str]:
    """The verdict on the last round, and its reason."""
    last = rounds[-1]
    gaps = {source: last.gap(source) for source in last.upper}
    for source, (gap, error) in gaps.items():
        if gap < -CERTAIN * error or gap < -max(tolerance, LIKELY * error):
            below = f"the upper bound from {source} is {-gap:.3g} +- {error:.2g} nats below the lower bound"
            return "crossed", f"{below}: these chains have not drawn from the model's density"
    good = [s for s, (gap, error) in gaps.items() if abs(gap) + 2 * error <= tolerance]
    bad = [s for s, (gap, error) in gaps.items() if s not in good and gap - CERTAIN * error > min(g for g, _ in gaps.values())]
    widest = max(gaps, key=lambda s: abs(gaps[s][0]))
    gap, error = gaps[widest]
    if len(good) == len(gaps):
        return "ok", f"the widest gap, {gap:.3g} +- {error:.2g} nats from {widest}, is within {tolerance:.3g} nats"
    if good and bad:
        away = f"chains from {bad[0]} are {gaps[bad[0]][0]:.3g} nats away from the forward run"
        story = f"{away}, chains from {good[0]} agree with it"
        return "missed-mode-suspected", f"{story}: the forward run may have missed a mode that {bad[0]} reach"
    wide = f"the gap from {widest}, {gap:.3g} +- {error:.2g} nats, is not known to be within {tolerance:.3g} nats"
    if abs(gap) < tolerance:
        wide += " (more chains would make it known)"
    if len(rounds) > 1:
        before = rounds[-2].gap(widest)
        if gap > STUCK * before[0] and gap > CERTAIN * error and before[0] > CERTAIN * before[1]:
            stays = f"with {rounds[-2].num_densities} densities it was {before[0]:.3g}"
            return "missed-mode-suspected", f"{wide}; {stays}, and too fast an annealing would halve it"
    return "loose", wide


def bracket(
    path: Path, sources: dict[str, Tensor], settings: Settings, work: Work | None = None, doubts: Sequence[str] = ()
) -> Bracket:
    """Brackets log Z of the last density of ``path``.

    Args:
        path: From N(0, I) to the density in question.
        sources: Draws of that density, ``[R n, ...]`` each, none of which come from a forward run.
        settings: How.
        work: Where parts are kept and shared.
        doubts: Reasons why sources may not have drawn from the density; with one, a bracket is never ``ok``.
    """
    settings.check()
    work = work or Work()
    if not 1 <= len(sources) <= MAX_SOURCES:
        raise UserError(f"sources: {len(sources)} given; give 1 to {MAX_SOURCES}, best 2 that do not know of each other")
    for name, x in sources.items():
        if x.shape != (settings.num, *path.event_shape):
            raise UserError(f"{name}: has shape {list(x.shape)}; needs {[settings.num, *path.event_shape]}")
    x = next(iter(sources.values()))
    with work.reporter.bar("pilot (stops)", min(64, max(16, 2 * path.length)) + 1) as bar:
        (found,) = work.parts("pilot", [lambda: _pilot(path, settings, x, bar)], "cpu")
    plan = Plan(**{**found, "num_leapfrog": int(found["num_leapfrog"])})
    rounds: list[Round] = []
    k = min(settings.densities, settings.budget)
    while True:
        forward = _walks(path, plan, k, None, settings, work, x, "forward", 1)
        reverse = {
            name: _walks(path, plan, k, start, settings, work, x, f"reverse from {name}", 2 + i)
            for i, (name, start) in enumerate(sources.items())
        }
        smc = _walks(path, plan, k, None, settings, work, x, "SMC", 0)
        upper = {name: estimate(found, True) for name, found in reverse.items()}
        rounds.append(Round(k, estimate(forward), estimate(smc), upper))
        verdict, reason = judge(rounds, settings.tolerance)
        gap, error = max((rounds[-1].gap(name) for name in sources), key=lambda pair: abs(pair[0]))
        work.reporter.say(f"{k} densities: widest gap {gap:.3g} +- {error:.2g} nats, {verdict}")
        if verdict == "ok" or 2 * k > settings.budget:
            break
        k *= 2
    if verdict != "ok":
        reason += f"; the budget of {settings.budget} densities ended"
    elif doubts:
        verdict = "loose"
    reason = "; ".join([reason, *doubts])
    backwards = torch.cat([-found.log_weight for found in reverse.values()], 1)
    value, error = bennett(forward.log_weight, backwards)
    assert smc.thermodynamic is not None
    weights = {"forward": forward.log_weight, **{name: -found.log_weight for name, found in reverse.items()}}
    positions = plan.densities(k)[1:]
    nodes = [int((positions - j).abs().argmin()) for j in range(1, path.length + 1)]
    levels = [pooled(smc.partial[:, i])[0] if abs(float(positions[i]) - j) < 1e-9 else math.nan for j, i in enumerate(nodes, 1)]
    return Bracket(verdict, reason, value, error, rounds, average(smc.thermodynamic), levels, plan, settings, weights)


def _pilot(path: Path, settings: Settings, x: Tensor, bar: Bar) -> dict[str, Tensor]:
    noise = Noise(settings.seed, torch.arange(PILOT_CHAINS, device=x.device), Stream.BRACKET, dtype=x.dtype)
    plan = pilot(path, noise, settings.num_leapfrog, watch=bar.advance)
    return {**plan._asdict(), "num_leapfrog": torch.tensor(plan.num_leapfrog)}


def _walks(
    path: Path,
    plan: Plan,
    num_densities: int,
    start: Tensor | None,
    settings: Settings,
    work: Work,
    like: Tensor,
    name: str,
    stream: int,
) -> Walk:
    """All systems, in batches; forwards from noise if there is no ``start``, and SMC if ``stream`` is 0."""
    n, together = settings.chains, max(1, settings.batch // settings.chains)
    batches = [range(first, min(first + together, settings.systems)) for first in range(0, settings.systems, together)]

    def compute(systems: range) -> dict[str, Tensor]:
        index = torch.arange(systems.start * n, systems.stop * n, device=like.device)
        number = Stream.BRACKET + 16 * num_densities + stream
        noise = Noise(settings.seed, index, number, dtype=like.dtype)
        x = noise.normal(*path.event_shape) if start is None else start[index]
        resample = None
        if stream == 0:
            resample = Noise(settings.seed, torch.tensor(list(systems), device=like.device), number + 8, dtype=torch.float64)
        found = walk(path, plan, num_densities, x, noise, len(systems), start is not None, resample, watch=bar.advance)
        kept = {key: value for key, value in found._asdict().items() if value is not None}
        return {**kept, "num_gradients": torch.tensor(found.num_gradients)}

    mine = -(-len(batches) // work.world)
    with work.reporter.bar(f"{name}, {num_densities} densities", mine * num_densities) as bar:
        slug = f"{name}-{num_densities}".replace(" ", "-").lower()
        found = work.parts(slug, [partial(compute, batch) for batch in batches], like.device)
    return join([Walk(**{"thermodynamic": None, **part, "num_gradients": int(part["num_gradients"])}) for part in found])


def bennett(forward: Tensor, backwards: Tensor) -> tuple[float, float]:
    """Bennett's estimate of log Z from log w ``[R, n]`` of forward and ``[R, m]`` of reverse walks; jackknife over systems."""

    def solve(f: Tensor, b: Tensor) -> float:
        low, high = float(min(f.min(), b.min())) - 1, float(max(f.max(), b.max())) + 1
        for _ in range(200):
            c = 0.5 * (low + high)
            # The difference falls as C rises.
            if float(torch.sigmoid(f - c).mean() - torch.sigmoid(c - b).mean()) > 0:
                low = c
            else:
                high = c
        return 0.5 * (low + high)

    num = len(forward)
    value = solve(forward, backwards)
    keep = [[j for j in range(num) if j != i] for i in range(num)]
    without = torch.tensor([solve(forward[k], backwards[k]) for k in keep], dtype=torch.float64)
    return value, jackknife(without)

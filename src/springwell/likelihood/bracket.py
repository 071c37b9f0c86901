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

Along the noise of an energy that knows it (:mod:`springwell.likelihood.diffusion`) SMC is the forward run, and its conditional
kind the reverse one, for which every draw of a source has a system of its own.

The number K of densities doubles until the verdict is ok, or the budget ends. The value between the bounds is Bennett's: the C
at which mean sigmoid(log w - C) over forward chains equals mean sigmoid(C - log w) over reverse ones, w being the weight of
the forward walk in both cases.

References:
    Grosse, Ghahramani, Adams, "Sandwiching the marginal likelihood using bidirectional Monte Carlo", 2015.
    Bennett, "Efficient estimation of free energy differences from Monte Carlo data", J. Computational Physics 1976.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from springwell.errors import UserError, kind_of
from springwell.likelihood.annealed import (
    Estimate,
    Path,
    Plan,
    Walk,
    Walkers,
    average,
    estimate,
    jackknife,
    join,
    plain_path,
    pooled,
)
from springwell.likelihood.diffusion import NoisePath
from springwell.noise import Noise, Stream
from springwell.progress import Reporter, Silent
from springwell.samplers.target import LogDensity

CERTAIN = 4.5
LIKELY = 3.0
STUCK = 0.75
# Every source has a stream of noise of its own, of 16 for each number of densities.
MAX_SOURCES = 6
PILOT_CHAINS = 64
TOLERANCE = 0.1


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

    Examples:
        >>> settings = sw.likelihood.Settings(tolerance=0.05, budget=256)
        >>> draws = {"exact": torch.randn(800, 2, generator=torch.Generator().manual_seed(0))}
        >>> sw.likelihood.bracket(lambda x: -x.square().sum(-1) / 2, draws, settings).settings.budget
        256
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
        if not isinstance(self.tolerance, (int, float)) or not self.tolerance > 0:
            raise UserError(f"tolerance={self.tolerance!r}: must be positive, in nats")

    @property
    def num(self) -> int:
        return self.systems * self.chains


class Kept(Protocol):
    """Keeps the results of finished tasks, and shares tasks between processes, as ``springwell.store.parts.Parts`` does."""

    @property
    def world(self) -> int:
        """The number of processes."""

    def run(
        self, name: str, tasks: Sequence[Callable[[], dict[str, Tensor]]], device: torch.device | str
    ) -> list[dict[str, Tensor]]:
        """The results of all tasks, in order."""


class Round(NamedTuple):
    """Bounds with K densities; nats."""

    num_densities: int
    forward: Estimate
    smc: Estimate
    upper: dict[str, Estimate]

    @property
    def lower(self) -> Estimate:
        """The larger of the two lower bounds; it is too high by more than b nats with probability at most 2 exp(-b)."""
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
        thermodynamic: Thermodynamic integration with the chains of SMC, and its standard error; no bound. None along the noise.
        log_z_levels: log Z on the way, at every node of the path, by SMC; empty along the noise.
        plan: The pilot's.
        settings: What was asked for.
        log_weights: log w ``[R, n]`` of all chains (along the noise: of all systems) of the last round: ``forward`` and the
            sources, sign as log Z.
        along_noise: Whether the path was along the noise.

    Examples:
        >>> found = sw.likelihood.bracket(lambda x: -x.square().sum(-1) / 2, {"exact": torch.randn(800, 2)}, tolerance=0.1)
        >>> value, error, name = found.quoted  # log Z in nats, its standard error, and which estimate it is
    """

    verdict: str
    reason: str
    value: float
    standard_error: float
    rounds: list[Round]
    thermodynamic: tuple[float, float] | None
    log_z_levels: list[float]
    plan: Plan
    settings: Settings
    log_weights: dict[str, Tensor]
    along_noise: bool = False

    def __repr__(self) -> str:
        found, error, name = self.quoted
        value = f"log Z {found:.6g} +- {error:.2g} nats ({name})"
        bounds = f"bounds {self.lower.value:.6g} and {self.highest.value:.6g}"
        return f"<bracket, {self.verdict}: {value}, {bounds}; {self.reason}>"

    def doubted(self, doubts: Sequence[str]) -> Bracket:
        """The bracket, with reasons why sources may not have drawn from the density; with one, it is never ``ok``."""
        verdict = "loose" if doubts and self.verdict == "ok" else self.verdict
        return self._replace(verdict=verdict, reason="; ".join([self.reason, *doubts]))

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

    @property
    def quoted(self) -> tuple[float, float, str]:
        """The number to quote, its standard error and its name: Bennett's, or the lower bound where the bracket is crossed.

        Bennett's estimate presumes that reverse chains have drawn from the density, which a crossed bracket refutes. What is
        left is the lower bound, which no chain can make wrong.
        """
        if self.verdict == "crossed":
            return self.lower.value, self.lower.standard_error, "lower bound"
        return self.value, self.standard_error, "Bennett"

    def record(self) -> dict[str, Any]:
        """Everything but tensors, for JSON."""
        value, error, name = self.quoted
        return {
            "verdict": self.verdict,
            "reason": self.reason,
            "log_z": value,
            "log_z_standard_error": error,
            "log_z_quoted": name,
            "log_z_bennett": self.value,
            "log_z_bennett_standard_error": self.standard_error,
            "log_z_lower": self.lower.value,
            "log_z_lower_standard_error": self.lower.standard_error,
            "log_z_upper": self.highest.value,
            "log_z_upper_standard_error": self.highest.standard_error,
            "gap": {s: dict(zip(("nats", "standard_error"), self.rounds[-1].gap(s), strict=True)) for s in self.upper},
            "thermodynamic_integration": self.thermodynamic
            and dict(zip(("value", "standard_error"), self.thermodynamic, strict=True)),
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
            "along_noise": self.along_noise,
            "num_leapfrog": self.plan.num_leapfrog,
            "thermodynamic_length": float(self.plan.length[-1]),
            "settings": asdict(self.settings),
        }


def judge(rounds: Sequence[Round], tolerance: float, bounded: bool = False) -> tuple[str, str]:
    """The verdict on the last round, and its reason; a log-density that is known to be ``bounded`` hides no mass far out."""
    last = rounds[-1]
    gaps = {source: last.gap(source) for source in last.upper}
    for source, (gap, error) in gaps.items():
        if gap < -CERTAIN * error or gap < -max(tolerance, LIKELY * error):
            below = f"the upper bound from {source} is {-gap:.3g} +- {error:.2g} nats below the lower bound"
            found = "annealing finds mass where these chains do not go"
            unbounded = "" if bounded else "; a network whose output is unbounded may have put it there"
            return "crossed", f"{below}: {found}{unbounded}"
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
    target: LogDensity | Path | NoisePath,
    sources: Mapping[str, Tensor],
    settings: Settings | None = None,
    *,
    tolerance: float | None = None,
    parts: Kept | None = None,
    reporter: Reporter | None = None,
    plan: Plan | None = None,
) -> Bracket:
    """Brackets log Z = log int exp(target), with standard errors and a verdict.

        found = bracket(log_density, {"chains": x, "data": y}, tolerance=0.1)
        found.verdict, found.lower.value, found.highest.value

    Args:
        target: Any log-density x ``[N, ...]`` -> ``[N]``, which is reached from the Gaussian of the sources' mean and
            spread; or a path of densities, whose last one is meant; or a path along the noise of an energy that knows it.
        sources: Draws of the density, ``[M, ...]`` each, none of which come from a forward run. Each source may have another
            number of rows; the last ones, beyond a multiple of the number of systems, are left out.
        settings: How; see :class:`Settings`.
        tolerance: The widest gap that is good enough, nats, in place of the settings'.
        parts: Keeps finished parts and shares them between processes. Default: nothing is kept.
        reporter: Receives progress updates.
        plan: What :func:`planned` found for the path. Default: a pilot finds it.

    Examples:
        >>> log_density = lambda x: -x.square().sum(-1) / 2
        >>> draws = {"exact": torch.randn(800, 2, generator=torch.Generator().manual_seed(0))}
        >>> found = sw.likelihood.bracket(log_density, draws, tolerance=0.1)
        >>> found.verdict, abs(found.value - math.log(2 * math.pi)) < 0.1
        ('ok', True)
    """
    settings = settings or Settings(TOLERANCE if tolerance is None else tolerance)
    settings = settings if tolerance is None else replace(settings, tolerance=tolerance)
    settings.check()
    sources = _checked(sources, settings.systems)
    path, sources = (target, sources) if isinstance(target, (Path, NoisePath)) else _standardised(target, sources)
    for name, x in sources.items():
        if tuple(x.shape[1:]) != path.event_shape:
            raise UserError(f"{name}: has shape {list(x.shape)}; needs [M, {', '.join(map(str, path.event_shape))}]")
    job = _Job(path, settings, next(iter(sources.values())), parts, reporter or Silent())
    plan = plan or job.pilot()
    rounds: list[Round] = []
    k = min(settings.densities, settings.budget)
    # Along the noise SMC has a reverse of its own.
    annealed = isinstance(path, Path)
    while True:
        smc = job.walks(plan, k, "SMC", 0)
        forward = job.walks(plan, k, "forward", 1) if annealed else smc
        reverse = {
            name: job.walks(plan, k, f"reverse from {name}", 2 + i, start) for i, (name, start) in enumerate(sources.items())
        }
        upper = {name: estimate(found, True) for name, found in reverse.items()}
        rounds.append(Round(k, estimate(forward), estimate(smc), upper))
        verdict, reason = judge(rounds, settings.tolerance, bounded=not annealed)
        gap, error = max((rounds[-1].gap(name) for name in sources), key=lambda pair: abs(pair[0]))
        job.reporter.say(f"{k} densities: widest gap {gap:.3g} +- {error:.2g} nats, {verdict}")
        if verdict == "ok" or 2 * k > settings.budget:
            break
        k *= 2
    if verdict != "ok":
        reason += f"; the budget of {settings.budget} densities ended"

    def weights_of(found: Walk) -> Tensor:
        return found.log_weight if annealed else found.log_ratio.view(settings.systems, -1)

    weights = {"forward": weights_of(forward), **{name: -weights_of(found) for name, found in reverse.items()}}
    value, error = bennett(weights["forward"], torch.cat([weights[name] for name in reverse], 1))
    levels = _log_z_levels(smc, plan.densities(k)[1:], path.length) if annealed else []
    thermodynamic = None if smc.thermodynamic is None else average(smc.thermodynamic)
    return Bracket(verdict, reason, value, error, rounds, thermodynamic, levels, plan, settings, weights, not annealed)


def planned(path: Path | NoisePath, settings: Settings, like: Tensor, parts: Kept | None, reporter: Reporter) -> Plan:
    """What the pilot of a bracket finds; ``like`` has the dtype and the device of the chains."""
    return _Job(path, settings, like, parts, reporter).pilot()


def _checked(sources: Mapping[str, Tensor], systems: int) -> dict[str, Tensor]:
    """The sources, each cut to a multiple of the number of systems."""
    if not isinstance(sources, Mapping):
        raise UserError(f"sources: is {kind_of(sources)}; give draws by name, such as {{'chains': x}}")
    if not 1 <= len(sources) <= MAX_SOURCES:
        raise UserError(f"sources: {len(sources)} given; give 1 to {MAX_SOURCES}, best 2 that do not know of each other")
    tensors = {name: torch.as_tensor(x) if _is_numbers(x) else x for name, x in sources.items()}
    first = next(iter(tensors.values()))
    for name, x in tensors.items():
        if not isinstance(x, Tensor) or x.ndim < 2 or not x.is_floating_point():
            what = f"{x.dtype} {list(x.shape)}" if isinstance(x, Tensor) else kind_of(x)
            raise UserError(f"sources: '{name}' is {what}; give a tensor or an array of floats [M, ...]")
        if x.shape[1:] != first.shape[1:]:
            shapes = f"{list(first.shape[1:])} and {list(x.shape[1:])}"
            raise UserError(f"sources: have draws of the shapes {shapes}; all need the same one")
        if len(x) < 2 * systems:
            least = f"{2 * systems}, 2 for each of {systems} systems"
            raise UserError(f"sources: '{name}' has {len(x)} rows; needs at least {least}")
    return {name: x[: len(x) // systems * systems] for name, x in tensors.items()}


def _is_numbers(x: object) -> bool:
    return isinstance(x, np.ndarray) and x.dtype.kind == "f"


def _standardised(target: LogDensity, sources: dict[str, Tensor]) -> tuple[Path, dict[str, Tensor]]:
    """The path from the Gaussian of the sources' mean and spread to ``target``, in coordinates where that one is N(0, I)."""
    if not callable(target):
        raise UserError(f"target: is {kind_of(target)}; give a callable x [N, ...] -> [N], or a Path")
    every = torch.cat(list(sources.values()))
    shift, scale = every.mean(0), every.std(0).clamp(min=1e-6)
    volume = scale.double().log().sum()

    def standardised(u: Tensor) -> Tensor:
        return target(shift + scale * u) + volume.to(u.dtype)

    return plain_path(standardised, tuple(shift.shape)), {name: (x - shift) / scale for name, x in sources.items()}


def _log_z_levels(smc: Walk, positions: Tensor, length: int) -> list[float]:
    """log Z by SMC at the nodes 1 ... ``length`` of the path; NaN where no density lies at the node."""
    nodes = [int((positions - j).abs().argmin()) for j in range(1, length + 1)]
    return [pooled(smc.partial[:, i])[0] if abs(float(positions[i]) - j) < 1e-9 else math.nan for j, i in enumerate(nodes, 1)]


@dataclass(frozen=True)
class _Job:
    """What all walks of a bracket share; ``like`` has the dtype and the device of the chains."""

    path: Path | NoisePath
    settings: Settings
    like: Tensor
    parts: Kept | None
    reporter: Reporter

    def run(self, name: str, tasks: list[Callable[[], dict[str, Tensor]]], device: torch.device | str) -> list[Any]:
        return [task() for task in tasks] if self.parts is None else self.parts.run(name, tasks, device)

    def pilot(self) -> Plan:
        def compute() -> dict[str, Tensor]:
            index = torch.arange(PILOT_CHAINS, device=self.like.device)
            noise = Noise(self.settings.seed, index, Stream.BRACKET, dtype=self.like.dtype)
            plan = self.path.plan(noise, self.settings.num_leapfrog, bar.advance)
            return {**plan._asdict(), "num_leapfrog": torch.tensor(plan.num_leapfrog)}

        with self.reporter.bar("pilot (stops)", self.path.pilot_stops) as bar:
            (found,) = self.run("pilot", [compute], "cpu")
        return Plan(**{**found, "num_leapfrog": int(found["num_leapfrog"])})

    def walks(self, plan: Plan, num_densities: int, name: str, stream: int, start: Tensor | None = None) -> Walk:
        """All systems, in batches; forwards from noise if there is no ``start``, and SMC if ``stream`` is 0.

        Along the noise every walk is SMC, and every row of ``start`` has a system of its own.
        """
        path, settings, device, dtype = self.path, self.settings, self.like.device, self.like.dtype
        conditional = start is not None and isinstance(path, NoisePath)
        num = len(start) if start is not None and conditional else settings.systems
        n = settings.chains if start is None or conditional else len(start) // num
        together = max(1, settings.batch // n)
        batches = [range(first, min(first + together, num)) for first in range(0, num, together)]

        def compute(systems: range) -> dict[str, Tensor]:
            index = torch.arange(systems.start * n, systems.stop * n, device=device)
            number = Stream.BRACKET + 16 * num_densities + stream
            noise = Noise(settings.seed, index, number, dtype=dtype)
            x = path.start(noise) if start is None else start[systems.start : systems.stop] if conditional else start[index]
            resample = None
            if stream == 0 or conditional:
                resample = Noise(settings.seed, torch.tensor(list(systems), device=device), number + 8, dtype=torch.float64)
            walkers = Walkers(x, noise, len(systems), resample)
            found = path.walk(plan, num_densities, walkers, start is not None, bar.advance)
            kept = {key: value for key, value in found._asdict().items() if value is not None}
            return {**kept, "num_gradients": torch.tensor(found.num_gradients)}

        mine = -(-len(batches) // (self.parts.world if self.parts else 1))
        with self.reporter.bar(f"{name}, {num_densities} densities", mine * num_densities) as bar:
            slug = f"{name}-{num_densities}".replace(" ", "-").lower()
            found = self.run(slug, [partial(compute, batch) for batch in batches], device)
        return join([Walk(**{"thermodynamic": None, **part, "num_gradients": int(part["num_gradients"])}) for part in found])


def bennett(forward: Tensor, backwards: Tensor) -> tuple[float, float]:
    """Bennett's estimate of log Z from log w ``[R, n]`` of forward and ``[R, m]`` of reverse walks; jackknife over systems.

    Examples:
        >>> g = torch.Generator().manual_seed(0)
        >>> w = torch.randn(8, 500, generator=g, dtype=torch.float64)
        >>> value, error = sw.likelihood.bennett(3 - 0.5 + w, 3 + 0.5 + w.flip(0))  # log Z = 3, log w ~ N(3 -+ 1/2, 1)
        >>> abs(value - 3) < 0.1
        True
    """

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

r"""The partition function by annealing: AIS forwards and backwards, and SMC, over any path of densities.

A path is a row of log-densities log q_s, known up to constants but for the first, the standard normal; between two of them it
is their geometric mean,

    log q_s = (1 - beta) log q_j + beta log q_{j+1},        s = j + beta.

With 0 = s_0 < s_1 < ... < s_K the end of the path, and T_k a Markov kernel that leaves q_{s_k} invariant,

    x_0 ~ q_0;     log w += log q_{s_k}(x_{k-1}) - log q_{s_{k-1}}(x_{k-1}),     x_k ~ T_k(x_{k-1}),      k = 1 ... K

gives E w = Z for every K and every T_k (Neal): log mean w is a stochastic *lower* bound of log Z. The same path walked back
from x_K ~ q_{s_K} gives E w = 1 / Z, and -log mean w is a stochastic *upper* bound, but only if x_K is an exact draw. Both err
on their side by more than b nats with probability at most exp(-b). SMC resamples the chains of a system by their weights
whenever their effective number falls below a share of them; its estimate of Z is unbiased too, so its log is a lower bound.
Beside it, thermodynamic integration by the trapezoidal rule,

    log Z ~ sum_k ( E_{k-1} Delta_k + E_k Delta_k ) / 2,         Delta_k = log q_{s_k} - log q_{s_{k-1}},

is no bound, but it errs in another way. Chains form systems of equal size, independent of each other; each of them gives an
estimate, and their spread the standard error.

A pilot finds step sizes and where densities are needed most: it measures the thermodynamic length, the sum of the standard
deviations of Delta_k, along which equal steps are best. If one HMC step of L leapfrogs leaves Delta with the autocorrelation
rho, log w has about (1 + rho) / (1 - rho) times the variance that independent draws would give it, at 1 + L gradients a
density; the pilot takes the L with the least product. Then everything is frozen. Weights are float64.

For a model the path goes through its levels: N(0, I), then q_j(x) = f(scale_t x, t) with t = T - j, in the coordinates x_t,
whose variance is 1 at every level (in those of y_t = a_{t+1} x_t neighbours of wide hops would not overlap). What it ends with
is log int exp f(scale_0 x, 0) dx = log Z_0 - D log scale_0.

References:
    Neal, "Annealed importance sampling", Statistics and Computing 2001.
    Del Moral, Doucet, Jasra, "Sequential Monte Carlo samplers", JRSS B 2006.
    Grosse, Ghahramani, Adams, "Sandwiching the marginal likelihood using bidirectional Monte Carlo", 2015.
    Gelman, Meng, "Simulating normalizing constants", Statistical Science 1998.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from springwell.energy.base import EnergyFunction, at_level
from springwell.errors import DivergenceError, UserError
from springwell.noise import Noise
from springwell.samplers.adaptation import Tuning, interpolate, tune_step_size
from springwell.samplers.base import Kernel, State, begin
from springwell.samplers.hmc import hmc
from springwell.samplers.target import LogDensity
from springwell.schedule import NoiseSchedule
from springwell.shapes import expand

# Of a schedule, the share that is spread evenly over the path: the pilot's length is an estimate, and nowhere zero steps.
EVEN_SHARE = 0.2
RESAMPLE_BELOW = 0.5
COLLAPSED = 0.05
# Of 8 log-normal estimates whose logs spread so, log Z is within 3 jackknife errors of the log of the mean half of the time.
WIDE = 4.0
# HMC steps take a random share of the tuned step, in [1 - JITTER, 1]: a trajectory of half a period would come out at -x, where
# every symmetric energy is what it was.
JITTER = 0.4
# How a pilot finds step sizes at every stop, and its first guess, in units of the standard normal.
TUNING, FIRST_STEP = Tuning(num_steps=10), 0.5
_LEAPFROGS = (1, 2, 4, 8)
_JUDGED_STOPS, _JUDGED_STEPS = 5, 4

Node = Callable[[int], LogDensity]


def standard_normal(x: Tensor) -> Tensor:
    """log N(x; 0, I) ``[N]``."""
    x = x.flatten(1)
    return -0.5 * (x.square().sum(-1) + x.shape[1] * math.log(2 * math.pi))


class Path:
    """Densities from the standard normal to the one in question.

    Args:
        nodes: After the standard normal: number of chains N -> log-density of x ``[N, ...]``.
        event_shape: Shape of one sample.
        names: What the nodes are called in errors.

    Examples:
        >>> path = sw.likelihood.Path([lambda num: lambda x: -x.square().sum(-1) / 8], event_shape=(2,))
        >>> path.length, path.dim
        (1, 2)
    """

    def __init__(self, nodes: Sequence[Node], event_shape: tuple[int, ...], names: Sequence[str] | None = None):
        if not nodes:
            raise UserError("path: needs at least one density beside the standard normal")
        self.nodes: list[Node] = [lambda num: standard_normal, *nodes]
        self.event_shape = event_shape
        self.names = ["N(0, I)", *(names or [f"density {i}" for i in range(1, len(nodes) + 1)])]

    @property
    def length(self) -> int:
        """Where the path ends."""
        return len(self.nodes) - 1

    @property
    def dim(self) -> int:
        return math.prod(self.event_shape)

    @property
    def pilot_stops(self) -> int:
        """Where a pilot measures: 2 places per node, at least 16 and at most 64, and the start."""
        return min(64, max(16, 2 * self.length)) + 1

    def at(self, s: float, num: int) -> LogDensity:
        """log q_s for ``num`` chains."""
        j = min(int(s), self.length)
        beta = s - j
        if beta == 0:
            return self.nodes[j](num)
        first, second = self.nodes[j](num), self.nodes[j + 1](num)
        return lambda x: (1 - beta) * first(x) + beta * second(x)

    def start(self, noise: Noise) -> Tensor:
        """Draws of the first density."""
        return noise.normal(*self.event_shape)

    def plan(self, noise: Noise, num_leapfrog: int | None, watch: Callable[[], None]) -> Plan:
        """What a pilot finds; see :func:`pilot`."""
        return pilot(self, noise, num_leapfrog, watch=watch)

    def walk(self, plan: Plan, num_densities: int, walkers: Walkers, backwards: bool, watch: Callable[[], None]) -> Walk:
        """Walks chains along the path; see :func:`walk`."""
        return walk(self, plan, num_densities, walkers, backwards, watch)

    def name(self, s: float) -> str:
        j = min(int(s), self.length)
        return self.names[j] if s == j else f"{self.names[j]} ... {self.names[j + 1]}"


def plain_path(logdensity: LogDensity, event_shape: tuple[int, ...]) -> Path:
    """N(0, I) to one log-density.

    Examples:
        >>> path = sw.likelihood.plain_path(lambda x: -x.square().sum(-1) / 8, event_shape=(2,))
        >>> draws = {"exact": 2 * torch.randn(800, 2, generator=torch.Generator().manual_seed(0))}
        >>> found = sw.likelihood.bracket(path, draws, tolerance=0.1)
        >>> abs(found.value - math.log(8 * math.pi)) < 0.1
        True
    """
    return Path([lambda num: logdensity], event_shape)


def level_path(energy: EnergyFunction, schedule: NoiseSchedule, event_shape: tuple[int, ...]) -> Path:
    """N(0, I), then the levels T-1 ... 0 of a model in the coordinates x_t.

    Examples:
        >>> model = sw.load("checkerboard")
        >>> sw.likelihood.level_path(model.energy_function, model.schedule, model.event_shape).names
        ['N(0, I)', 'level 3', 'level 2', 'level 1', 'level 0']
    """

    def node(level: int) -> Node:
        def at(num: int) -> LogDensity:
            f = at_level(energy, torch.full((num,), level, device=schedule.device))
            # A tensor of the device: reading its value would make the device wait at every density.
            scale = schedule.scale[level]
            return lambda x: f(scale * x)

        return at

    levels = list(reversed(range(schedule.num_levels)))
    return Path([node(t) for t in levels], event_shape, [f"level {t}" for t in levels])


class Plan(NamedTuple):
    """What a pilot found, to be frozen.

    Attributes:
        position: ``[M]``, float64: where on the path it measured, from 0 to the end.
        length: ``[M]``: thermodynamic length from the start.
        step_size: ``[M]``.
        acceptance: ``[M]``.
        num_leapfrog: L of the HMC steps.

    Examples:
        >>> path = sw.likelihood.plain_path(lambda x: -x.square().sum(-1) / 8, (2,))
        >>> plan = sw.likelihood.pilot(path, sw.Noise(0, torch.arange(64)))
        >>> plan.places(4).shape  # s_0 ... s_4
        torch.Size([5])
    """

    position: Tensor
    length: Tensor
    step_size: Tensor
    acceptance: Tensor
    num_leapfrog: int

    def places(self, num: int) -> Tensor:
        """s_0 ... s_K of K = ``num`` equal steps of the length, a share of which is spread evenly over the positions."""
        if num < 1:
            raise UserError(f"number of densities {num}: must be at least 1")
        even = self.position / self.position[-1]
        share = self.length / self.length[-1] if float(self.length[-1]) > 0 else even
        return interpolate(
            torch.linspace(0, 1, num + 1, dtype=torch.float64), torch.lerp(share, even, EVEN_SHARE), self.position
        )

    def densities(self, num: int) -> Tensor:
        """The places of K = ``num`` steps, but for those that lead to nodes of the path."""
        s = self.places(num)
        # Between nodes a density costs two networks, and nodes are levels, so the place nearest to a node moves there.
        nodes = torch.arange(round(float(self.position[-1])) + 1, dtype=torch.float64)
        right = torch.searchsorted(s, nodes).clamp(1, num)
        nearest = torch.where(nodes - s[right - 1] < s[right] - nodes, right - 1, right)
        s[nearest] = nodes
        s[0], s[-1] = nodes[0], nodes[-1]
        return s.unique()

    def steps(self, s: Tensor) -> Tensor:
        """Step sizes at positions ``s``."""
        return interpolate(s, self.position, self.step_size.double().log()).exp()


def pilot(
    path: Path,
    noise: Noise,
    num_leapfrog: int | None = None,
    watch: Callable[[], None] = lambda: None,
) -> Plan:
    """Walks the path once with few chains, tunes their step size at every stop and measures how long the path is.

    Args:
        path: The path.
        noise: For the pilot's chains.
        num_leapfrog: L of the HMC steps. Default: of 1, 2, 4 and 8 the one with the least variance per gradient.
        watch: Called after every stop.

    Examples:
        >>> path = sw.likelihood.plain_path(lambda x: -x.square().sum(-1) / 8, (2,))
        >>> plan = sw.likelihood.pilot(path, sw.Noise(0, torch.arange(64)))
        >>> plan.position.shape, plan.step_size.shape
        (torch.Size([17]), torch.Size([17]))
    """
    num_positions = path.pilot_stops - 1
    position = torch.linspace(0, path.length, num_positions + 1, dtype=torch.float64)
    position = position.round() if num_positions <= path.length else position
    kernel, x = hmc(num_leapfrog or 2), noise.normal(*path.event_shape)
    steps: list[float] = []
    accepted: list[float] = []
    lengths, costs = [0.0], torch.zeros(len(_LEAPFROGS), dtype=torch.float64)
    judged = {round((i + 0.5) * num_positions / _JUDGED_STOPS) for i in range(_JUDGED_STOPS)} if num_leapfrog is None else set()
    for i, s in enumerate(position.tolist()):
        here = path.at(s, len(x))
        first = torch.tensor([steps[-1] if steps else FIRST_STEP], device=x.device)
        with warnings.catch_warnings():
            # Of few chains at many stops some miss the band by a little; only chains that stand still are an error.
            warnings.simplefilter("ignore", RuntimeWarning)
            rounds = TUNING if i == 0 else TUNING._replace(max_rounds=2)
            tuned = tune_step_size(kernel, here, x, first, noise, tuning=rounds)
        if not float(tuned.acceptance) > COLLAPSED:
            found = f"acceptance {float(tuned.acceptance):.3g} at step size {float(tuned.step_size):.3g}"
            raise UserError(f"chains collapse at {path.name(s)}: {found}; train longer, or give more densities")
        x = tuned.y
        steps.append(float(tuned.step_size))
        accepted.append(float(tuned.acceptance))
        if i < num_positions:
            with torch.no_grad():
                increment = path.at(float(position[i + 1]), len(x))(x).double() - here(x).double()
            if not bool(torch.isfinite(increment).all()):
                raise DivergenceError(f"pilot: the log-density is not finite at {path.name(s)}; train longer, or other levels")
            lengths.append(lengths[-1] + float(increment.std()))
            if i in judged:
                costs += _costs(here, path.at(float(position[i + 1]), len(x)), x, tuned.step_size, noise)
        watch()
    length, step, acceptance = (torch.tensor(values, dtype=torch.float64) for values in (lengths, steps, accepted))
    return Plan(position, length, step, acceptance, num_leapfrog or _LEAPFROGS[int(costs.argmin())])


def _costs(here: LogDensity, there: LogDensity, x: Tensor, step_size: Tensor, noise: Noise) -> Tensor:
    """(1 + L) (1 + rho) / (1 - rho) of every L, rho the autocorrelation of log q_there - log q_here over one HMC step."""
    costs = []
    for num_leapfrog in _LEAPFROGS:
        kernel = hmc(num_leapfrog)
        state = kernel.init(x, here)
        seen = []
        for _ in range(_JUDGED_STEPS + 1):
            with torch.no_grad():
                seen.append(there(state.y).double() - _required(state.logdensity).double())
            state, _, _ = _transition(kernel, state, here, step_size[0], noise)
        centred = torch.stack(seen) - torch.stack(seen).mean()
        rho = (centred[1:] * centred[:-1]).mean() / centred.square().mean().clamp(min=1e-300)
        rho = rho.clamp(0.0, 0.98)
        costs.append((1 + num_leapfrog) * (1 + rho) / (1 - rho))
    return torch.stack(costs).cpu()


class Walk(NamedTuple):
    """What a walk along the path found, R systems of n chains.

    Attributes:
        log_ratio: ``[R]``, float64: estimate of log(Z_end / Z_start) of each system; see ``bound``.
        log_weight: ``[R, n]``: log w of every chain; since the last resampling, if there was one.
        thermodynamic: ``[R]``: the same by thermodynamic integration; None if not asked for.
        acceptance: ``[K]``: mean over chains at every density that had transitions.
        num_gradients: Per chain.
        ess: ``[R]``: effective number of the chains that ``log_weight`` leaves, as a share of n; the least on the way for SMC.
        partial: ``[R, K]``: log Z of every density on the way less that of the first.

    Examples:
        >>> path = sw.likelihood.plain_path(lambda x: -x.square().sum(-1) / 8, (2,))
        >>> plan, noise = sw.likelihood.pilot(path, sw.Noise(0, torch.arange(64))), sw.Noise(1, torch.arange(64))
        >>> found = sw.likelihood.walk(path, plan, 16, sw.likelihood.Walkers(noise.normal(2), noise, num_systems=8))
        >>> found.log_weight.shape, found.log_ratio.shape
        (torch.Size([8, 8]), torch.Size([8]))
    """

    log_ratio: Tensor
    log_weight: Tensor
    thermodynamic: Tensor | None
    acceptance: Tensor
    num_gradients: int
    ess: Tensor
    partial: Tensor


def log_mean(log_w: Tensor) -> Tensor:
    """log mean exp along the last dimension."""
    return log_w.logsumexp(-1) - math.log(log_w.shape[-1])


def effective_share(log_w: Tensor) -> Tensor:
    """(sum w)^2 / (n sum w^2) of weights ``[R, n]``, in (0, 1]."""
    return (2 * log_w.logsumexp(-1) - (2 * log_w).logsumexp(-1)).exp() / log_w.shape[-1]


def picked(log_w: Tensor, place: Tensor) -> Tensor:
    """The chains ``[R, m]`` at places in (0, 1) ``[R, m]`` of the distribution functions of weights ``[R, n]``."""
    cumulative = torch.softmax(log_w, -1).cumsum(-1)
    return torch.searchsorted(cumulative, place * cumulative[:, -1:]).clamp(max=log_w.shape[1] - 1)


def resampled(log_w: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
    """Which chain continues in the place of each ``[R n]``, and which systems were resampled ``[R]``.

    Args:
        log_w: ``[R, n]``.
        place: Where the survivors are picked ``[R, n]``, in (0, 1).
    """
    num_systems, n = log_w.shape
    due = effective_share(log_w) < RESAMPLE_BELOW
    chosen = torch.where(due[:, None], picked(log_w, place), torch.arange(n, device=log_w.device))
    return (chosen + n * torch.arange(num_systems, device=log_w.device)[:, None]).flatten(), due


class LogWeights:
    """The log-weights of R systems of n chains on their way, and what resampling has taken out of them.

    Attributes:
        log_w: ``[R, n]``, since the last resampling of each system.
        log_z: ``[R]``: what resampling has taken out.
        least: ``[R]``: the least effective number before a resampling, as a share of n.
        partial: The log-estimate ``[R]`` after every increment.
    """

    def __init__(self, num_systems: int, num_chains: int, device: torch.device):
        self.shape = num_systems, num_chains // num_systems
        self.log_w = torch.zeros(self.shape, dtype=torch.float64, device=device)
        self.log_z, self.least = torch.zeros_like(self.log_w[:, 0]), torch.ones_like(self.log_w[:, 0])
        self.partial: list[Tensor] = []

    def add(self, increment: Tensor) -> None:
        """Weighs the chains by one more factor, whose log is ``[R, n]``."""
        self.log_w = self.log_w + increment
        self.partial.append(self.log_z + log_mean(self.log_w))

    def resample(self, place: Tensor) -> Tensor:
        """Resamples the systems that need it: which chain continues in the place of each ``[R n]``; see :func:`resampled`."""
        self.least = self.ess
        index, due = resampled(self.log_w, place)
        self.log_z = self.log_z + torch.where(due, log_mean(self.log_w), 0.0)
        self.log_w = torch.where(due[:, None], 0.0, self.log_w)
        return index

    @property
    def ess(self) -> Tensor:
        """``[R]``: the least effective number of chains so far, as a share of n."""
        return torch.minimum(self.least, effective_share(self.log_w))

    def walk(self, thermodynamic: Tensor | None, acceptance: Tensor, num_gradients: int) -> Walk:
        """What a walk found that ends with these weights."""
        log_ratio, partial = self.log_z + log_mean(self.log_w), torch.stack(self.partial, -1)
        return Walk(log_ratio, self.log_w, thermodynamic, acceptance, num_gradients, self.ess, partial)


class Walkers(NamedTuple):
    """The chains of a walk, R systems of n.

    Attributes:
        x: Where they start ``[R n, ...]``: draws of the density that the walk starts at.
        noise: For R n chains.
        num_systems: R; chains of a system are neighbours.
        resample: Randomness of R systems; SMC with thermodynamic integration. None for AIS.

    Examples:
        >>> noise = sw.Noise(0, torch.arange(64))
        >>> walkers = sw.likelihood.Walkers(noise.normal(2), noise, num_systems=8)
        >>> walkers.x.shape
        torch.Size([64, 2])
    """

    x: Tensor
    noise: Noise
    num_systems: int = 1
    resample: Noise | None = None

    def check(self, path: Path) -> None:
        """Refuses chains of another shape, or systems of fewer than two."""
        n = len(self.x) // self.num_systems
        if tuple(self.x.shape[1:]) != path.event_shape or n * self.num_systems != len(self.x) or n < 2:
            needs = f"[R n, {', '.join(map(str, path.event_shape))}], R = {self.num_systems}"
            raise UserError(f"x: has shape {list(self.x.shape)}; needs {needs}")


def walk(
    path: Path,
    plan: Plan,
    num_densities: int,
    walkers: Walkers,
    backwards: bool = False,
    watch: Callable[[], None] = lambda: None,
) -> Walk:
    """Walks chains along the path, from the standard normal to its end or back, and weighs them.

    Args:
        path: The path.
        plan: Step sizes and lengths, frozen.
        num_densities: K.
        walkers: The chains.
        backwards: Walk from the end of the path to the standard normal.
        watch: Called after every density.

    Examples:
        >>> path = sw.likelihood.plain_path(lambda x: -x.square().sum(-1) / 8, (2,))
        >>> plan, noise = sw.likelihood.pilot(path, sw.Noise(0, torch.arange(64))), sw.Noise(1, torch.arange(512))
        >>> found = sw.likelihood.walk(path, plan, 16, sw.likelihood.Walkers(noise.normal(2), noise, num_systems=8))
        >>> abs(sw.likelihood.estimate(found).value - math.log(8 * math.pi)) < 0.2
        True
    """
    walkers.check(path)
    s = plan.densities(num_densities)
    s = s.flip(0) if backwards else s
    step_size, num = plan.steps(s), len(walkers.x)
    systems = _Systems(walkers, hmc(plan.num_leapfrog), path.at(float(s[0]), num))
    for k in range(1, len(s)):
        systems.weigh(path.at(float(s[k]), num))
        # The last density of AIS needs no transition: nothing is weighed after it.
        if k < len(s) - 1 or walkers.resample is not None:
            systems.move(step_size[k])
        watch()
    return systems.found()


class _Systems:
    """Chains on their way along a path, with their weights."""

    def __init__(self, walkers: Walkers, kernel: Kernel, here: LogDensity):
        x, self.noise, self.resample, self.kernel, self.here = walkers.x, walkers.noise, walkers.resample, kernel, here
        self.state, _ = begin(kernel, x, here, torch.ones(1, device=x.device))
        self.weights = LogWeights(walkers.num_systems, len(x), x.device)
        self.integral, self.gradients = torch.zeros_like(self.weights.log_z), 0
        self.acceptance: list[Tensor] = []

    def weigh(self, there: LogDensity) -> None:
        """Goes from one density to the next without moving: log w += log q_there - log q_here."""
        new = self.kernel.init(self.state.y, there)
        self.gradients += 1
        self._integrate(increment := _difference(new, self.state))
        self.weights.add(increment.view(self.weights.shape))
        self.state, self.before, self.here = new, self.here, there

    def move(self, step_size: Tensor) -> None:
        """Resamples where that is due, and makes a transition at the present density."""
        if self.resample is not None:
            # Systematic: one uniform a system, and equal distances.
            n, uniform = self.weights.shape[1], self.resample.uniform()
            index = self.weights.resample((torch.arange(n, device=uniform.device) + uniform[:, None]) / n)
            self.state = State(*[_required(value)[index] for value in self.state])
        self.state, accepted, used = _transition(self.kernel, self.state, self.here, step_size, self.noise)
        self.acceptance.append(accepted)
        self.gradients += used
        if self.resample is not None:
            with torch.no_grad():
                self._integrate(_required(self.state.logdensity).double() - self.before(self.state.y).double())

    def _integrate(self, difference: Tensor) -> None:
        """Adds half a step of the trapezoidal rule, from log q_there - log q_here of every chain."""
        share = torch.softmax(self.weights.log_w, -1)
        self.integral += 0.5 * (share * difference.view(share.shape)).sum(-1)

    def found(self) -> Walk:
        """What the walk found."""
        if not bool(torch.isfinite(self.weights.log_w).all()):
            raise DivergenceError("annealing: log-weights are not finite; the density has places where f is not a number")
        acceptance = torch.stack(self.acceptance) if self.acceptance else torch.ones(0)
        return self.weights.walk(self.integral if self.resample is not None else None, acceptance, self.gradients)


def _transition(
    kernel: Kernel, state: State, logdensity: LogDensity, step_size: Tensor, noise: Noise
) -> tuple[State, Tensor, int]:
    """One step of a random share of the step size, its mean acceptance, and the gradients it took."""
    delta = step_size.to(state.y) * (1 - JITTER * noise.uniform()).to(state.y)
    state, info = kernel.step(state, logdensity, expand(delta, state.y), noise)
    return state, _required(info.acceptance).mean(), int(info.num_gradients)


def _difference(new: State, old: State) -> Tensor:
    return _required(new.logdensity).double() - _required(old.logdensity).double()


def _required(value: Tensor | None) -> Tensor:
    assert value is not None
    return value


class Estimate(NamedTuple):
    """An estimate of log Z, nats.

    Attributes:
        value: Of all systems together.
        standard_error: Jackknife over systems.
        bound: ``lower``, ``upper`` or ``none``: on which side of log Z it errs.
        num_systems: R.
        num_chains: R n.
        num_densities: K.
        ess: Mean effective number of a system's chains.
        acceptance: Least and mean over densities.
        num_gradients: Per chain.
        mean_log_weight: Mean of log w, sign as ``value``: the same bound without the log-mean, looser and steadier.

    Examples:
        >>> found = sw.likelihood.bracket(lambda x: -x.square().sum(-1) / 2, {"exact": torch.randn(800, 2)})
        >>> isinstance(found.lower, sw.likelihood.Estimate), found.lower.bound
        (True, 'lower')
    """

    value: float
    standard_error: float
    bound: str
    num_systems: int
    num_chains: int
    num_densities: int
    ess: float
    acceptance: tuple[float, float]
    num_gradients: int
    mean_log_weight: float

    def record(self) -> dict[str, Any]:
        return {name: list(v) if isinstance(v, tuple) else v for name, v in self._asdict().items()}


def estimate(found: Walk, backwards: bool = False) -> Estimate:
    """The bound that a walk gives: from below forwards, from above backwards.

    Examples:
        >>> path = sw.likelihood.plain_path(lambda x: -x.square().sum(-1) / 8, (2,))
        >>> plan, noise = sw.likelihood.pilot(path, sw.Noise(0, torch.arange(64))), sw.Noise(1, torch.arange(64))
        >>> found = sw.likelihood.walk(path, plan, 16, sw.likelihood.Walkers(noise.normal(2), noise, num_systems=8))
        >>> bound = sw.likelihood.estimate(found)
        >>> bound.bound, bound.num_systems
        ('lower', 8)
    """
    sign = -1.0 if backwards else 1.0
    value, error = pooled(found.log_ratio)
    num_systems, n = found.log_weight.shape
    accepted = (float(found.acceptance.min()), float(found.acceptance.mean())) if len(found.acceptance) else (1.0, 1.0)
    return Estimate(
        sign * value,
        error,
        "upper" if backwards else "lower",
        num_systems,
        num_systems * n,
        found.partial.shape[-1],
        n * float(found.ess.mean()),
        accepted,
        found.num_gradients,
        sign * float(found.log_weight.mean()),
    )


def pooled(log_ratio: Tensor) -> tuple[float, float]:
    """One bound from R estimates given by their logs, and its standard error.

    It is the log of their mean, with an error by the jackknife. Where the standard deviation of the logs is above :data:`WIDE`
    that hangs on the largest of them, and the jackknife knows nothing of larger ones; there it is the mean of the logs, by
    Jensen's inequality as much a bound, with an error that can be trusted.
    """
    num, value = len(log_ratio), float(log_mean(log_ratio))
    if num < 2:
        return value, math.nan
    if float(log_ratio.std()) > WIDE:
        return average(log_ratio)
    return value, jackknife(torch.stack([log_mean(torch.cat([log_ratio[:i], log_ratio[i + 1 :]])) for i in range(num)]))


def jackknife(without: Tensor) -> float:
    """The standard error of an estimate, from its values ``[R]`` without the r-th of R systems."""
    num = len(without)
    return math.sqrt((num - 1) / num * float((without - without.mean()).square().sum()))


def average(values: Tensor) -> tuple[float, float]:
    """The mean of R values and its standard error."""
    return float(values.mean()), float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def join(walks: Sequence[Walk]) -> Walk:
    """One walk of the systems of several, which had the same plan."""
    weights = [w.log_weight.shape[0] for w in walks]
    share = torch.tensor(weights, dtype=torch.float64) / sum(weights)
    integrals = [w.thermodynamic for w in walks if w.thermodynamic is not None]
    return Walk(
        torch.cat([w.log_ratio for w in walks]),
        torch.cat([w.log_weight for w in walks]),
        torch.cat(integrals) if integrals else None,
        torch.stack([w.acceptance.double() for w in walks], -1) @ share.to(walks[0].acceptance.device),
        walks[0].num_gradients,
        torch.cat([w.ess for w in walks]),
        torch.cat([w.partial for w in walks]),
    )

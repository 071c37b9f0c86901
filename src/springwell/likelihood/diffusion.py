r"""The partition function by walking along the noise: importance weights of denoising against noising.

For energies f(y, sigma) of noisy data y = x + sigma eps, sigma_0 < ... < sigma_K. Noising is a Markov chain whose kernels are
known, and the energy's derivatives give a Gaussian guess of its reversal. With rho = sigma_k^2 / sigma_{k+1}^2,

    noising    q(y_{k+1} | y_k) = N(y_k, sigma_{k+1}^2 - sigma_k^2)
    denoising  r(y_k | y_{k+1}) = N(y_{k+1} + (1 - rho) sigma_{k+1} u, tau^2)
               u_i      = sigma_{k+1} d f / d y_i                             minus the mean of eps_i given y_{k+1}
               v_i      = 1 + d f / d log sigma_i - u_i^2                     the variance of eps_i given y_{k+1}
               tau_i^2  = sigma_{k+1}^2 (1 - rho) (rho + (1 - rho) v_i)

all at y_{k+1} and from one backward pass. The mean and the variances of r are those of the true reversal if f is the
log-density of y; where f is not, everything below holds all the same. y_K comes from a density p_K that is known (the prior of
the energy with noise sigma_K), and

    log w = f(y_0, sigma_0) + sum_k [ log q(y_{k+1} | y_k) - log r(y_k | y_{k+1}) ] - log p_K(y_K)

has E w = Z_0 = int exp f(y, sigma_0) dy when y is drawn by denoising from p_K: its log-mean is a stochastic *lower* bound of
log Z_0. These are the weights of annealed importance sampling in another space of paths. There are no step sizes, no
acceptance, and one gradient per step; at every sigma the step has the size that the density there allows in each coordinate,
which Hamiltonian chains with one step size do not have. The n chains of a system are resampled on the way (SMC) whenever few of
them carry the weight, by the weights that the same formula gives with f(y_k, sigma_k) in place of f(y_0, sigma_0). The
system's estimate of Z_0, the product of its mean weights, is unbiased too.

The upper bound walks the other way. y_0 is a draw from exp f(., sigma_0) / Z_0, and noising leads it up to y_K. A system then
denoises as before, but its first chain has to follow that path down and survives every resampling (conditional SMC). Its
estimate Z' of Z_0 has E 1 / Z' = 1 / Z_0 if y_0 is an exact draw: -log mean 1 / Z' is a stochastic *upper* bound. One draw
serves a whole system, and the bound tightens with n as the lower one does. With n = 1 it is the reverse walk of annealed
importance sampling. If p(Z) is the law of a system's estimate, that of a conditional one is p(Z) Z / Z_0, so that Bennett's
estimate applies to the two.

Between two hops, chains may move: an HMC step that leaves exp f(., sigma_k) invariant changes no weight. It mends what a hop
has spoilt, it makes resampled copies differ from each other, and it finds mass that denoising alone does not reach. On the
way up, the path of a conditional system moves in the same way: the step is reversible, so that E 1 / Z' = 1 / Z_0 still
holds.

A pilot finds where steps are needed most, and the step sizes of moves, in units of sigma_k. The weight of a hop has a
standard deviation that is proportional to the hop's length in log sigma, so the sum of these standard deviations along the
way is a length, and equal steps of it make the variance of log w least (as the thermodynamic length does in
:mod:`springwell.likelihood.annealed`). Then the steps are frozen.

References:
    Doucet, Grathwohl, Matthews, Strathmann, "Score-based diffusion meets annealed importance sampling", NeurIPS 2022.
    Bao, Li, Zhu, Zhang, "Analytic-DPM: an analytic estimate of the optimal reverse variance", ICLR 2022.
    Grosse, Ghahramani, Adams, "Sandwiching the marginal likelihood using bidirectional Monte Carlo", 2015.
    Andrieu, Doucet, Holenstein, "Particle Markov chain Monte Carlo methods", JRSS B 2010.
    Gilks, Berzuini, "Following a moving target: Monte Carlo inference for dynamic Bayesian models", JRSS B 2001.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from springwell.energy.residual import LevelEnergy, ResidualEnergy
from springwell.likelihood.annealed import LogWeights, Plan, Walk, Walkers, picked
from springwell.noise import Noise
from springwell.normalised import derivatives
from springwell.samplers import hmc
from springwell.samplers.base import State
from springwell.schedule import NoiseSchedule

_LOG_2PI = math.log(2 * math.pi)
# Bounds of v: a variance given y is not negative, and a guess of it is not to be trusted far above 1.
LEAST, MOST = 1e-3, 4.0
PILOT_STEPS = 64
# Moves: leapfrogs, the first step size in units of sigma D^(-1/6), the pilot's acceptance and how fast it leads there.
LEAPFROGS, FIRST_STEP, ACCEPTANCE, ADAPTATION, MOST_STEP = 8, 1.5, 0.7, 0.15, 2.0

Energy = Callable[[Tensor, Tensor], Tensor]


class Point(NamedTuple):
    """Chains at one noise: y ``[N, ...]``, f ``[N]``, u and d f / d log sigma_i, both of the shape of y."""

    y: Tensor
    f: Tensor
    u: Tensor
    g: Tensor

    def at(self, index: Tensor) -> Point:
        """The chains of these numbers."""
        return Point(*[value[index] for value in self])


def point(energy: Energy, y: Tensor, sigma: float) -> Point:
    """What one backward pass tells of y ``[N, ...]``."""
    f, u, g = derivatives(energy, y, torch.full((len(y),), sigma, dtype=y.dtype, device=y.device))
    return Point(y, f.detach(), u, g)


class Reversal(NamedTuple):
    """The mean and the standard deviation tau of the Gaussian guess r(y_k | y_{k+1}), both ``[N, ...]``."""

    mean: Tensor
    std: Tensor


def reversal(here: Point, sigma: float, lower: float) -> Reversal:
    """r from noise ``sigma`` down to noise ``lower``."""
    rho = (lower / sigma) ** 2
    v = (1 + here.g - here.u.square()).clamp(LEAST, MOST)
    std = sigma * ((1 - rho) * (rho + (1 - rho) * v)).sqrt()
    return Reversal(here.y + (1 - rho) * sigma * here.u, std)


class Moves:
    """HMC steps at every noise.

    Args:
        energy: f(y, sigma).
        num_leapfrog: L.
        step_size: Of sigma_0 ... sigma_K, in units of sigma_k.
        target: In a pilot, the acceptance that step sizes are led to on the way; None keeps them.
    """

    def __init__(self, energy: Energy, num_leapfrog: int, step_size: Sequence[float], target: float | None = None):
        self.energy, self.kernel, self.num_leapfrog = energy, hmc(num_leapfrog), num_leapfrog
        self.step_size, self.target = list(step_size), target

    def __call__(self, k: int, sigma: float, here: Point, noise: Noise) -> Tensor:
        """Where the chains are after a step at sigma_k."""
        level = torch.full((len(here.y),), sigma, dtype=here.y.dtype, device=here.y.device)
        state = State(here.y, here.f, here.u / sigma)
        step = torch.full((), self.step_size[k] * sigma, dtype=here.y.dtype, device=here.y.device)
        new, info = self.kernel.step(state, lambda y: self.energy(y, level), step, noise)
        if self.target is not None and k and info.acceptance is not None:
            factor = math.exp(ADAPTATION * (float(info.acceptance.mean()) - self.target))
            self.step_size[k - 1] = min(MOST_STEP, self.step_size[k] * factor)
        return new.y


def normal_log_density(x: Tensor, mean: Tensor, std: Tensor | float) -> Tensor:
    """log N(x; mean, std^2) of independent coordinates, summed in float64: ``[N]``."""
    std = torch.as_tensor(std, dtype=x.dtype, device=x.device)
    e = ((x - mean) / std).double().square() + 2 * std.double().log() + _LOG_2PI
    return -0.5 * e.expand(x.shape).flatten(1).sum(-1)


def denoising_walk(
    energy: ResidualEnergy,
    sigma: Tensor,
    noise: Noise,
    num_systems: int = 1,
    resample: Noise | None = None,
    kept: Tensor | None = None,
    moves: Moves | None = None,
    watch: Callable[[Tensor], None] = lambda increment: None,
) -> tuple[Walk, Tensor]:
    """Walks from the prior at sigma_K down to sigma_0. It has eight arguments: the walk, its randomness, and three options.

    Args:
        energy: f(y, sigma), with the prior that the walk starts from.
        sigma: sigma_0 ... sigma_K, rising, float64.
        noise: For R n chains.
        num_systems: R; chains of a system are neighbours.
        resample: Randomness of R systems; None for plain importance weights.
        kept: ``[K + 1, 2, R, ...]``: where the first chain of every system has to be at y_0 ... y_K, before and after its move.
        moves: HMC steps before every hop.
        watch: Receives the log-weights ``[R, n]`` that every hop adds.

    Returns:
        The weights, and where the chains ended.
    """
    levels = sigma.tolist()
    num, shape = len(noise), energy.event_shape

    def obeyed(y: Tensor, k: int, after: int = 0) -> Tensor:
        if kept is not None:
            y.view(num_systems, -1, *shape)[:, 0] = kept[k, after]
        return y

    y = obeyed(energy.prior.sample(noise, levels[-1]), -1)
    top = torch.full((), levels[-1], dtype=y.dtype, device=y.device)
    before = energy.prior(y, top).log_density.double().flatten(1).sum(-1)
    weights = LogWeights(num_systems, num, y.device)
    for k in range(len(levels) - 2, -1, -1):
        upper, lower = levels[k + 1], levels[k]
        here = point(energy, y, upper)
        weights.add(increment := (here.f.double() - before).view(weights.shape))
        if k < len(levels) - 2:
            watch(increment)
        if resample is not None:
            # Places are independent, so that a system with a chain that has to stay is resampled as one without.
            index = weights.resample(resample.uniform(weights.shape[1]))
            if kept is not None:
                index.view(weights.shape)[:, 0] = weights.shape[1] * torch.arange(num_systems, device=y.device)
            here = here.at(index)
        if moves is not None:
            here = point(energy, obeyed(moves(k + 1, upper, here, noise), k + 1, 1), upper)
        r = reversal(here, upper, lower)
        y = obeyed(r.mean + r.std * noise.normal(*shape), k)
        hop = math.sqrt(upper**2 - lower**2)
        # The next f replaces this one, and the hop's densities come on top.
        before = here.f.double() - normal_log_density(here.y, y, hop) + normal_log_density(y, r.mean, r.std)
    with torch.no_grad():
        f = energy(y, torch.full((num,), levels[0], dtype=y.dtype, device=y.device)).double()
    weights.add(increment := (f - before).view(weights.shape))
    watch(increment)
    gradients = (len(levels) - 1) * (1 if moves is None else moves.num_leapfrog + 2)
    return weights.walk(None, torch.ones(0), gradients), y


def noising_walk(
    energy: ResidualEnergy,
    sigma: Tensor,
    y: Tensor,
    noise: Noise,
    resample: Noise | None = None,
    moves: Moves | None = None,
    watch: Callable[[Tensor], None] = lambda increment: None,
) -> Walk:
    """Walks from draws y ``[R, ...]`` of exp f(., sigma_0), each with a system of n chains, up to the prior and back down.

    The arguments are those of :func:`denoising_walk`; ``noise`` is for R n chains. What is returned is the log of 1 / Z'.
    """
    # The chain that has to follow the path makes no use of its own noise on the way down.
    own = noise.every(len(noise) // len(y))
    path = [torch.stack([y, y])]
    for k, (lower, upper) in enumerate(pairwise(sigma.tolist()), 1):
        after = path[-1][0] + math.sqrt(upper**2 - lower**2) * own.normal(*energy.event_shape)
        before = after if moves is None else moves(k, upper, point(energy, after, upper), own)
        path.append(torch.stack([before, after]))
    found, _ = denoising_walk(energy, sigma, noise, len(y), resample, torch.stack(path), moves, watch)
    return found._replace(log_ratio=-found.log_ratio, log_weight=-found.log_weight, partial=-found.partial)


class NoisePath:
    """Paths along the noise of an energy that knows it, from its prior at sigma_K to level 0 of a schedule.

    It takes the place of an annealing path in :func:`springwell.likelihood.bracket`. Draws are in the coordinates x_0 of the
    schedule's level 0, and log Z is log int exp f(scale_0 x, 0) dx, as for the path through the levels.

    Args:
        energy: f(y, t) of the levels.
        schedule: The levels.
    """

    length, pilot_stops = 1, PILOT_STEPS

    def __init__(self, energy: LevelEnergy, schedule: NoiseSchedule):
        self.energy, self.event_shape = energy.energy, energy.energy.event_shape
        self.low, self.high = float(energy.sigma[0]), float(energy.sigma[-1])
        # y = x_0 / abar_0, and f(y_0, 0) is a density of y_0 = scale_0 x_0.
        self.shrink, self.offset = float(schedule.a_cum[0]), -self.dim * math.log(float(schedule.scale[0]))

    @property
    def dim(self) -> int:
        return math.prod(self.event_shape)

    def start(self, noise: Noise) -> Tensor:
        """Nothing to begin with: the denoising walk draws from the prior itself."""
        return torch.zeros(len(noise), *self.event_shape, dtype=noise.dtype, device=noise.device)

    def plan(self, noise: Noise, num_leapfrog: int | None, watch: Callable[[], None]) -> Plan:
        """Where steps are needed: chains walk down in equal ratios, and the spread of their weights is a length.

        Args:
            noise: For the chains of the pilot.
            num_leapfrog: L of the moves; 0 for none. Default: 8.
            watch: Is called after every hop.
        """
        spread: list[Tensor] = []

        def see(increment: Tensor) -> None:
            spread.append(increment.std())
            watch()

        num_leapfrog = LEAPFROGS if num_leapfrog is None else num_leapfrog
        first = FIRST_STEP * self.dim ** (-1 / 6)
        moves = Moves(self.energy, num_leapfrog, [first] * (PILOT_STEPS + 1), ACCEPTANCE) if num_leapfrog else None
        denoising_walk(self.energy, self.sigmas(PILOT_STEPS), noise, moves=moves, watch=see)
        # Walks come down, positions go up.
        length = torch.stack(spread[::-1]).cpu().cumsum(0)
        position = torch.linspace(0, 1, PILOT_STEPS + 1, dtype=torch.float64)
        ones = torch.ones_like(position)
        step = ones if moves is None else torch.tensor(moves.step_size, dtype=torch.float64)
        return Plan(position, torch.cat([torch.zeros(1, dtype=torch.float64), length]), step, ones, num_leapfrog)

    def moves(self, plan: Plan, num: int) -> Moves | None:
        """The moves of K = ``num`` steps."""
        if not plan.num_leapfrog:
            return None
        return Moves(self.energy, plan.num_leapfrog, plan.steps(plan.places(num)).tolist())

    def sigmas(self, num: int, plan: Plan | None = None) -> Tensor:
        """sigma_0 ... sigma_K, K = ``num``: in equal steps of a plan's length, or in equal ratios without one."""
        place = torch.linspace(0, 1, num + 1, dtype=torch.float64) if plan is None else plan.places(num)
        return (math.log(self.low) + place * math.log(self.high / self.low)).exp()

    def draw(self, plan: Plan, num_densities: int, noise: Noise, resample: Noise) -> Tensor:
        """One draw of x_0 ``[R, ...]`` from each of R systems that denoise with K = ``num_densities`` steps, by their weights.

        Args:
            plan: What a pilot found.
            num_densities: K.
            noise: For R n chains.
            resample: Randomness of R systems, float64.
        """
        num, moves = len(resample), self.moves(plan, num_densities)
        found, y = denoising_walk(self.energy, self.sigmas(num_densities, plan), noise, num, resample, moves=moves)
        chosen = picked(found.log_weight, resample.uniform(1))[:, 0]
        return self.shrink * y.view(num, -1, *self.event_shape)[torch.arange(num, device=y.device), chosen]

    def walk(self, plan: Plan, num_densities: int, walkers: Walkers, backwards: bool, watch: Callable[[], None]) -> Walk:
        """Denoises from the prior, or noises from draws of x_0, with K = ``num_densities`` steps."""
        sigma, moves = self.sigmas(num_densities, plan), self.moves(plan, num_densities)

        def see(increment: Tensor) -> None:
            watch()

        if backwards:
            found = noising_walk(self.energy, sigma, walkers.x / self.shrink, walkers.noise, walkers.resample, moves, see)
        else:
            systems, resample = walkers.num_systems, walkers.resample
            found, _ = denoising_walk(self.energy, sigma, walkers.noise, systems, resample, moves=moves, watch=see)
        offset = -self.offset if backwards else self.offset
        return found._replace(
            log_ratio=found.log_ratio + offset, log_weight=found.log_weight + offset, partial=found.partial + offset
        )

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
log Z_0. Walked the other way, y_0 from exp f(., sigma_0) / Z_0 and then noising, E 1/w = 1/Z_0: a stochastic *upper* bound, if
y_0 is an exact draw. These are the bounds of annealed importance sampling in another space of paths. There are no step sizes,
no acceptance, and one gradient per step; at every sigma the step has the size that the density there allows in each coordinate,
which Hamiltonian chains with one step size do not have. Chains of a system may be resampled on the way (SMC), by the weights
that the same formula gives with f(y_k, sigma_k) in place of f(y_0, sigma_0).

References:
    Doucet, Grathwohl, Matthews, Strathmann, "Score-based diffusion meets annealed importance sampling", NeurIPS 2022.
    Bao, Li, Zhu, Zhang, "Analytic-DPM: an analytic estimate of the optimal reverse variance", ICLR 2022.
    Grosse, Ghahramani, Adams, "Sandwiching the marginal likelihood using bidirectional Monte Carlo", 2015.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from springwell.energy.residual import LevelEnergy, ResidualEnergy
from springwell.likelihood.annealed import RESAMPLE_BELOW, Plan, Walk, Walkers, effective_share, log_mean, resampled
from springwell.noise import Noise
from springwell.normalised import derivatives
from springwell.schedule import NoiseSchedule

_LOG_2PI = math.log(2 * math.pi)
# Bounds of v: a variance given y is not negative, and a guess of it is not to be trusted far above 1.
LEAST, MOST = 1e-3, 4.0


class Reversal(NamedTuple):
    """The Gaussian guess r(y_k | y_{k+1}).

    Attributes:
        f: f(y_{k+1}, sigma_{k+1}) ``[N]``.
        mean: ``[N, ...]``.
        std: tau, likewise.
    """

    f: Tensor
    mean: Tensor
    std: Tensor


def reversal(energy: Callable[[Tensor, Tensor], Tensor], y: Tensor, sigma: float, lower: float) -> Reversal:
    """r from noise ``sigma`` down to noise ``lower``, at y ``[N, ...]``."""
    f, u, g, _ = derivatives(energy, y, torch.full((len(y),), sigma, dtype=y.dtype, device=y.device))
    rho = (lower / sigma) ** 2
    v = (1 + g - u.square()).clamp(LEAST, MOST)
    std = sigma * ((1 - rho) * (rho + (1 - rho) * v)).sqrt()
    return Reversal(f.detach(), y + (1 - rho) * sigma * u, std)


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
    watch: Callable[[], None] = lambda: None,
) -> tuple[Walk, Tensor]:
    """Walks from the prior at sigma_K down to sigma_0.

    Args:
        energy: f(y, sigma), with the prior that the walk starts from.
        sigma: sigma_0 ... sigma_K, rising, float64.
        noise: For R n chains.
        num_systems: R; chains of a system are neighbours.
        resample: Randomness of R systems; None for plain importance weights.
        watch: Called after every step.

    Returns:
        The weights, and where the chains ended.
    """
    levels = sigma.tolist()
    num, shape = len(noise), energy.event_shape
    y = energy.prior.sample(noise, levels[-1])
    top = torch.full((), levels[-1], dtype=y.dtype, device=y.device)
    here = energy.prior(y, top).log_density.double().flatten(1).sum(-1)
    log_w = torch.zeros(num_systems, num // num_systems, dtype=torch.float64, device=y.device)
    log_z, least = torch.zeros_like(log_w[:, 0]), torch.ones_like(log_w[:, 0])
    partial: list[Tensor] = []
    for k in range(len(levels) - 2, -1, -1):
        upper, lower = levels[k + 1], levels[k]
        r = reversal(energy, y, upper, lower)
        log_w = log_w + (r.f.double() - here).view(log_w.shape)
        if resample is not None:
            least = torch.minimum(least, effective_share(log_w))
            index, due = resampled(log_w, resample, RESAMPLE_BELOW)
            log_z = log_z + torch.where(due, log_mean(log_w), 0.0)
            log_w = torch.where(due[:, None], 0.0, log_w)
            y, r = y[index], Reversal(*[value[index] for value in r])
        partial.append(log_z + log_mean(log_w))
        new = r.mean + r.std * noise.normal(*shape)
        hop = math.sqrt(upper**2 - lower**2)
        # The next f replaces this one, and the hop's densities come on top.
        here = r.f.double() - normal_log_density(y, new, hop) + normal_log_density(new, r.mean, r.std)
        y = new
        watch()
    with torch.no_grad():
        f = energy(y, torch.full((num,), levels[0], dtype=y.dtype, device=y.device)).double()
    log_w = log_w + (f - here).view(log_w.shape)
    partial.append(log_z + log_mean(log_w))
    ess = effective_share(log_w) if resample is None else torch.minimum(least, effective_share(log_w))
    return Walk(log_z + log_mean(log_w), log_w, None, torch.ones(0), len(levels) - 1, ess, torch.stack(partial, -1)), y


def noising_walk(
    energy: ResidualEnergy,
    sigma: Tensor,
    y: Tensor,
    noise: Noise,
    num_systems: int = 1,
    watch: Callable[[], None] = lambda: None,
) -> Walk:
    """Walks from draws y ``[R n, ...]`` of exp f(., sigma_0) up to the prior at sigma_K; the same arguments."""
    levels = sigma.tolist()
    num, shape = len(noise), energy.event_shape
    with torch.no_grad():
        here = energy(y, torch.full((num,), levels[0], dtype=y.dtype, device=y.device)).double()
    total = torch.zeros(num_systems, num // num_systems, dtype=torch.float64, device=y.device)
    partial: list[Tensor] = []
    for lower, upper in pairwise(levels):
        hop = math.sqrt(upper**2 - lower**2)
        new = y + hop * noise.normal(*shape)
        r = reversal(energy, new, upper, lower)
        there = r.f.double() - normal_log_density(new, y, hop) + normal_log_density(y, r.mean, r.std)
        total = total + (there - here).view(total.shape)
        partial.append(log_mean(total))
        here, y = r.f.double(), new
        watch()
    top = torch.full((), levels[-1], dtype=y.dtype, device=y.device)
    end = energy.prior(y, top).log_density.double().flatten(1).sum(-1)
    total = total + (end - here).view(total.shape)
    partial.append(log_mean(total))
    return Walk(log_mean(total), total, None, torch.ones(0), len(levels) - 1, effective_share(total), torch.stack(partial, -1))


class NoisePath:
    """Paths along the noise of an energy that knows it, from its prior at sigma_K to level 0 of a schedule.

    It takes the place of an annealing path in :func:`springwell.likelihood.bracket`. Draws are in the coordinates x_0 of the
    schedule's level 0, and log Z is log int exp f(scale_0 x, 0) dx, as for the path through the levels.

    Args:
        energy: f(y, t) of the levels.
        schedule: The levels.
    """

    length = 1

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
        """There is nothing to tune."""
        ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
        return Plan(ends, ends, torch.ones(2), torch.ones(2), 0)

    def sigmas(self, num: int) -> Tensor:
        """sigma_0 ... sigma_K, K = ``num``, in equal ratios."""
        return torch.logspace(math.log10(self.low), math.log10(self.high), num + 1, dtype=torch.float64)

    def walk(self, plan: Plan, num_densities: int, walkers: Walkers, backwards: bool, watch: Callable[[], None]) -> Walk:
        """Denoises from the prior, or noises from draws of x_0, with K = ``num_densities`` steps."""
        sigma, systems = self.sigmas(num_densities), walkers.num_systems
        if backwards:
            found = noising_walk(self.energy, sigma, walkers.x / self.shrink, walkers.noise, systems, watch)
        else:
            found, _ = denoising_walk(self.energy, sigma, walkers.noise, systems, walkers.resample, watch)
        offset = -self.offset if backwards else self.offset
        return found._replace(
            log_ratio=found.log_ratio + offset, log_weight=found.log_weight + offset, partial=found.partial + offset
        )

r"""Whether chains have converged, and how many independent draws they are worth.

Everything here takes draws ``[S, N, ...]`` of S steps of N chains, works on all parameters at once in float64, and follows
Vehtari et al. Chains are split in halves, so that a slow trend shows as disagreement between chains. With W the mean of the
variances within half-chains of length n, and B / n the variance of their means,

    R-hat = sqrt(((n - 1) / n W + B / n) / W)

of the rank-normalised draws z = Phi^{-1}((rank - 3/8) / (S N + 1/4)), or of the draws folded about their median and then
rank-normalised, whichever is larger: the first sees different locations, the second different scales. The effective sample size

    ESS = S N / tau,      tau = -1 + 2 sum_k (rho_{2k} + rho_{2k+1})

sums the autocorrelations rho of all chains in pairs as long as pairs are positive, and makes them decrease (Geyer's initial
monotone sequence). Its bulk version takes rank-normalised draws, its tail version the smaller of those of the indicators of the
5 % and 95 % quantiles. The standard error of a mean over the draws is sd / sqrt(ESS), with the ESS of the draws themselves.

    E-BFMI = E (H_i - H_{i-1})^2 / Var H

says how well drawing a new momentum explores the energies; below 0.3 a sampler does not reach the tails.

References:
    Vehtari, Gelman, Simpson, Carpenter, Buerkner, "Rank-normalization, folding, and localization: an improved R-hat for
    assessing convergence of MCMC", Bayesian Analysis 2021.
    Betancourt, "Diagnosing suboptimal cotangent disintegrations in Hamiltonian Monte Carlo", 2016.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from springwell.errors import UserError
from springwell.samplers.base import Trace

NUMBERS_AT_ONCE = 1 << 22


def _per_parameter(statistic: Callable[[Tensor], Tensor], draws: Tensor) -> Tensor:
    """A statistic of ``[S, N, P]``, float64, for all parameters; few at a time, where there are very many."""
    if draws.ndim < 2 or len(draws) < 4:
        raise UserError(f"draws: have shape {list(draws.shape)}; need [S, N, ...] of S >= 4 steps of N chains")
    x = draws.reshape(*draws.shape[:2], -1)
    at_once = max(1, NUMBERS_AT_ONCE // (x.shape[0] * x.shape[1]))
    return torch.cat([statistic(part.double()) for part in x.split(at_once, 2)]).view(draws.shape[2:])


def _split(x: Tensor) -> Tensor:
    """Every chain's halves as chains of their own ``[S // 2, 2 N, P]``; an odd number of steps loses the middle one."""
    half = len(x) // 2
    return torch.cat([x[:half], x[-half:]], 1)


def _quantile(x: Tensor, q: float) -> Tensor:
    """Of all steps and chains of ``[S, N, P]``, by linear interpolation."""
    ordered = x.flatten(0, 1).sort(0).values
    place = q * (len(ordered) - 1)
    low = math.floor(place)
    return torch.lerp(ordered[low], ordered[min(low + 1, len(ordered) - 1)], place - low)


def rank_normalise(x: Tensor) -> Tensor:
    """Normal scores of the ranks over all steps and chains of ``[S, N, P]``; ties share their mean rank.

    Examples:
        >>> from springwell.samplers.diagnostics import rank_normalise
        >>> rank_normalise(torch.tensor([[[1.0]], [[100.0]], [[2.0]]]).double()).flatten().argsort()
        tensor([0, 2, 1])
    """
    flat = x.flatten(0, 1)
    size, ordered = len(flat), flat.sort(0)
    values, order = ordered.values, ordered.indices
    place = torch.arange(size, device=x.device)[:, None].expand_as(values)
    changes = values[1:] != values[:-1]
    edge = torch.ones_like(changes[:1])
    first = torch.where(torch.cat([edge, changes]), place, 0).cummax(0).values
    last = torch.where(torch.cat([changes, edge]), place, size).flip(0).cummin(0).values.flip(0)
    rank = torch.empty_like(flat).scatter_(0, order, 0.5 * (first + last).double() + 1)
    return torch.special.ndtri((rank - 0.375) / (size + 0.25)).view_as(x)


def _rhat(x: Tensor) -> Tensor:
    n = len(x)
    between, within = x.mean(0).var(0), x.var(0).mean(0)
    return (between / within + (n - 1) / n).sqrt()


def split_rhat(draws: Tensor) -> Tensor:
    """R-hat ``[...]`` of every parameter of draws ``[S, N, ...]``, the larger one of bulk and tails.

    It is nan for a parameter that never changes.

    Examples:
        >>> from springwell.samplers.diagnostics import split_rhat
        >>> draws = torch.randn(500, 4, 2, generator=torch.Generator().manual_seed(0))
        >>> bool((split_rhat(draws) < 1.01).all())
        True
    """

    def statistic(x: Tensor) -> Tensor:
        halves = _split(x)
        folded = (halves - _quantile(halves, 0.5)).abs()
        return torch.maximum(_rhat(rank_normalise(halves)), _rhat(rank_normalise(folded)))

    return _per_parameter(statistic, draws)


def autocovariance(x: Tensor) -> Tensor:
    """sum_i (x_i - mean)(x_{i+k} - mean) / n over the first dimension of x ``[n, ...]``, for k = 0 ... n - 1, by FFT.

    Examples:
        >>> from springwell.samplers.diagnostics import autocovariance
        >>> autocovariance(torch.tensor([1.0, -1.0, 1.0, -1.0])).round(decimals=2)
        tensor([ 1.0000, -0.7500,  0.5000, -0.2500])
    """
    n, x = len(x), x - x.mean(0)
    power = torch.fft.rfft(x, n=2 * n, dim=0).abs().square()
    return torch.fft.irfft(power, n=2 * n, dim=0)[:n] / n


def _ess(x: Tensor) -> Tensor:
    """Of chains ``[n, M, P]`` as they are."""
    n, num_chains = x.shape[:2]
    size = n * num_chains
    covariance = autocovariance(x).mean(1)
    within = covariance[0] * n / (n - 1)
    total = covariance[0] + (x.mean(0).var(0) if num_chains > 1 else 0.0)
    rho = 1 - (within - covariance) / total
    rho[0] = 1

    num_pairs = max(1, (n - 1) // 2)
    pairs = rho[: 2 * num_pairs].view(num_pairs, 2, -1)
    sums = pairs.sum(1)
    # The first pair that is not positive ends the sum, and so does the last one there is; of it only a positive half counts.
    ends = sums <= 0
    ends[-1] = True
    end = ends.long().argmax(0)
    before = torch.arange(num_pairs, device=x.device)[:, None] < end
    tau = -1 + 2 * torch.where(before, sums.cummin(0).values, 0.0).sum(0)
    tau = tau + pairs[:, 0].gather(0, end[None])[0].clamp(min=0)
    ess = size / tau.clamp(min=1 / math.log10(size))
    constant = (x.flatten(0, 1).amax(0) - x.flatten(0, 1).amin(0)) < torch.finfo(torch.float64).resolution
    return torch.where(constant, float(size), ess)


def ess_bulk(draws: Tensor) -> Tensor:
    """Effective sample size ``[...]`` for the centre of every parameter's distribution, from draws ``[S, N, ...]``.

    Examples:
        >>> from springwell.samplers.diagnostics import ess_bulk
        >>> draws = torch.randn(500, 4, 2, generator=torch.Generator().manual_seed(0))  # independent: 2,000 effective samples
        >>> bool(((ess_bulk(draws) - 2000).abs() < 400).all())
        True
    """
    return _per_parameter(lambda x: _ess(rank_normalise(_split(x))), draws)


def ess_tail(draws: Tensor) -> Tensor:
    """Effective sample size ``[...]`` for the 5 % and 95 % quantiles of draws ``[S, N, ...]``, the smaller one.

    Examples:
        >>> from springwell.samplers.diagnostics import ess_tail
        >>> draws = torch.randn(500, 4, 2, generator=torch.Generator().manual_seed(0))
        >>> ess_tail(draws).shape
        torch.Size([2])
    """

    def statistic(x: Tensor) -> Tensor:
        low, high = (_ess(_split((x <= _quantile(x, q)).double())) for q in (0.05, 0.95))
        return torch.minimum(low, high)

    return _per_parameter(statistic, draws)


def ess_mean(draws: Tensor) -> Tensor:
    """Effective sample size ``[...]`` for the mean of every parameter, from draws ``[S, N, ...]``.

    Examples:
        >>> from springwell.samplers.diagnostics import ess_mean
        >>> draws = torch.randn(500, 4, 2, generator=torch.Generator().manual_seed(0))
        >>> ess_mean(draws).shape
        torch.Size([2])
    """
    return _per_parameter(lambda x: _ess(_split(x)), draws)


def standard_error(draws: Tensor) -> Tensor:
    """Monte-Carlo standard error ``[...]`` of the mean of every parameter of draws ``[S, N, ...]``.

    Examples:
        >>> from springwell.samplers.diagnostics import standard_error
        >>> draws = torch.randn(500, 4, 2, generator=torch.Generator().manual_seed(0))
        >>> bool((standard_error(draws) < 0.03).all())  # 1 / sqrt(2000) = 0.022
        True
    """
    return draws.double().flatten(0, 1).std(0) / ess_mean(draws).sqrt()


def ebfmi(energy: Tensor) -> Tensor:
    """E-BFMI ``[N]`` of each chain, from its energies ``[S, N]``.

    Examples:
        >>> from springwell.samplers.diagnostics import ebfmi
        >>> ebfmi(torch.randn(500, 4, generator=torch.Generator().manual_seed(0))).shape
        torch.Size([4])
    """
    energy = energy.double()
    return energy.diff(dim=0).square().mean(0) / energy.var(0, correction=0)


class Drift(NamedTuple):
    """By how much energies rose from the first half of a run to the second.

    Attributes:
        size: The mean rise, in standard deviations of the energy.
        z: The mean rise in standard errors, from its spread over chains; above 4 it is no accident. nan for one chain.

    Examples:
        >>> from springwell.samplers.diagnostics import energy_drift
        >>> energy = torch.randn(500, 4, generator=torch.Generator().manual_seed(0)) + torch.linspace(0, 5, 500)[:, None]
        >>> energy_drift(energy).z > 4  # still rising
        True
    """

    size: float
    z: float


def energy_drift(energy: Tensor) -> Drift:
    """Whether energies ``[S, N]`` of independent chains are still on their way somewhere.

    Examples:
        >>> from springwell.samplers.diagnostics import energy_drift
        >>> abs(energy_drift(torch.randn(500, 4, generator=torch.Generator().manual_seed(0))).z) < 4
        True
    """
    energy = energy.double()
    half = len(energy) // 2
    rise = energy[-half:].mean(0) - energy[:half].mean(0)
    error = rise.std() / math.sqrt(len(rise)) if len(rise) > 1 else rise.new_tensor(torch.nan)
    return Drift(float(rise.mean() / energy.std()), float(rise.mean() / error))


class Summary(NamedTuple):
    """What chains are worth.

    Attributes:
        rhat: Of every parameter.
        ess_bulk: Of every parameter.
        ess_tail: Of every parameter.
        acceptance: Mean over all steps and chains; None without a Metropolis test.
        ebfmi: The lowest of all chains; None where the kernel gives no energies.
        drift: Of the energies; None where the kernel gives none.
        num_divergent: Steps that diverged.
        num_gradients: Gradients used, over all chains.

    Examples:
        >>> from springwell.samplers.diagnostics import summarise
        >>> f, noise = lambda y: -y.square().sum(-1) / 2, sw.Noise(0, torch.arange(4))
        >>> found = summarise(sw.samplers.record_chain(sw.samplers.mala(), torch.zeros(4, 2), f, 1.0, 200, noise))
        >>> found.rhat.shape, found.num_divergent
        (torch.Size([2]), 0)
    """

    rhat: Tensor
    ess_bulk: Tensor
    ess_tail: Tensor
    acceptance: float | None
    ebfmi: float | None
    drift: Drift | None
    num_divergent: int
    num_gradients: int


def summarise(trace: Trace) -> Summary:
    """All diagnostics of a trace.

    Examples:
        >>> from springwell.samplers.diagnostics import summarise
        >>> f, noise = lambda y: -y.square().sum(-1) / 2, sw.Noise(0, torch.arange(4))
        >>> trace = sw.samplers.record_chain(sw.samplers.mala(), torch.zeros(4, 2), f, 1.0, 200, noise)
        >>> summarise(trace).ess_bulk.shape
        torch.Size([2])
    """
    draws, info = trace
    return Summary(
        split_rhat(draws),
        ess_bulk(draws),
        ess_tail(draws),
        None if info.acceptance is None else float(info.acceptance.mean()),
        None if info.energy is None else float(ebfmi(info.energy).min()),
        None if info.energy is None else energy_drift(info.energy),
        0 if info.divergent is None else int(info.divergent.sum()),
        int(torch.as_tensor(info.num_gradients).sum()),
    )

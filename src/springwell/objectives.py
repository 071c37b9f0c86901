r"""What training maximises (Gao et al. 2021, Sec. 3.2-3.4).

recovery    Alg. 1: ascend  d/dtheta [f(y_t, t) - f(y^-, t)],  y^- from K steps of a chain at log p(. | x_{t+1}).
            K = 0 takes y^- = x_{t+1} + sigma^2 grad f(x_{t+1}, t) + sigma eps, from the normal approximation of the
            conditional (Sec. 3.3). Any eps ~ N(0, I) independent of x_{t+1} gives the same gradient on average; the residual
            of y_t under its law given x_{t+1} and the data is such an eps, and with it the noise of f(y_t) - f(y^-), which
            for small sigma is nearly all of it, cancels. A denoised start with K = 0 takes the damped approximation.
marginal    The same on a level without spring, T = 1: maximum likelihood of an ordinary EBM by short-run chains from noise.
dsm         Descend  ||y_t - (x_{t+1} + sigma^2 grad f(x_{t+1}, t))||^2 / (2 sigma^2),  sigma = sigma_{t+1}: the normal
            approximation's likelihood, which is denoising score matching of an explicit energy (Eq. 11).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from springwell.conditional import normal_approximation
from springwell.energy.base import EnergyFunction
from springwell.level import Chains, run_conditional
from springwell.noise import Noise
from springwell.schedule import NoiseSchedule, expand


class Outcome(NamedTuple):
    """Loss per sample ``[N]``, with gradients, and what is worth knowing of it ``[N]``, without."""

    loss: Tensor
    f_pos: Tensor
    f_neg: Tensor
    displacement: Tensor
    acceptance: Tensor


def recovery(
    model: EnergyFunction,
    energy: EnergyFunction,
    schedule: NoiseSchedule,
    chains: Chains,
    weight: Tensor,
    t: Tensor,
    y_t: Tensor,
    x_next: Tensor,
    noise: Noise,
    start: Literal["noisy", "data", "denoised"] = "noisy",
    x: Tensor | None = None,
) -> Outcome:
    """Recovery likelihood, and marginal likelihood where the schedule has no spring.

    Args:
        model: The energy that is differentiated with respect to its weights (under data parallelism, the wrapper).
        energy: The same energy for the chains (unwrapped).
        schedule: The noise levels.
        chains: How to draw negatives.
        weight: Weight of each level's loss ``[T]``.
        t: Levels ``[N]``.
        y_t: Positive samples ``[N, ...]``.
        x_next: Their noisier observations x_{t+1}.
        noise: For N chains.
        start: Where chains start: ``noisy``, at x_{t+1}, as in the paper; ``data``, at y_t; ``denoised``, at the damped normal
            approximation.
        x: The data ``[N, ...]``. With K = 0 or a denoised start, negatives then share the noise of the positives.
    """
    first = y_t if start == "data" else x_next
    if chains.num_steps == 0 or start == "denoised":
        shared = noise.normal(*y_t.shape[1:]) if x is None else shared_noise(schedule, t, x, y_t, x_next, noise)
        first = normal_approximation(energy, schedule, t, x_next, shared, damped=start == "denoised", cut=True)
    if chains.num_steps == 0:
        y_neg, acceptance = first, torch.ones(len(t), device=y_t.device)
    else:
        y_neg, acceptance = run_conditional(chains, energy, schedule, t, x_next, first, noise)
    f_pos, f_neg = model(torch.cat([y_t, y_neg]), torch.cat([t, t])).chunk(2)
    displacement = (y_neg - x_next).flatten(1).square().mean(-1).sqrt() / schedule.sigma[t + 1].to(x_next.dtype)
    return Outcome(weight[t] * (f_neg - f_pos), f_pos.detach(), f_neg.detach(), displacement, acceptance)


def shared_noise(schedule: NoiseSchedule, t: Tensor, x: Tensor, y_t: Tensor, x_next: Tensor, noise: Noise) -> Tensor:
    """The residual of y_t given x_{t+1} and the data, standard normal and independent of both; fresh where y_t has none."""
    mean, std = schedule.posterior(x, x_next, t)
    return torch.where(std > 0, (y_t - mean) / std, noise.normal(*x.shape[1:]))


def dsm(model: EnergyFunction, schedule: NoiseSchedule, t: Tensor, y_t: Tensor, x_next: Tensor) -> Outcome:
    """Denoising score matching of the explicit energy; differentiates the gradient of f once more."""
    x_next = x_next.detach().requires_grad_()
    f = model(x_next, t)
    (score,) = torch.autograd.grad(f.sum(), x_next, create_graph=True)
    sigma = expand(schedule.sigma[t + 1], x_next)
    drift = sigma**2 * score
    loss = ((y_t - x_next.detach() - drift) / sigma).flatten(1).square().sum(-1) / 2
    displacement = (drift / sigma).detach().flatten(1).square().mean(-1).sqrt()
    return Outcome(loss, f.detach(), f.detach(), displacement, torch.ones_like(displacement))


def stratified_levels(num_levels: int, index: Tensor, total: int, offset: Tensor) -> Tensor:
    """t ~ Unif{0 ... T-1} for a batch of ``total``, spread evenly over the levels by systematic sampling.

    Args:
        num_levels: T.
        index: int64 ``[N]``: position of each sample in the whole batch.
        total: Size of the whole batch.
        offset: One uniform, ``[1]``, shared by the whole batch.
    """
    t = ((index + offset.double()) * (num_levels / total)).long()
    return t.clamp(max=num_levels - 1)

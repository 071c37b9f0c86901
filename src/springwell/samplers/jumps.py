r"""Jumps between the modes of a target: iterated sampling importance resampling (i-SIR).

Candidates z_1 ... z_J come from a proposal density q, z_0 = y is the present position, and a candidate is taken with

    y' = z_j  with probability  w(z_j) / sum_i w(z_i),        w = p / q,

which leaves p invariant for every J. The spring of a conditional is such a proposal: with q = N(x_{t+1}, sigma_{t+1}^2 I) the
weight under log p(. | x_{t+1}) is exp f(z) alone. Langevin steps never cross a deep valley, so they cannot tell a model how
much weight its modes deserve; one such jump can, wherever the proposal is wide enough to reach both. It takes J + 1
evaluations of f and no gradient. In high dimensions proposals are hardly ever taken, and the step does nothing but cost.

References:
    Andrieu, Lee, Vihola, "Uniform ergodicity of the iterated conditional SMC and geometric ergodicity of particle Gibbs
    samplers", Bernoulli 2018.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from springwell.noise import Noise


def choose(log_weight: Tensor, noise: Noise) -> Tensor:
    """The number ``[N]`` of the candidate that each chain takes, of ``[J + 1, N]`` candidates with these log-weights."""
    # A candidate whose weight is nan is never taken; argmax over Gumbel-perturbed weights draws from their softmax.
    gumbel = -torch.log(-torch.log(noise.uniform(len(log_weight)).T))
    return (log_weight.nan_to_num(nan=-torch.inf) + gumbel).argmax(0)


def take(candidates: Tensor, chosen: Tensor) -> Tensor:
    """Candidate ``chosen[i]`` of every chain i, of ``[J + 1, N, ...]``."""
    return candidates[chosen, torch.arange(len(chosen), device=chosen.device)]


Take = Callable[[Tensor, Tensor], Tensor]

r"""Interpolation: samples between samples (Gao et al. 2021, Sec. 4.2).

A sample is a function of its noise, that is of x_T and of the noise of every step. Between the noises of two samples lies

    eps(w) = cos(w pi/2) eps_A + sin(w pi/2) eps_B,      w in [0, 1],

term by term, which has the law of noise at every w. Four corners span a surface, with the products of two such pairs of
weights. At w = 0 and 1, and at the corners, samples are bit for bit those of the seeds.

Langevin steps are a continuous function of their noise wherever grad f is continuous, so neighbours on a path of n samples are
O(1/n) apart. A Metropolis test is not: where a proposal is just taken on one side of some w and just not on the other, the path
breaks. There are two ways to go on, and each keeps what the other gives up.

    own       every sample decides its own tests, by uniforms that are mixed as the noise is. Each is then a sample of the model
              like any other, and the path breaks in places.
    blended   a sample takes the share w_A^2 b_A + w_B^2 b_B of its proposal, y <- y + share (y' - y), where b_A and b_B, 0 or
              1, are what the ends of the path decided at this step. A path is then continuous, its ends are as before, and what
              lies between is made by valid steps only where both ends agree.

Jumps between modes (2D models) are treated alike: blended, a sample moves to the mean of the candidates that the ends chose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from springwell.applications.batches import check_seed, checked_batch, finish
from springwell.errors import UserError
from springwell.generate import progressive
from springwell.model import Model
from springwell.noise import MixedNoise, Noise
from springwell.samplers import Info, Kernel, LogDensity, State, value_and_grad
from springwell.samplers.base import evaluated
from springwell.samplers.jumps import Take
from springwell.shapes import expand


def spherical(w: Tensor) -> Tensor:
    """Weights ``[..., 2]`` of the two ends at w in [0, 1]: cos and sin of w pi/2, exactly 0 and 1 at the ends.

    Examples:
        >>> from springwell.applications import spherical
        >>> spherical(torch.tensor([0.0, 1.0]))
        tensor([[1., 0.],
                [0., 1.]], dtype=torch.float64)
    """
    # The sine is exact at 0 and, rounded, at pi/2; the cosine of the float nearest to pi/2 is not 0.
    return torch.stack([1 - w, w], -1).double().mul(torch.pi / 2).sin()


def corner_weights(num_corners: int, num: int) -> Tensor:
    """Weights ``[num, 2]`` of a path, or ``[num * num, 4]`` of a surface, row by row."""
    pair = spherical(torch.linspace(0, 1, num, dtype=torch.float64))
    return pair if num_corners == 2 else (pair[:, None, :, None] * pair[None, :, None, :]).reshape(num * num, 4)


class _Accepting(Noise):
    """A noise with whose uniforms every proposal passes its test."""

    def __init__(self, noise: Noise):
        self.noise = noise

    def normal(self, *event_shape: int) -> Tensor:
        return self.noise.normal(*event_shape)

    def uniform(self, *event_shape: int) -> Tensor:
        return torch.full((len(self.noise), *event_shape), -1.0, device=self.noise.device)


def blended(kernel: Kernel, share: Tensor) -> Kernel:
    """The kernel whose chains take shares of their proposals, by what the first C chains decide.

    Args:
        kernel: Langevin, MALA or HMC.
        share: ``[N, C]``: the weight of each corner, rows summing to 1; the first C chains are the corners themselves.
    """
    corners = share.shape[1]

    def step(state: State, logdensity: LogDensity, step_size: Tensor, noise: Noise) -> tuple[State, Info]:
        proposal, info = kernel.step(state, logdensity, step_size, _Accepting(noise))
        if info.acceptance is None:
            return proposal, info
        (y, log_p, grad), (y_new, log_p_new, grad_new) = evaluated(state), evaluated(proposal)
        decided = (noise.uniform() < info.acceptance)[:corners]
        part = (share * decided.to(share)).sum(-1)
        none, all_of_it, part_y = part == 0, part == 1, expand(part, y).to(y)
        between = torch.where(expand(all_of_it, y), y_new, (1 - part_y) * y + part_y * y_new)
        between = torch.where(expand(none, y), y, between)
        value, slope = value_and_grad(logdensity, between)
        # The corners keep the numbers that their own chains would have, whatever the batch rounds.
        log_p = torch.where(none, log_p, torch.where(all_of_it, log_p_new, value))
        grad = torch.where(expand(none, y), grad, torch.where(expand(all_of_it, y), grad_new, slope))
        return State(between, log_p, grad), info

    return Kernel(kernel.init, step, kernel.tested)


def blended_take(share: Tensor) -> Take:
    """Jumps take the mean of the candidates that the corners chose. Argument: see :func:`blended`."""

    def take(candidates: Tensor, chosen: Tensor) -> Tensor:
        # By index_select, since indexing with a tensor without dimensions reads its value back from the device.
        ends = candidates.index_select(0, chosen[: share.shape[1]])
        return torch.stack([expand(weight, end) * end for weight, end in zip(share.T, ends, strict=True)]).sum(0)

    return take


@torch.inference_mode(False)
def interpolate(
    model: Model,
    seeds: Sequence[int],
    num: int = 8,
    tests: Literal["blended", "own"] = "blended",
    num_steps: int | None = None,
    batch: int | None = None,
    watch: Callable[[int], None] | None = None,
) -> Tensor:
    """Samples between samples, in the data's units.

    Args:
        model: The model.
        seeds: Two seeds for a path ``[num, ...]``, four for a surface ``[num, num, ...]`` with the corners A B (above) and C D.
            A seed stands for its sample 0.
        num: Samples along a side, ends included.
        tests: Who decides the Metropolis tests; see the head of this module.
        num_steps: MCMC steps per level, if not the run's own.
        batch: The number of parallel chains; None for as many as fit.
        watch: Receives, after every level, the number of samples for which it is done.

    Examples:
        >>> from springwell.applications import interpolate
        >>> interpolate(sw.load("checkerboard"), seeds=[3, 11], num=5).shape
        torch.Size([5, 2])
    """
    check_seeds(seeds)
    if tests not in ("blended", "own"):
        raise UserError(f"tests={tests!r}: unknown; use 'blended' or 'own'")
    if num < 2:
        raise UserError(f"num={num}: a path has at least its 2 ends")
    corners, sampler = len(seeds), model.level_sampler(num_steps)
    weights = corner_weights(corners, num).to(model.device)
    batch = max(checked_batch(model, batch), corners + 1)
    parts = []
    for part in weights.split(batch - corners if tests == "blended" else batch):
        before = torch.eye(corners, dtype=weights.dtype, device=model.device) if tests == "blended" else weights[:0]
        rows = torch.cat([before, part])
        rows = torch.cat([rows, rows[-1:].expand(model.num_rows(len(rows)) - len(rows), -1)])
        draws = sampler
        if tests == "blended":
            share = rows.square()
            draws = replace(sampler, kernel=blended(sampler.made, share), take=blended_take(share))
        index = torch.zeros(len(rows), dtype=torch.long)
        noise = MixedNoise([model.noise(seed, index) for seed in seeds], rows)
        levels = progressive(model.energy_function, model.schedule, draws, model.event_shape, noise)
        parts.append(finish(model, levels, len(part), sampler.num_steps, watch)[len(before) : len(before) + len(part)])
    return torch.cat(parts).view(*[num] * (corners // 2), *model.event_shape)


def check_seeds(seeds: Sequence[int]) -> None:
    """Refuses seeds that are not the two ends of a path, or the four corners of a surface."""
    listed = ", ".join(map(str, seeds))
    if len(seeds) not in (2, 4):
        raise UserError(f"seeds {listed}: give two for a path or four for a surface")
    for seed in seeds:
        check_seed(seed)
    if len({seed % 2**64 for seed in seeds}) < len(seeds):
        # The sum of w_i eps has variance 1 only if the eps are independent.
        raise UserError(f"seeds {listed}: two are the same (modulo 2^64), and there is nothing between; give different ones")

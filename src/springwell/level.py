"""Sampling one conditional log p(y_t | x_{t+1}): what training (Alg. 1) and generation (Alg. 2) have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from springwell.app.config import STEPS_PER_JUMP
from springwell.conditional import Conditional, normal_approximation
from springwell.energy.base import EnergyFunction
from springwell.noise import Noise
from springwell.samplers.base import Kernel, run_chain
from springwell.samplers.jumps import jump
from springwell.schedule import NoiseSchedule


@dataclass
class Chains:
    """How a conditional is sampled.

    Attributes:
        kernel: The Markov kernel.
        num_steps: K; 0 takes one draw from the normal approximation instead.
        step_size: ``[T]``.
        jump_proposals: J of a jump between modes before every fifth step; 0 for none.
        noise_scale: Factor on the Langevin noise; 1 is the correct dynamics.
        denoised_start: Whether generation starts at the damped normal approximation instead of x_{t+1}; with K = 0, whether
            the normal approximation is the damped one.
        jump: How to jump, with the arguments of :func:`springwell.samplers.jump`.
    """

    kernel: Kernel
    num_steps: int
    step_size: Tensor
    jump_proposals: int = 0
    noise_scale: float = 1.0
    denoised_start: bool = False
    jump: Callable[..., Tensor] = jump


def run_conditional(
    chains: Chains, energy: EnergyFunction, schedule: NoiseSchedule, t: Tensor, x_next: Tensor, start: Tensor, noise: Noise
) -> tuple[Tensor, Tensor]:
    """Draws y_t given x_{t+1} and returns it with the mean acceptance ``[N]`` of each chain.

    Args:
        chains: How.
        energy: f(y, t).
        schedule: The noise levels.
        t: Levels ``[N]``.
        x_next: x_{t+1} ``[N, ...]``.
        start: Where the chains start ``[N, ...]``.
        noise: For N chains.
    """
    if chains.num_steps == 0:
        eps = noise.normal(*x_next.shape[1:])
        y = normal_approximation(energy, schedule, t, x_next, eps, damped=chains.denoised_start)
        return y, torch.ones(len(t), device=x_next.device)
    y, acceptance = start, torch.zeros(len(t), device=x_next.device)
    logdensity, step_size = Conditional(energy, schedule, t, x_next), chains.step_size[t]
    piece = STEPS_PER_JUMP if chains.jump_proposals else chains.num_steps
    for done in range(0, chains.num_steps, piece):
        steps = min(piece, chains.num_steps - done)
        if chains.jump_proposals:
            y = chains.jump(y, energy, schedule, t, x_next, chains.jump_proposals, noise)
        y, accepted = run_chain(chains.kernel, y, logdensity, step_size, steps, noise, chains.noise_scale, check=False)
        acceptance += accepted * (steps / chains.num_steps)
    return y, acceptance

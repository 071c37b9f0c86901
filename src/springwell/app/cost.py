r"""What a run costs, before it is run: parameters, floating-point operations and memory.

Everything is counted on tensors without storage (torch's ``meta`` device), so the paper's largest presets take a second here.
A multiplication with its addition counts as two operations; elementwise operations are left out.

    chain    K gradients with respect to y: each a forward pass and a backward pass to the input
    loss     forward and backward pass, to the weights, of positives and negatives together
    memory   weights, gradients, Adam's moments and the moving average, plus the larger of two: what the loss keeps for its
             backward pass, and what f of all proposals of a jump needs; on a CPU also what Python and torch take themselves
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from springwell.app.build import build_energy, build_schedule
from springwell.app.config import Config
from springwell.devices import Operations, kept_tensors
from springwell.energy import at_level
from springwell.energy.base import gradient_operations
from springwell.samplers import gradient

# What Python, torch and the other libraries take on a CPU.
BASE_MEMORY = 320 * 2**20
_KNOWN_SHAPES = {"digits": (1, 8), "mnist": (1, 28), "fashion-mnist": (1, 28), "cifar10": (3, 32), "celeba": (3, 64)}


@dataclass(frozen=True)
class Cost:
    """Of one training iteration, unless it says otherwise.

    Attributes:
        event_shape: Of one sample.
        parameters: Trained numbers.
        gradient_flops: Operations of one gradient of f with respect to y, for one sample.
        iteration_flops: Operations of one iteration, whole batch.
        memory_bytes: Estimated peak of one process that holds the whole batch (divided by ``accumulate``).
    """

    event_shape: tuple[int, ...]
    parameters: int
    gradient_flops: int
    iteration_flops: int
    memory_bytes: int


def event_shape(config: Config) -> tuple[int, ...]:
    """Shape of a sample, without reading the data where its publisher fixed it."""
    name = "celeba" if config.data.startswith("lsun/") else config.data
    if name in _KNOWN_SHAPES:
        channels, size = _KNOWN_SHAPES[name]
        size = config.images.image_size or size
        return (channels, size, size)
    from springwell.data.images import image_shape
    from springwell.data.source import open_data

    column = config.labels.label_column
    if column is None and (shape := image_shape(config.data, config.images)) is not None:
        return shape
    return open_data(config.data, config.images, label_column=column).event_shape


def estimate(config: Config) -> Cost:
    """Counts one iteration of ``config``."""
    shape = event_shape(config)
    energy = _outline(config, shape)
    parameters = sum(p.numel() for p in energy.parameters())
    y, t = torch.empty(1, *shape, device="meta"), torch.zeros(1, dtype=torch.long, device="meta")
    chain = gradient_operations(energy, shape, "meta")
    with Operations() as loss:
        _loss(energy, y, t)
    evaluations = config.gradient_evaluations() - 1
    # Differentiating a gradient costs twice what the gradient did, and keeps as much as positives and negatives do.
    twice = config.objective.objective in ("dsm", "normalised")
    per_sample = 3 * chain if twice else loss.total + evaluations * chain
    memory = BASE_MEMORY + 5 * 4 * parameters + _batch_memory(config, energy, y, t)
    return Cost(shape, parameters, chain, per_sample * config.training.batch, memory)


def step_operations(config: Config) -> int:
    """Operations of one gradient with respect to y, whole batch: a step of a chain, or the guess."""
    shape = event_shape(config)
    operations = gradient_operations(_outline(config, shape), shape, "meta")
    return operations * config.training.batch // config.training.accumulate


def _outline(config: Config, shape: tuple[int, ...]) -> nn.Module:
    """The energy of a config without memory for its weights."""
    # A schedule checks its own values, which the meta device does not have.
    schedule = build_schedule(config)
    with torch.device("meta"):
        return build_energy(config, schedule, shape).to("meta")


def _loss(energy: nn.Module, y: Tensor, t: Tensor) -> list[int]:
    """Runs the loss of a positive and a negative for each row of y; returns the sizes of what it keeps, in bytes, by size."""
    kept = kept_tensors(lambda: energy(torch.cat([y, y]), torch.cat([t, t])).sum().backward())
    return sorted(tensor.untyped_storage().nbytes() for tensor in kept)


def _batch_memory(config: Config, energy: nn.Module, y: Tensor, t: Tensor) -> int:
    """Bytes that grow with the batch: everything that two rows of y need beyond what one row needs."""
    one, two = (_loss(energy, y.expand(n, *y.shape[1:]), t.expand(n)) for n in (1, 2))
    held = -(-config.training.batch // config.training.accumulate)
    # The largest layer's values of one row; a pair has two.
    row = max(b - a for a, b in zip(one, two, strict=True)) // 2
    loss = sum(two) - sum(one) + 2 * row
    jumps = 3 * row * (config.sampler.jump_proposals + 1) if config.sampler.jump_proposals else 0
    # Half as much again for gradients and passing values, by measurements of processes (tests/test_presets.py).
    return 3 * held * (max(loss, jumps) + 8 * 4 * math.prod(y.shape[1:])) // 2


def seconds_per_iteration(config: Config, cost: Cost, device: str) -> tuple[float, str]:
    """Time of one iteration, and in words where it comes from: gradients of a few samples, scaled by their operations."""
    schedule = build_schedule(config).to(device)
    num = min(config.training.batch, max(4, int(2e10 / cost.gradient_flops)))
    energy = build_energy(config, schedule, cost.event_shape).to(device)
    level = at_level(energy, torch.arange(num, device=device) % schedule.num_levels)
    y = torch.zeros(num, *cost.event_shape, device=device)
    best = math.inf
    for _ in range(3):
        began = time.perf_counter()
        float(gradient(level, y).sum())
        best = min(best, time.perf_counter() - began)
    return best * cost.iteration_flops / (cost.gradient_flops * num), f"from the gradient of {num} samples"

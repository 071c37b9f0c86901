r"""One iteration of training (Gao et al. 2021, Alg. 1).

    t ~ Unif{0 ... T-1};   (y_t, x_{t+1}) from data;   y^- drawn at level t;   Adam on f(y^-, t) - f(y_t, t)

All randomness of iteration i follows from (seed, i, index in the whole batch), whatever the number of processes or of parts
into which the batch is divided.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import nullcontext
from typing import cast

import torch
from accelerate import Accelerator
from torch import Tensor

from springwell.noise import Noise, Stream
from springwell.objectives import Objective, Outcome, stratified_levels
from springwell.samplers import adapt_step_size
from springwell.training.ema import update_ema
from springwell.training.options import TrainingOptions
from springwell.training.state import TrainingState
from springwell.training.task import Task

Batch = tuple[Noise, Tensor, dict[str, Tensor]]


class Step:
    """Iterations of Alg. 1 on one process of several.

    Args:
        task: What is trained.
        state: What training changes.
        objective: What is minimised.
        accelerator: Which process this is; gradients are averaged over all of them.
        lr_factor: Factor on the learning rate.
        first_stream: Where this attempt's streams of noise begin.
    """

    def __init__(
        self,
        task: Task,
        state: TrainingState,
        objective: Objective,
        accelerator: Accelerator,
        lr_factor: float = 1.0,
        first_stream: int = 0,
    ):
        self.task, self.state, self.objective, self.accelerator = task, state, objective, accelerator
        self.options, self.lr_factor, self.first_stream = task.options, lr_factor, first_stream
        self.optimizer = accelerator.prepare_optimizer(state.adam)
        self.share = self.options.batch // accelerator.num_processes
        mine = torch.arange(self.share, device=accelerator.device) + self.share * accelerator.process_index
        self.parts = mine.chunk(self.options.accumulate)

    def draw(self, number: int) -> Batch:
        """Part ``number`` of all parts of all iterations: its noise, the data x ``[n, ...]`` and, if there are any, labels."""
        iteration, part = divmod(number, self.options.accumulate)
        stream = Stream.TRAINING + self.first_stream + iteration
        noise = Noise(self.options.seed, self.parts[part], stream, max(1, self.task.sampler.num_steps))
        if self.task.labels is None:
            return noise, self.task.data.sample(noise), {}
        x, label = self.task.labels.sample(noise)
        return noise, x, {"label": label}

    def __call__(self, iteration: int, batches: Iterator[Batch]) -> Tensor:
        """One iteration. Returns the norm of the gradient; the state's statistics have grown by this batch."""
        state, accelerator, num_levels = self.state, self.accelerator, self.task.schedule.num_levels
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate(iteration)
        self.optimizer.zero_grad()
        stream = Stream.LEVELS + self.first_stream + iteration
        offset = Noise(self.options.seed, self.parts[0][:1] * 0, stream).uniform()
        sums = torch.zeros_like(state.statistics)
        for position in self.parts:
            # A level and a pair for every sample of the batch, then the objective.
            noise, x, labels = next(batches)
            t = stratified_levels(num_levels, position, self.options.batch, offset)
            with accelerator.no_sync(self.wrapped) if position is not self.parts[-1] else nullcontext():
                outcome = self.objective(x, noise, t, **labels)
                accelerator.backward(outcome.loss.sum() / self.share)
            sums += level_sums(outcome, self.objective.names, num_levels)
        clip = math.inf if self.options.clip is None else self.options.clip
        norm: Tensor = accelerator.clip_grad_norm_(self.wrapped.parameters(), clip)
        self.optimizer.step()
        follow = getattr(state.energy, "follow_weights", None)
        if follow is not None:
            follow()
        update_ema(state.average, state.energy, self.options.ema, iteration if self.options.ema_warmup else None)
        self._count(accelerator.reduce(sums))
        return norm

    @property
    def wrapped(self) -> torch.nn.Module:
        """The energy as the loss differentiates it: under data parallelism, its wrapper."""
        return cast("torch.nn.Module", self.objective.differentiated or self.state.energy)

    def _count(self, sums: Tensor) -> None:
        """Adds the statistics of a batch, and lets step sizes follow their acceptance."""
        self.state.statistics += sums
        if self.task.adapts:
            assert self.task.target_acceptance is not None
            count, acceptance = sums[:, 0], sums[:, 2 + self.objective.names.index("acceptance")]
            target = self.task.target_acceptance
            self.state.step_size.copy_(adapt_step_size(self.state.step_size, acceptance, count, target))

    def learning_rate(self, iteration: int) -> float:
        """The learning rate of an iteration, lowered after rollbacks."""
        return learning_rate(self.options, iteration) * self.lr_factor


def learning_rate(options: TrainingOptions, iteration: int) -> float:
    """Warm-up, then constant or a half cosine down to 0."""
    warm = min(1.0, (iteration + (not options.idle_start)) / options.warmup) if options.warmup else 1.0
    if options.lr_decay == "constant":
        return options.lr * warm
    return options.lr * warm * 0.5 * (1 + math.cos(math.pi * iteration / options.iterations))


def level_sums(outcome: Outcome, names: tuple[str, ...], num_levels: int) -> Tensor:
    """``[T, 2 + names]``: the number of samples of each level, then the sums of their loss and of every statistic."""
    loss, statistics = outcome.loss.detach(), outcome.statistics
    values = torch.stack([torch.ones_like(loss), loss, *(statistics[name] for name in names)], -1).double()
    return values.new_zeros(num_levels, values.shape[1]).index_add_(0, statistics["level"], values)

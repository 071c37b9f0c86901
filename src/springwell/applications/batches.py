"""Several samples for each of several observations, in batches that fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from springwell.errors import DivergenceError, UserError
from springwell.generate import Sample
from springwell.model import Model
from springwell.samplers.checks import warn_if_collapsed


def repeated(x: Tensor, num: int) -> Tensor:
    """x ``[N, ...]`` again and again, ``[num, ...]``: what belongs to candidates ``[J, N]`` in one row."""
    return x if num == len(x) else x.repeat(num // len(x), *[1] * (x.ndim - 1))


def finish(
    model: Model, levels: Iterator[Sample], num: int, num_steps: int, watch: Callable[[int], None] | None = None
) -> Tensor:
    """Goes down all levels and returns samples in the data's units, finished as the model finishes its own.

    Args:
        model: The model.
        levels: x_T ... x_0, in the model's coordinates.
        num: How many samples to tell ``watch`` of.
        num_steps: MCMC steps of a level, with its sweeps.
        watch: Is told of every level, for how many samples it is done.
    """
    u, accepted = torch.empty(0), torch.ones(model.schedule.num_levels + 1, device=model.device)
    for t, u, acceptance in levels:
        accepted[t] = acceptance.mean()
        if watch is not None:
            watch(num)
    if not bool(torch.isfinite(u).all()):
        raise DivergenceError("sampling diverged (values are not finite); use fewer or smaller steps")
    if num_steps and model.config.sampler.kernel != "langevin":
        warn_if_collapsed(accepted[:-1], num_steps, torch.arange(model.schedule.num_levels, device=model.device))
    return model.finished(u)


def in_batches(
    model: Model,
    run: Callable[[Tensor, Tensor], Iterator[Sample]],
    num_observations: int,
    num: int,
    num_steps: int,
    batch: int | None = None,
    watch: Callable[[int], None] | None = None,
) -> Tensor:
    """Samples ``[B, num, ...]`` in the data's units, finished as the model finishes its samples.

    Args:
        model: The model.
        run: (i ``[N]``, j ``[N]``) -> the levels of sample j for observation i.
        num_observations: B.
        num: Samples for each.
        num_steps: MCMC steps of a level, with its sweeps.
        batch: Chains that run side by side; None for as many as fit.
        watch: Is told of every level, for how many samples it is done.
    """
    if num < 1 or num_observations < 1:
        raise UserError(f"{num} samples for each of {num_observations}: both must be at least 1")
    total, parts = num_observations * num, []
    batch = model.automatic_batch() if batch is None else batch
    for part in torch.arange(total, device=model.device).split(batch):
        # The last sample is computed again and again to fill up a small batch, whose rounding would be another.
        rows = torch.cat([part, part[-1:].expand(model.num_rows(len(part), batch) - len(part))])
        parts.append(finish(model, run(rows // num, rows % num), len(part), num_steps, watch)[: len(part)])
    return torch.cat(parts).view(num_observations, num, *model.event_shape)

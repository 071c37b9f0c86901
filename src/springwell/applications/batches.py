"""Several samples for each of several observations, in batches that fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from springwell.errors import DivergenceError, UserError
from springwell.generate import Sample
from springwell.model import Model
from springwell.samplers.checks import warn_if_collapsed

_STREAMS = 2**44


def check_seed(seed: int) -> None:
    """Refuses a seed that is no integer of 64 bits."""
    if not -(2**63) <= seed < 2**64:
        raise UserError(f"seed={seed}: out of range; use an integer of 64 bits")


def check_values(name: str, x: Tensor, shape: tuple[int, ...], why: str = "") -> None:
    """Refuses rows of another shape than ``shape``, integers, and values that are not finite."""
    if tuple(x.shape[1:]) != shape or x.ndim == 0:
        raise UserError(f"{name}: has shape {list(x.shape[1:])} after the first dimension; needs {list(shape)}{why}")
    if not x.is_floating_point():
        raise UserError(f"{name}: is {x.dtype}; needs floating point in the data's units (of bytes, x / 127.5 - 1)")
    if not bool(torch.isfinite(x).all()):
        raise UserError(f"{name}: has values that are not finite; mend or hide them")


def checked_batch(model: Model, batch: int | None) -> int:
    """How many chains run side by side: ``batch``, or as many as fit."""
    if batch is not None and batch < 1:
        raise UserError(f"batch={batch}: must be at least 1")
    return model.automatic_batch() if batch is None else batch


@dataclass(frozen=True)
class Draws:
    """How many samples there are of every observation, from which noise, and how they are computed.

    Attributes:
        num: Samples of each observation.
        seed: Sample j of an observation depends on (seed, the observation's number, j) alone.
        sweeps: Sweeps of every level after its first chain.
        num_steps: MCMC steps per level, if not the model's own.
        batch: The number of parallel chains; None for as many as fit.
        numbers: The numbers of the observations, if not 0, 1, ...
        watch: Receives, after every level, the number of samples for which it is done.

    Examples:
        >>> from springwell.applications import Draws, inpaint
        >>> hidden = torch.tensor([False, True])
        >>> inpaint(sw.load("checkerboard"), torch.tensor([[0.5, 0.0]]), hidden, Draws(num=2, seed=1, sweeps=3)).shape
        torch.Size([1, 2, 2])
    """

    num: int = 8
    seed: int = 0
    sweeps: int = 0
    num_steps: int | None = None
    batch: int | None = None
    numbers: Sequence[int] | None = None
    watch: Callable[[int], None] | None = None

    def __post_init__(self) -> None:
        check_seed(self.seed)
        if self.num < 1 or self.sweeps < 0:
            raise UserError(f"num={self.num}, sweeps={self.sweeps}: needs num >= 1 and sweeps >= 0")

    def numbered(self, num: int, device: torch.device) -> Tensor:
        """The numbers ``[num]`` of so many observations."""
        numbers = range(num) if self.numbers is None else self.numbers
        if len(numbers) != num or any(not 0 <= number < _STREAMS for number in numbers):
            raise UserError(f"numbers: {len(numbers)} for {num} observations; give one each, from 0 to 2^44")
        return torch.tensor(numbers, device=device)


def repeated(x: Tensor, num: int) -> Tensor:
    """x ``[N, ...]`` again and again, ``[num, ...]``: what belongs to candidates ``[J, N]`` in one row."""
    return x if num == len(x) else x.repeat(num // len(x), *[1] * (x.ndim - 1))


def finish(
    model: Model,
    levels: Iterator[Sample],
    num: int,
    num_steps: int,
    watch: Callable[[int], None] | None = None,
    end: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Goes down all levels and returns samples in the data's units, finished as the model finishes its own.

    Args:
        model: The model.
        levels: x_T ... x_0, in the model's coordinates.
        num: How many samples ``watch`` hears of.
        num_steps: MCMC steps of a level, with its sweeps.
        watch: Receives, after every level, the number of samples for which it is done.
        end: What to return of x_0 in the model's coordinates, if not the finished samples.
    """
    u, accepted = torch.empty(0), torch.ones(model.schedule.num_levels + 1, device=model.device)
    for sample in levels:
        u, accepted[sample.t] = sample.x, sample.acceptance.mean()
        if watch is not None:
            watch(num)
    if not bool(torch.isfinite(u).all()):
        raise DivergenceError("sampling diverged (values are not finite); use fewer or smaller steps")
    if num_steps and model.level_sampler(num_steps).tested:
        warn_if_collapsed(accepted[:-1], num_steps, torch.arange(model.schedule.num_levels, device=model.device))
    return model.finished(u) if end is None else end(u)


def in_batches(
    model: Model,
    run: Callable[[Tensor, Tensor], Iterator[Sample]],
    num_observations: int,
    draws: Draws,
    end: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Samples ``[B, num, ...]`` in the data's units, finished as the model finishes its samples.

    Args:
        model: The model.
        run: (i ``[N]``, j ``[N]``) -> the levels of sample j for observation i.
        num_observations: B.
        draws: How many samples of each, and how.
        end: What to return of x_0 in the model's coordinates, if not the finished samples.
    """
    if num_observations < 1:
        raise UserError("there are no observations; give at least one")
    num, batch, parts = draws.num, checked_batch(model, draws.batch), []
    num_steps = model.level_sampler(draws.num_steps).num_steps * (draws.sweeps + 1)
    for part in torch.arange(num_observations * num, device=model.device).split(batch):
        # The last sample is computed again and again to fill up a small batch, whose rounding would be another.
        rows = torch.cat([part, part[-1:].expand(model.num_rows(len(part)) - len(part))])
        parts.append(finish(model, run(rows // num, rows % num), len(part), num_steps, draws.watch, end)[: len(part)])
    return torch.cat(parts).unflatten(0, (num_observations, num))

r"""Chains that begin at your own points, at the density of a level or on its spring, in the data's units.

    log p(x_t | x_{t+1}) = f(scale_t u, t) - |x_{t+1} - scale_t u|^2 / (2 sigma_{t+1}^2) + const,       x_t = shift + scale u

Every step has random numbers of its own, those of (seed, its number). So a walk that is cut in two, and goes on from where it
was, is the same walk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from springwell.conditional import Conditional
from springwell.energy.base import at_level
from springwell.errors import UserError
from springwell.model import Model
from springwell.noise import Stream
from springwell.samplers import Info, Kernel, LogDensity, make_kernel
from springwell.samplers.base import begin
from springwell.samplers.target import value_and_grad


@dataclass(frozen=True)
class Walk:
    """How chains go.

    Attributes:
        model: Whose density.
        kernel: The Markov kernel, or its name.
        step_size: In the data's units.
        level: t.
        end: The spring's end, x_{t+1} / scale_t in the data's units ``[*event_shape]``; None for the well alone.
        seed: The seed of the noise.
    """

    model: Model
    kernel: Kernel | str = "mala"
    step_size: float = 0.1
    level: int = 0
    end: Tensor | Sequence[float] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.level < self.model.schedule.num_levels:
            last = self.model.schedule.num_levels - 1
            raise UserError(f"level={self.level}: out of range; this model has levels 0 ... {last}")
        if self.end is not None and not bool(self.model.schedule.spring[self.level]):
            raise UserError(f"level {self.level}: has no spring in this model")

    def steps(self, x: Tensor, num_steps: int, first: int = 0) -> Iterator[tuple[Tensor, Info]]:
        """Yields where chains are after each of some steps, ``[N, *event_shape]``, and what the step tells.

        Args:
            x: Where they are now.
            num_steps: How many steps to make.
            first: The number of the first step, on which its noise depends.
        """
        model, index = self.model, torch.arange(len(x))
        x = x.to(model.shift)
        model.standardised(x)
        kernel = make_kernel(self.kernel) if isinstance(self.kernel, str) else self.kernel
        target = self.target(len(x))
        state, delta = begin(kernel, x, target, self.step_size, check=False)
        for number in range(first, first + num_steps):
            state, info = kernel.step(state, target, delta, model.noise(self.seed, index, Stream.LONGRUN_FREE + number))
            yield state.y, info

    def target(self, num: int) -> LogDensity:
        """The log-density of ``num`` chains."""
        model = self.model
        t, scale = torch.full((num,), self.level, device=model.device), float(model.schedule.scale[self.level])
        if self.end is None:
            return _InUnits(at_level(model.energy_function, t), model, scale)
        end = torch.as_tensor(self.end, dtype=torch.float32)[None]
        x_next = (scale * model.standardised(end)).expand(num, *model.event_shape).contiguous()
        return _InUnits(Conditional(model.energy_function, model.schedule, t, x_next), model, scale)


class _InUnits:
    """A log-density of y = scale_t u as one of x = shift + scale u."""

    def __init__(self, inner: LogDensity, model: Model, scale: float):
        self.inner, self.shift, self.factor = inner, model.shift, scale / model.scale

    def __call__(self, x: Tensor) -> Tensor:
        return self.inner((x - self.shift) * self.factor)

    def value_and_grad(self, x: Tensor) -> tuple[Tensor, Tensor]:
        value, grad = value_and_grad(self.inner, (x - self.shift) * self.factor)
        return value, grad * self.factor

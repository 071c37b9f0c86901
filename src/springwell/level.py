r"""The one place that draws y_t given x_{t+1}: in training (Alg. 1), in generation (Alg. 2) and in everything built on them.

A :class:`LevelSampler` has K steps of a Markov kernel at the conditional (Eq. 4) and a place to start them,

    noisy      at x_{t+1}, as in the paper;
    data       at y_t in training, where it is known; at x_{t+1} otherwise. The truth is then a fixed point of training for
               every K, and a chain that cannot move gives no gradient instead of a runaway;
    denoised   at a damped Gaussian guess of y_t given x_{t+1}, which costs a gradient and leaves less to do for the chain;
    ancestral  at the Gaussian guess from the score of level t + 1, for energies that are log-densities.

With K = 0 the draw is the Gaussian guess itself: the paper's normal approximation (Sec. 3.3), damped for ``denoised``. In
training the guess shares the noise of y_t: any eps ~ N(0, I) independent of x_{t+1} gives the same gradient on average, the
residual of y_t under its law given x_{t+1} and the data is such an eps, and with it most noise of f(y_t) - f(y^-) cancels.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Generator, Tensor

from springwell.conditional import Conditional
from springwell.errors import UserError, kind_of, whole_number
from springwell.noise import Noise, as_noise
from springwell.samplers import Kernel, make_kernel, run_chain
from springwell.samplers.checks import as_step_size
from springwell.samplers.jumps import Take, choose, take
from springwell.schedule import NoiseSchedule

STEPS_PER_JUMP = 5
Start = Literal["noisy", "data", "denoised", "ancestral"]


class Truth(NamedTuple):
    """What training knows of a draw: the data ``[N, ...]``, and the y_t that x_{t+1} was made from."""

    x: Tensor
    y_t: Tensor


@dataclass(frozen=True, repr=False)
class LevelSampler:
    """How y_t is drawn given x_{t+1}.

    Attributes:
        kernel: The Markov kernel, or its name: ``"langevin"``, ``"mala"``, ``"hmc"``, ``"nuts"``.
        num_steps: K; 0 takes the Gaussian guess as the draw.
        step_size: ``[T]``, the step size of every level; or one number for all.
        start: Where chains start; see the head of this module.
        jump_proposals: J of a jump between modes before every fifth step; 0 for none.
        take: How a jump takes its candidate; see :func:`springwell.samplers.jumps.take`.

    Examples:
        >>> sampler = sw.LevelSampler("mala", num_steps=5, step_size=[0.1, 0.3])
        >>> sampler
        <LevelSampler mala, num_steps=5, step_size=0.1 ... 0.3, start='noisy'>
    """

    kernel: Kernel | str = "mala"
    num_steps: int = 20
    step_size: Tensor | np.ndarray | Sequence[float] | float = 0.1
    start: Start = "noisy"
    jump_proposals: int = 0
    take: Take = take

    def __post_init__(self) -> None:
        if isinstance(self.kernel, str):
            object.__setattr__(self, "kernel", make_kernel(self.kernel))
        if not isinstance(self.kernel, Kernel):
            raise UserError(f"kernel: is {kind_of(self.kernel)}; give a Kernel or a name, for instance 'mala'")
        whole_number("num_steps", self.num_steps, 0)
        whole_number("jump_proposals", self.jump_proposals, 0)
        step_size = as_step_size(self.step_size).float()
        if not bool(((step_size > 0) & torch.isfinite(step_size)).all()):
            raise UserError(f"step_size={self.step_size!r}: must be positive and finite")
        if step_size.ndim and not isinstance(self.step_size, Tensor):
            object.__setattr__(self, "step_size", step_size)
        if self.start not in get_args(Start):
            raise UserError(f"start={self.start!r}: unknown; choose {', '.join(get_args(Start))}")

    @property
    def tested(self) -> bool:
        """Whether its chains have a Metropolis test."""
        return self.num_steps > 0 and self.made.tested

    @property
    def made(self) -> Kernel:
        """The kernel itself, also where it was given by name."""
        assert isinstance(self.kernel, Kernel)
        return self.kernel

    @property
    def damped(self) -> bool:
        """Whether its Gaussian guess is damped: everywhere but in the paper's normal approximation, K = 0 from x_{t+1}."""
        return self.num_steps > 0 or self.guesses

    @property
    def guesses(self) -> bool:
        """Whether chains start at a guess."""
        return self.start in ("denoised", "ancestral")

    def __repr__(self) -> str:
        steps = self.step_size
        size = f"{float(steps.min()):.3g} ... {float(steps.max()):.3g}" if isinstance(steps, Tensor) and steps.ndim else steps
        jumps = f", jump_proposals={self.jump_proposals}" if self.jump_proposals else ""
        return f"<LevelSampler {self.made.name}, num_steps={self.num_steps}, step_size={size}, start={self.start!r}{jumps}>"

    def check(self, schedule: NoiseSchedule) -> None:
        """Refuses a schedule that this sampler cannot draw from."""
        if isinstance(self.step_size, Tensor) and self.step_size.shape not in ((), (schedule.num_levels,)):
            raise UserError(f"step_size: has shape {list(self.step_size.shape)}; needs [{schedule.num_levels}], one per level")
        if bool(schedule.spring.all()):
            return
        if self.num_steps == 0:
            raise UserError("num_steps=0: needs the spring of every level, and this schedule lacks some; use at least 1")
        if self.guesses:
            raise UserError(f"start={self.start!r}: needs the spring of every level, and this schedule lacks some; use 'noisy'")

    def to(self, device: torch.device | str) -> LevelSampler:
        """The sampler with its step sizes on another device."""
        return replace(self, step_size=self.step_size.to(device)) if isinstance(self.step_size, Tensor) else self

    def description(self) -> dict[str, Any]:
        """All but the step sizes, for JSON."""
        kernel = {"kernel": self.made.name, "options": self.made.options}
        return {**kernel, "num_steps": self.num_steps, "start": self.start, "jump_proposals": self.jump_proposals}

    def with_steps(self, step_size: Tensor) -> LevelSampler:
        """The sampler with other step sizes ``[T]``, which may change while it is used.

        Examples:
            >>> sw.LevelSampler("mala").with_steps(torch.tensor([0.1, 0.2])).step_size
            tensor([0.1000, 0.2000])
        """
        return replace(self, step_size=step_size)

    def steps(self, t: Tensor) -> Tensor:
        """Step sizes ``[N]`` of chains at levels t.

        Examples:
            >>> sw.LevelSampler("mala", step_size=[0.1, 0.2]).steps(torch.tensor([0, 1, 1]))
            tensor([0.1000, 0.2000, 0.2000])
        """
        if isinstance(self.step_size, Tensor) and self.step_size.ndim:
            return self.step_size[t]
        return torch.as_tensor(self.step_size, dtype=torch.float32, device=t.device).expand(len(t))

    def guess(self, conditional: Conditional, eps: Tensor, cut: bool = False) -> Tensor:
        """The Gaussian guess of y_t at noise eps; ``cut`` limits its drift to what data can make it."""
        if self.start == "ancestral":
            return conditional.ancestral(eps)
        return conditional.normal_approximation(eps, self.damped, cut)

    def draw(self, conditional: Conditional, noise: Noise | Generator, truth: Truth | None = None) -> tuple[Tensor, Tensor]:
        """Draws y_t given x_{t+1} and returns it with the mean acceptance ``[N]`` of each chain.

        Args:
            conditional: The well and the spring.
            noise: For N chains.
            truth: In training, the data and y_t.

        Examples:
            >>> model, t = sw.load("checkerboard"), torch.full((3,), 2)
            >>> conditional = sw.Conditional(model.energy_function, model.schedule, t, x_next=torch.zeros(3, 2))
            >>> y, acceptance = model.sampler.draw(conditional, sw.Noise(0, torch.arange(3)))
            >>> y.shape, acceptance.shape
            (torch.Size([3, 2]), torch.Size([3]))
        """
        start = conditional.x_next
        noise = as_noise(noise, start)
        if self.num_steps == 0 or self.guesses:
            eps = noise.normal(*start.shape[1:]) if truth is None else _shared_noise(conditional, truth, noise)
            start = self.guess(conditional, eps, cut=truth is not None)
        elif self.start == "data" and truth is not None:
            start = truth.y_t
        return self.run(conditional, start, noise)

    def run(self, conditional: Conditional, y: Tensor, noise: Noise | Generator) -> tuple[Tensor, Tensor]:
        """K steps at the conditional from y ``[N, ...]``: where they end, and their mean acceptance ``[N]``.

        Examples:
            >>> model, t, x_next = sw.load("checkerboard"), torch.full((3,), 2), torch.zeros(3, 2)
            >>> conditional = sw.Conditional(model.energy_function, model.schedule, t, x_next)
            >>> y, acceptance = model.sampler.run(conditional, x_next, sw.Noise(0, torch.arange(3)))
            >>> y.shape
            torch.Size([3, 2])
        """
        acceptance, noise = torch.zeros(len(y), device=y.device), as_noise(noise, y)
        if self.num_steps == 0:
            return y, torch.ones_like(acceptance)
        step_size = self.steps(conditional.level)
        piece = STEPS_PER_JUMP if self.jump_proposals else self.num_steps
        for done in range(0, self.num_steps, piece):
            num = min(piece, self.num_steps - done)
            if self.jump_proposals:
                y = self._jump(conditional, y, noise)
            y, accepted = run_chain(self.made, y, conditional, step_size, num, noise, check=False)
            acceptance += accepted * (num / self.num_steps)
        return y, acceptance

    def _jump(self, conditional: Conditional, y: Tensor, noise: Noise) -> Tensor:
        eps = noise.normal(self.jump_proposals, *y.shape[1:]).transpose(0, 1)
        candidates, log_weight = conditional.proposals(y, eps)
        return self.take(candidates, choose(log_weight, noise))

    def sweep(self, conditional: Conditional, y: Tensor, noise: Noise | Generator) -> tuple[Tensor, Tensor]:
        """Draws x_{t+1} again, given y_t, and then y_t again, given that; see :mod:`springwell.generate`.

        Examples:
            >>> model, t, x_next = sw.load("checkerboard"), torch.full((3,), 2), torch.zeros(3, 2)
            >>> conditional = sw.Conditional(model.energy_function, model.schedule, t, x_next)
            >>> y, acceptance = model.sampler.sweep(conditional, x_next, sw.Noise(0, torch.arange(3)))
            >>> y.shape
            torch.Size([3, 2])
        """
        noise = as_noise(noise, y)
        held = conditional.held_to(y + conditional.sigma * noise.normal(*y.shape[1:]))
        if self.num_steps == 0:
            y = self.guess(held, noise.normal(*y.shape[1:]))
        return self.run(held, y, noise)


def _shared_noise(conditional: Conditional, truth: Truth, noise: Noise) -> Tensor:
    """The residual of y_t given x_{t+1} and the data, standard normal and independent of both; fresh where y_t has none."""
    mean, std = conditional.schedule.posterior(truth.x, conditional.x_next, conditional.level)
    return torch.where(std > 0, (truth.y_t - mean) / std, noise.normal(*truth.x.shape[1:]))


def check_parts(energy: object, schedule: object, *samplers: object) -> None:
    """Refuses parts of other types, in one sentence."""
    if not callable(energy):
        raise UserError(f"energy: is {kind_of(energy)}; give a callable (y [N, ...], t [N]) -> [N], or an nn.Module")
    try:
        inspect.signature(getattr(energy, "forward", energy)).bind(None, None)
    except TypeError as error:
        raise UserError(f"energy: cannot be called as energy(y, t): {error}") from None
    except ValueError:  # Some functions of C have no signature.
        pass
    if not isinstance(schedule, NoiseSchedule):
        raise UserError(f"schedule: is {kind_of(schedule)}; give a NoiseSchedule, such as NoiseSchedule.log_snr(12)")
    for sampler in samplers:
        if not isinstance(sampler, LevelSampler):
            what = f"is {kind_of(sampler)}"
            raise UserError(f"sampler: {what}; give a LevelSampler, for instance LevelSampler('mala', 20, 0.1)")

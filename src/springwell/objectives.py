r"""What training maximises (Gao et al. 2021, Sec. 3.2-3.4).

recovery    Alg. 1: ascend  d/dtheta [f(y_t, t) - f(y^-, t)],  y^- drawn given x_{t+1} by a LevelSampler.
marginal    The same on a level without spring, T = 1: maximum likelihood of an ordinary EBM by short-run chains from noise.
dsm         Descend  ||y - (x_{t+1} + sigma^2 grad f(x_{t+1}, t))||^2 / (2 sigma^2),  sigma = sigma_{t+1}: the normal
            approximation's likelihood, which is denoising score matching of an explicit energy (Eq. 11). The paper's target y
            is y_t; E[y_t | x, x_{t+1}] has the same minimum without the noise of the hop.

An objective holds the energy, the schedule and the sampler. ``loss_fn(x, noise)`` returns the loss of every sample, with
gradients of the weights, and statistics without:

    loss_fn = Recovery(energy, schedule, LevelSampler("mala", num_steps=5, step_size=0.1))
    loss, statistics = loss_fn(x, Noise(seed, torch.arange(len(x)), iteration))
    loss.mean().backward()
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, Protocol, get_args

import torch
from torch import Generator, Tensor

from springwell.conditional import Conditional
from springwell.energy.base import EnergyFunction
from springwell.errors import UserError, kind_of
from springwell.level import LevelSampler, Truth, check_parts
from springwell.noise import Noise, as_noise
from springwell.schedule import NoiseSchedule
from springwell.shapes import expand

Regressed = Literal["posterior", "sample"]
STATISTICS = ("f_pos", "f_neg", "displacement", "acceptance")


class Outcome(NamedTuple):
    """The loss per sample ``[N]``, with gradients, and what is worth knowing of it, ``{name: [N]}``, without.

    The statistics of the objectives here are the level of every sample, f at the positive and at the negative samples, how far
    chains travelled in widths of their spring (root mean square), and their mean acceptance.

    Examples:
        >>> model = sw.load("checkerboard")
        >>> loss_fn = sw.Recovery(model.energy_function, model.schedule, model.sampler)
        >>> outcome = loss_fn(torch.zeros(5, 2), sw.Noise(0, torch.arange(5)))
        >>> outcome.loss.shape, "level" in outcome.statistics
        (torch.Size([5]), True)
    """

    loss: Tensor
    statistics: dict[str, Tensor]


class Objective(Protocol):
    """What a training loop needs of an objective.

    Examples:
        >>> loss_fn: sw.objectives.Objective = sw.DSM(lambda y, t: -y.square().sum(-1), sw.NoiseSchedule.log_snr(4, 5, -5))
        >>> loss_fn(torch.randn(5, 2), sw.Noise(0, torch.arange(5))).loss.shape
        torch.Size([5])
    """

    schedule: NoiseSchedule
    differentiated: EnergyFunction | None

    @property
    def names(self) -> tuple[str, ...]:
        """The statistics, in their order; ``level`` comes beside them."""

    def __call__(self, x: Tensor, noise: Noise | Generator, t: Tensor | None = None) -> Outcome:
        """The loss at data x ``[N, ...]``; t: levels ``[N]``, drawn uniformly if not given.

        That of an energy that knows classes also takes ``label``, ``[N]``.
        """
        ...


@dataclass
class Recovery:
    """Recovery likelihood (Alg. 1), and marginal likelihood where the schedule has no spring.

    Attributes:
        energy: f(y, t), from whose weights chains take no gradients.
        schedule: The noise levels.
        sampler: How negatives are drawn.
        weight: Weight of each level's loss ``[T]``. Default: the energy's own ``loss_weight`` if it has one, else 1.
        differentiated: The same energy as the loss differentiates it: under data parallelism, its wrapper.

    Examples:
        >>> schedule = sw.NoiseSchedule.from_sigmas([0.5, 0.9])
        >>> energy = lambda y, t: -y.square().sum(-1) / 2
        >>> loss_fn = sw.Recovery(energy, schedule, sw.LevelSampler("mala", num_steps=5, step_size=0.3))
        >>> loss, statistics = loss_fn(torch.zeros(8, 2), torch.Generator().manual_seed(0))
        >>> loss.shape, sorted(statistics)
        (torch.Size([8]), ['acceptance', 'displacement', 'f_neg', 'f_pos', 'level'])
    """

    names: ClassVar[tuple[str, ...]] = STATISTICS

    energy: EnergyFunction
    schedule: NoiseSchedule
    sampler: LevelSampler
    weight: Tensor | None = None
    differentiated: EnergyFunction | None = None

    def __post_init__(self) -> None:
        check_parts(self.energy, self.schedule, self.sampler)
        self.sampler.check(self.schedule)
        wanted, weight = (self.schedule.num_levels,), self.weight
        if weight is not None and getattr(weight, "shape", None) != wanted:
            raise UserError(f"weight={weight!r}: give a tensor {list(wanted)}, one weight per level")

    def __call__(self, x: Tensor, noise: Noise | Generator, t: Tensor | None = None) -> Outcome:
        noise = as_noise(noise, x)
        t = _levels(t, self.schedule.num_levels, noise)
        y_t, x_next = self.schedule.pair(x, t, noise)
        y_neg, acceptance = self.sampler.draw(Conditional(self.energy, self.schedule, t, x_next), noise, Truth(x, y_t))
        # One pass for both, with gradients of the weights.
        f = self.differentiated or self.energy
        f_pos, f_neg = f(torch.cat([y_t, y_neg]), torch.cat([t, t])).chunk(2)
        weight = getattr(self.energy, "loss_weight", None) if self.weight is None else self.weight
        loss = f_neg - f_pos if weight is None else weight[t] * (f_neg - f_pos)
        displacement = (y_neg - x_next).flatten(1).square().mean(-1).sqrt() / self.schedule.sigma[t + 1].to(x.dtype)
        values = (f_pos.detach(), f_neg.detach(), displacement, acceptance)
        return Outcome(loss, {"level": t, **dict(zip(STATISTICS, values, strict=True))})


class Marginal(Recovery):
    """Maximum likelihood of one ordinary EBM by short-run chains from noise: a schedule of one level without spring.

    Examples:
        >>> energy = lambda y, t: -y.square().sum(-1) / 2
        >>> loss_fn = sw.Marginal(energy, sw.NoiseSchedule.marginal(), sw.LevelSampler("langevin", num_steps=30, step_size=0.1))
        >>> loss_fn(torch.zeros(8, 2), torch.Generator().manual_seed(0)).loss.shape
        torch.Size([8])
    """

    def __post_init__(self) -> None:
        check_parts(self.energy, self.schedule, self.sampler)
        if self.schedule.num_levels != 1 or bool(self.schedule.spring.any()):
            raise UserError("schedule: the marginal objective has one level without spring; use NoiseSchedule.marginal()")
        super().__post_init__()


@dataclass
class DSM:
    """Denoising score matching of the explicit energy; it differentiates the gradient of f once more.

    Attributes:
        energy: f(y, t).
        schedule: The noise levels, all of them with their spring.
        differentiated: As for :class:`Recovery`.
        target: ``posterior``, E[y_t | x, x_{t+1}]; or ``sample``, y_t itself.

    Examples:
        >>> schedule = sw.NoiseSchedule.from_sigmas([0.5, 0.9])
        >>> energy = lambda y, t: -y.square().sum(-1) / 2
        >>> loss, statistics = sw.DSM(energy, schedule)(torch.zeros(8, 2), torch.Generator().manual_seed(0))
        >>> loss.shape
        torch.Size([8])
    """

    names: ClassVar[tuple[str, ...]] = STATISTICS

    energy: EnergyFunction
    schedule: NoiseSchedule
    differentiated: EnergyFunction | None = None
    target: Regressed = "posterior"

    def __post_init__(self) -> None:
        check_parts(self.energy, self.schedule)
        other: object = self.differentiated
        if other is not None and not callable(other):
            kind = type(other).__name__
            raise UserError(f"differentiated: is a {kind}; give a callable (y, t) -> [N]; score matching takes no sampler")
        if self.target not in get_args(Regressed):
            raise UserError(f"target={self.target!r}: unknown; choose {', '.join(get_args(Regressed))}")
        if not bool(self.schedule.spring.all()):
            raise UserError("schedule: denoising score matching needs the spring of every level; use linear or log_snr")

    def __call__(self, x: Tensor, noise: Noise | Generator, t: Tensor | None = None) -> Outcome:
        noise = as_noise(noise, x)
        t = _levels(t, self.schedule.num_levels, noise)
        y_t, x_next = self.schedule.pair(x, t, noise)
        x_next = x_next.detach().requires_grad_()
        f = (self.differentiated or self.energy)(x_next, t)
        (score,) = torch.autograd.grad(f.sum(), x_next, create_graph=True)
        sigma = expand(self.schedule.sigma[t + 1], x_next)
        drift = sigma**2 * score
        wanted = self.schedule.posterior(x, x_next.detach(), t)[0] if self.target == "posterior" else y_t
        loss = ((wanted - x_next.detach() - drift) / sigma).flatten(1).square().sum(-1) / 2
        displacement = (drift / sigma).detach().flatten(1).square().mean(-1).sqrt()
        values = (f.detach(), f.detach(), displacement, torch.ones_like(displacement))
        return Outcome(loss, {"level": t, **dict(zip(STATISTICS, values, strict=True))})


def _levels(t: Tensor | None, num_levels: int, noise: Noise) -> Tensor:
    """The caller's levels t ``[N]``, or random ones."""
    if t is None:
        return random_levels(num_levels, noise)
    if not isinstance(t, Tensor) or t.shape != (len(noise),):
        found = list(t.shape) if isinstance(t, Tensor) else kind_of(t)
        raise UserError(f"t: is {found}; give a tensor of levels [{len(noise)}], one per sample")
    return t


def random_levels(num_levels: int, noise: Noise) -> Tensor:
    """t ~ Unif{0 ... T-1}, ``[N]``.

    Examples:
        >>> sw.objectives.random_levels(4, sw.Noise(0, torch.arange(1000))).unique()
        tensor([0, 1, 2, 3])
    """
    return (noise.uniform().double() * num_levels).long().clamp(max=num_levels - 1)


def stratified_levels(num_levels: int, index: Tensor, total: int, offset: Tensor) -> Tensor:
    """t ~ Unif{0 ... T-1} for a batch of ``total``, spread evenly over the levels by systematic sampling.

    Args:
        num_levels: T.
        index: int64 ``[N]``: position of each sample in the whole batch.
        total: Size of the whole batch.
        offset: One uniform, ``[1]``, shared by the whole batch.

    Examples:
        >>> sw.objectives.stratified_levels(4, torch.arange(8), total=8, offset=torch.tensor([0.3]))
        tensor([0, 0, 1, 1, 2, 2, 3, 3])
    """
    t = ((index + offset.double()) * (num_levels / total)).long()
    return t.clamp(max=num_levels - 1)

r"""Inpainting: what is hidden, given what is seen (Gao et al. 2021, Sec. 4.2).

An image x = (o, m) has seen pixels o and hidden ones m. The seen ones are diffused once,

    o_0 = a_0 o + sigma_0 eps,      o_{t+1} = a_{t+1} o_t + sigma_{t+1} eps,

and the hidden ones are sampled down the ladder, with the seen ones held at their diffused values:

    m_T ~ N(0, I);   for t = T-1 ... 0:  scale_t m_t ~ exp(f((scale_t o_t, .), t) - |m_{t+1} - .|^2 / (2 sigma_{t+1}^2)).

That is the paper's procedure, and it is biased. Noise acts on each pixel by itself, so the hidden path depends on the seen one
through x_0 alone, and given o_0 the right law of m_{t+1} is p(m_{t+1} | o_0). Its own is p(m_{t+1} | o_{t+1}, m_{t+2}), which
knows nothing of what the seen pixels look like at lower noise. If m_1 has a wrong law, so has m_0.

A sweep draws m_{t+1} again, given m_t, and m_t again, given m_{t+1} and o_t: a Gibbs step that leaves p(m_t | o_t) invariant at
every level. With sweeps, the law of m_t approaches p(m_t | o_t), and that of the last level is the conditional p(m_0 | o_0)
asked for. What is left of the initial noise in the hidden pixels is removed where the model removes it from its samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from springwell.applications.batches import Draws, check_values, in_batches, repeated
from springwell.conditional import Conditional
from springwell.energy.base import EnergyFunction, at_level
from springwell.errors import UserError
from springwell.generate import Sample, descend
from springwell.level import LevelSampler
from springwell.model import Model
from springwell.noise import Noise, Stream
from springwell.schedule import NoiseSchedule
from springwell.shapes import expand


class Hidden:
    """The energy as a function of the hidden values alone, ``[N, M]``, with the others held.

    Args:
        energy: f(y, t).
        held: y ``[N, ...]``, of which the hidden values do not matter.
        where: int64 ``[M]``: the places of the hidden values in a flattened sample.
    """

    def __init__(self, energy: EnergyFunction, held: Tensor, where: Tensor):
        self.energy, self.held, self.where = energy, held, where

    def whole(self, m: Tensor) -> Tensor:
        """The whole sample; m may hold several candidates for each."""
        held = repeated(self.held, len(m))
        return held.flatten(1).index_copy(1, self.where, m).view_as(held)

    def __call__(self, m: Tensor, t: Tensor) -> Tensor:
        return self.at(t)(m)

    def at(self, t: Tensor) -> Callable[[Tensor], Tensor]:
        f = at_level(self.energy, t)
        return lambda m: f(self.whole(m))


def inpaint_levels(
    energy: EnergyFunction,
    schedule: NoiseSchedule,
    sampler: LevelSampler,
    x: Tensor,
    hidden: Tensor,
    noise: Noise,
    sweeps: int = 0,
) -> Iterator[Sample]:
    """Yields x_T ... x_0 whose seen values are a diffused path of those of x. Same form as ``generate.progressive``.

    Args:
        energy: f(y, t).
        schedule: The noise levels.
        sampler: How every level is drawn.
        x: Data ``[N, ...]`` in the model's coordinates; the hidden values are not used.
        hidden: bool, of the shape of one sample.
        noise: For N samples.
        sweeps: Sweeps of every level after its first chain; 0 is the paper's procedure.

    Examples:
        >>> from springwell.applications import inpaint_levels
        >>> model, noise = sw.load("checkerboard"), sw.Noise(0, torch.arange(3))
        >>> hidden, parts = torch.tensor([False, True]), (model.energy_function, model.schedule, model.sampler)
        >>> [t for t, x_t, acceptance in inpaint_levels(*parts, torch.zeros(3, 2), hidden, noise)]
        [4, 3, 2, 1, 0]
    """
    # Looked up once, so that no level has to wait for the device.
    event, where = x.shape[1:], hidden.cpu().flatten().nonzero()[:, 0].to(x.device)
    hidden = hidden.to(x.device)
    # Hidden values start from nothing, so that whatever they were cannot leak into the path.
    steps = [torch.where(hidden, 0.0, x)]
    for a, sigma in zip(schedule.a, schedule.sigma, strict=True):
        steps.append(a * steps[-1] + sigma * noise.normal(*event))
    path = torch.stack(steps[1:])

    def guess(t: Tensor, x_next: Tensor) -> Tensor:
        """The hidden values of a guess at x_{t+1}, whose seen values are those of level t + 1."""
        conditional = Conditional(energy, schedule, t, x_next)
        return sampler.guess(conditional, noise.normal(*event)).flatten(1)[:, where]

    def guessed(t: Tensor, x_next: Tensor) -> tuple[Tensor, Tensor]:
        """K = 0: every sweep guesses anew, from hidden values of level t + 1 and the seen ones there."""
        above, sigma = Hidden(energy, path.index_select(0, t[:1] + 1)[0], where), schedule.sigma[t + 1].to(x.dtype)[:, None]
        m = guess(t, x_next)
        for _ in range(sweeps):
            m = guess(t, above.whole(m + sigma * noise.normal(len(where))))
        return m, torch.ones(len(x), device=x.device)

    def chained(rest: Hidden, t: Tensor, x_next: Tensor) -> tuple[Tensor, Tensor]:
        """Chains of the hidden values alone."""
        m_next = x_next.flatten(1)[:, where]
        start = guess(t, x_next) if sampler.guesses else m_next
        conditional = Conditional(rest, schedule, t, m_next)
        m, acceptance = sampler.run(conditional, start, noise)
        for _ in range(sweeps):
            m, accepted = sampler.sweep(conditional, m, noise)
            acceptance = acceptance + accepted
        return m, acceptance / (sweeps + 1)

    def draw(t: Tensor, x_next: Tensor) -> tuple[Tensor, Tensor]:
        rest = Hidden(energy, expand(schedule.scale[t], x) * path.index_select(0, t[:1])[0], where)
        m, acceptance = chained(rest, t, x_next) if sampler.num_steps else guessed(t, x_next)
        return rest.whole(m), acceptance

    return descend(schedule, torch.where(hidden, noise.normal(*event), path[-1]), draw)


def inpaint(model: Model, x: Tensor, hidden: Tensor, draws: Draws | None = None) -> Tensor:
    """Fills in what is hidden, several times for every sample: ``[B, num, ...]``, in which what is seen is that of x.

    Args:
        model: The model.
        x: Data ``[B, ...]`` in the data's units.
        hidden: bool, of the shape of one sample.
        draws: How many samples of the hidden values, and how. Without sweeps it is the paper's procedure.

    Examples:
        >>> from springwell.applications import Draws, inpaint
        >>> model = sw.load("checkerboard")
        >>> x = torch.tensor([[0.5, 0.0]])
        >>> inpaint(model, x, hidden=torch.tensor([False, True]), draws=Draws(num=4)).shape  # x[0] is given
        torch.Size([1, 4, 2])
    """
    return inpaint_noisy(model, x, hidden, draws or Draws())[1]


@torch.inference_mode(False)
def inpaint_noisy(model: Model, x: Tensor, hidden: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
    """x_0 in the model's coordinates, with its initial noise, and what :func:`inpaint` makes of it."""
    check_hidden(hidden, model.event_shape)
    check_values("x", torch.where(hidden.to(x.device), 0, x) if x.shape[1:] == hidden.shape else x, model.event_shape)
    sampler, hidden = model.level_sampler(draws.num_steps), hidden.to(model.device)
    u = (x.to(model.shift) - model.shift) / model.scale
    number = draws.numbered(len(x), model.device)

    def run(i: Tensor, j: Tensor) -> Iterator[Sample]:
        noise = model.noise(draws.seed, j, Stream.INPAINTING + number[i])
        return inpaint_levels(model.energy_function, model.schedule, sampler, u[i], hidden, noise, draws.sweeps)

    def both(x_0: Tensor) -> Tensor:
        return torch.stack([x_0, model.finished(x_0)], 1)

    x_0, drawn = in_batches(model, run, len(x), draws, both).unbind(2)
    return x_0, torch.where(hidden, drawn, x.to(drawn)[:, None])


def check_hidden(hidden: Tensor, event_shape: tuple[int, ...]) -> None:
    """Refuses a mask of another shape, and one that hides nothing or everything."""
    if tuple(hidden.shape) != event_shape or hidden.dtype != torch.bool:
        raise UserError(f"mask: is {hidden.dtype} of shape {list(hidden.shape)}; needs torch.bool of {list(event_shape)}")
    if not bool(hidden.any()):
        raise UserError("mask: hides nothing, so there is nothing to fill in; True (white in an image) marks what is hidden")
    if bool(hidden.all()):
        raise UserError("mask: hides everything, so nothing is given; draw samples instead (springwell sample)")

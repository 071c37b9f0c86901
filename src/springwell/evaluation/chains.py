r"""Whether chains at the levels of a model mix: R-hat, effective samples, acceptance, energies.

At each of some levels t, one x_{t+1} of a progressive sample is held fixed, and C chains at p(. | x_{t+1}) start at C guesses
of y_t, draws of the normal approximation. Their target is then the same one, so that R-hat can compare them. ``FREE`` asks the
same of chains at f(., 0) without spring, which start at C progressive samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from springwell.conditional import Conditional
from springwell.energy.base import at_level
from springwell.errors import UserError
from springwell.evaluation.steps import Steps, standing
from springwell.model import Model
from springwell.noise import Noise, Stream
from springwell.progress import SILENT, Reporter
from springwell.samplers import LogDensity, Trace, make_kernel, record_chain
from springwell.samplers.diagnostics import ess_bulk, split_rhat, summarise

FREE = -1


class Diagnosed(NamedTuple):
    """The numbers of one level, and log p ``[S, C]`` and the Hamiltonian ``[S, C]`` (or None) of its chains."""

    numbers: dict[str, Any]
    log_p: Tensor
    energy: Tensor | None


@dataclass(frozen=True)
class Length:
    """The chains of every level.

    Attributes:
        num_steps: Steps that are measured.
        num_chains: Chains of each level, C.
        warmup: Steps before.
        seed: Of all.
    """

    num_steps: int = 200
    num_chains: int = 16
    warmup: int = 50
    seed: int = 0

    def __post_init__(self) -> None:
        if self.num_chains < 2 or self.num_steps < 8 or self.warmup < 0:
            found = f"{self.num_chains} chains, {self.num_steps} steps, {self.warmup} before"
            raise UserError(f"{found}: needs 2 chains, 8 steps and 0 at least")


def diagnose(
    model: Model, steps: Steps, levels: list[int], length: Length | None = None, reporter: Reporter = SILENT
) -> list[Diagnosed]:
    """Runs chains at each of the levels and measures them.

    Args:
        model: The model.
        steps: The kernel with its step sizes.
        levels: Which; ``FREE`` for level 0 without its spring.
        length: How many chains, and how long they are.
        reporter: Receives progress updates.
    """
    length = length or Length()
    places, num, warmup = sorted({max(t, 0) for t in levels}), length.num_chains, length.warmup
    stood = standing(model, places, num, length.seed, reporter)
    kernel = make_kernel(steps.method.kernel, steps.method.num_leapfrog)
    found = []
    with reporter.bar(f"{length.num_steps} steps of {steps.method} (levels)", len(levels)) as bar:
        for t in levels:
            first = places.index(max(t, 0)) * num
            here = stood.take(slice(first, first + num))
            noise = Noise(length.seed, torch.arange(num, device=model.device), Stream.DIAGNOSIS + t - FREE)
            logdensity: LogDensity
            if t == FREE:
                y, logdensity = here.y, at_level(model.energy_function, here.t)
                step_size = torch.tensor(steps.marginal, device=model.device)
            else:
                x_next = here.x_next[:1].expand_as(here.x_next)
                logdensity = conditional = Conditional(model.energy_function, model.schedule, here.t, x_next)
                # Starts that differ from chain to chain by about the width of the conditional.
                eps, sprung = noise.normal(*model.event_shape), bool(model.schedule.spring[t])
                y = model.sampler.guess(conditional, eps) if sprung else x_next + 0.1 * eps
                step_size = steps.step_size[t]
            if warmup:
                y = record_chain(kernel, y, logdensity, step_size, warmup, noise, warmup).draws[-1]
            trace = record_chain(kernel, y, logdensity, step_size, length.num_steps, noise)
            found.append(_measure(t, float(step_size), trace, logdensity))
            bar.advance()
    return found


def _measure(t: int, step_size: float, trace: Trace, logdensity: LogDensity) -> Diagnosed:
    summary = summarise(trace)
    with torch.no_grad():
        log_p = torch.stack([logdensity(y).double() for y in trace.draws])
    steps, num_chains = trace.draws.shape[:2]
    worst = summary.ess_bulk.min()
    numbers = {
        "level": t if t != FREE else 0,
        "spring": t != FREE,
        "step_size": step_size,
        "num_chains": num_chains,
        "num_steps": steps,
        "acceptance": summary.acceptance,
        "rhat": _number(summary.rhat.max()),
        "rhat_log_p": _number(split_rhat(log_p[..., None])[0]),
        "ess_bulk": _number(worst),
        "ess_tail": _number(summary.ess_tail.min()),
        "ess_log_p": _number(ess_bulk(log_p[..., None])[0]),
        "ess_per_gradient": _number(worst / summary.num_gradients),
        "ebfmi": summary.ebfmi,
        "drift": None if summary.drift is None else summary.drift.size,
        "drift_z": None if summary.drift is None else summary.drift.z,
        "divergent": summary.num_divergent,
        "gradients_per_step": summary.num_gradients / (steps * num_chains),
    }
    return Diagnosed(numbers, log_p, trace.info.energy)


def _number(value: Tensor) -> float | None:
    """None for what is not defined: a coordinate in which no chain moved has no R-hat and no effective samples."""
    return float(value) if bool(torch.isfinite(value)) else None

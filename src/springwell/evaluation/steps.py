r"""Step sizes for the conditionals of all levels: tuned by a pilot, then frozen, and kept with the run (Sec. 4.3).

The pilot's chains stand at p(y_t | x_{t+1}) with x_{t+1} and y_t of progressive samples, several for each of the levels that
are tuned. Between those levels log(delta_t / sigma_{t+1}) is interpolated linearly in t, because it changes slowly: a model
with T = 1000 needs some fifty of them. What is measured later has these step sizes and no others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from springwell.conditional import Conditional
from springwell.energy.base import at_level
from springwell.errors import UserError
from springwell.model import Model
from springwell.noise import Noise, Stream
from springwell.progress import SILENT, Reporter
from springwell.samplers import LogDensity, Tuned, Tuning, make_kernel, tune_step_size
from springwell.samplers.adaptation import interpolate
from springwell.schedule import spread_levels
from springwell.store.parts import Parts, key_of

BAND = (0.6, 0.9)
FIRST_STEP = 0.6


class Method(NamedTuple):
    """A kernel by name, as it is written to files."""

    kernel: str = "hmc"
    num_leapfrog: int = 2

    def __str__(self) -> str:
        return f"{self.kernel}{self.num_leapfrog}" if self.kernel == "hmc" else self.kernel


class Pilot(NamedTuple):
    """How step sizes are tuned.

    Attributes:
        num_chains: Chains per level; the paper has 1000.
        num_steps: Steps of a round; the paper has 100.
        band: Lowest and highest acceptance; the paper's is [0.6, 0.9].
        max_levels: Tune no more levels than this, and interpolate between them.
        seed: The seed of the chains.
        dual_averaging: Adapt by dual averaging, for few chains per level.
        free: Whether to tune chains at level 0 without its spring too. NUTS makes long trajectories there.
    """

    num_chains: int = 32
    num_steps: int = 40
    band: tuple[float, float] = BAND
    max_levels: int = 50
    seed: int = 0
    dual_averaging: bool = False
    free: bool = True


class Steps(NamedTuple):
    """Frozen step sizes.

    Attributes:
        method: The kernel that they are for.
        step_size: ``[T]``.
        marginal: For chains at level 0 without its spring.
        levels: The levels that were tuned.
        acceptance: Of the pilot's chains there, then of those without spring if there were; empty without a Metropolis test.
    """

    method: Method
    step_size: Tensor
    marginal: float
    levels: list[int]
    acceptance: list[float]


class Standing(NamedTuple):
    """Chains at the conditionals of levels.

    Attributes:
        t: Levels ``[N]``.
        y: Positions ``[N, ...]``, progressive samples of y_t given x_next.
        x_next: x_{t+1} ``[N, ...]``.
    """

    t: Tensor
    y: Tensor
    x_next: Tensor

    def conditional(self, model: Model) -> Conditional:
        return Conditional(model.energy_function, model.schedule, self.t, self.x_next)

    def take(self, rows: slice) -> Standing:
        return Standing(*[value[rows] for value in self])


def standing(model: Model, levels: list[int], num_chains: int, seed: int, reporter: Reporter = SILENT) -> Standing:
    """``num_chains`` chains at each of the levels, ordered by level, from the model's own progressive sampling."""
    wanted = {t + 1 for t in levels} | set(levels)
    # By the index of the batch's first sample, since a batch that ran out of memory begins again.
    kept: dict[int, dict[int, Tensor]] = {t: {} for t in wanted}

    def watch(start: int, sample: Any) -> None:
        if sample.t in wanted:
            kept[sample.t][start] = (sample.x - model.shift) / model.scale
        bar.advance(len(sample.x))

    with reporter.bar("pilot samples (levels x chains)", num_chains * (model.schedule.num_levels + 1)) as bar:
        for _ in model.sample_batches(num_chains, seed, watch=watch):
            pass
    x = {t: torch.cat(list(parts.values())) for t, parts in kept.items()}
    scale = model.schedule.scale.float()
    t = torch.tensor(levels, device=model.device).repeat_interleave(num_chains)
    return Standing(t, torch.cat([scale[t] * x[t] for t in levels]), torch.cat([x[t + 1] for t in levels]))


def tune_levels(model: Model, method: Method, pilot: Pilot | None = None, reporter: Reporter = SILENT) -> Steps:
    """Step sizes of every level at which the acceptance is inside a band; levels that never get there are warned of.

    Args:
        model: The model.
        method: A kernel with a Metropolis test; for langevin the model's own step sizes are taken as they are.
        pilot: How.
        reporter: Receives progress updates.
    """
    schedule, device = model.schedule, model.device
    if method.kernel == "langevin":
        return Steps(method, model.step_size, float(model.step_size[0]), list(range(schedule.num_levels)), [])
    pilot = pilot or Pilot()
    num = pilot.num_chains
    if num < 1:
        raise UserError(f"pilot of {num} chains per level: needs at least 1")
    levels = spread_levels(schedule.num_levels, pilot.max_levels)
    chains = standing(model, levels, num, pilot.seed, reporter)
    sigma = schedule.sigma[1:].float()
    kernel = make_kernel(method.kernel, method.num_leapfrog)

    def tune(logdensity: LogDensity, y: Tensor, first: Tensor, stream: int) -> Tuned:
        group = torch.arange(len(first), device=device).repeat_interleave(num)
        noise = Noise(pilot.seed, torch.arange(len(y), device=device), Stream.PILOT + stream)
        tuning = Tuning(pilot.band, pilot.num_steps, dual_averaging=pilot.dual_averaging)
        return tune_step_size(kernel, logdensity, y, first, noise, group, tuning)

    together = max(1, model.automatic_batch() // num)
    with reporter.bar(f"tuning {method} (levels)", len(levels) + pilot.free) as bar:
        found = []
        for i in range(0, len(levels), together):
            part = levels[i : i + together]
            here = chains.take(slice(i * num, (i + len(part)) * num))
            found.append(tune(here.conditional(model), here.y, FIRST_STEP * sigma[part], 1 + i))
            bar.advance(len(part))
        lowest, marginal = chains.take(slice(num)), float(found[0].step_size[0])
        accepted = [tuned.acceptance for tuned in found]
        if pilot.free:
            free = tune(at_level(model.energy_function, lowest.t), lowest.y, found[0].step_size[:1], 0)
            marginal = float(free.step_size)
            accepted.append(free.acceptance)
            bar.advance()
    step_size = torch.cat([tuned.step_size for tuned in found])
    every = torch.arange(schedule.num_levels, device=device)
    ratio = interpolate(every, torch.tensor(levels, device=device), (step_size / sigma[levels]).log()).exp()
    return Steps(method, sigma * ratio, marginal, levels, [round(a, 4) for a in torch.cat(accepted).tolist()])


def kept_steps(model: Model, method: Method, pilot: Pilot, folder: Path, reporter: Reporter) -> Steps:
    """The step sizes that were kept in ``folder`` for this model and pilot, or newly tuned ones that are kept there.

    Step sizes that were tuned with those of chains without spring serve those that need none, too.
    """
    parts = Parts(folder / f"steps-{method}" / key_of(model.fingerprint(), method, pilot._replace(free=True)))

    def tune() -> dict[str, Tensor]:
        steps = tune_levels(model, method, pilot, reporter)
        numbers = {"marginal": steps.marginal, "levels": steps.levels, "acceptance": steps.acceptance}
        exact = {name: torch.tensor(value, dtype=torch.float64) for name, value in numbers.items()}
        return {"step_size": steps.step_size, **exact}

    name = "all" if pilot.free or parts.read("all-0") is not None else "springs"
    (found,) = parts.run(name, [tune])
    levels, acceptance = found["levels"].long().tolist(), found["acceptance"].tolist()
    return Steps(method, found["step_size"].to(model.device), float(found["marginal"]), levels, acceptance)

r"""Long-run chains: do samples stay what they are when every level is given more and more steps? (Sec. 4.3)

For each S of a list, progressive sampling with S steps at every level of a kernel with a Metropolis test,

    x_T ~ N(0, I);   for t = T-1 ... 0:  y = normal approximation;  S - 1 steps at log p(. | x_{t+1});  x_t = y / scale_t

so that a sample has made S T steps in all: the approximation is the first, as in the paper. Then, without the spring of level
0, chains go on at f(., 0) from where they ended: nothing holds them to the data any more but the energy itself. A short-run
model loses its images there.

Every level and every stretch of a chain without spring has random numbers of its own, so that an interrupted run goes on from
where it was last saved with the same bits.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from springwell.conditional import Conditional
from springwell.data.pictures import to_bytes
from springwell.data.source import DataSource
from springwell.energy.base import at_level
from springwell.errors import DivergenceError
from springwell.evaluation.inception import Inception
from springwell.evaluation.metrics import features, image_metrics, reference_features
from springwell.evaluation.neighbours import nearest
from springwell.evaluation.sources import Images, array_images
from springwell.evaluation.steps import Steps
from springwell.evaluation.toy import mmd
from springwell.generate import descend
from springwell.level import LevelSampler
from springwell.model import Model
from springwell.noise import Noise, Stream
from springwell.progress import Reporter, Silent
from springwell.samplers import make_kernel, run_chain
from springwell.samplers.checks import warn_if_collapsed
from springwell.store.files import write_json
from springwell.store.parts import Parts, key_of

# Every S has streams of its own, one per level, and so has every stretch of the chains without spring.
STREAMS_PER_RUN = 2**24
STRETCH = 1000
SAVE_EVERY = 30.0
HELD_OUT = 512


@dataclass(frozen=True)
class Plan:
    """What to run.

    Attributes:
        steps: Steps per level, S, one run for each.
        num: Chains of each run.
        marginal_steps: Steps of the chains that go on at level 0 without its spring, after the longest run.
        seed: Of all.
        batch: Chains that run side by side; None for as many as fit.
    """

    steps: tuple[int, ...] = (1, 10, 100)
    num: int = 64
    marginal_steps: int = 1000
    seed: int = 0
    batch: int | None = None


def marks(last: int) -> list[int]:
    """Where a marginal chain is looked at: 0, 1, 10, 100, ... and its end."""
    return [0, *[10**k for k in range(len(str(last))) if 10**k < last], last] if last else [0]


def title(name: str) -> str:
    """What to call the samples that :func:`long_run` names ``name``."""
    kind, _, steps = name.rpartition("-")
    return f"{steps} without" if kind else f"{steps} per level"


def long_run(
    model: Model, plan: Plan, steps: Steps, judge: Judge, out: Path, reporter: Reporter | None = None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Runs the plan, or goes on with it.

    Args:
        model: The model.
        plan: What to run.
        steps: The kernel with its step sizes.
        judge: Measures the samples.
        out: A folder for what is done.
        reporter: Receives progress updates.

    Returns:
        Names and values; the samples of every S, by ``"S"``, and the chains without spring, by ``"marginal-S"``, in the data's
        units.
    """
    reporter = reporter or Silent()
    runs: dict[str, Any] = {}
    samples: dict[str, Tensor] = {}
    ends: Tensor | None = None
    for number in sorted(plan.steps):
        u, accepted = _progressive(model, plan, steps, number, out, reporter)
        # A single step is the guess, which has no Metropolis test.
        tested = bool(steps.acceptance) and not (number == 1 and bool(model.schedule.spring.all()))
        if tested:
            warn_if_collapsed(accepted, number * plan.num, torch.arange(len(accepted), device=model.device))
        samples[str(number)] = judge.finished(u)
        runs[str(number)] = {
            "steps_per_level": number,
            "total_steps": number * model.schedule.num_levels,
            "acceptance": [round(a, 4) for a in accepted.tolist()] if tested else None,
            **judge(u),
        }
        ends = u
    result: dict[str, Any] = {
        "data": judge.name,
        "iteration": model.iteration,
        "method": str(steps.method),
        "num_samples": plan.num,
        "seed": plan.seed,
        "step_size": steps.step_size.tolist(),
        "marginal_step_size": steps.marginal,
        "held_out": judge.of_data,
        "runs": runs,
    }
    if plan.marginal_steps and ends is not None:
        result["marginal"] = []
        for mark, u, acceptance in _marginal(model, plan, steps, ends, out, reporter):
            if mark:
                samples[f"marginal-{mark}"] = judge.finished(u)
            moved = (u - ends).flatten(1).square().mean(1).sqrt().mean()
            result["marginal"].append({"steps": mark, "acceptance": acceptance, "moved": float(moved), **judge(u)})
    write_json(out / "longrun.json", result)
    return result, samples


class Judge:
    """Measures samples x_0 in standardised coordinates against held-out data.

    f_gap       mean f(y_0, 0) of held-out data less that of the samples, nats, with its standard error
    mmd2        of the coordinates, with the 95 % quantile of its null distribution
    nearest     images: median distance to the nearest training image, root mean square per value, with its standard error
    fid, kid    images, with Inception

    Args:
        model: The model.
        data: Its data.
        seed: The seed of the noise of held-out data.
        reporter: Receives progress updates.
        network: Inception, for the FID.
        reference: The images that the FID compares with.
    """

    def __init__(
        self,
        model: Model,
        data: DataSource,
        seed: int = 0,
        reporter: Reporter | None = None,
        network: Inception | None = None,
        reference: Images | None = None,
    ):
        self.model, self.data, self.seed, self.network = model, data, seed, network
        self.reporter, self.reference, self.name = reporter or Silent(), reference, model.metadata.get("name", "")
        num = min(HELD_OUT, self.data.num_held_out or HELD_OUT)
        noise = Noise(seed, torch.arange(num, device=model.device), Stream.DATA)
        level = torch.zeros(num, dtype=torch.long, device=model.device)
        self.held_out = model.schedule.diffuse(self.data.held_out(noise), level, noise)
        self.batch = model.automatic_batch()
        self.f_data = model.level_f(self.held_out, batch=self.batch)
        self.of_data = {"num": num, "f": float(self.f_data.mean()), **self._nearest(self.held_out)}

    def finished(self, u: Tensor) -> Tensor:
        """Samples as the model's own sampling returns them, in the data's units."""
        return torch.cat([self.model.finished(part) for part in u.split(self.batch)])

    def _nearest(self, u: Tensor) -> dict[str, float]:
        if self.data.rows is None:
            return {}
        distance = nearest(self.finished(u).clamp(-1, 1), self.data.rows)[0][:, 0].double().sort().values
        # The rank of the median has a standard deviation of sqrt(n) / 2.
        last, spread = len(distance) - 1, math.sqrt(len(distance)) / 2
        low, high = (round(min(max(last / 2 + sign * spread, 0), last)) for sign in (-1, 1))
        return {"nearest": float(distance.median()), "nearest_standard_error": float(distance[high] - distance[low]) / 2}

    def __call__(self, u: Tensor) -> dict[str, Any]:
        if not bool(torch.isfinite(u).all()):
            raise DivergenceError(
                "long-run chains are not finite any more; use a kernel with a Metropolis test (mala, hmc, nuts)"
            )
        f = self.model.level_f(u, batch=self.batch)
        out: dict[str, Any] = {"f": float(f.mean()), "f_gap": float(self.f_data.mean() - f.mean()), **self._nearest(u)}
        if len(f) > 1:
            out["f_gap_standard_error"] = float((self.f_data.var() / len(self.f_data) + f.var() / len(f)).sqrt())
            num = min(len(u), len(self.held_out))
            out["mmd2"], out["mmd2_null_95"] = mmd(u[:num].flatten(1), self.held_out[:num].flatten(1), seed=self.seed)
        if self.network is not None and self.reference is not None:
            out["quality"] = self._inception(self.finished(u), self.network, self.reference)
        return out

    def _inception(self, x: Tensor, network: Inception, reference: Images) -> dict[str, Any]:
        found = features(array_images("samples", to_bytes(x).transpose(0, 3, 1, 2)), network, self.reporter)
        return image_metrics(found, reference_features(reference, network, self.reporter), network.fc)


def _batches(model: Model, plan: Plan) -> Sequence[Tensor]:
    return torch.arange(plan.num, device=model.device).split(plan.batch or model.automatic_batch())


def _progressive(model: Model, plan: Plan, steps: Steps, number: int, out: Path, reporter: Reporter) -> tuple[Tensor, Tensor]:
    """Samples x_0 ``[num, ...]`` after ``number`` steps at every level, and the mean acceptance of each level ``[T]``."""
    schedule, kernel = model.schedule, make_kernel(steps.method.kernel, steps.method.num_leapfrog)
    num_levels, shape = schedule.num_levels, model.event_shape
    guessed = bool(schedule.spring.all())
    # The guess is the first step, as in the paper; without a spring at every level there is none.
    chains = LevelSampler(kernel, number - guessed, steps.step_size)
    # x_T is the same for every number of steps, so that runs can be compared sample by sample.
    x_top = Noise(plan.seed, torch.arange(plan.num, device=model.device), Stream.LONGRUN).normal(*shape)
    batches, state = _batches(model, plan), _State(out, model, plan, steps, number)
    x, accepted, done = state.begin(x_top, torch.zeros(num_levels))
    with reporter.bar(f"{number} steps of {steps.method} per level (levels)", num_levels, done) as bar:

        def draw(t: Tensor, x_next: Tensor) -> tuple[Tensor, Tensor]:
            level, ys, rates = int(t[0]), [], []
            for index in batches:
                noise = Noise(plan.seed, index, Stream.LONGRUN + number * STREAMS_PER_RUN + level + 1)
                conditional = Conditional(model.energy_function, schedule, t[index], x_next[index])
                start = model.sampler.guess(conditional, noise.normal(*shape)) if guessed else conditional.x_next
                y, acceptance = chains.run(conditional, start, noise)
                ys.append(y)
                rates.append(acceptance)
            return torch.cat(ys), torch.cat(rates)

        levels = descend(schedule, x, draw, num_levels - done)
        next(levels)
        for level, x, acceptance in levels:
            accepted[level] = acceptance.mean()
            state.save(x, accepted, num_levels - level, finished=level == 0)
            bar.advance()
    return x, accepted


def _marginal(
    model: Model, plan: Plan, steps: Steps, start: Tensor, out: Path, reporter: Reporter
) -> Iterator[tuple[int, Tensor, float | None]]:
    """(steps done, x_0, mean acceptance since the mark before) of chains at level 0 without its spring, at every mark."""
    kernel = make_kernel(steps.method.kernel, steps.method.num_leapfrog)
    scale = model.schedule.scale[0].to(start.dtype)
    batches, looked_at = _batches(model, plan), marks(plan.marginal_steps)
    step_size = torch.tensor(steps.marginal, device=model.device)
    yield 0, start, None
    x = start
    with reporter.bar(f"steps of {steps.method} without spring", plan.marginal_steps) as bar:
        for before, mark in itertools.pairwise(looked_at):
            # A mark that was reached is on disk, and so is the last stretch before the next one.
            state = _State(out, model, plan, steps, max(plan.steps), mark)
            x, accepted, done = state.begin(x, torch.zeros(1))
            bar.advance(done)
            for piece in range(before + done, mark, STRETCH):
                length = min(STRETCH, mark - piece)
                for index in batches:
                    f = at_level(model.energy_function, torch.zeros(len(index), dtype=torch.long, device=model.device))
                    noise = Noise(plan.seed, index, Stream.LONGRUN_FREE + piece)
                    delta = step_size.expand(len(index))
                    y, acceptance = run_chain(kernel, scale * x[index], f, delta, length, noise, check=False)
                    x[index] = y / scale
                    accepted += acceptance.sum() * length / (plan.num * (mark - before))
                state.save(x, accepted, piece + length - before, finished=piece + length == mark)
                bar.advance(length)
            yield mark, x.clone(), round(float(accepted), 4) if steps.acceptance else None


class _State:
    """What a run has reached, on disk: positions, acceptance, and how many levels or steps are done."""

    def __init__(self, out: Path, model: Model, plan: Plan, steps: Steps, *which: int):
        # A run with springs knows one number, one without the mark as well, and only that depends on the last step size.
        sizes = [*steps.step_size.tolist(), *[steps.marginal] * (len(which) > 1)]
        known = key_of(model.fingerprint(), plan.num, plan.seed, steps.method, which, sizes)
        self.parts, self.device, self.saved = Parts(out / ".state" / known), model.device, time.monotonic()

    def begin(self, x: Tensor, accepted: Tensor) -> tuple[Tensor, Tensor, int]:
        if (found := self.parts.read("state")) is None:
            return x.clone(), accepted.to(self.device), 0
        x, accepted = (torch.from_numpy(found[name]).to(self.device) for name in ("x", "accepted"))
        return x, accepted, int(found["done"])

    def save(self, x: Tensor, accepted: Tensor, done: int, finished: bool) -> None:
        if finished or time.monotonic() - self.saved > SAVE_EVERY:
            self.parts.write("state", {"x": x, "accepted": accepted, "done": torch.tensor(done)})
            self.saved = time.monotonic()

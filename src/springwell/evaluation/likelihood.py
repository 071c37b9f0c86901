"""The likelihood of a model: draws of its density from two sides, the bracket of log Z, bits per dimension of data.

Draws of exp f(scale_0 x, 0) come from chains that do not know of each other:

    noise            progressive sampling (Alg. 2), then HMC steps at the last density; energies that know their noise walk
                     down it instead, in systems of which one chain is drawn by its weight
    held-out data    test images after the initial noise, then as many HMC steps

Neither is an exact draw. After enough steps both would be, and then their mean f would rest; it is reported before and after,
and a bracket from chains whose mean f still changes in the second half of their steps, by 3 standard errors, is never ``ok``.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from springwell import __version__
from springwell.energy.residual import LevelEnergy
from springwell.errors import UserError
from springwell.evaluation.points import Measurable, Points, Split, evaluation_points, noisy_data
from springwell.likelihood.annealed import COLLAPSED, Path, Plan, level_path
from springwell.likelihood.bits import to_bits
from springwell.likelihood.bracket import LIKELY, Bracket, Settings, bracket, planned
from springwell.likelihood.diffusion import NoisePath
from springwell.model import Model
from springwell.noise import Noise, Stream
from springwell.progress import SILENT, Reporter
from springwell.samplers import Tuning, hmc, run_chain, tune_step_size
from springwell.samplers.target import LogDensity
from springwell.store.parts import Parts, key_of

BURN_LEAPFROG = 4
_TUNING_CHAINS, _TUNING_STEPS = 64, 20
# Steps between two words about progress.
_STRETCH = 50


class Measured(NamedTuple):
    """The bracket, the data it is applied to, and everything that is written down."""

    bracket: Bracket
    points: Points
    record: dict[str, Any]


class Work(NamedTuple):
    """Where long work keeps its finished parts and shares them between processes, and who hears of it."""

    parts: Parts
    reporter: Reporter = SILENT


def settings_for(
    model: Model,
    tolerance: float,
    systems: int | None = None,
    chains: int | None = None,
    batch: int | None = None,
    **others: Any,
) -> Settings:
    """Settings with ``tolerance`` in bits/dim, and by default with numbers of systems and chains that suit the model.

    Args:
        model: The model.
        tolerance: The gap between bounds that is good enough, bits/dim.
        systems: Independent repeats.
        chains: Chains of each.
        batch: Chains that run side by side.
        **others: Any other of the :class:`Settings`.
    """
    along_noise = isinstance(model.energy_function, LevelEnergy)
    few, most = (512, 1024) if len(model.event_shape) == 1 else (16, 64)
    systems, chains = systems or (16 if along_noise else 8), chains or (16 if along_noise else few)
    # Not all that fits: processes share batches, and a part is found again only if it was cut as before.
    batch = batch or max(chains, min(most, model.automatic_batch()))
    nats = tolerance * math.prod(model.event_shape) * math.log(2)
    return Settings(nats, systems=systems, chains=chains, batch=batch, **others)


def work_name(model: Model, settings: Settings, burn: int) -> str:
    """A name for finished parts of the same work on the same weights; another tolerance or number of densities shares it."""
    same = [settings.systems, settings.chains, settings.seed, settings.batch, settings.num_leapfrog, burn]
    return key_of(__version__, same, model.fingerprint())


def density_path(model: Model) -> Path | NoisePath:
    """Along the noise for energies that know it, else through the levels by annealing."""
    energy = model.energy_function
    if isinstance(energy, LevelEnergy):
        return NoisePath(energy, model.schedule)
    return level_path(energy, model.schedule, model.event_shape)


@torch.inference_mode(False)
def measure(
    model: Model,
    data: Measurable,
    settings: Settings,
    num: int,
    split: Split = "test",
    burn: int = 200,
    work: Work | None = None,
) -> Measured:
    """Brackets log Z of a model and the bits per dimension of its data.

    Args:
        model: The model.
        data: Its data.
        settings: The settings of the bracket.
        num: Data points.
        split: ``test`` or ``train``.
        burn: HMC steps of the chains that reverse walks start from.
        work: Where finished parts are kept. Default: nowhere.
    """
    parts, reporter = work = work or Work(Parts())
    settings.check()
    if burn < 0 or num < 2:
        raise UserError(f"burn {burn}, num {num}: needs burn >= 0 and at least 2 data points")
    points = evaluation_points(model, data, num, split, settings.seed)
    path = density_path(model)
    # Draws from noise walk as the bracket does; along levels they are progressive samples.
    plan = planned(path, settings, points.x_0, parts, reporter) if isinstance(path, NoisePath) else None
    sources, described = draw_sources(model, data, path, plan, settings, burn, work)
    doubts = [] if burn else ["chains from noise and from held-out data made no steps, so nothing shows that they are draws"]
    for name, s in described.items():
        if abs(s["drift"]) > LIKELY * s["drift_standard_error"]:
            change = f"{s['drift']:+.3g} +- {s['drift_standard_error']:.2g} nats in the last {burn - burn // 2} steps"
            doubts.append(f"chains from {name} still drift, mean f by {change}")
    found = bracket(path, sources, settings, parts=parts, reporter=reporter, plan=plan).doubted(doubts)
    record = {"split": split, "burn": burn, "sources": described, **_figures(model, points, found), **found.record()}
    return Measured(found, points, record)


def _figures(model: Model, points: Points, found: Bracket) -> dict[str, Any]:
    """What the bracket makes of the data: nats and, of grey values, bits per dimension."""
    f, claim = model.level_f(points.x_0), model.claimed_log_z()
    dim = math.prod(model.event_shape)
    mean = float((f + points.log_volume).mean())
    error = float((f + points.log_volume).std()) / math.sqrt(len(f))
    figures: dict[str, Any] = {
        "data": model.metadata.get("name", ""),
        "iteration": model.iteration,
        "weights": model.fingerprint(),
        "num_images": len(f),
        "num_classes": len(model.classes),
        "dim": dim,
        "initial_noise": float(model.schedule.sigma_cum[0]),
        "cell": points.cell,
        "dequantised": points.dequantised,
        "quantised": points.cell > 0,
        "nll": found.quoted[0] - mean,
        "nll_optimistic": found.lower.value - mean,
        "nll_conservative": found.highest.value - mean,
        "nll_standard_error_data": error,
        "nll_standard_error_log_z": found.quoted[1],
        "mean_f": float(f.mean()),
        "claim": claim,
        "nll_claimed": None if claim is None else claim - mean,
    }
    if points.cell:
        names = ("", "_optimistic", "_conservative", *["_claimed"] * (claim is not None))
        figures |= {f"bits_per_dim{name}": to_bits(figures[f"nll{name}"], dim) for name in names}
        both = math.hypot(error, found.quoted[1])
        for name, value in (("", both), ("_data", error), ("_log_z", found.quoted[1])):
            figures[f"bits_per_dim_standard_error{name}"] = to_bits(value, dim)
    return figures


def draw_sources(
    model: Model,
    held_out: Measurable,
    path: Path | NoisePath,
    plan: Plan | None,
    settings: Settings,
    burn: int,
    work: Work,
) -> tuple[dict[str, Tensor], dict[str, dict[str, Any]]]:
    """Draws ``[R n, ...]`` of the last density from noise and from held-out data, and what is to be said of them."""
    parts, reporter = work
    levels = level_path(model.energy_function, model.schedule, model.event_shape)
    along_noise = isinstance(path, NoisePath)
    # Along the noise a draw serves a whole system.
    num = 2 * settings.systems if along_noise else settings.num
    _, data = noisy_data(model, held_out, num, "test", settings.seed, Stream.POINTS + 1)
    # Fewer test images than chains: several chains begin at the same one, with noise of their own.
    data = data[torch.arange(num, device=data.device) % len(data)]
    (step,) = parts.run("burn-step", [lambda: {"step_size": _tuned(levels, data[:_TUNING_CHAINS], settings)}], data.device)
    every = torch.arange(num, device=data.device)
    systems = max(1, settings.batch // settings.chains) if along_noise else settings.batch
    batches = every.split(systems)

    def draw(index: Tensor) -> dict[str, Tensor]:
        found = _from_noise(model, path, plan, settings, index)
        bar.advance(len(index))
        return found

    with reporter.bar("draws from noise", num) as bar:
        drawn = parts.run("draws", [partial(draw, index) for index in batches], data.device)
    sources: dict[str, Tensor] = {}
    described: dict[str, dict[str, Any]] = {}
    starts = {"noise": torch.cat([part["x"] for part in drawn]), "held-out data": data}
    for i, (name, start) in enumerate(starts.items()):

        def compute(index: Tensor, stream: int, start: Tensor) -> dict[str, Tensor]:
            noise = Noise(settings.seed, index, Stream.SOURCES + stream)
            density = levels.at(levels.length, len(index))
            xs, acceptance = _burnt(density, start[index], step["step_size"], burn, noise, bar.advance)
            return {"x": xs[-1], "f": torch.stack([model.level_f(x) for x in xs], 1), "acceptance": acceptance}

        with reporter.bar(f"chains from {name} (steps x chains)", burn * num) as bar:
            found = parts.run(
                f"chains-{i}", [partial(compute, index, i, start) for index in every.split(settings.batch)], data.device
            )
        x, f, acceptance = (torch.cat([part[key] for part in found]) for key in ("x", "f", "acceptance"))
        sources[name], described[name] = x, _described(f, acceptance, burn)
        if not described[name]["acceptance"] > COLLAPSED:
            accepted = f"acceptance {described[name]['acceptance']:.3g} over {burn} steps"
            raise UserError(f"chains from {name} collapse at level 0: {accepted}; train longer")
    return sources, described


def _from_noise(
    model: Model, path: Path | NoisePath, plan: Plan | None, settings: Settings, index: Tensor
) -> dict[str, Tensor]:
    """Draws of x_0 that came from noise: one of each system along the noise, or progressive samples."""
    if not isinstance(path, NoisePath) or plan is None:
        for _, x, _ in model.trajectory(index, settings.seed + 1):  # noqa: B007
            pass
        return {"x": x}
    chains = (index[:, None] * settings.chains + torch.arange(settings.chains, device=index.device)).flatten()
    walkers = Noise(settings.seed, chains, Stream.SOURCES + 9)
    resample = Noise(settings.seed, index, Stream.SOURCES + 10, dtype=torch.float64)
    return {"x": path.draw(plan, min(settings.densities, model.schedule.num_levels), walkers, resample)}


def _burnt(
    density: LogDensity, x: Tensor, step_size: Tensor, burn: int, noise: Noise, watch: Callable[[int], None]
) -> tuple[list[Tensor], Tensor]:
    """Where chains are before, half way through and after ``burn`` HMC steps, and their last acceptance ``[N]``."""
    xs, acceptance = [x], torch.ones(len(x), device=x.device)
    for steps in (burn // 2, burn - burn // 2):
        accepted = torch.zeros(len(x), device=x.device)
        for done in range(0, steps, _STRETCH):
            piece = min(_STRETCH, steps - done)
            x, rate = run_chain(hmc(BURN_LEAPFROG), x, density, step_size, piece, noise)
            accepted += rate * piece / steps
            watch(piece * len(x))
        xs.append(x)
        acceptance = accepted if steps else acceptance
    return xs, acceptance


def _described(f: Tensor, acceptance: Tensor, burn: int) -> dict[str, Any]:
    """What is to be said of chains, from f before, half way and after ``[N, 3]``."""
    before, half, after = f.unbind(1)
    num = len(f)
    return {
        "num_chains": num,
        "num_steps": burn,
        "acceptance": float(acceptance.mean()),
        "mean_f_before": float(before.mean()),
        "mean_f": float(after.mean()),
        "mean_f_standard_error": float(after.std()) / math.sqrt(num),
        "drift": float((after - half).mean()),
        "drift_standard_error": float((after - half).std()) / math.sqrt(num),
    }


def _tuned(path: Path, x: Tensor, settings: Settings) -> Tensor:
    """The step size at the last density, found by chains from data."""
    noise = Noise(settings.seed, torch.arange(len(x), device=x.device), Stream.SOURCES + 8)
    density, first = path.at(path.length, len(x)), torch.tensor([0.1], device=x.device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        tuned = tune_step_size(hmc(BURN_LEAPFROG), density, x, first, noise, tuning=Tuning(num_steps=_TUNING_STEPS))
    if not float(tuned.acceptance) > COLLAPSED:
        found = f"acceptance {float(tuned.acceptance):.3g} at step size {float(tuned.step_size):.3g}"
        raise UserError(f"chains from held-out data collapse at level 0: {found}; train longer")
    return tuned.step_size

r"""Whether the score of every level has the right length, and whether chains without springs stay where the data are.

For y_t = scale_t (abar_t x + sigmabar_t eps) the score of the true density of level t is, with s_t = scale_t sigmabar_t,

    s_t grad log p_t(y_t) = -E[eps | y_t],        so that        c_t = -E<eps, s_t grad f> / E|s_t grad f|^2

is 1 for f = log p_t. c_t < 1 says that f is too steep: its score is 1 / c_t times too long. The mean gap of f between data and
samples does not see this. The drift is the change of mean f, in nats, of chains at f(., 0) that start at held-out data: 0, up
to its standard error, if level 0 has the data's law.
"""

from __future__ import annotations

import math
import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor

from springwell.data.source import DataSource
from springwell.energy.base import at_level
from springwell.model import Model
from springwell.noise import Noise, Stream
from springwell.samplers import Tuning, gradient, hmc, run_chain, tune_step_size
from springwell.schedule import spread_levels
from springwell.shapes import expand, inner

DRIFT_STEPS = 50
MOST, CHAINS = 256, 64
MOST_LEVELS = 72
_TUNED = 32


class Calibration(NamedTuple):
    """Of some levels.

    Attributes:
        levels: Which, L of them.
        value: c_t ``[L]``, float64.
        standard_error: ``[L]``, by the delta method.
        num: Held-out samples.
    """

    levels: list[int]
    value: Tensor
    standard_error: Tensor
    num: int


def calibration(model: Model, data: DataSource, num: int = 256, seed: int = 0) -> Calibration:
    """c_t of every level that has noise, at held-out data; of many levels, of some that are evenly spread.

    Args:
        model: The model.
        data: Its data.
        num: Held-out samples, no more than there are.
        seed: The seed of the noise.
    """
    num, schedule = min(num, data.num_held_out or num), model.schedule
    noise = Noise(seed, torch.arange(num, device=model.device), Stream.CALIBRATION)
    x, batch = data.held_out(noise), model.automatic_batch()
    values, errors = [], []
    levels = [level for level in spread_levels(schedule.num_levels, MOST_LEVELS) if float(schedule.sigma_cum[level])]
    for level in levels:
        t, eps = torch.full((num,), level, device=model.device), noise.normal(*model.event_shape)
        scale, sigma = schedule.scale[level], schedule.sigma_cum[level]
        y = (scale * schedule.a_cum[level]).to(x.dtype) * x + (scale * sigma).to(x.dtype) * eps
        parts = zip(y.split(batch), t.split(batch), strict=True)
        grad = torch.cat([gradient(at_level(model.energy_function, place), part) for part, place in parts])
        u = (expand((scale * sigma).expand(num), grad) * grad).double()
        a, b = -inner(eps.double(), u), inner(u, u)
        c = a.mean() / b.mean()
        values.append(c)
        errors.append((a - c * b).std() / math.sqrt(num) / b.mean())
    return Calibration(levels, torch.stack(values), torch.stack(errors), num)


def drift(model: Model, data: DataSource, num: int = 64, seed: int = 0, num_steps: int = DRIFT_STEPS) -> dict[str, float]:
    """The change of mean f over HMC steps at level 0 without its spring, from held-out data; nats, with its standard error.

    Args:
        model: The model.
        data: Its data.
        num: Chains.
        seed: The seed of the chains.
        num_steps: HMC steps of 2 leapfrogs, whose size a pilot tunes.
    """
    num, scale = min(num, data.num_held_out or num), model.schedule.scale[0]
    noise = Noise(seed, torch.arange(num, device=model.device), Stream.CALIBRATION + 1)
    level = torch.zeros(num, dtype=torch.long, device=model.device)
    y = scale.float() * model.schedule.diffuse(data.held_out(noise), level, noise)
    f, few = at_level(model.energy_function, level), min(num, _TUNED)
    with warnings.catch_warnings():
        # Few chains may miss the band by a little; what they do is measured below.
        warnings.simplefilter("ignore", RuntimeWarning)
        pilot = Noise(seed, torch.arange(few, device=model.device), Stream.CALIBRATION + 2)
        first = 0.3 * float(scale * model.schedule.sigma[1])
        target = at_level(model.energy_function, level[:few])
        tuned = tune_step_size(hmc(2), target, y[:few], first, pilot, tuning=Tuning(num_steps=20))
        end, accepted = run_chain(hmc(2), y, f, tuned.step_size, num_steps, noise, check=False)
    with torch.no_grad():
        change = f(end).double() - f(y).double()
    error = float(change.std()) / math.sqrt(num)
    return {
        "drift": float(change.mean()),
        "drift_standard_error": error,
        "drift_steps": num_steps,
        "drift_chains": num,
        "drift_acceptance": float(accepted.mean()),
    }


def calibrated(model: Model, data: DataSource, num: int, seed: int) -> dict[str, Any]:
    """Both of them, for JSON."""
    found = calibration(model, data, min(num, MOST), seed)
    return {
        "calibration_levels": found.levels,
        "calibration": [round(c, 4) for c in found.value.tolist()],
        "calibration_standard_error": [round(e, 4) for e in found.standard_error.tolist()],
        "calibration_num": found.num,
        **drift(model, data, min(num, CHAINS), seed),
    }

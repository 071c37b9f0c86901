r"""Measuring a model in two dimensions, where everything can be checked (Sec. 4.1 of the paper shows such densities).

All quantities concern x_0, the data after the schedule's initial noise, whose exact density p is known; g is the model's:

    kl       KL(p || g) = int p (log p - log g)           nats, by quadrature
    nll      -int p log g                                  nats
    entropy  -int p log p                                  nats; kl = nll - entropy
    tv       1/2 int |p - g|                               total variation distance, in [0, 1]
    mmd2     squared maximum mean discrepancy between samples of the model and of the data (unbiased; it may be negative),
             beside its null level: the 95 % quantile when both samples come from the same law, by permutation

Data without a known density (your own arrays) get ``nll`` as a mean over held-out points, with its standard error.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import torch
from torch import Tensor

from springwell.data.source import DataSource
from springwell.data.toy import ToyData, log_density
from springwell.evaluation.calibration import calibrated
from springwell.likelihood.quadrature import Normaliser
from springwell.model import Model
from springwell.noise import Noise, Stream
from springwell.progress import SILENT, Reporter


def divergences(toy: ToyData, a: float, sigma: float, z: Normaliser) -> dict[str, float]:
    """kl, nll, entropy and tv of a model with the unnormalised log-density that ``z`` holds."""
    log_p = log_density(toy, z.points, a, sigma)
    p, log_g = log_p.exp(), z.log_value - z.log_z
    some = p > 0
    entropy = -float((p[some] * log_p[some]).sum()) * z.cell
    nll = -float((p[some] * log_g[some]).sum()) * z.cell
    tv = 0.5 * float((p - log_g.exp()).abs().sum()) * z.cell
    mass = float(p.sum()) * z.cell
    return {"kl": nll - entropy, "nll": nll, "entropy": entropy, "tv": tv, "quadrature_mass_of_data": mass}


def mmd(x: Tensor, y: Tensor, permutations: int = 200, seed: int = 0) -> tuple[float, float]:
    """Unbiased MMD^2 of two samples of equal size and the 95 % quantile of its null distribution.

    The kernel is a mean of Gaussians whose widths are 1/8, 1/4, 1/2 and 1 times the median distance.
    """
    n = len(x)
    pooled = torch.cat([x, y]).double()
    square = torch.cdist(pooled, pooled).square()
    median = square[:512, -512:].median()
    # The kernel of half the width is the fourth power.
    widest = square.mul_(-0.5 / median).exp_()
    powers = itertools.accumulate(range(3), lambda part, _: part.square().square_(), initial=widest)
    kernel = functools.reduce(torch.add, powers) / 4
    kernel.fill_diagonal_(0)
    uniform = Noise(seed, torch.arange(permutations), Stream.NULL, dtype=torch.float64).uniform(2 * n)
    order = torch.cat([torch.arange(2 * n)[None], uniform.argsort(-1)]).to(x.device)
    # With w = +1 on one half and -1 on the other, w K w = (within first) + (within second) - 2 (between).
    first = torch.zeros(len(order), 2 * n, dtype=torch.float64, device=x.device).scatter_(1, order[:, :n], 1.0)
    to_first, to_all = first @ kernel, kernel.sum(0)
    within = (to_first * first).sum(-1) + ((to_all - to_first) * (1 - first)).sum(-1)
    between = (to_first * (1 - first)).sum(-1)
    statistic = within / (n * (n - 1)) - 2 * between / n**2
    return float(statistic[0]), float(statistic[1:].quantile(0.95))


def mode_coverage(toy: ToyData, x_0: Tensor, reference: Tensor, a: float, sigma: float) -> dict[str, Any]:
    """How samples spread over the modes of the data.

    A mode counts as covered if it gets at least a quarter of its fair share. ``off_support`` is the share of samples where
    the data's density is lower than at 99.9 % of the data.
    """
    density = toy.mode_log_density(x_0, a, sigma)
    somewhere = torch.isfinite(density).any(-1)
    share = torch.bincount(density[somewhere].argmax(-1), minlength=toy.num_modes) / len(x_0)
    threshold = log_density(toy, reference, a, sigma).quantile(0.001)
    return {
        "modes": toy.num_modes,
        "modes_covered": int((share >= 0.25 / toy.num_modes).sum()),
        "mode_shares": [round(s, 4) for s in share.tolist()],
        "off_support": float((log_density(toy, x_0, a, sigma) < threshold).double().mean()),
    }


def evaluate(model: Model, data: DataSource, num: int = 2000, seed: int = 0, reporter: Reporter = SILENT) -> dict[str, Any]:
    """Measures a model of vectors.

    Args:
        model: The model.
        data: Its data.
        num: Samples for the sample-based measures.
        seed: The seed of the samples.
        reporter: Receives progress updates.

    Returns:
        Names and values; values in nats, with sample counts and error estimates beside them.
    """
    num = min(num, data.num_held_out or num)
    a, sigma = float(model.schedule.a_cum[0]), float(model.schedule.sigma_cum[0])
    what = {"data": model.metadata.get("name", ""), "iteration": model.iteration}
    result: dict[str, Any] = {**what, "initial_noise": sigma, "num_samples": num, "seed": seed}
    drawn = Noise(seed, torch.arange(num, device=model.device), Stream.DATA)
    clean = data.held_out(drawn)
    reference = model.schedule.diffuse(clean, 0, drawn)
    if model.event_shape == (2,):
        reporter.say("measuring the density by quadrature")
        z = model.normaliser()
        result |= {"log_z": z.log_z, "log_z_error": z.error}
        if data.toy is not None:
            result |= divergences(data.toy, a, sigma, z)
        else:
            log_g = model.log_prob(data.shift.to(reference) + data.scale.to(reference) * reference)
            result |= {"nll": -float(log_g.mean()), "nll_standard_error": float(log_g.std()) / math.sqrt(num)}
    parts = []
    with reporter.bar("sampling", num) as bar:
        for part in model.sample_batches(num, seed):
            parts.append(part)
            bar.advance(len(part))
    x_0 = (torch.cat(parts) - model.shift) / model.scale
    if model.denoise:
        # Denoised samples are to be compared with clean data.
        reference, a, sigma = clean, 1.0, 0.0
    result["mmd2"], result["mmd2_null_95"] = mmd(x_0, reference)
    result |= calibrated(model, data, num, seed)
    if data.toy is not None:
        result |= mode_coverage(data.toy, x_0, reference, a, sigma)
    return result

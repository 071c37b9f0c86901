r"""Three ways to call a sample an outlier; each gives a number that is larger for samples like the training data.

    density      f, the log-density. In many dimensions it prefers smooth samples to the model's own data.
    typicality   2 min(share of training samples with smaller f, share with larger f): far out on either side is not typical.
    multiscale   the log-density of log(sigma |score|) over the levels, under a mixture of Gaussians that is fitted to the
                 training data's own (MSMA). Samples that the density prefers for being smooth have unusual scores.

Directions are fixed by what each number means, so an AUROC below 1/2 says that the method prefers the outliers.

References:
    Nalisnick, Matsukawa, Teh, Lakshminarayanan, "Detecting out-of-distribution inputs to deep generative models using
    typicality", 2019.
    Mahmood, Oliva, Styner, "Multiscale score matching for out-of-distribution detection", ICLR 2021.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from springwell.model import Model
from springwell.schedule import spread_levels

Method = Literal["density", "typicality", "multiscale"]
NUM_LEVELS = 12
NUM_COMPONENTS = (1, 2, 4, 8)


def typicality(f: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """``[N]`` in [0, 1]: the two-sided share of the reference that is at least as far out."""
    ordered = np.sort(reference)
    below = np.searchsorted(ordered, f, side="right") / len(ordered)
    above = 1 - np.searchsorted(ordered, f, side="left") / len(ordered)
    return np.minimum(1.0, 2 * np.minimum(below, above))


def percentile(f: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Share of the reference with smaller f, in per cent."""
    return 100 * np.searchsorted(np.sort(reference), f, side="left") / len(reference)


def multiscale(reference: np.ndarray, seed: int = 0) -> Callable[[np.ndarray], np.ndarray]:
    """The log-density ``[N]`` of log norms ``[N, L]`` under a mixture fitted to the reference's, its size chosen by BIC."""
    from sklearn.mixture import GaussianMixture

    known = np.log(reference + 1e-12)
    centre, width = known.mean(0), known.std(0) + 1e-9
    known = (known - centre) / width
    sizes = [k for k in NUM_COMPONENTS if 10 * k <= len(known)] or [1]
    fitted = [GaussianMixture(k, reg_covar=1e-4, random_state=seed).fit(known) for k in sizes]
    best = min(fitted, key=lambda mixture: mixture.bic(known))
    return lambda norms: best.score_samples((np.log(norms + 1e-12) - centre) / width)


def ranking(
    method: Method,
    reference: Any,
    log_density: Callable[[Any], np.ndarray],
    norms: Callable[[Any], np.ndarray],
    seed: int = 0,
) -> Callable[[Any], np.ndarray]:
    """What a method says of samples, larger for those like the reference.

    Args:
        method: The method.
        reference: Training samples.
        log_density: f ``[N]`` of samples.
        norms: sigma |score| ``[N, L]`` of samples.
        seed: The seed of the mixture.
    """
    if method == "density":
        return log_density
    if method == "typicality":
        known = log_density(reference)
        return lambda x: typicality(log_density(x), known)
    usual = multiscale(norms(reference), seed)
    return lambda x: usual(norms(x))


def score_norms(model: Model, x: Tensor) -> np.ndarray:
    """sigmabar_t |grad log p_t(abar_t u)| ``[N, L]`` of samples u ``[N, ...]`` in standardised coordinates, over the levels.

    A level without noise has a factor 1.
    """
    columns = []
    for t in spread_levels(model.schedule.num_levels, NUM_LEVELS):
        shrink, sigma = float(model.schedule.a_cum[t]), float(model.schedule.sigma_cum[t]) or 1.0
        parts = []
        for u in x.split(model.automatic_batch()):
            scores = model.score(model.shift + model.scale * shrink * u, t) * model.scale
            parts.append(sigma * scores.flatten(1).double().norm(dim=1).cpu())
        columns.append(torch.cat(parts).numpy())
    return np.stack(columns, 1)

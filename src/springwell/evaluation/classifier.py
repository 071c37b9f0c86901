r"""The classifier that the densities of classes make by Bayes' rule, p(c | x) = p(c) p(x | c) / sum_c' p(c') p(x | c').

    accuracy   share of data whose most probable class is their label
    nll        mean of -log p(label | x), nats
    ece        expected calibration error: the mean distance of confidence max_c p(c | x) and accuracy, over 15 bins of
               confidence, weighted by how many data they hold. 0 for probabilities that are shares.

Any noise level tells classes apart: data with the noise of level t have log-densities f(y_t, t | c), whose means over a few
draws of the noise make a classifier as well. Where classes differ by more than that noise, it loses nothing, and densities are
more easily learned there than at the least noise.

References:
    Guo, Pleiss, Sun, Weinberger, "On calibration of modern neural networks", ICML 2017.
    Li et al., "Your diffusion model is secretly a zero-shot classifier", ICCV 2023.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from springwell.data.labels import Labels
from springwell.errors import UserError
from springwell.model import Model
from springwell.noise import Noise, Stream

BINS = 15


def calibration_error(log_prob: Tensor, label: Tensor, bins: int = BINS) -> float:
    """The expected calibration error of log p(c | x) ``[N, C]`` against labels ``[N]``."""
    confidence, chosen = log_prob.exp().max(-1)
    right = (chosen == label).double()
    place = (confidence * bins).long().clamp(max=bins - 1)
    gap = torch.zeros(bins, dtype=torch.float64).index_add_(0, place, right - confidence.double())
    return float(gap.abs().sum() / len(label))


def measures(log_prob: Tensor, label: Tensor) -> dict[str, Any]:
    """accuracy with its standard error, nll and ece of log p(c | x) ``[N, C]`` against labels ``[N]``."""
    num, right = len(label), (log_prob.argmax(-1) == label).double()
    accuracy = float(right.mean())
    return {
        "num": num,
        "accuracy": accuracy,
        "accuracy_standard_error": math.sqrt(accuracy * (1 - accuracy) / num),
        "nll": -float(log_prob.gather(1, label[:, None]).mean()),
        "ece": calibration_error(log_prob, label),
    }


def classified(model: Model, labels: Labels, num: int, noise: float = 0.0, level: int = 0, draws: int = 1) -> dict[str, Any]:
    """The measures of the classifier on held-out data.

    Args:
        model: A model that knows classes.
        labels: Of its data.
        num: Held-out data.
        noise: Standard deviation of noise that is added to them first, in units of the standardised data.
        level: The level whose densities tell classes apart.
        draws: Draws of that level's noise.
    """
    if labels.classes != model.classes:
        raise UserError(f"data: have the classes {' '.join(labels.classes)}, the model {' '.join(model.classes)}")
    source = Noise(0, torch.arange(num), Stream.DATA)
    u, label = labels.held_out(source)
    u = u + noise * source.normal(*u.shape[1:])[: len(u)]
    log_prob = model.classify(model.shift + model.scale * u.to(model.shift), level=level, draws=draws)
    return {"noise": noise, "level": level, "draws": draws, **measures(log_prob.cpu(), label)}


def suspects(log_prob: Tensor, label: Tensor) -> np.ndarray:
    """Rows ``[N]`` in the order in which their labels are to be doubted: least log p(label | x) first."""
    return np.argsort(log_prob.gather(1, label[:, None])[:, 0].numpy(), kind="stable")

r"""The classifier that the densities of classes make by Bayes' rule, p(c | x) = p(c) p(x | c) / sum_c' p(c') p(x | c').

    accuracy   share of data whose most probable class is their label
    nll        mean of -log p(label | x), nats
    ece        expected calibration error: the mean distance of confidence max_c p(c | x) and accuracy, over 15 bins of
               confidence, weighted by how many data they hold. 0 for probabilities that are shares.

Any noise level tells classes apart. The density of data with noise is a mean of Gaussians around all data of the class,

    p_sigma(y | c) = int p(x' | c) N(y; x', sigma^2 I) dx',

so that p_sigma(x | c) at the data themselves (``draws`` = 0) is what a kernel density estimate of width sigma becomes with
endlessly many data. Where classes are farther apart than sigma it loses nothing. It is learned better than the density with the
least noise: no data of other classes are ever seen where f(x, 0 | c) is wanted. It takes
one pass of the network per class, and no gradient.

With draws, y = x + sigma eps, the mean over eps says more. q = N(x, sigma^2 I) and de Bruijn's identity give

    d / d log sigma  KL(q || p_sigma(. | c)) = -E |eps + sigma grad log p_sigma(y | c)|^2,

    E log p_sigma(y | c) = const - int_sigma^inf E |eps + sigma' grad log p_sigma'(y' | c)|^2 d log sigma'

with a constant that no class changes. The sum of denoising errors over all noisier levels, by which "diffusion classifiers" of
score models tell classes apart, is thus known from f at one level, without its gradient and without the variance of that sum.

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


def classified(
    model: Model, labels: Labels, num: int, noise: float = 0.0, level: int | None = None, draws: int = 0
) -> dict[str, Any]:
    """The measures of the classifier on held-out data.

    Args:
        model: A model that knows classes.
        labels: Of its data.
        num: Held-out data.
        noise: Standard deviation of noise that is added to them first, in units of the standardised data.
        level: The level whose densities tell classes apart. Default: the model's.
        draws: How often data are given the noise of that level; 0 for never.
    """
    if labels.classes != model.classes:
        raise UserError(f"data: have the classes {' '.join(labels.classes)}, the model {' '.join(model.classes)}")
    source = Noise(0, torch.arange(num), Stream.DATA)
    u, label = labels.held_out(source)
    u = u + noise * source.normal(*u.shape[1:])[: len(u)]
    log_prob = model.classify(model.shift + model.scale * u.to(model.shift), level=level, draws=draws)
    level = model.classifying_level if level is None else level
    how = {"noise": noise, "level": level, "draws": draws, "passes": len(model.classes) * max(draws, 1)}
    return {**how, **measures(log_prob.cpu(), label)}


def suspects(log_prob: Tensor, label: Tensor) -> np.ndarray:
    """Rows ``[N]`` in the order in which their labels are to be doubted: least log p(label | x) first."""
    return np.argsort(log_prob.gather(1, label[:, None])[:, 0].numpy(), kind="stable")

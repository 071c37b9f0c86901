r"""How likely images are to a model, and how well that tells one set of images from another.

The score of an image is log g(x_0); without log Z it is f(scale_0 x_0, 0), which ranks images alike. Its profile over the
levels, log p_t(x_t) of the image diffused to level t, tells at which scale an image is unlikely. The area under the receiver's
curve,

    AUROC = P(score of a > score of b) + P(equal) / 2,

a from one set and b from the other, is 1/2 where the scores tell nothing. Its standard error is DeLong's: the variance of the
mean, over each set, of the share of the other set that a score beats.

Densities of images in high dimensions are known to prefer smooth images to the model's own data; an AUROC below 1/2 says so.

References:
    DeLong, DeLong, Clarke-Pearson, "Comparing the areas under two or more correlated receiver operating characteristic curves",
    Biometrics 1988.
    Nalisnick et al., "Do deep generative models know what they don't know?", ICLR 2019.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from springwell.errors import UnknownLogZError, UserError
from springwell.model import LogZ, Model
from springwell.noise import Noise, Stream
from springwell.schedule import spread_levels

MOST_LEVELS = 24


class Scores(NamedTuple):
    """Of N images.

    Attributes:
        score: ``[N]``, float64: log g(x_0), or f without ``log_z``.
        profile: ``[N, L]``: log p_t(x_t), or f where log Z_t is not known.
        levels: The L levels of the profile.
        log_z: The log Z that normalises them, or None.
        why: Why what was stored of it cannot be used, if so.
    """

    score: Tensor
    profile: Tensor
    levels: list[int]
    log_z: LogZ | None
    why: str = ""


def score(model: Model, x: Tensor, cell: float = 0.0, seed: int = 0) -> Scores:
    """Scores images ``x`` ``[N, ...]`` in standardised coordinates.

    Args:
        model: The model.
        x: The images, which are not dequantised.
        cell: Width over which grey values are spread first; 0 for a model that was trained without.
        seed: Of dequantisation and noise; image i has the noise (seed, i).
    """
    if tuple(x.shape[1:]) != model.event_shape:
        raise UserError(f"images: have shape {list(x.shape[1:])}; the model's have {list(model.event_shape)}")
    noise = Noise(seed, torch.arange(len(x), device=x.device), Stream.SCORES)
    x = x + cell * (noise.uniform(*model.event_shape) - 0.5)
    levels = spread_levels(model.schedule.num_levels, MOST_LEVELS)
    log_z, why = None, ""
    try:
        log_z = model.log_z()
    except UnknownLogZError:
        pass
    except UserError as error:
        why = str(error)
    columns = []
    for t in levels:
        f = model.level_f(model.schedule.diffuse(x, t, noise), t)
        known = log_z.value if log_z and t == 0 else log_z.levels[t] if log_z and log_z.levels else None
        columns.append(f - (known or 0.0))
    profile = torch.stack(columns, -1)
    units = float(model.scale.double().log().sum()) if log_z else 0.0
    return Scores(profile[:, 0] - units, profile, levels, log_z, why)


def auroc(a: Tensor, b: Tensor) -> tuple[float, float]:
    """P(a > b) + P(a = b) / 2 of two samples of scores, and its standard error."""
    a, b = a.double().contiguous(), b.double().contiguous()
    ordered_a, ordered_b = a.sort().values, b.sort().values

    def beaten(x: Tensor, others: Tensor) -> Tensor:
        below, not_above = (torch.searchsorted(others, x, right=right) for right in (False, True))
        return (below + not_above).double() / (2 * len(others))

    over_b, over_a = beaten(a, ordered_b), beaten(b, ordered_a)
    error = math.sqrt(float(over_b.var()) / len(a) + float(over_a.var()) / len(b)) if min(len(a), len(b)) > 1 else math.nan
    return float(over_b.mean()), error

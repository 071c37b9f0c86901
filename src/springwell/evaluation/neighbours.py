r"""Is a sample a copy? Its nearest training images, and how near they are.

    d(x) = min_i |x - x_i| / sqrt(D)        over the training images x_i, root mean square per value

A model that remembers its training set has samples nearer to it than held-out images are. Both distances are reported, and
the share of samples that are nearer than 99 % of the held-out images; it is 1 % for a model that generalises perfectly.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from springwell.data.images import scaled
from springwell.progress import SILENT, Reporter

_BLOCK_BYTES = 1 << 26


def nearest(x: Tensor, rows: np.ndarray, number: int = 1, reporter: Reporter = SILENT) -> tuple[Tensor, Tensor]:
    """Root mean square distances ``[N, number]`` to the nearest images, and their indices, nearest first.

    Args:
        x: Images ``[N, C, H, W]`` in [-1, 1].
        rows: uint8 ``[M, C, H, W]``, which may be memory-mapped.
        number: How many neighbours of each.
        reporter: Receives progress updates.
    """
    dim = math.prod(x.shape[1:])
    block = max(1, _BLOCK_BYTES // (4 * dim))
    flat = x.flatten(1)
    best = torch.full((len(x), number), torch.inf, device=x.device)
    index = torch.zeros((len(x), number), dtype=torch.long, device=x.device)
    with reporter.bar("nearest training images", len(rows)) as bar:
        for start in range(0, len(rows), block):
            part = np.array(rows[start : start + block])
            y = scaled(torch.from_numpy(part).to(x.device)).flatten(1)
            distance = torch.cdist(flat, y)
            candidates = torch.cat([best, distance], 1)
            numbers = torch.arange(start, start + len(y), device=x.device).expand(len(x), -1)
            best, chosen = candidates.topk(number, largest=False)
            index = torch.cat([index, numbers], 1).gather(1, chosen)
            bar.advance(len(y))
    return best / math.sqrt(dim), index


def memorisation(
    samples: Tensor, held_out: Tensor, rows: np.ndarray, shown: int = 8, number: int = 7, reporter: Reporter = SILENT
) -> tuple[dict[str, Any], np.ndarray]:
    """Compares the distances of samples and of held-out images to the training set.

    Args:
        samples: ``[N, C, H, W]``.
        held_out: ``[M, C, H, W]``, which the model has not seen.
        rows: The training images, uint8.
        shown: Of how many samples the neighbours are returned.
        number: How many neighbours.
        reporter: Receives progress updates.

    Returns:
        Names and values; the neighbours of the first samples, uint8 ``[shown, number, C, H, W]``.
    """
    both = torch.cat([samples.clamp(-1, 1), held_out.to(samples)])
    distance, index = nearest(both, rows, min(number, len(rows)), reporter)
    of_samples, of_held_out = distance[: len(samples), 0].double(), distance[len(samples) :, 0].double()
    nearer = of_samples < torch.quantile(of_held_out, 0.01)
    result = {
        "neighbour_samples": float(of_samples.median()),
        "neighbour_held_out": float(of_held_out.median()),
        "nearer_than_99_percent": float(nearer.double().mean()),
    }
    return result, rows[index[: min(shown, len(samples))].cpu().numpy()]

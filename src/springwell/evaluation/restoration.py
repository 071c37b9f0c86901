"""How near restored images are to the clean ones: PSNR = 10 log10(2^2 / mean squared error) in dB, for images in [-1, 1]."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor


def mean_psnr(restored: Tensor, clean: Tensor) -> dict[str, Any]:
    """The mean PSNR of images ``[N, ...]``, its standard error (None for a single image) and N."""
    error = (restored - clean).double().flatten(1).square().mean(1).clamp_min(1e-12)
    values, n = 10 * (4 / error).log10(), len(error)
    return {"psnr": float(values.mean()), "standard_error": float(values.std()) / math.sqrt(n) if n > 1 else None, "num": n}

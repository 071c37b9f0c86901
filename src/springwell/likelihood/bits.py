r"""From the partition function to bits per dimension, and what is a bound on what.

The model's density of x_0, in standardised coordinates, is

    log g(x) = f(scale_0 x, 0) - log Z_0 + D log scale_0 = f(scale_0 x, 0) - log Z,      Z = int exp f(scale_0 x, 0) dx

(the paper prints the factor a_1 without its power D). Grey values b lie c apart, c = 1 / 127.5 for 8-bit data in [-1, 1] and 1
/ 8 for the 17 values of digits. Let x_0 be drawn from an image by q(x_0 | b): dequantised, x = b + c (u - 1/2), u uniform;
then with the schedule's initial noise, x_0 = a_0 x + sigma_0 eps. Any decoder P(b | x_0) gives a bound (Jensen),

    log P(b) = log int g(x_0) P(b | x_0) dx_0  >=  E_q [ log g(x_0) + log P(b | x_0) - log q(x_0 | b) ],

and the decoder that knows no image from another, P(b | x_0) = q(x_0 | b) / sum_b' q(x_0 | b'), leaves

    bits/dim = -( log g(x_0) + log v(x_0) ) / (D log 2),         log v(x_0) = -sum_pixels log sum_b' q(x_0 | b').

Without initial noise the cells tile the line, v = c^D, and this is the usual figure of dequantised data (8 bits: D log 127.5).
With it v is a_0^D c^D but near the ends of the range. So in both cases the mean over images is an upper bound of what a
lossless code by the model (EBM and decoder) takes, *given log Z*. It is no bound on the density of clean images under a model
that never saw any: with initial noise that density is not defined. Where sigma_0 is wider than c the bound pays for the noise,
about log2(4.13 sigma_0 / c) bits in every pixel that is constant. Neither dequantised nor noisy, data have no density at all,
so data of a model that was trained so are dequantised here.

log Z enters with its own error: a lower bound of log Z makes bits/dim optimistic, an upper bound makes them conservative.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from springwell.errors import UserError

_PIXELS_AT_ONCE = 1 << 17


def to_bits(nats: float, dim: int) -> float:
    """Nats of a whole sample as bits per dimension.

    Examples:
        >>> sw.likelihood.to_bits(math.log(256), dim=1)  # one byte
        8.0
    """
    return nats / (dim * math.log(2))


def log_volume(x_0: Tensor, a: float, sigma: float, cell: float, dequantised: bool) -> Tensor:
    """log v(x_0) ``[N]``, float64, of images ``[N, ...]`` with values in [-1, 1] before a and sigma.

    Examples:
        >>> v = sw.likelihood.log_volume(torch.zeros(3, 1, 8, 8), a=1.0, sigma=0.0, cell=2 / 255, dequantised=True)
        >>> v.shape, abs(float(v[0]) - 64 * math.log(2 / 255)) < 1e-9
        (torch.Size([3]), True)
    """
    dim = x_0[0].numel()
    if sigma == 0:
        if not dequantised:
            what = "data are neither dequantised nor noisy, so they have no density"
            raise UserError(f"bits per dimension: {what}; dequantise them, or give the schedule an initial_noise")
        return torch.full((len(x_0),), dim * math.log(cell), dtype=torch.float64, device=x_0.device)
    rows = []
    values = torch.linspace(-1, 1, round(2 / cell) + 1, dtype=torch.float64, device=x_0.device)
    for part in x_0.flatten(1).double().split(max(1, _PIXELS_AT_ONCE // dim)):
        if dequantised:
            # The cells' masses are differences of one function at their ends, and their sum telescopes.
            low, high = ((part - a * end) / sigma for end in (-1 - cell / 2, 1 + cell / 2))
            total = (torch.special.ndtr(low) - torch.special.ndtr(high)).clamp(min=1e-300).log() - math.log(a * cell)
        else:
            total = torch.full_like(part, -math.inf)
            for value in values:
                total = torch.logaddexp(total, -0.5 * ((part - a * value) / sigma).square())
            total = total - math.log(sigma * math.sqrt(2 * math.pi))
        rows.append(-total.sum(-1))
    return torch.cat(rows)


def check_range(x: Tensor, cell: float, name: str = "x") -> None:
    """Refuses images whose values are not in [-1, 1] (and half a cell beyond, where dequantisation puts them)."""
    if not bool(torch.isfinite(x).all()):
        raise UserError(f"{name}: has values that are not finite; needs images in [-1, 1]")
    low, high = float(x.min()), float(x.max())
    if low < -1 - cell / 2 - 1e-6 or high > 1 + cell / 2 + 1e-6:
        raise UserError(f"{name}: has values in [{low:g}, {high:g}]; needs images in [-1, 1], for bytes b / 127.5 - 1")

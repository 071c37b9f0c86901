r"""Monotone transforms of every column, with the logarithm of their slopes, and back.

    affine        z = (x - shift) / scale
    yeo-johnson   a power of 1 + |x|, lambda in [0, 2], so that the image of the line is the line
    spline        normal scores: z = Phi^-1(F(x)), F a smooth estimate of the column's distribution function

Each is a bijection of the line, so that a density of z gives a density of x that integrates to 1,

    log p(x) = log p(z) + sum_i log dz_i / dx_i.

A spline is rational-quadratic between its knots, where it has the value and about the slope of the normal scores. Outside it
goes on as z_K + d w log(1 + (x - x_K) / w) with the width w of the data's own tail and the slope d of z over that tail: far
values cost the square of a logarithm.

References:
    Yeo, Johnson, "A new family of power transformations to improve normality or symmetry", Biometrika 2000.
    Durkan, Bekasov, Murray, Papamakarios, "Neural spline flows", NeurIPS 2019.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

KINDS = ("standard", "yeo-johnson", "spline")
# Share and width of a broad normal that is mixed into a column's distribution function, so that its tails are not the kernel's.
BROAD_SHARE, BROAD_WIDTH = 0.05, 2.0
# Candidates of the kernel's width, in units of Silverman's.
BANDWIDTHS = (0.15, 0.3, 0.5, 0.8, 1.2)
MOST_KNOTS = 48
# Rows from which bandwidths are chosen, and distribution functions are estimated.
FEW, MANY = 600, 20_000
_LOG_2PI = math.log(2 * math.pi)


class Affine(nn.Module):
    """z = (x - shift) / scale."""

    shift: Tensor
    scale: Tensor

    def __init__(self, shift: Tensor, scale: Tensor):
        super().__init__()
        self.register_buffer("shift", shift.double())
        self.register_buffer("scale", scale.double())

    @classmethod
    def moments(cls, x: Tensor) -> Affine:
        """To mean 0 and standard deviation 1."""
        return cls(x.mean(0), _positive(x.std(0, correction=0)))

    @classmethod
    def quartiles(cls, x: Tensor) -> Affine:
        """To median 0 and the quartiles of N(0, 1); the standard deviation serves where half of the values are equal."""
        levels = torch.tensor([0.25, 0.5, 0.75], dtype=x.dtype)
        low, middle, high = torch.quantile(x[:MANY], levels, 0)
        width = (high - low) / 1.349
        return cls(middle, _positive(torch.where(width > 0, width, x.std(0, correction=0))))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = (x - self.shift) / self.scale
        return z, -self.scale.log().expand_as(z)

    def inverse(self, z: Tensor) -> Tensor:
        """x of z."""
        return self.shift + self.scale * z


def _positive(scale: Tensor) -> Tensor:
    return torch.where(scale > 0, scale, 1.0)


class YeoJohnson(nn.Module):
    """The power transform with exponents lambda ``[D]`` in [0, 2]."""

    exponent: Tensor

    def __init__(self, exponent: Tensor):
        super().__init__()
        self.register_buffer("exponent", exponent.double().clamp(0, 2))

    @classmethod
    def fit(cls, x: Tensor, num: int = 41) -> YeoJohnson:
        """The exponents of greatest likelihood, of ``num`` evenly spaced ones, under a normal law of z."""
        best, chosen = torch.full_like(x[0], -torch.inf), torch.ones_like(x[0])
        for exponent in torch.linspace(0, 2, num, dtype=torch.float64):
            z, slope = cls(exponent.expand(x.shape[1]))(x[:MANY])
            likelihood = slope.mean(0) - 0.5 * z.var(0, correction=0).clamp(min=1e-300).log()
            chosen = torch.where(likelihood > best, exponent, chosen)
            best = torch.maximum(best, likelihood)
        return cls(chosen)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        sign, power = _side(x, self.exponent)
        # Not |x|, whose derivative is 0 at 0.
        log = (sign * x).log1p()
        # (exp(power log) - 1) / power, and log itself where the power is 0.
        safe = torch.where(power > 0, power, 1.0)
        z = sign * torch.where(power > 0, torch.expm1(safe * log) / safe, log)
        return z, (power - 1) * log

    def inverse(self, z: Tensor) -> Tensor:
        """x of z."""
        sign, power = _side(z, self.exponent)
        safe = torch.where(power > 0, power, 1.0)
        log = torch.where(power > 0, torch.log1p(safe * z.abs()) / safe, z.abs())
        return sign * torch.expm1(log)


def _side(x: Tensor, exponent: Tensor) -> tuple[Tensor, Tensor]:
    """The sign of x, and the power that holds on its side: lambda where x >= 0, and 2 - lambda elsewhere."""
    return torch.where(x >= 0, 1.0, -1.0).to(x), torch.where(x >= 0, exponent, 2 - exponent)


class Spline(nn.Module):
    """A rational-quadratic spline of every column, through ``[D, K]`` knots with their values and slopes.

    Args:
        knots: x_k.
        values: z_k.
        slopes: d_k.
        reach: ``[D, 2]``: w of the lower and the upper tail.
    """

    knots: Tensor
    values: Tensor
    slopes: Tensor
    reach: Tensor

    def __init__(self, knots: Tensor, values: Tensor, slopes: Tensor, reach: Tensor):
        super().__init__()
        self.register_buffer("reach", reach.double())
        self.register_buffer("knots", knots.double().contiguous())
        self.register_buffer("values", values.double().contiguous())
        self.register_buffer("slopes", slopes.double().contiguous())

    @classmethod
    def fit(cls, x: Tensor) -> Spline:
        """Normal scores of columns that have about unit width."""
        x = x[:MANY]
        bandwidth = _bandwidths(x)
        num = int(min(MOST_KNOTS, max(8, 2 * len(x) ** 0.4)))
        columns = [_scores(column, float(h), num) for column, h in zip(x.T, bandwidth, strict=True)]
        return cls(*(torch.stack(parts) for parts in zip(*columns, strict=True)))

    def _bins(self, at: Tensor, edges: Tensor) -> tuple[Tensor, ...]:
        """Left knots, values and slopes, widths, heights and right slopes of the bins that ``at`` ``[N, D]`` falls in."""
        column = at.T.contiguous()
        i = (torch.searchsorted(edges, column, right=True) - 1).clamp(0, edges.shape[1] - 2)
        left = [values.gather(1, i).T for values in (self.knots, self.values, self.slopes)]
        right = [values.gather(1, i + 1).T for values in (self.knots, self.values, self.slopes)]
        return (*left, right[0] - left[0], right[1] - left[1], right[2])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x0, z0, d0, width, height, d1 = self._bins(x, self.knots)
        s, t = height / width, ((x - x0) / width).clamp(0, 1)
        mixed = s + (d1 + d0 - 2 * s) * t * (1 - t)
        z = z0 + height * (s * t.square() + d0 * t * (1 - t)) / mixed
        slope = s.square() * (d1 * t.square() + 2 * s * t * (1 - t) + d0 * (1 - t).square()) / mixed.square()
        log_slope = slope.log()
        for beyond, end, sign in self._ends(x, self.knots):
            far = (sign * (x - self.knots[:, end])).clamp(min=0)
            d, w = self.slopes[:, end], self.reach[:, end]
            z = torch.where(beyond, self.values[:, end] + sign * d * w * (far / w).log1p(), z)
            log_slope = torch.where(beyond, d.log() - (far / w).log1p(), log_slope)
        return z, log_slope

    def inverse(self, z: Tensor) -> Tensor:
        """x of z."""
        x0, z0, d0, width, height, d1 = self._bins(z, self.values)
        s, v = height / width, (z - z0).clamp(min=0).minimum(height)
        k = v * (d1 + d0 - 2 * s)
        a, b, c = height * (s - d0) + k, height * d0 - k, -s * v
        t = 2 * c / (-b - (b.square() - 4 * a * c).clamp(min=0).sqrt())
        x = x0 + t * width
        for beyond, end, sign in self._ends(z, self.values):
            w = self.reach[:, end]
            far = (sign * (z - self.values[:, end])).clamp(min=0) / (self.slopes[:, end] * w)
            # Beyond exp(50) widths of the data a double is as good as infinite.
            x = torch.where(beyond, self.knots[:, end] + sign * w * far.clamp(max=50).expm1(), x)
        return x

    @staticmethod
    def _ends(at: Tensor, edges: Tensor) -> list[tuple[Tensor, int, int]]:
        return [(at < edges[:, 0], 0, -1), (at > edges[:, -1], -1, 1)]


def _bandwidths(x: Tensor) -> Tensor:
    """The width ``[D]`` of a Gaussian kernel of greatest likelihood, every row left out in turn."""
    rows = x[:: -(-len(x) // FEW)]
    unit = 0.9 * len(rows) ** -0.2
    gap = (rows[:, None] - rows[None]).square()
    gap.diagonal().fill_(torch.inf)
    best, chosen = torch.full_like(x[0], -torch.inf), torch.ones_like(x[0])
    broad = BROAD_SHARE * _normal(rows / BROAD_WIDTH) / BROAD_WIDTH
    for factor in BANDWIDTHS:
        h = factor * unit
        kernel = torch.exp(-0.5 * gap / h**2).sum(1) / (h * math.sqrt(2 * math.pi) * max(1, len(rows) - 1))
        likelihood = (broad + (1 - BROAD_SHARE) * kernel).log().mean(0)
        chosen = torch.where(likelihood > best, factor, chosen)
        best = torch.maximum(best, likelihood)
    return chosen * 0.9 * len(x) ** -0.2


def _normal(z: Tensor) -> Tensor:
    return torch.exp(-0.5 * (z.square() + _LOG_2PI))


def _scores(column: Tensor, h: float, num: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Knots, normal scores, their slopes and the tails' widths of one column; equal quantiles are spread a little."""
    inner = torch.quantile(column, torch.linspace(0.002, 0.998, num - 2, dtype=column.dtype))
    ends = column.aminmax()
    knots = torch.cat([ends.min[None] - h, inner, ends.max[None] + h])
    least = 0.02 * h * torch.arange(num, dtype=column.dtype)
    knots = (knots - least).cummax(0).values + least
    z = (knots[:, None] - column) / h
    share = BROAD_SHARE
    wide = knots / BROAD_WIDTH
    lower = (1 - share) * torch.special.ndtr(z).mean(1) + share * torch.special.ndtr(wide)
    upper = (1 - share) * torch.special.ndtr(-z).mean(1) + share * torch.special.ndtr(-wide)
    density = (1 - share) * _normal(z).mean(1) / h + share * _normal(wide) / BROAD_WIDTH
    score = torch.where(lower < upper, torch.special.ndtri(lower), -torch.special.ndtri(upper))
    return knots, score, *_tamed(knots, score, density / _normal(score))


def _tamed(knots: Tensor, score: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor]:
    """Slopes within a factor 4 of the mean rise beside every knot, those of the ends over the tails, and the tails' widths."""
    rise = score.diff() / knots.diff()
    beside = (torch.cat([rise[:1], rise]) * torch.cat([rise, rise[-1:]])).sqrt()
    slopes = torch.minimum(torch.maximum(slopes, beside / 4), beside * 4)
    tail = max(1, len(knots) // 10)
    reach = torch.stack([knots[tail] - knots[0], knots[-1] - knots[-1 - tail]])
    over = torch.stack([score[tail] - score[0], score[-1] - score[-1 - tail]]) / reach
    slopes[0], slopes[-1] = torch.minimum(slopes[[0, -1]], over)
    return slopes, reach


class Transform(nn.Module):
    """Stages one after another.

    Args:
        kind: One of ``KINDS``.
        stages: Modules that map x ``[N, D]`` to (z, log dz / dx), and back by ``inverse``.
    """

    def __init__(self, kind: str, stages: Sequence[nn.Module]):
        super().__init__()
        self.kind, self.stages = kind, nn.ModuleList(stages)

    @classmethod
    def fit(cls, kind: str, x: Tensor) -> Transform:
        """The transform of a kind that suits data ``[N, D]``, float64."""
        if kind == "standard":
            return cls(kind, [Affine.moments(x)])
        stages: list[nn.Module] = [Affine.quartiles(x)]
        stages.append(YeoJohnson.fit(stages[0](x)[0]))
        found = cls(kind, stages)
        stages.append(Affine.moments(found(x)[0]))
        if kind == "spline":
            stages.append(Spline.fit(cls(kind, stages)(x)[0]))
            stages.append(Affine.moments(cls(kind, stages)(x)[0]))
        return cls(kind, stages)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """z ``[N, D]`` and log dz / dx ``[N, D]``, float64."""
        z, total = x.double(), torch.zeros(x.shape, dtype=torch.float64)
        for stage in self.stages:
            z, log_slope = stage(z)
            total = total + log_slope
        return z, total

    def inverse(self, z: Tensor) -> Tensor:
        """x of z."""
        for stage in reversed(list(self.stages)):
            z = cast("Affine", stage).inverse(z)
        return z

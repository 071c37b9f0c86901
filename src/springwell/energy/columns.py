r"""Energies of rows that know their normaliser exactly: one energy for every column, given the columns before it.

    f(u) = sum_i [ log q(u_i) + g_i(Q(u_i); u_1 ... u_{i-1}) - log Z_i ]

q is a fixed density of the line and Q its distribution function. g_i is piecewise linear over [0, 1]; a network gives its
values at the knots from the columns before. With v = Q(t), dv = q(t) dt,

    Z_i = int q(t) exp g_i(Q(t)) dt = int_0^1 exp g_i(v) dv = sum over pieces of (e^b - e^a) / (K (b - a)),

a and b being the values at a piece's ends. So exp f integrates to 1 whatever the weights are, and maximum likelihood needs no
chains. A tanh bounds g. An untrained network has g = 0: f is then the density q of independent columns.

References:
    Nash, Durkan, "Autoregressive energy machines", ICML 2019.
    Germain, Gregor, Murray, Larochelle, "MADE: masked autoencoder for distribution estimation", ICML 2015.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

# q = 0.95 N(0, 1) + 0.05 N(0, 3^2): rows far out have a density that a bounded g can leave them.
SHARE, WIDTH = 0.05, 3.0
# The largest |g|, in nats.
MOST = 6.0
_LOG_2PI = math.log(2 * math.pi)


def base_log_density(u: Tensor) -> Tensor:
    """log q, of every value."""
    narrow = math.log(1 - SHARE) - 0.5 * (u.square() + _LOG_2PI)
    wide = math.log(SHARE / WIDTH) - 0.5 * ((u / WIDTH).square() + _LOG_2PI)
    return torch.logaddexp(narrow, wide)


def base_cdf(u: Tensor) -> Tensor:
    """Q, of every value."""
    return (1 - SHARE) * torch.special.ndtr(u) + SHARE * torch.special.ndtr(u / WIDTH)


def base_quantile(v: Tensor) -> Tensor:
    """The inverse of Q, by bisection; float64."""
    low, high = torch.full_like(v, -40.0), torch.full_like(v, 40.0)
    for _ in range(60):
        middle = 0.5 * (low + high)
        below = base_cdf(middle) < v
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return 0.5 * (low + high)


def pieces(g: Tensor) -> Tensor:
    """Integrals ``[..., K]`` of exp g over the pieces of [0, 1], g ``[..., K + 1]`` bounded."""
    e, d = g.exp(), g.diff(dim=-1)
    # At small d the quotient loses digits, and the mean of the ends is off by d^2 / 12 only.
    near = d.abs() < 0.01
    mean = torch.where(near, 0.5 * (e[..., 1:] + e[..., :-1]), e.diff(dim=-1) / torch.where(near, 1.0, d))
    return mean / (g.shape[-1] - 1)


def log_correction(g: Tensor, v: Tensor) -> Tensor:
    """g(v) - log Z ``[...]`` at v ``[...]`` in [0, 1], g ``[..., K + 1]``."""
    num = g.shape[-1] - 1
    place = v * num
    i = place.long().clamp(0, num - 1)[..., None]
    left, right = g.gather(-1, i)[..., 0], g.gather(-1, i + 1)[..., 0]
    return torch.lerp(left, right, place - i[..., 0]) - pieces(g).sum(-1).log()


def draw_correction(g: Tensor, w: Tensor) -> Tensor:
    """v ``[...]`` of density exp(g(v)) / Z from uniform numbers w ``[...]``: the inverse of its distribution function."""
    num = g.shape[-1] - 1
    mass = pieces(g)
    mass = mass / mass.sum(-1, keepdim=True)
    edges = mass.cumsum(-1)
    i = torch.searchsorted(edges, w[..., None].contiguous()).clamp(max=num - 1)
    before = edges.gather(-1, i) - mass.gather(-1, i)
    share = ((w[..., None] - before) / mass.gather(-1, i)).clamp(0, 1)
    d = g.gather(-1, i + 1) - g.gather(-1, i)
    safe = torch.where(d.abs() > 1e-6, d, 1.0)
    inside = torch.where(d.abs() > 1e-6, torch.log1p(share * torch.expm1(safe)) / safe, share)
    return ((i + inside) / num)[..., 0]


class _Masked(nn.Linear):
    """A linear layer, some of whose weights are 0 for good."""

    mask: Tensor

    def __init__(self, mask: Tensor):
        super().__init__(mask.shape[1], mask.shape[0])
        self.register_buffer("mask", mask.float(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight * self.mask, self.bias)


class ColumnNetwork(nn.Module):
    """Values of g at the knots ``[N, D, K + 1]``, those of column i from the columns before it alone.

    Args:
        dim: D.
        width: Hidden units.
        depth: Residual blocks.
        num_pieces: K.
        dropout: Share of hidden units that every update leaves out.
    """

    def __init__(self, dim: int, width: int = 128, depth: int = 2, num_pieces: int = 32, dropout: float = 0.2):
        super().__init__()
        self.dim, self.num_pieces = dim, num_pieces
        columns = torch.arange(dim)
        # A hidden unit of degree d sees the columns 0 ... d.
        degree = torch.arange(width) % max(1, dim - 1)
        self.inward = _Masked(degree[:, None] >= columns)
        inner = degree[:, None] >= degree
        self.up = nn.ModuleList(_Masked(inner) for _ in range(depth))
        self.down = nn.ModuleList(_Masked(inner) for _ in range(depth))
        self.outward = _Masked(columns.repeat_interleave(num_pieces + 1)[:, None] > degree)
        self.dropout = nn.Dropout(dropout)
        for layer in [*self.down, self.outward]:
            nn.init.zeros_(layer.weight)
        nn.init.zeros_(self.outward.bias)

    def forward(self, u: Tensor) -> Tensor:
        # Far values would drown the others, and may be beyond single precision.
        h = self.inward(torch.asinh(u).to(self.inward.weight.dtype))
        for up, down in zip(self.up, self.down, strict=True):
            h = h + down(self.dropout(F.silu(up(F.silu(h)))))
        g = self.outward(F.silu(h)).view(len(u), self.dim, self.num_pieces + 1)
        return MOST * torch.tanh(g / MOST)


class ColumnEnergy(nn.Module):
    """f(u) of a network, with the columns in an order of its own.

    Args:
        network: Gives g.
        order: ``[D]``: the columns, first to last.
    """

    order: Tensor
    place: Tensor

    def __init__(self, network: ColumnNetwork, order: Tensor):
        super().__init__()
        self.network = network
        self.register_buffer("order", order)
        self.register_buffer("place", order.argsort())

    def forward(self, u: Tensor) -> Tensor:
        """f ``[N]``, float64: a log-density of u ``[N, D]``."""
        u = u[:, self.order]
        g = self.network(u)
        correction = log_correction(g, base_cdf(u).to(g.dtype))
        return (base_log_density(u.double()) + correction.double()).sum(-1)

    @torch.no_grad()
    def sample(self, num: int, generator: Generator) -> Tensor:
        """``[num, D]`` exact draws, column after column; float64."""
        u = torch.zeros(num, self.network.dim, dtype=torch.float64)
        for i in range(self.network.dim):
            g = self.network(u)[:, i].double()
            w = torch.rand(num, dtype=torch.float64, generator=generator)
            u[:, i] = base_quantile(draw_correction(g, w))
        return u[:, self.place]

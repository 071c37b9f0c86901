r"""Two-dimensional data whose log-density can be evaluated, also after Gaussian noise.

Every set but the checkerboard is a law on points or curves c_k(v) blurred by isotropic Gaussian noise of width s:

    p(x) = sum_k w_k  int q(v) N(x; c_k(v), s^2 I) dv.

Scaling by a and adding noise sigma gives the same form with centres a c_k(v) and width (a^2 s^2 + sigma^2)^(1/2), so the
noisy densities are as explicit as the clean ones. The integral is a quadrature with so many nodes that its error is below
1e-9 (periodic trapezoid on circles, Gauss-Legendre on open curves). The checkerboard is a sum of boxes, whose blurred
density is a product of differences of the normal distribution function.

All sets have mean about 0 and standard deviation about 1 in each coordinate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from springwell.errors import UserError
from springwell.noise import Noise

_CHUNK = 1 << 20


class ToyData(Protocol):
    """A density in the plane that can be sampled and evaluated."""

    @property
    def num_modes(self) -> int: ...

    def sample(self, noise: Noise) -> Tensor:
        """One point ``[N, 2]`` for every sample of ``noise``."""
        ...

    def labelled(self, noise: Noise) -> tuple[Tensor, Tensor]:
        """The same points, and the modes ``[N]`` that they were drawn from."""
        ...

    def mode_log_density(self, x: Tensor, a: float = 1.0, sigma: float = 0.0) -> Tensor:
        """``[N, num_modes]``: log of each mode's share of the density of a x_data + sigma eps at ``x``, in float64."""
        ...


def log_density(data: ToyData, x: Tensor, a: float = 1.0, sigma: float = 0.0) -> Tensor:
    """``[N]``: exact log-density, in float64, of a x_data + sigma eps at ``x``."""
    return data.mode_log_density(x, a, sigma).logsumexp(-1)


@dataclass(frozen=True)
class Checkerboard:
    """Eight unit squares of the 4 x 4 board on [-2, 2]^2, uniformly filled."""

    num_modes: int = 8

    @cached_property
    def _corners(self) -> Tensor:
        return torch.tensor([(i - 2.0, j - 2.0) for i in range(4) for j in range(4) if (i + j) % 2 == 0], dtype=torch.float64)

    def sample(self, noise: Noise) -> Tensor:
        return self.labelled(noise)[0]

    def labelled(self, noise: Noise) -> tuple[Tensor, Tensor]:
        u = noise.uniform(3)
        mode = (u[:, 0] * self.num_modes).long()
        return self._corners.to(u)[mode] + u[:, 1:], mode

    def mode_log_density(self, x: Tensor, a: float = 1.0, sigma: float = 0.0) -> Tensor:
        x = x.double()[:, None, :]
        lower = a * self._corners.to(x.device)
        if sigma == 0:
            inside = ((x >= lower) & (x < lower + a)).all(-1)
            return torch.where(inside, -2 * math.log(a) - math.log(self.num_modes), -math.inf)
        # log(Phi(u) - Phi(v)) with u > v, from the side on which the difference does not cancel.
        u, v = (x - lower) / sigma, (x - lower - a) / sigma
        flip = u + v > 0
        u, v = torch.where(flip, -v, u), torch.where(flip, -u, v)
        log_u, log_v = torch.special.log_ndtr(u), torch.special.log_ndtr(v)
        side = log_u + torch.log(-torch.expm1(log_v - log_u)) - math.log(a)
        return side.sum(-1) - math.log(self.num_modes)


@dataclass(frozen=True)
class Tube:
    """Curves blurred by isotropic Gaussian noise.

    Attributes:
        num_modes: Number of curves, equally likely.
        width: Standard deviation s of the blur.
        curve: (k ``[N]`` or ``[K, 1]``, v) -> points ``[..., 2]`` of curve k at parameter v.
        quantile: u in (0, 1) -> v, so that v has the law q.
        nodes: Quadrature nodes and weights of the law q, two float64 arrays of equal length.
    """

    num_modes: int
    width: float
    curve: Callable[[Tensor, Tensor], Tensor]
    quantile: Callable[[Tensor], Tensor]
    nodes: tuple[np.ndarray, np.ndarray]

    def sample(self, noise: Noise) -> Tensor:
        return self.labelled(noise)[0]

    def labelled(self, noise: Noise) -> tuple[Tensor, Tensor]:
        u = noise.uniform(2)
        mode = (u[:, 0] * self.num_modes).floor()
        centre = self.curve(mode, self.quantile(u[:, 1]))
        return centre + self.width * noise.normal(2), mode.long()

    def mode_log_density(self, x: Tensor, a: float = 1.0, sigma: float = 0.0) -> Tensor:
        v, weight = (torch.from_numpy(array).to(x.device) for array in self.nodes)
        modes = torch.arange(self.num_modes, dtype=torch.float64, device=x.device)[:, None]
        centre = a * self.curve(modes, v).reshape(-1, 2)
        variance = (a * self.width) ** 2 + sigma**2
        constant = weight.log().repeat(self.num_modes) - math.log(2 * math.pi * variance * self.num_modes)
        parts = []
        for part in x.double().split(max(1, _CHUNK // len(centre))):
            # -|x - c|^2 / 2 v, expanded; in float64 the cancellation costs 1e-12 at most.
            exponent = torch.addmm(constant - centre.square().sum(-1) / (2 * variance), part, centre.T / variance)
            mode = exponent.view(len(part), self.num_modes, -1).logsumexp(-1)
            parts.append(mode - part.square().sum(-1, keepdim=True) / (2 * variance))
        return torch.cat(parts)


def _polar(radius: Tensor, angle: Tensor) -> Tensor:
    radius, angle = torch.broadcast_tensors(radius, angle)
    return torch.stack([radius * torch.cos(angle), radius * torch.sin(angle)], -1)


def _gauss_legendre(
    num: int, low: float, high: float, density: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    node, weight = np.polynomial.legendre.leggauss(num)
    node = low + (high - low) * (node + 1) / 2
    weight = weight * density(node)
    return node, weight / weight.sum()


def eight_gaussians() -> Tube:
    point = (np.zeros(1), np.ones(1))
    return Tube(8, 0.1, lambda k, v: _polar(torch.full_like(k, 1.4), k * (math.pi / 4) + 0 * v), torch.clone, point)


def rings() -> Tube:
    circle = (np.arange(256) / 256, np.full(256, 1 / 256))
    return Tube(4, 0.07, lambda k, v: _polar(0.5 * (k + 1), 2 * math.pi * v), torch.clone, circle)


def two_moons() -> Tube:
    def curve(k: Tensor, v: Tensor) -> Tensor:
        side = 1 - 2 * k
        x, y = torch.broadcast_tensors(side * (torch.cos(math.pi * v) - 0.5), side * (torch.sin(math.pi * v) - 0.25))
        return 1.4 * torch.stack([x, y], -1)

    return Tube(2, 0.12, curve, torch.clone, _gauss_legendre(128, 0, 1, np.ones_like))


def pinwheel() -> Tube:
    """Five arms; v is a normal truncated to +-2.5, radius 1.4 + 0.42 v, angle bent by the radius."""
    bound = 2.5
    tail = 0.5 * math.erfc(bound / math.sqrt(2))

    def curve(k: Tensor, v: Tensor) -> Tensor:
        radius = 1.4 + 0.42 * v
        return _polar(radius, k * (2 * math.pi / 5) + 0.25 * torch.exp(radius / 1.4))

    def quantile(u: Tensor) -> Tensor:
        return torch.special.ndtri(tail + (1 - 2 * tail) * u)

    return Tube(5, 0.09, curve, quantile, _gauss_legendre(128, -bound, bound, lambda v: np.exp(-v * v / 2)))


def two_spirals() -> Tube:
    """One and a half turns each; v has density 2v, so that points fill the disc evenly."""
    return Tube(
        2, 0.08, lambda k, v: _polar(2 * v, math.pi * (3 * v + k)), torch.sqrt, _gauss_legendre(320, 0, 1, lambda v: 2 * v)
    )


TOY_DATA: dict[str, Callable[[], ToyData]] = {
    "checkerboard": Checkerboard,
    "eight_gaussians": eight_gaussians,
    "rings": rings,
    "two_moons": two_moons,
    "pinwheel": pinwheel,
    "two_spirals": two_spirals,
}


def toy_data(name: str) -> ToyData:
    """The toy data set of that name.

    Examples:
        >>> sw.toy_data("two_moons").sample(sw.Noise(0, torch.arange(100))).shape
        torch.Size([100, 2])
    """
    if name not in TOY_DATA:
        raise UserError(f"data={name!r}: unknown; choose {', '.join(TOY_DATA)}")
    return TOY_DATA[name]()

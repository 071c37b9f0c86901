r"""The ladder of noise levels (Gao et al. 2021, Sec. 3.1 and 3.5).

    x_0     = a_0 x_data + sigma_0 eps                    (the initial noise; sigma_0 = 0 where there is none)
    x_{t+1} = a_{t+1} x_t + sigma_{t+1} eps,              a = sqrt(1 - sigma^2),      t = 0 ... T-1
    x_t     = abar_t x_data + sigmabar_t eps              abar_t = a_0 ... a_t,       sigmabar_t^2 = 1 - abar_t^2
    y_t     = scale_t x_t                                 what the EBM of level t models; scale_t = a_{t+1}

The spring of level t holds y_t to x_{t+1} with precision 1 / sigma_{t+1}^2. A level may also go without: precision 0 and
scale 1 make its EBM an ordinary, marginal one of x_t, whose chains merely start at x_{t+1}. The authors' top level is such
a level, and so is the only level of a model with T = 1; both are values of ``spring_precision`` and ``scale``, not cases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from springwell.errors import UserError, kind_of, whole_number
from springwell.noise import Noise
from springwell.shapes import expand


@dataclass(frozen=True, eq=False, repr=False)
class NoiseSchedule:
    """Noise levels and springs of a model with T levels. All arrays are float64.

    Attributes:
        sigma: ``[T+1]``: noise of the hop that ends at x_0 (the initial noise), x_1, ..., x_T.
        spring: ``[T]``, bool: whether level t has its spring (and the rescaling that belongs to it).

    Examples:
        >>> schedule = sw.NoiseSchedule.log_snr(12, high=7, low=-5)
        >>> schedule.num_levels, schedule.sigma.shape
        (12, torch.Size([13]))
        >>> sw.NoiseSchedule.t6()
        <NoiseSchedule of 6 levels, noise 0.01 ... 1>
    """

    sigma: Tensor
    spring: Tensor

    def __post_init__(self) -> None:
        sigma, spring = self.sigma, self.spring
        for name, values in (("sigma", sigma), ("spring", spring)):
            if not isinstance(values, Tensor):
                raise UserError(f"{name}: is {kind_of(values)}; give a tensor, or use NoiseSchedule.from_sigmas([0.3, 0.6])")
        if sigma.ndim != 1 or len(sigma) < 2 or spring.shape != (len(sigma) - 1,):
            shapes = f"sigma {list(sigma.shape)} and spring {list(spring.shape)}"
            raise UserError(f"schedule: {shapes} do not fit; give T+1 and T values, T >= 1")
        for t, value in enumerate(sigma.tolist()):
            if not (0 < value <= 1 if t else 0 <= value < 1):
                raise UserError(f"schedule: sigma_{t} = {value:g} is out of range; needs 0 <= sigma_0 < 1 and 0 < sigma_t <= 1")
        if bool((spring & (sigma[1:] >= 1)).any()):
            raise UserError("schedule: a hop with sigma 1 keeps nothing of x_t, so it cannot have a spring; set its spring off")

    def __repr__(self) -> str:
        low, high = float(self.sigma_cum[0]), float(self.sigma_cum[-1])
        return f"<NoiseSchedule of {self.num_levels} levels, noise {low:.3g} ... {high:.3g}>"

    @classmethod
    def from_sigmas(cls, sigmas: Sequence[float], initial_noise: float = 0.0, top_spring: bool = True) -> NoiseSchedule:
        """Any ladder, from the noise of its T hops."""
        try:
            sigma = torch.tensor([initial_noise, *sigmas], dtype=torch.float64)
        except (TypeError, ValueError):
            raise UserError(f"sigmas={sigmas!r}: needs numbers, the noise of every hop, such as [0.3, 0.6, 0.9]") from None
        spring = torch.ones(len(sigmas), dtype=torch.bool)
        if len(sigmas):
            spring[-1] = top_spring
        return cls(sigma, spring)

    @classmethod
    def from_noise_levels(cls, sigma_cum: Tensor, top_spring: bool = True) -> NoiseSchedule:
        """Any ladder, from the cumulative noise sigmabar_0 < ... < sigmabar_T."""
        a_cum = (1 - sigma_cum.double() ** 2).sqrt()
        a = torch.cat([a_cum[:1], a_cum[1:] / a_cum[:-1]])
        return cls.from_sigmas((1 - a[1:] ** 2).sqrt().tolist(), float(sigma_cum[0]), top_spring)

    @classmethod
    def t6(cls, num_levels: int = 6, initial_noise: float | None = None) -> NoiseSchedule:
        """The authors' coarse ladder: T + 1 stretches of 1000 fine steps, the top level without spring (Sec. 4.1).

        Their boundaries for T = 6 are [0, 100, 200, 300, 400, 500, 999]; other T divide the lower half alike.

        Args:
            num_levels: T.
            initial_noise: sigma_0, if not the authors' 0.01.
        """
        num_levels = whole_number("num_levels", num_levels, 1)
        fine = -(-max(1, num_levels - 1) // 500)
        boundary = [0, fine, *[fine + round(i * 500 * fine / (num_levels - 1)) for i in range(1, num_levels)], 1000 * fine]
        sigma = _stretches(fine, boundary)
        return cls.from_sigmas(sigma[1:], sigma[0] if initial_noise is None else initial_noise, top_spring=False)

    @classmethod
    def linear(cls, num_levels: int = 1000, initial_noise: float = 0.0, top_spring: bool = True) -> NoiseSchedule:
        """sigma_t^2 rises linearly. T = 1000 is the paper's T1k; other T keep the total noise of T1k.

        The hops of T != 1000 are the stretches of the fine ladder that T1k's boundaries divide evenly.
        """
        num_levels = whole_number("num_levels", num_levels, 1)
        fine = -(-num_levels // 1000)
        boundary = [round(i * 1000 * fine / num_levels) for i in range(num_levels + 1)]
        return cls.from_sigmas(_stretches(fine, boundary), initial_noise, top_spring)

    @classmethod
    def t1k(cls) -> NoiseSchedule:
        """The authors' fine ladder: T = 1000, sigma_t^2 = linspace(1e-4, 0.02, 1000), no initial noise."""
        return cls.linear(1000)

    @classmethod
    def log_snr(
        cls,
        num_levels: int,
        high: float = 5.0,
        low: float = -5.0,
        initial_noise: float | None = None,
        top_spring: bool = True,
    ) -> NoiseSchedule:
        """The ladder with equal steps in log(abar^2 / sigmabar^2), from ``high`` at x_0 to ``low`` at x_T.

        ``initial_noise`` replaces the noise of x_0 that ``high`` implies; 0 leaves the data as they are.
        """
        num_levels = whole_number("num_levels", num_levels, 1)
        try:
            falls = high > low
        except TypeError:
            falls = False
        if not falls:
            raise UserError(f"log-SNR {high} ... {low}: must be numbers that fall from the clean end to the noisy one")
        noise = torch.sigmoid(-torch.linspace(high, low, num_levels + 1, dtype=torch.float64)).sqrt()
        if initial_noise is not None:
            noise[0] = initial_noise
        elif float(1 - noise[0] ** 2) == 1:
            what = f"starts at the noise {float(noise[0]):.2g}, which float64 cannot tell from none"
            raise UserError(f"log-SNR {high} ... {low}: {what}; start at 30 or less")
        if not noise[0] < noise[1]:
            raise UserError(f"initial noise {float(noise[0]):g}: must be below the noise of x_1, {float(noise[1]):.4f}")
        return cls.from_noise_levels(noise, top_spring)

    @classmethod
    def marginal(cls, initial_noise: float = 0.0) -> NoiseSchedule:
        """T = 1 without spring: an ordinary EBM whose chains start from pure noise."""
        return cls.from_sigmas([1.0], initial_noise, top_spring=False)

    @property
    def num_levels(self) -> int:
        return len(self.spring)

    @property
    def device(self) -> torch.device:
        return self.sigma.device

    @cached_property
    def a(self) -> Tensor:
        """``[T+1]``: a_t of each hop."""
        return (1 - self.sigma**2).sqrt()

    @cached_property
    def a_cum(self) -> Tensor:
        """``[T+1]``: abar_t."""
        return self.a.cumprod(0)

    @cached_property
    def sigma_cum(self) -> Tensor:
        """``[T+1]``: sigmabar_t."""
        return (1 - self.a_cum**2).sqrt()

    @cached_property
    def scale(self) -> Tensor:
        """``[T]``: y_t = scale_t x_t; a_{t+1} with the spring, 1 without."""
        return torch.where(self.spring, self.a[1:], 1.0)

    @cached_property
    def spring_precision(self) -> Tensor:
        """``[T]``: 1 / sigma_{t+1}^2 with the spring, 0 without."""
        return torch.where(self.spring, self.sigma[1:] ** -2, 0.0)

    @cached_property
    def langevin_step(self) -> Tensor:
        """``[T]``: the authors' step sizes s_t = b c_t sigma_{t+1}, b^2 = 2e-4, c_t^2 = sigmabar_t / sigmabar_0.

        Without initial noise sigmabar_0 is 0 and sigma_1 takes its place, which keeps c_t finite and rising.
        """
        sigma_cum = self.sigma_cum
        reference = sigma_cum[0] if sigma_cum[0] > 0 else self.sigma[1]
        c_square = (sigma_cum[:-1] / reference).clamp(min=1.0)
        return (2e-4 * c_square).sqrt() * self.sigma[1:]

    @cached_property
    def loss_weight(self) -> Tensor:
        """``[T]``: the authors' weight sigma_1 / sigma_{t+1} of level t's loss."""
        return self.sigma[1] / self.sigma[1:]

    def to(self, device: torch.device | str) -> NoiseSchedule:
        return replace(self, sigma=self.sigma.to(device), spring=self.spring.to(device))

    def diffuse(self, x: Tensor, t: Tensor | int, noise: Noise) -> Tensor:
        """Draws x_t given data.

        Args:
            x: Data ``[N, ...]``.
            t: int64 ``[N]`` in 0 ... T, or one level for all.
            noise: For N samples.
        """
        return expand(self.a_cum[t], x) * x + expand(self.sigma_cum[t], x) * noise.normal(*x.shape[1:])

    def pair(self, x: Tensor, t: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
        """Draws (y_t, x_{t+1}) given data, t in 0 ... T-1."""
        x_t = self.diffuse(x, t, noise)
        x_next = expand(self.a[t + 1], x) * x_t + expand(self.sigma[t + 1], x) * noise.normal(*x.shape[1:])
        return expand(self.scale[t], x) * x_t, x_next

    @cached_property
    def posterior_share(self) -> Tensor:
        """``[T]``: of the way from x_{t+1} to what is known of y_t without it, what the spring gives way;
        (a sigmabar_t)^2 / ((a sigmabar_t)^2 + sigma_{t+1}^2)."""
        prior, spring = (self.scale * self.sigma_cum[:-1]) ** 2, self.sigma[1:] ** 2
        return prior / (prior + spring)

    def posterior(self, x: Tensor, x_next: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of y_t given data and x_{t+1}: the product of N(a abar_t x, a^2 sigmabar_t^2) and the
        spring; the standard deviation is 0 where y_t has no noise. Every level must have its spring."""
        share = expand(self.posterior_share[t], x)
        mean = (1 - share) * expand((self.scale * self.a_cum[:-1])[t], x) * x + share * x_next
        return mean, share.sqrt() * expand(self.sigma[t + 1], x)


def _stretches(fine: int, boundary: Sequence[int]) -> list[float]:
    """Noise of the hops between boundaries of the ladder of 1000 steps with linear beta, each divided in ``fine``."""
    beta = torch.linspace(1e-4, 0.02, 1000 * fine, dtype=torch.float64) / fine
    log_a_cum = torch.cat([beta.new_zeros(1), 0.5 * torch.log1p(-beta)]).cumsum(0)
    log_a = log_a_cum[list(boundary[1:])] - log_a_cum[list(boundary[:-1])]
    return torch.sqrt(-torch.expm1(2 * log_a)).tolist()


def spread_levels(num_levels: int, most: int) -> list[int]:
    """At most so many levels, evenly spread, the first and the last among them."""
    count = min(num_levels, most)
    return sorted({round(i * (num_levels - 1) / max(1, count - 1)) for i in range(count)})

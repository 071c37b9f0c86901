r"""Energies that are log-densities: the squared residual of a denoiser, on top of a closed-form prior.

y = x + sigma eps, and B(y, sigma) is the prior's log-density, b = grad_y B (:mod:`springwell.energy.prior`). A network gives
two numbers for every coordinate, F(y, sigma) and g(y, sigma):

    D(y, sigma) = y + sigma^2 b + sigma kappa F,                  kappa = S^2 / (S^2 + sigma^2)             a denoiser
    h(y, sigma) = sum_i lambda_i tanh(g_i),                       lambda = kappa log(1 + s^2 / sigma^2)     a bounded head
    f(y, sigma) = B + |sigma b|^2 / 2 - |y - D|^2 / (2 sigma^2) + h
                = B + |sigma b|^2 / 2 - |sigma b + kappa F|^2 / 2 + h

s is the data's standard deviation per coordinate and S that of their widest direction, the root of the covariance's largest
eigenvalue. Where F = g = 0, as in an untrained network, f is the prior itself. With the Gaussian prior N(m, s^2) the first line
has the c_skip = s^2 / (s^2 + sigma^2) of EDM; its c_out = sigma s / (s^2 + sigma^2)^(1/2) falls too slowly with sigma for a
density: what the prior misses at large sigma is the covariance between coordinates, a share of S^2 / sigma^2 of the score.

Nothing is divided by sigma^2: sigma b, F and g are all of order 1, and f loses nothing to cancellation at small sigma. f is at
most B + |sigma b|^2 / 2 + D lambda, so exp f is integrable. For sigma -> infinity kappa and lambda vanish, and with them all
that the network adds: the constant of log p is right there without being learned.

A network that knows classes takes a label c for every sample, and f(y, sigma | c) is then the log-density of the data of class
c. A class has numbers of its own, which start at 0 and are added where the noise enters the network. Label -1, or none, adds
nothing: f is then the log-density of all data.

sigma is one number per sample, or one per coordinate. The second serves training: the derivative of f along the noise of one
coordinate has a target of its own (:mod:`springwell.normalised`).

References:
    Karras, Aittala, Aila, Laine, "Elucidating the design space of diffusion-based generative models", NeurIPS 2022.
    Guth, Kadkhodaie, Simoncelli, "Learning normalized image densities via dual score matching", 2025.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from springwell.energy.image import check_size
from springwell.energy.prior import Prior
from springwell.noise import Noise
from springwell.schedule import NoiseSchedule
from springwell.shapes import expand

# Frequencies of the noise's embedding, in radians per unit of log sigma; low, since f is differentiated along log sigma.
_FREQUENCIES = (0.25, 0.5, 1.0, 2.0)
NUM_NOISE_FEATURES = 1 + 2 * len(_FREQUENCIES)


def noise_features(log_sigma: Tensor, dim: int) -> Tensor:
    """log sigma / 4, and sines and cosines of log sigma, joined along ``dim``."""
    waves = [wave(w * log_sigma) for w in _FREQUENCIES for wave in (torch.sin, torch.cos)]
    return torch.cat([log_sigma / 4, *waves], dim)


class ResidualEnergy(nn.Module):
    """f(y, sigma) of a network and a prior.

    Args:
        network: Maps the inputs ``[N, I, *event_shape]``, I = ``num_inputs(prior)``, and log sigma, which broadcasts against
            y, to F and g, each of the shape of y. One with an attribute ``dropout`` > 0 takes a Noise as well in training, as
            ``noise``, and one that knows classes takes labels ``[N]`` as ``label``.
        prior: Where training starts.
        data_std: s.
        broad_std: S. Default: s.

    Examples:
        >>> from springwell.energy.residual import NoiseMLP, Prior, ResidualEnergy
        >>> energy = ResidualEnergy(NoiseMLP(2, 2, width=8, depth=1), Prior.outline((2,)))
        >>> energy(torch.zeros(3, 2), torch.tensor([0.1, 1.0, 9.0])).shape  # at three amounts of noise
        torch.Size([3])
    """

    data_std: Tensor
    broad_std: Tensor

    def __init__(self, network: nn.Module, prior: Prior, data_std: float = 1.0, broad_std: float | None = None):
        super().__init__()
        self.network, self.prior = network, prior
        self.register_buffer("data_std", torch.tensor(data_std))
        self.register_buffer("broad_std", torch.tensor(broad_std or data_std))

    def start_at(self, x: Tensor, atoms: Sequence[tuple[float, float]] = ()) -> None:
        """Takes prior, s and S from data ``[N, ...]``; see :meth:`Prior.fit` for the atoms."""
        self.prior.load_state_dict(Prior.fit(x, atoms).state_dict())
        s, broad = widths(x[:5000])
        self.data_std.fill_(s)
        self.broad_std.fill_(broad)

    @property
    def event_shape(self) -> tuple[int, ...]:
        return self.prior.event_shape

    def forward(self, y: Tensor, sigma: Tensor, dropout: Noise | None = None, label: Tensor | None = None) -> Tensor:
        """f ``[N]`` at y ``[N, ...]`` and sigma ``[N]`` or ``[N, ...]``, given labels ``[N]`` if the network knows classes.

        Training gives the randomness of dropout.
        """
        return self.terms(y, sigma, dropout, label).flatten(1).sum(-1)

    def terms(self, y: Tensor, sigma: Tensor, dropout: Noise | None = None, label: Tensor | None = None) -> Tensor:
        """What each coordinate adds to f, of the shape of y."""
        sigma = expand(sigma, y) if sigma.ndim == 1 else sigma
        s_square = self.data_std.square()
        value = self.prior(y, sigma)
        scaled = y * (s_square + sigma.square()).rsqrt()
        inputs = torch.stack([scaled, value.scaled_score, *value.atoms], 1)
        given = {name: value for name, value in (("noise", dropout), ("label", label)) if value is not None}
        out, head = self.network(inputs, sigma.log(), **given)
        kappa = self.broad_std.square() / (self.broad_std.square() + sigma.square())
        # |sigma b|^2 - |sigma b + kappa F|^2 = -kappa F (2 sigma b + kappa F), without cancellation.
        step = kappa * out
        lam = kappa * torch.log1p(s_square / sigma.square())
        return value.log_density - 0.5 * step * (2 * value.scaled_score + step) + lam * torch.tanh(head)


def widths(x: Tensor) -> tuple[float, float]:
    """s and S of data ``[N, ...]``."""
    z = (x - x.mean(0)).flatten(1).double()
    direction = torch.ones(z.shape[1], dtype=z.dtype)
    for _ in range(50):
        direction = z.T @ (z @ direction)
        direction = direction / direction.norm()
    return float(z.square().mean().sqrt()), float((z @ direction).square().mean().sqrt())


def num_inputs(prior: Prior) -> int:
    """Numbers per coordinate that the network sees: y scaled, sigma b, and each atom's responsibility."""
    return 2 + prior.num_atoms


class Classes(nn.Module):
    """Numbers ``[N, num]`` of labels ``[N]``; those of label -1 are 0, and so are all of an untrained network."""

    gain = 4.0
    """Adam moves every weight by about the learning rate a step, and a class is seen by few samples of a batch."""

    def __init__(self, num_classes: int, num: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_classes, num))

    def forward(self, label: Tensor) -> Tensor:
        known = self.gain * (label >= 0).to(self.weight.dtype)
        return known[:, None] * self.weight[label.clamp(min=0)]


class ClassSite(nn.Module):
    """A part of a network to which a class may add ``num`` numbers."""

    def __init__(self, num: int):
        super().__init__()
        self.num = num
        self.classes: Classes | None = None

    def with_class(self, values: Tensor, label: Tensor | None) -> Tensor:
        """Values ``[N, num, ...]``, plus the numbers of the class."""
        if label is None or self.classes is None:
            return values
        added = self.classes(label)
        return values + added.view(*added.shape, *[1] * (values.ndim - 2))


def know_classes(network: nn.Module, num_classes: int) -> None:
    """Lets every site of a network know the labels 0 ... num_classes - 1. All other weights stay as they are."""
    for site in [module for module in network.modules() if isinstance(module, ClassSite)]:
        site.classes = Classes(num_classes, site.num)


class NoiseMLP(ClassSite):
    r"""F and g of vectors.

        h_0 = silu(W_in [inputs, sin(Omega y + phi)] + e_0),   h_i = h_{i-1} + W'_i silu(W_i silu(h_{i-1}) (1 + e_i) + e'_i)
        F, g = W_out silu(h),   W_out starts at 0

    e are linear maps of an embedding of the noise of every coordinate.

    Args:
        dim: Dimension D.
        num_inputs: I.
        width: Hidden units.
        depth: Residual blocks.
        num_fourier: Number of fixed random frequencies Omega, for sharp edges in few dimensions; 0 for none.
        bandwidths: Standard deviations of the frequencies, in equal shares.
    """

    frequencies: Tensor
    phases: Tensor
    embed = 64

    def __init__(
        self,
        dim: int,
        num_inputs: int = 2,
        width: int = 256,
        depth: int = 3,
        num_fourier: int = 0,
        bandwidths: Sequence[float] = (1.5, 5.0),
    ):
        super().__init__(self.embed)
        self.dim, self.num_fourier = dim, num_fourier
        embed = self.embed
        bandwidth = torch.tensor([bandwidths[i % len(bandwidths)] for i in range(num_fourier)])
        self.register_buffer("frequencies", torch.randn(num_fourier, dim) * bandwidth[:, None])
        self.register_buffer("phases", 2 * math.pi * torch.rand(num_fourier))
        self.embed0, self.embed1 = nn.Linear(dim * NUM_NOISE_FEATURES, embed), nn.Linear(embed, embed)
        self.inward = nn.Linear(dim * num_inputs + num_fourier, width)
        self.first = nn.Linear(embed, width)
        self.up = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.down = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.noise = nn.ModuleList(nn.Linear(embed, 2 * width) for _ in range(depth))
        self.outward = nn.Linear(width, 2 * dim)
        for layer in self.down:
            nn.init.zeros_(cast("nn.Linear", layer).weight)
        nn.init.zeros_(self.outward.weight)
        nn.init.zeros_(self.outward.bias)

    def forward(self, inputs: Tensor, log_sigma: Tensor, label: Tensor | None = None) -> tuple[Tensor, Tensor]:
        log_sigma = log_sigma.expand(len(inputs), self.dim)
        e = self.embed1(F.silu(self.embed0(noise_features(log_sigma, -1))))
        e = F.silu(self.with_class(e, label))
        v = inputs.flatten(1)
        if self.num_fourier:
            v = torch.cat([v, torch.sin(F.linear(inputs[:, 0], self.frequencies, self.phases))], -1)
        h = self.inward(v) + self.first(e)
        for up, down, noise in zip(self.up, self.down, self.noise, strict=True):
            scale, shift = noise(e).chunk(2, -1)
            h = h + down(F.silu(up(F.silu(h)) * (1 + scale) + shift))
        out, head = self.outward(F.silu(h)).chunk(2, -1)
        return out, head


def dropped(h: Tensor, rate: float, noise: Noise | None) -> Tensor:
    """h with a share ``rate`` of its numbers set to 0 and the others enlarged, so that the mean stays. Without noise, h."""
    if noise is None or not rate:
        return h
    return h * ((noise.uniform(*h.shape[1:]) > rate).to(h.dtype) / (1 - rate))


class _Block(ClassSite):
    """shortcut(h) + conv(dropped(silu(conv(silu(h)) (1 + e) + e'))); the second convolution starts at 0."""

    def __init__(self, num_in: int, num_out: int, embed: int, dropout: float):
        super().__init__(2 * num_out)
        self.dropout = dropout
        self.conv1, self.conv2 = nn.Conv2d(num_in, num_out, 3, padding=1), nn.Conv2d(num_out, num_out, 3, padding=1)
        self.noise = nn.Conv2d(embed, 2 * num_out, 1)
        self.shortcut = nn.Conv2d(num_in, num_out, 1) if num_in != num_out else nn.Identity()
        nn.init.zeros_(self.conv2.weight)

    def forward(self, h: Tensor, e: Tensor, noise: Noise | None = None, label: Tensor | None = None) -> Tensor:
        scale, shift = self.with_class(self.noise(e), label).chunk(2, 1)
        r = torch.addcmul(shift, self.conv1(F.silu(h)), 1 + scale)
        out: Tensor = self.shortcut(h) + self.conv2(dropped(F.silu(r), self.dropout, noise))
        return out


class _Dense(ClassSite):
    """From every position of a level to every other, through ``num_units`` numbers; starts at 0."""

    reduced = 32

    def __init__(self, num_channels: int, num_positions: int, num_units: int, embed: int, dropout: float):
        super().__init__(2 * num_units)
        self.dropout = dropout
        self.reduce, self.restore = nn.Conv2d(num_channels, self.reduced, 1), nn.Conv2d(self.reduced, num_channels, 1)
        self.dense0 = nn.Linear(self.reduced * num_positions, num_units)
        self.dense1 = nn.Linear(num_units, self.reduced * num_positions)
        self.noise = nn.Linear(embed, 2 * num_units)
        nn.init.zeros_(self.restore.weight)

    def forward(self, h: Tensor, e: Tensor, noise: Noise | None = None, label: Tensor | None = None) -> Tensor:
        scale, shift = self.with_class(self.noise(e.mean((2, 3))), label).chunk(2, -1)
        r = self.reduce(F.silu(h))
        units = F.silu(self.dense0(r.flatten(1)) * (1 + scale) + shift)
        v = self.dense1(dropped(units, self.dropout, noise))
        out: Tensor = h + self.restore(v.view(r.shape))
        return out


class NoiseUNet(nn.Module):
    r"""F and g of images.

    Pixels are folded into channels, then: N blocks a level, 2x2 average pooling between levels; a dense map over the lowest
    level; on the way up, enlarge, join what left the level on the way down, N blocks. The last convolution starts at 0. The
    noise enters every block through an embedding that is computed per position, so that f knows the noise of each pixel.
    Its eight arguments are the sizes of its parts, all but the first with defaults, and the dropout.

    Args:
        image_shape: (C, H, W).
        num_inputs: I, numbers per pixel and channel.
        width: Channels of the first level.
        multipliers: Channels of each level, as multiples of ``width``.
        num_blocks: N.
        unshuffle: Side of the pixel blocks that are folded into channels.
        dense_units: The width of the dense map; 0 for none.
        dropout: Share of the numbers inside every block that training sets to 0, against too close a fit of few images.
    """

    embed = 32
    """Channels of the noise's embedding."""

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_inputs: int = 2,
        width: int = 32,
        multipliers: Sequence[int] = (1, 2),
        num_blocks: int = 1,
        unshuffle: int = 2,
        dense_units: int = 256,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.dropout = dropout
        channels, height, length = image_shape
        check_size(height, length, len(multipliers) - 1, unshuffle)
        embed = self.embed
        self.unshuffle, folded = unshuffle, channels * unshuffle**2
        widths = [width * multiplier for multiplier in multipliers]
        self.embed0 = nn.Conv2d(folded * NUM_NOISE_FEATURES, embed, 1)
        self.embed1 = nn.Conv2d(embed, embed, 1)
        self.conv_in = nn.Conv2d(folded * num_inputs, width, 3, padding=1)

        def blocks(num_in: int, num_out: int) -> nn.ModuleList:
            sizes = [num_in] + [num_out] * (num_blocks - 1)
            return nn.ModuleList(_Block(size, num_out, embed, dropout) for size in sizes)

        self.down = nn.ModuleList(blocks(a, b) for a, b in zip([width, *widths[:-1]], widths, strict=True))
        upper = widths[-2::-1]
        self.up = nn.ModuleList(blocks(a + b, b) for a, b in zip(widths[:0:-1], upper, strict=True))
        factor = unshuffle * 2 ** (len(widths) - 1)
        positions = (height // factor) * (length // factor)
        self.dense = _Dense(widths[-1], positions, dense_units, embed, dropout) if dense_units else None
        self.conv_out = nn.Conv2d(widths[0], 2 * folded, 3, padding=1)
        nn.init.zeros_(self.conv_out.weight)
        nn.init.zeros_(cast("Tensor", self.conv_out.bias))

    def _embed(self, log_sigma: Tensor, like: Tensor) -> Tensor:
        """``[N, embed, 1, 1]`` for noise that is equal everywhere, else one embedding per position."""
        n, channels = like.shape[0], like.shape[2]
        if log_sigma.shape[-2:] == (1, 1):
            log_sigma = log_sigma.expand(n, channels, 1, 1).repeat_interleave(self.unshuffle**2, 1)
        else:
            log_sigma = F.pixel_unshuffle(log_sigma, self.unshuffle)
        return F.silu(self.embed1(F.silu(self.embed0(noise_features(log_sigma, 1)))))

    def forward(
        self, inputs: Tensor, log_sigma: Tensor, noise: Noise | None = None, label: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        e = self._embed(log_sigma, inputs)
        h = F.pixel_unshuffle(inputs.flatten(1, 2), self.unshuffle)
        h = self.conv_in(h.contiguous(memory_format=torch.channels_last))
        passed: list[tuple[Tensor, Tensor]] = []
        for i, level in enumerate(self.down):
            if i:
                h = F.avg_pool2d(h, 2)
                e = F.avg_pool2d(e, 2) if e.shape[-1] > 1 else e
            for block in cast("nn.ModuleList", level):
                h = block(h, e, noise, label)
            passed.append((h, e))
        h, e = passed.pop()
        h = h if self.dense is None else self.dense(h, e, noise, label)
        for level in self.up:
            kept, e = passed.pop()
            h = torch.cat([F.interpolate(h, scale_factor=2.0), kept], 1)
            for block in cast("nn.ModuleList", level):
                h = block(h, e, noise, label)
        out = F.pixel_shuffle(self.conv_out(F.silu(h)), self.unshuffle)
        first, second = out.chunk(2, 1)
        return first, second


class LevelEnergy(nn.Module):
    r"""f(y_t, t) of a schedule's levels from f(y, sigma), a log-density of x + sigma eps.

        y_t = scale_t (abar_t x + sigmabar_t eps) = shrink_t (x + sigma_t eps),      shrink_t = scale_t abar_t
        f(y_t, t) = f(y_t / shrink_t, sigma_t) - D log shrink_t,                     sigma_t  = sigmabar_t / abar_t

    so that int exp f(y_t, t) dy_t is the same number as int exp f(y, sigma_t) dy: 1 where f is right. The level is a continuous
    variable inside: an integer t is an index into a grid of noises.

    Args:
        energy: f(y, sigma).
        schedule: The levels; x_0 must be noisy unless ``energy`` takes sigma = 0.
        classes: Names of the classes that ``energy`` takes labels of.
    """

    shrink: Tensor
    sigma: Tensor
    level_error: Tensor

    def __init__(self, energy: nn.Module, schedule: NoiseSchedule, classes: Sequence[str] = ()):
        super().__init__()
        self.energy: Any = energy
        self.classes = tuple(classes)
        shrink, sigma = schedule.scale * schedule.a_cum[:-1], schedule.sigma_cum / schedule.a_cum
        self.register_buffer("shrink", shrink, persistent=False)
        self.register_buffer("sigma", sigma, persistent=False)
        # The running mean of the objective's error at every level, by which it weighs them.
        self.register_buffer("level_error", torch.ones(schedule.num_levels))

    @property
    def dropout(self) -> float:
        """Share of numbers that the network drops in training, where it takes the randomness for it."""
        return float(getattr(getattr(self.energy, "network", None), "dropout", 0.0))

    @property
    def log_z(self) -> float | None:
        """What the energy believes of log int exp f(y_t, t) dy_t, at every level; None where it does not know."""
        known: float | None = getattr(self.energy, "log_z", 0.0)
        return known

    def forward(self, y: Tensor, t: Tensor, dropout: Noise | None = None, label: Tensor | None = None) -> Tensor:
        """f ``[N]`` at y_t and integer levels t ``[N]``; with a floating-point t, which is then sigma, at y = x + sigma eps."""
        given = {} if label is None else {"label": label}
        if t.is_floating_point():
            return self.energy(y, t, dropout, **given)
        shrink, dim = self.shrink[t], y[0].numel()
        f = self.energy(y / expand(shrink, y), self.sigma[t].to(y.dtype), **given)
        return f - (dim * shrink.log()).to(f.dtype)

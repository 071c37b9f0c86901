r"""Randomness that depends on (seed, stream, sample index, position) and on nothing else.

Every sample has a SplitMix64 generator of its own: the n-th 64-bit word of sample i is

    mix(key_i + n gamma_i),      (key_i, gamma_i) = hashes of (seed, stream, i), gamma_i odd.

Nothing is stored between draws but the position n, so the noise of one chain is the same whatever batch it is computed in,
on however many processes, and after an interruption: there is no generator state to save. Normals follow from the words by
Box and Muller's transform. All of it is integer arithmetic on the tensor's device.

So a sample is a function of its noise, and noise is a value that can be mixed, term by term,

    eps = sum_c w_c eps_c,      sum_c w_c^2 = 1,

which is noise of the same law: the spherical interpolation between two sources has weights cos and sin of an angle. A uniform
is mixed through the normal law, u = Phi(sum_c w_c Phi^{-1}(u_c)), and stays uniform.

References:
    Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from enum import IntEnum, unique

import torch
from torch import Generator, Tensor

from springwell.errors import UserError, kind_of

_GOLDEN = 0x9E3779B97F4A7C15
_UNIFORM, _NORMAL = 0, 1
_MAX_AHEAD = 1 << 16


@unique
class Stream(IntEnum):
    """The table of streams. Every use of randomness has the numbers from its own up to the next one's to itself.

    Two uses of one seed are then independent of each other, whatever samples, iterations or levels they count.
    """

    TRAINING = 0  # + iteration, + 2^36 after each rollback
    SAMPLING = 2**40  # + number of the attempt, of samples by rejection
    KEEPING = 2**40 + 2**39  # whether they are kept; + number of the attempt
    LEVELS = 2**41  # the levels of a training batch; + iteration, + 2^36 after each rollback
    DATA = 2**42  # held-out data, their noise and dequantisation
    NULL = 2**43  # permutations of a null distribution
    MOMENTS = 2**44  # data whose moments an energy starts with
    LABELS = 2**44 + 2**43  # the training rows whose labels are known
    CLASSES = 2**44 + 2**43 + 2**42  # noise of data that are classified
    CALIBRATION = 2**45  # + number of the measurement
    PILOT = 2**50  # + level of the first chain
    LONGRUN = 2**51  # + steps per level x 2^24 + level
    LONGRUN_FREE = 2**52  # + steps done
    DIAGNOSIS = 2**53  # + level
    SOURCES = 2**54  # + number of the source
    POINTS = 2**55
    BRACKET = 2**56  # + 16 x number of densities
    SCORES = 2**57
    RATIOS = 2**58  # the pilot's two, then + 2 + steps per level
    INPAINTING = 2**59  # + number of the observation
    RESTORATION = 2**60  # + number of the observation
    PROBES = 2**61
    MEASUREMENT = 2**61 + 2**60  # + number of the observation


def _signed(word: int) -> int:
    """A 64-bit word as the int64 with the same bits."""
    word &= (1 << 64) - 1
    return word - (1 << 64) if word >> 63 else word


def _shift(z: Tensor, bits: int) -> Tensor:
    """Logical shift to the right (torch's is arithmetic)."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def mix(z: Tensor) -> Tensor:
    """SplitMix64's output function, a bijection of 64-bit words (int64, wrapping)."""
    z = (z ^ _shift(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _shift(z, 27)) * _signed(0x94D049BB133111EB)
    return z ^ _shift(z, 31)


class Noise:
    """Normals and uniforms for a batch of samples, each with random numbers of its own.

    Args:
        seed: The seed, any integer of 64 bits; or int64 ``[N]``, the seed of every sample.
        index: int64 ``[N]``: the global index of every sample of the batch.
        stream: Which of the independent streams of every sample (the trainer passes the iteration); or int64 ``[N]``.
        ahead: How many draws to compute at once. It changes speed, never values.
        dtype: The type of the numbers returned.

    Examples:
        >>> noise = sw.Noise(seed=0, index=torch.arange(3))
        >>> noise.normal(2).shape  # two numbers for each of three samples
        torch.Size([3, 2])
        >>> alone = sw.Noise(seed=0, index=torch.tensor([2])).normal(2)
        >>> bool(torch.equal(alone[0], sw.Noise(seed=0, index=torch.arange(3)).normal(2)[2]))
        True
    """

    def __init__(
        self,
        seed: int | Tensor,
        index: Tensor,
        stream: int | Tensor = 0,
        ahead: int = 1,
        dtype: torch.dtype = torch.float32,
    ):
        if not isinstance(index, Tensor):
            raise UserError(f"index: is {kind_of(index)}; give the number of every sample, such as torch.arange(16)")
        self.ahead, self.dtype = ahead, dtype
        root, branch = (
            value if isinstance(value, Tensor) else torch.tensor([_signed(value)], device=index.device)
            for value in (seed, stream)
        )
        golden = _signed(_GOLDEN)
        self._key = mix(mix(mix(root + golden) + golden * (branch + 1)) + golden * (index + 1))
        self._gamma = mix(self._key ^ _signed(0xD1B54A32D192ED03)) | 1
        self._position = {_UNIFORM: 0, _NORMAL: 0}
        self._ready: dict[int, tuple[int, list[Tensor]]] = {}

    def __len__(self) -> int:
        return len(self._key)

    @property
    def device(self) -> torch.device:
        return self._key.device

    def normal(self, *event_shape: int) -> Tensor:
        """Standard normals ``[N, *event_shape]``."""
        return self._draw(_NORMAL, math.prod(event_shape)).view(-1, *event_shape)

    def uniform(self, *event_shape: int) -> Tensor:
        """Uniforms in (0, 1), ``[N, *event_shape]``."""
        return self._draw(_UNIFORM, math.prod(event_shape)).view(-1, *event_shape)

    def every(self, n: int) -> Noise:
        """The randomness of the samples 0, n, 2 n, ..., from where it is now on; this one stays where it is."""
        part = copy(self)
        part._key, part._gamma = self._key[::n], self._gamma[::n]
        part._position, part._ready = dict(self._position), {}
        return part

    def _draw(self, kind: int, size: int) -> Tensor:
        """``[N, size]`` numbers, which take the next ceil(size / 2) words of their kind."""
        words = -(-size // 2)
        ready_size, ready = self._ready.get(kind, (size, []))
        if not ready or ready_size != size:
            ahead = max(1, min(self.ahead, _MAX_AHEAD // max(1, words * len(self))))
            ready = list(self._numbers(kind, words, ahead)[..., :size].flip(0))
            self._ready[kind] = size, ready
        self._position[kind] += words
        return ready.pop()

    def _numbers(self, kind: int, words: int, draws: int) -> Tensor:
        start = self._position[kind]
        position = torch.arange(start, start + draws * words, device=self.device).view(draws, 1, words)
        word = mix(self._key[:, None] + self._gamma[:, None] * (2 * position + kind + 1))
        u, v = [(half.to(self.dtype) + 0.5) * 2.0**-32 for half in (_shift(word, 32), word & 0xFFFFFFFF)]
        if kind == _UNIFORM:
            # In float32 the largest words round to 1; a uniform of exactly 1 would be outside the open interval.
            largest = 1 - torch.finfo(self.dtype).eps / 2
            return torch.stack([u, v], -1).clamp(max=largest).flatten(2)
        radius, angle = torch.sqrt(-2 * torch.log(u)), 2 * math.pi * v
        return torch.stack([radius * torch.cos(angle), radius * torch.sin(angle)], -1).flatten(2)


class MixedNoise(Noise):
    """A mixture of sources, term by term: every draw is the mixture of the sources' own next draws.

    A sample whose weights are 1 for one source and 0 for the others has, bit for bit, the numbers of that source.

    Args:
        sources: C sources of N samples each.
        weights: ``[N, C]``, the squares of a row summing to 1.
    """

    def __init__(self, sources: Sequence[Noise], weights: Tensor):
        self.sources, self.weights = list(sources), weights
        self.dtype = self.sources[0].dtype

    def __len__(self) -> int:
        return len(self.weights)

    @property
    def device(self) -> torch.device:
        return self.sources[0].device

    def _draw(self, kind: int, size: int) -> Tensor:
        draws = torch.stack([source._draw(kind, size) for source in self.sources], -1)
        weights = self.weights[:, None, :].to(draws)
        if kind == _NORMAL:
            return (weights * draws).sum(-1)
        largest = 1 - torch.finfo(self.dtype).eps / 2
        mixed = torch.special.ndtr((weights * torch.special.ndtri(draws)).sum(-1)).clamp(1 - largest, largest)
        pure, source = weights.max(-1)
        return torch.where(pure == 1, draws.gather(-1, source[..., None].expand(*draws.shape[:-1], 1))[..., 0], mixed)


class GeneratorNoise(Noise):
    """Numbers of a torch.Generator in place of (seed, index): shorter to write, but a chain's values depend on its batch.

    Args:
        generator: Any torch.Generator.
        num: How many samples.
        device: Where the numbers are needed.
        dtype: The type of the numbers returned.
    """

    def __init__(self, generator: Generator, num: int, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32):
        self.generator, self.num, self.place, self.dtype = generator, num, torch.device(device), dtype

    def __len__(self) -> int:
        return self.num

    @property
    def device(self) -> torch.device:
        return self.place

    def _draw(self, kind: int, size: int) -> Tensor:
        draw = torch.randn if kind == _NORMAL else torch.rand
        place = self.generator.device
        numbers = draw(self.num, size, generator=self.generator, device=place, dtype=self.dtype).to(self.place)
        return numbers if kind == _NORMAL else numbers.clamp(min=torch.finfo(numbers.dtype).tiny)


def as_noise(noise: object, x: Tensor) -> Noise:
    """The randomness of samples like x ``[N, ...]``: a Noise as it is, or the numbers of a torch.Generator."""
    if not isinstance(x, Tensor):
        raise UserError(f"x: is {kind_of(x)}; give a tensor [N, ...]")
    num = len(x)
    if isinstance(noise, Noise):
        if len(noise) != num:
            raise UserError(f"noise: is for {len(noise)} samples, and there are {num}; give Noise(seed, torch.arange({num}))")
        return noise
    if isinstance(noise, Generator):
        return GeneratorNoise(noise, num, x.device, x.dtype if x.is_floating_point() else torch.float32)
    what = f"is {kind_of(noise)}"
    raise UserError(f"noise: {what}; give Noise(seed, torch.arange({num})) or a torch.Generator")

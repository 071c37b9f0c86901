"""A model: an energy, a schedule and a sampler, whoever made them, and the units of the data.

    model = Model(energy, NoiseSchedule.log_snr(12), LevelSampler("mala", num_steps=20, step_size=0.1), event_shape=(2,))
    x = model.sample(1000, seed=0)

The energy f(y, t) lives in standardised coordinates, x = shift + scale u. Everything that takes or returns data here takes and
returns the data's units. Level t's density is that of the noisy data x_t in those units; level 0 has the initial noise alone.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from springwell.devices import free_memory, kept_tensors, out_of_memory, usable_device
from springwell.energy.base import EnergyFunction, at_level, gradient_operations
from springwell.energy.labelled import Labelled, class_shares
from springwell.energy.residual import LevelEnergy
from springwell.errors import DivergenceError, UnknownLogZError, UserError, did_you_mean, kind_of, whole_number
from springwell.generate import Sample, denoise, progressive
from springwell.integrate import Integrator
from springwell.level import STEPS_PER_JUMP, LevelSampler, check_parts
from springwell.likelihood.bracket import Bracket
from springwell.likelihood.quadrature import Normaliser, normaliser
from springwell.noise import Noise, Stream
from springwell.samplers import langevin
from springwell.samplers.checks import warn_if_collapsed
from springwell.schedule import NoiseSchedule
from springwell.shapes import as_tensor

VECTOR_BATCH = 1024
CPU_IMAGE_BATCH = 256
CPU_MEMORY = 2**30
TILE = 64
MIN_IMAGES = 8
# The noise at which images are classified, as a share of D^(1/2) times the data's standard deviation per pixel. It had the
# highest accuracy and the least nll on training images of MNIST among 0.05, 0.06, 0.07, 0.08, 0.09, 0.10 and 0.13.
CLASSIFYING_NOISE = 0.1
MOST_ATTEMPTS = 100
Array = Tensor | np.ndarray


class LogZ(NamedTuple):
    """log int exp f(scale_0 u, 0) du, u = x_0 in standardised coordinates; nats.

    Attributes:
        value: The estimate.
        lower: Its lower bound.
        upper: Its upper bound.
        standard_error: Of ``value``; by quadrature, an estimate of its error.
        verdict: ``ok``; what `springwell likelihood` had to say of its bracket; or ``claimed``, where there is none.
        levels: The same of every level t = 0 ... T-1; None where it is not known.
        claim: What an energy that knows its normaliser believes; None for other energies.

    Examples:
        >>> z = sw.load("checkerboard").log_z()
        >>> f"{z.value:.3f}", z.verdict
        ('7.976', 'ok')
    """

    value: float
    lower: float
    upper: float
    standard_error: float
    verdict: str = "ok"
    levels: tuple[float | None, ...] = ()
    claim: float | None = None

    @property
    def correction(self) -> float | None:
        """How much the estimate is above the claim."""
        return None if self.claim is None else self.value - self.claim


class Rejection(NamedTuple):
    """A way to draw from a density by draws of another one, some of which are kept.

    Attributes:
        proposal: The model to draw from.
        log_keep: x_0 in standardised coordinates ``[N, ...]`` -> log of the probability with which it is kept.
    """

    proposal: Model
    log_keep: Callable[[Tensor], Tensor]


def _units(
    shift: Array | None, scale: Array | None, event_shape: Sequence[int] | None, device: torch.device
) -> tuple[Tensor, Tensor]:
    """The shift and the scale of data, both of the shape of one sample."""
    known = {name: value for name, value in {"shift": shift, "scale": scale}.items() if value is not None}
    for name, value in known.items():
        if not isinstance(value, (Tensor, np.ndarray)):
            raise UserError(f"{name}: is {kind_of(value)}; give a tensor or an array of the shape of one sample")
    shapes = [tuple(value.shape) for value in known.values()]
    if event_shape is not None:
        if not isinstance(event_shape, (tuple, list, torch.Size)) or not event_shape:
            raise UserError(f"event_shape={event_shape!r}: is not a shape; give that of one sample, such as (2,)")
        shapes.append(tuple(whole_number("event_shape", length, 1) for length in event_shape))
    if not shapes:
        raise UserError("event_shape: is not given, and neither are shift and scale; give the shape of one sample")
    if len(set(shapes)) > 1:
        found = " and ".join(str(list(shape)) for shape in shapes)
        raise UserError(f"shift, scale and event_shape: have the shapes {found}; all need the shape of one sample")
    tensors = {name: as_tensor(value) for name, value in known.items()}
    device = next((value.device for value in tensors.values()), device)
    shift = tensors.get("shift", torch.zeros(shapes[0], device=device))
    scale = tensors.get("scale", torch.ones(shapes[0], device=device))
    if not bool((scale > 0).all()):
        raise UserError("scale: has values that are not positive; give the width of the data, above 0")
    return shift, scale


class Model:
    """A model that can be sampled and measured.

    Args:
        energy: f(y, t): any callable of y ``[N, ...]`` and levels t ``[N]`` that returns ``[N]``, +log density up to a constant
            in standardised coordinates.
        schedule: The noise levels.
        sampler: How y_t is drawn given x_{t+1} in generation.
        shift: ``[*event_shape]``: data are x = shift + scale u, u standardised. Default: 0.
        scale: ``[*event_shape]``. Default: 1.
        event_shape: Shape of one sample. Default: that of shift or scale.
        denoise: Whether samples have the initial noise taken off by one step to the posterior mean.

    Examples:
        >>> schedule = sw.NoiseSchedule.log_snr(10, high=7, low=-5)
        >>> def energy(y, t):  # exact, for standard normal data
        ...     return -y.square().sum(-1) / (2 * schedule.scale[t].float() ** 2)
        >>> sampler = sw.LevelSampler("mala", num_steps=5, step_size=0.5 * schedule.sigma[1:].float())
        >>> model = sw.Model(energy, schedule, sampler, event_shape=(2,))
        >>> model.sample(100, seed=0).shape
        torch.Size([100, 2])
    """

    iteration: int = 0
    """How long it was trained."""
    source: Path | None = None
    """The file it was loaded from."""
    sweeps: int = 0
    """Sweeps of every level after its first draw, for energies whose levels are not noisy versions of one another."""
    label: str = ""
    """The class that it was given; see :meth:`given`."""
    rejection: Rejection | None = None
    """How its samples are drawn if not from its own energy."""

    def __init__(
        self,
        energy: EnergyFunction,
        schedule: NoiseSchedule,
        sampler: LevelSampler,
        shift: Array | None = None,
        scale: Array | None = None,
        event_shape: tuple[int, ...] | None = None,
        denoise: bool = False,
    ):
        check_parts(energy, schedule, sampler)
        self.shift, self.scale = _units(shift, scale, event_shape, schedule.device)
        sampler.check(schedule)
        if isinstance(energy, torch.nn.Module):
            energy.eval()
        self.energy_function, self.schedule, self.sampler, self.denoise = energy, schedule, sampler, denoise
        self.metadata: dict[str, Any] = {}
        self.stored_log_z: Callable[[], LogZ | None] = lambda: None
        self._normaliser: Normaliser | None = None
        self._log_z: LogZ | None = None

    def __repr__(self) -> str:
        name, shape = self.metadata.get("name", "Model"), " x ".join(map(str, self.event_shape))
        parts = [f"{self.schedule.num_levels} levels", f"{'images' if len(self.event_shape) == 3 else 'vectors'} {shape}"]
        if isinstance(self.energy_function, torch.nn.Module):
            parts.append(f"{sum(p.numel() for p in self.energy_function.parameters()):,} parameters")
        steps = self.sampler.num_steps
        parts.append(f"{steps} MCMC steps per level" if steps else "no chains")
        parts += [f"iteration {self.iteration:,}"] * (self.iteration > 0) + [f"on {self.device}"] * (self.device.type != "cpu")
        return f"<springwell model {name}: {', '.join(parts)}>"

    @property
    def device(self) -> torch.device:
        return self.shift.device

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return tuple(self.shift.shape)

    @property
    def step_size(self) -> Tensor:
        """``[T]``: the step size of the chains of every level."""
        return self.sampler.steps(torch.arange(self.schedule.num_levels, device=self.device))

    def to(self, device: torch.device | str) -> Model:
        """Moves the model in place; ``auto`` is the best device there is.

        Examples:
            >>> sw.load("checkerboard").to("cpu").device
            device(type='cpu')
        """
        device = usable_device(device)
        self.schedule, self.sampler = self.schedule.to(device), self.sampler.to(device)
        self.shift, self.scale = self.shift.to(device), self.scale.to(device)
        if isinstance(self.energy_function, torch.nn.Module):
            self.energy_function = self.energy_function.to(device)
        return self

    def save(self, folder: Path | str) -> None:
        """Writes the model to a folder, from which ``springwell.load`` reads it; see :func:`springwell.save`.

        Examples:
            >>> sw.load("checkerboard").save("mine")
            >>> sw.load("mine").event_shape
            (2,)
        """
        import springwell

        springwell.save(self, folder)

    def push_to_hub(self, repository: str, **options: Any) -> str:
        """Uploads the model to the Hugging Face hub; see :func:`springwell.push_to_hub`.

        Examples:
            >>> sw.load("checkerboard").push_to_hub("owner/name")  # doctest: +SKIP
        """
        import springwell

        return springwell.push_to_hub(self, repository, **options)

    def tensors(self) -> dict[str, Tensor]:
        """What the model is, by name: its weights, step sizes and standardisation."""
        energy = self.energy_function
        weights = energy.state_dict() if isinstance(energy, torch.nn.Module) else {}
        named = {f"energy.{name}": tensor for name, tensor in weights.items()}
        return {**named, "step_size": self.step_size, "shift": self.shift, "scale": self.scale}

    def fingerprint(self) -> str:
        """The SHA-256 of its tensors, by which files about a model know it again.

        An energy without weights, such as a function, is known by its values at fixed places, to five digits.
        """
        digest = hashlib.sha256()
        if not isinstance(self.energy_function, torch.nn.Module):
            probes = torch.arange(TILE, device=self.device)
            y, t = Noise(0, probes, Stream.PROBES).normal(*self.event_shape), probes % self.schedule.num_levels
            with torch.no_grad():
                digest.update(" ".join(f"{f:.5g}" for f in self.energy_function(y, t).tolist()).encode())
        for name, tensor in sorted(self.tensors().items()):
            digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    # ----------------------------------------------------------------------------------------------------------- classes

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes that it knows; empty for most models."""
        return getattr(self.energy_function, "classes", ())

    def label_of(self, label: int | str) -> int:
        """The number of a class, by its name or its number."""
        classes = self.classes
        if not classes:
            raise UserError(f"label={label!r}: this model knows no classes; use one that was trained with classes=('all',)")
        if str(label) in classes:
            return classes.index(str(label))
        if isinstance(label, int) and not isinstance(label, bool) and 0 <= label < len(classes):
            return label
        raise UserError(f"label={label!r}: unknown{did_you_mean(str(label), classes)}; the classes are {', '.join(classes)}")

    def given(
        self, label: int | str, guidance: float = 1.0, sweeps: int = 0, share: float | None = None, rejection: bool = False
    ) -> Model:
        """The model of one class, an ordinary model that shares the weights.

            model.given(3).sample(64)
            model.given("sneaker", guidance=2, sweeps=4).sample(64, num_steps=5)
            model.given("sneaker", guidance=2, rejection=True).sample(64)

        A guided model has the density p(x) p(c | x)^w; see :mod:`springwell.energy.labelled`. Chains with a Metropolis test
        (``num_steps``) and sweeps lead to it; without them it is drawn by classifier-free guidance, which has another law. With
        ``rejection`` the class is drawn, and every draw is kept with probability p(c | x)^(w - 1), by :meth:`classify`, or else
        drawn again: the guided law itself, as far as the class is drawn from its own law.

        Args:
            label: The class, by its name or its number.
            guidance: w: 0 for all data, 1 for the class, more for what tells the class from others.
            sweeps: Sweeps of every level, in sampling.
            share: The class's share of the data. Default: as large as that of any other.
            rejection: Whether samples are drawn by rejection; for w of at least 1.

        Examples:
            >>> model = sw.load("mnist-cond")
            >>> model.given(3).sample(2, evaluations=6).shape
            torch.Size([2, 1, 28, 28])
        """
        if not isinstance(guidance, (int, float)) or not math.isfinite(guidance):
            raise UserError(f"guidance={guidance!r}: must be a finite number; 1 is the class itself")
        if rejection and guidance < 1:
            raise UserError(f"guidance={guidance:g}: rejection needs at least 1; leave one of them out")
        number, old = self.label_of(label), self.energy_function
        assert isinstance(old, LevelEnergy)
        num = len(self.classes)
        share = 1 / num if share is None else share
        if not 0 < share < 1:
            raise UserError(f"share={share!r}: must be between 0 and 1")
        energy = LevelEnergy(Labelled(old.energy, number, float(guidance), share, num), self.schedule).to(self.device)
        model = Model(energy, self.schedule, self.sampler, self.shift, self.scale, denoise=self.denoise)
        model.iteration, model.source, model.metadata = self.iteration, self.source, dict(self.metadata)
        model.label, model.sweeps = self.classes[number], whole_number("sweeps", sweeps, 0)
        if rejection and guidance > 1:
            prior = class_shares(number, share, num)

            def log_keep(u: Tensor) -> Tensor:
                return (guidance - 1) * self.classify(self.shift + self.scale * u, prior)[:, number]

            model.rejection = Rejection(self.given(number, sweeps=sweeps), log_keep)
        return model

    @torch.no_grad()
    def class_log_prob(self, x: Array, level: int = 0, draws: int = 0, seed: int = 0) -> Tensor:
        """log p(x | c) ``[N, C]`` (nats, float64) of data ``[N, ...]``, as the energies of all classes believe it.

        It takes one pass per class and draw.

        Args:
            x: Data, in their units.
            level: Another level t gives the log-densities of x_t, standardised, in place of those of x.
            draws: How often x is given the noise of that level; log-densities are means over the draws. With 0, and at level
                0, it is given none: x_t is abar_t x.
            seed: Of that noise.

        Examples:
            >>> model = sw.load("mnist-cond")
            >>> model.class_log_prob(torch.zeros(2, 1, 28, 28)).shape
            torch.Size([2, 10])
        """
        u, energy, level = self.standardised(x), self.energy_function, self._level(level)
        self.label_of(0)
        draws = whole_number("draws", draws, 0) if level else 0
        scale, a = self.schedule.scale[level].to(u.dtype), self.schedule.a_cum[level].to(u.dtype) if level else 1.0
        volume = -u[0].numel() * self.schedule.scale[level].log() + (self.scale.double().log().sum() if level == 0 else 0.0)
        parts = []
        for index in torch.arange(len(u)).split(self.automatic_batch()):
            part, t = u[index], torch.full((len(index),), level, device=u.device)
            noise, found = self.noise(seed, index, Stream.CLASSES), []
            for _ in range(max(draws, 1)):
                y = scale * (self.schedule.diffuse(part, t, noise) if draws else a * part)
                labels = (torch.full_like(t, c) for c in range(len(self.classes)))
                found.append(torch.stack([energy(y, t, label=label) for label in labels], -1).double())  # type: ignore[call-arg]
            parts.append(torch.stack(found).mean(0))
        return torch.cat(parts) - volume

    @property
    def classifying_level(self) -> int:
        """The level by which :meth:`classify` tells classes apart unless it is given one.

        It is 0 for vectors. For images it is the level whose noise is nearest to a tenth of D^(1/2) times the data's standard
        deviation per pixel: the width at which a kernel density estimate still sees differences of shape.

        Examples:
            >>> model = sw.load("mnist-cond")
            >>> schedule, level = model.schedule, model.classifying_level
            >>> f"{float(schedule.sigma_cum[level] / schedule.a_cum[level]):.2f}"  # of the data, whose pixels are -1 ... 1
            '1.50'
        """
        if len(self.event_shape) == 1:
            return 0
        std = float(getattr(getattr(self.energy_function, "energy", None), "data_std", 1.0))
        noise = (self.schedule.sigma_cum / self.schedule.a_cum)[:-1]
        wanted = CLASSIFYING_NOISE * std * math.prod(self.event_shape) ** 0.5
        return int((noise / wanted).log().abs().argmin())

    def classify(
        self, x: Array, prior: Sequence[float] | None = None, level: int | None = None, draws: int = 0, seed: int = 0
    ) -> Tensor:
        """log p(c | x) ``[N, C]`` (nats, float64) by Bayes' rule from the densities of the classes.

        Args:
            x: Data ``[N, ...]``.
            prior: Shares of the classes. Default: equal ones.
            level: The level whose densities tell classes apart; see :mod:`springwell.evaluation.classifier`. Default:
                :attr:`classifying_level`.
            draws: Draws of that level's noise; see :meth:`class_log_prob`.
            seed: Of that noise.

        Examples:
            >>> model = sw.load("mnist-cond")
            >>> three = model.given(3).sample(4, evaluations=12)
            >>> model.classify(three).exp().sum(-1).round(decimals=6)  # log p(c | x) is [4, 10]
            tensor([1., 1., 1., 1.], dtype=torch.float64)
        """
        log_prob = self.class_log_prob(x, self.classifying_level if level is None else level, draws, seed)
        if prior is not None:
            shares = torch.as_tensor(prior, dtype=torch.float64)
            if shares.shape != (len(self.classes),) or not bool((shares > 0).all()):
                raise UserError(f"prior={prior!r}: give {len(self.classes)} positive shares, one per class")
            log_prob = log_prob + (shares / shares.sum()).log().to(log_prob.device)
        return log_prob.log_softmax(-1)

    # ---------------------------------------------------------------------------------------------------------- sampling

    def noise(self, seed: int | Tensor, index: Tensor, stream: int | Tensor = Stream.SAMPLING) -> Noise:
        """The randomness of the samples ``index`` of ``seed``.

        Examples:
            >>> sw.load("checkerboard").noise(0, torch.arange(3)).normal(2).shape
            torch.Size([3, 2])
        """
        seed = seed.to(self.device) if isinstance(seed, Tensor) else whole_number("seed", seed)
        stream = stream.to(self.device) if isinstance(stream, Tensor) else int(stream)
        return Noise(seed, index.to(self.device), stream, ahead=STEPS_PER_JUMP, dtype=self.shift.dtype)

    def level_sampler(self, num_steps: int | None = None, noise_scale: float | None = None) -> LevelSampler:
        """The model's sampler, with another number of steps or another factor on the Langevin noise.

        Args:
            num_steps: MCMC steps per level, if not the model's own.
            noise_scale: Factor on the Langevin noise, if not the model's own.

        Examples:
            >>> sw.load("checkerboard").level_sampler(num_steps=5).num_steps
            5
        """
        sampler, kernel = self.sampler, self.sampler.made
        if noise_scale is not None:
            if kernel.tested and noise_scale != 1:
                raise UserError(f"noise_scale={noise_scale:g}: a Metropolis test needs 1, and this model is sampled with one")
            sampler = sampler if kernel.tested else replace(sampler, kernel=langevin(noise_scale))
        if num_steps is not None:
            sampler = replace(sampler, num_steps=num_steps)
        sampler.check(self.schedule)
        return sampler

    def trajectory(
        self, index: Tensor, seed: int = 0, num_steps: int | None = None, noise_scale: float | None = None
    ) -> Iterator[Sample]:
        """Yields (t, x_t, acceptance) from x_T down to x_0 for the samples ``index`` ``[N]``; x_t ``[N, ...]`` is standardised.

        Examples:
            >>> for t, x_t, acceptance in sw.load("checkerboard").trajectory(torch.arange(3)):
            ...     print(t, tuple(x_t.shape))
            4 (3, 2)
            3 (3, 2)
            2 (3, 2)
            1 (3, 2)
            0 (3, 2)
        """
        return self._trajectory(index, seed, self.level_sampler(num_steps, noise_scale))

    def _trajectory(
        self, index: Tensor, seed: int, sampler: LevelSampler | Integrator, stream: int = Stream.SAMPLING
    ) -> Iterator[Sample]:
        noise = self.noise(seed, index, stream)
        if isinstance(sampler, Integrator):
            return sampler.trajectory(self.energy_function, self.schedule, self.event_shape, noise)
        return progressive(self.energy_function, self.schedule, sampler, self.event_shape, noise, self.sweeps)

    def automatic_batch(self) -> int:
        """The default number of parallel chains: as many as fit in half the memory that is free."""
        if len(self.event_shape) == 1:
            return VECTOR_BATCH
        free = free_memory(self.device)
        memory = CPU_MEMORY if free is None else free // 2
        fit = max(1, memory // (2 * self._bytes_per_chain()))
        return min(fit, CPU_IMAGE_BATCH) if self.device.type == "cpu" else fit

    def _bytes_per_chain(self) -> int:
        """What the gradient of f at one more sample keeps in memory."""

        def kept(rows: int) -> int:
            y = self.shift.new_zeros(rows, *self.event_shape).requires_grad_()
            f = at_level(self.energy_function, torch.zeros(rows, dtype=torch.long, device=self.device))
            return sum(tensor.untyped_storage().nbytes() for tensor in kept_tensors(lambda: f(y)))

        return max(1, kept(2) - kept(1))

    def gradient_operations(self) -> int:
        """Multiplications and additions of one gradient of f, for one sample."""
        return gradient_operations(self.energy_function, self.event_shape, self.device)

    def sample_batches(
        self,
        num: int,
        seed: int = 0,
        batch: int | None = None,
        start: int = 0,
        sampler: LevelSampler | Integrator | None = None,
        watch: Callable[[int, Sample], None] | None = None,
    ) -> Iterator[Tensor]:
        """The samples ``start`` ... ``num - 1`` in batches, halved as often as memory runs out.

        Vectors are computed in whole tiles of 64 and cut, so that a sample's value never depends on ``num``.

        Args:
            num: Where to end.
            seed: The seed.
            batch: The number of parallel chains; None for as many as fit.
            start: The first sample.
            sampler: How levels are drawn, if not as the model does; see :meth:`level_sampler` and :class:`Integrator`.
            watch: Receives every level: the index of the batch's first sample, and x_t of the batch in the data's units.

        Examples:
            >>> [len(x) for x in sw.load("checkerboard").sample_batches(150, seed=0, batch=64)]
            [64, 64, 22]
        """
        batch = self.automatic_batch() if batch is None else batch
        num, batch = whole_number("num", num, 1), whole_number("batch", batch, 1)
        sampler = sampler or self.sampler
        while start < num:
            index = torch.arange(start, start + min(batch, num - start))
            try:
                x = self._sample_batch(index, seed, sampler, watch)
            except RuntimeError as error:
                if batch == 1 or not out_of_memory(error):
                    raise
                batch //= 2
                continue
            yield x
            start += len(index)

    # Chains differentiate f, which a caller's inference mode would forbid.
    @torch.inference_mode(False)
    def _sample_batch(
        self,
        index: Tensor,
        seed: int,
        sampler: LevelSampler | Integrator,
        watch: Callable[[int, Sample], None] | None,
    ) -> Tensor:
        """The samples ``index``."""
        draw = self._draw if self.rejection is None else self._draw_kept
        return self.finished(draw(index, seed, sampler, watch))[: len(index)]

    def _draw(
        self,
        index: Tensor,
        seed: int,
        sampler: LevelSampler | Integrator,
        watch: Callable[[int, Sample], None] | None,
        stream: int = Stream.SAMPLING,
    ) -> Tensor:
        """x_0 of the samples ``index``, in standardised coordinates, as the first of :meth:`num_rows`."""
        first, wanted = int(index[0]), len(index)
        u, worst = None, torch.zeros((), dtype=torch.long, device=self.device)
        accepted = torch.ones(self.schedule.num_levels + 1, device=self.device)
        for t, u, acceptance in self._trajectory(self._filled(index), seed, sampler, stream):
            worst = torch.maximum(worst, (~torch.isfinite(u)).any() * (t + 1))
            accepted[t] = acceptance.mean()
            if watch is not None:
                watch(first, Sample(t, (self.shift + self.scale * u)[:wanted], acceptance[:wanted]))
        assert u is not None
        if int(worst):
            where = f"sampling diverged at level {int(worst) - 1} (values are not finite)"
            raise DivergenceError(f"{where}; train longer, or sample with fewer or smaller steps")
        if isinstance(sampler, LevelSampler) and sampler.tested:
            warn_if_collapsed(accepted[:-1], sampler.num_steps, torch.arange(self.schedule.num_levels, device=self.device))
        return u

    def _draw_kept(
        self,
        index: Tensor,
        seed: int,
        sampler: LevelSampler | Integrator,
        watch: Callable[[int, Sample], None] | None,
    ) -> Tensor:
        """The same by rejection: each sample is the first of its own draws that is kept."""
        assert self.rejection is not None
        proposal, log_keep = self.rejection
        found = self.shift.new_empty(len(index), *self.event_shape)
        left = torch.arange(len(index))
        for attempt in range(MOST_ATTEMPTS):
            u = proposal._draw(index[left], seed, sampler, None if attempt else watch, Stream.SAMPLING + attempt)
            uniform = self.noise(seed, index[left], Stream.KEEPING + attempt).uniform()
            keep = (uniform.log() <= log_keep(u)[: len(left)]).cpu()
            found[left[keep]] = u[: len(left)][keep]
            left = left[~keep]
            if not len(left):
                return found[self._filled(torch.arange(len(index)))]
        kept = f"{len(index) - len(left)} of {len(index)} samples after {MOST_ATTEMPTS} draws of the class for each"
        raise UserError(f"rejection: kept {kept}; use less guidance, or chains with sweeps")

    def _filled(self, index: Tensor) -> Tensor:
        """An index ``[num_rows]`` that begins with ``index`` and repeats its last."""
        return torch.cat([index, index[-1:].expand(self.num_rows(len(index)) - len(index))])

    def num_rows(self, wanted: int) -> int:
        """How many chains to run for ``wanted`` samples, so that their rounding does not depend on that number.

        Products and convolutions of very few rows take another path, with other rounding; a full tile does not.
        """
        return math.ceil(wanted / TILE) * TILE if len(self.event_shape) == 1 else max(wanted, MIN_IMAGES)

    def finished(self, u: Tensor) -> Tensor:
        """Samples in the data's units of x_0 in standardised coordinates: denoised, where the model does that."""
        return self.shift + self.scale * (denoise(self.energy_function, self.schedule, u) if self.denoise else u)

    def sample(
        self,
        num: int,
        seed: int = 0,
        batch: int | None = None,
        num_steps: int | None = None,
        noise_scale: float | None = None,
        evaluations: int | None = None,
    ) -> Tensor:
        """Samples ``[num, *event_shape]`` by progressive sampling (Alg. 2). Sample i depends on (seed, i) alone.

        Args:
            num: How many.
            seed: The seed.
            batch: The number of parallel chains; None for as many as fit.
            num_steps: MCMC steps per level, if not the model's own.
            noise_scale: Factor on the Langevin noise, if not the model's own.
            evaluations: Gradients per sample of an integrator of second order, in place of draws level by level; 18 is a good
                number for models with many levels.

        Examples:
            >>> model = sw.load("checkerboard")
            >>> bool(torch.equal(model.sample(5, seed=1), model.sample(9, seed=1)[:5]))
            True
        """
        sampler = self.level_sampler(num_steps, noise_scale) if evaluations is None else Integrator(evaluations)
        return torch.cat(list(self.sample_batches(num, seed, batch, sampler=sampler)))

    # ----------------------------------------------------------------------------------------------------------- density

    def standardised(self, x: Array, name: str = "x") -> Tensor:
        """u = (x - shift) / scale of data ``[N, *event_shape]``, checked."""
        if not isinstance(x, (Tensor, np.ndarray)):
            raise UserError(f"{name}: is {kind_of(x)}; give a tensor or an array [N, ...]")
        if isinstance(x, np.ndarray) and x.dtype.kind not in "fiub":
            raise UserError(f"{name}: is an array of {x.dtype}; give numbers")
        x = as_tensor(x)
        if tuple(x.shape[1:]) != self.event_shape or x.ndim == 0:
            raise UserError(f"{name}: has shape {list(x.shape)}; needs [N, {', '.join(map(str, self.event_shape))}]")
        if not (x.is_floating_point() or x.dtype in (torch.int16, torch.int32, torch.int64)):
            raise UserError(f"{name}: is {x.dtype}; give floats in the data's units (images: bytes / 127.5 - 1)")
        return (x.to(self.shift) - self.shift) / self.scale

    def f(self, y: Tensor, t: Tensor | int = 0) -> Tensor:
        """f(y, t) as the energy returns it, at y_t in standardised coordinates. For data, use :meth:`energy`."""
        if not isinstance(y, Tensor):
            raise UserError(f"f: y is {kind_of(y)}; give a tensor [N, ...]")
        if tuple(y.shape[1:]) != self.event_shape:
            raise UserError(f"f: y has shape {list(y.shape)}; needs [N, {', '.join(map(str, self.event_shape))}]")
        if not isinstance(t, Tensor):
            t = torch.full((len(y),), self._level(t), device=y.device)
        return self.energy_function(y, t)

    def _level(self, level: int) -> int:
        level = whole_number("level", level)
        if not 0 <= level < self.schedule.num_levels:
            raise UserError(f"level={level}: out of range; this model has levels 0 ... {self.schedule.num_levels - 1}")
        return level

    def energy(self, x: Array, level: int = 0) -> Tensor:
        """The energy -f ``[N]`` of x_t = ``x`` ``[N, ...]`` at a level, in the data's units: -log density up to a constant.

        It is differentiable with respect to ``x`` if that requires gradients.

        Examples:
            >>> model = sw.load("checkerboard")
            >>> inside, outside = model.energy(torch.tensor([[0.5, 0.5], [0.5, -0.5]])).tolist()
            >>> inside < outside  # the first point is on a filled square
            True
        """
        return -self._level_f(x, level)

    def score(self, x: Array, level: int = 0) -> Tensor:
        """The score, the gradient of the log-density of x_t at ``x`` ``[N, ...]``, in the data's units; needs no normaliser.

        Examples:
            >>> sw.load("checkerboard").score(torch.zeros(3, 2)).shape
            torch.Size([3, 2])
        """
        self.standardised(x)
        differentiable = isinstance(x, Tensor) and x.requires_grad and torch.is_grad_enabled()
        with torch.enable_grad(), torch.inference_mode(False):
            x = as_tensor(x).to(self.shift)
            x = x if differentiable else x.detach().clone().requires_grad_()
            (grad,) = torch.autograd.grad(self._level_f(x, level).sum(), x, create_graph=differentiable)
        return grad

    def _level_f(self, x: Array, level: int) -> Tensor:
        """f(scale_t u, t) of data x in their units, with gradients if x has them."""
        u, t = self.standardised(x), self._level(level)
        with torch.set_grad_enabled(torch.is_grad_enabled() and u.requires_grad):
            return self._scaled_f(u, t)

    @torch.no_grad()
    def level_f(self, x_t: Tensor, t: int = 0, batch: int | None = None) -> Tensor:
        """f(scale_t x_t, t) ``[N]``, float64: the log-density of x_t, in standardised coordinates, up to its log Z."""
        return self._scaled_f(x_t, t, batch).double()

    def _scaled_f(self, x_t: Tensor, t: int, batch: int | None = None) -> Tensor:
        """f(scale_t x_t, t) ``[N]``, in batches."""
        scale = self.schedule.scale[t].to(x_t.dtype)
        return torch.cat([self.f(scale * part, t) for part in x_t.split(batch or self.automatic_batch())])

    def normaliser(self) -> Normaliser:
        """log Z_0 of the density of x_0 in standardised coordinates, by quadrature; in two dimensions only.

        Examples:
            >>> sw.load("checkerboard").normaliser().error < 1e-2
            True
        """
        if self.event_shape != (2,):
            raise UserError(f"quadrature in shape {list(self.event_shape)}: in 2 dimensions only; use model.log_z")
        if self._normaliser is None:
            self._normaliser = normaliser(self.level_f, self.device)
        return self._normaliser

    def log_z(self) -> LogZ:
        """The partition function with its uncertainty: quadrature in the plane, else what `springwell likelihood` stored.

        An energy that knows its normaliser has a claim beside it, which is all there is where nothing was measured.

        Examples:
            >>> z = sw.load("checkerboard").log_z()
            >>> z.lower <= z.value <= z.upper
            True
        """
        if self._log_z is None and self.event_shape == (2,):
            z = self.normaliser()
            self._log_z = LogZ(z.log_z, z.log_z - z.error, z.log_z + z.error, z.error)
        if self._log_z is None:
            self._log_z = self.stored_log_z()
        claim = self.claimed_log_z()
        if claim is not None:
            unknown = LogZ(claim, math.nan, math.nan, math.nan, "claimed")
            self._log_z = (self._log_z or unknown)._replace(claim=claim)
        if self._log_z is None:
            what = "springwell.likelihood.bracket(lambda x: -model.energy(x), {'samples': model.sample(512)})"
            how = f"measure it, as in model.use_log_z({what}); model.energy and model.score need none"
            raise UnknownLogZError(f"log-density of shape {list(self.event_shape)}: log Z is not known; {how}")
        return self._log_z

    def claimed_log_z(self) -> float | None:
        """What an energy that knows its normaliser believes of log Z; None for other energies."""
        claim = getattr(self.energy_function, "log_z", None)
        # int exp f(y_0, 0) dy_0 is exp(claim), and y_0 = scale_0 u.
        return None if claim is None else claim - math.prod(self.event_shape) * math.log(float(self.schedule.scale[0]))

    def use_log_z(self, log_z: LogZ | Bracket | float) -> None:
        """Takes log Z from elsewhere.

            model.use_log_z(bracket(lambda x: -model.energy(x), {"samples": model.sample(512)}))

        Args:
            log_z: What :func:`springwell.likelihood.bracket` found, or a number: log int exp(-energy(x)) dx at level 0, in the
                data's units. Or a LogZ, which is in standardised coordinates, as :meth:`log_z` returns it.

        Examples:
            >>> model = sw.load("digits")
            >>> model.use_log_z(-100.0)
            >>> model.log_prob(model.sample(2, seed=0)).shape
            torch.Size([2])
        """
        if not isinstance(log_z, LogZ):
            if isinstance(log_z, Bracket):
                (value, error, _), lower, upper = log_z.quoted, log_z.lower.value, log_z.highest.value
                log_z = LogZ(value, lower, upper, error, log_z.verdict)
            elif isinstance(log_z, (int, float)):
                log_z = LogZ(float(log_z), math.nan, math.nan, math.nan)
            else:
                raise UserError(f"log_z: is {kind_of(log_z)}; give a number, a Bracket or a LogZ")
            # dx = scale du.
            volume = float(self.scale.double().log().sum())
            log_z = log_z._replace(value=log_z.value - volume, lower=log_z.lower - volume, upper=log_z.upper - volume)
        self._log_z = log_z

    def log_prob(self, x: Array) -> Tensor:
        r"""Log-density ``[N]`` (nats, float64) of the data after the schedule's initial noise, at ``x`` ``[N, ...]``.

        All values share the error of log Z, which :meth:`log_z` returns. A bracket that is not ``ok`` gives a warning. The
        log-density is differentiable with respect to ``x`` if that requires gradients.

        Examples:
            >>> log_p = sw.load("checkerboard").log_prob(torch.tensor([[0.5, 0.5]]))
            >>> log_p.shape, log_p.dtype  # about -log 8, eight squares of area 1
            (torch.Size([1]), torch.float64)
        """
        f = self._level_f(x, 0).double()
        log_z = self.log_z()
        if log_z.verdict != "ok":
            bounds = f"log Z is in {log_z.lower:.4g} ... {log_z.upper:.4g}, verdict {log_z.verdict}"
            claimed = "log Z is what the model believes, and no bracket has verified it"
            what = claimed if log_z.verdict == "claimed" else bounds
            warnings.warn(f"log_prob: {what}; see `springwell likelihood`", RuntimeWarning, stacklevel=2)
        return f - log_z.value - self.scale.double().log().sum()

"""A trained model: an energy with its noise schedule and its step sizes.

model = springwell.load("runs/checkerboard")
x = model.sample(1000, seed=0)
log_p = model.log_density(x)
"""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from huggingface_hub import ModelHubMixin
from torch import Tensor

from springwell.app.config import STEPS_PER_JUMP, Config, ImageConfig
from springwell.data.source import DataSource, open_data
from springwell.devices import free_memory, kept_tensors
from springwell.energy import EnergyResNet, EnergyUNet, FourierMLP, ImageEnergy, ScaledEnergy
from springwell.energy.base import at_level
from springwell.errors import DivergenceError, UserError
from springwell.generate import Sample, denoise, progressive
from springwell.level import Chains
from springwell.likelihood.quadrature import Normaliser, normaliser
from springwell.noise import Noise
from springwell.progress import Reporter
from springwell.samplers import make_kernel
from springwell.samplers.checks import warn_if_collapsed
from springwell.schedule import NoiseSchedule
from springwell.store.untrusted import read_regular

LIKELIHOOD = "likelihood.json"
MAX_LIKELIHOOD = 2**26
SAMPLING_STREAM = 2**40
VECTOR_BATCH = 1024
CPU_IMAGE_BATCH = 256
CPU_MEMORY = 2**30
MIN_ROWS = 16
MIN_IMAGES = 8


def build_schedule(config: Config) -> NoiseSchedule:
    c = config.schedule
    extra = {} if c.initial_noise is None else {"initial_noise": c.initial_noise}
    if c.schedule == "t6":
        return NoiseSchedule.t6(c.num_levels, **extra)
    if c.schedule == "linear":
        return NoiseSchedule.linear(c.num_levels, top_spring=c.top_spring, **extra)
    if c.schedule == "log-snr":
        return NoiseSchedule.log_snr(c.num_levels, *c.log_snr, top_spring=c.top_spring, **extra)
    if c.schedule == "marginal":
        return NoiseSchedule.marginal(**extra)
    return NoiseSchedule.from_sigmas(c.sigmas, top_spring=c.top_spring, **extra)


def build_energy(config: Config, schedule: NoiseSchedule, event_shape: tuple[int, ...]) -> ScaledEnergy:
    """The untrained energy; its weights follow from the seed and the caller's generator is left alone."""
    c = config.network
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(config.training.seed)
        network: FourierMLP | ImageEnergy
        if c.network != "mlp":
            if len(event_shape) != 3:
                raise UserError(
                    f"--network {c.network}: takes images, but --data {config.data} has shape {list(event_shape)}; use mlp"
                )
            channels, height, width = event_shape
            size = (channels, c.width, c.multipliers, c.num_blocks, c.unshuffle)
            if c.network == "unet":
                network = EnergyUNet(*size, c.dense_units, (height, width))
            else:
                network = EnergyResNet(*size, c.spectral_norm)
            network.check_size(height, width)
        else:
            if len(event_shape) != 1:
                raise UserError(
                    f"--network mlp: takes vectors, but --data {config.data} has shape {list(event_shape)}; use resnet or unet"
                )
            network = FourierMLP(event_shape[0], schedule.num_levels, c.width, c.depth, c.num_features, c.bandwidths)
    return ScaledEnergy(network, schedule, c.output_scale, c.base_precision)


def initial_step_size(config: Config, schedule: NoiseSchedule) -> Tensor:
    """``[T]``, float32."""
    fraction = config.sampler.step_fraction
    if fraction is None:
        return schedule.langevin_step.float()
    return (fraction * schedule.sigma[1:]).float()


def model_tensors(energy: torch.nn.Module, step_size: Tensor, shift: Tensor, scale: Tensor) -> dict[str, Tensor]:
    """What a model is, by name: its weights, step sizes and standardisation."""
    weights = {f"energy.{name}": tensor for name, tensor in energy.state_dict().items()}
    return {**weights, "step_size": step_size, "shift": shift, "scale": scale}


class LogZ(NamedTuple):
    """log int exp f(scale_0 u, 0) du, u = x_0 in standardised coordinates; nats.

    Attributes:
        value: The estimate.
        lower: Its lower bound.
        upper: Its upper bound.
        standard_error: Of ``value``; by quadrature, an estimate of its error.
        verdict: ``ok``, or what `springwell likelihood` had to say of its bracket.
        levels: The same of every level t = 0 ... T-1; None where it is not known.
    """

    value: float
    lower: float
    upper: float
    standard_error: float
    verdict: str = "ok"
    levels: tuple[float | None, ...] = ()


class Model(ModelHubMixin, library_name="springwell", license="mit", tags=["energy-based-model"]):
    """A trained model, ready to be sampled and measured.

    ``save_pretrained(folder)``, ``push_to_hub("owner/name")`` and ``from_pretrained(...)`` are those of huggingface_hub; what
    they write and read are the files of a finished run.

    Args:
        config: What it was trained with.
        schedule: The noise levels.
        energy: f(y, t), in standardised coordinates.
        step_size: ``[T]``: step sizes of the chains.
        shift: Data are x = shift + scale * u, u standardised.
        scale: See ``shift``.
        iteration: How long it was trained.
        source: Where it was loaded from.
    """

    def __init__(
        self,
        config: Config,
        schedule: NoiseSchedule,
        energy: ScaledEnergy,
        step_size: Tensor,
        shift: Tensor,
        scale: Tensor,
        iteration: int = 0,
        source: Path | None = None,
    ):
        self.config, self.schedule, self.energy, self.step_size = config, schedule, energy.eval(), step_size
        self.shift, self.scale, self.iteration, self.source = shift, scale, iteration, source
        self._normaliser: Normaliser | None = None
        self._log_z: LogZ | None = None

    @property
    def device(self) -> torch.device:
        return self.step_size.device

    @property
    def event_shape(self) -> tuple[int, ...]:
        return tuple(self.shift.shape)

    def to(self, device: torch.device | str) -> Model:
        """Moves the model in place."""
        self.schedule, self.energy = self.schedule.to(device), self.energy.to(device)
        self.step_size, self.shift, self.scale = self.step_size.to(device), self.shift.to(device), self.scale.to(device)
        return self

    def fingerprint(self) -> str:
        """The SHA-256 of its tensors, by which files about a model know it again."""
        digest = hashlib.sha256()
        for name, tensor in sorted(model_tensors(self.energy, self.step_size, self.shift, self.scale).items()):
            digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def open_data(self, images: ImageConfig | None = None, reporter: Reporter | None = None) -> DataSource:
        """The data that it was trained on, read as ``images`` says instead of as in training."""
        data = open_data(self.config.data, images or self.config.images, reporter)
        if data.event_shape != self.event_shape:
            shapes = f"{list(data.event_shape)}, the model's {list(self.event_shape)}"
            raise UserError(f"--data {self.config.data}: its samples have shape {shapes}; restore the data it was trained on")
        return data

    def f(self, y: Tensor, t: Tensor | int = 0) -> Tensor:
        """The network's f(y, t): +log density of y_t up to a constant, in standardised coordinates."""
        if tuple(y.shape[1:]) != self.event_shape:
            raise UserError(f"f: y has shape {list(y.shape)}; needs [N, {', '.join(map(str, self.event_shape))}]")
        if isinstance(t, int):
            if not 0 <= t < self.schedule.num_levels:
                raise UserError(f"level {t}: out of range; this model has levels 0 ... {self.schedule.num_levels - 1}")
            t = torch.full((len(y),), t, device=y.device)
        return self.energy(y, t)

    def trajectory(
        self, index: Tensor, seed: int = 0, num_steps: int | None = None, noise_scale: float | None = None
    ) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yields (t, x_t, acceptance) from x_T down to x_0 for the samples ``index``, in standardised coordinates."""
        chains = self.chains(num_steps, noise_scale)
        return progressive(self.energy, self.schedule, chains, self.event_shape, self.noise(seed, index))

    def noise(self, seed: int | Tensor, index: Tensor, stream: int | Tensor = SAMPLING_STREAM) -> Noise:
        """The randomness of the samples ``index`` of ``seed``."""
        seed, stream = (value.to(self.device) if isinstance(value, Tensor) else value for value in (seed, stream))
        return Noise(seed, index.to(self.device), stream, ahead=STEPS_PER_JUMP)

    def chains(self, num_steps: int | None = None, noise_scale: float | None = None) -> Chains:
        """How the model samples a level.

        Args:
            num_steps: MCMC steps, if not the run's own.
            noise_scale: Factor on the Langevin noise, if not the run's own.
        """
        sampler = self.config.sampler
        num_steps = self.config.effective_sample_steps if num_steps is None else num_steps
        if num_steps < 0 or (num_steps == 0 and not bool(self.schedule.spring.all())):
            raise UserError(f"steps {num_steps}: needs at least 1; only models with every spring can be sampled with 0")
        noise_scale = sampler.noise_scale if noise_scale is None else noise_scale
        if not 0 <= noise_scale <= 1:
            raise UserError(f"noise scale {noise_scale}: out of range; use a value in [0, 1]")
        if noise_scale != 1 and sampler.kernel != "langevin":
            raise UserError(f"noise scale {noise_scale}: a Metropolis test needs 1; this model is sampled by {sampler.kernel}")
        jumps, denoised = self.config.effective_sample_jumps, sampler.chain_start == "denoised"
        kernel = make_kernel("mala" if sampler.kernel == "none" else sampler.kernel, sampler.num_leapfrog)
        return Chains(kernel, num_steps, self.step_size, jumps, noise_scale, denoised)

    def automatic_batch(self) -> int:
        """How many chains run side by side if nobody says: as many as fit in half the memory that is free."""
        if len(self.event_shape) == 1:
            return VECTOR_BATCH
        free = free_memory(self.device)
        memory = CPU_MEMORY if free is None else free // 2
        fit = max(1, memory // (2 * self._bytes_per_chain()))
        return min(fit, CPU_IMAGE_BATCH) if self.device.type == "cpu" else fit

    def _bytes_per_chain(self) -> int:
        """What the gradient of f at one more sample keeps in memory."""

        def kept(rows: int) -> int:
            y = torch.zeros(rows, *self.event_shape, device=self.device, requires_grad=True)
            f = at_level(self.energy, torch.zeros(rows, dtype=torch.long, device=self.device))
            return sum(tensor.untyped_storage().nbytes() for tensor in kept_tensors(lambda: f(y)))

        return max(1, kept(2) - kept(1))

    def sample_batches(
        self,
        num: int,
        seed: int = 0,
        batch: int | None = None,
        num_steps: int | None = None,
        noise_scale: float | None = None,
        start: int = 0,
        watch: Callable[[int, Sample], None] | None = None,
    ) -> Iterator[Tensor]:
        """The samples ``start`` ... ``num - 1`` in batches, halved as often as memory runs out.

        Vectors are computed in whole batches and cut, so that a sample's value never depends on ``num``.

        Args:
            num: Where to end.
            seed: The seed.
            batch: How many chains run side by side; None for as many as fit.
            num_steps: MCMC steps per level, if not the run's own.
            noise_scale: Factor on the Langevin noise, if not the run's own.
            start: The first sample.
            watch: Is told of every level: the index of the batch's first sample, and x_t of the batch in the data's units.
        """
        batch = self.automatic_batch() if batch is None else batch
        if num < 1 or batch < 1:
            raise UserError(f"num {num}, batch {batch}: must both be at least 1")
        while start < num:
            wanted = min(batch, num - start)
            try:
                x = self._sample_batch(start, self.num_rows(wanted, batch), wanted, seed, num_steps, noise_scale, watch)
            except RuntimeError as error:
                if batch == 1 or not _out_of_memory(error):
                    raise
                batch //= 2
                continue
            yield x
            start += wanted

    # Chains differentiate f, which a caller's inference mode would forbid.
    @torch.inference_mode(False)
    def _sample_batch(
        self,
        start: int,
        rows: int,
        wanted: int,
        seed: int,
        num_steps: int | None,
        noise_scale: float | None,
        watch: Callable[[int, Sample], None] | None,
    ) -> Tensor:
        u, worst = None, torch.zeros((), dtype=torch.long, device=self.device)
        steps = self.config.effective_sample_steps if num_steps is None else num_steps
        accepted = torch.ones(self.schedule.num_levels + 1, device=self.device)
        for t, u, acceptance in self.trajectory(torch.arange(start, start + rows), seed, num_steps, noise_scale):
            worst = torch.maximum(worst, (~torch.isfinite(u)).any() * (t + 1))
            accepted[t] = acceptance.mean()
            if watch is not None:
                watch(start, Sample(t, (self.shift + self.scale * u)[:wanted], acceptance[:wanted]))
        assert u is not None
        if int(worst):
            where = f"sampling diverged at level {int(worst) - 1} (values are not finite)"
            raise DivergenceError(f"{where}; train longer, or sample with fewer or smaller steps")
        if steps and self.config.sampler.kernel != "langevin":
            warn_if_collapsed(accepted[:-1], steps, torch.arange(self.schedule.num_levels, device=self.device))
        return self.finished(u)[:wanted]

    def num_rows(self, wanted: int, batch: int) -> int:
        """How many chains to run for ``wanted`` samples, so that their rounding does not depend on that number.

        Products and convolutions of very few rows take another path, with other rounding; a full tile does not.
        """
        return max(batch, MIN_ROWS) if len(self.event_shape) == 1 else max(wanted, MIN_IMAGES)

    def finished(self, u: Tensor) -> Tensor:
        """Samples in the data's units of x_0 in standardised coordinates: denoised, where the model does that."""
        return self.shift + self.scale * (denoise(self.energy, self.schedule, u) if self.config.sampler.denoise else u)

    def sample(
        self,
        num: int,
        seed: int = 0,
        batch: int | None = None,
        num_steps: int | None = None,
        noise_scale: float | None = None,
    ) -> Tensor:
        """Samples ``[num, *event_shape]`` by progressive sampling (Alg. 2). Sample i depends on (seed, i) alone.

        Args:
            num: How many.
            seed: The seed.
            batch: How many chains run side by side; None for as many as fit.
            num_steps: MCMC steps per level, if not the run's own.
            noise_scale: Factor on the Langevin noise, if not the run's own.
        """
        return torch.cat(list(self.sample_batches(num, seed, batch, num_steps, noise_scale)))

    def normaliser(self) -> Normaliser:
        """log Z_0 of the density of x_0 in standardised coordinates, by quadrature; in two dimensions only."""
        if self.event_shape != (2,):
            raise UserError(f"quadrature in shape {list(self.event_shape)}: in 2 dimensions only; use model.log_z")
        if self._normaliser is None:
            self._normaliser = normaliser(self.level_f, self.device)
        return self._normaliser

    def log_z(self) -> LogZ:
        """The partition function with its uncertainty: quadrature in the plane, else what `springwell likelihood` stored."""
        if self._log_z is None and self.event_shape == (2,):
            z = self.normaliser()
            self._log_z = LogZ(z.log_z, z.log_z - z.error, z.log_z + z.error, z.error)
        if self._log_z is None and self.source is not None:
            folder = self.source.parent.parent if self.source.parent.name == "checkpoints" else self.source.parent
            if (folder / LIKELIHOOD).exists():
                self.use_likelihood(folder / LIKELIHOOD)
        if self._log_z is None:
            shape = f"log-density of shape {list(self.event_shape)}"
            raise UserError(f"{shape}: log Z is not known; run `springwell likelihood`, or use model.f")
        return self._log_z

    def use_likelihood(self, path: Path | str) -> None:
        """Takes log Z from the likelihood.json at ``path``, which must be of this model."""
        try:
            found = json.loads(read_regular(path, MAX_LIKELIHOOD))
            levels = tuple(None if z is None else float(z) for z in reversed(found["log_z_levels"]))
            value, lower, upper = (float(found[name]) for name in ("log_z", "log_z_lower", "log_z_upper"))
            log_z = LogZ(value, lower, upper, float(found["log_z_standard_error"]), str(found["verdict"]), levels)
            if not all(map(math.isfinite, (value, lower, upper, log_z.standard_error, *(z for z in levels if z is not None)))):
                raise ValueError
            if len(levels) != self.schedule.num_levels:
                raise ValueError
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror})") from None
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            raise UserError(f"{path}: was not written by `springwell likelihood`") from None
        if found.get("weights") != self.fingerprint():
            theirs = f"{found.get('data')}, iteration {found.get('iteration')}"
            ours = f"{self.config.data}, iteration {self.iteration}"
            raise UserError(f"{path}: is of other weights ({theirs}; the model: {ours}); run `springwell likelihood` again")
        self._log_z = log_z

    @torch.no_grad()
    def level_f(self, x_t: Tensor, t: int = 0, batch: int | None = None) -> Tensor:
        """f(scale_t x_t, t) ``[N]``, float64: the log-density of x_t, in standardised coordinates, up to its log Z."""
        scale = self.schedule.scale[t].to(x_t.dtype)
        parts = x_t.split(batch or self.automatic_batch())
        return torch.cat([self.f(scale * part, t).double() for part in parts])

    def log_density(self, x: Tensor) -> Tensor:
        r"""Log-density ``[N]`` (nats, float64) of the data after the schedule's initial noise, at ``x`` ``[N, ...]``.

        All values share the error of log Z, which :meth:`log_z` tells; a bracket that is not ``ok`` is warned of.
        """
        if tuple(x.shape[1:]) != self.event_shape:
            raise UserError(f"log_density: x has shape {list(x.shape)}; needs [N, {', '.join(map(str, self.event_shape))}]")
        log_z = self.log_z()
        if log_z.verdict != "ok":
            bounds = f"log Z is in {log_z.lower:.4g} ... {log_z.upper:.4g}, verdict {log_z.verdict}"
            warnings.warn(f"log_density: {bounds}; see `springwell likelihood`", RuntimeWarning, stacklevel=2)
        u = (x.to(self.shift) - self.shift) / self.scale
        return self.level_f(u) - log_z.value - self.scale.double().log().sum()

    def _save_pretrained(self, save_directory: Path) -> None:
        from springwell.app.card import write_card
        from springwell.store.run import save_folder

        save_folder(self, save_directory)
        write_card(self, save_directory)

    @classmethod
    def _from_pretrained(
        cls,
        *,
        model_id: str,
        revision: str | None,
        cache_dir: str | Path | None,
        force_download: bool,
        local_files_only: bool,
        token: str | bool | None,
        device: torch.device | str = "cpu",
        **unused: Any,
    ) -> Model:
        """Reads the folder or downloads it; ``unused`` is what the mixin read from config.json by itself."""
        from springwell.store.hub import download
        from springwell.store.run import load_folder

        options = {"cache_dir": cache_dir, "force_download": force_download, "local_files_only": local_files_only}
        folder = Path(model_id) if Path(model_id).is_dir() else download(model_id, revision, token=token, **options)
        return load_folder(folder, device)


def _out_of_memory(error: RuntimeError) -> bool:
    message = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in message or "allocate memory" in message

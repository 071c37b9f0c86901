"""The configuration of a run: plain, typed and free of heavy imports, so that the command line starts at once.

A run is described by one :class:`Config`. It is saved as ``config.json`` with every run, and a run can only be resumed by
the configuration that began it.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from dataclasses import dataclass, field
from typing import Any, Literal

from springwell.errors import UserError

STEPS_PER_JUMP = 5
# More iterations than anybody has; streams of noise are numbered beyond it.
_MANY = 10**9


@dataclass(frozen=True)
class ScheduleConfig:
    """Noise levels."""

    schedule: Literal["t6", "linear", "log-snr", "sigmas", "marginal"] = "sigmas"
    """t6: the authors' coarse ladder; linear: T1k and its like; log-snr: equal steps in log-SNR; sigmas: as listed in
    --sigmas; marginal: one level, no spring."""
    num_levels: int = 4
    """Number of EBMs, T. Not used by sigmas and marginal."""
    sigmas: tuple[float, ...] = (0.6, 0.7, 0.8, 0.95)
    """Noise sigma_1 ... sigma_T of each hop, for --schedule sigmas."""
    log_snr: tuple[float, float] = (5.0, -5.0)
    """log(abar^2 / sigmabar^2) at the clean and the noisy end, for --schedule log-snr."""
    initial_noise: float | None = None
    """Noise sigma_0 added to the data before level 0. Default: what the schedule defines."""
    top_spring: bool = True
    """Whether the noisiest level has its spring. t6 and marginal never do."""


@dataclass(frozen=True)
class NetworkConfig:
    """The energy network f(y, t)."""

    network: Literal["mlp", "resnet", "unet"] = "mlp"
    """mlp: Fourier features and a residual multilayer perceptron, for vectors of any dimension. For images: resnet, the paper's
    network; unet, the product of an image and a U-Net of it, which learns in fewer iterations."""
    width: int = 128
    """Hidden units per layer; for images, channels of the first level."""
    multipliers: tuple[int, ...] = (1, 2, 2, 2)
    """Images: channels of each level, as multiples of --width. Between levels the image is halved."""
    num_blocks: int = 2
    """Images: residual blocks per level, N (unet: on the way down, and up)."""
    unshuffle: int = 1
    """Images: side of the pixel blocks that are folded into channels before the first level. 1: none, as in the paper."""
    dense_units: int = 0
    """unet: units of a map from every position of the lowest level to every other. 0: none."""
    spectral_norm: bool = True
    """resnet: bound the spectral norm of every layer but the last, as the authors do."""
    depth: int = 2
    """Number of hidden layers."""
    num_features: int = 64
    """Number of random frequencies, each with a random phase."""
    bandwidths: tuple[float, ...] = (1.5, 5.0)
    """Standard deviations of the random frequencies, in equal shares."""
    base_precision: float = 1.0
    """Precision of the Gaussian base term -precision |y|^2 / 2 added to f. It keeps f integrable."""
    output_scale: Literal["step", "learned", "variance", "none"] = "learned"
    """How the network's output becomes f. step: divided by the squared step size, as the authors do; learned: times a
    learned factor per level that starts at 1 / sigmabar_t; variance: one that starts at 1 / sigmabar_t^2, which suits unet;
    none: as it is."""


@dataclass(frozen=True)
class SamplerConfig:
    """The chains, in training and in generation."""

    kernel: Literal["langevin", "mala", "hmc"] = "mala"
    """langevin: without Metropolis test, as the authors do; mala: with it; hmc: --num-leapfrog gradients per step and test."""
    num_leapfrog: int = 2
    """Leapfrog steps of an HMC step."""
    num_steps: int = 5
    """MCMC steps K per level in training. 0: one draw from the normal approximation of the conditional."""
    sample_steps: int | None = 20
    """MCMC steps per level in generation. Default: as in training."""
    jump_proposals: int = 0
    """Proposals of a jump between modes before every fifth step: costs that many evaluations of f, no gradient, and helps in
    low dimensions. 0: none."""
    sample_jump_proposals: int | None = None
    """The same in generation, where chains start far from equilibrium and more of them pay. Default: as in training."""
    step_size: Literal["authors", "fraction"] = "fraction"
    """First step size of each level. authors: b c_t sigma_{t+1} with b^2 = 2e-4; fraction: --step-fraction of sigma_{t+1}."""
    step_fraction: float = 0.45
    """For --step-size fraction."""
    target_acceptance: float | None = 0.65
    """Adapt the step size of each level to this acceptance while training (mala, hmc). None: keep it fixed."""
    chain_start: Literal["noisy", "data", "denoised"] = "data"
    """Where chains start. noisy: at x_{t+1}, as in the paper. data: at y_t in training (x_{t+1} in generation); the truth is
    then a fixed point of the updates for every K, and a chain that cannot move gives no gradient instead of a runaway.
    denoised: at a Gaussian guess of y_t given x_{t+1}, which costs a gradient and leaves less to do for the chain; in
    training it shares its noise with y_t. With K = 0 that guess is the draw."""
    noise_scale: float = 1.0
    """Factor on the noise of the Langevin chains in generation (the authors use 0.99)."""
    denoise: bool = False
    """Take the initial noise off generated samples by one step to the posterior mean."""


@dataclass(frozen=True)
class TrainingConfig:
    """Optimisation."""

    iterations: int = 2500
    """Optimiser steps."""
    batch: int = 512
    """Samples per step, over all processes together."""
    lr: float = 1e-2
    """Learning rate of Adam after warm-up."""
    lr_decay: Literal["constant", "cosine"] = "cosine"
    """Learning rate after warm-up: constant, or falling to 0 along a half cosine."""
    beta1: float = 0.9
    """Adam's beta_1."""
    beta2: float = 0.99
    """Adam's beta_2."""
    warmup: int = 100
    """Iterations over which the learning rate rises from 0."""
    clip: float | None = 20.0
    """Clip the gradient's norm at this value. None: do not clip."""
    weight_decay: float = 0.0
    """Share of every matrix and filter that is taken off per step, times the learning rate. It steadies a unet, which has no
    spectral norms."""
    ema: float = 0.995
    """Decay of the exponential moving average of the weights, which is the model that is sampled and measured."""
    seed: int = 0
    """Everything random follows from it."""
    log_every: int = 50
    """Iterations between lines of metrics.jsonl."""
    checkpoint_every: int = 500
    """Iterations between checkpoints."""
    preview_every: int = 1000
    """Iterations between preview pictures. 0: none."""
    fid_every: int = 0
    """Iterations between measurements of the FID, of images; they go to fid.jsonl. 0: none."""
    fid_samples: int = 2500
    """Samples for each of them, the paper's number: too few for a FID to be quoted, enough for a curve."""
    keep: int = 2
    """Number of checkpoints kept."""
    on_divergence: Literal["stop", "rollback"] = "rollback"
    """What to do when training diverges. rollback: return to the last good checkpoint, halve the learning rate and draw other
    noise, three times at most; stop: stop at once. Checkpoints are never overwritten by a diverged state."""
    accumulate: int = 1
    """Parts into which a batch is divided to save memory; gradients are summed before each optimiser step."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Of the network's convolutions and products. The energy head, springs and log-densities are always float32."""
    compile: bool = False
    """Compile the network with torch.compile."""
    tensorboard: bool = False
    """Also write TensorBoard events (needs the tensorboard extra)."""


@dataclass(frozen=True)
class ImageConfig:
    """How images are read."""

    image_size: int | None = None
    """Crop to a square and resize to this size. Default: what the data set is published with (64 for celeba and lsun)."""
    flip: bool = False
    """Mirror every training image with probability 1/2."""
    dequantise: bool = False
    """Spread every grey value evenly over its cell (1/256 of the range; 1/17 for digits), so that images have a density."""
    data_root: str | None = None
    """Where data sets are looked for. Default: $SPRINGWELL_DATA, or ~/data."""


@dataclass(frozen=True)
class Config:
    """Everything that defines a run."""

    data: str = "checkerboard"
    """A toy data set by name, npy:PATH for an array [N, D], or images: digits, mnist, fashion-mnist, cifar10, celeba,
    lsun/CATEGORY, folder:PATH, zip:PATH, npz:PATH, hf:NAME, prepared:PATH."""
    objective: Literal["recovery", "dsm", "marginal"] = "recovery"
    """recovery: the paper's; dsm: denoising score matching of the explicit energy; marginal: one EBM without spring."""
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    images: ImageConfig = field(default_factory=ImageConfig)

    def validate(self) -> None:
        """Raises UserError for the first value that cannot work."""
        schedule, sampler, training, network = self.schedule, self.sampler, self.training, self.network
        _check("num_levels", schedule.num_levels, 1 <= schedule.num_levels <= 100_000, "1 ... 100000")
        for sigma in schedule.sigmas:
            _check("sigmas", sigma, 0 < sigma <= 1, "values in (0, 1]")
        if schedule.schedule == "sigmas" and not schedule.sigmas:
            raise UserError("--sigmas: empty; give the noise of each hop, for instance 0.6 0.7 0.8 0.95")
        if schedule.initial_noise is not None:
            _check("initial_noise", schedule.initial_noise, 0 <= schedule.initial_noise < 1, "a value in [0, 1)")
        _check("num_steps", sampler.num_steps, 0 <= sampler.num_steps <= 100_000, "0 ... 100000")
        if sampler.sample_steps is not None:
            _check("sample_steps", sampler.sample_steps, 0 <= sampler.sample_steps <= 100_000, "0 ... 100000")
        _check("num_leapfrog", sampler.num_leapfrog, 1 <= sampler.num_leapfrog <= 1000, "1 ... 1000")
        _check("jump_proposals", sampler.jump_proposals, 0 <= sampler.jump_proposals <= 1000, "0 ... 1000")
        if sampler.sample_jump_proposals is not None:
            value = sampler.sample_jump_proposals
            _check("sample_jump_proposals", value, 0 <= value <= 1000, "0 ... 1000")
        _check("step_fraction", sampler.step_fraction, 0 < sampler.step_fraction < 10, "a value in (0, 10)")
        _check("noise_scale", sampler.noise_scale, 0 <= sampler.noise_scale <= 1, "a value in [0, 1]")
        if sampler.target_acceptance is not None:
            _check(
                "target_acceptance", sampler.target_acceptance, 0 < sampler.target_acceptance < 1, "a value in (0, 1), or None"
            )
        if sampler.kernel != "langevin" and sampler.noise_scale != 1:
            raise UserError(f"--noise-scale {sampler.noise_scale}: a Metropolis test needs 1; use --kernel langevin")
        for name in ("iterations", "batch", "log_every", "checkpoint_every", "keep"):
            _check(name, getattr(training, name), 1 <= getattr(training, name) <= _MANY, f"1 ... {_MANY}")
        _check("batch", training.batch, training.batch <= 10_000_000, "1 ... 10000000")
        _check("fid_samples", training.fid_samples, 20 <= training.fid_samples <= 1_000_000, "20 ... 1000000")
        for name in ("warmup", "preview_every", "fid_every"):
            _check(name, getattr(training, name), 0 <= getattr(training, name) <= _MANY, f"0 ... {_MANY}")
        _check("lr", training.lr, 0 < training.lr <= 1, "a value in (0, 1], for instance 1e-3")
        for name in ("beta1", "beta2", "ema"):
            _check(name, getattr(training, name), 0 <= getattr(training, name) < 1, "a value in [0, 1)")
        if training.clip is not None:
            _check("clip", training.clip, training.clip > 0, "a positive value, or None")
        _check(
            "weight_decay", training.weight_decay, 0 <= training.weight_decay < 1 / training.lr, "a value from 0 to 1 / --lr"
        )
        _check("seed", training.seed, 0 <= training.seed < 2**63, "an integer in [0, 2^63)")
        _check("width", network.width, 1 <= network.width <= 100_000, "1 ... 100000")
        _check("depth", network.depth, 1 <= network.depth <= 1000, "1 ... 1000")
        _check("num_features", network.num_features, 1 <= network.num_features <= 100_000, "1 ... 100000")
        _check("base_precision", network.base_precision, 0 <= network.base_precision <= 1e6, "a value in [0, 1e6]")
        for bandwidth in network.bandwidths:
            _check("bandwidths", bandwidth, bandwidth > 0, "positive values")
        if not network.bandwidths:
            raise UserError("--bandwidths: empty; give the scales of the random frequencies, for instance 1.5 5")
        if network.network != "mlp" and (network.width < 4 or network.width % 2):
            raise UserError(f"--width {network.width}: the level embedding needs an even number; use at least 4")
        if network.network == "mlp" and training.fid_every:
            raise UserError(f"--fid-every {training.fid_every}: for images; leave it out")
        if network.network == "mlp" and (training.compile or training.precision != "fp32"):
            option = "--compile" if training.compile else f"--precision {training.precision}"
            raise UserError(f"{option}: for --network resnet or unet; leave it out for mlp")
        if training.compile and self.objective == "dsm":
            raise UserError("--compile: torch.compile cannot differentiate twice, as --objective dsm does; leave it out")
        _check("num_blocks", network.num_blocks, 1 <= network.num_blocks <= 100, "1 ... 100")
        _check("unshuffle", network.unshuffle, 1 <= network.unshuffle <= 16, "1 ... 16")
        _check("dense_units", network.dense_units, 0 <= network.dense_units <= 100_000, "0 ... 100000")
        for multiplier in network.multipliers:
            _check("multipliers", multiplier, 1 <= multiplier <= 100, "values in 1 ... 100")
        if not network.multipliers:
            raise UserError("--multipliers: empty; give the channels of each level, for instance 1 2 2 2")
        _check("accumulate", training.accumulate, 1 <= training.accumulate <= training.batch, "1 ... the batch")
        if self.images.image_size is not None:
            _check("image_size", self.images.image_size, 1 <= self.images.image_size <= 4096, "1 ... 4096")
        if self.objective == "marginal" and schedule.schedule != "marginal":
            raise UserError(
                f"--objective marginal: has no spring, but --schedule is {schedule.schedule}; use --schedule marginal"
            )
        if self.objective == "dsm" or (self.objective == "recovery" and sampler.num_steps == 0):
            what = "dsm" if self.objective == "dsm" else "recovery with --num-steps 0"
            if schedule.schedule in ("t6", "marginal") or not schedule.top_spring:
                missing = f"--schedule {schedule.schedule} has not"
                raise UserError(f"--objective {what}: needs the spring of every level, which {missing}; use linear or log-snr")
        if sampler.chain_start == "denoised" and (schedule.schedule in ("t6", "marginal") or not schedule.top_spring):
            missing = f"which --schedule {schedule.schedule} has not"
            raise UserError(f"--chain-start denoised: needs the spring of every level, {missing}; use noisy")
        if self.objective == "marginal" and sampler.num_steps == 0:
            raise UserError("--num-steps 0: the marginal objective has no normal approximation; use at least 1")

    @property
    def effective_sample_steps(self) -> int:
        steps = self.sampler.sample_steps
        return self.sampler.num_steps if steps is None else steps

    @property
    def effective_sample_jumps(self) -> int:
        jumps = self.sampler.sample_jump_proposals
        return self.sampler.jump_proposals if jumps is None else jumps

    @property
    def damped(self) -> bool:
        """Whether a Gaussian guess of y_t is damped, as on wide hops, where the paper's normal approximation overshoots."""
        return self.effective_sample_steps > 0 or self.sampler.chain_start == "denoised"

    def gradient_evaluations(self) -> int:
        """Network evaluations of one training iteration, per sample: the chain's, then the loss's.

        Evaluations of f without gradient, which jumps need, are counted as if they had one.
        """
        if self.objective == "dsm":
            return 2
        if self.sampler.num_steps == 0:
            return 2
        jumps = -(-self.sampler.num_steps // STEPS_PER_JUMP) if self.sampler.jump_proposals else 0
        chain = self.sampler.num_steps * (self.sampler.num_leapfrog if self.sampler.kernel == "hmc" else 1)
        chain += max(1, jumps) if self.sampler.kernel != "langevin" else 0
        chain += self.sampler.chain_start == "denoised"
        return chain + jumps * (self.sampler.jump_proposals + 1) + 1


def _check(name: str, value: float, ok: bool, wanted: str) -> None:
    if not ok or (isinstance(value, float) and not math.isfinite(value)):
        raise UserError(f"--{name.replace('_', '-')} {value}: out of range; use {wanted}")


def to_dict(config: Config) -> dict[str, Any]:
    return json.loads(json.dumps(dataclasses.asdict(config)))


def flat(config: Config) -> dict[str, Any]:
    """The config as {field name: value}, sections dissolved as on the command line."""
    out: dict[str, Any] = {}
    for name, value in to_dict(config).items():
        out.update(value if isinstance(value, dict) else {name: value})
    return out


def from_dict(values: Any, where: str = "config") -> Config:
    """The config saved as ``values``; unknown names and wrong types are errors that name ``where``."""
    config = _build(Config, values, where)
    config.validate()
    return config


def _build(cls: type, values: Any, where: str) -> Any:
    if not isinstance(values, dict):
        raise UserError(f"{where}: expected an object, found {type(values).__name__}")
    hints = typing.get_type_hints(cls)
    if unknown := sorted(set(values) - set(hints)):
        raise UserError(f"{where}: unknown field '{unknown[0]}'; known: {', '.join(hints)}")
    return cls(**{name: _convert(hints[name], value, f"{where}.{name}") for name, value in values.items()})


def _convert(hint: Any, value: Any, where: str) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        return _build(typing.cast(type, hint), value, where)
    if origin in (typing.Union, types.UnionType):
        return None if value is None else _convert(next(a for a in args if a is not type(None)), value, where)
    if origin is Literal:
        if value in args:
            return value
    elif origin is tuple:
        fixed = () if args[-1] is Ellipsis else args
        if isinstance(value, (list, tuple)) and (not fixed or len(fixed) == len(value)):
            return tuple(_convert(args[0], v, where) for v in value)
    elif hint is float:
        if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300:
            return float(value)
    elif type(value) is hint and not (hint is int and abs(value) >= 2**64):
        return value
    raise UserError(f"{where}: {value!r} is not a {getattr(hint, '__name__', hint)}")


def difference(config: Config, other: Config) -> list[tuple[str, Any, Any]]:
    """Fields in which two configs differ: (name, value, other value)."""
    mine, theirs = flat(config), flat(other)
    return [(name, mine[name], theirs[name]) for name in mine if mine[name] != theirs[name]]

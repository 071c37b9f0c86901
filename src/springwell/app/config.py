"""The configuration of a run: plain, typed and free of heavy imports, so that the command line starts at once.

A run is described by one :class:`Config`. It is saved as ``config.json`` with every run. Its sections ``schedule``, ``network``
and ``sampler`` come in several kinds, a class for each, so that a config carries the fields of its own recipe and no others;
the first field of such a class names the kind. Field names are unique over all sections: the command line and
:func:`with_fields` take them without the section.
"""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import msgspec
from msgspec import Meta

from springwell.data.options import ImageOptions, LabelOptions
from springwell.data.spec import parse
from springwell.errors import UserError, did_you_mean as did_you_mean
from springwell.training.options import TrainingOptions

STEPS_PER_JUMP = 5

T = TypeVar("T")
Levels = Annotated[int, Meta(ge=1, le=100_000)]
Steps = Annotated[int, Meta(ge=0, le=100_000)]
Proposals = Annotated[int, Meta(ge=0, le=1000)]
Size = Annotated[int, Meta(ge=1, le=100_000)]
Share = Annotated[float, Meta(ge=0, lt=1)]
LogRatio = Annotated[float, Meta(ge=-1000, le=1000)]
Acceptance = Annotated[float, Meta(gt=0, lt=1)]
Weight = Annotated[float, Meta(ge=0, le=1e6)]


@dataclass(frozen=True)
class _Schedule:
    schedule: str = ""
    """The kind of schedule: t6, linear, log-snr, sigmas or marginal."""
    initial_noise: Share | None = None
    """Standard deviation sigma_0 of the noise added to the data before level 0. Default: the schedule's own value."""


@dataclass(frozen=True)
class T6Config(_Schedule):
    """Noise levels: the authors' coarse ladder. Its noisiest level has no spring."""

    schedule: Literal["t6"] = "t6"
    num_levels: Levels = 6
    """Number of levels, T."""
    top_spring: ClassVar[bool] = False


@dataclass(frozen=True)
class LinearConfig(_Schedule):
    """Noise levels: variances that rise linearly, as in T1k."""

    schedule: Literal["linear"] = "linear"
    num_levels: Levels = 1000
    """Number of levels, T."""
    top_spring: bool = True
    """Give the noisiest level a spring."""


@dataclass(frozen=True)
class LogSNRConfig(_Schedule):
    """Noise levels: equal steps in the logarithm of the signal-to-noise ratio."""

    schedule: Literal["log-snr"] = "log-snr"
    num_levels: Levels = 4
    """Number of levels, T."""
    log_snr: tuple[LogRatio, LogRatio] = (5.0, -5.0)
    """log(abar^2 / sigmabar^2) at the clean and at the noisy end."""
    top_spring: bool = True
    """Give the noisiest level a spring."""


@dataclass(frozen=True)
class SigmasConfig(_Schedule):
    """Noise levels: a list of the noise of each hop."""

    schedule: Literal["sigmas"] = "sigmas"
    sigmas: Annotated[tuple[Annotated[float, Meta(gt=0, le=1)], ...], Meta(min_length=1)] = (0.6, 0.7, 0.8, 0.95)
    """Standard deviations sigma_1 ... sigma_T of the noise of each hop."""
    top_spring: bool = True
    """Give the noisiest level a spring."""


@dataclass(frozen=True)
class MarginalConfig(_Schedule):
    """Noise levels: a single level without spring."""

    schedule: Literal["marginal"] = "marginal"
    top_spring: ClassVar[bool] = False


@dataclass(frozen=True)
class _Known:
    network: str = ""
    """The kind of network: mlp or residual-mlp for vectors; resnet, unet or residual-unet for images."""
    atoms: tuple[tuple[float, float], ...] = ()
    """Ranges of values that many coordinates take, such as -1 -1 for a black background. The energy models them from the
    start."""
    output_scale: ClassVar[str] = "none"
    base_precision: ClassVar[float] = 0.0


@dataclass(frozen=True)
class _Network:
    network: str = ""
    """The kind of network: mlp or residual-mlp for vectors; resnet, unet or residual-unet for images."""
    base_precision: Literal["noise"] | Annotated[float, Meta(ge=0, le=1e6)] = 1.0
    """Precision of the Gaussian base term -precision |y|^2 / 2 added to f. It keeps f integrable. noise: use the
    precision of the level's noise, so that a U-Net adds the denoised image."""
    output_scale: Literal["step", "learned", "variance", "none"] = "learned"
    """How the network's output becomes f. step: divided by the squared step size, as the authors do. learned: multiplied by
    a learned factor per level that starts at 1 / sigmabar_t. variance: the same, but the factor starts at 1 / sigmabar_t^2,
    which suits a U-Net. none: unchanged."""


@dataclass(frozen=True)
class MLPConfig(_Network):
    """The energy network f(y, t): Fourier features and a residual multilayer perceptron, for vectors of any dimension."""

    network: Literal["mlp"] = "mlp"
    width: Size = 128
    """Number of hidden units per layer."""
    depth: Annotated[int, Meta(ge=1, le=1000)] = 2
    """Number of hidden layers."""
    num_features: Size = 64
    """Number of random frequencies, each with a random phase."""
    bandwidths: Annotated[tuple[Annotated[float, Meta(gt=0, le=1e6)], ...], Meta(min_length=1)] = (1.5, 5.0)
    """Standard deviations of the random frequencies. Each applies to an equal share of them."""


@dataclass(frozen=True)
class _ImageNetwork(_Network):
    width: Size = 128
    """Number of channels of the first level."""
    multipliers: Annotated[tuple[Annotated[int, Meta(ge=1, le=100)], ...], Meta(min_length=1)] = (1, 2, 2, 2)
    """Number of channels of each level, as multiples of the width. The image is halved between levels."""
    num_blocks: Annotated[int, Meta(ge=1, le=100)] = 2
    """Number N of residual blocks per level. A U-Net has as many on the way down as on the way up."""
    unshuffle: Annotated[int, Meta(ge=1, le=16)] = 1
    """Side of the pixel blocks that are folded into channels before the first level. 1: no folding, as in the
    paper."""


@dataclass(frozen=True)
class ResNetConfig(_ImageNetwork):
    """The energy network f(y, t): the paper's residual network for images."""

    network: Literal["resnet"] = "resnet"
    spectral_norm: bool = True
    """Bound the spectral norm of every layer but the last, as the authors do."""


@dataclass(frozen=True)
class UNetConfig(_ImageNetwork):
    """The energy network f(y, t): the product of an image and its U-Net, which learns in fewer iterations than a ResNet."""

    network: Literal["unet"] = "unet"
    dense_units: Annotated[int, Meta(ge=0, le=100_000)] = 0
    """Number of units of a dense layer that connects all positions of the lowest level. 0: no such layer."""


@dataclass(frozen=True)
class ResidualMLPConfig(_Known):
    """The energy network f(y, t): the squared residual of a denoiser of vectors, for the normalised objective."""

    network: Literal["residual-mlp"] = "residual-mlp"
    width: Size = 256
    """Number of hidden units per layer."""
    depth: Annotated[int, Meta(ge=1, le=1000)] = 3
    """Number of residual blocks."""
    num_features: Annotated[int, Meta(ge=0, le=100_000)] = 0
    """Number of random frequencies. Sharp edges in few dimensions need them. 0: none."""
    bandwidths: Annotated[tuple[Annotated[float, Meta(gt=0, le=1e6)], ...], Meta(min_length=1)] = (1.5, 5.0)
    """Standard deviations of the random frequencies. Each applies to an equal share of them."""


@dataclass(frozen=True)
class ResidualUNetConfig(_Known):
    """The energy network f(y, t): the squared residual of a denoising U-Net, for the normalised objective."""

    network: Literal["residual-unet"] = "residual-unet"
    width: Size = 32
    """Number of channels of the first level."""
    multipliers: Annotated[tuple[Annotated[int, Meta(ge=1, le=100)], ...], Meta(min_length=1)] = (1, 2)
    """Number of channels of each level, as multiples of the width. The image is halved between levels."""
    num_blocks: Annotated[int, Meta(ge=1, le=100)] = 1
    """Number of residual blocks per level, on the way down and on the way up."""
    unshuffle: Annotated[int, Meta(ge=1, le=16)] = 1
    """Side of the pixel blocks that are folded into channels before the first level. 1: no folding."""
    dense_units: Annotated[int, Meta(ge=0, le=100_000)] = 0
    """Number of units of a dense layer that connects all positions of the lowest level. 0: no such layer."""
    dropout: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    """Share of the numbers inside every block that training sets to 0. It prevents overfitting of few images."""


@dataclass(frozen=True)
class OwnConfig(_Network):
    """The energy network f(y, t): a module of your own, which can only be given from Python."""

    network: Literal["own"] = "own"


@dataclass(frozen=True)
class GuessConfig:
    """Sampling without chains: every level takes one draw from a normal approximation of the conditional (K = 0)."""

    kernel: Literal["none"] = "none"
    """The kind of chains: none, langevin, mala or hmc."""
    start: Literal["noisy", "denoised", "ancestral"] = "noisy"
    """Kind of approximation. noisy: the paper's. denoised: a damped one, which does not overshoot on wide hops. ancestral: one
    from the score of the noisier level, which suits energies that are log-densities."""
    denoise: bool = False
    """Remove the initial noise from generated samples by one step to the posterior mean."""
    num_steps: ClassVar[int] = 0
    sample_steps: ClassVar[int | None] = 0
    jump_proposals: ClassVar[int] = 0
    sample_jump_proposals: ClassVar[int | None] = 0
    step_fraction: ClassVar[float | None] = None
    noise_scale: ClassVar[float] = 1.0
    num_leapfrog: ClassVar[int] = 1
    target_acceptance: ClassVar[float | None] = None


@dataclass(frozen=True)
class _Chains:
    kernel: str = ""
    """The kind of chains: none, langevin, mala or hmc."""
    num_steps: Steps = 5
    """Number K of MCMC steps per level in training. 0: one draw from a normal approximation of the conditional."""
    sample_steps: Steps | None = 20
    """Number of MCMC steps per level in generation. Default: as in training."""
    jump_proposals: Proposals = 0
    """Number of proposed jumps between modes before every fifth step. Each costs one evaluation of f without gradient. Jumps
    help in low dimensions. 0: none."""
    sample_jump_proposals: Proposals | None = None
    """Number of proposed jumps in generation, where chains start far from equilibrium and more proposals help. Default: as in
    training."""
    step_fraction: Annotated[float, Meta(gt=0, lt=10)] | None = 0.45
    """Initial step size of each level, as a fraction of sigma_{t+1}. None: the authors' b c_t sigma_{t+1} with b^2 = 2e-4."""
    start: Literal["noisy", "data", "denoised"] = "data"
    """Where chains start. noisy: at x_{t+1}, as in the paper. data: at y_t in training and at x_{t+1} in generation; the true
    density is then a fixed point of the updates for every K, and a chain that cannot move gives no gradient. denoised: at a
    Gaussian guess of y_t given x_{t+1}, which costs one gradient and shortens the way of the chain."""
    denoise: bool = False
    """Remove the initial noise from generated samples by one step to the posterior mean."""


@dataclass(frozen=True)
class LangevinConfig(_Chains):
    """Langevin chains without Metropolis test, in training and in generation, as the authors use them."""

    kernel: Literal["langevin"] = "langevin"
    noise_scale: Annotated[float, Meta(ge=0, le=1)] = 1.0
    """Factor on the noise of the chains in generation. The authors use 0.99."""
    num_leapfrog: ClassVar[int] = 1
    target_acceptance: ClassVar[float | None] = None


@dataclass(frozen=True)
class MALAConfig(_Chains):
    """Langevin chains with Metropolis test, in training and in generation."""

    kernel: Literal["mala"] = "mala"
    target_acceptance: Acceptance | None = 0.65
    """Adapt the step size of each level to this acceptance while training. None: keep it fixed."""
    num_leapfrog: ClassVar[int] = 1
    noise_scale: ClassVar[float] = 1.0


@dataclass(frozen=True)
class HMCConfig(_Chains):
    """Hamiltonian chains with Metropolis test, in training and in generation."""

    kernel: Literal["hmc"] = "hmc"
    num_leapfrog: Annotated[int, Meta(ge=1, le=1000)] = 2
    """Number of leapfrog steps, and so of gradients, per step."""
    target_acceptance: Acceptance | None = 0.65
    """Adapt the step size of each level to this acceptance while training. None: keep it fixed."""
    noise_scale: ClassVar[float] = 1.0


@dataclass(frozen=True)
class RecoveryConfig:
    """The objective: recovery likelihood, as in the paper."""

    objective: Literal["recovery"] = "recovery"
    """The kind of objective: recovery, dsm, marginal or normalised."""


@dataclass(frozen=True)
class DSMConfig:
    """The objective: denoising score matching of the explicit energy."""

    objective: Literal["dsm"] = "dsm"
    dsm_target: Literal["posterior", "sample"] = "posterior"
    """Target of the score. posterior: E[y_t | x, x_{t+1}], which has less noise. sample: y_t, as in the paper."""


@dataclass(frozen=True)
class MarginalObjectiveConfig:
    """The objective: maximum likelihood of one energy without spring."""

    objective: Literal["marginal"] = "marginal"


@dataclass(frozen=True)
class NormalisedConfig:
    """The objective: matches the log-density's derivatives in y and in the noise, so that the energy knows its normaliser."""

    objective: Literal["normalised"] = "normalised"
    noise_weight: Weight = 1.0
    """Weight of the derivatives along the noise of every coordinate. The weight of the score is 1."""
    total_weight: Weight = 0.01
    """Weight of the derivative along the noise of all coordinates together."""
    classifier_weight: Weight = 0.0
    """Weight of a classifier between noise levels, used instead of the derivatives along the noise or beside them. It lowers f
    where there are no data."""
    recovery_weight: Weight = 0.0
    """Weight of recovery likelihood, whose chains lower f where there are no data."""
    balance: Annotated[float, Meta(ge=0, le=1)] = 0.5
    """Exponent of the weights of the levels: each level has weight (its mean error)^-balance. 0: equal weights."""
    control_limit: Annotated[float, Meta(ge=0, le=10)] = 0.0
    """Limit of the control variate, which reduces the variance of the target along the noise. 0: no control variate."""
    focus_share: Share = 0.0
    """Share of the batch whose noise is log-normal around the focus; the rest is spread evenly over the levels."""
    focus_sigma: Annotated[float, Meta(gt=0, le=1e3)] = 0.3
    """Standard deviation of the noise at the focus, in units of the standardised data."""
    focus_width: Annotated[float, Meta(gt=0, le=10)] = 1.0
    """Width of the focus, in units of log sigma."""


_KINDS: dict[str, tuple[type, ...]] = {
    "objective": (RecoveryConfig, DSMConfig, MarginalObjectiveConfig, NormalisedConfig),
    "schedule": (T6Config, LinearConfig, LogSNRConfig, SigmasConfig, MarginalConfig),
    "network": (MLPConfig, ResNetConfig, UNetConfig, ResidualMLPConfig, ResidualUNetConfig, OwnConfig),
    "sampler": (GuessConfig, LangevinConfig, MALAConfig, HMCConfig),
}
# The classes of every section by their kinds, which the default of their first field names.
SECTIONS: dict[str, dict[str, type]] = {
    **{section: {str(fields(cls)[0].default): cls for cls in classes} for section, classes in _KINDS.items()},
    "training": {"": TrainingOptions},
    "images": {"": ImageOptions},
    "labels": {"": LabelOptions},
}
# The field that names a section's kind.
KIND_FIELDS = {"objective": "objective", "schedule": "schedule", "network": "network", "sampler": "kernel"}


Network = MLPConfig | ResNetConfig | UNetConfig | ResidualMLPConfig | ResidualUNetConfig | OwnConfig


@dataclass(frozen=True)
class _Task:
    data: str = "checkerboard"
    """A toy data set by name, npy:PATH for an array [N, D], or images: digits, mnist, fashion-mnist, cifar10, celeba,
    lsun/CATEGORY, folder:PATH, zip:PATH, npz:PATH, hf:NAME, prepared:PATH."""


@dataclass(frozen=True)
class Config(_Task):
    """All settings that define a run: data, objective, schedule, network, sampler and training.

    Examples:
        >>> config = sw.preset("digits")
        >>> config.schedule.num_levels, config.sampler.kernel, config.training.batch
        (12, 'mala', 32)
    """

    objective: RecoveryConfig | DSMConfig | MarginalObjectiveConfig | NormalisedConfig = field(default_factory=RecoveryConfig)
    schedule: T6Config | LinearConfig | LogSNRConfig | SigmasConfig | MarginalConfig = field(default_factory=SigmasConfig)
    network: Network = field(default_factory=MLPConfig)
    sampler: GuessConfig | LangevinConfig | MALAConfig | HMCConfig = field(default_factory=MALAConfig)
    training: TrainingOptions = field(default_factory=TrainingOptions)
    images: ImageOptions = field(default_factory=ImageOptions)
    labels: LabelOptions = field(default_factory=LabelOptions)

    def validate(self) -> None:
        """Raises UserError for the first value that cannot work.

        Examples:
            >>> sw.preset("checkerboard").validate()
        """
        _convert({"data": self.data}, _Task)
        for name in SECTIONS:
            section = getattr(self, name)
            _convert(dataclasses.asdict(section), type(section))
        _check_training(self)
        _check_normalised(self)
        _check_labels(self)
        _check_springs(self)

    @property
    def of_vectors(self) -> bool:
        """Whether the network takes vectors and nothing else."""
        return self.network.network in ("mlp", "residual-mlp")

    @property
    def effective_sample_steps(self) -> int:
        steps = self.sampler.sample_steps
        return self.sampler.num_steps if steps is None else steps

    def gradient_evaluations(self) -> int:
        """Returns the number of network evaluations per sample in one training iteration, of the chain and of the loss.

        Evaluations of f without gradient, which jumps need, count as if they had a gradient.

        Examples:
            >>> sw.preset("checkerboard").gradient_evaluations()
            12
        """
        sampler = self.sampler
        scores = 2 * (self.objective.objective in ("dsm", "normalised"))
        if scores and not getattr(self.objective, "recovery_weight", 0.0):
            return scores
        if sampler.num_steps == 0:
            return 2 + scores
        jumps = -(-sampler.num_steps // STEPS_PER_JUMP) if sampler.jump_proposals else 0
        chain = sampler.num_steps * sampler.num_leapfrog
        chain += max(1, jumps) if sampler.kernel != "langevin" else 0
        chain += sampler.start == "denoised"
        return chain + jumps * (sampler.jump_proposals + 1) + 1 + scores


def _check_training(config: Config) -> None:
    training, vectors, width = config.training, config.of_vectors, getattr(config.network, "width", 4)
    if not vectors and (width < 4 or width % 2):
        raise UserError(f"width={width}: the level embedding needs an even number; use at least 4")
    if training.weight_decay >= 1 / training.lr:
        raise UserError(f"weight_decay={training.weight_decay}: out of range; use a value from 0 to 1 / lr")
    if training.accumulate > training.batch:
        raise UserError(f"accumulate={training.accumulate}: out of range; use 1 ... the batch, {training.batch}")
    if vectors and config.images != ImageOptions():
        found = f"the config says how images are read ({config.images})"
        raise UserError(f"network={config.network.network!r}: takes vectors, but {found}")
    if vectors and training.fid_every:
        raise UserError(f"fid_every={training.fid_every}: works for images only; leave it out")
    plain = config.network.network in ("resnet", "unet", "own")
    if not plain and (training.compile or training.precision != "fp32"):
        option = "compile=True" if training.compile else f"precision={training.precision!r}"
        raise UserError(f"{option}: works with network='resnet' or network='unet' only; leave it out")
    if training.compile and (name := config.objective.objective) in ("dsm", "normalised"):
        raise UserError(f"compile=True: torch.compile cannot differentiate twice, which objective={name!r} needs; leave it out")


def _check_normalised(config: Config) -> None:
    """Checks that energies with a known normaliser and the normalised objective are used together."""
    objective, network = config.objective.objective, config.network.network
    if (objective == "normalised") != network.startswith("residual"):
        use = "network='residual-mlp' or network='residual-unet'"
        what = f"objective={objective!r}: does not go with network={network!r}"
        raise UserError(f"{what}; use {use} with objective='normalised', and only with it")
    if objective == "normalised" and config.schedule.schedule not in ("log-snr", "sigmas"):
        raise UserError(f"schedule={config.schedule.schedule!r}: has no initial noise, which a density needs; use log-snr")


def _check_labels(config: Config) -> None:
    """Checks that only energies with a known normaliser learn classes."""
    labels, objective = config.labels, config.objective
    if not labels.classes:
        for one in fields(labels):
            if (value := getattr(labels, one.name)) != one.default:
                raise UserError(f"{one.name}={value!r}: needs classes; add classes=('all',)")
        return
    if not isinstance(objective, NormalisedConfig):
        use = "use objective='normalised', as the presets mnist-density and mnist-cond do"
        raise UserError(f"classes={' '.join(labels.classes)!r}: do not go with objective={objective.objective!r}; {use}")
    if objective.recovery_weight:
        raise UserError(f"recovery_weight={objective.recovery_weight}: does not work with classes; leave it out")
    if len(set(labels.classes)) < len(labels.classes) or labels.classes == ("",):
        raise UserError(f"classes={labels.classes}: names must differ")


def _check_springs(config: Config) -> None:
    """Checks the objectives and starts that need a spring at every level, or at none."""
    objective, schedule, sampler = config.objective.objective, config.schedule, config.sampler
    if objective == "marginal" and schedule.schedule != "marginal":
        raise UserError(f"objective='marginal': has no spring, but schedule={schedule.schedule!r} has; use schedule='marginal'")
    if objective == "marginal" and sampler.num_steps == 0:
        raise UserError("num_steps=0: the marginal objective has no normal approximation; use at least 1")
    if sampler.kernel != "none" and config.effective_sample_steps == sampler.num_steps == 0:
        raise UserError("num_steps=0: there are no chains in training or in generation; use kernel='none'")
    if sampler.kernel == "none" and config.network.output_scale == "step":
        raise UserError("output_scale='step': needs a step size, but kernel='none' has none; use output_scale='learned'")
    if schedule.top_spring:
        return
    missing = f"needs the spring of every level, but schedule={schedule.schedule!r} has none at the top"
    if objective == "dsm":
        raise UserError(f"objective='dsm': {missing}; use schedule='linear' or schedule='log-snr'")
    if objective == "recovery" and sampler.num_steps == 0:
        raise UserError(f"num_steps=0: {missing}; use schedule='linear' or schedule='log-snr'")
    if sampler.start == "denoised":
        raise UserError(f"start='denoised': {missing}; use start='noisy'")


# What other libraries call a field.
_OTHER_WORDS = {"learning_rate": "lr", "epochs": "iterations"}


def with_fields(config: Config, **values: Any) -> Config:
    """Returns ``config`` with other values, each named by its field alone: ``with_fields(config, width=64, kernel="hmc")``.

    A new kind of schedule, network or sampler keeps the values of fields that both kinds have, and takes defaults for the rest.
    """
    for section, field_name in KIND_FIELDS.items():
        if (kind := values.pop(field_name, None)) is not None:
            config = _of_kind(config, section, kind)
    changes: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        changes.setdefault(_section_of(config, name), {})[name] = value
    top = changes.pop("", {})
    parts = {name: dataclasses.replace(getattr(config, name), **given) for name, given in changes.items()}
    return dataclasses.replace(config, **top, **parts)


def _of_kind(config: Config, section: str, kind: Any) -> Config:
    if kind not in SECTIONS[section]:
        near = did_you_mean(str(kind), SECTIONS[section])
        raise UserError(f"{KIND_FIELDS[section]}={kind!r}: unknown{near or '; choose ' + ', '.join(SECTIONS[section])}")
    cls, old = SECTIONS[section][kind], getattr(config, section)
    if type(old) is cls:
        return config
    types = {f.name: f.type for f in fields(old)}
    kept = {f.name: getattr(old, f.name) for f in fields(cls) if types.get(f.name) == f.type}
    return dataclasses.replace(config, **{section: cls(**kept)})


def _section_of(config: Config, name: str) -> str:
    """Returns the section that has the field ``name``, or an empty text for a field of the config itself."""
    if name == "data":
        return ""
    for section, kinds in SECTIONS.items():
        names = [kind for kind, cls in kinds.items() if name in {f.name for f in fields(cls)}]
        if name in {f.name for f in fields(getattr(config, section))}:
            return section
        if names:
            wanted = " or ".join(f"{KIND_FIELDS[section]}={kind!r}" for kind in names)
            kind = getattr(getattr(config, section), KIND_FIELDS[section])
            raise UserError(f"{name}: belongs to {wanted}, not to {KIND_FIELDS[section]}={kind!r}")
    known = list(flat(config))
    meant = did_you_mean(_OTHER_WORDS.get(name, name), known)
    raise UserError(f"{name}: unknown field{meant or '; the fields are ' + ', '.join(known)}")


def with_absolute_paths(config: Config) -> Config:
    """Returns ``config`` with absolute paths of its data, so that a run can be used from any folder."""
    data = str(parse(config.data).absolute())
    root = config.images.data_root and str(Path(config.images.data_root).expanduser().absolute())
    return dataclasses.replace(config, data=data, images=dataclasses.replace(config.images, data_root=root))


def to_dict(config: Config) -> dict[str, Any]:
    """Returns the config as JSON values. Models of vectors have no section on images; models without classes none on labels."""
    values: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(config))
    left_out = ["images"] * config.of_vectors + ["labels"] * (not config.labels.classes)
    return {name: value for name, value in values.items() if name not in left_out}


def flat(config: Config) -> dict[str, Any]:
    """Returns the config as {field name: value} without sections, as on the command line."""
    from springwell.store.files import flat_sections

    return flat_sections(to_dict(config))


def from_dict(values: Any, where: str = "config") -> Config:
    """Returns the config saved as ``values``. Unknown names and wrong types are errors that name ``where``."""
    try:
        _check_names(values, Config, "")
        sections = {name: _read_section(name, value) for name, value in values.items() if name in SECTIONS}
        top = {name: value for name, value in values.items() if name not in SECTIONS}
        config = Config(**vars(_convert(top, _Task)), **sections)
        config.validate()
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    return config


def _read_section(section: str, values: Any) -> Any:
    kinds = SECTIONS[section]
    kind = values.get(KIND_FIELDS[section]) if section in KIND_FIELDS and isinstance(values, dict) else ""
    if not isinstance(kind, str) or kind not in kinds:
        raise UserError(f"{section}.{KIND_FIELDS[section]}={kind!r}: unknown; choose {', '.join(kinds)}")
    _check_names(values, kinds[kind], section)
    return _convert(values, kinds[kind], f"{section}.")


def _check_names(values: Any, cls: type, where: str) -> None:
    if not isinstance(values, dict):
        raise UserError(f"{where or 'the whole'}: expected an object, found {type(values).__name__}")
    names = [f.name for f in fields(cls)]
    if unknown := sorted(set(values) - set(names)):
        place = f"{where}.{unknown[0]}" if where else str(unknown[0])
        raise UserError(f"{place}: unknown field{did_you_mean(str(unknown[0]), names) or '; known: ' + ', '.join(names)}")


def _choices(hint: Any) -> list[str]:
    """Returns the words that a field takes, with ``a number`` if it also takes numbers."""
    if typing.get_origin(hint) is Literal:
        return list(typing.get_args(hint))
    return [word for part in typing.get_args(hint) for word in (_choices(part) or ["a number"])]


def _convert(values: dict[str, Any], cls: type[T], where: str = "") -> T:
    """Returns ``values`` as ``cls``, with types and ranges checked."""
    try:
        return msgspec.convert(values, cls)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at `$.")
        name = path.strip("`").partition("[")[0]
        wanted = what.replace("`", "").replace("null", "None").replace("Expected ", "expected ")
        if wanted.startswith("Invalid enum value"):
            wanted = f"unknown; choose {', '.join(_choices(typing.get_type_hints(cls)[name]))}"
        raise UserError(f"{where}{name}={values.get(name)!r}: {wanted}") from None


def difference(config: Config, other: Config) -> list[tuple[str, Any, Any]]:
    """Returns the fields in which ``config`` differs from ``other``: (name, value, other value or None)."""
    mine, theirs = flat(config), flat(other)
    return [(name, mine[name], theirs.get(name)) for name in mine if name not in theirs or mine[name] != theirs[name]]

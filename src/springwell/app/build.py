"""From a Config to the objects of the method: schedule, energy, samplers, objective, and the task that trains them."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from springwell.app.config import Config, from_dict, to_dict
from springwell.data.labels import Labels
from springwell.data.options import ImageOptions
from springwell.data.source import DataSource, open_data
from springwell.data.spec import UnusableDataError
from springwell.energy import EnergyResNet, EnergyUNet, FourierMLP, ScaledEnergy
from springwell.energy.base import EnergyFunction
from springwell.energy.prior import Prior
from springwell.energy.residual import LevelEnergy, NoiseMLP, NoiseUNet, ResidualEnergy, know_classes
from springwell.errors import UserError, kind_of
from springwell.evaluation.points import Measurable, must_dequantise
from springwell.level import LevelSampler
from springwell.model import Model
from springwell.noise import Noise, Stream
from springwell.normalised import Focus, Normalised, Weights
from springwell.objectives import DSM, Marginal, Objective, Recovery
from springwell.progress import SILENT, Reporter
from springwell.samplers import make_kernel
from springwell.schedule import NoiseSchedule
from springwell.store.checkpoint import Checkpoint, match
from springwell.training.task import MakeObjective, Task

# First step size of chains that a model without chains is asked for, as a share of sigma_{t+1}.
STEP_FRACTION = 0.4
# How the names of the numbers of classes end among the tensors of an energy.
CLASS_WEIGHT = "classes.weight"
# Of data that moments are taken from.
FEW_NUMBERS = 1 << 25


def build_schedule(config: Config) -> NoiseSchedule:
    """The noise levels."""
    c: Any = config.schedule
    extra = {} if c.initial_noise is None else {"initial_noise": c.initial_noise}
    if c.schedule in ("t6", "marginal"):
        return NoiseSchedule.t6(c.num_levels, **extra) if c.schedule == "t6" else NoiseSchedule.marginal(**extra)
    extra["top_spring"] = c.top_spring
    if c.schedule == "linear":
        return NoiseSchedule.linear(c.num_levels, **extra)
    if c.schedule == "sigmas":
        return NoiseSchedule.from_sigmas(c.sigmas, **extra)
    return NoiseSchedule.log_snr(c.num_levels, *c.log_snr, **extra)


def build_energy(
    config: Config, schedule: NoiseSchedule, event_shape: tuple[int, ...], network: nn.Module | None = None
) -> nn.Module:
    """The untrained energy; its weights follow from the seed and the caller's generator is left alone.

    Args:
        config: The configuration.
        schedule: The noise levels.
        event_shape: Shape of one sample.
        network: Your own network (y, t) -> ``[N]``, which the config calls ``own``.
    """
    c: Any = config.network
    if network is None:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(config.training.seed)
            network = _network(config, schedule, event_shape)
            if config.labels.classes:
                know_classes(network, len(config.labels.classes))
    if c.network.startswith("residual"):
        prior = Prior.outline(event_shape, len(c.atoms))
        return LevelEnergy(ResidualEnergy(network, prior), schedule, config.labels.classes)
    return ScaledEnergy(network, schedule, c.output_scale, c.base_precision)


def _network(config: Config, schedule: NoiseSchedule, event_shape: tuple[int, ...]) -> nn.Module:
    c: Any = config.network
    if c.network == "own":
        raise UserError("the network is one of your own, which no file holds; give it in Python: load(folder, MyEnergy())")
    wanted = 1 if config.of_vectors else 3
    if len(event_shape) != wanted:
        takes, use = ("vectors", "resnet, unet or residual-unet") if wanted == 1 else ("images", "mlp or residual-mlp")
        shape = f"data={config.data!r} has shape {list(event_shape)}"
        raise UserError(f"network={c.network!r}: takes {takes}, but {shape}; use {use}")
    if c.network == "mlp":
        return FourierMLP(event_shape[0], schedule.num_levels, c.width, c.depth, c.num_features, c.bandwidths)
    inputs = 2 + len(getattr(c, "atoms", ()))
    if c.network == "residual-mlp":
        return NoiseMLP(event_shape[0], inputs, c.width, c.depth, c.num_features, c.bandwidths)
    channels, height, width = event_shape
    if c.network == "residual-unet":
        size = (c.width, c.multipliers, c.num_blocks, c.unshuffle, c.dense_units)
        return NoiseUNet((channels, height, width), inputs, *size, c.dropout)
    size = (channels, c.width, c.multipliers, c.num_blocks, c.unshuffle)
    unet = c.network == "unet"
    image = EnergyUNet(*size, c.dense_units, (height, width)) if unet else EnergyResNet(*size, c.spectral_norm)
    image.check_size(height, width)
    return image


def build_samplers(config: Config, schedule: NoiseSchedule) -> tuple[LevelSampler, LevelSampler]:
    """How levels are drawn, in training and in generation, with the first step sizes."""
    c = config.sampler
    name = "mala" if c.kernel == "none" else c.kernel
    fraction = STEP_FRACTION if c.kernel == "none" else c.step_fraction
    step_size = (schedule.langevin_step if fraction is None else fraction * schedule.sigma[1:]).float()
    training = LevelSampler(make_kernel(name, c.num_leapfrog), c.num_steps, step_size, c.start, c.jump_proposals)
    jumps = c.jump_proposals if c.sample_jump_proposals is None else c.sample_jump_proposals
    kernel = make_kernel(name, c.num_leapfrog, c.noise_scale)
    generation = LevelSampler(kernel, config.effective_sample_steps, step_size, c.start, jumps)
    return training, generation


def build_objective(config: Config) -> MakeObjective:
    """The function that makes the objective; see :class:`springwell.training.task.Task`."""
    c: Any = config.objective

    def make(energy: nn.Module, schedule: NoiseSchedule, sampler: LevelSampler, differentiated: EnergyFunction) -> Objective:
        if c.objective == "dsm":
            return DSM(energy, schedule, differentiated, c.dsm_target)
        if c.objective == "normalised":
            recovery = Recovery(energy, schedule, sampler, differentiated=differentiated) if c.recovery_weight else None
            weights = Weights(
                c.noise_weight, c.total_weight, c.classifier_weight, c.recovery_weight, c.balance, c.control_limit
            )
            focus = Focus(c.focus_share, c.focus_sigma, c.focus_width)
            return Normalised(energy, schedule, weights, focus, recovery, differentiated, config.labels.label_dropout)
        kind = Marginal if c.objective == "marginal" else Recovery
        return kind(energy, schedule, sampler, differentiated=differentiated)

    return make


def build_task(config: Config, data: DataSource, network: nn.Module | None = None, init_from: Model | None = None) -> Task:
    """What a config trains on ``data``.

    Args:
        config: The configuration.
        data: The data.
        network: Your own network.
        init_from: A trained model of the same network, whose weights and step sizes are the first ones.
    """
    schedule = build_schedule(config)
    if network is not None:
        check_network(network, data.event_shape, schedule.num_levels)
    energy = build_energy(config, schedule, data.event_shape, network)
    training, generation = build_samplers(config, schedule)
    if isinstance(energy, LevelEnergy) and init_from is None:
        # Enough training data to know their moments by.
        num = max(1000, min(50_000, FEW_NUMBERS // math.prod(data.event_shape)))
        some = data.sample(Noise(config.training.seed, torch.arange(num), Stream.MOMENTS))
        energy.energy.start_at(some, config.network.atoms)  # type: ignore[union-attr]
    if init_from is not None:
        template = {**energy.state_dict(), "step_size": training.steps(torch.arange(schedule.num_levels))}
        found: dict[str, Tensor] = {
            name.removeprefix("energy."): tensor.detach().cpu() for name, tensor in init_from.tensors().items()
        }
        if isinstance(energy, LevelEnergy):
            # Classes may be added, whose embeddings start at 0, or left out: without a label their embeddings count as 0.
            with_classes = {name: tensor for name, tensor in template.items() if name.endswith(CLASS_WEIGHT)} | found
            found = {
                name: tensor for name, tensor in with_classes.items() if name in template or not name.endswith(CLASS_WEIGHT)
            }
        match({name: found[name] for name in found if name not in ("shift", "scale")}, template, "init_from")
        energy.load_state_dict({name: found[name] for name in energy.state_dict()})
        training = training.with_steps(found["step_size"])
    make, sampler = build_objective(config), config.sampler
    metadata = {"name": config.data, "config": to_dict(config)}
    target = sampler.target_acceptance
    labels = build_labels(config, data) if config.labels.classes else None
    return Task(energy, schedule, training, generation, make, data, config.training, target, sampler.denoise, metadata, labels)


def with_classes(config: Config, data: DataSource) -> Config:
    """``config`` with the names of the classes of ``data``, where it asks for all of them."""
    if config.labels.classes != ("all",):
        return config
    with _named(config.data):
        classes = data.labels().classes
    return replace(config, labels=replace(config.labels, classes=classes))


def build_labels(config: Config, data: DataSource) -> Labels:
    """The labels that a config trains with."""
    options = config.labels
    with _named(config.data):
        labels = data.labels()
        if labels.classes != options.classes:
            names, found = " ".join(options.classes), " ".join(labels.classes)
            raise UnusableDataError(f"has the classes {found[:200]}, not {names[:200]}; use classes=('all',)")
        if options.labelled is not None:
            labels = labels.limited(options.labelled, config.training.seed)
    return labels


@contextmanager
def _named(data: str) -> Iterator[None]:
    """Errors that begin with the name of the data set."""
    try:
        yield
    except UnusableDataError as error:
        raise UserError(f"data={data!r}: {error}") from None


def check_network(network: nn.Module, event_shape: tuple[int, ...], num_levels: int) -> None:
    """Refuses a user's network that cannot be called at the first and the last level, or returns something else."""
    y, t = torch.zeros(2, *event_shape, requires_grad=True), torch.tensor([0, num_levels - 1])
    wanted = f"y {list(y.shape)} and levels t = {t.tolist()}"
    try:
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):
            f = copy.deepcopy(network).cpu().eval()(y, t)
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        must = f"it must take levels 0 to {num_levels - 1} and return [2]"
        raise UserError(f"network: fails at {wanted} ({type(error).__name__}: {reason}); {must}") from error
    if not isinstance(f, Tensor) or f.shape != (2,) or not f.is_floating_point():
        found = f"{f.dtype} {list(f.shape)}" if isinstance(f, Tensor) else kind_of(f)
        hint = ", as f.squeeze(1) does" if isinstance(f, Tensor) and f.shape == (2, 1) else ""
        raise UserError(f"network: returns {found} at {wanted}; it must return floats [2], one number per sample{hint}")
    if f.isnan().any():
        raise UserError(f"network: returns NaN at y = 0, {wanted}; it must return numbers")
    if not f.requires_grad or torch.autograd.grad(f.sum(), y, allow_unused=True)[0] is None:
        raise UserError("network: has no gradient with respect to y; compute f from y by torch, without detach or no_grad")
    if not any(p.requires_grad for p in network.parameters()):
        raise UserError("network: has no parameters that require a gradient; give it some, or call network.requires_grad_()")


def data_notes(config: Config, data: DataSource) -> Iterator[str]:
    """Lines about data whose likelihood no model can have."""
    if data.cell and not config.images.dequantise and float(build_schedule(config).sigma_cum[0]) == 0:
        what = "grey values have no density, and these are neither dequantised nor noisy"
        yield f"{config.data}: {what}; for likelihoods, spread them (option dequantise) or add noise (option initial_noise)"


def network_notes(network: nn.Module) -> Iterator[str]:
    """Lines about layers whose output in training depends on more than y and t."""
    kinds = {type(module).__name__: module for module in network.modules()}
    for name, module in kinds.items():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            yield f"network: has {name}, so f of a sample depends on the others of its batch; use LayerNorm or GroupNorm"
        elif isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
            yield f"network: has {name}, so f changes at random from step to step of a chain; leave it out"


def build_model(config: Config, checkpoint: Checkpoint, network: nn.Module | None = None) -> Model:
    """The model whose tensors a file holds."""
    tensors, path = checkpoint.tensors, checkpoint.path
    if "shift" not in tensors or tensors["shift"].ndim < 1:
        raise UserError(f"{path}: not a model of springwell (it has no tensor 'shift')")
    schedule, event_shape = build_schedule(config), tuple(tensors["shift"].shape)
    if network is None:
        with torch.device("meta"):
            # Whatever sizes a configuration claims, nothing is allocated before the tensors are known to have them.
            outline: nn.Module = build_energy(config, schedule, event_shape)
    else:
        outline = build_energy(config, schedule, event_shape, network)
    template = {f"energy.{name}": tensor for name, tensor in outline.state_dict().items()}
    template |= {"step_size": torch.zeros(schedule.num_levels), "shift": torch.zeros(event_shape)}
    match(tensors, template | {"scale": torch.zeros(event_shape)}, str(path))
    for name in ("step_size", "scale"):
        if not bool((tensors[name] > 0).all()):
            raise UserError(f"{path}: '{name}' has values that are not positive")
    energy = build_energy(config, schedule, event_shape, network)
    energy.load_state_dict({name.removeprefix("energy."): t for name, t in tensors.items() if name.startswith("energy.")})
    _, generation = build_samplers(config, schedule)
    sampler = generation.with_steps(tensors["step_size"])
    model = Model(energy, schedule, sampler, tensors["shift"], tensors["scale"], denoise=config.sampler.denoise)
    model.iteration = checkpoint.iteration or config.training.iterations
    model.source, model.metadata = path, {"name": config.data, "config": to_dict(config)}
    return model


def config_of(model: Model) -> Config:
    """The configuration that a model was trained with."""
    if "config" not in model.metadata:
        raise UserError("model: was not trained from a configuration; give its data and settings yourself")
    return from_dict(model.metadata["config"])


def measurable_data(model: Model, reporter: Reporter = SILENT) -> Measurable:
    """The data that a model is measured on, not augmented, and dequantised if they would have no density otherwise."""
    if model.label:
        kept = "measure the model itself, or give data of that class alone to springwell.evaluation.likelihood.measure"
        raise UserError(f"model: is given the class {model.label!r}, and its data have all classes; {kept}")
    images = config_of(model).images
    images = replace(images, flip=False, dequantise=images.dequantise or must_dequantise(model))
    data = open_model_data(model, images, reporter)
    return Measurable(data, images.dequantise and data.cell > 0)


def open_model_data(model: Model, images: ImageOptions | None = None, reporter: Reporter = SILENT) -> DataSource:
    """The data that a model is measured on, in its coordinates, read as ``images`` says instead of as in training."""
    config = config_of(model)
    try:
        data = open_data(config.data, images or config.images, reporter, config.labels.label_column)
    except UserError as error:
        moved = "; where they have moved, evaluate, likelihood and score find them by --data"
        raise UserError(f"{error}{moved if 'no such file' in str(error) else ''}") from None
    if data.event_shape != model.event_shape:
        shapes = f"{list(data.event_shape)}, the model's {list(model.event_shape)}"
        raise UserError(f"data={config.data!r}: its samples have shape {shapes}; give data of the model's shape")
    return data.in_units(model.shift, model.scale)

"""The public functions: train, load, save and push_to_hub. The command line is one client of them."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from springwell.app.build import build_model, build_task, data_notes, network_notes, with_classes
from springwell.app.card import write_card
from springwell.app.config import Config, did_you_mean, from_dict, to_dict, with_fields
from springwell.app.presets import preset, recipe_for
from springwell.data.arrays import array_source
from springwell.data.source import DataSource, open_data
from springwell.errors import InterruptionError, UserError, kind_of
from springwell.level import LevelSampler
from springwell.model import LogZ, Model
from springwell.progress import Reporter, Silent, Terminal
from springwell.samplers import make_kernel
from springwell.schedule import NoiseSchedule
from springwell.store import zoo
from springwell.store.checkpoint import Checkpoint, save_tensors
from springwell.store.files import write_json
from springwell.store.hub import HUB_ID, download, upload
from springwell.store.run import TEMPORARY, Run, read_log_z
from springwell.training.loop import Hooks, Result, fit
from springwell.training.processes import make_accelerator

# How a model is sampled by default; and all fields whose change does not change the model that comes out, so that a run may be
# resumed with other values.
SAMPLING_FIELDS = frozenset({"sample_steps", "sample_jump_proposals", "noise_scale", "denoise"})
_WATCHING = {"log_every", "checkpoint_every", "preview_every", "fid_every", "fid_samples", "keep", "tensorboard"}
FREE_FIELDS = SAMPLING_FIELDS | _WATCHING | {"on_divergence", "data_root"}
ARRAY = "array"
Data = str | Tensor | np.ndarray | Dataset[Any] | tuple[Any, Any]


def train(
    config: str | Config | None = None,
    *,
    data: Data | None = None,
    network: nn.Module | str | None = None,
    out: Path | str | None = None,
    init_from: Model | Path | str | None = None,
    device: str = "auto",
    reporter: Reporter | None = None,
    **fields: Any,
) -> Model:
    """Trains a model and returns it.

        model = train("checkerboard", iterations=500, seed=1)             # a preset by name, any field by keyword
        model = train(data=x, network=MyEnergy(), iterations=500)         # your own data and network

    Args:
        config: The name of a preset, or a Config. Default: the recipe that suits the data.
        data: A tensor, an array or a Dataset ``[N, ...]`` of vectors ``[N, D]`` or images ``[N, C, H, W]``; or the name of a
            data set. Default: the preset's. Labels come as a pair (data, labels) or a Dataset of such pairs, and
            ``classes=("all",)`` learns them.
        network: Your own energy network: a module that maps y ``[N, ...]`` and levels t ``[N]`` to ``[N]``; it is
            copied. Or the name of a built-in network, such as ``mlp``.
        out: The run directory. An interrupted training resumes from it. Default: nothing is kept.
        init_from: A trained model, or the path or name of one. Training starts from its weights.
        device: ``auto``, ``cpu``, ``cuda``, ...
        reporter: Receives progress updates. Default: a progress bar on stderr; ``Silent()`` for none.
        **fields: Any field of the configuration, such as ``iterations``, ``batch``, ``lr`` or ``seed``.

    Examples:
        >>> x = torch.randn(1000, 2, generator=torch.Generator().manual_seed(0))
        >>> model = sw.train(data=x, iterations=2, reporter=sw.Silent())
        >>> model.sample(3).shape
        torch.Size([3, 2])
    """
    reporter = reporter or Terminal()
    if not hasattr(reporter, "bar"):
        raise UserError(f"reporter: is {kind_of(reporter)}; give a Reporter, such as Silent()")
    if out is not None and not isinstance(out, (str, Path)):
        raise UserError(f"out: is {kind_of(out)}; give the path of a folder, or None to keep nothing")
    if config is None and data is None:
        raise UserError("train: needs the name of a preset, as in train('checkerboard'), or data=")
    source = None if data is None or isinstance(data, str) else array_source(data)
    if isinstance(config, str):
        config = preset(config)
    elif config is None:
        opened = source or open_data(str(data))
        config = recipe_for(opened.event_shape)
    elif not isinstance(config, Config):
        raise UserError(f"config: is {kind_of(config)}; give the name of a preset or a Config")
    config = _adapted(config, data, network, fields)
    own = None if isinstance(network, str) else network
    with tempfile.TemporaryDirectory(prefix=TEMPORARY) if out is None else nullcontext(out) as folder:
        path = Path(folder) / "run" if out is None else Path(folder)
        result = train_run(config, path, device, reporter, given=Given(init_from, source, own))
        if result.status == "interrupted" and out is None:
            raise InterruptionError("train: was interrupted, and nothing is kept because out= was not given")
        model = load_folder(path, copy.deepcopy(own))
    if out is None:
        model.source = None
    return model


def _adapted(config: Config, data: Data | None, network: object, fields: dict[str, Any]) -> Config:
    """The config with the caller's data, network and fields."""
    if network == "own":
        raise UserError("network='own': is what a file calls a network of your own; give the nn.Module itself")
    if isinstance(network, str):
        fields = {"network": network, **fields}
    elif network is not None:
        if not isinstance(network, nn.Module):
            raise UserError(f"network: is {kind_of(network)}; give an nn.Module that maps (y, t) to [N], such as MyEnergy()")
        fields = {"network": "own", **fields}
    if data is not None:
        fields = {"data": data if isinstance(data, str) else ARRAY, **fields}
    config = with_fields(config, **fields)
    config.validate()
    return config


class Given(NamedTuple):
    """What the caller brings to a run.

    Attributes:
        init_from: A trained model, or the path or name of one. Training starts from its weights.
        data: The data, if they differ from those that the config names.
        network: Your own network.
    """

    init_from: Model | Path | str | None = None
    data: DataSource | None = None
    network: nn.Module | None = None


def train_run(
    config: Config,
    out: Path | str,
    device: str = "auto",
    reporter: Reporter | None = None,
    hooks: Hooks | None = None,
    given: Given | None = None,
) -> Result:
    """Trains the run in ``out``, from the beginning or from where it stopped.

    Args:
        config: The configuration. For an existing run it must be the same, except for more iterations.
        out: The run directory.
        device: ``auto``, ``cpu``, ``cuda``, ...
        reporter: Receives progress updates. Default: a progress bar on stderr; ``Silent()`` for none.
        hooks: Previews and measurements beside training.
        given: Weights, data and a network of the caller's own.
    """
    config.validate()
    init_from, data, network = given or Given()
    run, accelerator = Run(out), make_accelerator(device, config.training.precision)
    reporter = (reporter or Terminal()) if accelerator.is_main_process else Silent()
    if data is None:
        with accelerator.main_process_first():
            # The first process may have to prepare the images that the others then find.
            data = open_data(config.data, config.images, reporter, config.labels.label_column)
    config = with_classes(config, data)
    if init_from is not None and not isinstance(init_from, Model):
        if not isinstance(init_from, (str, Path)):
            raise UserError(f"init_from: is {kind_of(init_from)}; give a Model, or the path or name of one")
        init_from = load(init_from, network, warn=reporter.warn)
    for note in (*data_notes(config, data), *(() if network is None else network_notes(network))):
        reporter.warn(note)
    task = build_task(config, data, network, init_from)
    if accelerator.is_main_process:
        run.begin(to_dict(config), FREE_FIELDS)
    return fit(task, run, accelerator, reporter, hooks)


def load(
    source: Path | str,
    network: nn.Module | None = None,
    device: torch.device | str = "cpu",
    warn: Callable[[str], None] = lambda line: None,
    **hub: Any,
) -> Model:
    """Loads a model: the finished model of a run, or else the moving average in its newest good checkpoint.

    Args:
        source: A run directory or a folder that ``model.save`` wrote; the name of a model that ships with springwell, also as
            ``zoo:NAME``; or ``owner/name`` or ``owner/name@revision`` on the Hugging Face hub.
        network: Your own network, if the model was trained with one; its weights are overwritten.
        device: Device of the model: ``auto``, ``cpu``, ``cuda``, ...
        warn: Receives a line about every damaged file that is skipped.
        **hub: Options of ``huggingface_hub.snapshot_download``, such as ``token`` or ``cache_dir``.

    Examples:
        >>> sw.load("checkerboard")
        <springwell model checkerboard: 4 levels, vectors 2, 29,124 parameters, 30 MCMC steps per level, iteration 2,200>
    """
    return load_folder(find(source, **hub), network, device, warn)


def find(source: Path | str, **hub: Any) -> Path:
    """Returns the folder of the model that ``source`` names, and downloads it if necessary; see :func:`load`."""
    if not isinstance(source, (str, Path)):
        raise UserError(f"source: is {kind_of(source)}; give a folder, the name of a model that ships, or owner/name")
    name = str(source)
    if name.startswith("zoo:") and (shipped := name.removeprefix("zoo:")) in zoo.names():
        return zoo.folder(shipped)
    if name in zoo.names() and not Run(source).config_path.exists():
        return zoo.folder(name)
    if name and Path(source).is_dir():
        return Path(source)
    if match_id := HUB_ID.fullmatch(name):
        return download(*match_id.groups(), **hub)
    if "/" not in name and (near := did_you_mean(name.removeprefix("zoo:"), zoo.names())):
        raise UserError(f"{source}: not a run, nor a model that ships{near}")
    raise UserError(
        f"{source}: not a run, nor a model that ships ({', '.join(zoo.names())}), nor owner/name on the hub; "
        "give a directory that `springwell train` wrote"
    )


def load_folder(
    folder: Path,
    network: nn.Module | None = None,
    device: torch.device | str = "cpu",
    warn: Callable[[str], None] = lambda line: None,
) -> Model:
    """Loads the model of a run directory, or of any folder with the files of a finished run."""
    run = Run(folder)
    if network is not None and (not callable(network) or isinstance(network, type)):
        raise UserError(f"network: is {kind_of(network)}; give the network itself, such as MyEnergy()")
    if not run.config_path.exists():
        raise UserError(f"{folder}: not a run (it has no config.json); give a directory that `springwell train` wrote")
    description = run.read_description()
    config = None if "parts" in description else from_dict(description, str(run.config_path))
    if config is None and network is None:
        raise UserError(f"{folder}: its energy is one of your own, which no file holds; give it: load(folder, energy)")
    problem: UserError | None = None
    for checkpoint in run.candidates(warn):
        try:
            if config is None:
                model = _from_parts(description["parts"], checkpoint, network)
            else:
                model = build_model(config, checkpoint, network)
        except UserError as error:
            if network is not None or (config is not None and config.network.network == "own"):
                raise
            problem = problem or error
            warn(f"passing over a bad checkpoint: {error}")
            continue
        model.stored_log_z = partial(_stored_log_z, run, model)
        return model.to(device)
    if problem is not None:
        raise UserError(f"{folder}: {problem}, and there is no good checkpoint; fetch or train it again")
    raise UserError(f"{folder}: has no good checkpoint yet; train it first")


def _stored_log_z(run: Run, model: Model) -> LogZ | None:
    return read_log_z(run.likelihood_path, model) if run.likelihood_path.exists() else None


def save(model: Model, folder: Path | str) -> None:
    """Writes a model: config.json, model.safetensors, model.json and, if there is none yet, its card README.md.

    A model that was saved in the folder before is replaced. The folder of a run is refused.

    ``load(folder)`` loads a model that was trained from a Config; add ``network=`` if the network was your own.
    ``load(folder, network=energy)`` loads a model that was assembled from parts.

    Examples:
        >>> sw.save(sw.load("checkerboard"), "mine")
        >>> sw.load("mine").event_shape
        (2,)
    """
    if not isinstance(model, Model):
        raise UserError(f"model: is {kind_of(model)}; give a Model")
    if not isinstance(folder, (str, Path)):
        raise UserError(f"folder: is {kind_of(folder)}; give a path")
    if model.label:
        raise UserError(f"model: is given the class {model.label!r}; save the model itself, and give it a class when loaded")
    folder = Path(folder)
    if (folder / "checkpoints").exists():
        raise UserError(f"{folder}: holds a run with its checkpoints, which a saved model would replace; choose another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror}); choose another folder") from None
    description = model.metadata.get("config") or {"parts": _parts(model)}
    write_json(folder / "config.json", description)
    save_tensors(folder / "model.safetensors", model.tensors(), model.iteration)
    if "config" in model.metadata:
        write_card(model, folder)


def push_to_hub(model: Model, repository: str, **options: Any) -> str:
    """Uploads a model to ``owner/name`` on the Hugging Face hub and returns the address of the commit.

    Args:
        model: The model.
        repository: ``owner/name``; it is made if it does not exist.
        **options: ``private``, ``token``, ``commit_message``.

    Examples:
        >>> sw.push_to_hub(sw.load("checkerboard"), "owner/name")  # doctest: +SKIP
        'https://huggingface.co/owner/name'
    """
    with tempfile.TemporaryDirectory() as folder:
        save(model, folder)
        return upload(Path(folder), repository, **options)


def _parts(model: Model) -> dict[str, Any]:
    """The parts of a model that are neither its energy nor tensors, for JSON."""
    sampler, schedule = model.sampler, model.schedule
    if sampler.made.name == "custom":
        raise UserError("sampler: has a kernel of its own, which no file holds; use langevin, mala, hmc or nuts to save it")
    return {
        "schedule": {"sigma": schedule.sigma.tolist(), "spring": schedule.spring.tolist()},
        "sampler": sampler.description(),
        "denoise": model.denoise,
    }


def _from_parts(parts: Any, checkpoint: Checkpoint, network: nn.Module | None) -> Model:
    tensors, path = checkpoint.tensors, checkpoint.path
    assert network is not None
    try:
        weights = {name.removeprefix("energy."): t for name, t in tensors.items() if name.startswith("energy.")}
        if isinstance(network, nn.Module):
            network.load_state_dict(weights)
        schedule, s = parts["schedule"], parts["sampler"]
        sigma = torch.tensor(schedule["sigma"], dtype=torch.float64)
        levels = NoiseSchedule(sigma, torch.tensor(schedule["spring"], dtype=torch.bool))
        kernel = make_kernel(s["kernel"], **s["options"])
        sampler = LevelSampler(kernel, int(s["num_steps"]), tensors["step_size"], s["start"], int(s["jump_proposals"]))
        model = Model(network, levels, sampler, tensors["shift"], tensors["scale"], denoise=bool(parts["denoise"]))
    except UserError:
        raise
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(f"{path}: does not fit this network ({reason}); give the one it was saved with") from None
    model.iteration, model.source = checkpoint.iteration, path
    return model

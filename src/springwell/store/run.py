"""A run directory: what is where, and how a model is read back from it.

config.json           the configuration, resolved
metrics.jsonl         one line per --log-every iterations
fid.jsonl             one line per --fid-every iterations, if asked for
checkpoints/          the newest training states
previews/             pictures made while training
model.safetensors     the finished model (the moving average), with its step sizes
model.json            its SHA-256, shapes and iteration; written last, so a run is finished exactly when it is there
evaluation.json       what ``springwell evaluate`` measured, and its pictures beside it
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from springwell.app.config import Config, difference, from_dict, to_dict
from springwell.errors import UserError
from springwell.model import Model, build_energy, build_schedule, model_tensors
from springwell.store import zoo
from springwell.store.checkpoint import Checkpoint, good_checkpoints, match, read_checkpoint, save_tensors
from springwell.store.files import is_empty, locked, read_json, read_lines, write_atomically
from springwell.store.hub import HUB_ID, download

# Changing these does not change the model that comes out, so a run may be resumed with other values.
FREE_FIELDS = {
    "log_every",
    "checkpoint_every",
    "preview_every",
    "fid_every",
    "fid_samples",
    "keep",
    "on_divergence",
    "tensorboard",
    "data_root",
    "sample_steps",
    "sample_jump_proposals",
    "noise_scale",
    "denoise",
}


class Run:
    """The files of one run."""

    def __init__(self, path: Path | str):
        self.path = Path(path)
        self.config_path = self.path / "config.json"
        self.metrics_path = self.path / "metrics.jsonl"
        self.fid_path = self.path / "fid.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self.previews = self.path / "previews"
        self.model_path = self.path / "model.safetensors"
        self.record_path = self.path / "model.json"
        self.evaluation_path = self.path / "evaluation.json"

    @property
    def finished(self) -> bool:
        return self.record_path.exists()

    def read_config(self) -> Config:
        return from_dict(read_json(self.config_path), str(self.config_path))

    def begin(self, config: Config) -> None:
        """Makes the directory, or checks that the run in it is of the same config. Changes nothing else."""
        try:
            known = self.read_config() if self.config_path.exists() else None
            if known is not None:
                self._check_same(config, known)
                if known == config or self.finished:
                    return
            elif self.path.exists() and not is_empty(self.path, self.config_path.name):
                raise UserError(f"--out {self.path}: exists and is not a run (it has no config.json); choose another --out")
            self.path.mkdir(parents=True, exist_ok=True)
            if not os.access(self.path, os.W_OK):
                raise PermissionError(13, "Permission denied")
            write_atomically(self.config_path, json.dumps(to_dict(config), indent=1) + "\n")
        except OSError as error:
            raise UserError(f"--out {self.path}: cannot be written ({error.strerror}); choose another --out") from None

    @contextlib.contextmanager
    def alone(self, warn: Callable[[str], None]) -> Iterator[None]:
        """Raises UserError if another process trains this run, and keeps others out."""

        def busy() -> None:
            raise UserError(f"--out {self.path}: another process is training it; wait for that, or choose another --out")

        with locked(self.path, busy, warn):
            yield

    def _check_same(self, config: Config, known: Config) -> None:
        for name, mine, theirs in difference(config, known):
            if name not in FREE_FIELDS:
                option = f"--{name.replace('_', '-')}"
                raise UserError(
                    f"--out {self.path}: holds a run with {option} {theirs}, not {mine}; choose another --out or the same value"
                )

    def read_metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl."""
        return read_lines(self.metrics_path)

    def truncate_logs(self, iteration: int, rollbacks: Sequence[dict[str, Any]] | None = None) -> None:
        """Drops the lines after ``iteration``: the resumed run writes them again, and exactly the same.

        Args:
            iteration: The last to keep.
            rollbacks: All lines of rollbacks, if there is a new one.
        """
        for path in (self.metrics_path, self.fid_path):
            if path.exists() or (rollbacks and path == self.metrics_path):
                kept = [line for line in read_lines(path) if line["iteration"] <= iteration]
                if rollbacks and path == self.metrics_path:
                    kept = [line for line in kept if "rollback" not in line] + list(rollbacks)
                    kept.sort(key=lambda line: line["iteration"])
                write_atomically(path, "".join(json.dumps(line) + "\n" for line in kept))

    def save_model(self, energy: torch.nn.Module, step_size: Tensor, shift: Tensor, scale: Tensor) -> None:
        iterations = self.read_config().training.iterations
        save_tensors(self.model_path, model_tensors(energy, step_size, shift, scale), iterations)


def load(source: Path | str, device: torch.device | str = "cpu", warn: Callable[[str], None] = lambda line: None) -> Model:
    """Loads a model: the finished one of a run, or the moving average of its newest good checkpoint.

    Args:
        source: A run directory; else the name of a model that ships with springwell; else ``owner/name`` or
            ``owner/name@revision`` of a model on the Hugging Face hub.
        device: Where to put it.
        warn: Is told of files that had to be passed over.
    """
    return load_folder(find(source), device, warn)


def find(source: Path | str) -> Path:
    """The folder of the model that ``source`` names, downloaded if need be; see :func:`load`."""
    name = str(source)
    if name in zoo.names() and not Run(source).config_path.exists():
        return zoo.folder(name)
    if name and Path(source).is_dir():
        return Path(source)
    if match_id := HUB_ID.fullmatch(name):
        return download(*match_id.groups())
    raise UserError(
        f"{source}: not a run, nor a model that ships ({', '.join(zoo.names())}), nor owner/name on the hub; "
        "give a directory that `springwell train` wrote"
    )


def load_folder(folder: Path, device: torch.device | str = "cpu", warn: Callable[[str], None] = lambda line: None) -> Model:
    """Loads the model of a run directory, or of any folder with the files of a finished run."""
    run = Run(folder)
    if not run.config_path.exists():
        raise UserError(f"{folder}: not a run (it has no config.json); give a directory that `springwell train` wrote")
    config = run.read_config()
    damage = None
    if run.finished:
        try:
            return _assemble(config, read_checkpoint(run.record_path)).to(device)
        except UserError as error:
            damage = error
            if run.checkpoints.exists():
                warn(f"{error}; taking the newest good checkpoint")
    for checkpoint in good_checkpoints(run.checkpoints, warn):
        tensors = {
            name.removeprefix("model."): tensor for name, tensor in checkpoint.tensors.items() if name.startswith("model.")
        }
        try:
            return _assemble(config, checkpoint._replace(tensors=tensors)).to(device)
        except UserError as error:
            damage = damage or error
            warn(f"passing over a bad checkpoint: {error}")
    if damage is not None:
        raise UserError(f"{folder}: {damage}, and there is no good checkpoint; fetch or train it again")
    if run.model_path.exists():
        return _assemble(config, _unrecorded(run, config, warn)).to(device)
    raise UserError(f"{folder}: has no good checkpoint yet; train it first")


def _unrecorded(run: Run, config: Config, warn: Callable[[str], None]) -> Checkpoint:
    """A model without model.json, as version 0.1.0 wrote them; nothing else is left that could be loaded."""
    warn(f"{run.model_path}: has no model.json beside it, so damage to its values would go unnoticed")
    try:
        return Checkpoint(load_file(run.model_path), config.training.iterations, run.model_path)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{run.model_path}: cannot be read ({str(error).splitlines()[0]}); train it again") from None


def _assemble(config: Config, checkpoint: Checkpoint) -> Model:
    tensors, path = checkpoint.tensors, checkpoint.path
    if "shift" not in tensors or tensors["shift"].ndim < 1:
        raise UserError(f"{path}: not a model of springwell (it has no tensor 'shift')")
    schedule = build_schedule(config)
    event_shape = tuple(tensors["shift"].shape)
    with torch.device("meta"):
        # Whatever sizes a configuration claims, nothing is allocated before the tensors are known to have them.
        outline = build_energy(config, schedule, event_shape)
        template = model_tensors(outline, torch.zeros(schedule.num_levels), torch.zeros(event_shape), torch.zeros(event_shape))
    match(tensors, template, str(path))
    for name in ("step_size", "scale"):
        if not bool((tensors[name] > 0).all()):
            raise UserError(f"{path}: '{name}' has values that are not positive")
    energy = build_energy(config, schedule, event_shape)
    energy.load_state_dict({name.removeprefix("energy."): t for name, t in tensors.items() if name.startswith("energy.")})
    step_size, shift, scale = tensors["step_size"], tensors["shift"], tensors["scale"]
    return Model(config, schedule, energy, step_size, shift, scale, checkpoint.iteration, path)


def save_folder(model: Model, folder: Path) -> None:
    """Writes the files of a finished run: config.json, model.safetensors, model.json."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "config.json", json.dumps(to_dict(model.config), indent=1) + "\n")
    tensors = model_tensors(model.energy, model.step_size, model.shift, model.scale)
    save_tensors(folder / "model.safetensors", tensors, model.iteration)

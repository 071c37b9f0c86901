"""Checkpoints that survive crashes: tensors as safetensors, everything else as JSON, nothing ever unpickled.

``checkpoint-00001000.safetensors`` holds the tensors. ``checkpoint-00001000.json`` holds the position, the shapes and the
SHA-256 of the tensor file; it is written last, so a checkpoint exists exactly when its JSON does. Both appear by an atomic
rename of a synced temporary file. Reading goes from the newest to the oldest and takes the first that is whole.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from springwell.errors import UserError
from springwell.store.files import file_sha256, read_regular, write_atomically

FORMAT = 1
ASIDE = "diverged-"
MAX_RECORD = 2**24
_NAME = re.compile(r"checkpoint-(\d{8})\.json")
# Our own files: checkpoints, those set aside, and what a crash left of one.
_FILE = re.compile(rf"({ASIDE})?checkpoint-(\d{{8}})\.(?:json|safetensors)|\.checkpoint-\d{{8}}\.(?:json|safetensors)\..*")


class Checkpoint(NamedTuple):
    """The tensors of a training state, by name, and the iteration it was saved at."""

    tensors: dict[str, Tensor]
    iteration: int
    path: Path


def save_tensors(path: Path, tensors: dict[str, Tensor], iteration: int) -> None:
    """Writes a safetensors file and then, beside it, the JSON that vouches for it; both atomically."""
    data = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    write_atomically(path, data)
    shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
    record = {"format": FORMAT, "iteration": iteration, "sha256": hashlib.sha256(data).hexdigest(), "shapes": shapes}
    write_atomically(path.with_suffix(".json"), json.dumps(record, indent=1))


def save_checkpoint(folder: Path, tensors: dict[str, Tensor], iteration: int, keep: int) -> Path:
    """Saves a checkpoint, then removes all but the newest ``keep``."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"checkpoint-{iteration:08d}.safetensors"
    save_tensors(path, tensors, iteration)
    # A checkpoint of a later iteration that could not be read must not cost the one just written.
    kept = {path.stem, *[p.stem for p in _records(folder)[:keep]]}
    for old in folder.iterdir():
        if (name := _FILE.fullmatch(old.name)) and old.stem not in kept and (not name[1] or int(name[2]) <= iteration):
            old.unlink(missing_ok=True)
    return path


def set_aside(folder: Path, iteration: int) -> None:
    """Takes checkpoints after ``iteration`` out of the way; they are removed when a run has passed them."""
    for path in _records(folder):
        if int(path.stem[-8:]) > iteration:
            for file in (path, path.with_suffix(".safetensors")):
                if file.exists():
                    file.replace(file.with_name(f"{ASIDE}{file.name}"))


def bring_back(folder: Path) -> None:
    """Undoes :func:`set_aside`."""
    # The tensors first: a checkpoint exists when its record does.
    for path in sorted(folder.glob(f"{ASIDE}checkpoint-*"), key=lambda path: path.suffix, reverse=True):
        if _FILE.fullmatch(path.name) and not (whole := path.with_name(path.name.removeprefix(ASIDE))).exists():
            path.replace(whole)


def _records(folder: Path) -> list[Path]:
    """JSON files of the checkpoints, newest first."""
    return sorted((p for p in folder.glob("checkpoint-*.json") if _NAME.fullmatch(p.name)), reverse=True)


def read_checkpoint(record_path: Path) -> Checkpoint:
    """One checkpoint or finished model, verified. Raises UserError with the reason if it is not whole."""
    path = record_path.with_suffix(".safetensors")
    try:
        record: Any = json.loads(read_regular(record_path, MAX_RECORD))
        if record["format"] != FORMAT:
            raise UserError(f"{record_path.name}: format {str(record['format'])[:20]}; this version reads format {FORMAT}")
        iteration, digest, shapes = int(record["iteration"]), record["sha256"], record["shapes"]
        if (name := _NAME.fullmatch(record_path.name)) and iteration != int(name[1]):
            raise UserError(f"{record_path.name}: altered (it says iteration {iteration})")
        if file_sha256(path) != digest:
            raise UserError(f"{path.name}: truncated or altered (its SHA-256 is not the recorded one)")
        tensors = load_file(path)
        if {name: list(tensor.shape) for name, tensor in tensors.items()} != shapes:
            raise UserError(f"{path.name}: its tensors are not the recorded ones")
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"{path.name}: cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, SafetensorError) as error:
        raise UserError(f"{record_path.name}: not a checkpoint of springwell ({type(error).__name__})") from None
    return Checkpoint(tensors, iteration, path)


def good_checkpoints(folder: Path, warn: Callable[[str], None]) -> Iterator[Checkpoint]:
    """Checkpoints that are whole, newest first; says which ones it passes over and why."""
    for record in _records(folder):
        try:
            yield read_checkpoint(record)
        except UserError as error:
            warn(f"passing over a bad checkpoint: {error}")


def match(tensors: dict[str, Tensor], expected: dict[str, Tensor], where: str) -> None:
    """Raises UserError unless ``tensors`` has exactly the expected names, shapes and dtypes, and finite values."""
    for name, tensor in expected.items():
        if name not in tensors:
            raise UserError(f"{where}: has no tensor '{name}'; it belongs to another model")
        if tensors[name].shape != tensor.shape or tensors[name].dtype != tensor.dtype:
            shapes = f"{list(tensors[name].shape)}, expected {list(tensor.shape)}"
            raise UserError(f"{where}: '{name}' is {shapes}; it belongs to another model")
        if not bool(torch.isfinite(tensors[name]).all()):
            raise UserError(f"{where}: '{name}' has values that are not finite")
    if extra := sorted(set(tensors) - set(expected)):
        raise UserError(f"{where}: unknown tensor '{extra[0]}'; it belongs to another model")

"""A run directory: what is where, and what of a model can be read back from it.

config.json           the description of the run
metrics.jsonl         one line per ``log_every`` iterations
fid.jsonl             one line per ``fid_every`` iterations, if asked for
checkpoints/          the newest training states
previews/             pictures made while training
model.safetensors     the finished model (the moving average), with its step sizes
model.json            its SHA-256, shapes and iteration; written last, so a run is finished exactly when it is there
evaluation.json       what ``springwell evaluate`` measured, and its pictures beside it
likelihood.json       what ``springwell likelihood`` measured
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file

from springwell.errors import UserError
from springwell.model import LogZ, Model
from springwell.store.checkpoint import Checkpoint, good_checkpoints, read_checkpoint
from springwell.store.files import flat_sections, is_empty, locked, read_json, read_lines, write_atomically, write_json

# A finished run may be trained on for more of these.
GROWING = "iterations"

# Begins the names of folders that are deleted in the end.
TEMPORARY = "springwell-temporary-"


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
        self.likelihood_path = self.path / "likelihood.json"

    def __str__(self) -> str:
        """The path, but nothing of a folder that will not be kept."""
        return "a model" if TEMPORARY in self.path.parent.name else str(self.path)

    @property
    def finished(self) -> bool:
        return self.record_path.exists()

    def read_description(self) -> dict[str, Any]:
        """What config.json holds."""
        description = read_json(self.config_path)
        if not isinstance(description, dict):
            raise UserError(f"{self.config_path}: expected an object, found {type(description).__name__}")
        return description

    def begin(self, description: dict[str, Any], free: frozenset[str] = frozenset()) -> None:
        """Makes the directory, or checks that the run in it has the same description.

        Args:
            description: Sections of fields, for config.json.
            free: Fields that do not change the model that comes out, so that a run may be resumed with other values. More
                ``iterations`` than a run has had are allowed too: a finished run is then trained on.
        """
        try:
            if self.config_path.exists():
                known = self.read_description()
                if known == description:
                    return
                self._check_same(description, known, free)
                if flat_sections(description).get(GROWING) != flat_sections(known).get(GROWING):
                    self._reopen()
                elif self.finished:
                    return
            elif self.path.exists() and not is_empty(self.path, self.config_path.name):
                raise UserError(f"{self.path}: exists and is not a run (it has no config.json); choose another folder")
            self.path.mkdir(parents=True, exist_ok=True)
            if not os.access(self.path, os.W_OK):
                raise PermissionError(13, "Permission denied")
            write_json(self.config_path, description)
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written ({error.strerror}); choose another folder") from None

    def _reopen(self) -> None:
        """Makes a finished run one that goes on from its last checkpoint."""
        if self.finished:
            if next(good_checkpoints(self.checkpoints, lambda line: None), None) is None:
                gone = "its checkpoints are gone, so it cannot be trained on"
                raise UserError(f"{self.path}: {gone}; give init_from={str(self.path)!r} and another folder")
            self.record_path.unlink()

    def alone(self, warn: Callable[[str], None]) -> contextlib.AbstractContextManager[None]:
        """Raises UserError if another process trains this run, and keeps others out."""

        def busy() -> None:
            raise UserError(f"{self.path}: another process is training it; wait for that, or choose another folder")

        return locked(self.path, busy, warn)

    def _check_same(self, description: dict[str, Any], known: dict[str, Any], free: frozenset[str]) -> None:
        mine, theirs = flat_sections(description), flat_sections(known)
        for name in {**theirs, **mine}:
            if name in free or mine.get(name) == theirs.get(name):
                continue
            if name == GROWING and mine[name] > theirs[name]:
                continue
            held, asked = (f"{name}={values.get(name)!r}" for values in (theirs, mine))
            usable = "the same value or more" if name == GROWING else "the same value"
            raise UserError(f"{self.path}: holds a run with {held}, not {asked}; choose another folder or {usable}")

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

    def candidates(self, warn: Callable[[str], None]) -> Iterator[Checkpoint]:
        """The tensors of the model, best first: of the finished one, then the averages of good checkpoints, newest first.

        Args:
            warn: Receives a line about every file that had to be passed over.
        """
        damage = None
        if self.finished:
            try:
                yield read_checkpoint(self.record_path)
            except UserError as error:
                damage = error
                if self.checkpoints.exists():
                    warn(f"{error}; taking the newest good checkpoint")
        for checkpoint in good_checkpoints(self.checkpoints, warn):
            prefix, tensors = "model.", checkpoint.tensors
            average = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
            yield checkpoint._replace(tensors=average)
        if damage is not None:
            raise UserError(f"{self.path}: {damage}, and there is no good checkpoint; fetch or train it again")
        if not self.finished and self.model_path.exists():
            yield self._unrecorded(warn)

    def _unrecorded(self, warn: Callable[[str], None]) -> Checkpoint:
        """A model without model.json; nothing else is left that could be loaded."""
        warn(f"{self.model_path}: has no model.json beside it, so damage to its values would go unnoticed")
        try:
            return Checkpoint(load_file(self.model_path), 0, self.model_path)
        except (SafetensorError, OSError) as error:
            raise UserError(f"{self.model_path}: cannot be read ({str(error).splitlines()[0]}); train it again") from None


def read_log_z(path: Path, model: Model) -> LogZ:
    """log Z from the likelihood.json at ``path``, which must be of this model."""
    found: Any = read_json(path)
    try:
        levels = tuple(None if z is None else float(z) for z in reversed(found["log_z_levels"]))
        value, lower, upper = (float(found[name]) for name in ("log_z", "log_z_lower", "log_z_upper"))
        log_z = LogZ(value, lower, upper, float(found["log_z_standard_error"]), str(found["verdict"]), levels)
        known = (value, lower, upper, log_z.standard_error, *(z for z in levels if z is not None))
        if not all(map(math.isfinite, known)) or len(levels) not in (0, model.schedule.num_levels):
            raise ValueError
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise UserError(f"{path}: was not written by `springwell likelihood`") from None
    if found.get("weights") != model.fingerprint():
        theirs = f"{found.get('data')}, iteration {found.get('iteration')}"
        ours = f"{model!r}, iteration {model.iteration}"
        raise UserError(f"{path}: is of other weights ({theirs}; the model: {ours}); run `springwell likelihood` again")
    return log_z

"""The one store of finished parts, from which interrupted work goes on.

A part is a dict of arrays, NAME.npz, in a folder that is named by a key of everything that determines its values: other
settings look into another folder and find nothing. A part appears by an atomic rename. The checksums of the file tell a damaged
part, which counts as missing and is computed again. Many processes share a folder and take turns.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from springwell.errors import UserError
from springwell.store.files import is_empty, open_regular, read_json, write_atomically, write_json

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Values = dict[str, np.ndarray]


def key_of(*values: Any) -> str:
    """A name for everything that determines some parts: 16 digits of the SHA-256 of the values as JSON or as ``repr``."""
    return hashlib.sha256(json.dumps(values, default=repr).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Parts:
    """Finished parts of long work.

    Attributes:
        folder: Where the parts are, named by their key; None: nothing is kept.
        rank: The number of this process.
        world: The number of processes.
        barrier: Waits for all processes.
    """

    folder: Path | None = None
    rank: int = 0
    world: int = 1
    barrier: Callable[[], AbstractContextManager[Any]] = nullcontext

    def names(self, prefix: str = "") -> list[str]:
        """The names of all parts that begin with ``prefix``, sorted; some may be damaged."""
        return sorted(path.stem for path in self.folder.glob(f"{prefix}*.npz")) if self.folder else []

    def read(self, name: str) -> Values | None:
        """A part; None if it is missing or damaged."""
        if self.folder is None:
            return None
        try:
            with open_regular(self.folder / f"{name}.npz") as file, np.load(file, allow_pickle=False) as arrays:
                return {key: arrays[key] for key in arrays.files}
        except Exception:
            # zipfile and numpy raise errors of a dozen types at damaged files.
            return None

    def write(self, name: str, values: Mapping[str, np.ndarray | Tensor]) -> None:
        """Keeps a part, in place of one of the same name."""
        if self.folder is None:
            return
        arrays: dict[str, Any] = {k: v if isinstance(v, np.ndarray) else v.detach().cpu().numpy() for k, v in values.items()}
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self.folder / f"{name}.npz", lambda file: np.savez(file, **arrays))

    def remove(self, name: str) -> None:
        """Removes a part, if it is there."""
        if self.folder is not None:
            (self.folder / f"{name}.npz").unlink(missing_ok=True)

    def clear(self) -> None:
        """Removes all parts."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def run(
        self, name: str, tasks: Sequence[Callable[[], dict[str, Tensor]]], device: torch.device | str = "cpu"
    ) -> list[dict[str, Tensor]]:
        """The results of ``tasks``, in order: read where they are kept, computed by one process each where not."""
        import torch

        if self.folder is None:
            return [task() for task in tasks]
        names = [f"{name}-{i}" for i in range(len(tasks))]
        for i, task in enumerate(tasks):
            if i % self.world == self.rank and self.read(names[i]) is None:
                self.write(names[i], task())
        with self.barrier():
            pass
        found = []
        for part in names:
            values = self.read(part)
            if values is None:
                lost = self.folder / f"{part}.npz"
                raise UserError(f"{lost}: is not there; its process has ended? Run the same command again")
            found.append({key: torch.from_numpy(value).to(device) for key, value in values.items()})
        return found


@dataclass(frozen=True)
class Results:
    """A folder of pictures for people, which are parts as well: NAME.png is there exactly when all files of NAME are.

    Attributes:
        out: The folder. One that holds other files, or results of other settings, is refused.
        name: What the results are, such as samples; their settings are in NAME.json.
        record: All settings that determine the files.
    """

    out: Path
    name: str
    record: dict[str, Any]

    def begin(self, digests: Mapping[str, str]) -> list[str]:
        """Makes the folder, if it is not there, and returns the names that are left to do.

        Args:
            digests: The names, each with a digest of what its files depend on beside the settings, or with an empty text. A
                name with another digest than before is done again.
        """
        self.out.mkdir(exist_ok=True)
        settings, images = self.out / f"{self.name}.json", self.out / "images.json"
        if settings.exists():
            known = read_json(settings)
            for field, value in self.record.items():
                theirs = known.get(field) if isinstance(known, dict) else known
                if theirs != value:
                    held = f"holds samples with {field} {theirs}, not {value}"
                    raise UserError(f"out='{self.out}': {held}; choose another folder")
        elif not is_empty(self.out, settings.name):
            raise UserError(f"out='{self.out}': is not empty and has no {settings.name}; choose another folder")
        else:
            write_json(settings, self.record)
        before = read_json(images) if images.exists() else {}
        before = before if isinstance(before, dict) else {}
        changed = [name for name, digest in digests.items() if before.get(name, "") != digest]
        for name in changed:
            (self.out / f"{name}.png").unlink(missing_ok=True)
        if changed:
            write_json(images, before | dict(digests))
        return [name for name in digests if not (self.out / f"{name}.png").exists()]

"""A table's density on disk: table.json says what it is, table.safetensors holds the tensors. Nothing is unpickled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from springwell.errors import UserError
from springwell.evaluation.outliers import Method, ranking, typicality
from springwell.store.files import read_json, write_atomically, write_json
from springwell.tables.density import TableDensity
from springwell.tables.transform import KINDS

DESCRIPTION, TENSORS = "table.json", "table.safetensors"
# Noise levels of the multiscale method, in units of the whitened columns.
SIGMAS = tuple(float(s) for s in np.logspace(-1.5, 0.7, 12))
# Training rows by which percentiles and typical values are known.
MOST_REFERENCE = 5000


class TableModel(NamedTuple):
    """A density with what a command needs to know of its table.

    Attributes:
        density: The density.
        columns: Their names.
        data: Where the table was read from.
        reference: Some training rows ``[N, D]``, float64.
        unseen: Log-densities of training rows that the fit had not seen, nats.
    """

    density: TableDensity
    columns: list[str]
    data: str
    reference: np.ndarray
    unseen: np.ndarray

    def norms(self, x: np.ndarray) -> np.ndarray:
        """sigma |score| ``[N, L]`` of the mixture with noise, over the levels ``SIGMAS``."""
        return self.density.start_norms(x, SIGMAS)

    def ranking(self, method: Method, seed: int = 0) -> Callable[[np.ndarray], np.ndarray]:
        """What a method says of rows, larger for those like the table's; f is compared with that of unseen training rows."""
        if method == "typicality":
            return lambda x: typicality(self.density.log_prob(x), self.unseen)
        return ranking(method, self.reference, self.density.log_prob, self.norms, seed)


def is_table_run(run: str) -> bool:
    """Whether a folder holds a table's density."""
    return (Path(run) / DESCRIPTION).is_file()


def save_table(model: TableModel, folder: Path) -> None:
    """Writes a model, table.json last."""
    tensors = {name: tensor.contiguous() for name, tensor in model.density.state_dict().items()}
    tensors |= {"reference": torch.from_numpy(model.reference), "unseen": torch.from_numpy(model.unseen)}
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / TENSORS, save(tensors))
    about = {"columns": model.columns, "data": model.data, "held_out": float(model.unseen.mean())}
    write_json(folder / DESCRIPTION, {**about, "density": model.density.description()})


def load_table(folder: Path) -> TableModel:
    """Reads what :func:`save_table` wrote. Raises UserError."""
    about = read_json(folder / DESCRIPTION)
    try:
        if about["density"]["transform"] not in KINDS:
            raise ValueError(f"transform {about['density']['transform']!r}")
        tensors = load_file(folder / TENSORS)
        reference, unseen = (tensors.pop(name).numpy() for name in ("reference", "unseen"))
        density = TableDensity.from_description(about["density"])
        density.load_state_dict(tensors)
        return TableModel(density, [str(c) for c in about["columns"]], str(about["data"]), reference, unseen)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise UserError(f"{folder}: is not a table's density ({reason}); train it again") from None

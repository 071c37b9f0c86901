"""The log of a run: metrics.jsonl, fid.jsonl and, if asked for, TensorBoard."""

from __future__ import annotations

import json
import math
from typing import Any

from torch import Tensor

from springwell.errors import UserError
from springwell.store.run import Run


class Log:
    """Writes the lines of a run from an iteration on; does nothing in processes other than the first.

    Args:
        run: The run.
        start: Where the run is resumed; later lines are dropped.
        tensorboard: Whether to write TensorBoard's events too.
        main: Whether this is the first process.
    """

    def __init__(self, run: Run, start: int, tensorboard: bool, main: bool):
        self.run, self.main, self.writer = run, main, None
        if not main:
            return
        run.truncate_logs(start)
        if tensorboard:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                raise UserError("tensorboard=True: is not installed; pip install 'springwell[tensorboard]'") from None
            self.writer = SummaryWriter(run.path / "tensorboard", purge_step=start)
        self.file = run.metrics_path.open("a")

    def write(self, iteration: int, values: dict[str, Any]) -> None:
        """A line of metrics.jsonl."""
        if not self.main:
            return
        self.file.write(json.dumps({"iteration": iteration, **values}) + "\n")
        self.file.flush()
        if self.writer is not None:
            for name, value in values.items():
                for t, v in enumerate(value if isinstance(value, list) else [value]):
                    if v is not None:
                        self.writer.add_scalar(f"{name}/{t}" if isinstance(value, list) else name, v, iteration)

    def measured(self, iteration: int, values: dict[str, Any]) -> None:
        """A line of fid.jsonl."""
        if self.main:
            with self.run.fid_path.open("a") as file:
                file.write(json.dumps({"iteration": iteration, **values}) + "\n")

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        if self.main:
            self.file.close()
        if self.writer is not None:
            self.writer.close()


def level_means(statistics: Tensor, names: tuple[str, ...]) -> dict[str, list[float | None]]:
    """Means per level of the loss and of every statistic; None for a level that no sample had."""
    rows = (statistics[:, 1:] / statistics[:, :1]).T
    return {name: numbers(row) for name, row in zip(("loss", *names), rows, strict=True)}


def numbers(values: Tensor) -> list[float | None]:
    """Six digits of every value, for JSON; None for what is not a number."""
    return [None if math.isnan(v) else float(f"{v:.6g}") for v in values.tolist()]

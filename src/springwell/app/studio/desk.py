"""The loop of a process that works: it takes one job after another from the server and tells how far it is."""

from __future__ import annotations

import math
import signal
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from springwell.app.studio.options import Options
from springwell.app.studio.tasks import TASKS
from springwell.errors import DivergenceError, InterruptionError, UserError
from springwell.progress import Bar, Reporter

if TYPE_CHECKING:
    from springwell.model import Model

# Seconds between two messages on how far a job is.
TELL_EVERY = 0.1


class CancelledError(Exception):
    """The page does not want this job any more."""


class Desk(Reporter):
    """What a job uses: the process's model, and the way back to the page. It is a :class:`springwell.progress.Reporter`.

    Args:
        connection: To the server.
        cancel: Brings the number of a job that is to end.
        runs: The folder of runs.
        device: Where to compute.
    """

    def __init__(self, connection: Connection, cancel: Connection, runs: Path, device: str):
        self.connection, self.cancel, self.runs, self.device = connection, cancel, runs, device
        self._models: dict[str, tuple[float, Model]] = {}
        self._told = 0.0
        self.number = 0
        self._cancelled = 0
        # What a task computes once and asks for again, such as the scores of a model's own data.
        self.known: dict[Any, Any] = {}

    def model(self, name: str) -> Model:
        """The model of a name, loaded once and again when its files changed."""
        from springwell.app.api import load_folder
        from springwell.app.studio.runs import folder_of

        folder = folder_of(name, self.runs)
        stamps = [path.stat().st_mtime for path in (folder / "model.json", folder / "checkpoints") if path.exists()]
        stamp = max(stamps, default=0.0)
        known = self._models.get(name)
        if known is None or known[0] != stamp:
            self.known.clear()
            known = self._models[name] = stamp, load_folder(folder, device=self.device)
        return known[1]

    def chosen(self, options: Options) -> Model:
        """The model that a page asks for, or of it the model of one class."""
        model = self.model(options.text("model"))
        if options.values.get("label") is None:
            return model
        return model.given(options.text("label"), options.number("guidance", 0.0, 20.0))

    def emit(self, event: str, arrays: dict[str, np.ndarray] | None = None, slot: str | None = None, **fields: Any) -> None:
        """Tells the page something.

        Args:
            event: Its name.
            arrays: What comes with it.
            slot: Of all messages with the same slot a page that comes back gets the last. Default: the event.
            **fields: What it says.
        """
        self.connection.send(("event", {"event": event, "slot": slot or event, **fields}, arrays or {}))

    def result(self, **arrays: Any) -> None:
        """Hands over what files can be made of."""
        self.connection.send(("result", {}, {name: np.asarray(array) for name, array in arrays.items()}))

    def check(self) -> None:
        """Ends the job if the page asked for that."""
        while self.cancel.poll():
            self._cancelled = self.cancel.recv()
        if self._cancelled == self.number:
            raise CancelledError

    def progress(self, done: int, total: int, what: str) -> None:
        """Tells how far it is, now and then, and ends the job if the page asked for that."""
        self.check()
        now = time.monotonic()
        if now - self._told >= TELL_EVERY or done >= total:
            self._told = now
            self.emit("progress", done=done, total=total, what=what)

    @contextmanager
    def bar(self, what: str, total: int, start: int = 0) -> Iterator[Any]:
        """A bar whose progress the page shows."""
        yield _Bar(self, what, total, start)

    def warn(self, line: str) -> None:
        """Shows a warning on the page."""
        self.emit("warning", slot=f"warning {line}", text=line)


class _Bar(Bar):
    def __init__(self, desk: Desk, what: str, total: int, start: int):
        self.desk, self.what, self.total, self.done = desk, what, total, start

    def advance(self, steps: int = 1) -> None:
        self.done += steps
        self.desk.progress(self.done, self.total, self.what)


def finite(value: float) -> float | None:
    """A number for JSON, which has no infinity."""
    return value if math.isfinite(value) else None


def work(connection: Connection, cancel: Connection, runs: str, device: str, threads: int | None) -> None:
    """Takes jobs until the server hangs up."""
    import torch

    # Ctrl-C in the terminal reaches every process of the group; the server then ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if threads is not None:
        torch.set_num_threads(threads)
    desk = Desk(connection, cancel, Path(runs), device)
    while True:
        try:
            desk.number, task, values, arrays = connection.recv()
        except (EOFError, OSError):
            return
        try:
            connection.send(_done(desk, task, values, arrays))
        except (BrokenPipeError, ConnectionError):
            return


def _done(desk: Desk, task: str, values: dict[str, Any], arrays: dict[str, np.ndarray]) -> tuple[str, Any, Any]:
    """Does a job; what becomes of it: its kind, its fields, its arrays."""
    try:
        function = getattr(import_module(f"springwell.app.studio.{TASKS[task].module}"), task)
        with warnings.catch_warnings():
            warnings.simplefilter("always", RuntimeWarning)
            warnings.showwarning = lambda message, *_args, **_options: desk.warn(str(message))
            fields = function(desk, Options(values, arrays))
        found = fields.pop("arrays", {}) if fields else {}
        return "done", fields or {}, found
    except CancelledError:
        return "cancelled", {}, {}
    except (UserError, DivergenceError, InterruptionError) as error:
        return "failed", {"text": str(error)}, {}
    except MemoryError:
        return "failed", {"text": "out of memory; ask for fewer samples"}, {}
    except (BrokenPipeError, ConnectionError):
        raise
    except Exception as error:
        first = (str(error).strip() or "no message").splitlines()[0]
        return "failed", {"text": f"unexpected {type(error).__name__}: {first}"}, {}

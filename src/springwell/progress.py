"""Telling a person how far it is: a bar with an ETA in a terminal or a notebook, a line now and then in a log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol


class Bar:
    """How far a piece of work is; this one shows nothing."""

    def advance(self, steps: int = 1) -> None:
        pass

    def note(self, means: dict[str, list[float | None]]) -> None:
        pass


class Reporter(Protocol):
    """What long work talks to; this one shows nothing."""

    def say(self, line: str) -> None:
        return

    def warn(self, line: str) -> None:
        return

    def bar(self, what: str, total: int, start: int = 0) -> AbstractContextManager[Any]:
        """A context manager that gives a :class:`Bar`."""
        return nullcontext(Bar())


class Silent(Reporter):
    """Shows nothing.

    Examples:
        >>> model = sw.train("checkerboard", iterations=2, reporter=sw.Silent())
    """


SILENT = Silent()


class Terminal(Reporter):
    """Shows progress: a bar on stderr in a terminal, a bar below the cell in a notebook, about ten lines on stderr in a log."""

    def __init__(self) -> None:
        from rich.console import Console

        self.console = Console(stderr=True, highlight=False, soft_wrap=True)

    def say(self, line: str) -> None:
        self.console.print(line, markup=False, emoji=False)

    def warn(self, line: str) -> None:
        self.console.print(f"warning: {line}", style="yellow", markup=False, emoji=False)

    @contextmanager
    def bar(self, what: str, total: int, start: int = 0) -> Iterator[Any]:
        if self.console.is_jupyter:
            yield _NotebookBar(what, total, start)
            return
        if not self.console.is_terminal:
            yield _Lines(self, what, total, start)
            return
        from rich.markup import escape
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("ETA"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        with Progress(*columns, console=self.console) as progress:
            task = progress.add_task(escape(what), total=total, completed=start, note="")
            yield _RichBar(progress, task)


def _summary(means: dict[str, list[float | None]]) -> str:
    """Mean loss and the range of acceptance over the levels."""
    loss, acceptance = ([v for v in means.get(name, []) if v is not None] for name in ("loss", "acceptance"))
    accepted = f"  acceptance {min(acceptance):.2f}-{max(acceptance):.2f}" if acceptance else ""
    return f"loss {sum(loss) / len(loss):+.4f}{accepted}" if loss else ""


class _RichBar(Bar):
    def __init__(self, progress: Any, task: Any):
        self.progress, self.task = progress, task

    def advance(self, steps: int = 1) -> None:
        self.progress.advance(self.task, steps)

    def note(self, means: dict[str, list[float | None]]) -> None:
        self.progress.update(self.task, note=_summary(means))


class _Counted(Bar):
    """A bar that is one line of text: how much is done, in what time, and how long the rest will take."""

    def __init__(self, what: str, total: int, start: int):
        self.what, self.total = what, total
        self.done = self.start = start
        self.summary, self.began = "", time.monotonic()

    def note(self, means: dict[str, list[float | None]]) -> None:
        self.summary = _summary(means)

    def line(self) -> str:
        elapsed = time.monotonic() - self.began
        left = elapsed / max(1, self.done - self.start) * (self.total - self.done)
        return f"{self.what}: {self.done}/{self.total}  {elapsed:.0f} s, {left:.0f} s to go  {self.summary}".rstrip()


class _Lines(_Counted):
    """About ten lines over the whole work, for logs; at most one a second, and the last."""

    def __init__(self, terminal: Terminal, what: str, total: int, start: int):
        super().__init__(what, total, start)
        self.terminal, self.shown = terminal, self.began

    def advance(self, steps: int = 1) -> None:
        before, self.done = self.done, self.done + steps
        if before * 10 // self.total == self.done * 10 // self.total:
            return
        now = time.monotonic()
        if now - self.shown >= 1 or self.done >= self.total:
            self.shown = now
            self.terminal.say(self.line())


class _NotebookBar(_Counted):
    """One output of a notebook's cell, drawn anew a few times a second. It needs no widgets."""

    def __init__(self, what: str, total: int, start: int):
        from IPython.display import display

        super().__init__(what, total, start)
        self.shown = self.began
        # None outside of a notebook.
        self.handle = display({"text/plain": self.line()}, raw=True, display_id=True)

    def advance(self, steps: int = 1) -> None:
        self.done += steps
        now = time.monotonic()
        if now - self.shown < 0.3 and self.done < self.total:
            return
        self.shown, share = now, 20 * self.done // self.total
        if self.handle is not None:
            self.handle.update({"text/plain": f"[{'#' * share:<20}] {self.line()}"}, raw=True)

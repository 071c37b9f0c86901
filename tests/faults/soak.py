"""Long work with memory, open files and disk space watched: python -m tests.faults.soak [--iterations 10000].

training    a small model of vectors; what is used at the end over what was used after a tenth of the iterations
sampling    100,000 points of the checkerboard and 10,000 digits, written to files; the process's memory at most
"""

from __future__ import annotations

import argparse
import gc
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from springwell.app.api import load
from springwell.app.presets import preset
from springwell.app.writing import Drawing, write_samples
from springwell.progress import Silent
from tests.training.tiny import train


class Usage(NamedTuple):
    """Of this process and its folder: bytes of memory, open files, bytes on disk less those of the log."""

    memory: int
    files: int
    disk: int


def usage(folder: Path) -> Usage:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    disk = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file() and p.name != "metrics.jsonl")
    return Usage(pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir("/proc/self/fd")), disk)


class Watch(Silent):
    """Looks at the usage every so many steps."""

    def __init__(self, folder: Path, every: int):
        self.folder, self.every, self.count = folder, every, 0
        self.seen: list[Usage] = []

    @contextmanager
    def bar(self, what: str, total: int, start: int = 0) -> Iterator[Any]:
        yield self

    def advance(self, steps: int = 1) -> None:
        self.count += steps
        if self.count % self.every == 0:
            self.seen.append(usage(self.folder))

    def note(self, means: dict[str, list[float | None]]) -> None:
        pass


def training(folder: Path, iterations: int) -> list[Usage]:
    """What was used after every tenth of a training of vectors."""
    base = preset("checkerboard")
    config = replace(
        base,
        network=replace(base.network, width=16, depth=2, num_features=16),
        sampler=replace(base.sampler, num_steps=2, jump_proposals=0),
        training=replace(
            base.training, iterations=iterations, batch=32, checkpoint_every=iterations // 50, preview_every=0, log_every=50
        ),
    )
    watch = Watch(folder, iterations // 10)
    train(config, folder / "run", "cpu", watch)
    return watch.seen


def sampling(folder: Path, model: str, num: int, suffix: str) -> list[Usage]:
    """Before, and after ``num`` samples were written."""
    loaded = load(model)
    loaded.sample(8)
    before = usage(folder)
    write_samples(Drawing(loaded, model, Silent(), num), folder / f"{model}{suffix}")
    return [before, usage(folder)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iterations", type=int, default=10_000)
    parser.add_argument("--points", type=int, default=100_000)
    parser.add_argument("--digits", type=int, default=10_000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print("| | memory (MB) | open files | disk (kB) |\n|---|---|---|---|")
        seen = training(folder, options.iterations)
        for i in (0, len(seen) // 2, len(seen) - 1):
            _row(f"training, iteration {(i + 1) * (options.iterations // 10):,}", seen[i])
        for model, num, suffix in (("checkerboard", options.points, ".npy"), ("digits", options.digits, ".npz")):
            before, after = sampling(folder, model, num, suffix)
            _row(f"{model}, before sampling", before)
            _row(f"{model}, {num:,} samples written", after)


def _row(what: str, used: Usage) -> None:
    print(f"| {what} | {used.memory / 1e6:.0f} | {used.files} | {used.disk / 1e3:.0f} |", flush=True)


if __name__ == "__main__":
    main()

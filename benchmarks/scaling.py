"""How the cost of work grows with its size: the batch, the steps K, the levels T, the resolution, the processes.

    python benchmarks/scaling.py [--repeats 9] [--threads 1]

Every line has the median of the CPU time of one piece of work and its spread (the quartiles), and the ratio to the line before,
beside the ratio of the sizes: equal ratios are linear growth. Sizes take turns, so that a load on the machine falls on all.

Processes share the batch of an iteration of training (gloo, on the CPU). Their lines have the CPU time of one of them, which
two processes would halve if sharing were free. They do not take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch

from images import Clock
from springwell import LevelSampler, NoiseSchedule
from springwell.app.api import train_run
from springwell.app.config import with_fields
from springwell.app.presets import preset
from springwell.conditional import Conditional
from springwell.energy import EnergyResNet, FourierMLP, ScaledEnergy
from springwell.generate import progressive
from springwell.noise import Noise
from springwell.training.loop import Hooks


def plane(batch: int = 256, num_steps: int = 8, num_levels: int = 4) -> Callable[[], object]:
    """Samples of a small network of the plane."""
    schedule = NoiseSchedule.log_snr(num_levels)
    energy = ScaledEnergy(FourierMLP(2, num_levels, 64, 3, 128, (1.5, 8.0)), schedule, "learned", 1.0).requires_grad_(False)
    sampler = LevelSampler("mala", num_steps, 0.1)

    def work() -> None:
        for _ in progressive(energy, schedule, sampler, (2,), Noise(0, torch.arange(batch))):
            pass

    return work


def image(size: int) -> Callable[[], object]:
    """Two Langevin steps of the paper's kind of network, batch 4."""
    schedule = NoiseSchedule.t6()
    energy = ScaledEnergy(EnergyResNet(3, 16, (1, 2, 2, 2), 1), schedule, "step").requires_grad_(False)
    sampler = LevelSampler("langevin", 2, schedule.langevin_step.float())
    x, t = torch.randn(4, 3, size, size), torch.zeros(4, dtype=torch.long)
    return lambda: sampler.draw(Conditional(energy, schedule, t, x), Noise(0, torch.arange(4)))


SWEEPS: dict[str, dict[int, Callable[[], object]]] = {
    "batch": {n: plane(batch=n) for n in (16, 64, 256, 1024)},
    "K": {n: plane(num_steps=n) for n in (2, 4, 8, 16)},
    "T": {n: plane(num_levels=n) for n in (2, 4, 8, 16)},
    "resolution": {n: image(n) for n in (16, 32, 64)},
}


def measure(works: dict[int, Callable[[], object]], repeats: int) -> dict[int, list[float]]:
    """CPU seconds of every size, in turns; the first turn is not counted."""
    spent: dict[int, list[float]] = {size: [] for size in works}
    for turn in range(repeats + 1):
        for size, work in works.items():
            began = time.process_time()
            work()
            if turn:
                spent[size].append(time.process_time() - began)
    return spent


def iterations(folder: Path, repeats: int) -> list[float]:
    """CPU seconds that this process spends on each iteration of a training; the first iteration is not counted."""
    config = with_fields(preset("digits"), batch=64, preview_every=0, checkpoint_every=10**6, log_every=10**6)
    clock = Clock(time.process_time)
    train_run(config, folder / "run", "cpu", clock, hooks=Hooks(stop_after=repeats + 1))
    return [end - begin for begin, end in pairwise(clock.times)][1:]


def together(num: int, repeats: int, threads: int) -> list[float]:
    """CPU seconds of the first of ``num`` processes for each iteration of a training whose batch they share."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    known = {"WORLD_SIZE": num, "LOCAL_WORLD_SIZE": num, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--repeats", str(repeats), "--threads", str(threads), "--run", folder]
        ranks = [
            subprocess.Popen(
                command,
                env={**os.environ, **{name: str(value) for name, value in {**known, "RANK": i, "LOCAL_RANK": i}.items()}},
                stdout=subprocess.PIPE,
            )
            for i in range(num)
        ]
        first, *_ = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        sys.exit(f"{num} processes: one of them failed")
    found: list[float] = json.loads(first)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.run:
        print(json.dumps(iterations(options.run, options.repeats)))
        return
    print(f"{'what':<11}{'size':>6}{'CPU ms':>10}{'quartiles':>18}{'ratio':>8}{'of sizes':>10}")
    for what, works in SWEEPS.items():
        show(what, measure(works, options.repeats))
    show("processes", {num: together(num, options.repeats, options.threads) for num in (1, 2)})


def show(what: str, spent: dict[int, list[float]]) -> None:
    """A line for every size."""
    # A picture has the square of its side many pixels; a process has its share of the batch.
    power = {"resolution": 2, "processes": -1}.get(what, 1)
    last: tuple[int, float] | None = None
    for size, times in spent.items():
        median = statistics.median(times)
        low, _, high = statistics.quantiles(times, n=4) if len(times) > 1 else (median,) * 3
        grown = f"{median / last[1]:8.2f}{(size / last[0]) ** power:10.2f}" if last else ""
        print(f"{what:<11}{size:>6}{1e3 * median:>10.1f}{1e3 * low:>9.1f} ...{1e3 * high:>6.1f}{grown}", flush=True)
        last = size, median


if __name__ == "__main__":
    main()

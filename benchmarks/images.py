"""What training and sampling images cost, against what they must cost: `python benchmarks/images.py`.

The paper's 32x32 network (N = 2, K = 30, T6) at width 128 and 32. Everything is measured in one run, side by side:

    bare        K gradients of the network and one forward and backward pass of positives and negatives, and nothing else
    iteration   of the real training loop, over the same batch
    plain       the same iteration as a short script would do it: a network of torch's own layers, without spectral norms, and
                autograd through well and spring together
    peak        the best throughput of any 3x3 convolution of this network alone, forward
    memory      growth of the process over its size before the chain, for several K

Ratios are what carries over to another machine; seconds do not. About six minutes on two idle cores.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from springwell import Model, Noise, preset
from springwell.app.api import train_run
from springwell.app.build import build_energy, build_samplers, build_schedule
from springwell.app.config import Config, with_fields
from springwell.app.cost import estimate
from springwell.conditional import Conditional
from springwell.energy.base import at_level
from springwell.progress import Silent
from springwell.samplers.target import gradient
from springwell.training.loop import Hooks

SHAPE = (3, 32, 32)


def configuration(width: int, batch: int, data: Path) -> Config:
    often = {"preview_every": 0, "fid_every": 0, "checkpoint_every": 10**6, "log_every": 10**6}
    return with_fields(preset("cifar10-t6"), data=f"npz:{data}", width=width, num_blocks=2, batch=batch, **often)


def seconds(work: Callable[[], object], repeats: int = 3) -> float:
    """The fastest of a few runs: other work on the machine only ever adds."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)


def peak_throughput(width: int, batch: int) -> float:
    """FLOP/s of the fastest convolution of the network."""
    best = 0.0
    for channels, size in ((width, 32), (2 * width, 16), (2 * width, 8), (2 * width, 4)):
        x = torch.randn(batch, channels, size, size).contiguous(memory_format=torch.channels_last)
        weight = torch.randn(channels, channels, 3, 3).contiguous(memory_format=torch.channels_last)
        with torch.no_grad():
            best = max(best, 18 * channels**2 * size**2 * batch / seconds(partial(F.conv2d, x, weight, padding=1), 15))
    return best


class Clock(Silent):
    """A reporter that notes when every iteration ended, by the clock or by another measure of time."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.now = now
        self.times: list[float] = []

    @contextmanager
    def bar(self, what: str, total: int, start: int = 0) -> Iterator[Clock]:
        self.times = [self.now()]
        yield self

    def advance(self, steps: int = 1) -> None:
        self.times.append(self.now())

    def note(self, means: object) -> None:
        pass


class PlainBlock(nn.Module):
    def __init__(self, num_in: int, num_out: int, num_time: int):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(num_in, num_out, 3, padding=1), nn.Conv2d(num_out, num_out, 3, padding=1)
        self.time = nn.Linear(num_time, num_out)
        self.shortcut = nn.Conv2d(num_in, num_out, 3, padding=1) if num_in != num_out else nn.Identity()
        self.gain = nn.Parameter(torch.ones(num_out, 1, 1))

    def forward(self, h: Tensor, e: Tensor) -> Tensor:
        r = self.conv1(F.leaky_relu(h, 0.2)) + self.time(e)[:, :, None, None]
        return self.shortcut(h) + self.gain * self.conv2(F.leaky_relu(r, 0.2))


class PlainNetwork(nn.Module):
    """The paper's 32x32 network as one would write it down."""

    def __init__(self, width: int, num_blocks: int):
        super().__init__()
        self.embed = nn.Sequential(nn.Embedding(6, width), nn.Linear(width, 4 * width), nn.LeakyReLU(0.2))
        self.embed.append(nn.Linear(4 * width, 4 * width)).append(nn.LeakyReLU(0.2))
        self.first, self.last = nn.Conv2d(3, width, 3, padding=1), nn.Linear(4 * width, 2 * width)
        sizes = [width] * num_blocks + [2 * width] * 3 * num_blocks
        self.blocks = nn.ModuleList(PlainBlock(a, b, 4 * width) for a, b in zip([width, *sizes], sizes, strict=False))
        self.num_blocks = num_blocks

    def forward(self, y: Tensor, t: Tensor) -> Tensor:
        e, h = self.embed(t), self.first(y)
        for i, block in enumerate(self.blocks):
            h = block(F.avg_pool2d(h, 2) if i and i % self.num_blocks == 0 else h, e)
        return (F.relu(h).sum((2, 3)) * self.last(e)).sum(-1)


def plain_iteration(width: int, batch: int, num_steps: int) -> Callable[[], None]:
    """Alg. 1, written down: K Langevin steps by autograd, one loss of positives and negatives, Adam."""
    network = PlainNetwork(width, 2)
    adam = torch.optim.Adam(network.parameters(), 1e-4)
    t = torch.arange(batch) % 6
    y_t, x_next = torch.randn(batch, *SHAPE), torch.randn(batch, *SHAPE)

    def work() -> None:
        y = x_next.clone()
        network.requires_grad_(False)
        for _ in range(num_steps):
            y = y.detach().requires_grad_()
            log_p = network(y, t).sum() - (y - x_next).square().sum() / 2
            y = y + 5e-5 * torch.autograd.grad(log_p, y)[0] + 1e-2 * torch.randn_like(y)
        network.requires_grad_(True)
        f_pos, f_neg = network(torch.cat([y_t, y.detach()]), torch.cat([t, t])).chunk(2)
        adam.zero_grad()
        (f_neg - f_pos).mean().backward()
        adam.step()

    return work


def measure(width: int, batch: int, iterations: int, folder: Path) -> None:
    config = configuration(width, batch, folder / "images.npz")
    schedule = build_schedule(config)
    energy = build_energy(config, schedule, SHAPE)
    num_steps, cost = config.sampler.num_steps, estimate(config)
    t = torch.arange(batch) % 6
    y = torch.randn(batch, *SHAPE)
    level = at_level(energy, t)

    def gradients() -> None:
        for _ in range(num_steps):
            gradient(level, y)

    def loss() -> None:
        energy(torch.cat([y, y]), torch.cat([t, t])).sum().backward()

    plainly = plain_iteration(width, batch, num_steps)
    gradient(level, y)
    bare, real, plain = [], [], []
    for i in range(iterations):
        bare.append(seconds(gradients, 1) + seconds(loss, 1))
        clock = Clock()
        train_run(config, folder / f"run-{width}-{i}", "auto", clock, hooks=Hooks(stop_after=2))
        # The first iteration of a call starts the thread that draws batches.
        real.append(clock.times[2] - clock.times[1])
        plain.append(seconds(plainly, 1))
    model = Model(energy, schedule, build_samplers(config, schedule)[1], event_shape=SHAPE)
    sampling = seconds(lambda: model.sample(16, batch=16), 1) / 16
    peak = peak_throughput(width, batch)
    ratio, to_plain = (statistics.median(r / b for r, b in zip(real, other, strict=True)) for other in (bare, plain))
    print(f"\nwidth {width}, N = 2, K = {num_steps}, batch {batch}, {torch.get_num_threads()} threads")
    print(f"  training iteration      {min(real):8.3f} s    bare {min(bare):.3f} s, plain {min(plain):.3f} s")
    print(f"  iteration / bare        {ratio:8.3f}      median of {iterations} pairs")
    print(f"  iteration / plain       {to_plain:8.3f}      median of {iterations} pairs")
    print(f"  operations              {cost.iteration_flops / 1e12:8.3f} TFLOP per iteration")
    print(f"  throughput              {cost.iteration_flops / min(real) / 1e9:8.1f} GFLOP/s")
    print(f"  of the best convolution {cost.iteration_flops / min(real) / peak:8.2f}      ({peak / 1e9:.1f} GFLOP/s)")
    print(f"  sampling                {sampling:8.3f} s per sample (T = 6, K = {num_steps}, 16 side by side)", flush=True)


def peak_memory(num_steps: int) -> None:
    """Prints by how much a chain of ``num_steps`` steps raises the peak memory of this process, in MB."""
    config = configuration(32, 8, Path("none.npz"))
    schedule = build_schedule(config)
    energy = build_energy(config, schedule, SHAPE)
    t, x = torch.arange(8) % 6, torch.randn(8, *SHAPE)
    sampler = replace(build_samplers(config, schedule)[1], num_steps=num_steps)
    gradient(at_level(energy, t), x)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sampler.draw(Conditional(energy, schedule, t, x), Noise(0, torch.arange(8)))
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=3, help="pairs of measurements")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--peak-memory-of", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.peak_memory_of is not None:
        return peak_memory(options.peak_memory_of)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rng = np.random.default_rng(0)
        np.savez(folder / "images.npz", images=rng.integers(0, 256, (64, 32, 32, 3), dtype=np.uint8))
        for width in (128, 32):
            measure(width, options.batch, options.iterations, folder)
    print("\npeak memory of a chain, width 32, batch 8, over one gradient's (MB)")
    for num_steps in (1, 30, 180):
        command = [sys.executable, __file__, "--peak-memory-of", str(num_steps), "--threads", str(options.threads)]
        grown = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        print(f"  K = {num_steps:<4} {float(grown):8.1f}", flush=True)
    return None


if __name__ == "__main__":
    main()

"""What a gradient of a small network costs by the batch, and what a step of a chain adds to it.

    python benchmarks/gradients.py [--rounds 40] [--compile]

graph        autograd builds a graph for every gradient
written      the gradient that the network's module writes out, which chains use
compiled     the same by torch.compile, with --compile (minutes)
MALA, graph  a step of a chain with each of the first two gradients; and what its random numbers take
MALA
noise

All take turns, on one thread of the CPU. Times are lower quartiles of CPU time.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import torch
from torch import Tensor

import springwell as sw
from springwell.conditional import Conditional
from springwell.energy import at_level
from springwell.samplers import mala, value_and_grad

BATCHES = (1, 16, 64, 256, 1024)


def contestants(model: sw.Model, num: int, compiled: bool) -> dict[str, Callable[[], object]]:
    """What is timed, with ``num`` chains."""
    t, noise = torch.zeros(num, dtype=torch.long), model.noise(0, torch.arange(num))
    y = noise.normal(*model.event_shape)
    f, kernel, delta = at_level(model.energy_function, t), mala(), torch.full_like(y, 0.1)

    def plain(y: Tensor) -> Tensor:
        return f(y)

    found: dict[str, Callable[[], object]] = {
        "graph": lambda: value_and_grad(plain, y),
        "written": lambda: value_and_grad(f, y),
        "noise": lambda: (noise.normal(*model.event_shape), noise.uniform()),
    }
    if compiled:
        fast = torch.compile(f.value_and_grad)  # type: ignore[attr-defined]
        fast(y)
        found["compiled"] = lambda: fast(y)
    for name, well in (("MALA, graph", plain), ("MALA", f)):
        conditional = Conditional(model.energy_function, model.schedule, t, y)
        conditional.f = well
        state = kernel.init(y, conditional)
        found[name] = lambda state=state, conditional=conditional: kernel.step(state, conditional, delta, noise)  # type: ignore[misc]
    return found


def microseconds(work: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The lower quartile of each one's time."""
    taken: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(rounds):
        for name, times in taken.items():
            began = time.process_time()
            for _ in range(10):
                work[name]()
            times.append((time.process_time() - began) * 1e5)
    return {name: sorted(times)[rounds // 4] for name, times in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = sw.load("checkerboard")
    print(f"torch {torch.__version__}, checkerboard, one thread; microseconds of CPU time")
    for num in BATCHES:
        found = microseconds(contestants(model, num, options.compile), options.rounds)
        if num == BATCHES[0]:
            print(f"{'batch':>6}{''.join(f'{name:>13}' for name in found)}{'gradients/s before and after':>31}")
        rates = f"{num / found['graph'] * 1e6:,.0f} {num / found['written'] * 1e6:,.0f}"
        print(f"{num:6}{''.join(f'{value:13.0f}' for value in found.values())}{rates:>31}", flush=True)


if __name__ == "__main__":
    main()

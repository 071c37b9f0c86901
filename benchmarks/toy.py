r"""The two-dimensional work, measured: time to a given KL, cost of a chain, memory of a chain.

    python benchmarks/toy.py                      # needs ebmkit: pip install 'springwell[bench]'
    python benchmarks/toy.py --only chain --json

kl      Time until KL(p || g) on the checkerboard is as low as ebmkit's `DiffusionRecoveryLikelihood` gets it. p is the exact
        density of the data at the model's own lowest noise and in its own coordinates, x = a x_data + sigma eps:
        a = sqrt(1 - 0.05^2), sigma = 0.05 for springwell's preset and a = 1, sigma = 0.05 for ebmkit's ladder. g is
        normalised by quadrature on [-6, 6]^2; an energy that does not vanish outside is cut off there, to its advantage.
        Clocks run while a model trains and stand still while it is measured. springwell's includes the drawing of its data
        and a checkpoint at every measurement; ebmkit's data are drawn beforehand. The contestants train in turns, piece by
        piece, so that a load on the machine that comes and goes falls on all of them.

        ebmkit publishes one complete recipe for two dimensions (examples/benchmark_losses.py of its source distribution):
        12 noise levels from 2 to 0.05 in geometric steps, 30 Langevin steps, Adam at 1e-3, batch 256, and its own network
        of 2 x 128 units; for two moons it trains 6,000 iterations (--iterations 6000). It competes three times:

            recipe         as published
            same network   with springwell's network and Gaussian base term, in the coordinates x / sqrt(1 + sigma^2) that
                           make its ladder variance preserving; all else as published
            same network, same lr     and with the learning rate of springwell's preset

        The first says what its user gets, the others how much of the difference is the network's and the learning rate's.
        Every time both its weights and their moving average (its own `EMA`) are measured and the better one counts; its
        score is the lowest KL that any measurement found, and its time is the time of that measurement. springwell's time
        is that of the first measurement that is no higher, by its moving average. A score above the KL of springwell's
        untrained model, which is a Gaussian, is no race, and no ratio is given.

chain   Time of a chain of K steps over K bare gradients of the same network at the same, fixed levels.
memory  Growth of the peak resident memory of a fresh process while it runs a chain of K steps. A chain that keeps the graph
        of its steps is measured beside it, to show that growth would be seen.

Times depend on the machine and on what else it does; ratios much less so.
"""

from __future__ import annotations

import json
import math
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import tyro
from torch import Tensor, nn

import springwell
from springwell.app.api import train_run
from springwell.app.build import build_energy, build_samplers, build_schedule
from springwell.app.config import Config, MLPConfig, with_fields
from springwell.conditional import Conditional
from springwell.data.toy import toy_data
from springwell.energy.base import ScaledEnergy, at_level
from springwell.energy.mlp import FourierMLP
from springwell.evaluation.toy import divergences
from springwell.likelihood.quadrature import normaliser
from springwell.model import Model
from springwell.noise import Noise
from springwell.progress import Silent
from springwell.samplers import make_kernel
from springwell.samplers.base import run_chain
from springwell.schedule import NoiseSchedule
from springwell.training.loop import Hooks

NAMES = ("langevin", "mala", "hmc", "nuts")
DATA = "checkerboard"
# Half the library's resolution: the spacing, 0.031, still resolves the noise of 0.05 to better than 1e-6 nats.
NUM_CELLS = 384
POOL_STREAM = 2**44
CHAIN_BATCH = 1000
CHAIN_STEPS = 20
MEMORY_STEPS = (10, 100, 1000)
CONTROL_STEPS = (10, 100)
MEMORY_REPEATS = 3
CHILD = "--measure-memory"


@dataclass(frozen=True)
class Options:
    """Time to a given KL against ebmkit, cost and memory of chains; the head of this file says how."""

    iterations: int = 2000
    """Training iterations of ebmkit. Its own example has 6000."""
    threads: int = 2
    """Threads of torch, for everything."""
    seed: int = 0
    """Of all contestants."""
    repeats: int = 100
    """Rounds of the chain benchmark."""
    only: Literal["all", "kl", "chain", "memory"] = "all"
    """What to measure."""
    json: bool = False
    """Print the results as one JSON object, as the last line of stdout."""


def log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class Point(NamedTuple):
    """One measurement. ``error`` is the quadrature's, in nats."""

    iteration: int
    seconds: float
    kl: float
    error: float


@dataclass(frozen=True)
class Opponent:
    """ebmkit's published recipe, and what is changed of it."""

    own_network: bool = True
    lr: float = 1e-3
    batch: int = 256
    mcmc_steps: int = 30
    sigmas: tuple[float, float, int] = (2.0, 0.05, 12)
    # Its average has no correction for the start, so it must forget within a fraction of the run.
    ema: float = 0.99


class SameNetwork(nn.Module):
    """springwell's network as an energy E(x, sigma) = -f of ebmkit's variance-exploding x = x_data + sigma eps.

    Args:
        config: The network's.
        sigmas: ebmkit's ladder, falling.
    """

    sigmas: Tensor

    def __init__(self, config: MLPConfig, sigmas: Tensor):
        super().__init__()
        rising = sigmas.flip(0)
        self.register_buffer("sigmas", rising)
        schedule = NoiseSchedule.from_noise_levels((rising * torch.rsqrt(1 + rising**2)).double())
        network = FourierMLP(2, schedule.num_levels, config.width, config.depth, config.num_features, config.bandwidths)
        # ebmkit weighs all levels alike, which belongs to an output that is not scaled.
        self.energy = ScaledEnergy(network, schedule, "none", config.base_precision)

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        t = torch.bucketize(sigma, self.sigmas)
        return -self.energy(x * torch.rsqrt(1 + sigma**2)[:, None], t)


def stops(iterations: int) -> list[int]:
    """Iterations at which to measure: closely at first, when the KL falls fast."""
    grid = {*range(10, 100, 10), *range(100, 500, 50), *range(500, iterations, 100), iterations}
    return sorted(i for i in grid if i <= iterations)


def measure(log_f: Callable[[Tensor], Tensor], a: float, sigma: float) -> tuple[float, float]:
    """KL(p || g) in nats and the quadrature's error, p the density of a x_data + sigma eps."""
    with torch.no_grad():
        z = normaliser(log_f, num_cells=NUM_CELLS)
    return divergences(toy_data(DATA), a, sigma, z)["kl"], z.error


def measure_ours(model: Model) -> tuple[float, float]:
    schedule = model.schedule
    return measure(model.level_f, float(schedule.a_cum[0]), float(schedule.sigma_cum[0]))


def train_ours(config: Config) -> Iterator[Point]:
    """Trains the preset, a piece for every point."""
    schedule = build_schedule(config)
    energy = build_energy(config, schedule, (2,))
    untrained = Model(energy, schedule, build_samplers(config, schedule)[1], event_shape=(2,))
    yield Point(0, 0.0, *measure_ours(untrained))
    seconds, done = 0.0, 0
    with tempfile.TemporaryDirectory() as out:
        for stop in stops(config.training.iterations):
            result = train_run(config, out, "cpu", Silent(), Hooks(stop_after=stop - done))
            seconds, done = seconds + result.seconds, result.iteration
            if done != stop:
                raise KeyboardInterrupt
            yield Point(done, seconds, *measure_ours(springwell.load(out)))


def train_theirs(opponent: Opponent, config: Config, iterations: int) -> Iterator[Point]:
    """Trains ebmkit by its own trainer, a piece for every point."""
    import ebm

    torch.manual_seed(config.training.seed)
    sigmas = ebm.geometric_sigmas(*opponent.sigmas)
    if opponent.own_network:
        energy = ebm.nets.NoiseConditionalMLPEnergy(dim=2, hidden=(128, 128))
    else:
        assert isinstance(config.network, MLPConfig)
        energy = SameNetwork(config.network, sigmas)
    loss = ebm.DiffusionRecoveryLikelihood(sigmas, mcmc_steps=opponent.mcmc_steps)
    trainer = ebm.Trainer(energy, loss, lr=opponent.lr, device="cpu", ema_decay=opponent.ema)
    pool = Noise(config.training.seed, torch.arange(max(iterations * opponent.batch, 1)), POOL_STREAM)
    data = toy_data(DATA).sample(pool)
    generator = torch.get_rng_state()

    def score() -> tuple[float, float]:
        sigma = float(sigmas[-1])

        def log_f(network: nn.Module, x: Tensor) -> Tensor:
            return -network(x, torch.full((len(x),), sigma))

        found = [measure(partial(log_f, network), 1.0, sigma) for network in (energy, trainer.ema.module)]
        return min(found, key=lambda kl_error: kl_error[0] if math.isfinite(kl_error[0]) else math.inf)

    yield Point(0, 0.0, *score())
    seconds = 0.0
    for stop in stops(iterations):
        # ebmkit draws from the global generator, which contestants that train in turns must not share.
        torch.set_rng_state(generator)
        began = time.perf_counter()
        trainer.fit(data, steps=stop - trainer.step_count, batch_size=opponent.batch, verbose=False)
        seconds += time.perf_counter() - began
        generator = torch.get_rng_state()
        yield Point(stop, seconds, *score())


def compare(theirs: list[Point], ours: list[Point]) -> dict[str, Any]:
    """ebmkit's lowest KL, and how long both took to it; None where there is no such time or no race."""
    best = min(theirs, key=lambda p: p.kl if math.isfinite(p.kl) else math.inf)
    reached = next((p for p in ours if p.kl <= best.kl), None)
    race = reached is not None and reached.iteration > 0 and best.iteration > 0
    return {
        "lowest_kl": best.kl,
        "quadrature_error": best.error,
        "iteration": best.iteration,
        "seconds": best.seconds,
        "last_kl": theirs[-1].kl,
        "last_seconds": theirs[-1].seconds,
        "our_iteration": reached.iteration if reached else None,
        "our_seconds": reached.seconds if reached else None,
        "ratio": best.seconds / reached.seconds if reached and race else None,
    }


def benchmark_kl(options: Options) -> dict[str, Any]:
    try:
        import ebm
    except ImportError:
        raise SystemExit("--only kl: ebmkit is not installed; pip install 'springwell[bench]', or use --only chain") from None
    config = springwell.preset(DATA)
    config = with_fields(config, seed=options.seed, preview_every=0)
    opponents = {
        "recipe": Opponent(),
        "same network": Opponent(own_network=False),
        "same network, same lr": Opponent(own_network=False, lr=config.training.lr),
    }
    log("warming up")
    short = with_fields(config, iterations=2)
    for run in [train_ours(short), *(train_theirs(o, config, 2) for o in opponents.values())]:
        list(run)

    runs = {"springwell": train_ours(config)}
    runs |= {name: train_theirs(opponent, config, options.iterations) for name, opponent in opponents.items()}
    curves: dict[str, list[Point]] = {name: [] for name in runs}
    while runs:
        for name, run in list(runs.items()):
            if (point := next(run, None)) is None:
                del runs[name]
                continue
            curves[name].append(point)
            log(f"{name:22} iteration {point.iteration:5}  {point.seconds:7.1f} s  KL {point.kl:.4f} nats")

    ours = curves.pop("springwell")
    rows = {name: compare(curve, ours) for name, curve in curves.items()}
    print(
        f"\nTime to KL on the {DATA}, seed {options.seed}; ebmkit {ebm.__version__} trained for {options.iterations} iterations"
    )
    print(f"{'ebmkit':22} {'its lowest KL':>15} {'its time':>10} {'our time to it':>15} {'ratio':>8}   its last KL")
    for name, row in rows.items():
        time_to = "not reached" if row["our_seconds"] is None else f"{row['our_seconds']:.1f} s"
        ratio = "-" if row["ratio"] is None else f"{row['ratio']:.1f}"
        print(
            f"{name:22} {row['lowest_kl']:10.4f} nats {row['seconds']:8.1f} s {time_to:>15} {ratio:>8}   "
            f"{row['last_kl']:.4f} nats after {row['last_seconds']:.1f} s"
        )
    lowest = min(ours, key=lambda p: p.kl)
    print(f"springwell, untrained  {ours[0].kl:10.4f} nats")
    print(f"springwell, lowest     {lowest.kl:10.4f} nats {lowest.seconds:8.1f} s, iteration {lowest.iteration}")
    print(f"springwell, finished   {ours[-1].kl:10.4f} nats {ours[-1].seconds:8.1f} s, iteration {ours[-1].iteration}")
    errors = max(p.error for p in (ours[-1], lowest)), max(row["quadrature_error"] for row in rows.values())
    print(f"quadrature error: springwell {errors[0]:.0e} nats, ebmkit {errors[1]:.0e} nats; one run each")
    return {
        "ebmkit": ebm.__version__,
        "iterations": options.iterations,
        "opponents": {name: {**asdict(opponents[name]), **row, "curve": curves[name]} for name, row in rows.items()},
        "springwell": {"untrained_kl": ours[0].kl, "lowest_kl": lowest.kl, "kl": ours[-1].kl, "curve": ours},
    }


def chain_setting(config: Config, batch: int) -> tuple[nn.Module, NoiseSchedule, Tensor, Tensor, Tensor]:
    """Energy, schedule, levels, start and step sizes of a batch of chains spread over all levels."""
    schedule = build_schedule(config)
    energy = build_energy(config, schedule, (2,))
    t = torch.arange(batch) * schedule.num_levels // batch
    x_next = Noise(config.training.seed, torch.arange(batch), POOL_STREAM).normal(2)
    return energy, schedule, t, x_next, build_samplers(config, schedule)[0].steps(t)


def benchmark_chain(options: Options) -> dict[str, Any]:
    energy, schedule, t, x_next, step_size = chain_setting(springwell.preset(DATA), CHAIN_BATCH)
    f = at_level(energy, t)

    def bare() -> None:
        for _ in range(CHAIN_STEPS):
            y = x_next.detach().requires_grad_()
            value = f(y)
            torch.autograd.grad(value, y, torch.ones_like(value))

    def chain(name: str) -> None:
        noise = Noise(options.seed, torch.arange(CHAIN_BATCH), ahead=CHAIN_STEPS)
        run_chain(make_kernel(name), x_next, Conditional(energy, schedule, t, x_next), step_size, CHAIN_STEPS, noise)

    log(f"timing chains, {options.repeats} rounds")
    tasks: dict[str, Callable[[], None]] = {"bare": bare, **{name: partial(chain, name) for name in NAMES}}
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for task in tasks.values():
        task()
    for _ in range(options.repeats):
        for name, task in tasks.items():
            began = time.perf_counter()
            task()
            seconds[name].append(time.perf_counter() - began)

    gradient = statistics.median(seconds["bare"]) / CHAIN_STEPS
    print(f"\nChain of K = {CHAIN_STEPS} steps, batch {CHAIN_BATCH}; medians of {options.repeats} interleaved rounds")
    print(f"{'bare gradient':22} {1e3 * gradient:8.3f} ms")
    result: dict[str, Any] = {
        "steps": CHAIN_STEPS,
        "batch": CHAIN_BATCH,
        "repeats": options.repeats,
        "gradient_ms": 1e3 * gradient,
    }
    for name in NAMES:
        step = statistics.median(seconds[name]) / CHAIN_STEPS
        # MALA evaluates its start too, so it has K + 1 gradients to pay for.
        evaluations = CHAIN_STEPS + (name == "mala")
        result[name] = {
            "step_ms": 1e3 * step,
            "evaluations": evaluations,
            "over_steps": step / gradient,
            "over_evaluations": step / gradient * CHAIN_STEPS / evaluations,
        }
        line = f"{name:22} {1e3 * step:8.3f} ms per step   over K gradients {result[name]['over_steps']:.3f}"
        if evaluations != CHAIN_STEPS:
            line += f"   over its K + 1 gradients {result[name]['over_evaluations']:.3f}"
        print(line)
    return result


def memory(field: Literal["VmRSS", "VmHWM"]) -> float:
    """Resident memory now (VmRSS) or at its peak (VmHWM) in MB.

    getrusage's ru_maxrss would not do: a process inherits it from the one that started it.
    """
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) / 1024


def measure_memory(name: str, num_steps: int) -> None:
    """Runs in a process of its own and prints the growth in MB; ``name`` is a kernel, or ``control``."""
    energy, schedule, t, x_next, step_size = chain_setting(springwell.preset(DATA), CHAIN_BATCH)
    logdensity = Conditional(energy, schedule, t, x_next)

    def run(steps: int) -> None:
        noise = Noise(0, torch.arange(CHAIN_BATCH), ahead=steps)
        if name != "control":
            run_chain(make_kernel(name), x_next, logdensity, step_size, steps, noise)
            return
        y = x_next.clone().requires_grad_()
        for _ in range(steps):
            (grad,) = torch.autograd.grad(logdensity(y).sum(), y, create_graph=True)
            delta = step_size[:, None]
            y = y + 0.5 * delta**2 * grad + delta * noise.normal(2)

    run(3)
    # Sets the peak back to what is resident now (proc(5)). Where that is not allowed, the start-up's peak counts for every K.
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    run(num_steps)
    print(memory("VmHWM") - before)


def benchmark_memory(options: Options) -> dict[str, Any]:
    if not Path("/proc/self/clear_refs").exists():
        log("memory: skipped; the peak of a process can be read on Linux only")
        return {}
    print(f"\nGrowth of peak resident memory during a chain of K steps, batch {CHAIN_BATCH}")
    print(f"median (lowest ... highest) of {MEMORY_REPEATS} fresh processes each")
    result: dict[str, Any] = {"batch": CHAIN_BATCH, "unit": "MB"}
    for name, steps in {**dict.fromkeys(NAMES, MEMORY_STEPS), "control": CONTROL_STEPS}.items():
        result[name], parts = {}, []
        for num_steps in steps:
            log(f"measuring the memory of {num_steps} steps, {name}")
            command = [sys.executable, __file__, CHILD, name, str(num_steps), str(options.threads)]
            runs = [subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True) for _ in range(MEMORY_REPEATS)]
            growth = [float(run.stdout) for run in runs]
            result[name][num_steps] = growth
            parts.append(f"K = {num_steps}: {statistics.median(growth):.1f} ({min(growth):.1f} ... {max(growth):.1f}) MB")
        label = "control (graph kept)" if name == "control" else name
        print(f"{label:22} " + "   ".join(parts))
    return result


def main() -> None:
    if sys.argv[1:2] == [CHILD]:
        name, num_steps, threads = sys.argv[2:]
        torch.set_num_threads(int(threads))
        measure_memory(name, int(num_steps))
        return
    options = tyro.cli(Options)
    if min(options.iterations, options.threads, options.repeats) < 1:
        raise SystemExit("--iterations, --threads and --repeats must be at least 1")
    torch.set_num_threads(options.threads)
    result: dict[str, Any] = {
        "threads": options.threads,
        "seed": options.seed,
        "springwell": springwell.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    print(f"springwell {springwell.__version__}, torch {torch.__version__}, {options.threads} threads, {platform.machine()}")
    benchmarks = {"kl": benchmark_kl, "chain": benchmark_chain, "memory": benchmark_memory}
    for name, benchmark in benchmarks.items():
        if options.only in ("all", name):
            result[name] = benchmark(options)
    if options.json:
        print(json.dumps(_finite(result), allow_nan=False))


def _finite(value: Any) -> Any:
    """The same with None for numbers that JSON does not know."""
    if isinstance(value, dict):
        return {key: _finite(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


if __name__ == "__main__":
    main()

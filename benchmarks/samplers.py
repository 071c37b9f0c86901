r"""Samplers, measured: effective samples per gradient and per second, beside ebmkit, torchebm and blackjax.

    pip install 'springwell[bench]'
    python benchmarks/samplers.py
    python benchmarks/samplers.py --targets gaussian --samplers nuts --json

Targets, in float32:

gaussian   100 dimensions, an autoregression with eigenvalues from 1/3 to 3.
network    One conditional log p(y_t | x_{t+1}) of the model that ships as `digits`, at level --level: 64 dimensions,
           134,000 parameters, x_{t+1} a sample of the model. blackjax gets the same function written in JAX, and is refused
           if the two differ.

Samplers, with unit masses: MALA, HMC with --leapfrog steps, and NUTS. `tune_step_size` finds the step size of each on each
target, and all contestants take it. torchebm has neither MALA nor NUTS. All chains start at the same draws, which HMC made.

Each contestant makes --draws steps of --chains chains in --rounds turns that alternate, after two turns that do not count,
so that a load on the machine that comes and goes falls on all of them. Everything runs on one thread. Seconds are those of
the processor, and JAX's compilation is not among them. ESS is the bulk ESS (`springwell.samplers.diagnostics`, which is
ArviZ's), averaged over coordinates. Gradients of springwell and blackjax are those that chains made use of; those of ebmkit
and torchebm, which do not tell, are all that were evaluated. In lockstep NUTS the two differ, and seconds pay for all.
"""

from __future__ import annotations

import os

# Before numpy, torch and jax are imported, which read these once.
os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", JAX_PLATFORMS="cpu")
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import json
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import tyro
from torch import Tensor

import springwell
from springwell.conditional import Conditional
from springwell.noise import Noise
from springwell.samplers import Kernel, LogDensity, Tuning, hmc, mala, nuts, record_chain, run_chain, tune_step_size
from springwell.samplers.diagnostics import ess_bulk, ess_tail, split_rhat

BANDS = {"mala": (0.5, 0.65), "hmc": (0.65, 0.85), "nuts": (0.75, 0.9)}
WARM_UP = 200


@dataclass(frozen=True)
class Options:
    """Effective samples per gradient and per second; the head of this file says how."""

    targets: tuple[Literal["gaussian", "network"], ...] = ("gaussian", "network")
    """What to sample."""
    samplers: tuple[Literal["mala", "hmc", "nuts"], ...] = ("mala", "hmc", "nuts")
    """How."""
    chains: int = 64
    """Chains of each contestant."""
    draws: int = 500
    """Steps of each chain that count."""
    rounds: int = 5
    """Turns in which they are made."""
    leapfrog: int = 4
    """Leapfrog steps of HMC."""
    level: int = 4
    """Level of the network."""
    seed: int = 0
    """Of all contestants."""
    json: bool = False
    """Print the results as one JSON object, as the last line of stdout."""


class Target(NamedTuple):
    """A log-density for N chains in torch, the same for one chain in JAX (made when asked for), and starting points."""

    logdensity: LogDensity
    in_jax: Callable[[], Callable[[Any], Any]]
    start: Tensor


@dataclass
class Contestant:
    """A library's sampler, and what it has made so far.

    Attributes:
        advance: Makes so many steps and returns its draws ``[S, N, d]``, its gradients, and its mean acceptance if it tells.
    """

    name: str
    advance: Callable[[int], tuple[Tensor, int, float | None]]
    draws: list[Tensor] = field(default_factory=list)
    acceptance: list[float] = field(default_factory=list)
    gradients: int = 0
    seconds: float = 0.0

    def turn(self, num_steps: int, counts: bool) -> None:
        begun = time.process_time()
        draws, gradients, acceptance = self.advance(num_steps)
        seconds = time.process_time() - begun
        if counts:
            self.draws.append(draws)
            self.gradients += gradients
            self.seconds += seconds
            if acceptance is not None:
                self.acceptance.append(acceptance)


def log(line: str = "") -> None:
    print(line, file=sys.stderr, flush=True)


def gaussian(options: Options) -> Target:
    d = 100

    def logdensity(y: Tensor) -> Tensor:
        return -0.5 * (y[:, 0].square() + (y[:, 1:] - 0.5 * y[:, :-1]).square().sum(-1) / 0.75)

    def in_jax() -> Callable[[Any], Any]:
        return lambda y: -0.5 * (y[0] ** 2 + ((y[1:] - 0.5 * y[:-1]) ** 2).sum() / 0.75)

    return Target(logdensity, in_jax, torch.zeros(options.chains, d))


def network(options: Options) -> Target:
    """The conditional at one level, of flat vectors, with the same x_{t+1} for all chains."""
    model, n = springwell.load("digits"), options.chains
    x_next = next(x for t, x, _ in model.trajectory(torch.arange(16), options.seed) if t == options.level + 1)[:1]
    event = x_next.shape[1:]
    level = torch.full((n,), options.level)
    conditional = Conditional(model.energy_function, model.schedule, level, x_next.expand(n, *event).contiguous())

    class Flat:
        """The same of flat vectors; the spring's gradient stays known."""

        x_next = conditional.x_next.flatten(1)

        def __call__(self, y: Tensor) -> Tensor:
            return conditional(y.unflatten(1, event))

        def value_and_grad(self, y: Tensor) -> tuple[Tensor, Tensor]:
            value, grad = conditional.value_and_grad(y.unflatten(1, event))
            return value, grad.flatten(1)

        def grad(self, y: Tensor) -> Tensor:
            return conditional.grad(y.unflatten(1, event)).flatten(1)

    flat = Flat()

    def in_jax() -> Callable[[Any], Any]:
        return jax_conditional(model, options.level, x_next, flat)

    return Target(flat, in_jax, x_next.flatten(1).expand(n, -1).contiguous())


def jax_conditional(model: Any, level: int, x_next: Tensor, ours: LogDensity) -> Callable[[Any], Any]:
    """log p(y_t | x_{t+1}) of one flat vector in JAX."""
    import jax
    import jax.numpy as jnp

    energy, net = model.energy_function, model.energy_function.network
    t = torch.tensor([level])
    with torch.no_grad():
        weights, scale = net._prepare(t), float(energy._level_scale(t))

    def array(value: Tensor) -> Any:
        # Convolutions in XLA's own layout: height, width, in, out.
        return jnp.asarray((value.permute(2, 3, 1, 0) if value.ndim == 4 and value.shape[2] == 3 else value).detach().numpy())

    def conv(h: Any, weight: Any, bias: Any = 0.0) -> Any:
        return jax.lax.conv_general_dilated(h, weight, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")) + bias

    def lrelu(h: Any) -> Any:
        return jnp.where(h > 0, h, 0.2 * h)

    conv_in = [array(v) for v in weights.conv_in]
    levels = [
        [
            (
                array(b.conv1),
                jnp.asarray(b.time.flatten().detach().numpy()),
                [array(v) for v in b.conv2],
                [array(v) for v in b.shortcut] if b.shortcut is not None else None,
            )
            for b in blocks
        ]
        for blocks in weights.levels
    ]
    head, x = array(weights.head)[0], jnp.asarray(x_next.flatten().numpy())
    channels, height, width = x_next.shape[1:]
    precision = float(model.schedule.spring_precision[level])
    assert channels == 1
    assert net.unshuffle == 1

    def logdensity(y: Any) -> Any:
        h = conv(y.reshape(1, height, width, 1), *conv_in)
        for i, blocks in enumerate(levels):
            if i:
                n, a, b, c = h.shape
                h = h.reshape(n, a // 2, 2, b // 2, 2, c).mean((2, 4))
            for conv1, time_bias, conv2, shortcut in blocks:
                r = conv(lrelu(conv(lrelu(h), conv1, time_bias)), *conv2)
                h = r + (h if shortcut is None else conv(h, *shortcut))
        output = (jnp.maximum(h, 0).sum((0, 1, 2)) * head).sum()
        f = scale * output - 0.5 * energy.base_precision * (y**2).sum()
        return f - 0.5 * precision * ((y - x) ** 2).sum()

    test = x_next.flatten(1) + 0.1 * Noise(1, torch.arange(len(ours.x_next))).normal(x.size)  # type: ignore[attr-defined]
    found, wanted = np.asarray(jax.vmap(logdensity)(jnp.asarray(test.numpy()))), ours(test).detach().numpy()
    if not np.allclose(found, wanted, rtol=1e-4, atol=1e-2):
        raise RuntimeError(f"the network in JAX differs from that in torch: {found[:3]}, {wanted[:3]}")
    return logdensity


def counted(logdensity: LogDensity, sign: float = 1.0) -> tuple[Callable[..., Tensor], list[int]]:
    """The log-density (times a sign), and a list of one number: how many gradients of one chain were made."""
    count = [0]

    def function(y: Tensor, *_: Any) -> Tensor:
        count[0] += len(y) if torch.is_grad_enabled() else 0
        return sign * logdensity(y)

    return function, count


def ours(kernel: Kernel, target: Target, start: Tensor, delta: float, options: Options) -> Contestant:
    y, noise = [start], Noise(options.seed, torch.arange(options.chains), ahead=16)

    def advance(num_steps: int) -> tuple[Tensor, int, float | None]:
        trace = record_chain(kernel, y[0], target.logdensity, delta, num_steps, noise)
        y[0] = trace.draws[-1]
        acceptance = trace.info.acceptance
        gradients = int(torch.as_tensor(trace.info.num_gradients).sum())
        return trace.draws, gradients, None if acceptance is None else float(acceptance.mean())

    return Contestant("springwell", advance)


def ebmkit(sampler: str, target: Target, start: Tensor, delta: float, options: Options) -> Contestant:
    from ebm.samplers import HMC, MALA, NUTS

    energy, count = counted(target.logdensity, -1.0)
    # Its MALA moves by eps grad + sqrt(2 eps) noise.
    kernel = {
        "mala": lambda: MALA(step_size=delta**2 / 2),
        "hmc": lambda: HMC(step_size=delta, leapfrog_steps=options.leapfrog),
        "nuts": lambda: NUTS(step_size=delta, warmup=0),
    }[sampler]()
    y = [start]
    torch.manual_seed(options.seed)

    def advance(num_steps: int) -> tuple[Tensor, int, float | None]:
        before = count[0]
        draws = kernel.sample(energy, y[0], steps=num_steps, return_trajectory=True)[1:]
        y[0] = draws[-1]
        return draws, count[0] - before, None

    return Contestant("ebmkit", advance)


def torchebm(sampler: str, target: Target, start: Tensor, delta: float, options: Options) -> Contestant:
    from torchebm.core import BaseModel
    from torchebm.samplers import HamiltonianMonteCarlo

    assert sampler == "hmc"
    energy, count = counted(target.logdensity, -1.0)

    class Energy(BaseModel):  # type: ignore[misc]
        def forward(self, x: Tensor) -> Tensor:
            return energy(x)

    kernel = HamiltonianMonteCarlo(Energy(), step_size=delta, n_leapfrog_steps=options.leapfrog)
    y, generator = [start], torch.Generator().manual_seed(options.seed)

    def advance(num_steps: int) -> tuple[Tensor, int, float | None]:
        before = count[0]
        draws = kernel.sample(x=y[0], n_steps=num_steps, return_trajectory=True, generator=generator).transpose(0, 1)
        y[0] = draws[-1]
        return draws, count[0] - before, None

    return Contestant("torchebm", advance)


def blackjax(sampler: str, target: Target, start: Tensor, delta: float, options: Options) -> Contestant:
    import blackjax
    import jax
    import jax.numpy as jnp

    logdensity, unit = target.in_jax(), jnp.ones(start.shape[1])
    kernel = {
        "mala": lambda: blackjax.mala(logdensity, delta**2 / 2),
        "hmc": lambda: blackjax.hmc(logdensity, delta, unit, options.leapfrog),
        "nuts": lambda: blackjax.nuts(logdensity, delta, unit),
    }[sampler]()

    def run(states: Any, key: Any, num_steps: int) -> Any:
        def step(states: Any, key: Any) -> Any:
            states, info = jax.vmap(kernel.step)(jax.random.split(key, options.chains), states)
            made = info.num_integration_steps if sampler != "mala" else jnp.ones(options.chains)
            return states, (states.position, made, info.acceptance_rate)

        return jax.lax.scan(step, states, jax.random.split(key, num_steps))

    compiled = jax.jit(run, static_argnums=2)
    states = [jax.jit(jax.vmap(kernel.init))(jnp.asarray(start.numpy()))]
    key = [jax.random.key(options.seed)]
    sizes: set[int] = set()

    def advance(num_steps: int) -> tuple[Tensor, int, float | None]:
        key[0], now = jax.random.split(key[0])
        states[0], (draws, made, acceptance) = compiled(states[0], now, num_steps)
        return torch.tensor(np.asarray(draws)), int(np.asarray(made).sum()), float(np.asarray(acceptance).mean())

    def prepared(num_steps: int) -> tuple[Tensor, int, float | None]:
        if num_steps not in sizes:
            # Compiled for this number of steps, outside of the clock: the caller's first turn does not count.
            advance(num_steps)
            sizes.add(num_steps)
        return advance(num_steps)

    return Contestant("blackjax", prepared)


CONTESTANTS: dict[str, tuple[Callable[..., Contestant], tuple[str, ...]]] = {
    "ebmkit": (ebmkit, ("mala", "hmc", "nuts")),
    "torchebm": (torchebm, ("hmc",)),
    "blackjax": (blackjax, ("mala", "hmc", "nuts")),
}


def warm_up(target: Target, options: Options) -> tuple[Tensor, Tensor]:
    """Draws of the target, from the one point that all chains share, and the step size that found them."""
    index, kernel = torch.arange(options.chains), hmc(4)
    first = tune_step_size(kernel, target.logdensity, target.start, 0.05, Noise(2, index))
    steps = first.step_size.expand(options.chains)
    return run_chain(kernel, first.y, target.logdensity, steps, WARM_UP, Noise(3, index))[0], first.step_size


def compete(name: str, sampler: str, target: Target, warm: tuple[Tensor, Tensor], options: Options) -> dict[str, Any]:
    kernel = {"mala": mala(), "hmc": hmc(options.leapfrog), "nuts": nuts()}[sampler]
    start, guess = warm
    noise = Noise(4, torch.arange(options.chains))
    tuned = tune_step_size(kernel, target.logdensity, start, guess, noise, tuning=Tuning(BANDS[sampler], 60))
    delta = float(tuned.step_size)
    log(f"\n{name}, {sampler}: step size {delta:.4g}, acceptance {float(tuned.acceptance):.2f}")

    field = [ours(kernel, target, start, delta, options)]
    for other, (make, has) in CONTESTANTS.items():
        if sampler in has:
            try:
                field.append(make(sampler, target, start, delta, options))
            except ImportError as error:
                log(f"  {other}: left out ({error})")
    share = options.draws // options.rounds
    for contestant in field:
        for _ in range(2):
            contestant.turn(share, counts=False)
    for _ in range(options.rounds):
        for contestant in field:
            contestant.turn(share, counts=True)

    results: dict[str, Any] = {"step_size": delta}
    log(f"  {'':12}{'accept':>8}{'R-hat':>8}{'ESS':>9}{'tail':>9}{'gradients':>11}{'ESS/grad':>10}{'ESS/s':>9}   springwell is")
    for contestant in field:
        draws = torch.cat(contestant.draws)
        bulk, tail = float(ess_bulk(draws).mean()), float(ess_tail(draws).mean())
        row: dict[str, Any] = {
            "acceptance": float(np.mean(contestant.acceptance)) if contestant.acceptance else None,
            "rhat": float(split_rhat(draws).max()),
            "ess_bulk": bulk,
            "ess_tail": tail,
            "gradients": contestant.gradients,
            "seconds": contestant.seconds,
            "ess_per_gradient": bulk / contestant.gradients,
            "ess_per_second": bulk / contestant.seconds,
            "mean": float(draws.mean()),
            "variance": float(draws.double().flatten(0, 1).var(0).mean()),
        }
        results[contestant.name] = row
        mine = results["springwell"]
        ratios = {k: mine[k] / row[k] for k in ("ess_per_gradient", "ess_per_second")}
        accept = "-" if row["acceptance"] is None else f"{row['acceptance']:.2f}"
        log(
            f"  {contestant.name:12}{accept:>8}{row['rhat']:8.3f}{bulk:9.0f}{tail:9.0f}{contestant.gradients:11d}"
            f"{row['ess_per_gradient']:10.4f}{row['ess_per_second']:9.0f}"
            f"   {ratios['ess_per_gradient']:.2f} x per gradient, {ratios['ess_per_second']:.2f} x per second"
        )
        row["ratios"] = ratios
    return results


def main() -> None:
    options = tyro.cli(Options)
    if options.draws % options.rounds or options.draws // options.rounds < 2:
        raise SystemExit("--draws must be a multiple of --rounds, at least twice as many")
    torch.set_num_threads(1)
    versions = {"python": platform.python_version()}
    for package in ("springwell", "torch", "ebmkit", "torchebm", "blackjax", "jax"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = springwell.__version__ if package == "springwell" else "not installed"
    log(", ".join(f"{k} {v}" for k, v in versions.items()))
    targets = {"gaussian": gaussian, "network": network}
    results: dict[str, Any] = {}
    for name in options.targets:
        target = targets[name](options)
        warm = warm_up(target, options)
        results[name] = {sampler: compete(name, sampler, target, warm, options) for sampler in options.samplers}
    if options.json:
        print(json.dumps({"versions": versions, "results": results}))


if __name__ == "__main__":
    main()

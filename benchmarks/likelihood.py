r"""log Z of a mixture by annealing: gradient evaluations for a given accuracy, beside ebmkit's AIS and blackjax's tempered SMC.

    pip install 'springwell[bench]'
    python benchmarks/likelihood.py
    python benchmarks/likelihood.py --dim 2 --modes 8 --width 0.3 --radius 2 --json

The target has --modes Gaussians of width --width on a circle of radius --radius in the first two of --dim dimensions, equally
heavy; log Z = 3 by construction. Every contestant starts --repeats times from --chains draws of N(0, I), in float64.

springwell   `annealed.walk`: AIS and SMC, after one pilot that all repeats share; its gradients are told apart.
ebmkit       `ais_log_z` with its default sampler (HMC, 5 leapfrogs, step 0.1 that adapts on the way) and its linear schedule.
blackjax     `adaptive_tempered_smc` with HMC of 5 leapfrogs and the pilot's last step size; --moves steps per temperature.

An estimate of n chains has a squared error that falls as 1 / n, and so do contestants with more densities as long as chains
keep up. What is compared is the product: gradients of one repeat times its mean squared error, as the number of gradients that
an error of 0.05 nats would take. Errors are of log Z, over the repeats; the ratio's spread is by the bootstrap.
"""

from __future__ import annotations

import os

os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", JAX_PLATFORMS="cpu", JAX_ENABLE_X64="1")

import json
import math
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
import tyro
from torch import Tensor

import springwell
from springwell import Noise
from springwell.likelihood.annealed import Plan, Walkers, pilot, plain_path, walk

LOG_Z = 3.0
GOAL = 0.05


@dataclass
class Options:
    """Which target and how much of everything."""

    dim: int = 32
    modes: int = 4
    radius: float = 1.5
    width: float = 0.5
    chains: int = 64
    repeats: int = 16
    densities: int = 128
    """Of springwell's and ebmkit's AIS; blackjax finds its own number for --ess."""
    ess: float = 0.95
    moves: int = 2
    seed: int = 0
    json: bool = False


def log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def centres(options: Options) -> Tensor:
    angle = 2 * math.pi * torch.arange(options.modes, dtype=torch.float64) / options.modes
    rest = torch.zeros(options.modes, options.dim - 2, dtype=torch.float64)
    return torch.cat([options.radius * torch.stack([angle.cos(), angle.sin()], 1), rest], 1)


def target(options: Options) -> tuple[Callable[[Tensor], Tensor], list[int]]:
    """log q, and how many gradients of it were asked for (one per sample)."""
    c, count = centres(options), [0]
    constant = LOG_Z - 0.5 * options.dim * math.log(2 * math.pi * options.width**2) - math.log(options.modes)

    def logdensity(x: Tensor) -> Tensor:
        if x.requires_grad:
            count[0] += len(x)
        square = (x * x).sum(-1, keepdim=True) - 2 * x @ c.T + (c * c).sum(-1)
        return (-square / (2 * options.width**2)).logsumexp(-1) + constant

    return logdensity, count


def ours(options: Options) -> tuple[dict[str, tuple[list[float], float]], int, Plan]:
    """Estimates and gradients per repeat of AIS and SMC, the pilot's gradients, and its plan."""
    logdensity, count = target(options)
    path, num = plain_path(logdensity, (options.dim,)), options.chains * options.repeats
    plan = pilot(path, Noise(options.seed, torch.arange(options.chains), 1, dtype=torch.float64))
    piloted, count[0] = count[0], 0
    found = {}
    for name in ("AIS", "SMC"):
        noise = Noise(options.seed, torch.arange(num), 2 if name == "AIS" else 3, dtype=torch.float64)
        resample = Noise(options.seed, torch.arange(options.repeats), 4, dtype=torch.float64) if name == "SMC" else None
        result = walk(path, plan, options.densities, Walkers(noise.normal(options.dim), noise, options.repeats, resample))
        found[name] = (result.log_ratio.tolist(), count[0] / options.repeats)
        count[0] = 0
    return found, piloted, plan


def ebmkit(options: Options) -> tuple[list[float], float]:
    from ebm.ais import ais_log_z

    logdensity, count = target(options)
    base = torch.distributions.Independent(
        torch.distributions.Normal(torch.zeros(options.dim, dtype=torch.float64), torch.ones(options.dim, dtype=torch.float64)),
        1,
    )
    torch.manual_seed(options.seed)
    run = {"base": base, "n_temps": options.densities, "n_chains": options.chains}
    estimates = [ais_log_z(lambda x: -logdensity(x), (options.dim,), **run).log_z for _ in range(options.repeats)]
    return estimates, count[0] / options.repeats


def blackjax(options: Options, step_size: float) -> tuple[list[float], float]:
    import blackjax
    import blackjax.smc.resampling as resampling
    import jax
    import jax.numpy as jnp

    c, leapfrogs = jnp.asarray(centres(options).numpy()), 5
    constant = LOG_Z - 0.5 * options.dim * math.log(2 * math.pi * options.width**2) - math.log(options.modes)

    def normal(x: Any) -> Any:
        return -0.5 * (x @ x + options.dim * math.log(2 * math.pi))

    def above(x: Any) -> Any:
        square = ((x - c) ** 2).sum(-1)
        return jax.nn.logsumexp(-square / (2 * options.width**2)) + constant - normal(x)

    parameters = {
        "step_size": jnp.array([step_size]),
        "inverse_mass_matrix": jnp.ones((1, options.dim)),
        "num_integration_steps": jnp.array([leapfrogs]),
    }
    smc = blackjax.adaptive_tempered_smc(
        normal, above, blackjax.hmc.build_kernel(), blackjax.hmc.init, parameters, resampling.systematic, options.ess,
        num_mcmc_steps=options.moves,
    )  # fmt: skip
    step = jax.jit(smc.step)
    estimates, gradients = [], 0
    for key in jax.random.split(jax.random.key(options.seed), options.repeats):
        first, key = jax.random.split(key)
        state, log_z = smc.init(jax.random.normal(first, (options.chains, options.dim))), 0.0
        while float(state.tempering_param) < 1:
            key, now = jax.random.split(key)
            state, info = step(now, state)
            log_z += float(info.log_likelihood_increment)
            # A gradient where chains begin, and one per leapfrog.
            gradients += options.chains * (1 + options.moves * leapfrogs)
        estimates.append(log_z)
    return estimates, gradients / options.repeats


def needed(estimates: Tensor, gradients: float) -> float:
    """Gradients for an error of GOAL."""
    return gradients * float((estimates - LOG_Z).square().mean()) / GOAL**2


def main() -> None:
    options = tyro.cli(Options)
    torch.set_num_threads(1)
    found, piloted, plan = ours(options)
    rows: dict[str, tuple[list[float], float]] = {f"springwell {name}": result for name, result in found.items()}
    for name, contestant in {
        "ebmkit AIS": lambda: ebmkit(options),
        "blackjax tempered SMC": lambda: blackjax(options, float(plan.step_size[-1])),
    }.items():
        try:
            rows[name] = contestant()
        except ImportError as error:
            log(f"{name}: not installed ({error.name})")
    what = f"log Z = {LOG_Z:g} in {options.dim} dimensions, {options.modes} modes"
    log(f"{what}; {options.repeats} repeats of {options.chains} chains")
    log(f"pilot: {piloted:,} gradients once, L = {plan.num_leapfrog}")
    log(f"{'':24}{'mean error':>12}{'rms error':>11}{'gradients':>12}{f'for {GOAL} nats':>16}   relative to springwell's SMC")
    generator = torch.Generator().manual_seed(options.seed)
    results = {}
    reference = torch.tensor(rows["springwell SMC"][0], dtype=torch.float64)
    for name, (values, gradients) in rows.items():
        estimates = torch.tensor(values, dtype=torch.float64)
        missed = estimates - LOG_Z
        draw = torch.randint(options.repeats, (2, 1000, options.repeats), generator=generator)
        ratio = (missed[draw[0]].square().mean(1) * gradients) / (
            (reference - LOG_Z)[draw[1]].square().mean(1) * rows["springwell SMC"][1]
        )
        low, high = (float(ratio.quantile(q)) for q in (0.05, 0.95))
        rms, cost = math.sqrt(float(missed.square().mean())), needed(estimates, gradients)
        results[name] = {"mean_error": float(missed.mean()), "rms_error": rms, "gradients": gradients, "needed": cost}
        relative = cost / needed(reference, rows["springwell SMC"][1])
        errors = f"{float(missed.mean()):+12.4f}{rms:11.4f}"
        log(f"{name:24}{errors}{gradients:12,.0f}{cost:16,.0f}   {relative:.2f} ({low:.2f} ... {high:.2f})")
    versions = {"python": platform.python_version(), "springwell": springwell.__version__}
    for package in ("torch", "ebmkit", "blackjax", "jax"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    log(", ".join(f"{k} {v}" for k, v in versions.items()))
    if options.json:
        print(json.dumps({"versions": versions, "pilot_gradients": piloted, "results": results}))


if __name__ == "__main__":
    main()

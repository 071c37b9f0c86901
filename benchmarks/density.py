r"""Bits per dimension of held-out images after equal CPU time, beside normalizing flows and a Gaussian mixture.

    pip install 'springwell[bench]'
    python benchmarks/density.py --minutes 4 --data digits
    python benchmarks/density.py --minutes 30 --data mnist fashion-mnist --data-root DIR

Every number bounds the same thing from above: the mean of -log2 P(b) / D over the test images, P the probability of an image
of grey values b. Each method trains for --minutes of the CPU time of one thread.

springwell   The preset DATA-density, or the one that it begins with; the pace of its first iterations says how many fit. P is
             bounded by the initial noise and the decoder (springwell.likelihood.decoder). The value is that of the bracket
             by `springwell likelihood`, which is not part of the training time; `claim` takes log Z as the model believes it.
zuko         A masked autoregressive flow, as Papamakarios, Pavlakou and Murray (2017) have it for MNIST: 5 transforms, 1,024
             hidden units, batch 100, on logit(1e-6 + (1 - 2e-6) y / V). For 8 x 8 digits, a neural spline flow with zuko's own
             numbers, 3 transforms of 2 x 64 units and 8 bins, on the same logits.
normflows    Glow with the parts of normflows' own example and its Adamax at 1e-3. The example has three scales; an image
             of 28 x 28 can be halved twice and 8 x 8 would end in single pixels, so it has two here. Its 16 steps of 256
             channels would see a few hundred batches in half an hour of a CPU; 8 steps of 64 channels see 20 times as many.
sklearn      GaussianMixture with full covariances; the number of components and the regularisation are those that validation
             likes best, of all that fit in the time.

The peers see y = b + u, u uniform in [0, 1]^D, and -log2 of their density of y bounds -log2 P(b) by Jensen's inequality. Every
tenth training image validates them, and the weights that do best there are kept: digits are few, and flows overfit them.
springwell chooses nothing by validation and trains on all training images.

A finished cell is a JSON file in --out; the same command goes on with the cells that are missing.
"""

from __future__ import annotations

import os

os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")

import copy
import itertools
import json
import math
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import tyro
from torch import Tensor, nn

from springwell.app.api import load, train_run
from springwell.app.build import measurable_data
from springwell.app.config import Config, with_fields
from springwell.app.presets import TABLE, preset
from springwell.data.options import ImageOptions
from springwell.data.source import open_data
from springwell.evaluation.likelihood import measure, settings_for
from springwell.noise import Noise
from springwell.progress import Silent
from springwell.store.files import write_json
from springwell.training.loop import Hooks

DataName = Literal["digits", "mnist", "fashion-mnist"]
Method = Literal["springwell", "zuko", "normflows", "sklearn"]
LOGIT_MARGIN = 1e-6


@dataclass(frozen=True)
class Options:
    """Which cells of the table, and how long."""

    minutes: float = 4.0
    """CPU minutes of training, of every method on every data set."""
    data: tuple[DataName, ...] = ("digits", "mnist", "fashion-mnist")
    methods: tuple[Method, ...] = ("springwell", "zuko", "normflows", "sklearn")
    data_root: str | None = None
    """Where MNIST and Fashion-MNIST are."""
    out: Path = Path("runs/benchmark-density")
    densities: int = 64
    """Densities of the bracket."""
    chains: int = 32
    """Chains of each of the bracket's 16 repeats."""
    burn: int = 300
    """HMC steps of the chains that the upper bounds start from."""
    seed: int = 0


class Images(NamedTuple):
    """Grey values ``[N, C, H, W]``, int64 in 0 ... ``num_values`` - 1."""

    train: Tensor
    validation: Tensor
    test: Tensor
    num_values: int

    @property
    def dim(self) -> int:
        return math.prod(self.test.shape[1:])


class Clock:
    """CPU time of this process from now on, as a share of what there is."""

    def __init__(self, minutes: float):
        self.began, self.seconds = time.process_time(), 60 * minutes

    @property
    def minutes(self) -> float:
        return (time.process_time() - self.began) / 60

    @property
    def share(self) -> float:
        return 60 * self.minutes / self.seconds


def log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def read_images(name: str, options: Options) -> Images:
    data = open_data(name, ImageOptions(data_root=options.data_root))
    assert data.rows is not None
    assert data.num_held_out is not None
    values = torch.from_numpy(data.rows).float().div(127.5 * data.cell).round().long()
    held_out = data.held_out(Noise(options.seed, torch.arange(data.num_held_out)))
    kept = torch.arange(len(values)) % 10 == 9
    return Images(values[~kept], values[kept], ((held_out + 1) / data.cell).round().long(), round(2 / data.cell) + 1)


def dequantised(values: Tensor, generator: torch.Generator) -> Tensor:
    return values + torch.rand(values.shape, generator=generator)


def summary(log_prob: Tensor, dim: int) -> dict[str, float]:
    """Bits/dim of log-densities ``[N]`` of y, with the standard error over images."""
    bits = -log_prob.double() / (dim * math.log(2))
    return {"bits_per_dim": float(bits.mean()), "standard_error": float(bits.std()) / math.sqrt(len(bits))}


def paced(config: Config, minutes: float) -> Config:
    """``config`` with as many iterations as fit. The first run is not timed: it pays for imports and for reading the data."""
    spent = []
    for iterations in (2, 10, 60):
        with tempfile.TemporaryDirectory() as folder:
            clock = Clock(minutes)
            train_run(config, Path(folder) / "run", "cpu", Silent(), Hooks(stop_after=iterations))
            spent.append(clock.minutes)
    iterations = max(2, int(minutes / ((spent[2] - spent[1]) / 50)))
    return with_fields(config, iterations=iterations, warmup=min(config.training.warmup, iterations // 5))


def run_springwell(name: str, images: Images, options: Options) -> dict[str, Any]:
    recipe = TABLE[f"{name}-density"].begins_with or f"{name}-density"
    config = with_fields(preset(recipe), data_root=options.data_root, seed=options.seed)
    config = paced(config, options.minutes)
    with tempfile.TemporaryDirectory() as folder:
        clock = Clock(options.minutes)
        result = train_run(config, Path(folder) / "run", "cpu", Silent())
        minutes = clock.minutes
        if result.status != "finished":
            raise SystemExit(f"{name}, springwell: training ended as '{result.status}'; run the same command to go on")
        model = load(Path(folder) / "run")
    log(f"{name}, springwell: {config.training.iterations} iterations in {minutes:.1f} CPU minutes; now the bracket")
    numbers = {"densities": options.densities, "budget": options.densities, "seed": options.seed}
    settings = settings_for(model, 0.03, chains=options.chains, **numbers)
    record = measure(model, measurable_data(model), settings, len(images.test), burn=options.burn).record
    return {
        "bits_per_dim": record["bits_per_dim_claimed"],
        "standard_error": record["bits_per_dim_standard_error_data"],
        "lower_log_z": record["bits_per_dim_optimistic"],
        "upper_log_z": record["bits_per_dim_conservative"],
        "quoted": record["bits_per_dim"],
        "verdict": record["verdict"],
        "reason": record["reason"],
        "minutes": minutes,
        "iterations": config.training.iterations,
        "what": f"{recipe}, {config.training.iterations:,} iterations",
    }


def logits(y: Tensor, num_values: int) -> tuple[Tensor, Tensor]:
    """z of y in [0, V], and the logarithm of |dz / dy| ``[N]``."""
    p = LOGIT_MARGIN + (1 - 2 * LOGIT_MARGIN) * y.double() / num_values
    slope = math.log((1 - 2 * LOGIT_MARGIN) / num_values) - p.log() - (-p).log1p()
    return (p.log() - (-p).log1p()).float(), slope.flatten(1).sum(-1)


class AutoregressiveFlow(nn.Module):
    """zuko's density of y, through standardised logits."""

    mean: Tensor
    std: Tensor

    def __init__(self, images: Images):
        super().__init__()
        import zuko

        few = images.dim < 100
        sizes: dict[str, Any] = {"transforms": 3, "hidden_features": (64, 64)} if few else {"transforms": 5}
        kind = zuko.flows.NSF if few else zuko.flows.MAF
        self.flow = kind(images.dim, **{"hidden_features": (1024,), **sizes})
        self.num_values, self.about = images.num_values, f"{kind.__name__} {sizes['transforms']} transforms"
        z, _ = logits(dequantised(images.train[:10_000], torch.Generator().manual_seed(0)), images.num_values)
        self.register_buffer("mean", z.flatten(1).mean(0))
        self.register_buffer("std", z.flatten(1).std(0))

    def forward(self, y: Tensor) -> Tensor:
        z, slope = logits(y, self.num_values)
        return self.flow().log_prob((z.flatten(1) - self.mean) / self.std) + slope - self.std.log().sum()


class Glow(nn.Module):
    """normflows' density of y, through y / V - 1/2; put together as in its example examples/glow.ipynb."""

    def __init__(self, images: Images, num_scales: int = 2, num_steps: int = 8, hidden: int = 64):
        super().__init__()
        import normflows as nf

        channels, height, width = images.test.shape[1:]
        bases, flows, merges = [], [], []
        for i in range(num_scales):
            depth = num_scales - i
            blocks = [nf.flows.GlowBlock(channels * 2 ** (depth + 1), hidden) for _ in range(num_steps)]
            flows.append([*blocks, nf.flows.Squeeze()])
            merges += [nf.flows.Merge()] * (i > 0)
            shape = (channels * 2 ** (depth + (i == 0)), height // 2**depth, width // 2**depth)
            bases.append(nf.distributions.DiagGaussian(shape))
        self.flow = nf.MultiscaleFlow(bases, flows, merges, class_cond=False)
        self.num_values, self.dim = images.num_values, images.dim
        self.about = f"Glow, {num_scales} scales of {num_steps} steps, {hidden} channels"

    def forward(self, y: Tensor) -> Tensor:
        return self.flow.log_prob(y / self.num_values - 0.5, None) - self.dim * math.log(self.num_values)


def run_flow(
    flow: AutoregressiveFlow | Glow, optimizer: torch.optim.Optimizer, images: Images, options: Options, batch: int
) -> dict[str, Any]:
    """Maximum likelihood with a cosine over the CPU time, keeping the weights that validate best."""
    generator = torch.Generator().manual_seed(options.seed)
    clock, first_lr = Clock(options.minutes), optimizer.param_groups[0]["lr"]
    watched = dequantised(images.validation[:2000], generator)
    best, state, iterations, checks = -math.inf, copy.deepcopy(flow.state_dict()), 0, 0
    while (share := clock.share) < 1:
        warm = min(1.0, (iterations + 1) / 100)
        optimizer.param_groups[0]["lr"] = first_lr * warm * 0.5 * (1 + math.cos(math.pi * share))
        rows = torch.randint(len(images.train), (batch,), generator=generator)
        loss = -flow(dequantised(images.train[rows], generator)).mean() / images.dim
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(flow.parameters(), 1.0)
        optimizer.step()
        iterations += 1
        if clock.share > (checks + 1) / 20:
            checks += 1
            score = float(in_batches(flow, watched).mean())
            if score > best:
                best, state = score, copy.deepcopy(flow.state_dict())
    minutes = clock.minutes
    flow.load_state_dict(state)
    found = summary(in_batches(flow, dequantised(images.test, generator)), images.dim)
    return {**found, "minutes": minutes, "iterations": iterations, "what": f"{flow.about}, {iterations:,} iterations"}


@torch.no_grad()
def in_batches(log_prob: Callable[[Tensor], Tensor], y: Tensor) -> Tensor:
    return torch.cat([log_prob(part) for part in y.split(500)])


def run_zuko(name: str, images: Images, options: Options) -> dict[str, Any]:
    flow = AutoregressiveFlow(images)
    return run_flow(flow, torch.optim.AdamW(flow.parameters(), 1e-3, weight_decay=1e-6), images, options, 100)


def run_normflows(name: str, images: Images, options: Options) -> dict[str, Any]:
    flow = Glow(images)
    return run_flow(flow, torch.optim.Adamax(flow.parameters(), 1e-3, weight_decay=1e-5), images, options, 64)


def run_sklearn(name: str, images: Images, options: Options) -> dict[str, Any]:
    """EM of ever more components, one step at a time so that the time is kept."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    warnings.simplefilter("ignore", ConvergenceWarning)
    generator, clock = torch.Generator().manual_seed(options.seed), Clock(options.minutes)
    train, validation, test = (dequantised(part, generator).flatten(1).double().numpy() for part in images[:3])
    best, chosen, what = -math.inf, None, ""
    for power, floor in itertools.product(range(8), (0.003, 0.03, 0.3)):
        how = {"n_components": 2**power, "reg_covar": floor, "init_params": "k-means++", "random_state": options.seed}
        mixture = GaussianMixture(**how, max_iter=1, warm_start=True)
        for _ in range(100):
            if clock.share >= 1:
                break
            mixture.fit(train)
            found = float(mixture.score(validation[:2000]))
            if found > best:
                best, chosen = found, copy.deepcopy(mixture)
                what = f"{2**power} components, regularisation {floor:g}"
            if mixture.converged_:
                break
    minutes = clock.minutes
    assert chosen is not None
    return {**summary(torch.from_numpy(chosen.score_samples(test)), images.dim), "minutes": minutes, "what": what}


RUNS: dict[str, Callable[[str, Images, Options], dict[str, Any]]] = {
    "springwell": run_springwell,
    "zuko": run_zuko,
    "normflows": run_normflows,
    "sklearn": run_sklearn,
}
PACKAGES = {"sklearn": "scikit-learn"}


def row(name: str, method: str, cell: dict[str, Any]) -> str:
    value, bracket = cell["bits_per_dim"], "exact bound"
    if "verdict" in cell:
        bounds = f"{cell['lower_log_z']:.3f} ... {cell['upper_log_z']:.3f}, `{cell['verdict']}`"
        value, bracket = cell["quoted"], f"{bounds} (claim {cell['bits_per_dim']:.3f})"
    versioned = f"{method} {cell['version']}"
    shown = f"{value:.3f} +- {cell['standard_error']:.3f}"
    return f"| {name} | {versioned} | {shown} | {bracket} | {cell['what']} | {cell['minutes']:.1f} |"


def main() -> None:
    options = tyro.cli(Options)
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    lines = []
    for name in options.data:
        images = read_images(name, options)
        for method in options.methods:
            path = options.out / f"{name}-{method}-{options.minutes:g}-minutes-seed-{options.seed}.json"
            if not path.exists():
                log(f"{name}, {method}: {options.minutes:g} minutes")
                torch.manual_seed(options.seed)
                cell = {**RUNS[method](name, images, options), "version": version(PACKAGES.get(method, method))}
                write_json(path, cell)
            lines.append(row(name, method, json.loads(path.read_text())))
    print(
        "| data | method | bits/dim, test | log Z from below ... from above | model | CPU minutes |\n|---|---|---|---|---|---|"
    )
    print("\n".join(lines))


if __name__ == "__main__":
    main()

"""The paper's ablation (its Table 2) at a size that a CPU trains, with the adapted ladder beside it.

    T = 1, K = 180        one marginal EBM
    T = 1000, K = 0       recovery likelihood with normal-approximation negatives
    T = 1000, DSM         score matching of the explicit energy
    T = 6, K = 10, 30, 50 the authors' levels and chains
    ladder                ours

All have the same network, and a training budget of equally many gradients of it for one sample: iterations x batch x
gradient evaluations per iteration.
"""

from __future__ import annotations

import itertools
import statistics
from typing import Any

import numpy as np
from torch import Tensor

from springwell.app.config import Config, with_fields
from springwell.app.plots import draw_images, new_figure
from springwell.app.presets import preset
from springwell.errors import DivergenceError, UserError
from springwell.evaluation.inception import Inception
from springwell.evaluation.quality import Drawn, quality
from springwell.evaluation.sources import open_source
from springwell.evaluation.weights import load_inception
from springwell.paper.common import Study, coarse_ladder, markdown, resolved, scaled, write
from springwell.store.parts import Parts, key_of

# FID of CIFAR-10 in the paper; None where it calls the training unstable.
PAPER = {
    "T = 1, K = 180": 32.12,
    "T = 1000, K = 0": 22.58,
    "T = 1000, DSM": 21.76,
    "T = 6, K = 10": None,
    "T = 6, K = 30": 9.58,
    "T = 6, K = 50": 9.36,
}
# Gradients for one sample, and samples that are measured.
BUDGET = {"digits": (1_200_000, 1498), "mnist": (6_000_000, 2000)}
SEEDS = 2
# 97.5 % of Student's t with the 2 degrees of freedom that two seeds of each of two rows leave.
STUDENT = 4.303


def configs(data: str, budget: float) -> dict[str, Config]:
    """The rows of the table, each with as many iterations as the budget allows."""
    t6 = preset(f"{data}-t6")
    t1k = preset("digits-t1k") if data == "digits" else with_fields(preset("fashion-mnist-t1k"), data=data)
    rows = {
        "T = 1, K = 180": with_fields(t6, objective="marginal", schedule="marginal", num_steps=180),
        "T = 1000, K = 0": t1k,
        "T = 1000, DSM": with_fields(t1k, objective="dsm", dsm_target="sample"),
        **{f"T = 6, K = {k}": with_fields(t6, num_steps=k) for k in (10, 30, 50)},
        "ladder": coarse_ladder(data),
    }
    costs = {name: config.gradient_evaluations() * config.training.batch for name, config in rows.items()}
    iterations = {name: max(1, round(budget / cost)) for name, cost in costs.items()}
    return {name: with_fields(config, iterations=iterations[name], dequantise=False) for name, config in rows.items()}


def reproduce(study: Study) -> dict[str, Any]:
    data, seed, scale, reporter = study.data or "digits", study.seed, study.scale, study.reporter
    if data not in BUDGET:
        raise UserError(f"--data {data}: has no presets for every row; use {' or '.join(BUDGET)}")
    budget, num = BUDGET[data]
    network = load_inception(device=resolved(study.device), reporter=reporter)
    rows: dict[str, Any] = {}
    pictures: dict[str, Any] = {}
    for name, base in configs(data, budget * scale).items():
        runs = []
        for number in range(seed, seed + SEEDS):
            folder = f"ablation-{data}-{''.join(c if c.isalnum() else '-' for c in name)}-{number}"
            run, picture = _run(study, scaled(base, number, 1.0), folder, num, network)
            runs.append(run)
            if picture is not None:
                pictures.setdefault(name, picture)
        training = base.training
        rows[name] = {"training": f"{training.iterations:,} x {training.batch}", "runs": runs, **_spread(runs)}
        rows[name]["gradients"] = training.iterations * training.batch * base.gradient_evaluations()
        reporter.say(f"{name}: {_cell(rows[name], 'fid')}")
    figure, axes = new_figure(1, len(pictures) or 1, 2.4)
    for ax, (name, picture) in zip(axes[0], pictures.items(), strict=False):
        draw_images(ax, picture)
        ax.set(title=f"{name}\nFID {_cell(rows[name], 'fid')}")
    published = {name: "unstable" if value is None else f"{value:.2f}" for name, value in PAPER.items()}
    table = markdown(
        ["", "iterations x batch", "FID", "KID x 1000", "the paper's FID on CIFAR-10"],
        [
            [name, row["training"], _cell(row, "fid"), _cell(row, "kid", 1000), published.get(name, "")]
            for name, row in rows.items()
        ],
    )
    known = {run["num_reference"] for row in rows.values() for run in row["runs"] if "num_reference" in run}
    against = " or ".join(f"{count:,}" for count in sorted(known)) or "no"
    caption = f"{num:,} samples of each against {against} training images; mean and standard deviation of {SEEDS} seeds"
    verdicts = ordering(rows)
    numbers = {"data": data, "seed": seed, "num_seeds": SEEDS, "scale": scale, "num_samples": num, "rows": rows}
    text = "\n".join([caption, "", table, "", *verdicts])
    return write(study.out, f"ablation-{data}", figure, {**numbers, "ordering": verdicts}, text)


def _run(study: Study, config: Config, name: str, num: int, network: Inception) -> tuple[dict[str, Any], Tensor | None]:
    """Trains and measures one run, or takes what an earlier call found; also returns some of its samples."""
    reporter, folder = study.reporter, study.out / "runs" / name
    try:
        model = study.trained(config, name).to(resolved(study.device))
        shown = model.sample(36, seed=config.training.seed)
        kept = Parts(folder / "quality" / key_of(model.fingerprint(), num, config.training.seed, network.digest))
        if (known := kept.read("result")) is not None:
            return {measure: value.item() for measure, value in known.items()}, shown
        reference = open_source(f"{config.data}@train", None, config.images, reporter)
        found = quality(model, reference, network, Drawn(num, config.training.seed), reporter, kept.folder)
    except DivergenceError as error:
        reporter.warn(f"{folder}: {error}")
        return {"diverged": str(error)}, None
    kept.clear()
    result = {measure: value for measure, value in found.items() if value is not None}
    kept.write("result", {measure: np.array(value) for measure, value in result.items()})
    return result, shown


def _spread(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and standard deviation over the seeds; None if one diverged."""
    out: dict[str, Any] = {}
    for metric in ("fid", "kid"):
        values = [run[metric] for run in runs if metric in run]
        complete = len(values) == len(runs)
        out[metric] = statistics.mean(values) if complete else None
        out[f"{metric}_std"] = statistics.stdev(values) if complete and len(values) > 1 else None
    return out


def _cell(row: dict[str, Any], metric: str, factor: float = 1) -> str:
    if row[metric] is None:
        diverged = sum("diverged" in run for run in row["runs"])
        return f"diverged ({diverged} of {len(row['runs'])} seeds)"
    spread = row[f"{metric}_std"]
    return f"{factor * row[metric]:.1f}" + ("" if spread is None else f" +- {factor * spread:.1f}")


def ordering(rows: dict[str, Any]) -> list[str]:
    """Whether neighbours in the paper's order of FIDs are in that order here; what two seeds do not show decides nothing."""
    known = sorted((value, name) for name, value in PAPER.items() if value is not None)
    lines, found = [], set()
    for (_, better), (_, worse) in itertools.pairwise(known):
        first, second = rows[better], rows[worse]
        if first["fid"] is None or second["fid"] is None:
            verdict = "not decided: one of them diverged"
            found.add("undecided")
        else:
            difference = second["fid"] - first["fid"]
            error = (((first["fid_std"] or 0) ** 2 + (second["fid_std"] or 0) ** 2) / max(1, len(first["runs"]))) ** 0.5
            sign = "holds" if difference > 0 else "is reversed"
            within = abs(difference) <= STUDENT * error
            verdict = f"{sign} by {abs(difference):.1f} +- {error:.1f}" + (", which decides nothing" if within else "")
            found.add("undecided" if within else sign)
        lines.append(f"paper: {better} better than {worse}; here that {verdict}".replace("that not", "not"))
    whole = "does not hold" if "is reversed" in found else "is not decided" if "undecided" in found else "holds"
    return [*lines, f"the paper's order as a whole {whole} here"]

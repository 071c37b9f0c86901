"""The paper's long-run chains (Sec. 4.3, its figures of steps, acceptance and quality) with the models that ship.

digits-t1k        T = 1000: 1, 10 and 100 steps per level are 1,000, 10,000 and 100,000 in all
digits            T = 12: the same for wide hops
mnist, fashion-mnist
                  T = 72, trained without chains
cifar10-t1k       the paper's own, where a finished run of it and an accelerator are at hand
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from springwell.app.api import load
from springwell.app.build import open_model_data
from springwell.app.cli.chains import longrun_cells
from springwell.app.plots import long_samples, longrun, new_charts
from springwell.errors import UserError
from springwell.evaluation.longrun import Judge, Plan, long_run, title
from springwell.evaluation.steps import Method, Pilot, kept_steps
from springwell.paper.common import Study, markdown, resolved, write
from springwell.store.run import Run


class Job(NamedTuple):
    """Steps per level, chains, and steps without spring, at scale 1."""

    steps: tuple[int, ...]
    num: int
    marginal: int


JOBS = {
    "hmc": {
        "digits-t1k": Job((1, 10, 100), 8, 3000),
        "digits": Job((1, 10, 100, 1000), 32, 3000),
        "mnist": Job((1, 10, 100), 16, 300),
        "fashion-mnist": Job((1, 10, 100), 16, 300),
    },
    # A step of NUTS takes many gradients.
    "nuts": {
        "digits-t1k": Job((1, 10), 16, 50),
        "digits": Job((1, 10, 100), 32, 30),
        "mnist": Job((1, 10), 8, 0),
        "fashion-mnist": Job((1, 10), 8, 0),
    },
}
PAPER_RUN = "cifar10-t1k"
PAPER_JOB = Job((1, 10, 100), 2500, 10_000)
# The paper gives these for CIFAR-10, T1k, HMC.
PAPER = "FID 25.12 after 1 step per level, 24.89 after 100"


def reproduce(study: Study, kernel: str = "hmc") -> dict[str, Any]:
    jobs, place = dict(JOBS[kernel]), resolved(study.device)
    out, runs, seed, reporter = study.out, study.runs, study.seed, study.reporter
    if Run(runs / PAPER_RUN).finished and place != "cpu":
        jobs[str(runs / PAPER_RUN)] = PAPER_JOB
    else:
        reporter.say(f"{PAPER_RUN}: left out; it needs a finished run in {runs / PAPER_RUN} and an accelerator")
    if study.data is not None:
        if study.data not in jobs:
            raise UserError(f"--data {study.data}: unknown here; choose {', '.join(jobs)}")
        jobs = {study.data: jobs[study.data]}
    method, scale = Method(kernel), study.scale
    rows: list[list[str]] = []
    written: list[Path] = []
    numbers: dict[str, Any] = {"method": str(method), "seed": seed, "scale": scale}
    for name, job in jobs.items():
        model = load(name, device=place)
        folder = out / "runs" / f"longrun-{kernel}-{Path(name).name}"
        folder.mkdir(parents=True, exist_ok=True)
        judge = Judge(model, open_model_data(model, reporter=reporter), seed, reporter)
        # NUTS has the step sizes of HMC.
        tuned = kept_steps(model, Method("hmc"), Pilot(seed=seed, free=job.marginal > 0), folder, reporter)
        steps = tuned._replace(method=method)
        plan = Plan(tuple(sorted({max(1, round(scale * n)) for n in job.steps})), job.num, round(scale * job.marginal), seed)
        result, samples = long_run(model, plan, steps, judge, folder, reporter)
        titles = {title(name): x for name, x in samples.items()}
        stem = f"longrun-{kernel}-{Path(name).name}"
        written += [longrun(out / f"{stem}.png", result), long_samples(out / f"{stem}-samples.png", titles)]
        numbers[name] = result
        shown = [(f"{row['steps_per_level']} per level", row) for row in result["runs"].values()]
        shown += [(f"then {row['steps']} without", row) for row in result.get("marginal", [])[1:]]
        rows += [[Path(name).name, steps, *longrun_cells(row)] for steps, row in shown]
    table = markdown(["model", "steps", "acceptance", "f gap (nats)", "MMD^2 (null, 95 %)", "nearest training image"], rows)
    figure, axes = new_charts(1, len(jobs), 2.6)
    for ax, name in zip(axes[0], jobs, strict=True):
        _quality(ax, Path(name).name, numbers[name])
    note = f"Paper, CIFAR-10: {PAPER}." if kernel == "hmc" else ""
    told = write(out, f"longrun-{kernel}", figure, numbers, f"{table}\n\n{note}".rstrip())
    return {**told, "written": [*told["written"], *map(str, written)]}


def _quality(ax: Any, name: str, result: dict[str, Any]) -> None:
    runs = list(result["runs"].values())
    total, near = [row["total_steps"] for row in runs], [row["nearest"] for row in runs]
    ax.errorbar(total, near, [row["nearest_standard_error"] for row in runs], fmt="o-", color="#20456e", ms=3, lw=1)
    ax.axhline(result["held_out"]["nearest"], color="0.6", lw=0.8)
    ax.set(xscale="log", xlabel="steps in all", ylim=(0, 1.3 * max([*near, result["held_out"]["nearest"]])))
    ax.set_title(f"{name}\ndistance to the nearest training image", fontsize=7)
    ax.minorticks_off()

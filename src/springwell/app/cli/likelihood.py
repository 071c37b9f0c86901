"""springwell likelihood."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from typing import Any, Literal

from springwell.app.cli import common as cli
from springwell.errors import InterruptionError, UserError


@dataclass(frozen=True)
class LikelihoodCommand(cli.Command):
    """Bound a model's log Z from below and above, and with it the bits per dimension of data."""

    run: cli.ModelName
    data: cli.DataSpec = None
    split: Literal["test", "train"] = "test"
    """Split of the data to measure."""
    num: int = 10_000
    """Number of data points; all of them if there are fewer."""
    tolerance: float = 0.01
    """Widest gap between the bounds, in bits/dim, that counts as good enough."""
    densities: int = 64
    """Number of intermediate densities in the first round. Every further round has twice as many."""
    budget: int = 256
    """Greatest number of intermediate densities in a round. Twice as many take twice as long."""
    repeats: cli.Number = None
    """Number of independent repeats, whose spread gives standard errors. Default: 8, or 16 for energies that know their
    normaliser."""
    chains: cli.Number = None
    """Number of chains in a repeat. Default: 16 for images and for energies that know their normaliser, 512 for other
    vectors."""
    burn: int = 200
    """Number of HMC steps of the chains that give the upper bounds their starting points. The chains start from noise and from
    held-out data."""
    seed: int = 0
    """Seed of the chains. Results do not depend on the number of processes."""
    batch: cli.Number = None
    """Number of chains that run in parallel, rounded to whole repeats. Default: 64 images, 1024 vectors, or fewer if memory is
    short."""
    out: cli.Folder = None
    """Where to write likelihood.json and likelihood.png. Default: the run directory, or ./NAME-likelihood with
    --data and for other models."""
    strict: cli.Flag = False
    """Exit with code 1 unless the verdict is ok."""


def likelihood_command(command: LikelihoodCommand, context: cli.Context) -> dict[str, Any]:
    from springwell.app import plots
    from springwell.app.build import measurable_data
    from springwell.evaluation.likelihood import Work, measure, settings_for, work_name
    from springwell.store.files import write_json
    from springwell.store.parts import Parts

    limits = (("num", 2), ("densities", 1), ("budget", 1), ("repeats", 4), ("chains", 2), ("burn", 0), ("batch", 1))
    cli.at_least(*((option, getattr(command, option), least) for option, least in limits))
    if not 0 < command.tolerance < math.inf:
        raise UserError(f"--tolerance {command.tolerance:g}: must be positive (bits/dim)")
    out = cli.place(command.run, command.out, "likelihood", data=command.data)
    with context.processes() as processes:
        with processes.first():
            model = cli.load_model(command.run, context, processes.device, command.data)
        cli.writable(out)
        c = command
        numbers = {"densities": c.densities, "budget": c.budget, "seed": c.seed}
        settings = settings_for(model, c.tolerance, c.repeats, c.chains, c.batch, **numbers)
        kept = out / ".likelihood" / work_name(model, settings, command.burn)
        rank, world = (int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1")))
        parts = Parts(kept, rank, world, processes.first)
        try:
            with cli.write_errors(out):
                data = measurable_data(model, context.reporter)
                asked = (command.num, command.split, command.burn)
                found = measure(model, data, settings, *asked, Work(parts, context.reporter))
        except KeyboardInterrupt:
            raise InterruptionError(f"interrupted; {kept} keeps what is done: run the same command to resume") from None
    if not processes.main:
        return {}
    record = json.loads(json.dumps({"run": command.run, **found.record}), parse_constant=lambda value: None)
    with cli.write_errors(out):
        plots.bracket(out / "likelihood.png", found.bracket, f"{command.run}: log Z, {found.bracket.verdict}")
        write_json(out / "likelihood.json", record)
    context.tell(*likelihood_lines(record), f"written: {out / 'likelihood.json'}, {out / 'likelihood.png'}")
    doubtful = command.strict and record["verdict"] != "ok"
    return {"out": str(out), **({"status": "doubtful"} if doubtful else {}), **record}


def likelihood_lines(r: dict[str, Any]) -> list[str]:
    """Returns the lines that the command prints for likelihood.json."""
    lines = []
    above = {"ok": "conservative", "crossed": "no bound: see the verdict"}.get(
        r["verdict"], "conservative if chains have converged"
    )

    def span(name: str, unit: float) -> str:
        low, high = (
            f"{r[f'{name}_{end}']:.4f} +- {unit * r[f'log_z_{bound}_standard_error']:.4f}"
            for end, bound in (("optimistic", "lower"), ("conservative", "upper"))
        )
        error = f"and +- {r[f'{name}_standard_error_data']:.4f} of the data"
        return f"{low} (log Z from below, optimistic) ... {high} (from above, {above}), {error}"

    together = ", all classes together" if r.get("num_classes") else ""
    what = f"{r['num_images']} {r['split']} {'images' if r['quantised'] else 'points'}{together}"
    if r["quantised"]:
        how = f"{round(2 / r['cell']) + 1} grey values{', dequantised' if r['dequantised'] else ''}"
        noise = f", initial noise {r['initial_noise']:.3g}" if r["initial_noise"] else ""
        lines.append(f"bits/dim  {span('bits_per_dim', 1 / (r['dim'] * math.log(2)))}; {what}, {how}{noise}")
    lines.append(f"nll       {span('nll', 1.0)} nats; {what}")
    return [*lines, *_bounds(r), *_chains(r), f"verdict   {r['verdict']}: {r['reason']}"]


def _bounds(r: dict[str, Any]) -> list[str]:
    """Returns one line for every estimate of log Z."""
    last, lines = r["rounds"][-1], []
    n, k = last["forward"]["num_chains"], last["num_densities"]

    def line(name: str, e: dict[str, Any], note: str) -> str:
        return f"{name:<10}{e['value']:.3f} +- {e['standard_error']:.3f} nats   {note}"

    forward = last["forward"]
    along = r["along_noise"]
    there, back = ("SMC along the noise", "the same, conditional on draws") if along else ("forward AIS", "reverse AIS")
    note = f"{there}, {n} chains, {k} densities, ESS {forward['ess']:.1f} of {n // forward['num_systems']}"
    tests = "" if along else f", acceptance {forward['acceptance'][0]:.2f} and more"
    lines.append(line("log Z >=", forward, f"{note}{tests}"))
    if not along:
        lines.append(line("log Z >=", last["smc"], "SMC, as many"))
    for source, e in last["reverse"].items():
        gap = r["gap"][source]
        note = f"{back} from {source}, if that has converged; gap {gap['nats']:.3f} +- {gap['standard_error']:.3f} nats"
        lines.append(line("log Z <=", e, note))
    if r["log_z_quoted"] == "Bennett":
        between = {"value": r["log_z_bennett"], "standard_error": r["log_z_bennett_standard_error"]}
        lines.append(line("log Z  =", between, "Bennett's estimate between them; no bound"))
    if r.get("claim") is not None:
        correction = f"the bracket's {r['log_z_quoted']} is {r['log_z'] - r['claim']:+.3f} nats from it"
        lines.append(f"{'log Z  =':<10}{r['claim']:.3f} nats   what the model claims; {correction}")
    if r["thermodynamic_integration"]:
        lines.append(line("log Z  =", r["thermodynamic_integration"], "thermodynamic integration; no bound"))
    return lines


def _chains(r: dict[str, Any]) -> list[str]:
    """Returns one line for the chains of every source."""
    lines = []
    for source, s in r["sources"].items():
        means = f"mean f {s['mean_f_before']:.1f} before, {s['mean_f']:.1f} +- {s['mean_f_standard_error']:.1f} after"
        drift = f"{s['drift']:+.1f} +- {s['drift_standard_error']:.1f} in their second half"
        lines.append(
            f"{'chains':<10}from {source}: {means} {s['num_steps']} steps, {drift}; of the data {r['mean_f']:.1f} nats"
        )
    return lines

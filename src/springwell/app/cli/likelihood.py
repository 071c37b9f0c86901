"""springwell likelihood | score."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from springwell.app.cli.common import (
    Common,
    Context,
    DataSpec,
    Flag,
    Folder,
    ModelName,
    Number,
    Overwrite,
    at_least,
    check_new,
    load_model,
    place,
    writable,
    write_errors,
)
from springwell.app.cli.tables import score_table
from springwell.errors import InterruptionError, UserError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from springwell.evaluation.outliers import Method
    from springwell.evaluation.scores import Scores
    from springwell.model import Model


# Training images by which other methods than the density know what is usual.
MOST_KNOWN = 2000
KNOWN = "the training images"
RESIZED = "images are resized; sets that are resized differently are told apart by that alone, with an AUROC of up to 0.999"


@dataclass(frozen=True)
class LikelihoodCommand:
    """Bracket a model's partition function and the bits per dimension of data."""

    run: ModelName
    data: DataSpec = None
    split: Literal["test", "train"] = "test"
    """Which data to measure."""
    num: int = 10_000
    """Data points; fewer where there are fewer."""
    tolerance: float = 0.01
    """The gap between the bounds that is good enough, bits/dim."""
    densities: int = 64
    """Intermediate densities of the first round; every further round has twice as many."""
    budget: int = 256
    """The most intermediate densities of a round. Twice as many take twice as long."""
    repeats: Number = None
    """Independent repeats, whose spread gives standard errors. Default: 8; 16 for energies that know their normaliser."""
    chains: Number = None
    """Chains of a repeat. Default: 128 for energies that know their normaliser, else 16 for images and 512 for vectors."""
    burn: int = 200
    """HMC steps of the chains that the upper bounds start from, from noise and from held-out data."""
    seed: int = 0
    """Results depend on the seed, not on the number of processes."""
    batch: Number = None
    """Chains that run side by side. Default: 64 images, 1024 vectors, or fewer if memory is short."""
    out: Folder = None
    """Where to write likelihood.json and likelihood.png. Default: the run directory; ./NAME-likelihood with --data and
    for other models."""
    strict: Flag = False
    """Exit with code 1 unless the verdict is ok."""
    common: Common = dataclasses.field(default_factory=Common)


@dataclass(frozen=True)
class ScoreCommand:
    """Rank images or the rows of a table by their density under a model, for finding outliers."""

    run: ModelName
    images: tyro.conf.Positional[str]
    """A folder of images, an .npz or .npy, or what --data takes, with @train (the default) or @test; a table for its run."""
    data: DataSpec = None
    method: Literal["density", "typicality", "multiscale"] = "density"
    """What ranks. density: f. typicality: how usual f is among training data, on both sides. multiscale: how usual the norms
    of the score over the levels are."""
    resize: Flag = False
    """Resize images of another size to the model's. Sets that are resized differently are told apart by that alone."""
    overwrite: Overwrite = False
    against: str | None = None
    """Other images, likewise: how well the density tells them apart (AUROC; above 0.5 if IMAGES are the likelier)."""
    num: Number = None
    """Score the first so many of each. Default: all, but 50000 at most."""
    likelihood: Path | None = None
    """A likelihood.json of this model, if it is not in the run directory."""
    seed: int = 0
    """Of dequantisation and noise."""
    out: Folder = None
    """Where to write scores.npz, scores.json and scores.png. Default: the run directory, ./NAME-scores for other models."""
    common: Common = dataclasses.field(default_factory=Common)


def likelihood_command(command: LikelihoodCommand, context: Context) -> dict[str, Any]:
    from springwell.app import plots
    from springwell.app.build import measurable_data
    from springwell.evaluation.likelihood import measure, settings_for, work_name
    from springwell.store.files import write_json
    from springwell.store.parts import Parts

    limits = (("num", 2), ("densities", 1), ("budget", 1), ("repeats", 4), ("chains", 2), ("burn", 0), ("batch", 1))
    at_least(*((option, getattr(command, option), least) for option, least in limits))
    if not 0 < command.tolerance < math.inf:
        raise UserError(f"--tolerance {command.tolerance:g}: must be positive (bits/dim)")
    out = place(command.run, command.out, "likelihood", data=command.data)
    with context.processes() as processes:
        with processes.first():
            model = load_model(command.run, context, processes.device, command.data)
        writable(out)
        c = command
        numbers = {"densities": c.densities, "budget": c.budget, "seed": c.seed}
        settings = settings_for(model, c.tolerance, c.repeats, c.chains, c.batch, **numbers)
        kept = out / ".likelihood" / work_name(model, settings, command.burn)
        rank, world = (int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1")))
        parts = Parts(kept, rank, world, processes.first)
        try:
            with write_errors(out):
                data = measurable_data(model, context.reporter)
                asked = (command.num, command.split, command.burn)
                found = measure(model, data, settings, *asked, parts, context.reporter)
        except KeyboardInterrupt:
            raise InterruptionError(f"interrupted; {kept} keeps what there is: run the same command to go on") from None
    if not processes.main:
        return {}
    record = json.loads(json.dumps({"run": command.run, **found.record}), parse_constant=lambda value: None)
    with write_errors(out):
        plots.bracket(out / "likelihood.png", found.bracket, f"{command.run}: log Z, {found.bracket.verdict}")
        write_json(out / "likelihood.json", record)
    if not command.common.json:
        print("\n".join([*likelihood_lines(record), f"written: {out / 'likelihood.json'}, {out / 'likelihood.png'}"]))
    doubtful = command.strict and record["verdict"] != "ok"
    return {"out": str(out), **({"status": "doubtful"} if doubtful else {}), **record}


def likelihood_lines(r: dict[str, Any]) -> list[str]:
    """What the command prints of likelihood.json."""
    last = r["rounds"][-1]
    n, k = last["forward"]["num_chains"], last["num_densities"]
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

    what = f"{r['num_images']} {r['split']} {'images' if r['quantised'] else 'points'}"
    if r["quantised"]:
        how = f"{round(2 / r['cell']) + 1} grey values{', dequantised' if r['dequantised'] else ''}"
        noise = f", initial noise {r['initial_noise']:.3g}" if r["initial_noise"] else ""
        lines.append(f"bits/dim  {span('bits_per_dim', 1 / (r['dim'] * math.log(2)))}; {what}, {how}{noise}")
    lines.append(f"nll       {span('nll', 1.0)} nats; {what}")

    def line(name: str, e: dict[str, Any], note: str) -> str:
        return f"{name:<10}{e['value']:.3f} +- {e['standard_error']:.3f} nats   {note}"

    forward = last["forward"]
    # Walks along the noise of an energy that knows it make no Metropolis tests.
    along = r["num_leapfrog"] == 0
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
    between = {"value": r["log_z_bennett"], "standard_error": r["log_z_bennett_standard_error"]}
    lines.append(line("log Z  =", between, "Bennett's estimate between them; no bound"))
    if r.get("claim") is not None:
        correction = f"the bracket's {r['log_z_quoted']} is {r['log_z'] - r['claim']:+.3f} nats from it"
        lines.append(f"{'log Z  =':<10}{r['claim']:.3f} nats   what the model claims; {correction}")
    if r["thermodynamic_integration"]:
        lines.append(line("log Z  =", r["thermodynamic_integration"], "thermodynamic integration; no bound"))
    for source, s in r["sources"].items():
        means = f"mean f {s['mean_f_before']:.1f} before, {s['mean_f']:.1f} +- {s['mean_f_standard_error']:.1f} after"
        drift = f"{s['drift']:+.1f} +- {s['drift_standard_error']:.1f} in their second half"
        lines.append(
            f"{'chains':<10}from {source}: {means} {s['num_steps']} steps, {drift}; of the data {r['mean_f']:.1f} nats"
        )
    lines.append(f"verdict   {r['verdict']}: {r['reason']}")
    return lines


def _ranked(
    model: Model, method: Method, found: dict[str, Scores], images: dict[str, Tensor], known: Callable[[], Scores]
) -> dict[str, Scores]:
    """The scores of a method; ``images`` has those of ``found`` and, under KNOWN, training images of density ``known``."""
    import torch

    from springwell.evaluation.outliers import ranking, score_norms

    def log_density(name: str) -> np.ndarray:
        out: np.ndarray = (known() if name == KNOWN else found[name]).score.cpu().numpy()
        return out

    rank = ranking(method, KNOWN, log_density, lambda name: score_norms(model, images[name]))
    return {name: scores._replace(score=torch.from_numpy(rank(name))) for name, scores in found.items()}


def _score_lines(r: dict[str, Any], scores: Scores) -> list[str]:
    """What the command prints of scores.json."""
    method = r["method"]
    density = f"log-density (log Z: {r['verdict']})" if scores.log_z else f"f, the log-density up to a constant ({scores.why})"
    kinds = {"typicality": "two-sided share of training images", "multiscale": "log-density of the score's norms"}
    error = "" if r["mean_standard_error"] is None else f" +- {r['mean_standard_error']:.2f}"
    mean = f"{r['mean']:.2f}{error}{'' if method == 'typicality' else ' nats'}"
    lines = [
        f"score     mean {mean}, {kinds.get(method, density)}, {r['num']} images of {r['images']}",
        f"outliers  least likely first: {', '.join(map(str, r['least_likely']))}",
    ]
    if "against" in r:
        sets = f"{r['num']} images of {r['images']} against {r['against_num']} of {r['against']}"
        spread, by_level = r["auroc_standard_error"], r["auroc_levels"]
        error = "" if spread is None else f" +- {spread:.4f} (DeLong)"
        lines.append(f"auroc     {r['auroc']:.4f}{error}, {sets}, by {method}")
        if r["auroc"] < 0.5:
            lines.append(f"          below 0.5: {method} finds the images of {r['against']} the more usual ones")
        best = max(range(len(by_level)), key=lambda i: by_level[i])
        lines.append(f"levels    AUROC of f by level: best {by_level[best]:.4f} at level {r['levels'][best]}")
    return lines


def score_command(command: ScoreCommand, context: Context) -> dict[str, Any]:
    import numpy as np
    import torch

    from springwell.app.build import config_of, open_model_data
    from springwell.app.tables import is_table_run
    from springwell.data.images import scaled
    from springwell.data.pictures import grid, save_png
    from springwell.data.tables import write_csv
    from springwell.evaluation.points import must_dequantise
    from springwell.evaluation.scores import auroc, score
    from springwell.evaluation.sources import open_source
    from springwell.store.files import write_atomically, write_json
    from springwell.store.run import read_log_z

    at_least(("num", command.num, 1))
    if is_table_run(command.run):
        return score_table(command, context)
    model = load_model(command.run, context, data=command.data)
    if len(model.event_shape) != 3:
        raise UserError(f"{command.run}: is a model of vectors {list(model.event_shape)}; score ranks images")
    if command.likelihood is not None:
        model.use_log_z(read_log_z(command.likelihood, model))
    out = place(command.run, command.out, "scores")
    check_new(out / "scores.json", command.overwrite)
    writable(out)
    options = config_of(model).images
    config = dataclasses.replace(options, image_size=model.event_shape[1]) if command.resize else options
    if command.resize:
        context.reporter.warn(RESIZED)
    cell = open_model_data(model).cell if options.dequantise or must_dequantise(model) else 0.0
    found, pixels, files = {}, {}, {}
    for name in (command.images, *([command.against] if command.against else [])):
        source = open_source(name, command.num, config, context.reporter, fewest=1)
        if tuple(source.shape) != model.event_shape:
            shapes = f"{list(source.shape)}; the model's have {list(model.event_shape)}"
            raise UserError(f"{name}: images have shape {shapes}; add --resize if only their size differs")
        pixels[name], files[name] = source.rows(0, source.num), source.names
        found[name] = score(model, scaled(pixels[name].to(model.device)), cell, command.seed)
    if command.method != "density":
        train = open_source(f"{config_of(model).data}@train", None, options, context.reporter, fewest=1)
        shown = {**pixels, KNOWN: train.rows(0, min(train.num, MOST_KNOWN))}
        images = {name: scaled(rows.to(model.device)) for name, rows in shown.items()}
        known = partial(score, model, images[KNOWN], cell, command.seed)
        found = _ranked(model, command.method, found, images, known)
    first = found[command.images]
    names = list(files[command.images] or range(len(first.score)))
    order = first.score.argsort()
    error = float(first.score.std()) / math.sqrt(len(first.score)) if len(first.score) > 1 else None
    result: dict[str, Any] = {
        "images": command.images,
        "num": len(first.score),
        "normalised": first.log_z is not None,
        "verdict": first.log_z and first.log_z.verdict,
        "mean": float(first.score.mean()),
        "mean_standard_error": error,
        "method": command.method,
        "least_likely": [names[i] for i in order[:10].tolist()],
        "levels": first.levels,
        "profile": first.profile.mean(0).tolist(),
    }
    if command.against:
        other = found[command.against]
        area, spread = auroc(first.score, other.score)
        by_level = [auroc(a, b)[0] for a, b in zip(first.profile.T, other.profile.T, strict=True)]
        result |= {
            "against": command.against,
            "against_num": len(other.score),
            "against_mean": float(other.score.mean()),
            "auroc": area,
            "auroc_standard_error": spread if math.isfinite(spread) else None,
            "auroc_levels": by_level,
        }
    with write_errors(out):
        arrays: dict[str, Any] = {"score": first.score.cpu().numpy(), "profile": first.profile.cpu().numpy()}
        write_csv(out / "scores.csv", ["image", command.method], list(zip(names, first.score.tolist(), strict=True)))
        write_atomically(out / "scores.npz", lambda file: np.savez(file, levels=np.array(first.levels), **arrays))
        ends = torch.cat([order[:16], order[-16:]])
        ranked = pixels[command.images][ends.cpu()].permute(0, 2, 3, 1).numpy()
        save_png(grid(ranked, min(16, len(ranked))), out / "scores.png")
        write_json(out / "scores.json", result)
    if not command.common.json:
        print("\n".join(_score_lines(result, first)))
        print(f"written: {out / 'scores.json'}, {out / 'scores.npz'}, {out / 'scores.png'} (16 least, 16 most likely)")
    return {"run": command.run, "out": str(out), **result}

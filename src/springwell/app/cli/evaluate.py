"""springwell evaluate | fid."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from springwell.app.cli import common as cli
from springwell.app.cli.tables import evaluate_table
from springwell.errors import UserError

# Number of samples for the measures of images that need no Inception network.
QUICK = 256
# Folder inside an evaluation's folder that keeps the progress of an interrupted evaluation.
PARTS = ".quality"


@dataclass(frozen=True)
class EvaluateCommand(cli.Command):
    """Measure a trained model, and draw pictures of it."""

    run: cli.ModelName
    data: cli.DataSpec = None
    num: cli.Number = None
    """Number of samples. Default: 2000 vectors, or 50000 images for FID, KID, Inception score, precision and recall."""
    seed: int = 0
    """Seed of the samples."""
    out: cli.Folder = None
    """Where to write evaluation.json and the pictures. Default: the run directory, or ./NAME-evaluation
    with --data and for other models."""
    fid: bool = True
    """Measure FID, KID, Inception score, precision and recall of images. The other measures need only 256 samples and about a
    minute."""
    reference: Literal["train", "test"] = "train"
    """Images that the samples are compared with. Published FIDs use the training images."""
    evaluations: cli.Number = None
    """Number of gradients per sample for the FID and the measures like it, such as 18. A second-order integrator then replaces
    the draws level by level."""
    by_class: cli.Flag = False
    """Draw the samples of the FID given their class, the same number from each class, for models that know classes."""
    inception: cli.File = None
    """Weights of the Inception network for the FID. Default: $SPRINGWELL_INCEPTION, the user cache, the data root, or a
    download."""


@dataclass(frozen=True)
class FidCommand(cli.Command):
    """Compare two sets of images by FID, KID, precision and recall: springwell fid A B."""

    a: tyro.conf.Positional[str]
    """Samples: a folder of images, an .npz or .npy file, or a data set as for --data, with @train (the default) or @test."""
    b: tyro.conf.Positional[str]
    """Reference images, written in the same way. Their features are kept in the user cache."""
    num: cli.Number = None
    """Number of images to compare from the start of each set. Default: all, but at most 50000."""
    inception: cli.File = None
    """Weights of the Inception network for the FID. Default: $SPRINGWELL_INCEPTION, the user cache, the data root, or a
    download."""
    preprocessing: Literal["tf1", "pytorch"] = "tf1"
    """How images are resized and scaled for the network. tf1: as for published FIDs. pytorch: as pytorch-fid does."""
    image_size: cli.Number = None
    """Crop images to a square and resize them to this size first. Default: leave them as they are."""
    data_root: cli.DataRoot = None
    batch: cli.Number = None
    """Number of images in one batch. Default: 32 on a CPU, 256 on other devices."""


def evaluate_command(command: EvaluateCommand, context: cli.Context) -> dict[str, Any]:
    from springwell.app.tables import is_table_run

    if is_table_run(command.run):
        return evaluate_table(command, context)
    out = cli.place(command.run, command.out, "evaluation", data=command.data)
    with context.processes() as processes:
        result = measure_model(command, out, context, processes)
    if result:
        context.tell(*evaluation_lines(result), f"written: {out / 'evaluation.json'}, {out / 'report.png'}")
    return {"run": command.run, "out": str(out), "evaluation": result}


def measure_model(command: EvaluateCommand, out: Path, context: cli.Context, processes: cli.Processes) -> dict[str, Any]:
    """Measures a model, and writes evaluation.json and the pictures. Only the first of several processes writes."""
    from springwell.app.api import find
    from springwell.app.build import config_of, open_model_data
    from springwell.evaluation.images import evaluate_images
    from springwell.evaluation.quality import Drawn, quality
    from springwell.evaluation.sources import MOST, open_source
    from springwell.evaluation.toy import evaluate
    from springwell.store.files import write_json
    from springwell.store.run import Run

    num, seed = command.num, command.seed
    with processes.first():
        model = cli.load_model(command.run, context, processes.device, command.data)
    images = len(model.event_shape) == 3
    limit = 1_000_000 if images else 10_000
    if num is not None and not 100 <= num <= limit:
        why = "" if images else " (the MMD compares all pairs)"
        raise UserError(f"--num {num}: out of range; use 100 ... {limit}{why}")
    if command.evaluations is not None and not (images and command.fid):
        why = "--no-fid measures none" if images else "vectors have none"
        raise UserError(f"--evaluations {command.evaluations}: draws the samples of the FID; {why}; leave it out")
    cli.at_least(("evaluations", command.evaluations, 2))
    if command.by_class and not model.classes:
        raise UserError(f"--by-class: {command.run} knows no classes; leave it out")
    # Data that cannot be opened are refused before a folder is made.
    data = open_model_data(model, reporter=context.reporter) if processes.main else None
    cli.writable(out)
    network = _inception(command, model, context, processes) if images and command.fid else None
    result: dict[str, Any] = {}
    shown = found = None
    if data is not None and images:
        shown = evaluate_images(model, data, min(num or QUICK, QUICK), seed, context.reporter)
        result = shown.result
    elif data is not None:
        result = evaluate(model, data, num or 2000, seed, context.reporter)
    if network is not None:
        config = config_of(model)
        reference = open_source(f"{config.data}@{command.reference}", None, config.images, context.reporter)
        draws = Drawn(num or MOST, seed, command.evaluations, command.by_class)
        found = quality(model, reference, network, draws, context.reporter, out / PARTS)
    if not processes.main:
        return {}
    result["weights"] = model.fingerprint()
    path = out / "evaluation.json"
    if images:
        _add_quality(result, found, path, context)
    with cli.write_errors(out):
        # The slow results are written first, so that a picture that cannot be drawn does not lose them.
        write_json(path, result)
        shutil.rmtree(out / PARTS, ignore_errors=True)
        _draw(model, shown, Run(find(command.run)), out)
    return result


def _add_quality(result: dict[str, Any], found: dict[str, Any] | None, path: Path, context: cli.Context) -> None:
    """Adds FID, KID and the like: those just measured, or else those known for the same weights."""
    known = known_evaluation(path)
    before = known.get("quality") if known.get("weights") == result["weights"] else None
    if found and before and before["num_samples"] > found["num_samples"]:
        context.reporter.warn(f"{path}: replaces an FID that was measured with more samples; {quality_lines(before)[0]}")
    if found or before:
        result["quality"] = found or before


def _draw(model: Any, shown: Any, run: Any, out: Path) -> None:
    """Draws the samples and their measurements; ``shown`` holds those of images, and is None for vectors."""
    from springwell.app import plots
    from springwell.store.files import read_lines

    if shown is None:
        plots.preview(model, out / "report.png")
    else:
        title = f"{model.metadata['name']}, iteration {model.iteration}"
        plots.image_report(shown.samples[:64], shown.held_out[:64], out / "report.png", title)
        plots.levels(out / "levels.png", shown.result)
        plots.neighbours(out / "neighbours.png", shown.samples, shown.neighbours)
    if metrics := run.read_metrics():
        plots.curves(out / "curves.png", metrics, read_lines(run.fid_path))


def _inception(command: EvaluateCommand, model: Any, context: cli.Context, processes: cli.Processes) -> Any:
    """Returns the network that measures images.

    Returns None, and reports why, if its weights or torchmetrics are missing and the user named no weights.
    """
    from springwell.app.build import config_of
    from springwell.evaluation.metrics import torchmetrics
    from springwell.evaluation.sources import GREY
    from springwell.evaluation.weights import load_inception

    config = config_of(model)
    root = config.images.data_root
    try:
        torchmetrics()
        with processes.first():
            network = load_inception(command.inception, device=processes.device, reporter=context.reporter, data_root=root)
    except UserError as error:
        if command.inception is not None or os.environ.get("SPRINGWELL_INCEPTION"):
            raise
        context.reporter.warn(f"no FID: {error}")
        return None
    if model.event_shape[0] == 1:
        context.reporter.say(GREY.format(config.data))
    return network


def evaluation_lines(result: dict[str, Any]) -> list[str]:
    """Returns the lines that the commands print for evaluation.json."""
    lines: list[str] = []
    n = result["num_samples"]
    if "quality" in result:
        lines += quality_lines(result["quality"])
    if "f_gap" in result:
        gap, error = result["f_gap"], result["f_gap_standard_error"]
        spread = "" if error is None else f"+- {error:.2f} "
        lines.append(f"f gap     {gap:+.2f} {spread}nats   mean f at level 0 of {n} held-out images less that of {n} samples")
        share = f"{100 * result['outside_samples']:.1f} % of {n} samples, {100 * result['outside_values']:.2f} % of values"
        lines.append(f"outside   {share}, are outside [-{result['outside']}, {result['outside']}]")
        if "neighbour_samples" in result:
            near, held_out = result["neighbour_samples"], result["neighbour_held_out"]
            share = f"{100 * result['nearer_than_99_percent']:.1f} % of {n} samples"
            than = f"training images than 99 % of {n} held-out images are; median {near:.3f}, {held_out:.3f}"
            lines.append(f"copies    {share} are nearer to one of {result['num_train']:,} {than}")
        accepted = result["acceptance"]
        lines.append(f"accepted  {min(accepted):.2f} ... {max(accepted):.2f} over {len(accepted)} levels, {n} chains")
        return lines + calibration_lines(result) + level_lines(result)
    if "kl" in result:
        how = f"quadrature, error of log Z about {result['log_z_error']:.1e}"
        lines.append(f"kl        {result['kl']:.4f} nats   KL(data at level 0 || model), {how}")
        lines.append(f"nll       {result['nll']:.4f} nats   entropy of the data {result['entropy']:.4f} nats")
        lines.append(f"tv        {result['tv']:.4f}        total variation distance")
    elif "nll" in result:
        lines.append(f"nll       {result['nll']:.4f} +- {result['nll_standard_error']:.4f} nats   {n} held-out points")
    lines.append(f"mmd2      {result['mmd2']:.2e}      null level (95 %) {result['mmd2_null_95']:.2e}, {n} samples each")
    if "modes" in result:
        off = f"{100 * result['off_support']:.1f} % of {n} samples off the support (of the data: 0.1 %)"
        lines.append(f"modes     {result['modes_covered']} of {result['modes']} covered; {off}")
    return lines + calibration_lines(result) + level_lines(result)


def calibration_lines(result: dict[str, Any]) -> list[str]:
    """Returns the lines about the length of the scores and about chains without springs."""
    if "calibration" not in result:
        return []
    c, levels = result["calibration"], result["calibration_levels"]
    worst = max(range(len(c)), key=lambda i: abs(c[i] - 1))
    error = result["calibration_standard_error"][worst]
    ends = f"{min(c):.3f} ... {max(c):.3f}; farthest from 1 at level {levels[worst]}: {c[worst]:.3f} +- {error:.3f}"
    of = f"{len(c)} levels, {result['calibration_num']} held-out samples"
    chains = f"{result['drift_chains']} chains from held-out data, {result['drift_steps']} HMC steps without spring"
    return [
        f"c_t       {ends}   1 where the score has the right length; {of}",
        f"drift     {result['drift']:+.2f} +- {result['drift_standard_error']:.2f} nats   of mean f at level 0; {chains}",
    ]


def level_lines(result: dict[str, Any], row: int = 12) -> list[str]:
    """Returns the calibration of every level, some levels to a line."""
    pairs = list(zip(result.get("calibration_levels", []), result.get("calibration", []), strict=True))
    parts = [pairs[i : i + row] for i in range(0, len(pairs), row)]
    return [f"c_t       levels {part[0][0]} ... {part[-1][0]}: {' '.join(f'{c:.3f}' for _, c in part)}" for part in parts]


def quality_lines(found: dict[str, Any]) -> list[str]:
    """Returns the lines about FID, KID and the like, with the images that the samples were compared with."""
    from springwell.evaluation.metrics import metric_lines

    first, *others = metric_lines(found)
    return [f"{first}, {found['reference']}{drawn_how(found)}", *others]


def drawn_how(found: dict[str, Any]) -> str:
    """Returns how the samples of an FID were drawn, if not as the model does."""
    gradients = f", {found['evaluations']} gradients each" if found.get("evaluations") else ""
    return gradients + (", drawn class by class" if found.get("by_class") else "")


def known_evaluation(path: Path) -> dict[str, Any]:
    """Returns the existing evaluation.json, or nothing if it cannot be used."""
    from springwell.store.files import read_json

    try:
        known = read_json(path)
        evaluation_lines(known)
    except (UserError, KeyError, TypeError, ValueError, AttributeError):
        return {}
    return dict(known)


def fid_command(command: FidCommand, context: cli.Context) -> dict[str, Any]:
    from springwell.data.options import ImageOptions
    from springwell.evaluation.metrics import image_metrics, metric_lines, reference_features, torchmetrics
    from springwell.evaluation.sources import FEWEST, GREY, MOST, open_source
    from springwell.evaluation.weights import load_inception

    cli.in_range(("num", command.num, FEWEST, 10**7), ("image-size", command.image_size, 1, 4096))
    cli.in_range(("batch", command.batch, 1, MOST))
    torchmetrics()
    images = ImageOptions(image_size=command.image_size, data_root=command.data_root)
    with context.processes() as processes:
        reporter = context.reporter
        # The first process may have to download weights or to decode images that the others then find.
        with processes.first():
            network = load_inception(command.inception, command.preprocessing, processes.device, reporter, command.data_root)
            a, b = (open_source(source, command.num, images, reporter) for source in (command.a, command.b))
        for source in (a, b):
            if source.shape[0] == 1:
                reporter.say(GREY.format(source.name))
        if a.shape[1:] != b.shape[1:]:
            sizes = " and ".join(f"{x.shape[2]} x {x.shape[1]}" for x in (a, b))
            reporter.warn(f"{a.name} and {b.name} have {sizes} pixels; resizing alone moves them apart, so give --image-size")
        samples = reference_features(a, network, reporter, command.batch, keep=False)
        reference = reference_features(b, network, reporter, command.batch)
    if not processes.main:
        return {}
    result = image_metrics(samples, reference, network.fc, reporter)
    context.tell(f"{a.name} against {b.name}, preprocessing {command.preprocessing}", *metric_lines(result))
    unreadable = {"unreadable_a": a.num_unreadable, "unreadable_b": b.num_unreadable}
    how = {"preprocessing": command.preprocessing, "inception_sha256": network.digest}
    return {"a": a.name, "b": b.name, **how, **unreadable, **result}

"""springwell score."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import tyro

from springwell.app.cli import common as cli
from springwell.app.cli.tables import score_table
from springwell.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from springwell.evaluation.outliers import Method
    from springwell.evaluation.scores import Scores
    from springwell.model import Model


# Number of training images from which the other methods learn what is usual.
MOST_KNOWN = 2000
KNOWN = "the training images"
RESIZED = "images are resized; two sets that are resized differently differ by that alone, with an AUROC of up to 0.999"


@dataclass(frozen=True)
class ScoreCommand(cli.Command):
    """Rank images, or the rows of a table, by their density under a model, to find outliers."""

    run: cli.ModelName
    images: tyro.conf.Positional[str]
    """Images to score: a folder, an .npz or .npy file, or a data set as for --data, with @train (the default) or @test. For the
    run of a table, a table."""
    data: cli.DataSpec = None
    method: Literal["density", "typicality", "multiscale"] = "density"
    """Quantity that ranks the images. density: f. typicality: how usual f is among training data, on both sides. multiscale:
    how usual the norms of the score are over the levels."""
    resize: cli.Flag = False
    """Resize images of another size to the model's. Two sets that were resized differently differ by that alone, which
    makes their AUROC meaningless."""
    drop_missing: cli.Flag = False
    """Leave out rows of a table with a missing cell."""
    overwrite: cli.Overwrite = False
    against: str | None = None
    """Other images, written in the same way. The AUROC tells how well the score separates them; it is above 0.5 if IMAGES are
    the more likely ones."""
    num: cli.Number = None
    """Number of images to score from the start of each set. Default: all, but at most 50000."""
    likelihood: Path | None = None
    """Path of this model's likelihood.json. Default: the one in the run directory."""
    seed: int = 0
    """Seed of dequantisation and noise."""
    label: cli.ClassName = None
    guidance: cli.Guidance = 1.0
    out: cli.Folder = None
    """Where to write scores.npz, scores.json and scores.png. Default: the run directory, or ./NAME-scores for other
    models."""


class _Ranked(NamedTuple):
    """Images of one source, and their scores."""

    pixels: Tensor
    names: list[Any]
    scores: Scores


def score_command(command: ScoreCommand, context: cli.Context) -> dict[str, Any]:
    from springwell.app.tables import is_table_run
    from springwell.store.run import read_log_z

    cli.at_least(("num", command.num, 1))
    if is_table_run(command.run):
        if command.label is not None:
            raise UserError(f"--label {command.label}: {command.run} is a run of a table; only models of images take a class")
        return score_table(command, context)
    if command.label is not None and command.likelihood is not None:
        raise UserError(f"--likelihood {command.likelihood}: is of all data; leave it out, or --label")
    model = cli.of_class(cli.load_model(command.run, context, data=command.data), command.label, command.guidance)
    if len(model.event_shape) != 3:
        raise UserError(f"{command.run}: is a model of vectors {list(model.event_shape)}; score ranks images")
    if command.likelihood is not None:
        model.use_log_z(read_log_z(command.likelihood, model))
    out = cli.place(command.run, command.out, "scores")
    cli.check_new(out / "scores.json", command.overwrite)
    cli.writable(out)
    found = _score_sources(model, command, context)
    result = _summary(command, found)
    with cli.write_errors(out):
        _write(out, command.method, found[command.images], result)
    written = f"written: {out / 'scores.json'}, {out / 'scores.npz'}, {out / 'scores.png'} (16 least, 16 most likely)"
    context.tell(*_lines(result, command.run, found[command.images].scores.why), written)
    return {"run": command.run, "out": str(out), **result}


def _score_sources(model: Model, command: ScoreCommand, context: cli.Context) -> dict[str, _Ranked]:
    """Returns the images of the command and of ``--against`` by name, with their scores by the command's method."""
    from springwell.app.build import config_of, open_model_data
    from springwell.data.images import scaled
    from springwell.evaluation.points import must_dequantise
    from springwell.evaluation.scores import score
    from springwell.evaluation.sources import open_source

    options = config_of(model).images
    config = dataclasses.replace(options, image_size=model.event_shape[1]) if command.resize else options
    if command.resize:
        context.reporter.warn(RESIZED)
    cell = open_model_data(model).cell if options.dequantise or must_dequantise(model) else 0.0
    found: dict[str, _Ranked] = {}
    for name in (command.images, *([command.against] if command.against else [])):
        source = open_source(name, command.num, config, context.reporter, fewest=1)
        if tuple(source.shape) != model.event_shape:
            shapes = f"{list(source.shape)}; the model's have {list(model.event_shape)}"
            raise UserError(f"{name}: images have shape {shapes}; add --resize if only their size differs")
        pixels = source.rows(0, source.num)
        scores = score(model, scaled(pixels.to(model.device)), cell, command.seed)
        found[name] = _Ranked(pixels, list(source.names or range(len(scores.score))), scores)
    if command.method == "density":
        return found
    train = open_source(f"{config_of(model).data}@train", None, options, context.reporter, fewest=1)
    shown = {**{name: ranked.pixels for name, ranked in found.items()}, KNOWN: train.rows(0, min(train.num, MOST_KNOWN))}
    images = {name: scaled(rows.to(model.device)) for name, rows in shown.items()}
    known = partial(score, model, images[KNOWN], cell, command.seed)
    densities = {name: ranked.scores for name, ranked in found.items()}
    by_method = _ranked(model, command.method, densities, images, known)
    return {name: ranked._replace(scores=by_method[name]) for name, ranked in found.items()}


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


def _summary(command: ScoreCommand, found: Mapping[str, _Ranked]) -> dict[str, Any]:
    """Returns the contents of scores.json."""
    from springwell.evaluation.scores import auroc

    _, names, first = found[command.images]
    num = len(first.score)
    result: dict[str, Any] = {
        "images": command.images,
        "num": num,
        "normalised": first.log_z is not None,
        "verdict": first.log_z and first.log_z.verdict,
        "mean": float(first.score.mean()),
        "mean_standard_error": float(first.score.std()) / math.sqrt(num) if num > 1 else None,
        "method": command.method,
        "least_likely": [names[i] for i in first.score.argsort()[:10].tolist()],
        "levels": first.levels,
        "profile": first.profile.mean(0).tolist(),
    }
    if command.against:
        other = found[command.against].scores
        area, spread = auroc(first.score, other.score)
        result |= {
            "against": command.against,
            "against_num": len(other.score),
            "against_mean": float(other.score.mean()),
            "auroc": area,
            "auroc_standard_error": spread if math.isfinite(spread) else None,
            "auroc_levels": [auroc(a, b)[0] for a, b in zip(first.profile.T, other.profile.T, strict=True)],
        }
    return result


def _write(out: Path, method: str, ranked: _Ranked, result: dict[str, Any]) -> None:
    """Writes scores.csv, scores.npz, scores.json, and both ends of the ranking as scores.png."""
    import numpy as np
    import torch

    from springwell.data.pictures import grid, save_png
    from springwell.data.tables import write_csv
    from springwell.store.files import write_atomically, write_json

    pixels, names, scores = ranked
    arrays: dict[str, Any] = {"score": scores.score.cpu().numpy(), "profile": scores.profile.cpu().numpy()}
    write_csv(out / "scores.csv", ["image", method], list(zip(names, scores.score.tolist(), strict=True)))
    write_atomically(out / "scores.npz", lambda file: np.savez(file, levels=np.array(scores.levels), **arrays))
    order = scores.score.argsort().cpu()
    ends = pixels[torch.cat([order[:16], order[-16:]])].permute(0, 2, 3, 1).numpy()
    save_png(grid(ends, min(16, len(ends))), out / "scores.png")
    write_json(out / "scores.json", result)


def _lines(r: dict[str, Any], run: str, why: str) -> list[str]:
    """Returns the lines that the command prints; ``why`` says why a stored log Z cannot be used."""
    method = r["method"]
    unknown = f"f, the log-density up to a constant ({why or f'`springwell likelihood {run}` measures it'})"
    density = f"log-density (log Z: {r['verdict']})" if r["normalised"] else unknown
    kinds = {"typicality": "two-sided share of training images", "multiscale": "log-density of the score's norms"}
    mean = f"{r['mean']:.2f}{cli.plus_minus(r['mean_standard_error'], 2)}{'' if method == 'typicality' else ' nats'}"
    lines = [
        f"score     mean {mean}, {kinds.get(method, density)}, {r['num']} images of {r['images']}",
        f"outliers  least likely first: {', '.join(map(str, r['least_likely']))}",
    ]
    if "against" in r:
        sets = f"{r['num']} images of {r['images']} against {r['against_num']} of {r['against']}"
        by_level, delong = r["auroc_levels"], cli.plus_minus(r["auroc_standard_error"], 4, " (DeLong)")
        lines.append(f"auroc     {r['auroc']:.4f}{delong}, {sets}, by {method}")
        if r["auroc"] < 0.5:
            lines.append(f"          below 0.5: {method} finds the images of {r['against']} the more usual ones")
        best = max(range(len(by_level)), key=lambda i: by_level[i])
        lines.append(f"levels    AUROC of f by level: best {by_level[best]:.4f} at level {r['levels'][best]}")
    return lines

"""Jobs on models of images. Images travel as bytes ``[H, W, C]``, as a browser has them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from springwell.app.build import config_of, open_model_data
from springwell.app.studio import recipes
from springwell.app.studio.desk import Desk, finite
from springwell.app.studio.options import Options
from springwell.applications import Draws, operators
from springwell.applications.inpaint import check_hidden, inpaint as fill_in
from springwell.applications.interpolate import interpolate as between
from springwell.applications.restore import Measurement, restore as posterior
from springwell.data.decode import Rule, UnreadableError, decode as decode_image
from springwell.data.images import scaled
from springwell.data.pictures import Bytes, save_gif, to_bytes
from springwell.errors import UserError
from springwell.evaluation.outliers import percentile
from springwell.evaluation.points import must_dequantise
from springwell.evaluation.scores import score as density
from springwell.evaluation.sources import Images, open_source
from springwell.evaluation.walk import Walk
from springwell.generate import Sample
from springwell.integrate import Integrator
from springwell.model import MIN_IMAGES, Model
from springwell.noise import Noise, Stream
from springwell.samplers import make_kernel
from springwell.schedule import spread_levels

# Gradients per sample of the integrator.
QUICK = 24
MOST_FRAMES = 40
MOST_SAMPLES = 64
MOST_FILMED = 120
MOST_SIDE = 640
TASKS = ("denoise", "superres", "deblur")


def _image_model(desk: Desk, options: Options) -> Model:
    model = desk.chosen(options)
    if len(model.event_shape) != 3:
        raise UserError(f"{options.text('model')}: is no model of images; choose one of images")
    return model


def _pixels(options: Options, model: Model, name: str = "image") -> Tensor:
    """An image of the page, bytes ``[1, C, H, W]``."""
    channels, height, width = model.event_shape
    image = options.array(name, np.uint8, (height, width, channels))
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)[None]


def _levels_bar(desk: Desk, model: Model, samples: int) -> Callable[[int], None]:
    """Tells the page of every level that some of the samples are done with."""
    total, done = samples * (model.schedule.num_levels + 1), 0

    def watch(number: int) -> None:
        nonlocal done
        done += number
        desk.progress(min(done, total), total, "levels x samples")

    return watch


def ready(desk: Desk, options: Options) -> dict[str, Any]:
    """Loads a model that is likely to be asked for next, and computes a gradient, of which the first one is the slowest."""
    model = _image_model(desk, options)
    model.score(torch.zeros(MIN_IMAGES, *model.event_shape))
    return {"classes": list(model.classes)}


def sample(desk: Desk, options: Options) -> dict[str, Any]:
    """Samples, and the way from noise to them: a frame for each of some levels."""
    model, name = _image_model(desk, options), options.text("model")
    num, seed = options.whole("num", 1, MOST_SAMPLES), options.seed()
    height = model.schedule.num_levels + 1
    quick = Integrator(QUICK) if options.flag("quick") and _can_be_quick(model) else None
    shown = set(spread_levels(height, MOST_FRAMES) if quick is None else [height - 1, *quick.levels(height - 1)])
    frames: dict[int, Bytes] = {}

    def watch(first: int, drawn: Sample) -> None:
        if drawn.t in shown and drawn.t:
            before = frames[drawn.t][:first] if first else np.empty((0, *model.event_shape[1:], model.event_shape[0]), np.uint8)
            frames[drawn.t] = np.concatenate([before, to_bytes(drawn.x)])
            desk.emit("frame", {"images": frames[drawn.t]}, f"frame {drawn.t}", t=drawn.t, num_levels=height - 1)
        desk.progress(height - drawn.t, height, "levels")

    # The batch is that of `springwell sample`, so that its samples are these, bit for bit.
    images = to_bytes(torch.cat(list(model.sample_batches(num, seed, sampler=quick, watch=watch))))
    frames[0] = images
    desk.emit("frame", {"images": images}, "frame 0", t=0, num_levels=height - 1)
    levels = sorted(frames, reverse=True)
    desk.result(samples=images, trajectory=np.stack([frames[t] for t in levels]), levels=np.array(levels))
    return {"recipe": recipes.sample(name, options.values, None if quick is None else quick.evaluations)}


def _can_be_quick(model: Model) -> bool:
    """Whether the integrator saves gradients: there are many levels, noise to begin with, no chains and no sweeps."""
    many = model.schedule.num_levels >= 2 * QUICK and float(model.schedule.sigma_cum[0]) > 0
    return many and model.sampler.num_steps == 0 and model.sweeps == 0


def inpaint(desk: Desk, options: Options) -> dict[str, Any]:
    """Fills in what is painted; what is seen keeps its bytes."""
    model, name = _image_model(desk, options), options.text("model")
    num, seed, sweeps = options.whole("num", 1, 16), options.seed(), options.whole("sweeps", 0, 64)
    pixels = _pixels(options, model)
    mask = options.array("mask", np.uint8, model.event_shape[1:])
    hidden = torch.from_numpy(mask > 0).expand(model.event_shape)
    check_hidden(hidden, model.event_shape)
    drawn = fill_in(model, scaled(pixels), hidden, Draws(num, seed, sweeps, watch=_levels_bar(desk, model, num)))[0]
    original = pixels.permute(0, 2, 3, 1).numpy()
    images = np.where(mask[None, :, :, None] > 0, to_bytes(drawn), original)
    desk.emit("images", {"images": images})
    desk.result(samples=images, image=original[0], mask=255 * (mask > 0).astype(np.uint8))
    return {"recipe": recipes.inpaint(name, options.values)}


def interpolate(desk: Desk, options: Options) -> dict[str, Any]:
    """Samples between two or four samples."""
    model, name = _image_model(desk, options), options.text("model")
    seeds = options.wholes("seeds", (2, 4))
    num = options.whole("num", 2, 33 if len(seeds) == 2 else 9)
    total = num ** (len(seeds) // 2)
    images = to_bytes(between(model, seeds, num, watch=_levels_bar(desk, model, total)).reshape(-1, *model.event_shape))
    desk.emit("images", {"images": images}, seeds=seeds, num=num)
    desk.result(samples=images)
    return {"recipe": recipes.interpolate(name, options.values)}


def restore(desk: Desk, options: Options) -> dict[str, Any]:
    """Measures an image and restores it: samples of the posterior, their mean and their standard deviation."""
    model, name = _image_model(desk, options), options.text("model")
    num, seed, sweeps = options.whole("num", 2, 16), options.seed(), options.whole("sweeps", 0, 16)
    noise, task = options.number("noise", 0.01, 2.0), options.choice("task", TASKS)
    operator, words = _operator(task, options, model)
    shape = model.event_shape
    measurement = Measurement(operator, noise, shape, model.device)
    clean = scaled(_pixels(options, model)).to(model.device)
    eps = Noise(seed, torch.zeros(1, dtype=torch.long, device=model.device), Stream.MEASUREMENT).normal(*measurement.shape)
    observed = operator(clean) + noise * eps
    shown = operators.enlarged(observed.clamp(-1, 1), shape)
    desk.emit("measured", {"images": to_bytes(shown)})
    found = posterior(model, observed, operator, noise, Draws(num, seed, sweeps, watch=_levels_bar(desk, model, num)))
    spread = found.std.nan_to_num(0)
    panels = {"mean": found.mean, "std": 2 * spread / max(float(spread.max()), 1e-12) - 1, "samples": found.samples[0]}
    pictures = {key: to_bytes(value) for key, value in panels.items()}
    desk.emit("restored", pictures, largest_std=float(spread.max()))
    desk.result(observation=observed[0].cpu().numpy(), image=options.arrays["image"], measured=to_bytes(shown)[0], **pictures)
    return {"recipe": recipes.restore(name, words, options.values)}


def _operator(task: str, options: Options, model: Model) -> tuple[Callable[[Tensor], Tensor], list[str]]:
    """The operator of a task and its words on the command line."""
    if task == "superres":
        factor = options.whole("factor", 2, 16)
        if any(side % factor for side in model.event_shape[1:]):
            raise UserError(f"factor={factor}: must divide {model.event_shape[2]} x {model.event_shape[1]} pixels")
        return operators.average_pool(factor), ["--factor", str(factor)]
    if task == "deblur":
        kernel = f"gaussian:{options.number('width', 0.2, 8.0):g}"
        return operators.named_blur(kernel, max(model.event_shape[1:])), ["--kernel", kernel]
    return (lambda x: x), []


def _own_images(model: Model) -> Images:
    """Images of the data that a model was trained on, which it never saw."""
    config = config_of(model)
    return open_source(f"{config.data}@test", None, config.images, fewest=1)


def photograph(desk: Desk, options: Options) -> dict[str, Any]:
    """One of the test images of the model's data."""
    source = _own_images(_image_model(desk, options))
    number = options.whole("number", 0, 2**31 - 1) % source.num
    image = np.ascontiguousarray(source.rows(number, number + 1)[0].permute(1, 2, 0).numpy())
    return {"number": number, "of": source.num, "arrays": {"image": image}}


def score(desk: Desk, options: Options) -> dict[str, Any]:
    """How likely an image is: its density, its rank among test images, its profile over the levels, its score by pixel."""
    model, name = _image_model(desk, options), options.text("model")
    pixels, seed = _pixels(options, model), options.seed()
    config = config_of(model)
    reference, why = None, ""
    cell = 0.0
    try:
        if config.images.dequantise or must_dequantise(model):
            cell = open_model_data(model).cell
        desk.progress(0, 2, "scores of test images, once")
        reference = _reference(desk, model, (name, *_class_of(options)), cell)
    except UserError as error:
        why = str(error)
    desk.progress(1, 2, "score of the image")
    x = scaled(pixels).to(model.device)
    found = density(model, x, cell, seed)
    maps, map_levels = _score_maps(model, x)
    value, log_z = float(found.score), found.log_z
    classes = _likely_classes(model, x)
    fields: dict[str, Any] = {
        "value": finite(value),
        "normalised": log_z is not None,
        "verdict": log_z and log_z.verdict,
        "log_z_bounds": log_z and [finite(log_z.lower), finite(log_z.upper)],
        "levels": found.levels,
        "profile": [finite(v) for v in found.profile[0].tolist()],
        "why": why,
        "map_levels": map_levels,
        "classes": classes,
    }
    kept: dict[str, Any] = {"image": options.arrays["image"], "profile": found.profile[0].cpu().numpy(), "levels": found.levels}
    if reference is not None:
        known, profiles = reference
        fields["percentile"] = float(percentile(np.array([value]), known)[0])
        fields["num_reference"] = len(known)
        for key, share in {"reference": 0.5, "reference_low": 0.05, "reference_high": 0.95}.items():
            fields[key] = [finite(float(value)) for value in np.quantile(profiles, share, axis=0)]
        kept["reference"] = profiles
    desk.emit("scored", {"maps": maps}, **fields)
    desk.result(score=value, maps=maps, **kept)
    return {"recipe": recipes.score(name, options.values, cell, reference is not None, bool(classes), map_levels)}


def _class_of(options: Options) -> tuple[Any, ...]:
    return options.values.get("label"), options.values.get("guidance")


def _likely_classes(model: Model, x: Tensor) -> list[list[Any]]:
    """The classes of an image and their probabilities, where all classes are equally frequent; none if the model knows none."""
    if not model.classes:
        return []
    shares = model.classify(x)[0].exp().tolist()
    return sorted(map(list, zip(model.classes, shares, strict=True)), key=lambda pair: -pair[1])


def _reference(desk: Desk, model: Model, about: tuple[Any, ...], cell: float) -> tuple[np.ndarray, np.ndarray]:
    """The densities and profiles of test images under a model, which are computed once."""
    key = ("reference", *about)
    if key not in desk.known:
        source = _own_images(model)
        images = scaled(source.rows(0, min(recipes.REFERENCE, source.num)).to(model.device))
        parts = []
        for part in images.split(32):
            desk.check()
            parts.append(density(model, part, cell))
        scores, profiles = torch.cat([p.score for p in parts]), torch.cat([p.profile for p in parts])
        desk.known[key] = scores.cpu().numpy(), profiles.cpu().numpy()
    return cast(tuple[np.ndarray, np.ndarray], desk.known[key])


def _score_maps(model: Model, x: Tensor) -> tuple[np.ndarray, list[int]]:
    """|score| of every pixel ``[L, H, W]``, times the level's noise, at some levels; each image is diffused without noise."""
    schedule = model.schedule
    levels = spread_levels(schedule.num_levels, 5)
    maps = []
    for t in levels:
        shrink, sigma = float(schedule.a_cum[t]), float(schedule.sigma_cum[t]) or 1.0
        gradient = model.score(shrink * x, t)[0]
        maps.append((sigma * gradient.square().sum(0).sqrt()).cpu().numpy().astype(np.float32))
    return np.stack(maps), levels


def walk(desk: Desk, options: Options) -> dict[str, Any]:
    """Some steps of long chains at level 0, without springs, from where the page says that they are."""
    model = _image_model(desk, options)
    kernel = make_kernel(options.choice("kernel", ("langevin", "mala", "hmc")), options.whole("num_leapfrog", 1, 20))
    x = torch.from_numpy(np.array(options.array("state", np.float32, (None, *model.event_shape))))
    if not 1 <= len(x) <= 16:
        raise UserError(f"state: {len(x)} chains; use 1 ... 16")
    walk = Walk(model, kernel, options.number("step_size", 1e-6, 10.0), seed=options.seed())
    accepted = []
    for moved in walk.steps(x, options.whole("steps", 1, 200), options.whole("first", 0, 2**31 - 1)):
        x, info = moved
        desk.check()
        if info.acceptance is not None:
            accepted.append(float(info.acceptance.mean()))
    if not bool(x.isfinite().all()):
        raise UserError("the chains ran away; use a smaller step size, or a sampler with a Metropolis test (mala, hmc)")
    u = model.standardised(x)
    arrays = {
        "images": to_bytes(model.finished(u)),
        "state": x.cpu().numpy().astype(np.float32),
        "f": model.level_f(u).cpu().numpy().astype(np.float32),
    }
    options.whole("since", 0, 2**31 - 1)
    recipe = recipes.walk(options.text("model"), options.values, "start.npy", "chains.png")
    return {"acceptance": float(np.mean(accepted)) if accepted else None, "recipe": recipe, "arrays": arrays}


def film(desk: Desk, options: Options) -> dict[str, Any]:
    """Frames that the page drew, bytes ``[T, H, W, 3]``, as a GIF; it needs no model."""
    frames = options.array("frames", np.uint8, (None, None, None, 3))
    if not 1 <= len(frames) <= MOST_FILMED or not 1 <= min(frames.shape[1:3]) <= max(frames.shape[1:3]) <= MOST_SIDE:
        raise UserError(
            f"frames: has the shape {list(frames.shape)}; use 1 ... {MOST_FILMED} of at most {MOST_SIDE} pixels a side"
        )
    with tempfile.TemporaryDirectory() as folder:
        out = save_gif(list(frames), Path(folder) / "film.gif")
        return {"arrays": {"file": np.frombuffer(out.read_bytes(), np.uint8)}}


def decode(desk: Desk, options: Options) -> dict[str, Any]:
    """A dropped file as an image of a model's shape: cropped to its central square and resized, as training images are."""
    model = _image_model(desk, Options({"model": options.text("of")}))
    channels, height, width = model.event_shape
    data = options.array("file", np.uint8, (None,)).tobytes()
    if height != width:
        raise UserError(f"the model's images are {width} x {height} pixels; only square ones can be dropped")
    try:
        pixels = decode_image(data, Rule(height, shape=(channels, height, width)))
    except (UnreadableError, OSError, ValueError) as error:
        raise UserError(
            f"the file is no image that can be read ({str(error).splitlines()[0] if str(error) else 'broken'})"
        ) from None
    return {"arrays": {"image": np.ascontiguousarray(pixels.transpose(1, 2, 0))}}

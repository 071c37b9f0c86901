"""springwell interpolate | inpaint | restore."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from springwell.app.cli.common import (
    Common,
    Context,
    File,
    Flag,
    ModelName,
    Number,
    Overwrite,
    check_new,
    load_model,
    run_name,
    writable,
    write_errors,
)
from springwell.errors import UserError

_MOST_VALUES = 2**27
_KERNEL_TOLERANCE = 1e-3


@dataclass(frozen=True)
class InterpolateCommand:
    """Draw samples between samples."""

    run: ModelName
    seeds: tuple[int, ...] = (0, 1)
    """The ends of a path: sample 0 of each seed. More seeds make more paths, two by two; with --manifold, the four corners of a
    surface."""
    num: int = 8
    """Samples along a path, or a side of a surface, with its ends."""
    manifold: Flag = False
    """A surface between four seeds."""
    tests: Literal["blended", "own"] = "blended"
    """Who decides the Metropolis tests. blended: the ends, so that paths are continuous; own: every sample, so that each is a
    sample of the model and paths break in places."""
    out: File = None
    """Where to: .png (a row per path), .gif (images only; a surface is walked around its border), .npy or .npz. Default:
    NAME-interpolation.png, and of images .gif too."""
    overwrite: Overwrite = False
    batch: Number = None
    """Chains that run side by side. Default: as many as fit in memory."""
    steps: Number = None
    """MCMC steps per level. Default: the run's own."""
    common: Common = dataclasses.field(default_factory=Common)


@dataclass(frozen=True)
class InpaintCommand:
    """Fill in what is hidden of images, or of vectors with --given."""

    run: ModelName
    image: tyro.conf.Positional[str | None] = None
    """An image, a folder of images, or a data set with its split, such as mnist@test."""
    mask: File = None
    """An image of the same size: white is hidden."""
    box: str | None = None
    """x,y,w,h: a box of hidden pixels, from the upper left corner."""
    half: Literal["left", "right", "top", "bottom"] | None = None
    """The half that is hidden."""
    given: str | None = None
    """For vectors: the coordinates that are known, such as 0=0.5, instead of an image. Of data whose density is known the
    samples are compared with the exact conditional."""
    num: Number = None
    """Samples for each image. Default: 4; 1000 vectors."""
    seed: int = 0
    """Sample j of an image depends on the seed, on the image's number in its folder, and on j."""
    sweeps: Number = None
    """Gibbs sweeps of every level. 0 is the paper's procedure, which is biased; more approach the model's conditional. Default:
    4; 25 for vectors."""
    limit: Number = None
    """Only so many of the first images. Default: all of a folder, 20 of a data set."""
    resize: Flag = False
    """Crop and resize images to the model's size, and convert them to its channels."""
    out: File = None
    """The folder to write: NAME.png, the image without what is hidden and the samples, and NAME-0.png ... each by itself. For
    vectors a .png, .npy or .npz. Default: IMAGE-inpainted, or RUN-inpainted.png."""
    overwrite: Overwrite = False
    steps: Number = None
    """MCMC steps per level. Default: the run's own; 5 for vectors."""
    common: Common = dataclasses.field(default_factory=Common)


@dataclass(frozen=True)
class RestoreCommand:
    """Restore measured images: samples of the posterior, their mean and standard deviation."""

    run: ModelName
    image: tyro.conf.Positional[str]
    """A measured image, a folder of them, or with --simulate clean ones, also a data set with its split, such as mnist@test."""
    task: Literal["denoise", "superres", "deblur", "custom"] = "denoise"
    """denoise: the image with noise; superres: means over blocks of --factor pixels; deblur: blurred by --kernel; custom: what
    --operator makes of it."""
    noise: float | None = None
    """Standard deviation of the measurement's noise, in units in which black is -1 and white 1. Default: 0.3 for denoise, 0.05
    otherwise."""
    factor: int = 2
    """Side of the blocks of superres."""
    kernel: str = "gaussian:1.0"
    """Of deblur: gaussian:WIDTH in pixels, box:SIZE, or an .npy file of numbers [h, w], both odd, that sum to 1."""
    operator: str | None = None
    """Of custom: FILE.py:FUNCTION, a differentiable function of images [N, C, H, W] in [-1, 1]. The file is executed."""
    simulate: Flag = False
    """Measure clean images first, with noise of the seed, and print how well they are restored."""
    num: int = 4
    """Samples for each image."""
    seed: int = 0
    """Sample j of an image depends on the seed, on the image's number in its folder, and on j."""
    sweeps: int = 0
    """Gibbs sweeps of every level after its first chain; more approach the model's posterior."""
    limit: Number = None
    """Only so many of the first images. Default: all of a folder, 20 of a data set."""
    resize: Flag = False
    """Crop and resize images to the size that is needed, and convert them to the model's channels."""
    out: File = None
    """The folder to write: NAME.png (measurement, mean, standard deviation, samples), each of these by itself, NAME.npz.
    Default: IMAGE-TASK."""
    steps: Number = None
    """MCMC steps per level. Default: the run's own."""
    common: Common = dataclasses.field(default_factory=Common)


def interpolate_command(command: InterpolateCommand, context: Context) -> dict[str, Any]:
    import torch

    from springwell.app.plots import paths_figure, save_figure
    from springwell.app.writing import MAX_GRID, save_samples
    from springwell.applications.interpolate import check_seeds, interpolate
    from springwell.data import pictures

    seeds, num = command.seeds, command.num
    listed = " ".join(map(str, seeds))
    if command.manifold and len(seeds) != 4:
        raise UserError(f"--seeds {listed}: a surface has 4 corners")
    if len(seeds) < 2 or len(seeds) % 2:
        raise UserError(f"--seeds {listed}: every path has two ends; give 2, 4, 6, ... seeds")
    groups = [list(seeds)] if command.manifold else [list(seeds[i : i + 2]) for i in range(0, len(seeds), 2)]
    for group in groups:
        check_seeds(group)
    _at_least(("num", num, 2), ("batch", command.batch, 1), ("steps", command.steps, 0))
    if command.out is not None and command.out.suffix not in (".png", ".gif", ".npy", ".npz"):
        raise UserError(f"--out {command.out}: unknown kind '{command.out.suffix}'; use .png, .gif, .npy or .npz")
    model = load_model(command.run, context)
    images = len(model.event_shape) == 3
    if not images and command.out is not None and command.out.suffix == ".gif":
        raise UserError(f"--out {command.out}: an animation shows images, and this model draws vectors; use .png or .npy")
    stem, kinds = f"{run_name(command.run)}-interpolation", (".png", ".gif") if images else (".png",)
    outs = [command.out] if command.out else [Path(f"{stem}{kind}") for kind in kinds]
    if outs[0].suffix == ".png" and num * (num if command.manifold else len(seeds) // 2) > MAX_GRID:
        raise UserError(f"--num {num}: a picture holds at most {MAX_GRID} samples; use fewer, or --out with .npy or .npz")
    samples = sum(num ** (len(group) // 2) for group in groups)
    _check_size(num, samples, math.prod(model.event_shape))
    check_new(command.out, command.overwrite)
    writable(outs[0].parent)
    with context.reporter.bar("sampling (levels x samples)", samples * (model.schedule.num_levels + 1)) as bar:
        paths = [interpolate(model, g, num, command.tests, command.steps, command.batch, bar.advance).cpu() for g in groups]
    # A row per path, or the rows of the surface.
    rows = paths[0] if command.manifold else torch.stack(paths)
    shape = rows.shape[3:] + rows.shape[2:3]
    step = (rows[:, 1:] - rows[:, :-1]).flatten(2).norm(dim=2)
    for out in outs:
        with write_errors(out):
            if out.suffix in (".npy", ".npz"):
                save_samples(
                    pictures.to_bytes(rows.flatten(0, 1)).reshape(*rows.shape[:2], *shape) if images else rows.numpy(), out
                )
            elif not images:
                save_figure(paths_figure(rows, f"{len(rows)} paths of {num} samples"), out)
            elif out.suffix == ".png":
                pictures.save_png(pictures.grid(pictures.to_bytes(rows.flatten(0, 1)), num), out)
            else:
                frames = _border(rows) if command.manifold else rows.transpose(0, 1)
                pictures.save_gif([pictures.grid(pictures.to_bytes(frame)) for frame in frames], out)
    if not command.common.json:
        what = f"largest distance of neighbours {float(step.max()):.3f}, mean {float(step.mean()):.3f}, {step.numel()} pairs"
        print(f"{', '.join(map(str, outs))}: {len(rows)} x {num} samples of {command.run}; {what}")
    return {
        "run": command.run,
        "out": [str(out) for out in outs],
        "seeds": list(seeds),
        "shape": list(rows.shape),
        "tests": command.tests,
        "distance_largest": float(step.max()),
        "distance_mean": float(step.mean()),
        "distance_pairs": step.numel(),
    }


def _border(rows: Any) -> list[Any]:
    """Around the border of a surface, from corner A by B, D and C back to A; one image a frame."""
    n = len(rows) - 1
    walk = [
        *((0, i) for i in range(n)),
        *((i, n) for i in range(n)),
        *((n, n - i) for i in range(n)),
        *((n - i, 0) for i in range(n)),
    ]
    return [rows[i, j][None] for i, j in [*walk, (0, 0)]]


def inpaint_command(command: InpaintCommand, context: Context) -> dict[str, Any]:
    from springwell.applications.batches import check_seed

    _at_least(("num", command.num, 1), ("sweeps", command.sweeps, 0), ("steps", command.steps, 0), ("limit", command.limit, 1))
    check_seed(command.seed)
    if (command.image is None) == (command.given is None):
        raise UserError("inpaint: give an image, or --given for vectors")
    if command.given is not None and (command.mask, command.box, command.half) != (None, None, None):
        raise UserError(f"--given {command.given}: says what is hidden by itself; leave out --mask, --box and --half")
    model = load_model(command.run, context)
    if (len(model.event_shape) == 3) != (command.given is None):
        kind = "images: give one" if command.given is not None else "vectors: use --given, such as --given 0=0.5"
        raise UserError(f"inpaint: {command.run} is a model of {kind}")
    return _inpaint_vectors(command, model, context) if command.given is not None else _inpaint_images(command, model, context)


def _inpaint_images(command: InpaintCommand, model: Any, context: Context) -> dict[str, Any]:
    import numpy as np
    import torch

    from springwell.app.files import Folder, Image, box_mask, half_mask, read_images, read_mask, sha256
    from springwell.applications.inpaint import check_hidden, inpaint
    from springwell.data import pictures
    from springwell.data.images import scaled

    given = [option for option in (command.mask, command.box, command.half) if option is not None]
    if len(given) != 1:
        raise UserError("inpaint: say what is hidden, by one of --mask, --box and --half")
    shape = model.event_shape
    if command.mask is not None:
        hidden = read_mask(command.mask, shape)
    elif command.box is not None:
        hidden = box_mask(_numbers("box", command.box, 4), shape)
    else:
        assert command.half is not None
        hidden = half_mask(command.half, shape)
    check_hidden(hidden, shape)
    num, sweeps = command.num or 4, 4 if command.sweeps is None else command.sweeps
    _check_row(num, shape)
    assert command.image is not None
    out = _folder(command.out or _beside(command.image, "inpainted"))
    images = read_images(command.image, shape, command.resize, command.limit, context.reporter, out)
    writable(out.parent)
    record = {
        "run": command.run,
        "iteration": model.iteration,
        "image": command.image,
        "mask": str(given[0]),
        "mask_sha256": sha256(hidden.numpy().tobytes()),
        "num": num,
        "seed": command.seed,
        "sweeps": sweeps,
        "steps": command.steps,
    }
    seen = hidden.permute(1, 2, 0).logical_not().numpy()

    def work(part: list[Image], watch: Callable[[int], None]) -> None:
        pixels = torch.stack([image.pixels for image in part if image.pixels is not None])
        numbers = [image.number for image in part]
        drawn = inpaint(
            model, scaled(pixels), hidden, num, command.seed, sweeps, command.steps, numbers=numbers, watch=watch
        ).cpu()
        for image, original, samples in zip(part, pixels.permute(0, 2, 3, 1).numpy(), drawn, strict=True):
            filled = np.where(seen, original, pictures.to_bytes(samples))
            for j, sample in enumerate(filled):
                pictures.save_png(sample, out / f"{image.name}-{j}.png")
            shown = np.concatenate([np.where(seen, original, 128)[None].astype(np.uint8), filled])
            pictures.save_png(pictures.grid(shown, len(shown)), out / f"{image.name}.png")

    with write_errors(out):
        Folder(out, "inpaint", record).fill(images, model, num, work, context.reporter)
    return _told(command, out, images, num, f"{int(hidden.sum())} of {hidden.numel()} values hidden, {sweeps} sweeps")


def _inpaint_vectors(command: InpaintCommand, model: Any, context: Context) -> dict[str, Any]:
    import torch

    from springwell.app.plots import conditional_figure, save_figure
    from springwell.app.writing import save_samples
    from springwell.applications.inpaint import check_hidden, inpaint_noisy
    from springwell.data.toy import TOY_DATA, log_density, toy_data
    from springwell.evaluation.conditionals import NUM_CELLS, conditional_density, kolmogorov, pit

    assert command.given is not None
    out = command.out or Path(f"{run_name(command.run)}-inpainted.png")
    if out.suffix not in (".png", ".npy", ".npz"):
        raise UserError(f"--out {out}: unknown kind '{out.suffix}'; use .png, .npy or .npz for vectors")
    check_new(command.out, command.overwrite)
    size = model.event_shape[0]
    hidden, x = torch.ones(size, dtype=torch.bool), torch.zeros(size)
    for part in command.given.split(","):
        name, _, value = part.partition("=")
        try:
            i, number = int(name), float(value)
        except ValueError:
            raise UserError(f"--given {command.given}: cannot be read; write coordinate=value, such as 0=0.5") from None
        if not 0 <= i < size or not -1e6 < number < 1e6:
            raise UserError(f"--given {command.given}: '{part}' is out of range; coordinates are 0 ... {size - 1}")
        hidden[i], x[i] = False, number
    check_hidden(hidden, model.event_shape)
    num, sweeps = command.num or 1000, 25 if command.sweeps is None else command.sweeps
    # The exact conditional is a table, a row for each sample.
    _check_size(num, num, max(size, NUM_CELLS))
    writable(out.parent)
    steps = 5 if command.steps is None else command.steps
    with context.reporter.bar("sampling (levels x samples)", num * (model.schedule.num_levels + 1)) as bar:
        drawn = inpaint_noisy(model, x[None], hidden, num, command.seed, sweeps, steps, watch=bar.advance)
    x_0, samples = drawn[0][0], drawn[1][0].cpu()
    result: dict[str, Any] = {"run": command.run, "out": str(out), "num": num, "seed": command.seed, "sweeps": sweeps}
    lines, exact = [], None
    if int(hidden.sum()) == 1 and (name := model.metadata.get("name")) in TOY_DATA:
        toy = toy_data(name)
        a, sigma = float(model.schedule.a_cum[0]), float(model.schedule.sigma_cum[0])
        coordinate = int(hidden.nonzero()[0])

        def data(points: Any) -> Any:
            return log_density(toy, points, a, sigma)

        for name, law in (("data", data), ("model", lambda points: model.log_prob(points.float()))):
            distance, null = kolmogorov(pit(law, x_0, coordinate))
            result |= {f"ks_{name}": distance, "ks_null_95": null}
            what = f"Kolmogorov distance from the {name}'s conditional, quadrature; null level (95 %) {null:.4f}, {num} samples"
            lines.append(f"ks {name:<7}{distance:.4f}   {what}")
        nodes, density = conditional_density(data, x_0, coordinate)
        exact = nodes.cpu(), density.mean(0).cpu()
    with write_errors(out):
        if out.suffix == ".png":
            save_figure(conditional_figure(samples, hidden, exact, f"{command.run}, {command.given}"), out)
        else:
            save_samples(samples.numpy(), out)
    if not command.common.json:
        print("\n".join([f"{out}: {num} samples of {command.run} given {command.given}, {sweeps} sweeps", *lines]))
    return result


def restore_command(command: RestoreCommand, context: Context) -> dict[str, Any]:
    import torch

    from springwell.app.files import Folder, Image, read_images
    from springwell.app.writing import save_arrays
    from springwell.applications.batches import check_seed
    from springwell.applications.operators import enlarged
    from springwell.applications.restore import Measurement, restore
    from springwell.data import pictures
    from springwell.data.images import scaled
    from springwell.noise import Noise, Stream

    _at_least(("num", command.num, 1), ("sweeps", command.sweeps, 0), ("steps", command.steps, 0), ("limit", command.limit, 1))
    check_seed(command.seed)
    noise = command.noise if command.noise is not None else 0.3 if command.task == "denoise" else 0.05
    if not 0 < noise < 100:
        raise UserError(f"--noise {noise:g}: out of range; must be positive (black is -1, white 1)")
    model = load_model(command.run, context)
    shape, num, out = model.event_shape, command.num, _folder(command.out or _beside(command.image, command.task))
    if len(shape) != 3:
        raise UserError(f"restore: {command.run} is a model of vectors; from Python, springwell.applications.restore takes any")
    _check_row(num, shape)
    operator, name = _operator(command, shape), f"--operator {command.operator}"
    measurement = Measurement(operator, noise, shape, model.device, name)
    if len(measurement.shape) != 3 or measurement.shape[0] not in (1, shape[0]):
        channels = "1 channel" if shape[0] == 1 else f"1 or {shape[0]} channels"
        raise UserError(
            f"{name}: makes {list(measurement.shape)} of {list(shape)}; from here it must be an image of {channels}"
        )
    # What is wrong with the derivative is said before the first image is begun.
    _ = measurement.curvature
    needed = shape if command.simulate else measurement.shape
    images = read_images(command.image, needed, command.resize, command.limit, context.reporter, out)
    writable(out.parent)
    record = {
        "run": command.run,
        "iteration": model.iteration,
        "image": command.image,
        "task": command.task,
        "noise": noise,
        "factor": command.factor,
        "kernel": command.kernel,
        "operator": command.operator,
        "file_sha256": _file_digest(command),
        "simulate": command.simulate,
        "num": num,
        "seed": command.seed,
        "sweeps": command.sweeps,
        "steps": command.steps,
    }

    def work(part: list[Image], watch: Callable[[int], None]) -> None:
        clean = scaled(torch.stack([image.pixels for image in part if image.pixels is not None]))
        numbers = [image.number for image in part]
        observed = clean
        if command.simulate:
            eps = Noise(command.seed, torch.tensor(numbers), Stream.MEASUREMENT).normal(*measurement.shape)
            observed = operator(clean) + noise * eps
        found = restore(
            model, observed, operator, noise, num, command.seed, command.sweeps, command.steps, numbers=numbers, watch=watch
        )
        samples, mean, std = (x.cpu() for x in found)
        shown = enlarged(observed.clamp(-1, 1), shape)
        for i, image in enumerate(part):
            spread = std[i].nan_to_num(0)
            panels = {"mean": mean[i], "std": 2 * spread / max(float(spread.max()), 1e-12) - 1}
            panels |= {str(j): sample for j, sample in enumerate(samples[i])}
            for name, picture in panels.items():
                pictures.save_png(pictures.to_bytes(picture[None])[0], out / f"{image.name}-{name}.png")
            arrays = {"observation": observed[i], "samples": samples[i], "mean": mean[i], "std": std[i]}
            save_arrays(out / f"{image.name}.npz", {key: value.numpy() for key, value in arrays.items()})
            row = torch.stack([*([clean[i]] if command.simulate else []), shown[i], *panels.values()])
            pictures.save_png(pictures.grid(pictures.to_bytes(row), len(row)), out / f"{image.name}.png")

    with write_errors(out):
        Folder(out, "restore", record).fill(images, model, num, work, context.reporter)
    psnr = _quality(out, images, shape, command.common.json) if command.simulate else {}
    what = f"{command.task}, noise {noise:g}, {command.sweeps} sweeps"
    return {**_told(command, out, images, num, what), **({"psnr": psnr} if psnr else {})}


def _quality(out: Path, images: list[Any], shape: tuple[int, ...], quiet: bool) -> dict[str, Any]:
    """PSNRs, 10 log10(2^2 / mean squared error) in dB for images in [-1, 1], means over the images with standard errors."""
    import numpy as np
    import torch

    from springwell.applications.operators import enlarged, median_filter
    from springwell.data.images import scaled

    values: dict[str, list[float]] = {}
    for image in images:
        if image.pixels is None:
            continue
        with np.load(out / f"{image.name}.npz") as file:
            observed, samples, mean = (torch.from_numpy(file[name]).clamp(-1, 1) for name in ("observation", "samples", "mean"))
        shown = enlarged(observed[None], shape)
        compared = {"measurement": shown[0], "median filter": median_filter(shown)[0], "one sample": samples[0], "mean": mean}
        for name, x in compared.items():
            error = float((x - scaled(image.pixels)).square().mean())
            values.setdefault(name, []).append(10 * np.log10(4 / max(error, 1e-12)))
    result: dict[str, Any] = {}
    for name, numbers in values.items():
        mean_value, n = float(np.mean(numbers)), len(numbers)
        spread = float(np.std(numbers, ddof=1)) / n**0.5 if n > 1 else None
        result[name.replace(" ", "_")] = {"psnr": mean_value, "standard_error": spread, "num": n}
        if not quiet:
            print(f"psnr {name:<14}{mean_value:.2f}{'' if spread is None else f' +- {spread:.2f}'} dB   {n} images")
    return result


def _operator(command: RestoreCommand, shape: tuple[int, ...]) -> Callable[[Any], Any]:
    import numpy as np
    import torch

    from springwell.applications.operators import average_pool, blur, box_kernel, gaussian_kernel, load_function

    if (command.operator is not None) != (command.task == "custom"):
        raise UserError("--operator: belongs to --task custom, and --task custom to it")
    if command.operator is not None:
        return load_function(command.operator)
    if command.task == "superres":
        if command.factor < 2 or any(side % command.factor for side in shape[1:]):
            raise UserError(f"--factor {command.factor}: must be at least 2 and divide {shape[2]} x {shape[1]} pixels")
        return average_pool(command.factor)
    if command.task == "denoise":
        return lambda x: x
    kind, _, value = command.kernel.partition(":")
    try:
        if kind == "gaussian" and 0 < float(value) <= max(shape[1:]):
            return blur(gaussian_kernel(float(value)))
        if kind == "box" and 1 <= int(value) <= max(shape[1:]):
            return blur(box_kernel(int(value)))
        if Path(command.kernel).suffix == ".npy":
            with Path(command.kernel).open("rb") as file:
                array = np.lib.format.read_array(file, allow_pickle=False)
            if array.ndim == 2 and array.dtype.kind in "fiu" and np.isfinite(array).all() and array.size:
                if abs(array.sum(dtype=np.float64) - 1) > _KERNEL_TOLERANCE:
                    raise UserError(f"sums to {array.sum(dtype=np.float64):.6g}, not to 1; save k / k.sum()")
                return blur(torch.from_numpy(array.astype(np.float64)))
    except UserError as error:
        raise UserError(f"--kernel {command.kernel}: {error}") from None
    except (OSError, ValueError, EOFError, MemoryError):
        pass
    raise UserError(
        f"--kernel {command.kernel}: cannot be used; write gaussian:WIDTH, box:SIZE, or an .npy file of finite numbers [h, w]"
    )


def _file_digest(command: RestoreCommand) -> str | None:
    """SHA-256 of the file that says what is measured, if one does."""
    from springwell.app.files import sha256

    name = {"deblur": command.kernel, "custom": (command.operator or "").rpartition(":")[0]}.get(command.task, "")
    return sha256(Path(name).read_bytes()) if Path(name).is_file() else None


def _told(command: InpaintCommand | RestoreCommand, out: Path, images: list[Any], num: int, what: str) -> dict[str, Any]:
    failures = [image.problem for image in images if image.pixels is None]
    done = len(images) - len(failures)
    if not command.common.json:
        print(f"{out}: {done} images, {num} samples each, of {command.run}, seed {command.seed}; {what}")
        if failures:
            print("\n".join([f"{len(failures)} of {len(images)} images failed:", *failures]))
    return {"run": command.run, "out": str(out), "images": done, "num": num, "seed": command.seed, "failures": failures}


def _at_least(*options: tuple[str, int | None, int]) -> None:
    for option, value, least in options:
        if value is not None and value < least:
            raise UserError(f"--{option} {value}: must be at least {least}")


def _folder(out: Path) -> Path:
    """``out``, unless it is called as a file is."""
    from springwell.data.collect import SUFFIXES

    if out.suffix.lower() in SUFFIXES | {".npy", ".npz"}:
        raise UserError(f"--out {out}: a folder is written; give a name without '{out.suffix}'")
    return out


def _check_size(num: int, samples: int, values: int) -> None:
    """Refuses numbers of samples of ``values`` numbers each that do not fit in memory."""
    if samples * values > _MOST_VALUES:
        raise UserError(f"--num {num}: too many; at most {_MOST_VALUES // values} samples fit here; use a smaller --num")


def _check_row(num: int, shape: tuple[int, ...]) -> None:
    """Refuses more samples of an image than a picture shows in a row, beside the image and three of its kind."""
    from springwell.app.writing import MAX_GRID

    if num + 4 > MAX_GRID:
        raise UserError(
            f"--num {num}: a picture holds at most {MAX_GRID} images, and a row has 4 beside the samples; use fewer"
        )
    _check_size(num, num + 4, math.prod(shape))


def _beside(image: str, what: str) -> Path:
    """Where results go if nobody says: photo.png to ./photo-what, mnist@test to ./mnist-test-what."""
    return Path(f"{Path(image).stem.replace('@', '-')}-{what}")


def _numbers(option: str, text: str, count: int) -> list[int]:
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        values = []
    if len(values) != count:
        raise UserError(f"--{option} {text}: cannot be read; write {count} whole numbers with commas between them")
    return values

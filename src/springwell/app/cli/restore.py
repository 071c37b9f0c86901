"""springwell restore."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from springwell.app.cli import common as cli
from springwell.errors import UserError


@dataclass(frozen=True)
class RestoreCommand(cli.Command):
    """Restore noisy, blurred or small images: samples of the posterior, their mean and standard deviation."""

    run: cli.ModelName
    image: tyro.conf.Positional[str]
    """A measured image or a folder of them. With --simulate, clean images: also a data set with its split, such as
    mnist@test."""
    task: Literal["denoise", "superres", "deblur", "custom"] = "denoise"
    """How the image was measured. denoise: with noise only. superres: averaged over blocks of --factor pixels. deblur: blurred
    by --kernel. custom: by --operator."""
    noise: float | None = None
    """Standard deviation of the measurement's noise, in units in which black is -1 and white 1. Default: 0.3 for denoise, 0.05
    otherwise."""
    factor: int = 2
    """Side of the pixel blocks, for --task superres."""
    kernel: str = "gaussian:1.0"
    """Blur kernel, for --task deblur: gaussian:WIDTH in pixels, box:SIZE, or an .npy file of numbers [h, w] with odd h and w
    and sum 1."""
    operator: str | None = None
    """Measurement, for --task custom: FILE.py:FUNCTION, a differentiable function of images [N, C, H, W] in [-1, 1]. The file
    is executed."""
    simulate: cli.Flag = False
    """Treat the images as clean: simulate their measurements with noise from the seed, and print how well they are restored."""
    num: int = 4
    """Number of samples for each image."""
    seed: int = 0
    """Seed of the samples. Sample j of an image depends on the seed, on the image's number in its folder, and on j."""
    sweeps: int = 0
    """Number of Gibbs sweeps at every level after its first chain. More sweeps come closer to the model's posterior."""
    limit: cli.Number = None
    """Number of images, from the first on. Default: all of a folder, 20 of a data set."""
    resize: cli.Flag = False
    """Crop and resize images to the size that the model needs, and convert them to its channels."""
    out: cli.File = None
    """Folder to write: NAME.png (measurement, mean, standard deviation and samples in a row), each of these as its own file,
    and NAME.npz with the numbers. Default: IMAGE-TASK."""
    steps: cli.Number = None
    """Number of MCMC steps per level. Default: the run's setting."""
    label: cli.ClassName = None
    guidance: cli.Guidance = 1.0


def restore_command(command: RestoreCommand, context: cli.Context) -> dict[str, Any]:
    import torch

    from springwell.app.files import Image, fill_folder, read_images
    from springwell.applications.batches import Draws
    from springwell.applications.restore import restore
    from springwell.data.images import scaled
    from springwell.noise import Noise, Stream
    from springwell.store.parts import Results

    cli.check_sampling(command)
    noise = command.noise if command.noise is not None else 0.3 if command.task == "denoise" else 0.05
    if not 0 < noise < 100:
        raise UserError(f"--noise {noise:g}: out of range; must be positive (black is -1, white 1)")
    model = cli.of_class(cli.load_model(command.run, context), command.label, command.guidance)
    shape, num, out = model.event_shape, command.num, cli.as_folder(command.out or cli.beside(command.image, command.task))
    if len(shape) != 3:
        raise UserError(f"restore: {command.run} is a model of vectors; use springwell.applications.restore from Python")
    cli.check_row(num, shape)
    operator = _operator(command, shape)
    measured = _measured_shape(command, operator, noise, model)
    needed = shape if command.simulate else measured
    images = read_images(command.image, needed, command.resize, command.limit, context.reporter, out)
    cli.writable(out.parent)
    names = ("run", "image", "task", "factor", "kernel", "operator", "simulate", "num", "seed", "sweeps", "steps")
    settings = {name: getattr(command, name) for name in (*names, "label", "guidance")}
    record = {**settings, "iteration": model.iteration, "noise": noise, "file_sha256": _file_digest(command)}

    def work(part: list[Image], watch: Callable[[int], None]) -> None:
        clean = scaled(torch.stack([image.pixels for image in part if image.pixels is not None]))
        numbers = [image.number for image in part]
        observed = clean
        if command.simulate:
            eps = Noise(command.seed, torch.tensor(numbers), Stream.MEASUREMENT).normal(*measured)
            observed = operator(clean) + noise * eps
        draws = Draws(num, command.seed, command.sweeps, command.steps, numbers=numbers, watch=watch)
        found = restore(model, observed, operator, noise, draws)
        for i, image in enumerate(part):
            before = clean[i : i + 1] if command.simulate else clean[:0]
            _write(out / image.name, before, observed[i], *(x[i].cpu() for x in found))

    with cli.write_errors(out):
        fill_folder(Results(out, "restore", record), images, model, num, work, context.reporter)
    psnr = _quality(out, images, shape, context) if command.simulate else {}
    what = f"{command.task}, noise {noise:g}, {command.sweeps} sweeps"
    return {**cli.told(command, context, out, images, num, what), **({"psnr": psnr} if psnr else {})}


def _measured_shape(command: RestoreCommand, operator: Any, noise: float, model: Any) -> tuple[int, ...]:
    """Returns the shape of a measurement, and refuses one that is no picture or cannot be differentiated."""
    from springwell.applications.restore import Measurement

    shape, name = model.event_shape, f"--operator {command.operator}"
    measurement = Measurement(operator, noise, shape, model.device, name)
    if len(measurement.shape) != 3 or measurement.shape[0] not in (1, shape[0]):
        channels = "1 channel" if shape[0] == 1 else f"1 or {shape[0]} channels"
        made = f"{list(measurement.shape)} of {list(shape)}"
        raise UserError(f"{name}: makes {made}; from here it must be an image of {channels}")
    _ = measurement.curvature
    return measurement.shape


def _write(place: Path, before: Any, observed: Any, samples: Any, mean: Any, std: Any) -> None:
    """Writes NAME-*.png for every picture, NAME.npz with the numbers, and NAME.png with all in a row after ``before``."""
    import torch

    from springwell.app.writing import save_arrays
    from springwell.applications.operators import enlarged
    from springwell.data import pictures

    spread = std.nan_to_num(0)
    panels = {"mean": mean, "std": 2 * spread / max(float(spread.max()), 1e-12) - 1}
    panels |= {str(j): sample for j, sample in enumerate(samples)}
    for name, picture in panels.items():
        pictures.save_png(pictures.to_bytes(picture[None])[0], place.with_name(f"{place.name}-{name}.png"))
    arrays = {"observation": observed, "samples": samples, "mean": mean, "std": std}
    save_arrays(place.with_name(f"{place.name}.npz"), {key: value.numpy() for key, value in arrays.items()})
    shown = enlarged(observed.clamp(-1, 1)[None], tuple(mean.shape))
    row = torch.stack([*before, *shown, *panels.values()])
    pictures.save_png(pictures.grid(pictures.to_bytes(row), len(row)), place.with_name(f"{place.name}.png"))


def _quality(out: Path, images: list[Any], shape: tuple[int, ...], context: cli.Context) -> dict[str, Any]:
    """Returns the PSNRs of the written results and of what they are compared with."""
    import numpy as np
    import torch

    from springwell.applications.operators import enlarged, median_filter
    from springwell.data.images import scaled
    from springwell.evaluation.restoration import mean_psnr

    values: dict[str, list[Any]] = {}
    images = [image for image in images if image.pixels is not None]
    for image in images:
        with np.load(out / f"{image.name}.npz") as file:
            observed, samples, mean = (torch.from_numpy(file[name]).clamp(-1, 1) for name in ("observation", "samples", "mean"))
        shown = enlarged(observed[None], shape)
        compared = {"measurement": shown[0], "median filter": median_filter(shown)[0], "one sample": samples[0], "mean": mean}
        for name, x in compared.items():
            values.setdefault(name, []).append(x)
    result: dict[str, Any] = {}
    for name, restored in values.items():
        found = mean_psnr(torch.stack(restored), torch.stack([scaled(image.pixels) for image in images]))
        result[name.replace(" ", "_")] = found
        spread = "" if found["standard_error"] is None else f" +- {found['standard_error']:.2f}"
        context.tell(f"psnr {name:<14}{found['psnr']:.2f}{spread} dB   {found['num']} images")
    return result


def _operator(command: RestoreCommand, shape: tuple[int, ...]) -> Callable[[Any], Any]:
    from springwell.applications.operators import average_pool, load_function, named_blur

    if (command.operator is not None) != (command.task == "custom"):
        raise UserError("--operator and --task custom go together; give both or neither")
    if command.operator is not None:
        return load_function(command.operator)
    if command.task == "superres":
        if command.factor < 2 or any(side % command.factor for side in shape[1:]):
            raise UserError(f"--factor {command.factor}: must be at least 2 and divide {shape[2]} x {shape[1]} pixels")
        return average_pool(command.factor)
    return (lambda x: x) if command.task == "denoise" else named_blur(command.kernel, max(shape[1:]))


def _file_digest(command: RestoreCommand) -> str | None:
    """Returns the SHA-256 of the file that defines the measurement, or None."""
    from springwell.app.files import sha256

    name = {"deblur": command.kernel, "custom": (command.operator or "").rpartition(":")[0]}.get(command.task, "")
    return sha256(Path(name).read_bytes()) if Path(name).is_file() else None

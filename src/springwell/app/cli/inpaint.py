"""springwell inpaint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from springwell.app.cli import common as cli
from springwell.errors import UserError


@dataclass(frozen=True)
class InpaintCommand(cli.Command):
    """Fill in the hidden pixels of images, or the unknown coordinates of vectors (--given)."""

    run: cli.ModelName
    image: tyro.conf.Positional[str | None] = None
    """An image, a folder of images, or a data set with its split, such as mnist@test."""
    mask: cli.File = None
    """Image of the same size, in which white marks the hidden pixels."""
    box: str | None = None
    """Box of hidden pixels, written x,y,w,h and measured from the upper left corner."""
    half: Literal["left", "right", "top", "bottom"] | None = None
    """Half of the image that is hidden."""
    given: str | None = None
    """Known coordinates of a vector, such as 0=0.5, instead of an image. If the density of the data is known, the samples are
    compared with the exact conditional."""
    num: cli.Number = None
    """Number of samples for each image. Default: 4, or 1000 for vectors."""
    seed: int = 0
    """Seed of the samples. Sample j of an image depends on the seed, on the image's number in its folder, and on j."""
    sweeps: cli.Number = None
    """Number of Gibbs sweeps at every level. 0 is the paper's procedure, which is biased. More sweeps come closer to the
    model's conditional. Default: 4, or 25 for vectors."""
    limit: cli.Number = None
    """Number of images, from the first on. Default: all of a folder, 20 of a data set."""
    resize: cli.Flag = False
    """Crop and resize images to the model's size, and convert them to its channels."""
    out: cli.File = None
    """Folder to write. NAME.png shows the image without its hidden pixels, then the samples; NAME-0.png ... are the single
    samples. For vectors, a .png, .npy or .npz file. Default: IMAGE-inpainted, or RUN-inpainted.png."""
    overwrite: cli.Overwrite = False
    steps: cli.Number = None
    """Number of MCMC steps per level. Default: the run's setting, or 5 for vectors."""
    label: cli.ClassName = None
    guidance: cli.Guidance = 1.0


def inpaint_command(command: InpaintCommand, context: cli.Context) -> dict[str, Any]:
    cli.check_sampling(command)
    if (command.image is None) == (command.given is None):
        raise UserError("inpaint: give an image, or --given for vectors")
    if command.given is not None and (command.mask, command.box, command.half) != (None, None, None):
        raise UserError(f"--given {command.given}: already says what is hidden; leave out --mask, --box and --half")
    model = cli.of_class(cli.load_model(command.run, context), command.label, command.guidance)
    if (len(model.event_shape) == 3) != (command.given is None):
        kind = "images: give an image" if command.given is not None else "vectors: use --given, such as --given 0=0.5"
        raise UserError(f"inpaint: {command.run} is a model of {kind}")
    return _inpaint_vectors(command, model, context) if command.given is not None else _inpaint_images(command, model, context)


def _inpaint_images(command: InpaintCommand, model: Any, context: cli.Context) -> dict[str, Any]:
    import numpy as np
    import torch

    from springwell.app.files import Image, box_mask, fill_folder, half_mask, read_images, read_mask, sha256
    from springwell.applications.batches import Draws
    from springwell.applications.inpaint import check_hidden, inpaint
    from springwell.data import pictures
    from springwell.data.images import scaled
    from springwell.store.parts import Results

    given = [option for option in (command.mask, command.box, command.half) if option is not None]
    if len(given) != 1:
        raise UserError("inpaint: say what is hidden, by one of --mask, --box and --half")
    shape = model.event_shape
    if command.mask is not None:
        hidden = read_mask(command.mask, shape)
    else:
        hidden = half_mask(command.half, shape) if command.half is not None else box_mask(_box(str(command.box)), shape)
    check_hidden(hidden, shape)
    num, sweeps = command.num or 4, 4 if command.sweeps is None else command.sweeps
    cli.check_row(num, shape)
    assert command.image is not None
    out = cli.as_folder(command.out or cli.beside(command.image, "inpainted"))
    images = read_images(command.image, shape, command.resize, command.limit, context.reporter, out)
    cli.writable(out.parent)
    settings = {name: getattr(command, name) for name in ("run", "image", "seed", "steps", "label", "guidance")}
    mask = {"mask": str(given[0]), "mask_sha256": sha256(hidden.numpy().tobytes())}
    record = {**settings, **mask, "iteration": model.iteration, "num": num, "sweeps": sweeps}
    seen = hidden.permute(1, 2, 0).logical_not().numpy()

    def work(part: list[Image], watch: Callable[[int], None]) -> None:
        pixels = torch.stack([image.pixels for image in part if image.pixels is not None])
        numbers = [image.number for image in part]
        draws = Draws(num, command.seed, sweeps, command.steps, numbers=numbers, watch=watch)
        drawn = inpaint(model, scaled(pixels), hidden, draws).cpu()
        for image, original, samples in zip(part, pixels.permute(0, 2, 3, 1).numpy(), drawn, strict=True):
            filled = np.where(seen, original, pictures.to_bytes(samples))
            for j, sample in enumerate(filled):
                pictures.save_png(sample, out / f"{image.name}-{j}.png")
            shown = np.concatenate([np.where(seen, original, 128)[None].astype(np.uint8), filled])
            pictures.save_png(pictures.grid(shown, len(shown)), out / f"{image.name}.png")

    with cli.write_errors(out):
        fill_folder(Results(out, "inpaint", record), images, model, num, work, context.reporter)
    return cli.told(
        command, context, out, images, num, f"{int(hidden.sum())} of {hidden.numel()} values hidden, {sweeps} sweeps"
    )


def _inpaint_vectors(command: InpaintCommand, model: Any, context: cli.Context) -> dict[str, Any]:

    from springwell.app.plots import conditional_figure, save_figure
    from springwell.app.writing import save_samples
    from springwell.applications.batches import Draws
    from springwell.applications.inpaint import check_hidden, inpaint_noisy
    from springwell.data.toy import TOY_DATA, toy_data
    from springwell.evaluation.conditionals import NUM_CELLS, against_exact

    assert command.given is not None
    out = command.out or Path(f"{cli.run_name(command.run)}-inpainted.png")
    if out.suffix not in (".png", ".npy", ".npz"):
        raise UserError(f"--out {out}: unknown kind '{out.suffix}'; use .png, .npy or .npz for vectors")
    cli.check_new(command.out, command.overwrite)
    size = model.event_shape[0]
    hidden, x = _given(command.given, size)
    check_hidden(hidden, model.event_shape)
    num, sweeps = command.num or 1000, 25 if command.sweeps is None else command.sweeps
    # The exact conditional is a table, a row for each sample.
    cli.check_size(num, num, max(size, NUM_CELLS))
    cli.writable(out.parent)
    steps = 5 if command.steps is None else command.steps
    with context.reporter.bar("sampling (levels x samples)", num * (model.schedule.num_levels + 1)) as bar:
        draws = Draws(num, command.seed, sweeps, steps, watch=bar.advance)
        drawn = inpaint_noisy(model, x[None], hidden, draws)
    x_0, samples = drawn[0][0], drawn[1][0].cpu()
    result: dict[str, Any] = {"run": command.run, "out": str(out), "num": num, "seed": command.seed, "sweeps": sweeps}
    lines, exact = [], None
    if int(hidden.sum()) == 1 and model.metadata.get("name") in TOY_DATA:
        exact, found = against_exact(model, toy_data(model.metadata["name"]), x_0, int(hidden.nonzero()[0]))
        result |= found
        for name in ("data", "model"):
            what = f"quadrature; null level (95 %) {found['ks_null_95']:.4f}, {num} samples"
            lines.append(f"ks {name:<7}{found[f'ks_{name}']:.4f}   Kolmogorov distance from the {name}'s conditional, {what}")
    with cli.write_errors(out):
        if out.suffix == ".png":
            save_figure(conditional_figure(samples, hidden, exact, f"{command.run}, {command.given}"), out)
        else:
            save_samples(samples.numpy(), out)
    context.tell(f"{out}: {num} samples of {command.run} given {command.given}, {sweeps} sweeps", *lines)
    return result


def _given(text: str, size: int) -> tuple[Any, Any]:
    """Returns which of ``size`` coordinates are hidden, and the values of the others, from a text such as 0=0.5,2=1."""
    import torch

    hidden, x = torch.ones(size, dtype=torch.bool), torch.zeros(size)
    for part in text.split(","):
        name, _, value = part.partition("=")
        try:
            i, number = int(name), float(value)
        except ValueError:
            raise UserError(f"--given {text}: cannot be read; write I=VALUE, such as 0=0.5") from None
        if not 0 <= i < size or not -1e6 < number < 1e6:
            raise UserError(f"--given {text}: '{part}' is out of range; coordinates are 0 ... {size - 1}")
        hidden[i], x[i] = False, number
    return hidden, x


def _box(text: str) -> list[int]:
    try:
        x, y, width, height = map(int, text.split(","))
    except ValueError:
        raise UserError(f"--box {text}: cannot be read; write 4 whole numbers with commas between them") from None
    return [x, y, width, height]

"""springwell data | convert-official."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from springwell.app.cli import common as cli


@dataclass(frozen=True)
class DataCommand(cli.Command):
    """Decode a set of images once, for fast training: springwell data prepare SPEC OUT. The same command resumes."""

    action: tyro.conf.Positional[Literal["prepare"]]
    """prepare: write the images as arrays, which training then maps into memory."""
    spec: tyro.conf.Positional[str]
    """The images: digits, mnist, fashion-mnist, cifar10, celeba, lsun/CATEGORY, folder:PATH, zip:PATH, npz:PATH or hf:NAME."""
    out: tyro.conf.Positional[Path]
    """A new folder. Train with --data prepared:OUT afterwards."""
    image_size: cli.Number = None
    """Crop to a square and resize to this size. Default: the published size (64 for celeba and lsun)."""
    data_root: cli.DataRoot = None
    workers: cli.Number = None
    """Number of processes that decode. Default: one per available core."""


@dataclass(frozen=True)
class ConvertCommand(cli.Command):
    """Convert the authors' released weights to a model: springwell convert-official CKPT OUT."""

    checkpoint: tyro.conf.Positional[Path]
    """Path of the authors' TensorFlow checkpoint, without the ending .index."""
    out: tyro.conf.Positional[Path]
    """A new folder. Draw from it with springwell sample OUT afterwards."""
    preset: str | None = None
    """Preset that the weights were trained with. Default: cifar10-t6, celeba-t6 or lsun-church128-t6, chosen by the number
    of levels in the checkpoint."""


def data_command(command: DataCommand, context: cli.Context) -> dict[str, Any]:
    from springwell.data.images import prepare_images
    from springwell.data.options import ImageOptions

    cli.in_range(("image-size", command.image_size, 1, 4096), ("workers", command.workers, 1, 1024))
    images = ImageOptions(image_size=command.image_size, data_root=command.data_root)
    record = prepare_images(command.spec, command.out, images, command.workers, context.reporter)
    counts = f"{record['num_train']} training and {record['num_test']} test images, {record['num_unreadable']} unreadable"
    context.tell(f"{command.out}: {counts}, {' x '.join(map(str, record['shape']))} bytes each")
    unreadable = [f"  unreadable: {name}: {reason}" for name, reason in record["unreadable"][:10]]
    context.tell(*unreadable, f"train with --data prepared:{command.out}")
    return {"out": str(command.out), **record}


def convert_command(command: ConvertCommand, context: cli.Context) -> dict[str, Any]:
    from springwell.app.build import config_of
    from springwell.app.convert import convert

    context.set_threads()
    with cli.write_errors(command.out):
        model = convert(command.checkpoint, command.out, command.preset)
    network = config_of(model).network
    assert network.network == "resnet"
    what = f"width {network.width}, multipliers {network.multipliers}, N = {network.num_blocks}"
    context.tell(f"{command.out}: {what}, iteration {model.iteration}; sample it with springwell sample {command.out}")
    return {"out": str(command.out), "iteration": model.iteration, "network": dataclasses.asdict(network)}

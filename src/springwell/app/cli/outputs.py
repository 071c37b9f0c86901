"""What inpaint, interpolate and restore share: checks of sizes, and where results go."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from springwell.app.cli.common import Context, at_least
from springwell.errors import UserError

_MOST_VALUES = 2**27


def told(command: Any, context: Context, out: Path, images: list[Any], num: int, what: str) -> dict[str, Any]:
    failures = [image.problem for image in images if image.pixels is None]
    done = len(images) - len(failures)
    context.tell(f"{out}: {done} images, {num} samples each, of {command.run}, seed {command.seed}; {what}")
    if failures:
        context.tell(f"{len(failures)} of {len(images)} images failed:", *failures)
    return {"run": command.run, "out": str(out), "images": done, "num": num, "seed": command.seed, "failures": failures}


def check_sampling(command: Any) -> None:
    """Refuses numbers of samples, sweeps, steps or images, or a seed, that cannot be."""
    from springwell.applications.batches import check_seed

    at_least(("num", command.num, 1), ("sweeps", command.sweeps, 0), ("steps", command.steps, 0), ("limit", command.limit, 1))
    check_seed(command.seed)


def as_folder(out: Path) -> Path:
    """``out``, unless it is called as a file is."""
    from springwell.data.collect import SUFFIXES

    if out.suffix.lower() in SUFFIXES | {".npy", ".npz"}:
        raise UserError(f"--out {out}: a folder is written; give a name without '{out.suffix}'")
    return out


def check_size(num: int, samples: int, values: int) -> None:
    """Refuses numbers of samples of ``values`` numbers each that do not fit in memory."""
    if samples * values > _MOST_VALUES:
        raise UserError(f"--num {num}: too many; at most {_MOST_VALUES // values} samples fit here; use a smaller --num")


def check_row(num: int, shape: tuple[int, ...]) -> None:
    """Refuses more samples of an image than a picture shows in a row, beside the image and three of its kind."""
    from springwell.app.writing import MAX_GRID

    if num + 4 > MAX_GRID:
        most = f"a picture holds at most {MAX_GRID} images"
        raise UserError(f"--num {num}: {most}, and a row has 4 beside the samples; use fewer")
    check_size(num, num + 4, math.prod(shape))


def beside(image: str, what: str) -> Path:
    """The default folder of results: ./photo-what for photo.png, ./mnist-test-what for mnist@test."""
    return Path(f"{Path(image).stem.replace('@', '-')}-{what}")

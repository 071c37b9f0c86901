"""Results of jobs as files: PNG, GIF, NPZ and CSV."""

from __future__ import annotations

import csv
import io
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from springwell.app.studio.desk import Desk
from springwell.app.studio.options import Options
from springwell.app.writing import save_arrays
from springwell.data import pictures
from springwell.errors import UserError

Arrays = dict[str, np.ndarray]


def _grid(images: np.ndarray, columns: int | None = None) -> Callable[[Path], object]:
    return lambda out: pictures.save_png(pictures.grid(images, columns), out)


def _single(image: np.ndarray) -> Callable[[Path], object]:
    return lambda out: pictures.save_png(image if image.ndim == 3 else image[..., None], out)


def _gif(frames: list[Any]) -> Callable[[Path], object]:
    return lambda out: pictures.save_gif(frames, out)


def _npz(arrays: Arrays) -> Callable[[Path], object]:
    return lambda out: save_arrays(out, arrays)


def _csv(header: list[str], rows: Any) -> Callable[[Path], object]:
    def write(out: Path) -> None:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
        out.write_text(text.getvalue())

    return write


def _writers(task: str, arrays: Arrays) -> dict[str, Callable[[Path], object]]:
    """The files of a task's result, by name."""
    files: dict[str, Callable[[Path], object]] = {f"{task}.npz": _npz(arrays)}
    if task == "levels":
        files |= {"levels.csv": _csv(["level", "x", "y", "log_density"], _grid_rows(arrays)), "levels.gif": _gif(_maps(arrays))}
    if task == "sample":
        way = [pictures.grid(images) for images in arrays["trajectory"]]
        files |= {"sample.png": _grid(arrays["samples"]), "sample.gif": _gif(way)}
    if task == "interpolate":
        frames = [image.repeat(4, 0).repeat(4, 1) for image in arrays["samples"]]
        files |= {"interpolate.png": _grid(arrays["samples"], _columns(arrays)), "interpolate.gif": _gif(frames)}
    if task == "restore":
        row = np.stack([arrays["image"], arrays["measured"], arrays["mean"][0], arrays["std"][0], *arrays["samples"]])
        files["restore.png"] = _grid(row, len(row))
    if task == "inpaint":
        files |= {"inpaint.png": _grid(arrays["samples"], len(arrays["samples"])), "mask.png": _single(arrays["mask"])}
    if task == "score":
        files["score.csv"] = _csv(["level", "log_density"], zip(arrays["levels"], arrays["profile"], strict=True))
        files["image.npz"] = _npz({"samples": arrays["image"][None]})
    if "image" in arrays:
        files["image.png"] = _single(arrays["image"])
    return files


def _columns(arrays: Arrays) -> int:
    """A path is one row; a surface has as many rows as columns."""
    num = len(arrays["samples"])
    side = round(num**0.5)
    return side if side > 2 and side * side == num else num


def _grid_rows(arrays: Arrays) -> Any:
    for level, table in zip(arrays["level"], arrays["log_density"], strict=True):
        for y, row in zip(arrays["y"], table, strict=True):
            for x, value in zip(arrays["x"], row, strict=True):
                yield level, f"{x:.6g}", f"{y:.6g}", f"{value:.6g}"


def _maps(arrays: Arrays) -> list[Any]:
    """The density of every level as a picture, from the noisiest to the data."""
    from matplotlib import colormaps

    frames = []
    for table in arrays["log_density"][::-1]:
        density = np.exp(table - table.max())
        shade = np.clip(density / max(np.quantile(density, 0.998), 1e-12), 0, 1)
        picture = (colormaps["viridis"](shade[::-1])[..., :3] * 255).round().astype(np.uint8)
        frames.append(picture.repeat(4, 0).repeat(4, 1))
    return frames


def download(desk: Desk, options: Options) -> dict[str, Any]:
    """A file of a result."""
    files = _writers(options.text("task"), options.arrays)
    name = options.choice("file", list(files))
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / name
        try:
            files[name](out)
        except (KeyError, IndexError):
            raise UserError(f"{name}: this job has no such result") from None
        return {"arrays": {"file": np.frombuffer(out.read_bytes(), np.uint8)}}

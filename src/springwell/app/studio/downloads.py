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
    if task == "train":
        files |= {"train.gif": _gif(_forming(arrays)), "points.csv": _csv(["x", "y"], arrays["points"].tolist())}
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
        files["score.png"] = _score_maps(arrays)
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


def _coloured(shares: np.ndarray) -> np.ndarray:
    """Colours ``[..., 3]`` of shares in [0, 1]."""
    from matplotlib import colormaps

    return np.asarray((colormaps["viridis"](np.clip(shares, 0, 1))[..., :3] * 255).round(), np.uint8)


def _shades(table: np.ndarray) -> np.ndarray:
    """A table of log-densities, from the bottom up, as a picture from the top down, as the page shows it."""
    density = np.exp(table - table.max())
    return _coloured(density[::-1] / max(np.quantile(density, 0.998), 1e-12))


def _maps(arrays: Arrays) -> list[Any]:
    """The density of every level as a picture, from the noisiest to the data."""
    return [_shades(table).repeat(4, 0).repeat(4, 1) for table in arrays["log_density"][::-1]]


def _forming(arrays: Arrays) -> list[Any]:
    """The landscape of every look, its levels side by side from the data on."""
    return [np.concatenate([_shades(table).repeat(3, 0).repeat(3, 1) for table in look], 1) for look in arrays["film"]]


def _score_maps(arrays: Arrays) -> Callable[[Path], object]:
    """The image, then where its score is large at some levels, each in its own scale."""
    image, maps = arrays["image"], arrays["maps"]
    tops = np.maximum(maps.max((1, 2), keepdims=True), 1e-12)
    return _grid(np.stack([np.broadcast_to(image, (*image.shape[:2], 3)), *_coloured(maps / tops)]), 1 + len(maps))


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

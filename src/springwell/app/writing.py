"""Drawing samples into files: a picture, numbers, a folder of images, the way from noise to sample.

.png        a grid of images; vectors as points
.npy .npz   numbers: images as uint8 [N, H, W, C], as tools for FID read them; vectors as float32 [N, D]; in an .npz the
            array is called ``samples``
a folder    000000.png, 000001.png, ...; an interrupted command goes on where it stopped
.gif        with ``trajectory``, which also knows .png (a row per sample, a column per level) and .npz (every level:
            ``trajectory`` [T + 1, N, ...] float32 and the ``levels`` T ... 0)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from springwell.app.plots import draw_points, figure_bytes, first_two, largest, new_figure, save_figure, vectors_figure
from springwell.data import pictures
from springwell.devices import gathered, rank_and_world, shared_rows
from springwell.errors import InterruptionError, UserError
from springwell.generate import Sample
from springwell.integrate import Integrator
from springwell.level import LevelSampler
from springwell.model import Model
from springwell.progress import Reporter
from springwell.schedule import spread_levels
from springwell.store.files import write_atomically
from springwell.store.parts import Results

KINDS = (".npy", ".npz", ".png", ".gif", "")
MAX_GRID = 10_000
MAX_ROWS = 100
COLUMNS = 12
FRAMES = 60


@dataclass(frozen=True)
class Drawing:
    """What to draw from a model.

    Attributes:
        model: The model.
        name: What it is called.
        reporter: Receives progress updates.
        num: How many samples; None for what suits the kind of file.
        seed: Sample i depends on (seed, i) alone.
        batch: Chains that run side by side; None for as many as fit.
        steps: MCMC steps per level, if not the run's own.
        noise_scale: Factor on the Langevin noise, if not the run's own.
        evaluations: Gradients per sample of an integrator, in place of draws level by level.
    """

    model: Model
    name: str
    reporter: Reporter
    num: int | None = None
    seed: int = 0
    batch: int | None = None
    steps: int | None = None
    noise_scale: float | None = None
    evaluations: int | None = None

    @property
    def sampler(self) -> LevelSampler | Integrator:
        """How levels are drawn."""
        if self.evaluations is not None:
            return Integrator(self.evaluations)
        return self.model.level_sampler(self.steps, self.noise_scale)

    def batches(self, num: int, start: int = 0, levels: dict[int, Tensor] | None = None) -> Iterator[tuple[int, Tensor]]:
        """Yields the index of each batch's first sample and the batch; fills ``levels`` (t -> ``[num, ...]``) on the way.

        Many processes draw a part of every batch each, and all of them get the whole, but for ``levels``.
        """
        if rank_and_world()[1] > 1:
            yield from self._shared_batches(num, start)
            return
        height, levels = self.model.schedule.num_levels + 1, levels or {}
        done, first = start * height, start

        def watch(first: int, sample: Sample) -> None:
            nonlocal done
            position = first * height + (height - sample.t) * len(sample.x)
            bar.advance(position - done)
            done = position
            if sample.t in levels:
                levels[sample.t][first : first + len(sample.x)] = sample.x.cpu()

        with self.reporter.bar("sampling (levels x samples)", num * height, done) as bar:
            for x in self.model.sample_batches(num, self.seed, self.batch, start, self.sampler, watch):
                yield first, x.cpu()
                first += len(x)

    def _shared_batches(self, num: int, start: int) -> Iterator[tuple[int, Tensor]]:
        model, world = self.model, rank_and_world()[1]
        wanted = self.batch or model.automatic_batch()
        batch = int(gathered(torch.tensor([wanted], device=model.device)).min())

        def draw(mine: int, stop: int) -> Tensor:
            return torch.cat(list(model.sample_batches(stop, self.seed, batch, mine, self.sampler)))

        empty = torch.zeros(batch, *model.event_shape, device=model.device)
        with self.reporter.bar(f"sampling by {world} processes (samples)", num, start) as bar:
            for first, x in shared_rows(start, num, batch, draw, empty):
                yield first, x
                bar.advance(len(x))


def write_samples(drawing: Drawing, out: Path) -> dict[str, Any]:
    """Draws samples into ``out``, whose suffix decides what is written; returns the number and shape of what there is."""
    images = len(drawing.model.event_shape) == 3
    num = drawing.num or (64 if images and out.suffix == ".png" else 1024)
    if out.suffix == ".gif":
        raise UserError(f"--out {out}: an animation shows the way from noise to sample; add --trajectory, or use .png")
    if out.suffix == "" and not images:
        raise UserError(f"--out {out}: a folder holds images, and this model draws vectors; use .npy, .npz or .png")
    if out.suffix == ".png" and images and num > MAX_GRID:
        raise UserError(f"--out {out}: a grid holds at most {MAX_GRID} images, not {num}; use .npz or a folder")
    if out.suffix == "":
        return _write_folder(drawing, num, out)
    x: Any = None
    for first, part in drawing.batches(num):
        values = pictures.to_bytes(part) if images else part.numpy()
        x = np.empty((num, *values.shape[1:]), values.dtype) if x is None else x
        x[first : first + len(values)] = values
    if rank_and_world()[0]:
        pass
    elif out.suffix == ".png" and images:
        pictures.save_png(pictures.grid(x), out)
    elif out.suffix == ".png":
        save_figure(vectors_figure(torch.from_numpy(x), f"{num} samples of {drawing.name}"), out)
    else:
        save_samples(x, out)
    return {"num": num, "shape": list(x.shape)}


def write_classes(drawings: Sequence[Drawing], out: Path) -> dict[str, Any]:
    """Draws as many samples of every class: rows of a picture, folders in a folder, or numbers in the order of classes."""
    model = drawings[0].model
    images, labels = len(model.event_shape) == 3, [drawing.model.label for drawing in drawings]
    if out.suffix == ".gif":
        raise UserError(f"--out {out}: an animation shows one class; use .png")
    if out.suffix == "":
        # Names of classes are whatever the data called them.
        safe = [re.sub(r"[^\w-]+", "_", label) for label in labels]
        folders = [write_samples(drawing, out / label) for drawing, label in zip(drawings, safe, strict=True)]
        return {"num": sum(folder["num"] for folder in folders), "classes": labels}
    num = drawings[0].num or (10 if images and out.suffix == ".png" else 1024)
    parts = [torch.cat([x for _, x in drawing.batches(num)]) for drawing in drawings]
    if rank_and_world()[0] == 0:
        x = np.concatenate([pictures.to_bytes(part) if images else part.numpy() for part in parts])
        if out.suffix == ".png" and images:
            pictures.save_png(pictures.grid(x, num), out)
        elif out.suffix == ".png":
            save_figure(_classes_figure(parts, labels), out)
        elif out.suffix == ".npz":
            save_arrays(out, {"samples": x, "labels": np.repeat(np.array(labels), num)})
        else:
            save_samples(x, out)
    return {"num": num * len(drawings), "classes": labels}


def _classes_figure(parts: Sequence[Tensor], labels: Sequence[str]) -> Any:
    figure, axes = new_figure(1, len(parts))
    for ax, x, label in zip(axes[0], parts, labels, strict=True):
        draw_points(ax, first_two(x), largest(*parts), label)
    return figure


def save_samples(x: np.ndarray, out: Path) -> None:
    """Writes an array to an .npy, or to an .npz under the name ``samples``."""
    if out.suffix == ".npz":
        save_arrays(out, {"samples": x})
    else:
        write_atomically(out, lambda file: np.save(file, x))


def save_arrays(out: Path, arrays: dict[str, Any]) -> None:
    """Writes an .npz."""
    write_atomically(out, lambda file: np.savez(file, **arrays))


def _write_folder(drawing: Drawing, num: int, out: Path) -> dict[str, Any]:
    main = rank_and_world()[0] == 0
    # The first process looks what is there, and the others wait for what it found.
    found = _begin_folder(drawing, num, out) if main else 0
    start = int(gathered(torch.tensor([found], device=drawing.model.device))[0])
    try:
        for first, part in drawing.batches(num, start):
            for i, image in enumerate(pictures.to_bytes(part) if main else (), first):
                pictures.save_png(image, out / f"{i:06d}.png")
    except KeyboardInterrupt:
        raise InterruptionError(f"interrupted; {out} keeps what there is: run the same command to resume") from None
    return {"num": num, "shape": [num, *drawing.model.event_shape], "found": start}


def _begin_folder(drawing: Drawing, num: int, out: Path) -> int:
    """Makes the folder, or checks that it holds samples of the same kind; returns how many there are already."""
    record = {"run": drawing.name, "iteration": drawing.model.iteration, "seed": drawing.seed}
    record["sampler"] = drawing.sampler.description()
    left = Results(out, "samples", record).begin({f"{i:06d}": "" for i in range(num)})
    start = int(left[0]) if left else num
    if start:
        drawing.reporter.say(f"{out}: holds the first {start} samples already")
    return start


def write_trajectory(drawing: Drawing, out: Path) -> dict[str, Any]:
    """Draws x_T ... x_0 of every sample into ``out``; the last is the sample itself, denoised if the model does that."""
    model, images = drawing.model, len(drawing.model.event_shape) == 3
    if rank_and_world()[1] > 1:
        raise UserError("--trajectory: is drawn by one process; run the command without torchrun or accelerate launch")
    if out.suffix not in (".png", ".gif", ".npz"):
        raise UserError(f"--out {out}: a trajectory is written as .png, .gif or .npz")
    num = drawing.num or (1024 if not images else 8 if out.suffix == ".png" else 64)
    if images and out.suffix == ".png" and num > MAX_ROWS:
        raise UserError(f"--num {num}: a picture of trajectories has at most {MAX_ROWS} rows; use .npz")
    shown = {".png": COLUMNS, ".gif": FRAMES, ".npz": model.schedule.num_levels + 1}[out.suffix]
    drawn = spread_levels(model.schedule.num_levels + 1, max(2, shown))[::-1]
    levels = {t: torch.empty(num, *model.event_shape) for t in drawn}
    for first, part in drawing.batches(num, levels=levels):
        levels[0][first : first + len(part)] = part
    if out.suffix == ".npz":
        path = torch.stack(list(levels.values())).numpy()
        save_arrays(out, {"trajectory": path, "levels": np.array(list(levels))})
    elif images and out.suffix == ".png":
        rows = torch.stack(list(levels.values()), 1).flatten(0, 1)
        pictures.save_png(pictures.grid(pictures.to_bytes(rows), len(levels)), out)
    elif images:
        pictures.save_gif([pictures.grid(pictures.to_bytes(x)) for x in levels.values()], out)
    elif out.suffix == ".png":
        figure, axes = new_figure(1, len(levels))
        for ax, (t, x) in zip(axes[0], levels.items(), strict=True):
            draw_points(ax, first_two(x), largest(*levels.values()), f"t = {t}")
        save_figure(figure, out)
    else:
        limit = largest(*levels.values())
        pictures.save_gif([figure_bytes(vectors_figure(x, f"t = {t}", limit)) for t, x in levels.items()], out)
    return {"num": num, "shape": [num, *model.event_shape], "levels": list(levels)}

"""What the experiments share: training (or reusing) a run, and writing a figure with its numbers beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from springwell.app.api import load, load_folder, train_run
from springwell.app.config import Config, with_fields
from springwell.app.plots import save_figure
from springwell.app.presets import preset
from springwell.devices import automatic_device
from springwell.errors import InterruptionError, UserError
from springwell.model import Model
from springwell.progress import Reporter
from springwell.store import zoo
from springwell.store.files import write_atomically, write_json
from springwell.store.run import Run


@dataclass(frozen=True)
class Study:
    """What to make, and how.

    Attributes:
        out: Where the figure and its runs go.
        seed: Of training and sampling.
        scale: Factor on the number of iterations or chains, and below 1 on that of samples.
        device: What ``--device`` says.
        reporter: Receives progress updates.
        data: What it is made on; None for the default.
        runs: Where to look for finished runs.
        before: Called with the config of every model before it is trained.
    """

    out: Path
    seed: int
    scale: float
    device: str
    reporter: Reporter
    data: str | None = None
    runs: Path = Path("runs")
    before: Callable[[Config], None] = lambda config: None

    def samples(self, num: int) -> int:
        """How many samples to draw of ``num`` where the scale is below 1, at least 64."""
        return max(64, round(min(1.0, self.scale) * num))

    def trained(self, config: Config, name: str) -> Model:
        """The model of ``config``, trained in the folder ``name`` below the figure's unless it is there already."""
        self.before(config)
        return trained(config, self.out / "runs" / name, self.device, self.reporter)


def coarse_ladder(data: str) -> Config:
    """The ladder of twelve levels with the paper's network, which for digits is the preset of that name."""
    base, ladder, network = preset("digits"), preset(data), preset(f"{data}-t6").network
    config = replace(ladder, schedule=base.schedule, sampler=base.sampler, network=network)
    head = {"output_scale": base.network.output_scale, "base_precision": base.network.base_precision}
    return with_fields(config, **head, lr=base.training.lr)


def scaled(config: Config, seed: int, scale: float) -> Config:
    """The same config with another seed and a multiple of its iterations."""
    iterations = max(1, round(scale * config.training.iterations))
    return with_fields(config, seed=seed, iterations=iterations, preview_every=0)


def trained(config: Config, folder: Path, device: str, reporter: Reporter) -> Model:
    """The model of ``config``, trained in ``folder`` unless it is there already."""
    result = train_run(config, folder, device, reporter)
    if result.status == "interrupted":
        raise InterruptionError(f"interrupted at iteration {result.iteration} of {folder}; run the same command to resume")
    return load(folder)


def resolved(device: str) -> str:
    """The device that ``--device`` means."""
    return automatic_device() if device == "auto" else device


def finished(study: Study, kinds: tuple[str, ...]) -> dict[str, Model]:
    """Models named by the data and one of the endings ``kinds``: finished runs below ``runs``, else those that ship."""
    data, runs, place = study.data or "digits", study.runs, resolved(study.device)
    found = {}
    for name in [data + kind for kind in kinds]:
        if Run(runs / name).finished:
            found[name] = load(runs / name, device=place)
        elif name in zoo.names():
            found[name] = load_folder(zoo.folder(name), device=place)
    if not found:
        raise UserError(f"--data {data}: there is no finished run {runs / (data + kinds[-1])}; train it, or use digits")
    return found


def write(out: Path, name: str, figure: Any, numbers: dict[str, Any], table: str = "") -> dict[str, Any]:
    """Writes NAME.png, NAME.json and, if there is a table, NAME.md; returns what the command prints."""
    paths = [save_figure(figure, out / f"{name}.png"), out / f"{name}.json"]
    write_json(paths[1], numbers)
    if table:
        paths.append(out / f"{name}.md")
        write_atomically(paths[2], table + "\n")
    return {"figure": str(paths[0]), "numbers": str(paths[1]), "table": table, "written": [str(p) for p in paths], **numbers}


def markdown(headings: list[str], rows: list[list[str]]) -> str:
    """A table with aligned columns."""
    widths = [max(len(row[i]) for row in [headings, *rows]) for i in range(len(headings))]
    padded = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in [headings, *rows])
    lines = [f"| {' | '.join(cells)} |" for cells in padded]
    return "\n".join([lines[0], f"|{'|'.join('-' * (width + 2) for width in widths)}|", *lines[1:]])

"""Bits per dimension of finished models, with their brackets, over several seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from springwell.experiments.common import finished, markdown, write
from springwell.likelihood.bracket import Work
from springwell.likelihood.measure import measure, settings_for, work_name
from springwell.plots import new_figure, ticks
from springwell.progress import Reporter

SEEDS = 3
TOLERANCE = 0.01
DENSITIES = 128
BURN = 200


def reproduce(
    out: Path,
    seed: int,
    scale: float,
    device: str,
    reporter: Reporter,
    data: str = "digits",
    runs: Path = Path("runs"),
) -> dict[str, Any]:
    models = finished(data, ("ladder", "t1k"), runs, device)
    densities, burn = max(4, round(scale * DENSITIES)), max(1, round(scale * BURN))
    rows: list[list[str]] = []
    numbers: dict[str, Any] = {"data": data, "densities": densities, "burn": burn, "runs": []}
    figure, axes = new_figure(1, 1, 3.6)
    ax = axes[0, 0]
    for name, model in models.items():
        for s in range(seed, seed + SEEDS):
            settings = settings_for(model, TOLERANCE, max(1, densities // 2), densities, s)
            reporter.say(f"{name}, seed {s}")
            work = Work(out / "runs" / f"bpd-{name}" / work_name(model, settings, burn), reporter=reporter)
            record = measure(model, settings, 10_000, burn=burn, work=work).record
            low, high = record["bits_per_dim_optimistic"], record["bits_per_dim_conservative"]
            middle, error = record["bits_per_dim"], record["bits_per_dim_standard_error_log_z"]
            numbers["runs"].append({"model": name, "seed": s, **record})
            cells = [f"{low:.3f}", f"{middle:.3f} +- {error:.3f}", f"{high:.3f}", record["verdict"]]
            rows.append([name, str(s), *cells, str(record["num_images"])])
            place = len(rows)
            first = place == 1
            ax.plot([place, place], [low, high], color="0.8", lw=2, zorder=0)
            ax.plot(place, low, "^", color="#20456e", ms=4, label="log Z from below" if first else None)
            ax.plot(place, high, "v", color="#7fa3c7", ms=4, label="log Z from above" if first else None)
            ax.errorbar(place, middle, error, fmt="o", color="#b5482a", ms=3, lw=1, label="Bennett" if first else None)
    ax.set(aspect="auto")
    labels = [f"{row[0].removeprefix(data + '-')}\nseed {row[1]}\n{row[5]}" for row in rows]
    ax.set_xticks(range(1, len(rows) + 1), labels, fontsize=6)
    ax.set_title("bits/dim, and the verdict on the bounds", fontsize=8)
    ax.legend(fontsize=6)
    ax.tick_params(axis="y", labelsize=7)
    ax.yaxis.set_major_locator(ticks(5))
    headings = ["model", "seed", "optimistic", "Bennett", "conservative", "verdict", "test images"]
    title = f"bits/dim of {data}; +- is the standard error of log Z alone"
    return write(out, "bpd", figure, numbers, f"{title}\n\n{markdown(headings, rows)}")

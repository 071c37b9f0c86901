"""Bits per dimension of finished models, with their brackets, over several seeds."""

from __future__ import annotations

from typing import Any

from springwell.app.build import measurable_data
from springwell.app.plots import new_charts
from springwell.evaluation.likelihood import Work, measure, settings_for, work_name
from springwell.likelihood.bits import to_bits
from springwell.paper.common import Study, finished, markdown, write
from springwell.store.parts import Parts

SEEDS = 3
TOLERANCE = 0.01
DENSITIES = 128
BURN = 200
# The pilot's own choice would differ between seeds, and with it how tight their bounds are.
LEAPFROG = 4
SHOWN = (
    ("lower", {"marker": "^", "color": "#20456e"}, "log Z from below"),
    ("bennett", {"marker": "o", "color": "#b5482a"}, "Bennett"),
    ("upper", {"marker": "v", "color": "#7fa3c7"}, "log Z from above"),
)


def reproduce(study: Study) -> dict[str, Any]:
    models = finished(study, ("", "-ladder", "-t1k"))
    densities, burn = max(4, round(study.scale * DENSITIES)), max(1, round(study.scale * BURN))
    data, rows = study.data or "digits", list[list[str]]()
    numbers: dict[str, Any] = {"data": data, "densities": densities, "burn": burn, "runs": []}
    figure, axes = new_charts(1, 1, 3.6)
    ax = axes[0, 0]
    for name, model in models.items():
        for s in range(study.seed, study.seed + SEEDS):
            counts = {"densities": max(1, densities // 2), "budget": densities, "seed": s, "num_leapfrog": LEAPFROG}
            settings = settings_for(model, TOLERANCE, **counts)
            study.reporter.say(f"{name}, seed {s}")
            data_of = measurable_data(model, study.reporter)
            parts = Parts(study.out / "runs" / f"bpd-{name}" / work_name(model, settings, burn))
            record = measure(model, data_of, settings, 10_000, burn=burn, work=Work(parts, study.reporter)).record
            numbers["runs"].append({"model": name, "seed": s, **record})
            place, cells = len(rows) + 1, []
            for bound, style, label in SHOWN:
                value = record["bits_per_dim"] + to_bits(record[f"log_z_{bound}"] - record["log_z"], record["dim"])
                error = to_bits(record[f"log_z_{bound}_standard_error"], record["dim"])
                cells.append(f"{value:.3f} +- {error:.3f}")
                ax.errorbar(place, value, error, ls="", ms=4, lw=1, label=label if place == 1 else None, **style)
            rows.append([name, str(s), *cells, record["verdict"], str(record["num_images"])])
    labels = [f"{row[0]}\nseed {row[1]}\n{row[5]}" for row in rows]
    ax.set_xticks(range(1, len(rows) + 1), labels, fontsize=6)
    ax.set(title="bits/dim, and the verdict on the bounds")
    ax.legend(fontsize=6)
    headings = ["model", "seed", "optimistic", "Bennett", "conservative", "verdict", "test images"]
    title = f"bits/dim of {data}; +- is the standard error of log Z alone"
    return write(study.out, "bpd", figure, numbers, f"{title}\n\n{markdown(headings, rows)}")

"""Figure 2 of the paper: densities learned by recovery likelihood and by marginal likelihood with short-run chains.

Both have the same network, the same data and the same number of gradient evaluations of it. The marginal model has one
level without spring and runs 30 Langevin steps from noise; short-run chains cannot reach equilibrium on it, so its samples
may look right while its landscape is not the log-density (Nijkamp et al. 2019). Its steps are 0.1,
or 0.05 where its training diverges with 0.1; its learning rate is the best of those tried on the checkerboard.
"""

from __future__ import annotations

from typing import Any

from springwell.app.config import Config, with_fields
from springwell.app.plots import data_log_density, draw_density, draw_points, level_log_density, new_figure
from springwell.app.presets import preset
from springwell.data.source import open_data
from springwell.evaluation.toy import evaluate
from springwell.paper.common import Study, scaled, write

# Each data set with the step size of its marginal chains.
DATA = {"checkerboard": 0.1, "rings": 0.05, "pinwheel": 0.05}
MARGINAL_STEPS = 30
MARGINAL_LR = 3e-4


def marginal(config: Config, step_size: float) -> Config:
    """The marginal counterpart of a recovery config, with the same number of gradient evaluations."""
    other = with_fields(
        config,
        objective="marginal",
        schedule="marginal",
        kernel="langevin",
        num_steps=MARGINAL_STEPS,
        sample_steps=MARGINAL_STEPS,
        start="noisy",
        jump_proposals=0,
        sample_jump_proposals=0,
        step_fraction=step_size,
    )
    budget = config.training.iterations * config.gradient_evaluations()
    iterations = round(budget / other.gradient_evaluations())
    return with_fields(other, iterations=iterations, lr=MARGINAL_LR)


def reproduce(study: Study) -> dict[str, Any]:
    seed, scale = study.seed, study.scale
    figure, axes = new_figure(len(DATA), 5, 2.0)
    numbers: dict[str, Any] = {"seed": seed, "scale": scale, "data": {}}
    for row, (name, step_size) in zip(axes, DATA.items(), strict=True):
        recovery = scaled(preset(name), seed, scale)
        configs = {"recovery": recovery, "marginal": marginal(recovery, step_size)}
        rows: dict[str, Any] = {}
        for column, (kind, config) in zip((1, 3), configs.items(), strict=True):
            model = study.trained(config, f"{name}-{kind}")
            result = evaluate(model, open_data(name), study.samples(2000), seed, study.reporter)
            evaluations = config.training.iterations * config.gradient_evaluations()
            rows[kind] = {"gradient_evaluations": evaluations, "iterations": config.training.iterations, **result}
            title = "recovery likelihood" if kind == "recovery" else "marginal, short-run"
            draw_density(row[column], level_log_density(model, 0), title=f"{title}\nKL {result['kl']:.3f} nats")
            draw_points(row[column + 1], model.sample(study.samples(4000), seed), title="its samples")
        a, sigma = float(model.schedule.a_cum[0]), float(model.schedule.sigma_cum[0])
        draw_density(row[0], data_log_density(name, a, sigma), title="exact density")
        row[0].set(ylabel=name.replace("_", " "))
        numbers["data"][name] = rows
        kl = {kind: rows[kind]["kl"] for kind in configs}
        study.reporter.say(
            f"{name}: KL {kl['recovery']:.4f} nats by recovery, {kl['marginal']:.4f} nats by marginal likelihood"
        )
    return write(study.out, "fig2", figure, numbers)

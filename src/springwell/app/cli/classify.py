"""springwell classify."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from springwell.app.cli import common as cli
from springwell.errors import UserError


@dataclass(frozen=True)
class ClassifyCommand(cli.Command):
    """Classify held-out data by class densities, and measure accuracy, calibration and robustness to noise."""

    run: cli.ModelName
    num: int = 1000
    """Number of held-out data points."""
    noise: tuple[float, ...] = (0.0,)
    """Standard deviations of the noise that is added to the data first. The result has one line for each."""
    level: cli.Number = None
    """Noise level whose densities classify the data. Default: 0 for vectors; for images, the level with a noise of a tenth of
    the norm that centred data have."""
    draws: int = 0
    """Number of times that the data are given the noise of that level; their log-densities are averaged. 0: the densities are
    taken at the data themselves."""
    doubt: cli.Number = None
    """List this many training rows with the most doubtful labels, instead of classifying held-out data."""
    limit: cli.Number = None
    """Number of training rows that --doubt looks at. Default: all."""


def classify_command(command: ClassifyCommand, context: cli.Context) -> dict[str, Any]:
    cli.at_least(("num", command.num, 1), ("draws", command.draws, 0), ("doubt", command.doubt, 1), ("limit", command.limit, 1))
    if any(noise < 0 for noise in command.noise):
        raise UserError(f"--noise {min(command.noise):g}: must be at least 0")
    from springwell.app.build import build_labels, config_of, open_model_data
    from springwell.evaluation.classifier import classified

    model = cli.load_model(command.run, context)
    if not model.classes:
        raise UserError(f"{command.run}: knows no classes; use a model that was trained with --classes all")
    data = open_model_data(model, reporter=context.reporter)
    labels = build_labels(config_of(model), data)
    if command.doubt is not None:
        return _doubt(command, context, model, data)
    rows = []
    for noise in command.noise:
        found = classified(model, labels, command.num, noise, command.level, command.draws)
        rows.append(found)
        accuracy = f"{100 * found['accuracy']:.2f} +- {100 * found['accuracy_standard_error']:.2f} %"
        context.tell(
            f"noise {noise:g}: accuracy {accuracy}, nll {found['nll']:.3f} nats, ece {found['ece']:.3f} ({found['num']})"
        )
    return {"run": command.run, "classes": list(model.classes), "measures": rows}


def _doubt(command: ClassifyCommand, context: cli.Context, model: Any, data: Any) -> dict[str, Any]:
    import torch

    from springwell.data.images import scaled
    from springwell.evaluation.classifier import suspects

    known = data.labels().train
    if data.rows is None or known is None:
        raise UserError(
            "--doubt: lists training images, and this model's data are no labelled images; use model.classify in Python"
        )
    num = min(command.limit or len(known), len(known))
    x, label = scaled(torch.from_numpy(data.rows[:num])), torch.from_numpy(known[:num])
    log_prob = model.classify(x, level=command.level, draws=command.draws).cpu()
    order = suspects(log_prob, label)[: command.doubt]
    found = []
    for row in order:
        c, guess = int(label[row]), int(log_prob[row].argmax())
        found.append(
            {"row": int(row), "label": model.classes[c], "log_prob": float(log_prob[row, c]), "likely": model.classes[guess]}
        )
        one = found[-1]
        context.tell(f"row {one['row']}: label {one['label']}, log p {one['log_prob']:.2f} nats, likely {one['likely']}")
    return {"run": command.run, "rows": num, "doubted": found}

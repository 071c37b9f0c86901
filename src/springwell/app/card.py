"""The card of a model, README.md: what it is, the command that trained it, what was measured, under which licence."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from springwell.app.build import config_of
from springwell.app.cli.evaluate import calibration_lines, drawn_how
from springwell.app.cli.likelihood import likelihood_lines
from springwell.app.config import Config, difference
from springwell.app.presets import PRESETS, TABLE
from springwell.evaluation.metrics import metric_lines
from springwell.model import Model
from springwell.store import zoo
from springwell.store.files import write_atomically

DATA_NOTES = {
    "digits": "Optical Recognition of Handwritten Digits (Alpaydin and Kaynak, UCI repository, CC BY 4.0)",
    "mnist": "MNIST (LeCun, Cortes and Burges, CC BY-SA 3.0)",
    "fashion-mnist": "Fashion-MNIST (Xiao, Rasul and Vollgraf, Zalando SE, MIT)",
    "cifar10": "CIFAR-10 (Krizhevsky, Nair and Hinton)",
}
_UNITS = {"nll": "nats", "kl": "nats", "entropy": "nats", "f_gap": "nats", "f_gap_standard_error": "nats"}
_LEFT_OUT = {"data", "iteration"}


def training_command(config: Config) -> str:
    """The command that trains a config: the nearest preset, and what differs from it."""
    name = min(PRESETS, key=lambda name: len(difference(config, PRESETS[name])))
    words = ["springwell train", name]
    for option, value, _ in difference(config, PRESETS[name]):
        flag = option.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            values = value if isinstance(value, list) else [value]
            words.append(f"--{flag} {shlex.join(map(str, values))}")
    return " ".join(words)


def training_commands(config: Config) -> list[str]:
    """The commands that train a config one after another: first what its preset begins with, if anything."""
    command = training_command(config)
    row = TABLE.get(command.split()[2])
    first = row.begins_with if row else ""
    if not first:
        return [command]
    if first in zoo.names():
        return [f"{command} --init-from {first}"]
    return [*training_commands(PRESETS[first]), f"{command} --init-from runs/{first}"]


def card(
    model: Model,
    name: str | None = None,
    evaluation: dict[str, Any] | None = None,
    likelihood: dict[str, Any] | None = None,
    notes: str = "",
) -> str:
    """The card's text.

    Args:
        model: The model.
        name: What it is called among the models that ship; None for a user's own model.
        evaluation: What ``springwell evaluate`` measured.
        likelihood: What ``springwell likelihood`` measured.
        notes: What was found and tried, in Markdown.
    """
    from huggingface_hub import ModelCard, ModelCardData

    lines = [*_introduction(model, name), *_measured(evaluation or {})]
    if likelihood:
        lines += ["", "By `springwell likelihood`:", "", "```", *likelihood_lines(likelihood), "```"]
    if notes:
        lines += ["", notes.strip()]
    if (data := DATA_NOTES.get(config_of(model).data)) and data not in notes:
        lines += ["", f"Trained on {data}."]
    tags = ["energy-based-model", "diffusion-recovery-likelihood"]
    header = ModelCardData(library_name="springwell", license="mit", tags=tags)
    text = "\n".join(lines)
    return str(ModelCard(f"---\n{header.to_yaml()}\n---\n\n{text}\n"))


def _introduction(model: Model, name: str | None) -> list[str]:
    """What the model is, how it is loaded and how it was trained."""
    config = config_of(model)
    parameters = sum(tensor.numel() for name, tensor in model.tensors().items() if name.startswith("energy."))
    sampler = config.sampler
    chains = f"K = {sampler.num_steps} steps of {sampler.kernel}" if sampler.num_steps else "no chains (K = 0)"
    return [
        f"# {name or f'A springwell model of {config.data}'}",
        "",
        f"An energy-based model of `{config.data}` (shape {list(model.event_shape)}) by diffusion recovery likelihood: "
        f"T = {model.schedule.num_levels} levels, {parameters:,} parameters, {model.iteration:,} iterations of batch "
        f"{config.training.batch}, objective {config.objective.objective}, {chains}.",
        "",
        "```python",
        "import springwell as sw",
        "",
        f'model = sw.load("{name}")' if name else 'model = sw.load("OWNER/NAME")  # or the folder that holds it',
        "x = model.sample(64, seed=0)",
        "```",
        "",
        "Trained by",
        "",
        "```sh",
        *training_commands(config),
        "```",
    ]


def _measured(evaluation: dict[str, Any]) -> list[str]:
    """What ``springwell evaluate`` measured."""
    if not evaluation:
        return []
    lines = ["", f"Measured by `springwell evaluate`, {evaluation['num_samples']} samples:", "", "| | |", "|---|---|"]
    for key, value in evaluation.items():
        if key not in _LEFT_OUT and isinstance(value, (int, float)):
            number = f"{value:.4g}" if isinstance(value, float) else str(value)
            lines.append(f"| {key} | {number} {_UNITS[key]} |" if key in _UNITS else f"| {key} | {number} |")
    if quality := evaluation.get("quality"):
        found = [line for line in metric_lines(quality) if "not computed" not in line]
        how = f"seed {quality['seed']}{drawn_how(quality)}"
        lines += ["", f"By Inception, against {quality['reference']}, {how}:", "", "```", *found, "```"]
    if "calibration" in evaluation:
        lines += [
            "",
            "Calibration of the scores, and chains without springs:",
            "",
            "```",
            *calibration_lines(evaluation),
            "```",
        ]
    return lines


def write_card(model: Model, folder: Path) -> None:
    """Writes the card into ``folder`` unless there is one."""
    path = folder / "README.md"
    if not path.exists():
        write_atomically(path, card(model))

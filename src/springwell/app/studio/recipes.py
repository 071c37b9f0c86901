"""The command and the Python lines that make what the page shows again."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from springwell.app.config import Config

Recipe = dict[str, str]


def _recipe(command: list[Any], *lines: str) -> Recipe:
    return {"command": shlex.join(map(str, command)) if command else "", "python": "\n".join(lines)}


def _load(name: str, values: dict[str, Any] | None = None) -> str:
    """The line that loads a model, or of it the model of one class."""
    label, guidance = (values or {}).get("label"), (values or {}).get("guidance")
    given = f".given({label!r}, guidance={float(guidance)!r})" if label is not None and guidance is not None else ""
    return f"model = sw.load({name!r}){given}"


def _class(values: dict[str, Any]) -> list[Any]:
    """The options of a command that name a class."""
    label = values.get("label")
    return [] if label is None else ["--label", label, "--guidance", repr(float(values["guidance"]))]


# The page replaces it by the number of steps that it shows, which grows all the time.
STEPS = "STEPS"
# Test images that a score is ranked among.
REFERENCE = 256


def levels(name: str, values: dict[str, Any]) -> Recipe:
    """The densities and scores of all levels, as in levels.npz."""
    return _recipe(
        ["springwell", "levels", name, *_class(values), "--out", "levels.npz"],
        "import springwell as sw",
        "from springwell.evaluation.plane import landscape",
        "",
        _load(name, values),
        'found = landscape(model)  # {"log_density": [T, 96, 96], "score": [T, 16, 16, 2], "x", "y", "level"}',
    )


def walk(name: str, values: dict[str, Any], start: str, out: str) -> Recipe:
    """Chains from the positions in a file that is among the downloads, since step ``since``."""
    kernel, step_size, seed, since = (values[key] for key in ("kernel", "step_size", "seed", "since"))
    leapfrog, level, spring = values["num_leapfrog"], values.get("level", 0), values.get("spring", False)
    end = (float(values["end_x"]), float(values["end_y"])) if spring else None
    how = ["--steps", STEPS, "--step-size", repr(float(step_size)), "--kernel", kernel, "--level", level]
    how += ["--num-leapfrog", leapfrog] if kernel == "hmc" else []
    how += ["--spring", *map(repr, end)] if end else []
    plane = start.endswith(".csv")
    table = f'np.loadtxt("{start}", np.float32, delimiter=",", skiprows=1, ndmin=2)'
    made = f"sw.samplers.{kernel}({leapfrog if kernel == 'hmc' else ''})"
    held = f", end={end}" if end else ""
    return _recipe(
        ["springwell", "walk", name, start, *how, *_class(values), "--seed", seed, "--first", since, "--out", out],
        "import numpy as np",
        "import springwell as sw",
        "import torch",
        "from springwell.evaluation.walk import Walk",
        "",
        _load(name, values),
        f"x = torch.from_numpy({table if plane else f'np.load({start!r})'})",
        f"walk = Walk(model, {made}, step_size={float(step_size)!r}, level={level}{held}, seed={seed})",
        f"for x, info in walk.steps(x, num_steps={STEPS}, first={since}):",
        "    pass  # x: where the chains are; info.acceptance" if plane else "    f = model.level_f(model.standardised(x))",
    )


def train(config: Config, out: Path) -> Recipe:
    """Training on drawn points."""
    from springwell.app.card import training_command
    from springwell.app.config import difference
    from springwell.app.presets import recipe_for

    fields = {name: value for name, value, _ in difference(config, recipe_for((2,))) if name != "data"}
    listed = ", ".join(f"{name}={value!r}" for name, value in fields.items())
    return {
        "command": f"{training_command(config)} --out {shlex.quote(str(out))}",
        "python": "\n".join(
            [
                "import numpy as np",
                "import springwell as sw",
                "",
                f"points = np.load({config.data.removeprefix('npy:')!r})",
                f"model = sw.train(data=points, {listed})",
            ]
        ),
    }


def run(config: Config) -> Recipe:
    """Training of a run: first what its preset begins with, if anything."""
    from springwell.app.card import training_commands
    from springwell.app.config import difference
    from springwell.app.presets import PRESETS, TABLE

    commands, lines = training_commands(config), ["import springwell as sw", ""]
    names = [command.split()[2] for command in commands]
    steps = [*(PRESETS[name] for name in names[:-1]), config]
    row = TABLE.get(names[0])
    begun = f", init_from={row.begins_with!r}" if row and row.begins_with else ""
    for name, step in zip(names, steps, strict=True):
        fields = "".join(f", {field}={value!r}" for field, value, _ in difference(step, PRESETS[name]))
        lines.append(f"model = sw.train({name!r}{fields}{begun})")
        begun = ", init_from=model"
    return {"command": "\n".join(commands), "python": "\n".join(lines)}


def sample(name: str, values: dict[str, Any], evaluations: int | None = None) -> Recipe:
    """Samples of a model, with as many gradients each as an integrator takes, if one does."""
    num, seed = values["num"], values["seed"]
    option, argument = ([], "") if evaluations is None else (["--evaluations", evaluations], f", evaluations={evaluations}")
    return _recipe(
        ["springwell", "sample", name, *_class(values), "--num", num, "--seed", seed, *option, "--out", "samples.png"],
        "import springwell as sw",
        "",
        _load(name, values),
        f"x = model.sample({num}, seed={seed}{argument})  # in [-1, 1], [{num}, C, H, W]",
    )


_IMAGE = (
    'pixels = torch.from_numpy(np.array(Image.open("image.png"))).reshape(1, *model.event_shape[1:], -1).permute(0, 3, 1, 2)',
    "x = pixels / 127.5 - 1",
)
_IMPORTS = ("import numpy as np", "import springwell as sw", "import torch", "from PIL import Image")


def inpaint(name: str, values: dict[str, Any]) -> Recipe:
    """What is hidden, filled in; image.png and mask.png are among the downloads."""
    num, seed, sweeps = (values[key] for key in ("num", "seed", "sweeps"))
    how = [*_class(values), "--num", num, "--seed", seed, "--sweeps", sweeps]
    return _recipe(
        ["springwell", "inpaint", name, "image.png", "--mask", "mask.png", *how],
        *_IMPORTS,
        "from springwell.applications import Draws, inpaint",
        "",
        _load(name, values),
        *_IMAGE,
        'hidden = torch.from_numpy(np.array(Image.open("mask.png")) > 127).expand(model.event_shape)',
        f"filled = inpaint(model, x, hidden, Draws(num={num}, seed={seed}, sweeps={sweeps}))[0]",
    )


def interpolate(name: str, values: dict[str, Any]) -> Recipe:
    """Samples between samples."""
    seeds, num = values["seeds"], values["num"]
    how = ["--seeds", *seeds, "--num", num, *(["--manifold"] if len(seeds) == 4 else []), *_class(values)]
    return _recipe(
        ["springwell", "interpolate", name, *how, "--out", "interpolation.png"],
        "import springwell as sw",
        "from springwell.applications import interpolate",
        "",
        _load(name, values),
        f"x = interpolate(model, {seeds}, num={num})",
    )


def restore(name: str, words: list[str], values: dict[str, Any]) -> Recipe:
    """An image that is measured, with the operator that ``words`` name, and restored; image.png is among the downloads."""
    task, noise, num, seed, sweeps = (values[key] for key in ("task", "noise", "num", "seed", "sweeps"))
    operators = {
        "denoise": "operator = lambda x: x",
        "superres": f"operator = operators.average_pool({words[-1] if words else ''})",
        "deblur": f"operator = operators.named_blur({words[-1] if words else ''!r}, max(model.event_shape[1:]))",
    }
    how = [*_class(values), "--noise", f"{noise:g}", "--num", num, "--seed", seed, "--sweeps", sweeps, "--simulate"]
    return _recipe(
        ["springwell", "restore", name, "image.png", "--task", task, *words, *how],
        *_IMPORTS,
        "from springwell.applications import Draws, operators, restore",
        "from springwell.noise import Noise, Stream",
        "",
        _load(name, values),
        *_IMAGE,
        operators[task],
        f"eps = Noise({seed}, torch.zeros(1, dtype=torch.long), Stream.MEASUREMENT).normal(*operator(x).shape[1:])",
        f"observed = operator(x) + {noise:g} * eps",
        f"draws = Draws(num={num}, seed={seed}, sweeps={sweeps})",
        f"samples, mean, std = restore(model, observed, operator, {noise:g}, draws)",
    )


def score(name: str, values: dict[str, Any], cell: float, ranked: bool, classes: bool, levels: list[int]) -> Recipe:
    """The density of an image, in image.npz for the command; then its rank among test images, its class, its score by pixel."""
    seed = values["seed"]
    rank = [
        "config = config_of(model)",
        'test = open_source(f"{config.data}@test", None, config.images, fewest=1)',
        f"parts = scaled(test.rows(0, min({REFERENCE}, test.num))).split(32)",
        "known = torch.cat([score(model, part, cell).score for part in parts])",
        "percentile = 100 * float((known < found.score).double().mean())",
    ]
    return _recipe(
        ["springwell", "score", name, "image.npz", *_class(values), "--seed", seed, "--out", "scores"],
        *_IMPORTS,
        "from springwell.app.build import config_of",
        "from springwell.data.images import scaled",
        "from springwell.evaluation.scores import score",
        "from springwell.evaluation.sources import open_source",
        "",
        _load(name, values),
        *_IMAGE,
        f"cell = {cell!r}",
        f"found = score(model, x, cell, seed={seed})",
        *(rank if ranked else []),
        *(["classes = model.classify(x)[0].exp()  # where every class is as frequent as the others"] if classes else []),
        "def score_map(t):",
        "    a, sigma = float(model.schedule.a_cum[t]), float(model.schedule.sigma_cum[t]) or 1.0",
        "    return sigma * model.score(a * x, t)[0].square().sum(0).sqrt()",
        f"maps = [score_map(t) for t in {levels}]",
    )

"""The command and the Python lines that make what the page shows again."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from springwell.app.config import Config
    from springwell.app.studio.options import Options

Recipe = dict[str, str]


def _recipe(command: list[Any], *lines: str) -> Recipe:
    return {"command": shlex.join(map(str, command)) if command else "", "python": "\n".join(lines)}


def _load(name: str) -> str:
    return f"model = sw.load({name!r})"


_CHAINS = (
    "import numpy as np",
    "import springwell as sw",
    "import torch",
    "from springwell.energy.base import at_level",
    "from springwell.noise import Stream",
    "",
)


def _kernel(values: dict[str, Any]) -> str:
    """The kernel that a page chose."""
    return f"sw.samplers.hmc({values['num_leapfrog']})" if values["kernel"] == "hmc" else f"sw.samplers.{values['kernel']}()"


def levels(name: str, extent: list[float], cells: int) -> Recipe:
    """The densities of all levels on a grid."""
    left, right, bottom, top = (round(edge, 6) for edge in extent)
    return _recipe(
        ["springwell", "evaluate", name],
        "import springwell as sw",
        "import torch",
        "",
        _load(name),
        f"x = torch.linspace({left}, {right}, {cells + 1})[1:] - {(right - left) / cells / 2:.6g}",
        f"y = torch.linspace({bottom}, {top}, {cells + 1})[1:] - {(top - bottom) / cells / 2:.6g}",
        "grid = torch.cartesian_prod(y, x).flip(1)",
        "log_density = [-model.energy(grid, t) for t in range(model.schedule.num_levels)]  # each up to a constant",
        "score = [model.score(grid, t) for t in range(model.schedule.num_levels)]",
    )


def chains(name: str, options: Options, num_steps: int) -> Recipe:
    """Steps of chains from the positions in particles.csv, which is among the downloads; no command draws them."""
    values = options.values
    level = values["level"]
    well = "target = at_level(model.energy_function, t)"
    spring = [
        f"end = torch.tensor([[{values.get('end_x', 0.0):.6g}, {values.get('end_y', 0.0):.6g}]])",
        "x_next = (scale * model.standardised(end)).expand_as(y).contiguous()",
        "target = sw.Conditional(model.energy_function, model.schedule, t, x_next)",
    ]
    noise = f"model.noise({values['seed']}, torch.arange(len(x)), Stream.LONGRUN_FREE + {values['first']})"
    return _recipe(
        [],
        *_CHAINS,
        _load(name),
        'x = torch.from_numpy(np.loadtxt("particles.csv", delimiter=",", skiprows=1, dtype=np.float32, ndmin=2))',
        f"t, scale = torch.full((len(x),), {level}), float(model.schedule.scale[{level}])",
        "y = scale * model.standardised(x)",
        *(spring if values.get("spring") else [well]),
        f"step_size = {values['step_size']:.6g} * scale / float(model.scale.mean())",
        f"y, acceptance = sw.samplers.run_chain({_kernel(values)}, y, target, step_size, {num_steps}, {noise})",
        "x = model.shift + model.scale * y / scale",
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


def sample(name: str, num: int, seed: int) -> Recipe:
    """Samples of a model."""
    return _recipe(
        ["springwell", "sample", name, "--num", num, "--seed", seed, "--out", "samples.png"],
        "import springwell as sw",
        "",
        _load(name),
        f"x = model.sample({num}, seed={seed})  # in [-1, 1], [{num}, C, H, W]",
    )


_IMAGE = (
    'pixels = torch.from_numpy(np.array(Image.open("image.png"))).reshape(1, *model.event_shape[1:], -1).permute(0, 3, 1, 2)',
    "x = pixels / 127.5 - 1",
)
_IMPORTS = ("import numpy as np", "import springwell as sw", "import torch", "from PIL import Image")


def inpaint(name: str, num: int, seed: int, sweeps: int) -> Recipe:
    """What is hidden, filled in; image.png and mask.png are among the downloads."""
    how = ["--num", num, "--seed", seed, "--sweeps", sweeps]
    return _recipe(
        ["springwell", "inpaint", name, "image.png", "--mask", "mask.png", *how],
        *_IMPORTS,
        "from springwell.applications import inpaint",
        "",
        _load(name),
        *_IMAGE,
        'hidden = torch.from_numpy(np.array(Image.open("mask.png")) > 127).expand(model.event_shape)',
        f"filled = inpaint(model, x, hidden, num={num}, seed={seed}, sweeps={sweeps})[0]",
    )


def interpolate(name: str, seeds: list[int], num: int) -> Recipe:
    """Samples between samples."""
    surface = ["--manifold"] if len(seeds) == 4 else []
    return _recipe(
        ["springwell", "interpolate", name, "--seeds", *seeds, "--num", num, *surface, "--out", "interpolation.png"],
        "import springwell as sw",
        "from springwell.applications import interpolate",
        "",
        _load(name),
        f"x = interpolate(model, {seeds}, num={num})",
    )


def restore(name: str, task: str, words: list[str], noise: float, num: int, seed: int, sweeps: int) -> Recipe:
    """An image that is measured and restored; image.png is among the downloads. Its seven arguments are those of the job."""
    operators = {
        "denoise": "operator = lambda x: x",
        "superres": f"operator = operators.average_pool({words[-1] if words else ''})",
        "deblur": f"operator = operators.named_blur({words[-1] if words else ''!r}, max(model.event_shape[1:]))",
    }
    how = ["--noise", f"{noise:g}", "--num", num, "--seed", seed, "--sweeps", sweeps, "--simulate"]
    return _recipe(
        ["springwell", "restore", name, "image.png", "--task", task, *words, *how],
        *_IMPORTS,
        "from springwell.applications import operators, restore",
        "from springwell.noise import Noise, Stream",
        "",
        _load(name),
        *_IMAGE,
        operators[task],
        f"eps = Noise({seed}, torch.zeros(1, dtype=torch.long), Stream.MEASUREMENT).normal(*operator(x).shape[1:])",
        f"observed = operator(x) + {noise:g} * eps",
        f"samples, mean, std = restore(model, observed, operator, {noise:g}, num={num}, seed={seed}, sweeps={sweeps})",
    )


def score(name: str, cell: float, seed: int) -> Recipe:
    """The density of an image; image.png is among the downloads."""
    return _recipe(
        ["springwell", "score", name, "image.png", "--seed", seed],
        *_IMPORTS,
        "from springwell.evaluation.scores import score",
        "",
        _load(name),
        *_IMAGE,
        f"found = score(model, x, cell={cell!r}, seed={seed})",
        "gradient = model.score(x, level=0)",
    )


def walk(name: str, options: Options, num: int) -> Recipe:
    """Chains at level 0 without springs; they begin at sample.npz, which is among the downloads of the samples."""
    values = options.values
    kernel, seed = values["kernel"], values["seed"]
    command = ["springwell", "longrun", name, "--num", num] + (["--kernel", kernel] if kernel != "langevin" else [])
    return _recipe(
        command,
        *_CHAINS,
        _load(name),
        f'x = torch.from_numpy(np.load("sample.npz")["samples"][:{num}]).permute(0, 3, 1, 2) / 127.5 - 1',
        "scale = float(model.schedule.scale[0])",
        "y = scale * model.standardised(x)",
        f"target = at_level(model.energy_function, torch.zeros({num}, dtype=torch.long))",
        f"noise = model.noise({seed}, torch.arange({num}), Stream.LONGRUN_FREE + {values['first']})",
        f"kernel, step_size = {_kernel(values)}, {values['step_size']:.6g}",
        f"y, acceptance = sw.samplers.run_chain(kernel, y, target, step_size, {values['steps']}, noise)",
    )

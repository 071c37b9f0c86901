"""The authors' released weights as a springwell model.

Their code (github.com/ruiqigao/recovery_likelihood) saves TensorFlow object checkpoints: a variable is named by the attributes
that lead to it, ``model_ema/net/res_levels/1/0/conv2d_2/conv/layer/b/.ATTRIBUTES/VARIABLE_VALUE``. A layer with spectral norm
keeps its raw weight in ``w``; ``layer/W`` beside it, where a version of TensorFlow saves it, is the normalised one of the
last call and is left out. Only reading the file needs TensorFlow.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from springwell.app.api import save
from springwell.app.build import build_energy, build_samplers, build_schedule
from springwell.app.config import to_dict, with_fields
from springwell.app.presets import preset
from springwell.energy import EnergyResNet
from springwell.errors import UserError
from springwell.model import Model

PRESETS_BY_LEVELS = {4: "cifar10-t6", 5: "celeba-t6", 6: "lsun-church128-t6"}
ITERATION = "i_iter_var/.ATTRIBUTES/VARIABLE_VALUE"
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
_PATH = re.compile(
    r"(?:(?P<outer>conv2d_in|temb_dense_[012])|res_levels/(?P<level>\d+)/(?P<block>\d+)/(?P<inner>conv2d_1|conv2d_2|conv2d_shortcut|dense))"
    r"/(?:conv|dense)/(?P<layer>layer/)?(?P<kind>w|W|b|g|u|sn_u)"
)
_OUTER = {
    "conv2d_in": "conv_in",
    "temb_dense_0": "temb.dense0",
    "temb_dense_1": "temb.dense1",
    "temb_dense_2": "temb.dense_final",
}
_INNER = {"conv2d_1": "conv1", "conv2d_2": "conv2", "conv2d_shortcut": "shortcut", "dense": "temb_proj"}
_KINDS = {"w": "W", "W": "W", "b": "b", "g": "g", "u": "sn_u", "sn_u": "sn_u"}


def official_names(names: Iterable[str]) -> dict[str, str]:
    """Our names of the authors' variables, as :meth:`EnergyResNet.from_official` takes them, each with theirs.

    The moving average is taken where there is one.
    """
    variables = [name for name in names if name.endswith(_VALUE) and ".OPTIMIZER_SLOT" not in name]
    for root in ("model_ema/net/", "model/net/"):
        if found := sorted(name for name in variables if name.startswith(root)):
            break
    else:
        raise UserError("not a checkpoint of the authors' code: no variable is named model/net/... or model_ema/net/...")
    mapped: dict[str, str] = {}
    for name in found:
        match = _PATH.fullmatch(name.removeprefix(root).removesuffix(_VALUE))
        if match is None:
            raise UserError(f"'{name}': not a variable of the network of the paper; other variants cannot be converted")
        ours = _OUTER.get(match["outer"]) or f"level{match['level']}.block{match['block']}.{_INNER[match['inner']]}"
        normalised = match["layer"] and match["kind"] == "W" and f"{name.removesuffix(f'layer/W{_VALUE}')}w{_VALUE}" in found
        if not normalised:
            mapped[f"{ours}.{_KINDS[match['kind']]}"] = name
    return mapped


def official_model(arrays: dict[str, Any], iteration: int = 0, name: str | None = None) -> Model:
    """The model of weights under the names of :func:`official_names`.

    Args:
        arrays: The weights.
        iteration: How long they were trained.
        name: The preset they were trained with. Default: the paper's for a network of as many levels.
    """
    network = EnergyResNet.from_official(arrays)
    levels = len(network.levels)
    if name is None and levels not in PRESETS_BY_LEVELS:
        raise UserError(f"a network of {levels} levels: none of the paper's; name the preset it was trained with by --preset")
    base = preset(name or PRESETS_BY_LEVELS[levels])
    blocks: list[list[Any]] = [list(level) for level in network.levels]  # type: ignore[call-overload]
    multipliers = tuple(level[0].conv1.weight.shape[0] // network.width for level in blocks)
    config = with_fields(base, width=network.width, multipliers=multipliers, num_blocks=len(blocks[0]))
    shape = (arrays["conv_in.W"].shape[2], *[config.images.image_size or 32] * 2)
    schedule = build_schedule(config)
    energy = build_energy(config, schedule, shape)
    energy.load_state_dict({f"network.{name}": tensor for name, tensor in network.state_dict().items()})
    _, generation = build_samplers(config, schedule)
    model = Model(energy, schedule, generation, event_shape=shape, denoise=config.sampler.denoise)
    model.iteration, model.metadata = iteration, {"name": config.data, "config": to_dict(config)}
    return model


def convert(checkpoint: Path, out: Path, name: str | None = None) -> Model:
    """Reads a checkpoint of the authors' code and writes ``out`` as a model folder.

    Args:
        checkpoint: Its path without ``.index``.
        out: A new folder.
        name: The preset it was trained with, if it does not follow from the number of levels.
    """
    if out.exists() and any(out.iterdir()):
        raise UserError(f"{out}: exists and is not empty; choose another folder")
    try:
        import tensorflow as tf
    except ImportError:
        raise UserError("convert-official: tensorflow is not installed; pip install 'springwell[convert]'") from None
    path = str(checkpoint).removesuffix(".index")
    try:
        reader = tf.train.load_checkpoint(path)
        names = reader.get_variable_to_shape_map()
    except Exception as error:
        raise UserError(f"{checkpoint}: not a TensorFlow checkpoint ({str(error).splitlines()[0]})") from None
    try:
        mapped = official_names(names)
    except UserError as error:
        raise UserError(f"{checkpoint}: {error}") from None
    iteration = int(reader.get_tensor(ITERATION)) if ITERATION in names else 0
    model = official_model({ours: reader.get_tensor(theirs) for ours, theirs in mapped.items()}, iteration, name)
    save(model, out)
    return model

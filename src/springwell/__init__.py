"""Springwell: train, sample and measure energy-based models by diffusion recovery likelihood.

import springwell as sw

model = sw.train("checkerboard")                            # a preset by name
model = sw.train(data=x, network=MyEnergy())                # your own array and your own nn.Module
x = model.sample(1000, seed=0)
log_p = model.log_prob(x)
"""

from __future__ import annotations

__version__ = "0.2.0"

# As typing has it. Importing that takes long enough to be interrupted, before the command line can say a word.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from springwell import likelihood as likelihood, objectives as objectives, samplers as samplers
    from springwell.app.api import load as load, push_to_hub as push_to_hub, save as save, train as train
    from springwell.app.config import Config as Config
    from springwell.app.presets import PRESETS as PRESETS, preset as preset
    from springwell.conditional import Conditional as Conditional
    from springwell.data.source import open_data as open_data
    from springwell.data.toy import toy_data as toy_data
    from springwell.errors import (
        DivergenceError as DivergenceError,
        InterruptionError as InterruptionError,
        UserError as UserError,
    )
    from springwell.integrate import Integrator as Integrator
    from springwell.level import LevelSampler as LevelSampler
    from springwell.model import LogZ as LogZ, Model as Model
    from springwell.noise import Noise as Noise
    from springwell.objectives import DSM as DSM, Marginal as Marginal, Recovery as Recovery
    from springwell.progress import Silent as Silent
    from springwell.schedule import NoiseSchedule as NoiseSchedule

_NAMES = {
    "app.api": ("load", "push_to_hub", "save", "train"),
    "app.config": ("Config",),
    "app.presets": ("PRESETS", "preset"),
    "conditional": ("Conditional",),
    "data.source": ("open_data",),
    "data.toy": ("toy_data",),
    "errors": ("DivergenceError", "InterruptionError", "UserError"),
    "integrate": ("Integrator",),
    "level": ("LevelSampler",),
    "model": ("LogZ", "Model"),
    "noise": ("Noise",),
    "objectives": ("DSM", "Marginal", "Recovery"),
    "progress": ("Silent",),
    "schedule": ("NoiseSchedule",),
}
_WHERE = {name: module for module, names in _NAMES.items() for name in names}
_MODULES = ("likelihood", "objectives", "samplers")

__all__ = [*_WHERE, *_MODULES, "__version__"]


def __getattr__(name: str) -> Any:
    # Names are imported when they are used, because torch alone takes seconds to load.
    from importlib import import_module

    if name in _MODULES:
        return import_module(f"springwell.{name}")
    if name not in _WHERE:
        raise AttributeError(f"module 'springwell' has no attribute '{name}'")
    return getattr(import_module(f"springwell.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)

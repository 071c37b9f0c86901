"""Springwell: train, sample and measure energy-based models by diffusion recovery likelihood.

import springwell as sw

result = sw.train(sw.preset("checkerboard"), "runs/checkerboard")
model = sw.load("runs/checkerboard")
x = model.sample(1000, seed=0)
log_p = model.log_density(x)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from springwell.app.config import Config as Config
    from springwell.app.presets import PRESETS as PRESETS
    from springwell.app.presets import preset as preset
    from springwell.data import open_data as open_data
    from springwell.data import toy_data as toy_data
    from springwell.errors import DivergenceError as DivergenceError
    from springwell.errors import UserError as UserError
    from springwell.evaluation.toy import evaluate as evaluate
    from springwell.model import Model as Model
    from springwell.noise import Noise as Noise
    from springwell.schedule import NoiseSchedule as NoiseSchedule
    from springwell.store.run import load as load
    from springwell.training.loop import train as train

_WHERE = {
    "Config": "app.config",
    "DivergenceError": "errors",
    "Model": "model",
    "Noise": "noise",
    "NoiseSchedule": "schedule",
    "PRESETS": "app.presets",
    "UserError": "errors",
    "evaluate": "evaluation.toy",
    "load": "store.run",
    "open_data": "data",
    "preset": "app.presets",
    "toy_data": "data",
    "train": "training.loop",
}

__all__ = [*_WHERE, "__version__"]


def __getattr__(name: str) -> Any:
    # Names are imported when they are used, because torch alone takes seconds to load.
    if name not in _WHERE:
        raise AttributeError(f"module 'springwell' has no attribute '{name}'")
    return getattr(import_module(f"springwell.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)

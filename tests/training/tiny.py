"""A config that trains in a second."""

from springwell.app.api import train_run
from springwell.app.config import SECTIONS, Config, with_fields
from springwell.app.presets import preset
from springwell.progress import Silent
from springwell.training.loop import Hooks


def tiny(**training):
    config = preset("checkerboard")
    values = {
        "iterations": 30,
        "batch": 48,
        "warmup": 5,
        "log_every": 7,
        "checkpoint_every": 10,
        "preview_every": 0,
        **training,
    }
    chains = {"num_steps": 3, "jump_proposals": 2, "sample_steps": 10, "sample_jump_proposals": 4}
    return with_fields(config, width=16, num_features=16, **chains, **values)


def train(config, out, device="cpu", reporter=None, preview=None, measure=None, stop_after=None):
    """Trains a run, quietly."""
    return train_run(config, out, device, reporter or Silent(), Hooks(preview, measure, stop_after))


def changed(config: Config, section: str, **values) -> Config:
    """``config`` with other values of ``section``."""
    assert section in SECTIONS
    return with_fields(config, **values)

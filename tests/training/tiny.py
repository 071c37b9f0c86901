"""A config that trains in a second."""

from springwell.app.config import SECTIONS, Config, with_fields
from springwell.app.presets import preset


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


def changed(config: Config, section: str, **values) -> Config:
    """``config`` with other values of ``section``."""
    assert section in SECTIONS
    return with_fields(config, **values)

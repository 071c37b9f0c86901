"""A config that trains in a second."""

from dataclasses import replace

from springwell.app.config import Config
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
    return replace(
        config,
        network=replace(config.network, width=16, num_features=16),
        sampler=replace(config.sampler, num_steps=3, jump_proposals=2, sample_steps=10, sample_jump_proposals=4),
        training=replace(config.training, **values),
    )


def changed(config: Config, section: str, **values) -> Config:
    return replace(config, **{section: replace(getattr(config, section), **values)})

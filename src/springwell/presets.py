"""The table of presets. A preset is a :class:`Config`; every field can be overridden on the command line."""

from __future__ import annotations

from dataclasses import replace

from springwell.config import Config, NetworkConfig, SamplerConfig, ScheduleConfig, TrainingConfig
from springwell.errors import UserError

_TOY = Config(
    data="checkerboard",
    schedule=ScheduleConfig(schedule="sigmas", sigmas=(0.6, 0.7, 0.8, 0.95), initial_noise=0.05),
    network=NetworkConfig(width=64, depth=3, num_features=128, bandwidths=(1.5, 8.0)),
    sampler=SamplerConfig(num_steps=5, sample_steps=30, jump_proposals=4, sample_jump_proposals=32),
    training=TrainingConfig(iterations=2200),
)

PRESETS: dict[str, Config] = {
    name: replace(_TOY, data=name)
    for name in ("checkerboard", "eight_gaussians", "rings", "two_moons", "pinwheel", "two_spirals")
}


def preset(name: str) -> Config:
    if name not in PRESETS:
        raise UserError(f"preset '{name}': unknown; choose {', '.join(PRESETS)}")
    return PRESETS[name]

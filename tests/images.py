"""A small untrained model of 8x8 images."""

from dataclasses import replace

import torch

from springwell.app.build import build_energy, build_samplers, build_schedule
from springwell.app.config import Config, to_dict
from springwell.app.presets import preset
from springwell.model import Model


def small_config(**sampler) -> Config:
    config = preset("digits")
    return replace(
        config,
        schedule=replace(config.schedule, schedule="log-snr", num_levels=3, log_snr=(4.0, -4.0)),
        network=replace(config.network, width=8, multipliers=(1, 2), num_blocks=1, unshuffle=1),
        sampler=replace(config.sampler, **{"sample_steps": 2, "denoise": False, **sampler}),
    )


def small_model(channels: int = 1, **sampler) -> Model:
    config, shape = small_config(**sampler), (channels, 8, 8)
    schedule = build_schedule(config)
    energy = build_energy(config, schedule, shape)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        # Second convolutions start near zero, which would leave them untested.
        for name, parameter in energy.named_parameters():
            if name.endswith("conv2.weight"):
                parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))
    model = Model(energy, schedule, build_samplers(config, schedule)[1], event_shape=shape, denoise=config.sampler.denoise)
    model.iteration, model.metadata = 7, {"name": config.data, "config": to_dict(config)}
    return model

"""A small untrained model of 8x8 images."""

import torch

from springwell.app.config import Config, to_dict, with_fields
from springwell.app.presets import preset
from springwell.energy import EnergyResNet, ScaledEnergy
from springwell.level import LevelSampler
from springwell.model import Model
from springwell.schedule import NoiseSchedule


def small_config(**fields) -> Config:
    small = {"num_levels": 3, "log_snr": (4.0, -4.0), "width": 8, "multipliers": (1, 2), "num_blocks": 1, "unshuffle": 1}
    return with_fields(preset("digits"), **{**small, "sample_steps": 2, "denoise": False, **fields})


def small_model(channels: int = 1, kernel: str = "mala", num_steps: int = 2, denoise: bool = False) -> Model:
    """The model that :func:`small_config` describes, made of its parts; ``num_steps`` are those of generation."""
    shape, schedule = (channels, 8, 8), NoiseSchedule.log_snr(3, 4.0, -4.0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        energy = ScaledEnergy(EnergyResNet(channels, 8, (1, 2), 1), schedule, "learned", 1.0)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        # Second convolutions start near zero, which would leave them untested.
        for name, parameter in energy.named_parameters():
            if name.endswith("conv2.weight"):
                parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))
    sampler = LevelSampler(kernel, num_steps, 0.4 * schedule.sigma[1:].float(), "denoised")
    model = Model(energy, schedule, sampler, torch.zeros(shape), torch.ones(shape), denoise=denoise)
    model.iteration = 7
    model.metadata = {"name": "digits", "config": to_dict(small_config(kernel=kernel, sample_steps=num_steps, denoise=denoise))}
    return model

"""A small model of the checkerboard, trained by a loop of a few lines."""

import torch

from springwell.data.source import DataSource, open_data
from springwell.energy import FourierMLP, ScaledEnergy
from springwell.level import LevelSampler
from springwell.model import Model
from springwell.noise import Noise
from springwell.objectives import Recovery
from springwell.schedule import NoiseSchedule


def trained_model(iterations: int) -> tuple[Model, DataSource]:
    """The model, which samples with ten steps and jumps at each of its four levels, and its data."""
    data, schedule = open_data("checkerboard"), NoiseSchedule.from_sigmas([0.6, 0.7, 0.8, 0.95], 0.05)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        energy = ScaledEnergy(FourierMLP(2, 4, 16, 3, 16, (1.5, 8.0)), schedule, "learned", 1.0)
    sampler = LevelSampler("mala", 3, (0.45 * schedule.sigma[1:]).float(), "data", jump_proposals=2)
    loss_fn = Recovery(energy, schedule, sampler)
    adam = torch.optim.Adam(energy.parameters(), 1e-2, (0.9, 0.99))
    for i in range(iterations):
        noise = Noise(0, torch.arange(48), i)
        loss = loss_fn(data.sample(noise), noise).loss.mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
    generation = LevelSampler("mala", 10, sampler.step_size, "data", jump_proposals=4)
    return Model(energy, schedule, generation, data.shift, data.scale), data

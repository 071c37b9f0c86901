"""What is to be trained: the objects that a training loop puts together, whoever made them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from springwell.data.labels import Labels
from springwell.data.source import DataSource
from springwell.energy.base import EnergyFunction
from springwell.level import LevelSampler
from springwell.model import Model
from springwell.objectives import Objective
from springwell.schedule import NoiseSchedule
from springwell.training.options import TrainingOptions

MakeObjective = Callable[[nn.Module, NoiseSchedule, LevelSampler, EnergyFunction], Objective]


@dataclass(frozen=True)
class Task:
    """What is to be trained.

    Attributes:
        energy: f(y, t), untrained, or trained before. It is copied, never changed.
        schedule: The noise levels.
        sampler: How negatives are drawn; its step sizes are the first ones.
        generation: How the model draws its samples, with the step sizes that training ends with.
        objective: (energy, schedule, sampler, the energy as the loss differentiates it) -> the objective.
        data: Where batches come from.
        options: How to train.
        target_acceptance: The acceptance that step sizes are adapted to; None keeps them.
        denoise: Whether the model's samples are denoised.
        metadata: What is to be known of the model, for JSON.
        labels: The data with their labels, for an energy that knows classes.
    """

    energy: nn.Module
    schedule: NoiseSchedule
    sampler: LevelSampler
    generation: LevelSampler
    objective: MakeObjective
    data: DataSource
    options: TrainingOptions
    target_acceptance: float | None = None
    denoise: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)
    labels: Labels | None = None

    @property
    def adapts(self) -> bool:
        """Whether step sizes follow their acceptance."""
        return self.target_acceptance is not None and self.sampler.tested

    def model(self, energy: nn.Module, step_size: Tensor, iteration: int) -> Model:
        """The model that these weights and step sizes make."""
        device = step_size.device
        data, generation = self.data, replace(self.generation, step_size=step_size)
        shift, scale = data.shift.to(device), data.scale.to(device)
        model = Model(energy, self.schedule.to(device), generation, shift, scale, denoise=self.denoise)
        model.iteration, model.metadata = iteration, dict(self.metadata)
        return model

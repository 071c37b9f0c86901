"""Norms of the score over the levels, against the closed form of Gaussian data."""

from __future__ import annotations

import numpy as np
import torch

from springwell.evaluation.outliers import NUM_LEVELS, score_norms
from springwell.level import LevelSampler
from springwell.model import Model
from springwell.schedule import NoiseSchedule, spread_levels
from tests.exact import GaussianEnergy

MEAN, VARIANCE = 0.4, 0.6


def test_norms_are_those_of_the_noisy_density_at_the_shrunk_sample() -> None:
    schedule = NoiseSchedule.log_snr(30, 4.0, -5.0)
    energy = GaussianEnergy(schedule, MEAN, VARIANCE)
    # Units of the data cancel: u is standardised.
    units = torch.full((1, 2, 2), 3.0), torch.full((1, 2, 2), 0.25)
    model = Model(lambda y, t: energy(y, t), schedule, LevelSampler("mala", 1, torch.ones(30)), *units)
    u = torch.randn(7, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    levels = spread_levels(30, NUM_LEVELS)
    a, sigma = (values[levels].double() for values in (schedule.a_cum, schedule.sigma_cum))
    # x_t of N(MEAN, VARIANCE) is N(a MEAN, a^2 VARIANCE + sigma^2), whose score at a u is a (MEAN - u) over its variance.
    expected = (u.double() - MEAN).flatten(1).norm(dim=1)[:, None] * a * sigma / (a**2 * VARIANCE + sigma**2)
    np.testing.assert_allclose(score_norms(model, u), expected.numpy(), rtol=1e-4)

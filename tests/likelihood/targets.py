"""Densities whose log Z is known, in any dimension."""

import math

import torch

from springwell.noise import Noise


def noise(num, seed=0, stream=0, dtype=torch.float64):
    return Noise(seed, torch.arange(num), stream, dtype=dtype)


class Mixture:
    """Gaussians of one width at centres ``[M, d]`` with equal weights, times a constant: log Z is ``log_z``."""

    def __init__(self, centres, width, log_z=3.0):
        self.centres, self.width, self.log_z = centres.double(), width, log_z

    def __call__(self, x):
        d = x.shape[1]
        square = torch.cdist(x, self.centres.to(x)).square() if d > 2 else (x[:, None] - self.centres.to(x)).square().sum(-1)
        log_norm = 0.5 * d * math.log(2 * math.pi * self.width**2) + math.log(len(self.centres))
        return (-square / (2 * self.width**2)).logsumexp(-1) - log_norm + self.log_z

    def sample(self, num, seed):
        """Exact draws, of modes in turn."""
        which = torch.arange(num) % len(self.centres)
        return self.centres[which] + self.width * noise(num, seed, 99).normal(self.centres.shape[1])


def ring(num_modes, radius, dim=2):
    """Centres evenly on a circle in the first two coordinates."""
    angle = 2 * math.pi * torch.arange(num_modes) / num_modes
    centres = torch.zeros(num_modes, dim, dtype=torch.float64)
    centres[:, 0], centres[:, 1] = radius * angle.cos(), radius * angle.sin()
    return centres

"""Energies f(y, t) (Sec. 4, App. B)."""

from springwell.energy.base import EnergyFunction, ScaledEnergy, at_level
from springwell.energy.mlp import FourierMLP
from springwell.energy.resnet import EnergyResNet

__all__ = ["EnergyFunction", "EnergyResNet", "FourierMLP", "ScaledEnergy", "at_level"]

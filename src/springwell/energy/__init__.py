"""Energies f(y, t) (Sec. 4, App. B)."""

from springwell.energy.base import EnergyFunction, ScaledEnergy, at_level
from springwell.energy.image import ImageEnergy
from springwell.energy.mlp import FourierMLP
from springwell.energy.resnet import EnergyResNet
from springwell.energy.unet import EnergyUNet

__all__ = ["EnergyFunction", "EnergyResNet", "EnergyUNet", "FourierMLP", "ImageEnergy", "ScaledEnergy", "at_level"]

"""Energy networks f(y, t): +log density up to a constant (Sec. 4, App. B)."""

from springwell.energy.base import EnergyFunction, ScaledEnergy, at_level
from springwell.energy.mlp import FourierMLP

__all__ = ["EnergyFunction", "FourierMLP", "ScaledEnergy", "at_level"]

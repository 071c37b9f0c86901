"""What an energy is for: interpolation, inpainting, restoration, composition."""

from springwell.applications.compose import Mixture, Product, tempered
from springwell.applications.inpaint import inpaint, inpaint_levels
from springwell.applications.interpolate import interpolate, spherical
from springwell.applications.restore import Measurement, Posterior, Restoration, restore

__all__ = [
    "Measurement",
    "Mixture",
    "Posterior",
    "Product",
    "Restoration",
    "inpaint",
    "inpaint_levels",
    "interpolate",
    "restore",
    "spherical",
    "tempered",
]

"""What an energy is for: interpolation, inpainting, restoration, composition."""

from springwell.applications.batches import Draws
from springwell.applications.compose import Mixture, Product, Term, mixture, product, tempered
from springwell.applications.inpaint import inpaint, inpaint_levels
from springwell.applications.interpolate import interpolate, spherical
from springwell.applications.restore import Measurement, Posterior, Restoration, restore

__all__ = [
    "Draws",
    "Measurement",
    "Mixture",
    "Posterior",
    "Product",
    "Restoration",
    "Term",
    "inpaint",
    "inpaint_levels",
    "interpolate",
    "mixture",
    "product",
    "restore",
    "spherical",
    "tempered",
]

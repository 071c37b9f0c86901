"""The partition function and what follows from it (Sec. 4.3).

ratios (the paper's estimator), annealed (AIS, SMC, reverse AIS), bracket (bounds of log Z from both sides, and a verdict), bits
(bits per dimension) and quadrature (two dimensions). All of them take any log-density; none of them knows a model.
"""

from springwell.likelihood.annealed import Estimate, Path, Plan, Walk, Walkers, estimate, level_path, pilot, plain_path, walk
from springwell.likelihood.bits import log_volume, to_bits
from springwell.likelihood.bracket import Bracket, Settings, bennett, bracket
from springwell.likelihood.quadrature import Normaliser, normaliser
from springwell.likelihood.ratios import Ratios, level_ratios, tune_steps

__all__ = [
    "Bracket",
    "Estimate",
    "Normaliser",
    "Path",
    "Plan",
    "Ratios",
    "Settings",
    "Walk",
    "Walkers",
    "bennett",
    "bracket",
    "estimate",
    "level_path",
    "level_ratios",
    "log_volume",
    "normaliser",
    "pilot",
    "plain_path",
    "to_bits",
    "tune_steps",
    "walk",
]

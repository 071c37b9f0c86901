"""Markov chains (Sec. 3.2 and 4.2): pure kernels, batched over chains, with explicit randomness."""

from springwell.samplers.adaptation import adapt_step_size
from springwell.samplers.chains import Chains, run_conditional
from springwell.samplers.jumps import jump
from springwell.samplers.langevin import KERNELS, Info, Kernel, State, langevin, mala, run_chain

__all__ = [
    "KERNELS",
    "Chains",
    "Info",
    "Kernel",
    "State",
    "adapt_step_size",
    "jump",
    "langevin",
    "mala",
    "run_chain",
    "run_conditional",
]

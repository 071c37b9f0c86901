"""Markov chains (Sec. 3.2 and 4.2): pure kernels, batched over chains, with explicit randomness."""

from springwell.samplers.adaptation import adapt_step_size
from springwell.samplers.langevin import KERNELS, Info, Kernel, State, langevin, mala, run_chain

__all__ = ["KERNELS", "Info", "Kernel", "State", "adapt_step_size", "langevin", "mala", "run_chain"]

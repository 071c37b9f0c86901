"""Markov chains (Sec. 3.2 and 4.2): pure kernels, batched over chains, with explicit randomness."""

from springwell.samplers.adaptation import DualAveraging, Tuned, Welford, adapt_step_size, tune_step_size
from springwell.samplers.base import Info, Kernel, State, Trace, record_chain, run_chain
from springwell.samplers.hmc import hmc
from springwell.samplers.jumps import jump
from springwell.samplers.langevin import langevin, mala
from springwell.samplers.nuts import nuts


def make_kernel(name: str, num_leapfrog: int = 2) -> Kernel:
    """The kernel of a name: langevin, mala, hmc with ``num_leapfrog`` steps, nuts."""
    return {"langevin": langevin, "mala": mala, "hmc": hmc(num_leapfrog), "nuts": nuts()}[name]


__all__ = [
    "DualAveraging",
    "Info",
    "Kernel",
    "State",
    "Trace",
    "Tuned",
    "Welford",
    "adapt_step_size",
    "hmc",
    "jump",
    "langevin",
    "make_kernel",
    "mala",
    "nuts",
    "record_chain",
    "run_chain",
    "tune_step_size",
]

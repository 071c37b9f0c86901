"""Markov chains (Sec. 3.2 and 4.2): pure kernels on any log-density, batched over chains, with explicit randomness."""

from springwell.errors import UserError
from springwell.samplers.adaptation import DualAveraging, Tuned, Tuning, Welford, adapt_step_size, tune_step_size
from springwell.samplers.base import Info, Kernel, State, Trace, record_chain, run_chain
from springwell.samplers.hmc import hmc
from springwell.samplers.langevin import langevin, mala
from springwell.samplers.nuts import nuts
from springwell.samplers.target import LogDensity, Target, gradient, value_and_grad


def make_kernel(name: str, num_leapfrog: int = 2, noise_scale: float = 1.0) -> Kernel:
    """The kernel of a name.

    Args:
        name: ``langevin``, ``mala``, ``hmc`` or ``nuts``.
        num_leapfrog: Leapfrog steps of HMC.
        noise_scale: Factor on the noise of Langevin chains; a Metropolis test needs 1.

    Examples:
        >>> sw.samplers.make_kernel("hmc", num_leapfrog=5).options
        {'num_leapfrog': 5}
    """
    if name == "langevin":
        return langevin(noise_scale)
    if noise_scale != 1:
        raise UserError(f"noise_scale={noise_scale:g}: a Metropolis test needs 1, and kernel={name!r} has one; use langevin")
    kernels = {"mala": mala, "hmc": lambda: hmc(num_leapfrog), "nuts": nuts}
    if name not in kernels:
        raise UserError(f"kernel={name!r}: unknown; choose langevin, {', '.join(kernels)}")
    return kernels[name]()


__all__ = [
    "DualAveraging",
    "Info",
    "Kernel",
    "LogDensity",
    "State",
    "Target",
    "Trace",
    "Tuned",
    "Tuning",
    "Welford",
    "adapt_step_size",
    "gradient",
    "hmc",
    "langevin",
    "make_kernel",
    "mala",
    "nuts",
    "record_chain",
    "run_chain",
    "tune_step_size",
    "value_and_grad",
]

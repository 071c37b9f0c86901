r"""Hamiltonian Monte Carlo.

    p ~ N(0, M);   (y', p') = L leapfrog steps from (y, p);   y <- y' with probability min(1, exp(H(y, p) - H(y', p')))

leaves log p invariant for every step size and every L. With L = 1 and M = I this is MALA; the paper's long chains have L = 2
(Sec. 4.3). Between two momenta a chain travels the distance L delta before it turns at random, so L steps explore up to L
times further than L steps of MALA; L delta near half a period of the motion is best, and a full period comes back to where it
began.

References:
    Duane, Kennedy, Pendleton, Roweth, "Hybrid Monte Carlo", Physics Letters B 1987.
"""

from __future__ import annotations

import torch
from torch import Tensor

from springwell.errors import whole_number
from springwell.noise import Noise
from springwell.samplers.base import Info, Kernel, State, evaluated, init_with_gradient
from springwell.samplers.integrator import Phase, check_inverse_mass, draw_momentum, hamiltonian, leapfrog
from springwell.samplers.target import LogDensity
from springwell.shapes import expand

MAX_ENERGY_ERROR = 1000.0


def hmc(num_leapfrog: int = 2, inverse_mass: Tensor | None = None, max_energy_error: float = MAX_ENERGY_ERROR) -> Kernel:
    """The kernel of Hamiltonian Monte Carlo.

    Args:
        num_leapfrog: L, which is also the number of gradients per step.
        inverse_mass: Diagonal of M^{-1}, which broadcasts against y; best is the variance of the target. None for 1.
        max_energy_error: A step is called divergent when the Hamiltonian rises by more.

    Examples:
        >>> log_density = lambda y: -y.square().sum(-1) / 2
        >>> noise = sw.Noise(0, torch.arange(100))
        >>> y, acceptance = sw.samplers.run_chain(sw.samplers.hmc(4), torch.zeros(100, 2), log_density, 0.5, 10, noise)
        >>> y.shape, acceptance.shape
        (torch.Size([100, 2]), torch.Size([100]))
    """
    num_leapfrog = whole_number("num_leapfrog", num_leapfrog, 1)
    check_inverse_mass(inverse_mass)

    def step(state: State, logdensity: LogDensity, step_size: Tensor, noise: Noise) -> tuple[State, Info]:
        y, log_p, grad = evaluated(state)
        z = Phase(y, draw_momentum(noise, y, inverse_mass), log_p, grad)
        h_start = hamiltonian(z, inverse_mass)
        for _ in range(num_leapfrog):
            z = leapfrog(z, logdensity, step_size, inverse_mass)
        change = hamiltonian(z, inverse_mass) - h_start
        # A proposal where the density is not finite is never taken.
        acceptance = torch.where(change.isfinite(), (-change).clamp(max=0).exp(), 0.0)
        accept = noise.uniform() < acceptance
        take = expand(accept, y)
        new = State(torch.where(take, z.y, y), torch.where(accept, z.logdensity, log_p), torch.where(take, z.grad, grad))
        energy = torch.where(accept, h_start + change, h_start)
        return new, Info(acceptance, energy, change, ~(change < max_energy_error), num_gradients=num_leapfrog)

    options: dict[str, float] = {"num_leapfrog": num_leapfrog}
    return Kernel(init_with_gradient, step, name="hmc" if inverse_mass is None else "custom", options=options)

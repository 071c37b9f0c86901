r"""The no-U-turn sampler: Hamiltonian Monte Carlo that finds its own length.

From (y, p), p ~ N(0, M), the trajectory is doubled, k = 0, 1, ...: 2^k leapfrog steps forwards or backwards in time with equal
probability, until it turns back on itself. A stretch of it from p_a to p_b, with rho the sum of its momenta, turns where

    (M^{-1} p_a) . (rho - (p_a + p_b) / 2) <= 0    or    (M^{-1} p_b) . (rho - (p_a + p_b) / 2) <= 0

(the generalised criterion; the ends count by half, as in the trapezoidal rule). Every balanced sub-tree of a doubling is
tested, so that each point of the final trajectory could have grown it. The next state is drawn from the trajectory's points
with weights exp(-H), in two stages: uniformly (by weight) within a doubling, and from the old part to the new one with
probability min(1, W_new / W_old), which prefers points far away. A point whose energy exceeds the first one's by 1000, or is
not a number, ends the trajectory; the doubling that it belongs to, like one that contains a turn, is given up.

There is no recursion. Leaf n of a doubling, counted from 0, completes the sub-trees of 2, 4, ..., 2^j leaves, where n ends in j
1-bits; they begin at n with its last 1, 2, ..., j bits cleared. The beginnings that are still needed differ in their number of
1-bits, so one slot for each number, log2 of the tree's size, holds them all.

All chains run in lockstep: one gradient of the whole batch per leapfrog step, until the last one has ended; those that ended
earlier wait. After every leapfrog step the host asks whether any goes on, which is the one read from the device that a kernel
of this library makes. A batch costs as many gradients as its longest trajectories.

References:
    Hoffman, Gelman, "The No-U-Turn sampler", JMLR 2014.
    Betancourt, "A conceptual introduction to Hamiltonian Monte Carlo", 2017, App. A.
    Phan, Pradhan, Jankowiak, "Composable effects for flexible and accelerated probabilistic programming in NumPyro", 2019.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from springwell.errors import UserError
from springwell.noise import Noise
from springwell.samplers.base import Info, Kernel, State, evaluated, init_with_gradient
from springwell.samplers.hmc import MAX_ENERGY_ERROR
from springwell.samplers.integrator import Phase, check_inverse_mass, draw_momentum, hamiltonian, leapfrog, velocity
from springwell.samplers.target import LogDensity
from springwell.shapes import expand, inner

_TREE_SEED = 0x5EED
MAX_DEPTH = 10


class Proposal(NamedTuple):
    """A point of the trajectory: position, log p, gradient, and its log-weight H_0 - H ``[N]``."""

    y: Tensor
    logdensity: Tensor
    grad: Tensor
    log_weight: Tensor


class Tree(NamedTuple):
    """A stretch of the trajectory without its ends: the point drawn from it, the log of its weight, and rho."""

    proposal: Proposal
    log_weight: Tensor
    p_sum: Tensor


Tensors = TypeVar("Tensors", Phase, Proposal)


def _select(mask: Tensor, u: Tensors, v: Tensors) -> Tensors:
    """u for chains where the mask ``[N]`` is true, v elsewhere."""
    wide = expand(mask, u[0])
    return type(u)(*[torch.where(wide if a.ndim > 1 else mask, a, b) for a, b in zip(u, v, strict=True)])


def is_turning(p_a: Tensor, p_b: Tensor, rho: Tensor, inverse_mass: Tensor | None = None) -> Tensor:
    """The criterion ``[N]`` for a stretch from p_a to p_b; rho is the sum of its momenta, with the ends counted by half."""
    return torch.minimum(inner(velocity(p_a, inverse_mass), rho), inner(velocity(p_b, inverse_mass), rho)) <= 0


def completed_subtrees(leaf: int) -> list[int]:
    """The first leaves of the sub-trees of 2, 4, 8, ... leaves that end with this one."""
    firsts, bits = [], 1
    while leaf >> (bits - 1) & 1:
        firsts.append(leaf >> bits << bits)
        bits += 1
    return firsts


def _tree_noise(noise: Noise) -> Noise:
    """A generator for one step.

    Trees use as many uniforms as they have leaves. Taken from here, they leave the position in the chain's own generator
    independent of how long its trajectory, or its longest neighbour's, has been.
    """
    word = (noise.uniform(2) * 2**24).long()
    return Noise(_TREE_SEED, word[:, 0] << 24 | word[:, 1], dtype=noise.dtype)


class _Walk:
    """What the leaves of one step have in common, and what they add up to."""

    def __init__(self, logdensity: LogDensity, h_start: Tensor, inverse_mass: Tensor | None, max_energy_error: float):
        self.logdensity, self.h_start, self.inverse_mass = logdensity, h_start, inverse_mass
        self.max_energy_error = max_energy_error
        self.acceptance = torch.zeros_like(h_start)
        self.num_leaves = torch.zeros_like(h_start, dtype=torch.long)
        self.divergent = torch.zeros_like(h_start, dtype=torch.bool)

    def grow(self, z: Phase, step_size: Tensor, num_leaves: int, going: Tensor, u: Tensor) -> tuple[Tree, Phase, Tensor]:
        """A doubling: the new part of the trajectory, its far end, and which chains completed it without a turn.

        Args:
            z: The end to go on from.
            step_size: Signed by the direction.
            num_leaves: 2^k.
            going: Which chains take part ``[N]``; the others wait.
            u: Uniforms ``[N, num_leaves]``.
        """
        log_u = u.log().unbind(1)
        weights: list[Tensor] = []
        present: list[Tensor] = []
        firsts: dict[int, tuple[Tensor, Tensor]] = {}
        for n in range(num_leaves):
            z = leapfrog(z, self.logdensity, torch.where(expand(going, z.y), step_size, 0.0), self.inverse_mass)
            weight = self.h_start - hamiltonian(z, self.inverse_mass)
            weights.append(weight)
            present.append(going)
            leaf = Proposal(z.y, z.logdensity, z.grad, weight)
            if n == 0:
                proposal, log_weight, p_sum = leaf, weight, z.p
            else:
                log_weight, p_sum = torch.logaddexp(log_weight, weight), p_sum + z.p
                proposal = _select(log_u[n] < weight - log_weight, leaf, proposal)
            going = going & self._usable(weight)
            if n % 2 == 0:
                # The sum of momenta up to the middle of this leaf, so that differences count both ends by half.
                firsts[n.bit_count()] = z.p, torch.sub(p_sum, z.p, alpha=0.5)
            else:
                until = torch.sub(p_sum, z.p, alpha=0.5)
                for first in completed_subtrees(n):
                    p_first, begun = firsts[first.bit_count()]
                    going = going & ~is_turning(p_first, z.p, until - begun, self.inverse_mass)
            if not bool(going.any()):
                break
        self._count(torch.stack(weights), torch.stack(present))
        return Tree(proposal, log_weight, p_sum), z, going

    def _usable(self, weight: Tensor) -> Tensor:
        return (weight > -self.max_energy_error) & (weight < torch.inf)

    def _count(self, weight: Tensor, present: Tensor) -> None:
        """Adds leaves ``[num_leaves, N]``, of which a chain has those where it was present."""
        usable = self._usable(weight)
        # One after the other: how a sum over leaves rounds would depend on how many the neighbours have.
        for accepted in torch.where(present & usable, weight.clamp(max=0).exp(), 0.0):
            self.acceptance += accepted
        self.num_leaves += present.sum(0)
        self.divergent |= (present & ~usable).any(0)


def nuts(max_depth: int = MAX_DEPTH, inverse_mass: Tensor | None = None, max_energy_error: float = MAX_ENERGY_ERROR) -> Kernel:
    """The kernel of the no-U-turn sampler.

    Args:
        max_depth: Doublings at most; a trajectory has up to 2^max_depth - 1 leapfrog steps.
        inverse_mass: Diagonal of M^{-1}, which broadcasts against y; best is the variance of the target. None for 1.
        max_energy_error: A trajectory is divergent, and ends, when the Hamiltonian rises by more.

    Examples:
        >>> log_density = lambda y: -y.square().sum(-1) / 2
        >>> noise = sw.Noise(0, torch.arange(100))
        >>> y, acceptance = sw.samplers.run_chain(sw.samplers.nuts(), torch.zeros(100, 2), log_density, 0.5, 10, noise)
        >>> y.shape, acceptance.shape
        (torch.Size([100, 2]), torch.Size([100]))
    """
    if not 1 <= max_depth <= 20:
        raise UserError(f"max_depth={max_depth}: must be in 1 ... 20")
    check_inverse_mass(inverse_mass)

    def step(state: State, logdensity: LogDensity, step_size: Tensor, noise: Noise) -> tuple[State, Info]:
        y, log_p, grad = evaluated(state)
        left = right = Phase(y, draw_momentum(noise, y, inverse_mass), log_p, grad)
        h_start, tree_noise = hamiltonian(left, inverse_mass), _tree_noise(noise)
        walk = _Walk(logdensity, h_start, inverse_mass, max_energy_error)
        zero = torch.zeros_like(h_start)
        whole = Tree(Proposal(y, log_p, grad, zero), zero, left.p)
        going, depth = torch.ones_like(walk.divergent), torch.zeros_like(walk.num_leaves)
        for k in range(max_depth):
            u = tree_noise.uniform(2**k + 2)
            forwards = u[:, 0] < 0.5
            direction = torch.where(forwards, 1.0, -1.0)
            depth += going
            new, z, going = walk.grow(_select(forwards, right, left), step_size * expand(direction, y), 2**k, going, u[:, 2:])
            take = going & (u[:, 1] < (new.log_weight - whole.log_weight).exp())
            whole = Tree(
                _select(take, new.proposal, whole.proposal),
                torch.logaddexp(whole.log_weight, new.log_weight),
                whole.p_sum + new.p_sum,
            )
            left, right = _select(forwards, left, z), _select(forwards, z, right)
            rho = torch.sub(whole.p_sum, left.p + right.p, alpha=0.5)
            going = going & ~is_turning(left.p, right.p, rho, inverse_mass)
            if not bool(going.any()):
                break
        proposal, num_leaves = whole.proposal, walk.num_leaves
        info = Info(
            walk.acceptance / num_leaves,
            h_start - proposal.log_weight,
            -proposal.log_weight,
            walk.divergent,
            depth,
            num_leaves,
        )
        return State(proposal.y, proposal.logdensity, proposal.grad), info

    plain = inverse_mass is None and (max_depth, max_energy_error) == (MAX_DEPTH, MAX_ENERGY_ERROR)
    return Kernel(init_with_gradient, step, name="nuts" if plain else "custom")

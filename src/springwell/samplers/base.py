"""What all kernels share: the state of a chain, what a step tells, and running many of them.

A kernel is a pair of pure functions on a batch of N independent chains, held in one tensor ``[N, ...]``,

    init: (y, logdensity) -> state          step: (state, logdensity, step_size, noise) -> (state, info)

Step sizes, acceptance and randomness belong to each chain. A chain's values follow from its own start, step size and
(seed, index) alone, whatever other chains are computed beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from springwell.errors import UserError, kind_of, whole_number
from springwell.noise import Noise, as_noise
from springwell.samplers.checks import as_step_size, check_end, check_start, check_step_size, warn_if_collapsed
from springwell.samplers.target import LogDensity, check_value, level_of, value_and_grad
from springwell.shapes import expand


class State(NamedTuple):
    """What the next step needs. Langevin needs the position alone.

    Examples:
        >>> state = sw.samplers.mala().init(torch.zeros(4, 2), lambda y: -y.square().sum(-1) / 2)
        >>> state.y.shape, state.logdensity.shape, state.grad.shape
        (torch.Size([4, 2]), torch.Size([4]), torch.Size([4, 2]))
    """

    y: Tensor
    logdensity: Tensor | None = None
    grad: Tensor | None = None


class Info(NamedTuple):
    """What a step tells of each chain; None where the kernel does not know.

    Attributes:
        acceptance: ``[N]``: acceptance probability; for NUTS its mean over the trajectory. None where there is no test.
        energy: ``[N]``: the Hamiltonian -log p(y) + |p|^2 / 2 where the step ended.
        energy_change: ``[N]``: how much the Hamiltonian of the proposal differs from that of the start.
        divergent: ``[N]``: whether the energy error exceeded its bound, or was not a number.
        depth: ``[N]``: doublings of a NUTS trajectory.
        num_gradients: Gradient evaluations that the chain made use of, ``[N]`` where chains differ.

    Examples:
        >>> f, kernel, noise = lambda y: -y.square().sum(-1) / 2, sw.samplers.mala(), sw.Noise(0, torch.arange(4))
        >>> state, info = kernel.step(kernel.init(torch.zeros(4, 2), f), f, torch.tensor(0.5), noise)
        >>> info.acceptance.shape
        torch.Size([4])
    """

    acceptance: Tensor | None
    energy: Tensor | None = None
    energy_change: Tensor | None = None
    divergent: Tensor | None = None
    depth: Tensor | None = None
    num_gradients: Tensor | int = 1


class Kernel(NamedTuple):
    """How to begin a chain and how to go on.

    Attributes:
        init: (y ``[N, ...]``, logdensity) -> state.
        step: (state, logdensity, step_size, noise) -> (state, info). The step size is anything that broadcasts against y.
        tested: Whether a Metropolis test makes the target invariant.
        name: What it is called; a kernel of this package is made again by ``make_kernel(name, **options)``.
        options: What it was made with, for JSON.

    Examples:
        >>> kernel = sw.samplers.hmc(num_leapfrog=3)
        >>> kernel.name, kernel.tested
        ('hmc', True)
    """

    init: Callable[[Tensor, LogDensity], State]
    step: Callable[[State, LogDensity, Tensor, Noise], tuple[State, Info]]
    tested: bool = True
    name: str = "custom"
    options: dict[str, float] = {}  # noqa: RUF012 (never changed)


class Trace(NamedTuple):
    """Chains with their past.

    Attributes:
        draws: ``[S, N, ...]``.
        info: Of every step, ``[S, N]`` each; None where the kernel does not know.

    Examples:
        >>> f, noise = lambda y: -y.square().sum(-1) / 2, sw.Noise(0, torch.arange(4))
        >>> trace = sw.samplers.record_chain(sw.samplers.mala(), torch.zeros(4, 2), f, 0.5, num_steps=10, noise=noise)
        >>> trace.draws.shape, trace.info.acceptance.shape
        (torch.Size([10, 4, 2]), torch.Size([10, 4]))
    """

    draws: Tensor
    info: Info


def init_with_gradient(y: Tensor, logdensity: LogDensity) -> State:
    """The state of kernels with a Metropolis test."""
    return State(y, *value_and_grad(logdensity, y))


def evaluated(state: State) -> tuple[Tensor, Tensor, Tensor]:
    """(y, log p, its gradient) of a state that has them all."""
    y, log_p, grad = state
    assert log_p is not None
    assert grad is not None
    return y, log_p, grad


def begin(
    kernel: Kernel, y: Tensor, logdensity: LogDensity, step_size: Tensor | float, check: bool = True
) -> tuple[State, Tensor]:
    """The first state and the step sizes spread over y, both checked.

    Args:
        kernel: Any kernel.
        y: Start ``[N, ...]``.
        logdensity: y -> ``[N]``.
        step_size: delta ``[N]``, or one for all.
        check: Whether to look at values, which reads back from the device.
    """
    if check:
        check_kernel(kernel, y, logdensity)
    level, step_size = level_of(logdensity), as_step_size(step_size, y.device)
    if check:
        check_step_size(step_size, len(y), level)
    state = kernel.init(y.detach(), logdensity)
    if state.logdensity is not None:
        check_value(state.logdensity, y.detach())
    if check:
        check_start(y, state.logdensity, level)
    # Spread over the sample once: products of equal shapes are twice as fast as broadcast ones.
    return state, expand(step_size.to(y.dtype), y).expand_as(y).contiguous()


def check_kernel(kernel: object, y: object, logdensity: object) -> None:
    """Refuses arguments of other types, in one sentence."""
    if not isinstance(kernel, Kernel):
        raise UserError(f"kernel: is {kind_of(kernel)}; give a Kernel, for instance mala() or hmc(num_leapfrog=2)")
    if not isinstance(y, Tensor) or not y.is_floating_point() or y.ndim == 0:
        what = f"{y.dtype} of shape {list(y.shape)}" if isinstance(y, Tensor) else type(y).__name__
        raise UserError(f"y: is a {what}; give a tensor of floats [N, ...], one row per chain")
    if not callable(logdensity):
        raise UserError(f"logdensity: is {kind_of(logdensity)}; give a callable y [N, ...] -> [N]")


def run_chain(
    kernel: Kernel,
    y: Tensor,
    logdensity: LogDensity,
    step_size: Tensor | float,
    num_steps: int,
    noise: Noise | Generator,
    check: bool = True,
) -> tuple[Tensor, Tensor]:
    """Runs ``num_steps`` steps from y. Memory does not grow with their number.

    Args:
        kernel: Any kernel, for instance ``mala()``.
        y: Start ``[N, ...]``.
        logdensity: y -> ``[N]``; any callable, or a :class:`Target`.
        step_size: delta ``[N]``, or one for all.
        num_steps: K.
        noise: For N chains. With a torch.Generator, a chain's numbers depend on the other chains of the batch.
        check: Whether to refuse step sizes, starts and log-densities that cannot work, and to warn where the acceptance
            collapsed. This reads back from the device before the first step and after the last one; without it, and except
            for NUTS, nothing does.

    Returns:
        The last position, and the mean acceptance ``[N]`` of each chain (1 where there is no test).

    Examples:
        >>> f, noise = lambda y: -y.square().sum(-1) / 2, sw.Noise(0, torch.arange(4))
        >>> y, acceptance = sw.samplers.run_chain(sw.samplers.mala(), torch.zeros(4, 2), f, 0.5, num_steps=10, noise=noise)
        >>> y.shape, acceptance.shape
        (torch.Size([4, 2]), torch.Size([4]))
    """
    num_steps = whole_number("num_steps", num_steps, 0)
    state, delta = begin(kernel, y, logdensity, step_size, check)
    noise, level = as_noise(noise, y), level_of(logdensity)
    total, tested = torch.zeros(len(y), device=y.device), 0
    for _ in range(num_steps):
        state, info = kernel.step(state, logdensity, delta, noise)
        if info.acceptance is not None:
            total += info.acceptance
            tested += 1
    acceptance = total / tested if tested else torch.ones_like(total)
    if check:
        check_end(state.y, num_steps, level)
        if tested:
            warn_if_collapsed(acceptance, num_steps, level)
    return state.y, acceptance


def record_chain(
    kernel: Kernel,
    y: Tensor,
    logdensity: LogDensity,
    step_size: Tensor | float,
    num_steps: int,
    noise: Noise | Generator,
    thin: int = 1,
) -> Trace:
    """Runs ``num_steps`` steps from y and keeps every ``thin``-th, for :mod:`springwell.samplers.diagnostics`.

    Args:
        kernel: Any kernel.
        y: Start ``[N, ...]``; it is not part of the trace.
        logdensity: y -> ``[N]``.
        step_size: delta ``[N]``, or one for all.
        num_steps: How many steps to make.
        noise: For N chains.
        thin: Keep every how many steps; num_gradients counts all of them.

    Examples:
        >>> f, noise = lambda y: -y.square().sum(-1) / 2, sw.Noise(0, torch.arange(4))
        >>> trace = sw.samplers.record_chain(sw.samplers.mala(), torch.zeros(4, 2), f, 0.5, num_steps=10, noise=noise, thin=5)
        >>> trace.draws.shape
        torch.Size([2, 4, 2])
    """
    num_steps = whole_number("num_steps", num_steps, 1)
    if not 1 <= whole_number("thin", thin) <= num_steps:
        raise UserError(f"thin={thin}: must be in 1 ... num_steps = {num_steps}")
    state, delta = begin(kernel, y, logdensity, step_size)
    noise, level = as_noise(noise, y), level_of(logdensity)
    draws: list[Tensor] = []
    infos: list[Info] = []
    gradients: Tensor | int = 0
    for i in range(num_steps):
        state, info = kernel.step(state, logdensity, delta, noise)
        gradients = gradients + info.num_gradients
        if (i + 1) % thin == 0:
            draws.append(state.y)
            infos.append(info._replace(num_gradients=torch.as_tensor(gradients, device=y.device).expand(len(y))))
            gradients = 0
    check_end(state.y, num_steps, level)
    fields: list[Any] = [None if values[0] is None else torch.stack(values) for values in zip(*infos, strict=True)]
    info = Info(*fields)
    if info.acceptance is not None:
        warn_if_collapsed(info.acceptance.mean(0), num_steps, level)
    return Trace(torch.stack(draws), info)

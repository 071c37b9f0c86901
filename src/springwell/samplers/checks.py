"""Bad input to a chain is refused before its first step, and a chain that stood still is named after its last one.

A Metropolis test hides what is wrong with its target: where the log-density is nan, or the step size far too large, every
proposal is refused and the chain is constant, which looks stable. These checks run once per run, never inside of it.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from springwell.errors import DivergenceError, UserError

LOWEST_ACCEPTANCE = 0.01
HIGHEST_ACCEPTANCE = 0.999
STUCK_ACCEPTANCE = 1e-4
STEPS_TO_JUDGE = 10


def _where(chains: Tensor, level: Tensor | int | None) -> str:
    """Names the first chain of a mask ``[N]``, how many there are, and the level of the first."""
    first, count = int(chains.long().argmax()), int(chains.sum())
    which = f"chain {first}" if count == 1 else f"{count} of {len(chains)} chains, first chain {first}"
    if level is None:
        return which
    return f"{which} (level {int(level if isinstance(level, int) else level[first])})"


def as_step_size(step_size: object, device: torch.device | str | None = None) -> Tensor:
    """Step sizes as a tensor: from a number, a list, an array or a tensor."""
    try:
        return torch.as_tensor(step_size, device=device)
    except (TypeError, ValueError, RuntimeError):
        raise UserError(f"step_size={step_size!r}: is not a number; give a float, or a tensor of them") from None


def check_step_size(step_size: Tensor, num_chains: int, level: Tensor | int | None = None) -> None:
    """Refuses step sizes that are not positive numbers, one per chain or one for all."""
    if step_size.numel() not in (1, num_chains) or step_size.ndim > 1:
        raise UserError(f"step size: has shape {list(step_size.shape)}; needs [{num_chains}], one per chain")
    bad = ~((step_size > 0) & torch.isfinite(step_size)).expand(num_chains)
    if bool(bad.any()):
        value = float(step_size.expand(num_chains)[bad][0])
        raise UserError(f"step size {value:g} of {_where(bad, level)}: must be positive and finite")


def check_start(y: Tensor, logdensity: Tensor | None, level: Tensor | int | None = None) -> None:
    """Refuses starts that are not finite, or where the log-density is not."""
    bad = ~torch.isfinite(y.flatten(1)).all(1)
    if bool(bad.any()):
        raise UserError(f"start of {_where(bad, level)}: is not finite; start every chain at finite numbers")
    if logdensity is not None and not bool(torch.isfinite(logdensity).all()):
        bad = ~torch.isfinite(logdensity)
        value = float(logdensity[bad][0])
        raise UserError(f"log-density {value:g} at the start of {_where(bad, level)}: start where it is finite")


def check_end(y: Tensor, num_steps: int, level: Tensor | int | None = None) -> None:
    """Raises where an unadjusted chain ran away."""
    bad = ~torch.isfinite(y.flatten(1)).all(1)
    if bool(bad.any()):
        what = f"{_where(bad, level)}: not finite after {num_steps} steps"
        raise DivergenceError(f"{what}; use a smaller step size, or a kernel with a Metropolis test (mala, hmc, nuts)")


def warn_if_collapsed(acceptance: Tensor, num_steps: int, level: Tensor | int | None = None) -> None:
    """Warns of levels whose chains stand still, because nothing is accepted or because steps are tiny.

    Args:
        acceptance: Mean acceptance ``[N]`` of each chain.
        num_steps: Over how many steps.
        level: Their levels.
    """
    levels = torch.as_tensor(-1 if level is None else level, device=acceptance.device).expand(len(acceptance)).cpu()
    acceptance = acceptance.cpu()
    for t in levels.unique().tolist():
        here = acceptance[levels == t]
        mean, name = float(here.mean()), "" if level is None else f"level {t}: "
        if not mean >= LOWEST_ACCEPTANCE:
            advice = "the chains stand still; use smaller steps, or tune_step_size"
        elif mean > HIGHEST_ACCEPTANCE:
            advice = "such small steps hardly move a chain, or waste gradients; use larger ones, or tune_step_size"
        elif num_steps >= STEPS_TO_JUDGE and (stuck := int((here < STUCK_ACCEPTANCE).sum())):
            advice = f"{stuck} of {len(here)} chains never moved; start them elsewhere, or use smaller steps"
        else:
            continue
        warnings.warn(f"{name}acceptance {mean:.3g} over {num_steps} steps: {advice}", RuntimeWarning, stacklevel=3)

r"""Step sizes that follow their acceptance.

    log delta_t <- log delta_t + rate (acceptance_t - target)           (Robbins and Monro)

for every level t that had chains in this batch. The step sizes belong to the run: they are saved with it, and frozen once
training ends, because a kernel that goes on adapting does not leave its target invariant.
"""

from __future__ import annotations

from torch import Tensor


def adapt_step_size(step_size: Tensor, acceptance: Tensor, count: Tensor, target: float, rate: float = 0.05) -> Tensor:
    """One update of the step sizes of all levels.

    Args:
        step_size: ``[T]``.
        acceptance: ``[T]``: sum of the mean acceptances of the chains of each level.
        count: ``[T]``: number of chains of each level.
        target: The acceptance to settle at.
        rate: Largest relative change of an update.
    """
    error = acceptance / count.clamp(min=1) - target
    return step_size * (rate * error * (count > 0)).exp()

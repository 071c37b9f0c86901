"""Whether training is still sound. Decided before a checkpoint is written, so that no good one is ever replaced by a bad one.

not finite      f, the loss or the gradient
runaway         the weighted gap of f between positive and negative samples: of a healthy level it is of the order of the
                dimension at most, and 100 times that has run away; so has a gap that is large and still grows
displacement    chains that travel a hundred widths of their spring
acceptance      chains of a level that stand still, by 64 or more of them
gradient        a norm a thousand times that of the iterations before

All of it is gathered on the device and read every tenth iteration.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from typing import Any

import torch
from torch import Tensor

from springwell.errors import DivergenceError

GUARD_EVERY = 10
RUNAWAY_GAP = 100.0
GROWING_GAP = 10.0
# Lines of the log over which a gap that grows is a trend.
TREND = 5
LARGEST_DISPLACEMENT = 100.0
COLLAPSED_ACCEPTANCE = 0.005
ENOUGH_SAMPLES = 64
RUNAWAY_NORM = 1000.0
# Iterations before the usual norm is known.
ENOUGH_ITERATIONS = 100


class Guard:
    """Watches one call of the training loop.

    Args:
        num_levels: T.
        dim: Number of values of a sample.
        lines: The log of the run that is resumed, up to where it is resumed.
        usual: ``[2]``, float64: the mean log-norm of the gradient, and of how many iterations; is kept up to date.
    """

    def __init__(self, num_levels: int, dim: int, lines: list[dict[str, Any]], usual: Tensor | None = None):
        self.num_levels, self.dim = num_levels, dim
        self.gaps: deque[list[float | None]] = deque(maxlen=TREND)
        for line in lines:
            loss = line.get("loss")
            if "rollback" in line:
                self.gaps.clear()
            elif (
                isinstance(loss, list)
                and len(loss) == num_levels
                and all(isinstance(v, (int, float, type(None))) for v in loss)
            ):
                self.gaps.append(loss)
        self.usual = torch.zeros(2, dtype=torch.float64) if usual is None else usual
        self.largest = torch.full_like(self.usual[0], -math.inf)

    def watch(self, norm: Tensor) -> None:
        """Takes note of the gradient's norm of one iteration, without reading it back."""
        log_norm = norm.detach().double().clamp(min=1e-30).log()
        mean, count = self.usual
        rise = torch.where(count >= ENOUGH_ITERATIONS, log_norm - mean, -math.inf)
        # What is not finite stays: the largest of it and anything is nan.
        self.largest = torch.where(torch.isfinite(log_norm), torch.maximum(self.largest, rise), math.nan)
        count += 1
        mean.lerp_(log_norm, 1 / count.clamp(max=ENOUGH_ITERATIONS))

    def check(self, means: dict[str, list[float | None]], counts: list[float], iteration: int, logged: bool) -> None:
        """Raises DivergenceError for the first thing that is wrong.

        Args:
            means: Of every level since the last line of the log; None where no sample was, or all was nan.
            counts: Samples of every level.
            iteration: The present one.
            logged: Whether these means end a line of the log.
        """
        if logged:
            self.gaps.append(means["loss"])
        for t in range(self.num_levels):
            if counts[t] and (reason := self._level(t, {name: means[name][t] for name in means}, counts[t])):
                raise DivergenceError(f"training diverged before iteration {iteration} at level {t}: {reason}")
        rise = float(self.largest)
        if math.isnan(rise):
            raise DivergenceError(f"training diverged before iteration {iteration}: the gradient is not finite")
        if rise > math.log(RUNAWAY_NORM):
            what = f"the gradient's norm is {math.exp(rise):.3g} times its usual size"
            raise DivergenceError(f"training diverged before iteration {iteration}: {what}")

    def _level(self, t: int, mean: dict[str, float | None], count: float) -> str | None:
        gap, f = mean["loss"], mean.get("f_pos", 0.0)
        accepted, moved = mean.get("acceptance"), mean.get("displacement")
        if gap is None or f is None or not math.isfinite(gap) or not math.isfinite(f):
            return "f is not finite"
        if abs(gap) > RUNAWAY_GAP * self.dim:
            return f"f ran away (weighted gap of positive and negative samples {gap:.3g})"
        sizes = [abs(line[t] or 0.0) for line in self.gaps]
        growing = len(sizes) == TREND and all(b > a for a, b in itertools.pairwise(sizes))
        if growing and sizes[-1] > max(GROWING_GAP * self.dim, 4 * sizes[0]):
            return f"f is running away (weighted gap of positive and negative samples {gap:.3g}, and growing)"
        if moved is not None and moved > LARGEST_DISPLACEMENT:
            return f"its chains ran away ({moved:.3g} widths of the spring)"
        if accepted is not None and accepted < COLLAPSED_ACCEPTANCE and count >= ENOUGH_SAMPLES:
            return f"the chains stand still (acceptance {accepted:.2g})"
        return None

"""Going back after a divergence: to which checkpoint, with which learning rate, and when to give up."""

from __future__ import annotations

from typing import Any

from accelerate import Accelerator

from springwell.errors import DivergenceError
from springwell.progress import Reporter
from springwell.store.checkpoint import bring_back, good_checkpoints, set_aside
from springwell.store.run import Run
from springwell.training.options import TrainingOptions

# Streams of noise between one attempt and the next; no run has so many iterations.
STREAMS_PER_ROLLBACK = 2**36
# On the learning rate after so many rollbacks. A rare accident needs little; what happens again needs much.
ROLLBACK_FACTORS = (1.0, 0.5, 0.1, 0.01)
# Share of the iterations after which a run does not begin anew.
YOUNG = 0.1


def roll_back(
    error: DivergenceError, past: int, options: TrainingOptions, run: Run, accelerator: Accelerator, reporter: Reporter
) -> int:
    """Records that training goes back to a good checkpoint, or raises the error with advice if it may not again.

    That is the newest one, but where no new one was made since the last rollback the one before it: a state may be finite and
    on its way to divergence. Later checkpoints are set aside until the run has passed them.

    Args:
        error: What happened.
        past: Rollbacks that this process has made before.
        options: How the run is trained.
        run: The run.
        accelerator: All processes come here together.
        reporter: Receives the warning.

    Returns:
        Rollbacks made in all.
    """
    accelerator.wait_for_everyone()
    lines = [line for line in run.read_metrics() if "rollback" in line]
    past, good = max(past, len(lines)), _good(run)
    accelerator.wait_for_everyone()
    if options.on_divergence == "stop" or past + 1 >= len(ROLLBACK_FACTORS):
        _give_up(error, past, run, accelerator.is_main_process, good)
    start = _where_to(good, lines, options.iterations)
    accelerator.free_memory()
    if accelerator.is_main_process:
        if run.checkpoints.exists():
            set_aside(run.checkpoints, start)
        factor = ROLLBACK_FACTORS[past + 1]
        lines.append({"iteration": start, "rollback": past + 1, "lr_factor": factor, "reason": str(error)})
        run.truncate_logs(start, [{**line, "iteration": min(line["iteration"], start)} for line in lines])
        reporter.warn(f"{error}; going back to iteration {start} with {factor:g} times the learning rate and other noise")
    accelerator.wait_for_everyone()
    return past + 1


def _good(run: Run) -> list[int]:
    """Iterations of the good checkpoints, newest first."""
    folder = run.checkpoints
    return [found.iteration for found in good_checkpoints(folder, lambda line: None)] if folder.exists() else []


def _where_to(good: list[int], lines: list[dict[str, Any]], iterations: int) -> int:
    """The iteration to go back to."""
    start = good[0] if good else 0
    if lines and lines[-1]["iteration"] >= start > 0:
        # Back to the beginning only where that costs little.
        young = good[-1] <= YOUNG * iterations
        start = next((n for n in good if n < lines[-1]["iteration"]), 0 if young else good[-1])
    return start


def _give_up(error: DivergenceError, past: int, run: Run, main: bool, good: list[int]) -> None:
    if main and run.checkpoints.exists():
        bring_back(run.checkpoints)
        good = _good(run)
    tried = f"rolled back {past} times already; " if past else ""
    kept = f"the last good checkpoint is that of iteration {good[0]}" if good else "no checkpoint was made before it"
    advice = "try a lower lr, a clip, more num_steps or start='data', in a new run"
    raise DivergenceError(f"{error}; {tried}{kept}; {advice}") from None

"""Faults injected into real trainings: python -m tests.faults.harness [--number 100] prints the table of what became of them.

Every case trains a small model in a process of its own, lets one fault happen at a random moment, and then gives the same
command again, in another process, until the run is finished. It must end with the very bits of a run that nothing ever happened
to, and no process may end by an error that is not one line for its user.

    kill          SIGKILL while the n-th piece of a file is written, synced, renamed or removed, or at a random time
    corrupt       one byte of the newest checkpoint flipped, or the file cut short, emptied or gone, while no process runs
    disk full     writes beyond a small size fail, as on a full disk
    no permission the run directory and its checkpoints cannot be written any more
    clock         the clock jumps by up to ten years either way, and files have arbitrary times

Processes are forked from one that has imported everything, so that a case takes a second or two.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import signal
import stat
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file

from springwell.app.config import Config
from springwell.app.presets import preset
from springwell.data import formats
from springwell.errors import UserError
from springwell.progress import Silent
from springwell.store.run import Run
from tests.training.tiny import train

FAULTS = ("kill", "corrupt", "disk full", "no permission", "clock")
NOBODY = 65534
_REFUSED, _FAILED = 3, 4
_LONGEST = 60.0


def small(name: str) -> Config:
    """A model of vectors, and one of images, whose batches a second thread draws."""
    often = {"warmup": 5, "log_every": 3, "checkpoint_every": 4, "preview_every": 0}
    if name == "vectors":
        base = preset("checkerboard")
        sampler = replace(base.sampler, num_steps=2, jump_proposals=2)
        network = replace(base.network, width=16, num_features=16)
        training = replace(base.training, iterations=30, batch=24, **often)
    else:
        base = preset("digits")
        sampler, network = base.sampler, replace(base.network, width=4)
        training = replace(base.training, iterations=14, batch=12, **often)
    return replace(base, sampler=sampler, network=network, training=training)


def in_child(work: Callable[[], object], kill_after: float | None = None) -> int:
    """Runs ``work`` in a forked process; its exit code, or minus the signal that ended it."""
    child = os.fork()
    if child == 0:
        code = _FAILED
        try:
            work()
            code = 0
        except UserError:
            code = _REFUSED
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    began, killed = time.monotonic(), False
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            if code == _FAILED:
                raise RuntimeError("a training ended by a traceback")
            return code
        elapsed = time.monotonic() - began
        if (kill_after is not None and elapsed > kill_after and not killed) or elapsed > _LONGEST:
            os.kill(child, signal.SIGKILL)
            killed = True
        time.sleep(0.002)


class Case:
    """One run and one fault.

    Args:
        folder: An empty folder.
        model: ``vectors`` or ``images``.
        rng: What is random about the fault.
    """

    def __init__(self, folder: Path, model: str, rng: random.Random):
        self.out, self.config, self.rng = folder / "run", small(model), rng

    def train(self) -> None:
        train(self.config, self.out, "cpu", Silent())

    def happen(self, fault: str) -> bool:
        """Lets the fault happen; whether it did anything."""
        return bool(getattr(self, fault.replace(" ", "_"))())

    def recover(self) -> bool:
        """The same command again, as often as a patient person would; whether it finished."""
        return any(in_child(self.train) == 0 and Run(self.out).finished for _ in range(3))

    def kill(self) -> bool:
        if self.rng.random() < 0.3:
            return in_child(self.train, kill_after=self.rng.uniform(0.01, 1.0)) == -signal.SIGKILL
        call, left = self.rng.choice(["fsync", "replace", "unlink", "open"]), self.rng.randrange(1, 25)

        def doomed() -> None:
            nonlocal left
            real = getattr(os, call)

            def deadly(*arguments: object, **options: object) -> object:
                nonlocal left
                left -= 1
                before = self.rng.random() < 0.5
                if left == 0 and before:
                    os.kill(os.getpid(), signal.SIGKILL)
                result = real(*arguments, **options)
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return result

            setattr(os, call, deadly)
            self.train()

        return in_child(doomed) == -signal.SIGKILL

    def corrupt(self) -> bool:
        in_child(lambda: train(self.config, self.out, "cpu", Silent(), stop_after=self.rng.randrange(5, 12)))
        newest = max((self.out / "checkpoints").glob("*.safetensors")).stem
        path = self.out / "checkpoints" / f"{newest}{self.rng.choice(['.json', '.safetensors'])}"
        data = bytearray(path.read_bytes())
        how = self.rng.choice(["flip", "cut", "empty", "gone"])
        if how == "flip":
            data[self.rng.randrange(len(data))] ^= 1 << self.rng.randrange(8)
        elif how == "cut":
            del data[self.rng.randrange(len(data)) :]
        elif how == "empty":
            data.clear()
        path.unlink() if how == "gone" else path.write_bytes(data)
        return True

    def disk_full(self) -> bool:
        limit = self.rng.randrange(100, 40_000)

        def limited() -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            self.train()

        return in_child(limited) == _REFUSED

    def no_permission(self) -> bool:
        """Root may write everywhere, so it becomes somebody else first."""
        steps = self.rng.randrange(1, 10)
        in_child(lambda: train(self.config, self.out, "cpu", Silent(), stop_after=steps))
        places = [self.out, self.out / "checkpoints"] if self.rng.random() < 0.5 else [self.out / "checkpoints"]
        modes = {path: stat.S_IMODE(path.stat().st_mode) for path in places}

        def powerless() -> None:
            if os.geteuid() == 0:
                # The digits may be installed where only root may read, so they are read before.
                known = formats.digits()
                formats.digits = lambda: known
                os.seteuid(NOBODY)
            self.train()

        for path in places:
            path.chmod(0o555)
        try:
            return in_child(powerless) == _REFUSED
        finally:
            for path, mode in modes.items():
                path.chmod(mode)

    def clock(self) -> bool:
        jump, real = self.rng.uniform(-3e8, 3e8), time.time

        def displaced() -> None:
            time.time = lambda: real() + jump
            train(self.config, self.out, "cpu", Silent(), stop_after=self.rng.randrange(5, 12))

        in_child(displaced)
        for path in self.out.rglob("*"):
            when = self.rng.uniform(0, 2e9)
            os.utime(path, (when, when))
        return True


def bits(out: Path) -> dict[str, torch.Tensor]:
    return load_file(out / "model.safetensors")


def undisturbed(folder: Path, model: str) -> dict[str, torch.Tensor]:
    """The bits that every run has to end with. Also imports all that a training needs, before anything is forked."""
    train(small(model), folder / f"undisturbed-{model}", "cpu", Silent())
    return bits(folder / f"undisturbed-{model}")


def inject(
    folder: Path, number: int, seed: int = 0, told: Callable[[str], object] = lambda line: None
) -> Counter[tuple[str, str]]:
    """Injects ``number`` faults of each kind in turn, and counts (fault, outcome).

    Args:
        folder: Where to work; it is open to everybody while this runs.
        number: How many faults in all.
        seed: Of everything random.
        told: Hears of every case.
    """
    torch.set_num_threads(1)
    folder.chmod(0o755)
    wanted = {model: undisturbed(folder, model) for model in ("vectors", "images")}
    outcomes: Counter[tuple[str, str]] = Counter()
    tries, done = 0, 0
    while done < number:
        fault = FAULTS[done % len(FAULTS)]
        rng = random.Random(f"{seed} {fault} {tries}")
        model = rng.choice(["vectors", "images"])
        place = folder / f"case-{tries:05d}"
        place.mkdir()
        tries += 1
        case = Case(place, model, rng)
        try:
            if not case.happen(fault):
                # The run was over before, for instance; nothing happened to it.
                shutil.rmtree(place)
                continue
            recovered = case.recover()
        except RuntimeError:
            recovered = False
        done += 1
        if not recovered:
            outcome = "lost"
        else:
            ended = bits(case.out)
            same = ended.keys() == wanted[model].keys() and all(torch.equal(ended[k], wanted[model][k]) for k in ended)
            outcome = "the same bits" if same else "other bits"
        outcomes[fault, outcome] += 1
        told(f"{done}/{number}: {fault}, {model}: {outcome} ({place.name})")
        if outcome == "the same bits":
            shutil.rmtree(place)
    return outcomes


def table(outcomes: Counter[tuple[str, str]]) -> str:
    lines = ["| fault | injected | ended with the same bits | other bits | lost |", "|---|---|---|---|---|"]
    for fault in FAULTS:
        counts = [outcomes[fault, outcome] for outcome in ("the same bits", "other bits", "lost")]
        lines.append(f"| {fault} | {sum(counts)} | {' | '.join(map(str, counts))} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--number", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        print(table(inject(Path(name), options.number, options.seed, lambda line: print(line, file=sys.stderr))))


if __name__ == "__main__":
    main()

"""A small command beside busy processes: its time with the threads that it chooses, over that with the best number of threads.

    python benchmarks/load.py [--busy 2] [--rounds 3] [--only digits]

Every command runs as a user runs it, with the start of Python and of torch. The settings take turns within a round, so that
whatever else the machine does falls on all of them.

chosen       without --threads
1, 2         with --threads 1 and 2
spinning     with --threads 2 and OMP_WAIT_POLICY=ACTIVE: threads that compute while they wait
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

COMMANDS = {
    "digits": ["sample", "digits", "--num", "8", "--seed", "1"],
    "checkerboard": ["sample", "checkerboard", "--num", "10", "--seed", "1"],
    "mnist": ["sample", "mnist", "--num", "4", "--evaluations", "18", "--seed", "1"],
}
SETTINGS = {
    "chosen": ([], "PASSIVE"),
    "1": (["--threads", "1"], "PASSIVE"),
    "2": (["--threads", "2"], "PASSIVE"),
    "spinning": (["--threads", "2"], "ACTIVE"),
}


@contextmanager
def busy(num: int) -> Iterator[None]:
    """``num`` processes that never wait."""
    processes = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(num)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def seconds(command: list[str], setting: str) -> float:
    """The time of one run of a command by the clock; its CPU time goes to stderr."""
    threads, policy = SETTINGS[setting]
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    environment["OMP_WAIT_POLICY"] = policy
    suffix = ".npy" if "checkerboard" in command else ".npz"
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "springwell", *command, *threads, "--device", "cpu", "--out", f"x{suffix}"]
        began, spent = time.monotonic(), os.times().children_user + os.times().children_system
        subprocess.run(words, cwd=folder, env=environment, check=True, capture_output=True)
        taken, spent = time.monotonic() - began, os.times().children_user + os.times().children_system - spent
        print(f"{' '.join(command[:2])}, {setting}: {taken:.1f} s, {spent:.1f} s of CPU time", file=sys.stderr, flush=True)
        return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--busy", type=int, default=2, help="processes beside the command")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    options = parser.parse_args()
    load = f"load {os.getloadavg()[0]:.1f} before"
    print(f"{os.cpu_count()} cores, {options.busy} busy processes, {load}; seconds, medians of rounds")
    print(f"{'command':14}{''.join(f'{name:>10}' for name in SETTINGS)}{'chosen / best':>15}   of each round")
    for name in options.only:
        taken: dict[str, list[float]] = {setting: [] for setting in SETTINGS}
        with busy(options.busy):
            for _ in range(options.rounds):
                for setting, times in taken.items():
                    times.append(seconds(COMMANDS[name], setting))
        ratios = [chosen / min(others) for chosen, *others in zip(*taken.values(), strict=True)]
        middle = {setting: statistics.median(times) for setting, times in taken.items()}
        ratio = middle["chosen"] / min(time for setting, time in middle.items() if setting != "chosen")
        cells = "".join(f"{value:10.1f}" for value in middle.values())
        print(f"{name:14}{cells}{ratio:15.2f}   {', '.join(f'{r:.2f}' for r in ratios)}", flush=True)


if __name__ == "__main__":
    main()

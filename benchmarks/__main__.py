"""All benchmarks, or some, one after another, and one page of what they print.

    python -m benchmarks                            # all; needs pip install 'springwell[bench,bench-tf]'; hours
    python -m benchmarks toy samplers --quick       # some, at a size that takes minutes
    python -m benchmarks --list

toy          time to a KL on the checkerboard against ebmkit and torchebm, cost and memory of a chain
images       an iteration of the paper's network against bare gradients
authors      an iteration of the paper's network against the authors' TensorFlow code, whose folder SPRINGWELL_AUTHORS names
samplers     effective samples per gradient and per second against blackjax
density      densities against zuko and normflows
likelihood   gradients for an error of log Z against ebmkit and blackjax
tables       held-out log-density of tables against mixtures, kernels and flows
inception    features per second, which FID is made of
data         decoding per second
scaling      how the cost grows with the batch, K, T and the resolution
gradients    a gradient and a step of a chain of a small network, by the batch
load         small commands beside busy processes, by the number of threads

Every benchmark is a process of its own, so that none inherits the threads, the memory or the compiled code of another; contests
take turns within one benchmark. The page has the versions, the threads and the load of the machine before and after.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent
PAGE = FOLDER.parent / "docs" / "results" / "benchmarks.md"
# What to add for a size that takes minutes.
QUICK: dict[str, list[str]] = {
    "toy": ["--only", "chain"],
    "images": ["--iterations", "1"],
    "authors": ["--rounds", "3"],
    "samplers": ["--targets", "gaussian", "--samplers", "mala", "--rounds", "1"],
    "density": [],
    "likelihood": [],
    "tables": ["--sets", "chain", "--folds", "1"],
    "inception": ["--repeats", "3"],
    "data": ["--num", "300"],
    "scaling": ["--repeats", "3"],
    "gradients": ["--rounds", "20"],
    "load": ["--rounds", "1", "--only", "digits"],
}
PACKAGES = ("springwell", "torch", "numpy", "ebmkit", "torchebm", "blackjax", "jax", "zuko", "normflows", "tensorflow")


class Ran(NamedTuple):
    """What became of a benchmark."""

    name: str
    command: str
    seconds: float
    load: tuple[float, float]
    code: int
    out: str


def run(name: str, quick: bool) -> Ran:
    """Runs one benchmark in a process of its own."""
    words = [*(QUICK[name] if quick else [])]
    command = [sys.executable, str(FOLDER / f"{name}.py"), *words]
    began, before = time.monotonic(), os.getloadavg()[0]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    # Progress goes to stderr, and so does the reason of a failure.
    out = ended.stdout if ended.returncode == 0 else ended.stdout + ended.stderr
    said = " ".join(["python", f"benchmarks/{name}.py", *words])
    return Ran(name, said, time.monotonic() - began, (before, os.getloadavg()[0]), ended.returncode, out.strip())


def versions() -> list[str]:
    """The versions of what is compared, as far as it is installed."""
    found = []
    for name in PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"{name} is not installed")
    return found


def page(results: list[Ran], words: list[str]) -> str:
    """The page, in Markdown, of results that ``python -m benchmarks`` with ``words`` gave."""
    threads = os.environ.get("OMP_NUM_THREADS", f"{os.cpu_count()} (not set)")
    lines = [
        "# Benchmarks",
        "",
        f"Written by `{' '.join(['python -m benchmarks', *words])}`. Times depend on the machine and on its other work;",
        "ratios of contestants that took turns depend on it much less. The load is the number of running processes.",
        "",
        f"- Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores, OMP_NUM_THREADS {threads}",
        f"- {', '.join(versions())}",
    ]
    for result in results:
        state = "" if result.code == 0 else f"; it ended with code {result.code}"
        load = f"load {result.load[0]:.1f} before and {result.load[1]:.1f} after"
        about = f"`{result.command}`: {result.seconds:.0f} s, {load}{state}"
        lines += ["", f"## {result.name}", "", about, "", "```text", result.out, "```"]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="which; default: all")
    parser.add_argument("--quick", action="store_true", help="at a size that takes minutes")
    parser.add_argument("--list", action="store_true", help="print their names")
    parser.add_argument("--out", type=Path, default=PAGE)
    options = parser.parse_args()
    if options.list:
        print("\n".join(QUICK))
        return
    if unknown := [name for name in options.names if name not in QUICK]:
        parser.error(f"{', '.join(unknown)}: unknown; choose {', '.join(QUICK)}")
    results = []
    for name in options.names or QUICK:
        print(f"{name} ...", file=sys.stderr, flush=True)
        results.append(run(name, options.quick))
        # After every one, so that an interruption loses nothing.
        options.out.write_text(page(results, [*options.names, *(["--quick"] if options.quick else [])]))
    print(options.out)
    sys.exit(any(result.code for result in results))


if __name__ == "__main__":
    main()

"""All benchmarks, or some, one after another, and one page of what they print.

    python -m benchmarks                            # all; needs pip install 'springwell[bench,bench-tf]'; hours
    python -m benchmarks toy samplers --quick       # some, at a size that takes minutes
    python -m benchmarks toy --add                  # one; the page keeps what it has of the others
    python -m benchmarks density --add -- --minutes 30 --data mnist         # one with its own options
    python -m benchmarks --list

toy          time to a KL on the checkerboard against ebmkit and torchebm, cost and memory of a chain
images       an iteration of the paper's network against bare gradients
authors      an iteration of the paper's network against the authors' TensorFlow code, whose folder SPRINGWELL_AUTHORS names
samplers     effective samples per gradient and per second against blackjax
density      densities against zuko and normflows; hours, also with --quick, unless its --out has finished cells
likelihood   gradients for an error of log Z against ebmkit and blackjax
tables       held-out log-density of tables against mixtures, kernels and flows
inception    features per second, which FID is made of
data         decoding per second
scaling      how the cost grows with the batch, K, T and the resolution
gradients    a gradient and a step of a chain of a small network, by the batch
load         small commands beside busy processes, by the number of threads

Every benchmark is a process of its own, so that none inherits the threads, the memory or the compiled code of another; contests
take turns within one benchmark. The page has the versions and the threads of the last run, and for every benchmark the command
that made it and the load of the machine before and after.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shlex
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
    """What became of a benchmark: its exit code and its section of the page, in Markdown."""

    code: int
    section: str


def run(name: str, words: list[str]) -> Ran:
    """Runs one benchmark in a process of its own."""
    command = [sys.executable, str(FOLDER / f"{name}.py"), *words]
    began, before = time.monotonic(), os.getloadavg()[0]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    # Progress goes to stderr, and so does the reason of a failure.
    out = ended.stdout if ended.returncode == 0 else ended.stdout + ended.stderr
    said = shlex.join(["python", f"benchmarks/{name}.py", *words])
    state = "" if ended.returncode == 0 else f"; it ended with code {ended.returncode}"
    load = f"load {before:.1f} before and {os.getloadavg()[0]:.1f} after"
    about = f"`{said}`: {time.monotonic() - began:.0f} s, {load}{state}"
    # Rows of a table are Markdown already.
    shown = out.strip() if out.startswith("|") else f"```text\n{out.strip()}\n```"
    return Ran(ended.returncode, f"{about}\n\n{shown}")


def sections(page: str) -> dict[str, str]:
    """The benchmarks of a page, by name."""
    _, *parts = re.split(r"^## (\w+)\n", page, flags=re.MULTILINE)
    return {name: text.strip() for name, text in zip(parts[::2], parts[1::2], strict=True)}


def versions() -> list[str]:
    """The versions of what is compared, as far as it is installed."""
    found = []
    for name in PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"{name} is not installed")
    return found


def page(found: dict[str, str]) -> str:
    """The page, in Markdown, of the sections of benchmarks."""
    threads = os.environ.get("OMP_NUM_THREADS", f"{os.cpu_count()} (not set)")
    lines = [
        "# Benchmarks",
        "",
        "Written by `python -m benchmarks`. Every section names the command that made it. Times depend on the machine and on",
        "its other work; ratios of contestants that took turns depend on it much less. The load is the number of running",
        "processes.",
        "",
        f"- Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores, OMP_NUM_THREADS {threads}",
        f"- {', '.join(versions())}",
    ]
    if missing := [name for name in QUICK if name not in found]:
        lines.append(f"- Not run: {', '.join(missing)}. `python -m benchmarks NAME --add` runs one and keeps the rest.")
    for name in QUICK:
        if name in found:
            lines += ["", f"## {name}", "", found[name]]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="which; default: all")
    parser.add_argument("--quick", action="store_true", help="at a size that takes minutes")
    parser.add_argument("--add", action="store_true", help="keep what the page has of other benchmarks")
    parser.add_argument("--list", action="store_true", help="print their names")
    parser.add_argument("--out", type=Path, default=PAGE)
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    options, own = parser.parse_args(words[:cut]), words[cut + 1 :]
    if options.list:
        print("\n".join(QUICK))
        return
    if unknown := [name for name in options.names if name not in QUICK]:
        parser.error(f"{', '.join(unknown)}: unknown; choose {', '.join(QUICK)}")
    if own and len(options.names) != 1:
        parser.error("options after -- are those of one benchmark; name it")
    found = sections(options.out.read_text()) if options.add and options.out.exists() else {}
    failed = False
    for name in options.names or QUICK:
        print(f"{name} ...", file=sys.stderr, flush=True)
        ran = run(name, own or (QUICK[name] if options.quick else []))
        found[name], failed = ran.section, failed or ran.code != 0
        # After every one, so that an interruption loses nothing.
        options.out.write_text(page(found))
    print(options.out)
    sys.exit(failed)


if __name__ == "__main__":
    main()

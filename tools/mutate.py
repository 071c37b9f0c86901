"""Mutation testing: changes one place of the source at a time, and asks whether any test notices.

    pip install cosmic-ray
    python tools/mutate.py --number 160 --seed 0 --out mutants.jsonl
    python tools/mutate.py --again mutants.jsonl --out survivors.jsonl

The operators are those of cosmic-ray. Its own runner is not used, since it writes mutants into the working tree and starts an
interpreter, which loads torch, for every mutant. Here a copy of the source in a temporary folder is changed, and a process
that has loaded torch already is forked. The tests of a mutant are those of its module in TESTS, the quickest first; the first
failure ends them. Places are drawn without replacement, modules by the number of their places. Left out are docstrings, type
hints, decorators, imports, ``__repr__``, ``__all__``, messages of errors and warnings, and operators on bits.

A mutant survives when all its tests pass, or when they pass for --budget seconds of the processor. A mutant that hangs is
counted as killed: it ends after twice the budget on the processor, or after 60 times the budget by the clock. The clock has so
much patience since a test may wait long for a busy machine.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib.util
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
_LEVELS = ["tests/test_level.py", "tests/test_generate.py", "tests/samplers/test_levels.py"]
_APPLICATIONS = "tests/applications/test_"
_CHAINS = [f"tests/samplers/test_{name}.py" for name in ("integrator", "langevin", "target", "chains", "checks", "laws")]
_LOG_Z = [f"tests/likelihood/test_{name}.py" for name in ("bits", "ratios", "wires", "annealed", "bracket", "bracket_api")]
_STEP = [f"tests/training/test_{name}.py" for name in ("wires", "parity", "density", "guard", "trainer")]

# The tests that concern each module.
TESTS: dict[str, list[str]] = {
    "schedule": [
        "tests/test_schedule.py",
        "tests/test_level.py",
        "tests/test_objectives.py",
        "tests/test_energy.py",
        "tests/test_theory.py",
    ],
    "noise": ["tests/test_noise.py", "tests/samplers/test_levels.py", "tests/test_properties.py", "tests/test_level.py"],
    "conditional": [
        "tests/samplers/test_chains.py",
        "tests/training/test_density.py",
        "tests/test_level.py",
        "tests/samplers/test_checks.py",
        "tests/test_objectives.py",
    ],
    "objectives": [
        "tests/test_objectives.py",
        "tests/training/test_wires.py",
        "tests/test_properties.py",
        "tests/training/test_parity.py",
    ],
    "level": [*_LEVELS, "tests/test_objectives.py", "tests/training/test_wires.py", "tests/test_model.py"],
    "generate": ["tests/test_generate.py", "tests/test_level.py", "tests/test_model.py", _APPLICATIONS + "interpolate.py"],
    "integrate": ["tests/test_integrate.py", "tests/test_model.py", "tests/data/test_toy.py"],
    "normalised": [
        "tests/test_normalised.py",
        "tests/energy/test_residual.py",
        "tests/energy/test_labelled.py",
        "tests/training/test_density.py",
    ],
    "samplers/adaptation": [
        "tests/samplers/test_adaptation.py",
        "tests/likelihood/test_annealed.py",
        "tests/training/test_wires.py",
    ],
    "samplers/base": [*_CHAINS, "tests/test_level.py"],
    "samplers/checks": ["tests/samplers/test_checks.py", "tests/samplers/test_chains.py"],
    "samplers/diagnostics": ["tests/samplers/test_diagnostics.py"],
    "samplers/hmc": _CHAINS,
    "samplers/integrator": _CHAINS,
    "samplers/jumps": ["tests/samplers/test_chains.py", "tests/test_level.py"],
    "samplers/langevin": _CHAINS,
    "samplers/nuts": ["tests/samplers/test_nuts.py", "tests/samplers/test_laws.py"],
    "samplers/target": _CHAINS,
    "likelihood/annealed": _LOG_Z,
    "likelihood/bits": ["tests/likelihood/test_bits.py", "tests/likelihood/test_wires.py"],
    "likelihood/bracket": ["tests/likelihood/test_diffusion.py", *_LOG_Z],
    "likelihood/decoder": ["tests/likelihood/test_decoder.py"],
    "likelihood/diffusion": ["tests/likelihood/test_diffusion.py"],
    "likelihood/quadrature": ["tests/likelihood/test_bracket.py", "tests/test_model.py", "tests/evaluation/test_toy.py"],
    "likelihood/ratios": _LOG_Z,
    "training/step": _STEP,
    "applications/batches": [_APPLICATIONS + "inpaint.py", _APPLICATIONS + "restore.py", "tests/test_noise.py"],
    "applications/compose": [_APPLICATIONS + "compose.py", _APPLICATIONS + "guidance.py"],
    "applications/inpaint": [_APPLICATIONS + "inpaint.py", "tests/test_properties.py"],
    "applications/interpolate": [_APPLICATIONS + "interpolate.py"],
    "applications/operators": [_APPLICATIONS + "restore.py"],
    "applications/restore": [_APPLICATIONS + "restore.py"],
}
# And of all modules.
LIMITS = "tests/test_limits.py"
_TO = {"Add", "Sub", "Mul", "Div", "Pow"}


class Mutant(NamedTuple):
    """One change: the variant number ``occurrence`` that ``operator`` makes of the node at (line, column) of a module."""

    module: str
    line: int
    column: int
    operator: str
    occurrence: int


def operators() -> dict[str, Any]:
    """cosmic-ray's operators, but those on bits, whose mutants every call would notice, and those that need arguments."""
    from cosmic_ray.operators.provider import OperatorProvider

    chosen = {}
    for name in (provider := OperatorProvider()):
        if name.startswith(("Variable", "RemoveDecorator", "ExceptionReplacer")):
            continue
        if name.startswith("ReplaceBinaryOperator") and name.rsplit("_", 1)[1] not in _TO:
            continue
        chosen[name] = provider[name]
    return chosen


def walk(node: Any) -> Iterator[Any]:
    yield node
    for child in getattr(node, "children", []):
        yield from walk(child)


def excluded(code: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Stretches of the source whose mutants do not count."""
    found: list[ast.AST] = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom):
            found.append(node)
        elif isinstance(node, ast.FunctionDef):
            found += [node] if node.name == "__repr__" else [*node.decorator_list, *filter(None, [node.returns])]
        elif isinstance(node, ast.ClassDef):
            found += node.decorator_list
        elif isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
            found.append(node.annotation)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.BinOp):
            found += [node] if isinstance(node.value.op, ast.BitOr) else []
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in {"warnings.warn", "cast", "TypeVar"}:
            found.append(node)
    places: list[Any] = found
    return [((p.lineno, p.col_offset), (p.end_lineno, p.end_col_offset)) for p in places]


def candidates(module: str) -> dict[tuple[int, int], list[Mutant]]:
    """The mutants of a module by their place."""
    import parso

    code = (SOURCE / "springwell" / f"{module}.py").read_text()
    without, chosen = excluded(code), operators()
    places: dict[tuple[int, int], list[Mutant]] = {}
    for node in walk(parso.parse(code)):
        if node.type == "operator" and node.parent.type == "parameters":
            continue
        for name, operator in chosen.items():
            for index, ((line, column), _) in enumerate(operator().mutation_positions(node)):
                if not any(begin <= (line, column) < end for begin, end in without):
                    places.setdefault((line, column), []).append(Mutant(module, line, column, name, index))
    return places


def mutated(mutant: Mutant) -> str | None:
    """The module's source with the change; None where it does not parse or has the same meaning to Python's parser."""
    import parso

    code = (SOURCE / "springwell" / f"{mutant.module}.py").read_text()
    tree, operator = parso.parse(code), operators()[mutant.operator]()
    for node in walk(tree):
        places = [place for place, _ in operator.mutation_positions(node)]
        if mutant.occurrence < len(places) and places[mutant.occurrence] == (mutant.line, mutant.column):
            parent = node.parent
            position = parent.children.index(node)
            parent.children[position] = operator.mutate(node, mutant.occurrence)
            changed: str = tree.get_code()
            try:
                same = ast.dump(ast.parse(changed)) == ast.dump(ast.parse(code))
            except SyntaxError:
                return None
            return None if same else changed
    return None


def sample(number: int, seed: int) -> list[Mutant]:
    """Mutants of all modules, as many of each as its share of all places and at least three, in an order drawn at random."""
    places = {module: candidates(module) for module in TESTS}
    total, chosen = sum(map(len, places.values())), []
    for module, found in places.items():
        draw, wanted = random.Random(f"{seed} {module}"), max(3, round(number * len(found) / total))
        for place in draw.sample(sorted(found), len(found)):
            mutant = draw.choice(found[place])
            if wanted and mutated(mutant) is not None:
                chosen.append(mutant)
                wanted -= 1
    random.Random(seed).shuffle(chosen)
    return chosen


def moved(row: dict[str, Any]) -> Mutant:
    """The mutant of an earlier run, whose line may have another number by now."""
    mutant = Mutant(*row["mutant"])
    lines = (SOURCE / "springwell" / f"{mutant.module}.py").read_text().splitlines()
    same = [number for number, line in enumerate(lines, 1) if line.strip() == row["was"]]
    if not same:
        raise SystemExit(f"{mutant.module}: has no line {row['was']!r} any more; draw a new sample")
    return mutant._replace(line=min(same, key=lambda number: abs(number - mutant.line)))


class Watch:
    """A plugin of pytest: the quickest tests first, an end when the budget is spent, and the names of what failed.

    Durations are those of earlier mutants. A test that has failed before counts as quicker than it is.
    """

    def __init__(self, durations: dict[str, float], budget: float):
        self.durations, self.budget, self.failed = durations, budget, ""
        self.session: Any = None

    def pytest_collection_modifyitems(self, session: Any, items: list[Any]) -> None:
        self.session = session
        items.sort(key=lambda item: self.durations.get(item.nodeid, 0.3))

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid
            self.durations[report.nodeid] = 0.5 * self.durations.get(report.nodeid, 0.3)
        if report.when == "call" and report.passed:
            self.durations.setdefault(report.nodeid, report.duration)
        if time.process_time() > self.budget:
            self.session.shouldstop = "budget"

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed and not self.failed:
            self.failed = f"{report.nodeid} (import)"


def child(tests: list[str], source: Path, answer: Path, times: Path, budget: float) -> None:
    """Runs the tests on the copy of the source, in this process, and ends it."""
    code = 3
    try:
        with open(answer.with_suffix(".txt"), "w") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            sys.path[:0] = [str(source), str(ROOT)]
            os.environ["PYTHONPATH"] = str(source)
            import pytest

            durations = json.loads(times.read_text()) if times.exists() else {}
            watch = Watch(durations, budget + time.process_time())
            options = ["-o", "addopts=", "-m", "not slow", "-p", "no:cacheprovider", "-x", "-q", "--tb=line"]
            code = int(pytest.main([*options, *tests], plugins=[watch]))
            import springwell

            assert Path(springwell.__file__).is_relative_to(source), springwell.__file__
            answer.write_text(json.dumps({"code": code, "failed": watch.failed}))
            times.write_text(json.dumps(watch.durations))
    finally:
        os._exit(code)


def run(tests: list[str], source: Path, times: Path, budget: float) -> dict[str, Any]:
    """Whether the tests pass, which one failed first, and the seconds."""
    answer = source.parent / "answer.json"
    answer.unlink(missing_ok=True)
    began, pid = time.monotonic(), os.fork()
    if pid == 0:
        os.setsid()
        spent = int(time.process_time() + 2 * budget)
        resource.setrlimit(resource.RLIMIT_CPU, (spent, spent))
        child(tests, source, answer, times, budget)
    while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0:
        time.sleep(0.05)
        if time.monotonic() - began > 60 * budget:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return {"outcome": "killed", "by": "timeout", "seconds": time.monotonic() - began}
    seconds = time.monotonic() - began
    if not answer.exists():
        hung = os.WIFSIGNALED(ended[1]) and os.WTERMSIG(ended[1]) == signal.SIGKILL
        return {"outcome": "killed", "by": "timeout" if hung else "crash", "seconds": seconds}
    said = json.loads(answer.read_text())
    if said["code"] == 5:
        raise SystemExit(f"{', '.join(tests)}: pytest found no tests, which says nothing about a mutant")
    # 0: all passed; 2: interrupted, here by the budget or by a module that cannot be imported.
    survived = said["code"] in (0, 2) and not said["failed"]
    return {"outcome": "survived" if survived else "killed", "by": said["failed"], "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=160, help="about how many mutants")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=40, help="seconds of the processor for one mutant's tests")
    parser.add_argument("--again", type=Path, help="run the survivors of this file again")
    parser.add_argument("--out", type=Path, required=True, help="a line of JSON for every mutant; finished ones are kept")
    options = parser.parse_args()
    if options.again:
        earlier = [json.loads(line) for line in options.again.read_text().splitlines()]
        mutants = [moved(row) for row in earlier if row["outcome"] == "survived"]
    else:
        mutants = sample(options.number, options.seed)
    done = (
        {tuple(json.loads(line)["mutant"]) for line in options.out.read_text().splitlines()} if options.out.exists() else set()
    )
    for name in ("torch", "numpy", "scipy.stats", "hypothesis", "pytest", "accelerate", "sklearn.mixture", "tyro", "msgspec"):
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "src")
        shutil.copytree(SOURCE, source, ignore=shutil.ignore_patterns("__pycache__"))
        for mutant in mutants:
            if tuple(mutant) in done or (changed := mutated(mutant)) is None:
                continue
            path = source / "springwell" / f"{mutant.module}.py"
            whole = path.read_text()
            line = changed.splitlines()[mutant.line - 1].strip()
            for text in (changed, whole):
                path.write_text(text)
                Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)
                if text is changed:
                    result = run([*TESTS[mutant.module], LIMITS], source, options.out.with_suffix(".times"), options.budget)
            row = {"mutant": mutant, "was": whole.splitlines()[mutant.line - 1].strip(), "becomes": line, **result}
            with options.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(f"{mutant.module}:{mutant.line} {result['outcome']} {result['seconds']:.0f} s  {line}", flush=True)


if __name__ == "__main__":
    main()

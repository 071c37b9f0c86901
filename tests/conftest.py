import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Some virtual machines announce AMX instructions and then trap them. torch reads this when it is loaded.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import pytest
import torch

from tests.interpreter import Interpreter, interpreter

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def python() -> Iterator[Interpreter]:
    """Runs programs as ``python`` does, in processes of their own that have torch at once."""
    with interpreter() as started:
        yield started


@pytest.fixture
def springwell(python: Interpreter, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the real command line in an empty directory."""

    def run(*arguments: Any, **options: Any) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return python.run(["-m", "springwell", *map(str, arguments)], **{"cwd": tmp_path, "env": environment, **options})

    return run

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture
def springwell(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the real command line in an empty directory."""

    def run(*arguments: Any, **options: Any) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "springwell", *map(str, arguments)]
        options = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 300, **options}
        return subprocess.run(command, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}, **options)

    return run

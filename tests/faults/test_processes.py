"""Two processes give what one gives, and the death of one ends both, or starts them again."""

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

ROOT = Path(__file__).parents[2]


def torchrun(python, folder, *arguments, restarts=0):
    """Two processes that torchrun starts, watches and, after a death, starts again."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", str(restarts)]
    # Restarted processes would otherwise find the addresses of the dead ones.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return python.run([*launch, "--no-python", "--", *python.command(*arguments)], cwd=folder, env=environment)


def together(python, folder, *arguments, **environment):
    """Two processes without a launcher."""
    return python.run_together(list(map(str, arguments)), folder, {**os.environ, "PYTHONPATH": str(ROOT), **environment})


@pytest.mark.parametrize(("model", "out", "batch"), [("checkerboard", "x.npy", 64), ("digits", "x.npz", 8)])
def test_samples_are_the_same_bits(springwell, python, tmp_path, model, out, batch):
    options = ("sample", model, "--num", 40, "--steps", 2, "--batch", batch, "--device", "cpu", "--seed", 3)
    one = springwell(*options, "--out", f"one-{out}")
    assert one.returncode == 0, one.stderr
    two = together(python, tmp_path, "-m", "springwell", *options, "--out", f"two-{out}")
    assert two.returncode == 0, two.stderr[-2000:]
    a, b = (np.load(tmp_path / f"{name}-{out}") for name in ("one", "two"))
    a, b = (x if isinstance(x, np.ndarray) else x["samples"] for x in (a, b))
    assert a.shape[0] == 40
    assert np.array_equal(a, b)


def test_a_folder_of_samples_is_the_same(springwell, python, tmp_path):
    options = ("sample", "digits", "--num", 20, "--steps", 1, "--batch", 4, "--device", "cpu")
    assert springwell(*options, "--out", "one").returncode == 0
    (tmp_path / "two").mkdir()
    for name in ("samples.json", "000000.png", "000001.png"):
        (tmp_path / "two" / name).write_bytes((tmp_path / "one" / name).read_bytes())
    two = together(python, tmp_path, "-m", "springwell", *options, "--out", "two")
    assert two.returncode == 0, two.stderr[-2000:]
    assert "holds the first 2 samples already" in two.stderr
    one = {path.name: path.read_bytes() for path in (tmp_path / "one").iterdir()}
    assert one == {path.name: path.read_bytes() for path in (tmp_path / "two").iterdir()}
    assert len(one) == 21


MEASURE = """
import sys
import torch
from springwell.app import cli
from springwell.evaluation import weights
from tests.evaluation.test_metrics import Tiny
torch.set_num_threads(1)
weights.load_inception = lambda *arguments, **options: Tiny(fc=torch.eye(6))
cli.main(["evaluate", "digits", "--num", "100", "--device", "cpu", "--out", sys.argv[1]])
"""


def test_evaluation_is_the_same(python, tmp_path, monkeypatch):
    (tmp_path / "measure.py").write_text(MEASURE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    one = python.run(["measure.py", "one"], cwd=tmp_path, env=environment)
    assert one.returncode == 0, one.stderr[-2000:]
    two = together(python, tmp_path, "measure.py", "two")
    assert two.returncode == 0, two.stderr[-2000:]
    a, b = (json.loads((tmp_path / name / "evaluation.json").read_text()) for name in ("one", "two"))
    assert a["quality"]["num_samples"] == 100
    for name, value in a["quality"].items():
        assert b["quality"][name] == (pytest.approx(value, rel=1e-6) if isinstance(value, float) else value), name
    assert {k: v for k, v in a.items() if k != "quality"} == {k: v for k, v in b.items() if k != "quality"}


TRAIN = """
import os, signal, sys
from springwell.training import step
from tests.training.tiny import tiny, train

real = step.update_ema

def deadly(average, current, decay, iteration):
    real(average, current, decay, iteration)
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    if sys.argv[2] == "killed" and first and os.environ["RANK"] == "1" and iteration == 15:
        os.kill(os.getpid(), signal.SIGKILL)

step.update_ema = deadly
train(tiny(), sys.argv[1])
"""


def test_a_killed_process_ends_the_run_and_a_restart_resumes_it(python, tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    whole = together(python, tmp_path, "train.py", "whole", "undisturbed", TORCHELASTIC_RESTART_COUNT="0")
    assert whole.returncode == 0, whole.stderr[-2000:]
    began = time.monotonic()
    stopped = torchrun(python, tmp_path, "train.py", "stopped", "killed")
    assert stopped.returncode != 0
    assert "Signal 9 (SIGKILL)" in stopped.stderr
    assert "another process of this training ended; its checkpoints are kept" in stopped.stderr
    # The timeout of the processes' own waiting is two hours; an end of the launcher's making takes seconds.
    assert time.monotonic() - began < 200
    assert not (tmp_path / "stopped" / "model.json").exists()
    resumed = torchrun(python, tmp_path, "train.py", "resumed", "killed", restarts=1)
    assert resumed.returncode == 0, resumed.stderr[-2000:]
    a, b = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "resumed"))
    assert all(torch.equal(a[name], b[name]) for name in a)

"""Memory, operations and threads: what a backward pass would keep is counted, and nothing of it stays."""

import gc
import os
import weakref

import pytest
import torch

from springwell.app.api import load
from springwell.app.cli import main
from springwell.app.config import with_fields
from springwell.app.cost import step_operations
from springwell.app.presets import preset
from springwell.devices import kept_tensors, threads_for
from springwell.errors import UserError
from springwell.level import LevelSampler
from springwell.model import Model
from springwell.schedule import NoiseSchedule


def count_and_forget():
    y = torch.ones(1000, requires_grad=True)
    # exp keeps its result, which sin keeps as its argument: one piece of memory.
    kept = kept_tensors(lambda: y.exp().sin())
    assert [tensor.untyped_storage().nbytes() for tensor in kept] == [4000]
    return weakref.ref(y)


def test_kept_tensors_are_counted_by_storage_and_let_go():
    alive = count_and_forget()
    gc.collect()
    assert alive() is None


def test_threads_grow_with_the_work_and_never_beyond_what_torch_takes(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert [threads_for(operations) for operations in (0, 4e7, 1.1e8, 1.6e8, 1e12)] == [1, 1, 2, 3, 4]


def test_operations_of_a_gradient_are_counted():
    """Two layers, 5 x 3 and 3 x 1, with one row: 2 x 18 forwards, and as many back to the input; weights get none."""
    first, second = torch.randn(5, 3), torch.randn(3, 1)

    def energy(y, t):
        return ((y @ first).tanh() @ second)[:, 0]

    model = Model(energy, NoiseSchedule.from_sigmas([0.5]), LevelSampler("mala", 1, 0.1), event_shape=(5,))
    assert model.gradient_operations() == 2 * 2 * (15 + 3)


def test_the_command_line_waits_passively_unless_told_otherwise(python):
    code = "import os, springwell.__main__ as m, sys; sys.argv = ['x', '--version']\ntry: m.main()\nexcept SystemExit: pass\n"
    code += "print(os.environ['OMP_WAIT_POLICY'])"
    for given, found in (({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE")):
        environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
        assert python.run(["-c", code], env={**environment, **given}).stdout.splitlines()[-1] == found


@pytest.mark.parametrize(
    ("words", "work"),
    [
        (["train", "checkerboard", "--batch", "64"], "springwell.app.api.train_run"),
        (["reproduce", "fig3"], "springwell.paper.common.trained"),
    ],
)
def test_commands_that_train_count_the_work_of_a_step_and_take_threads_for_it(words, work, monkeypatch, tmp_path):
    seen = []

    def stop(*arguments, **options):
        raise UserError("that is all")

    monkeypatch.setattr(work, stop)
    monkeypatch.setattr("springwell.devices.threads_for", lambda operations: seen.append(operations) or 3)
    monkeypatch.setattr(torch, "set_num_threads", seen.append)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main([*words, "--out", "out", "--device", "cpu"])
    config = preset("checkerboard")
    assert seen == [step_operations(with_fields(config, batch=64) if words[0] == "train" else config), 3]


def test_a_command_with_a_model_counts_the_work_of_its_rows(monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr("springwell.devices.threads_for", lambda operations: seen.append(operations) or 1)
    monkeypatch.setattr(torch, "set_num_threads", seen.append)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["sample", "checkerboard", "--num", "10", "--steps", "1", "--out", "x.npy", "--device", "cpu"])
    model = load("checkerboard")
    assert seen == [10 * model.gradient_operations(), 1]

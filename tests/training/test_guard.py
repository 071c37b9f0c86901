"""Divergence: what is called so, and a run that rolls back instead of being lost."""

import math
import signal

import pytest
import torch
from safetensors.torch import load_file

from springwell.app.presets import OURS, preset
from springwell.errors import DivergenceError
from springwell.progress import Silent
from springwell.store.run import Run
from springwell.training import loop, step
from springwell.training.guard import ENOUGH_ITERATIONS, TREND, Guard
from springwell.training.step import learning_rate
from tests.listener import Listener
from tests.training.tiny import changed, tiny, train

GOOD = {"loss": [0.5, -1.0], "f_pos": [3.0, -4.0], "f_neg": [3.0, -4.0], "displacement": [1.0, 0.8], "acceptance": [0.6, 0.7]}
COUNTS = [100.0, 100.0]


def with_value(name, t, value):
    return {**GOOD, name: [value if i == t else v for i, v in enumerate(GOOD[name])]}


def test_a_healthy_run_passes():
    guard = Guard(2, 10, [])
    for i in range(300):
        guard.watch(torch.tensor(1.0 + 0.5 * math.sin(i)))
        guard.check(GOOD, COUNTS, i, logged=True)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("loss", None, "at level 1: f is not finite"),
        ("f_pos", math.inf, "at level 1: f is not finite"),
        ("loss", -1001.0, "at level 1: f ran away"),
        ("displacement", 101.0, "at level 1: its chains ran away"),
        ("acceptance", 0.004, "at level 1: the chains stand still"),
    ],
)
def test_one_bad_level_is_named(name, value, words):
    guard = Guard(2, 10, [])
    with pytest.raises(DivergenceError, match=words):
        guard.check(with_value(name, 1, value), COUNTS, 7, logged=False)


def test_a_level_without_samples_proves_nothing():
    Guard(2, 10, []).check(with_value("loss", 1, None), [100.0, 0.0], 7, logged=False)
    Guard(2, 10, []).check(with_value("acceptance", 1, 0.0), [100.0, 63.0], 7, logged=False)


def test_a_gap_that_grows_is_called_before_it_ran_away():
    def run(gaps, lines=()):
        guard = Guard(2, 10, list(lines))
        for i, gap in enumerate(gaps):
            guard.check(with_value("loss", 0, gap), COUNTS, i, logged=True)

    rising = [20.0, 40.0, 60.0, 90.0, 120.0]
    with pytest.raises(DivergenceError, match="level 0: f is running away"):
        run(rising)
    run(rising[:-1])
    run([20.0, 40.0, 30.0, 90.0, 120.0])
    run([0.2 * gap for gap in rising])
    # A resumed run remembers the lines of its log.
    with pytest.raises(DivergenceError, match="level 0: f is running away"):
        run(rising[-1:], [with_value("loss", 0, gap) for gap in rising[:-1]])
    assert len(rising) == TREND


def test_gradients_that_explode_or_are_not_finite():
    guard = Guard(2, 10, [])
    for _ in range(ENOUGH_ITERATIONS + 1):
        guard.watch(torch.tensor(2.0))
    guard.watch(torch.tensor(1500.0))
    guard.check(GOOD, COUNTS, 1, logged=False)
    guard.watch(torch.tensor(3000.0))
    with pytest.raises(DivergenceError, match=r"gradient's norm is 1\.\d+e\+03 times its usual size"):
        guard.check(GOOD, COUNTS, 2, logged=False)
    guard = Guard(2, 10, [])
    guard.watch(torch.tensor(math.nan))
    guard.watch(torch.tensor(1.0))
    with pytest.raises(DivergenceError, match="the gradient is not finite"):
        guard.check(GOOD, COUNTS, 2, logged=False)


@pytest.fixture
def poisoned(monkeypatch):
    """Makes a weight nan at iteration 12 of the first ``times`` attempts."""

    def poison(out, times):
        real = step.update_ema

        def update(average, current, decay, iteration):
            real(average, current, decay, iteration)
            done = sum("rollback" in line for line in Run(out).read_metrics())
            if iteration == 12 and done < times:
                next(current.parameters()).data.fill_(math.nan)

        monkeypatch.setattr(step, "update_ema", update)

    return poison


def test_a_run_rolls_back_once_and_finishes(tmp_path, poisoned):
    poisoned(tmp_path / "run", 1)
    result = train(tiny(log_every=5), tmp_path / "run", "cpu", Silent())
    assert result.status == "finished"
    lines = Run(tmp_path / "run").read_metrics()
    (rollback,) = [line for line in lines if "rollback" in line]
    assert rollback["iteration"] == 10
    assert rollback["rollback"] == 1
    assert "not finite" in rollback["reason"]
    config = tiny(log_every=5)
    for line in lines:
        if "lr" in line:
            factor = 1.0 if line["iteration"] <= 10 else 0.5
            assert line["lr"] == pytest.approx(factor * learning_rate(config.training, line["iteration"] - 1))
    assert [line["iteration"] for line in lines if "lr" in line] == [5, 10, 15, 20, 25, 30]


def test_a_rolled_back_run_that_is_interrupted_ends_with_the_same_bits(tmp_path, poisoned):
    for name in ("whole", "parts"):
        poisoned(tmp_path / name, 1)
        if name == "parts":
            assert train(tiny(), tmp_path / name, "cpu", Silent(), stop_after=14).status == "interrupted"
        train(tiny(), tmp_path / name, "cpu", Silent())
    whole, parts = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(whole[key], parts[key]) for key in whole)
    assert Run(tmp_path / "whole").read_metrics() == Run(tmp_path / "parts").read_metrics()


def test_a_rollback_that_did_not_help_is_followed_by_one_that_goes_further_back(tmp_path, poisoned):
    poisoned(tmp_path / "run", 2)
    assert train(tiny(checkpoint_every=5), tmp_path / "run", "cpu", Silent()).status == "finished"
    first, second = (line for line in Run(tmp_path / "run").read_metrics() if "rollback" in line)
    assert (first["iteration"], second["iteration"]) == (5, 5)
    assert (first["lr_factor"], second["lr_factor"]) == (0.5, 0.1)


def test_checkpoints_that_a_run_went_back_from_return_when_it_gives_up(tmp_path, poisoned):
    poisoned(tmp_path / "run", 100)
    with pytest.raises(DivergenceError, match="the last good checkpoint is that of iteration 10"):
        train(tiny(checkpoint_every=5), tmp_path / "run", "cpu", Silent())
    names = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert names == [f"checkpoint-000000{n}.{kind}" for n in ("05", "10") for kind in ("json", "safetensors")]


def test_a_run_that_passes_what_was_set_aside_removes_it(tmp_path, poisoned):
    poisoned(tmp_path / "run", 2)
    train(tiny(checkpoint_every=5), tmp_path / "run", "cpu", Silent())
    assert not list((tmp_path / "run" / "checkpoints").glob("diverged-*"))


def test_a_lost_log_does_not_raise_the_learning_rate_again(tmp_path, poisoned):
    poisoned(tmp_path / "run", 1)
    assert train(tiny(log_every=5), tmp_path / "run", "cpu", Silent(), stop_after=14).status == "interrupted"
    (tmp_path / "run" / "metrics.jsonl").unlink()
    train(tiny(log_every=5), tmp_path / "run", "cpu", Silent())
    line = Run(tmp_path / "run").read_metrics()[-1]
    assert line["lr"] == pytest.approx(0.5 * learning_rate(tiny().training, line["iteration"] - 1))


@pytest.mark.parametrize(
    "line",
    [
        '{"iteration": 10, "loss": 3}',
        '{"iteration": 10, "loss": "four"}',
        '{"iteration": 10, "loss": [1, "x", 2, 3]}',
        '{"iteration": 10, "rollback": 1}\n' * 5,
        '{"iteration": 10, "a": ' + "[" * 100_000,
    ],
)
def test_odd_lines_of_the_log_do_not_stop_a_run(tmp_path, line):
    train(tiny(), tmp_path / "run", "cpu", Silent(), stop_after=10)
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write(line + "\n")
    assert train(tiny(), tmp_path / "run", "cpu", Silent()).status == "finished"


def test_the_guard_of_a_resumed_run_knows_no_later_lines(tmp_path, monkeypatch):
    train(tiny(log_every=1), tmp_path / "run", "cpu", Silent(), stop_after=10)
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 13, "loss": [9, 9, 9, 9]}\n')
    seen = []

    class Watched(Guard):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            seen.extend(self.gaps)

    monkeypatch.setattr(loop, "Guard", Watched)
    train(tiny(log_every=1), tmp_path / "run", "cpu", Silent(), stop_after=1)
    assert len(seen) == TREND
    assert [9, 9, 9, 9] not in seen


def test_rollbacks_are_bounded_and_then_there_is_advice(tmp_path, poisoned):
    poisoned(tmp_path / "run", 100)
    words = r"rolled back 3 times already; the last good checkpoint is that of iteration 10; try a lower lr"
    with pytest.raises(DivergenceError, match=words):
        train(tiny(), tmp_path / "run", "cpu", Silent())
    factors = [line["lr_factor"] for line in Run(tmp_path / "run").read_metrics() if "rollback" in line]
    assert factors == [0.5, 0.1, 0.01]
    with pytest.raises(DivergenceError, match="rolled back 3 times already"):
        train(tiny(), tmp_path / "run", "cpu", Silent())


def test_an_interruption_does_not_save_a_diverged_state(tmp_path, monkeypatch):
    real, told = step.update_ema, Listener()

    def update(average, current, decay, iteration):
        real(average, current, decay, iteration)
        if iteration == 12:
            next(current.parameters()).data.fill_(math.nan)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(step, "update_ema", update)
    assert train(tiny(), tmp_path / "run", "cpu", told).status == "interrupted"
    assert any("this state is not saved, the last checkpoint is kept" in line for line in told.said)
    assert [p.stem for p in (tmp_path / "run" / "checkpoints").glob("*.json")] == ["checkpoint-00000010"]


def test_an_interruption_just_before_a_rollback_is_heard(tmp_path, poisoned, monkeypatch):
    poisoned(tmp_path / "run", 1)
    real = loop.roll_back

    def roll_back(*arguments):
        signal.raise_signal(signal.SIGINT)
        real(*arguments)

    monkeypatch.setattr(loop, "roll_back", roll_back)
    result = train(tiny(), tmp_path / "run", "cpu", Silent())
    assert (result.status, result.iteration) == ("interrupted", 10)
    monkeypatch.setattr(loop, "roll_back", real)
    assert train(tiny(), tmp_path / "run", "cpu", Silent()).status == "finished"


def test_the_usual_norm_of_the_gradient_is_resumed(tmp_path):
    for name, parts in (("whole", (20,)), ("parts", (7, 13))):
        for part in parts:
            train(tiny(), tmp_path / name, "cpu", Silent(), stop_after=part)
    whole, parts = (
        load_file(tmp_path / name / "checkpoints" / "checkpoint-00000020.safetensors") for name in ("whole", "parts")
    )
    assert torch.equal(whole["guard"], parts["guard"])
    assert float(whole["guard"][1]) == 20


def test_without_a_checkpoint_a_rollback_begins_anew(tmp_path, poisoned):
    poisoned(tmp_path / "run", 1)
    assert train(tiny(checkpoint_every=1000), tmp_path / "run", "cpu", Silent()).status == "finished"
    first = Run(tmp_path / "run").read_metrics()[0]
    assert (first["iteration"], first["rollback"]) == (0, 1)


@pytest.mark.parametrize("name", ["mlp", "resnet"])
def test_a_provoked_divergence_never_costs_a_checkpoint(tmp_path, name):
    """A hundred times the learning rate, one step per chain from x_{t+1}, no clipping, no spectral norm.

    Images recover at a lower learning rate; in the plane such chains diverge at any.
    """
    values = {
        "iterations": 150,
        "batch": 24,
        "log_every": 10,
        "checkpoint_every": 10,
        "preview_every": 0,
        "clip": None,
        "warmup": 1,
    }
    if name == "mlp":
        config = changed(tiny(**values, lr=1.0), "sampler", num_steps=1, jump_proposals=0, start="noisy")
    else:
        base = preset("digits-t6")
        config = changed(base, "training", **values, **OURS, lr=100 * base.training.lr, lr_decay="constant", ema=0.99)
        config = changed(changed(config, "network", width=8, spectral_norm=False), "sampler", num_steps=1)
    told = Listener()
    if name == "mlp":
        with pytest.raises(DivergenceError, match="rolled back 3 times already"):
            train(config, tmp_path / "run", "cpu", told)
    else:
        assert train(config, tmp_path / "run", "cpu", told).status == "finished"
    num_rollbacks = sum("times the learning rate and other noise" in line for line in told.said)
    assert num_rollbacks == sum("rollback" in line for line in Run(tmp_path / "run").read_metrics())
    assert num_rollbacks == 3 if name == "mlp" else 1 <= num_rollbacks <= 3
    kept = list((tmp_path / "run" / "checkpoints").glob("*.safetensors"))
    for path in kept:
        assert all(bool(torch.isfinite(tensor).all()) for tensor in load_file(path).values())

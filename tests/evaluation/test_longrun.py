"""Long-run chains: exact on exact energies, the same bits after an interruption, and the commands that run them."""

import json
import math
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from springwell.data.source import DataSource
from springwell.evaluation import longrun
from springwell.evaluation.chains import FREE, Length, diagnose
from springwell.evaluation.longrun import Judge, Plan, long_run, marks
from springwell.evaluation.steps import Method, Steps
from springwell.level import LevelSampler
from springwell.model import Model
from springwell.progress import Silent
from springwell.schedule import NoiseSchedule
from tests.exact import GaussianEnergy, check_moments, gaussian_model

HMC = Method("hmc", 2)


def judge(model, seed=0):
    """Against held-out data of the law that the model has."""

    def draw(noise):
        return noise.normal(*model.event_shape)

    return Judge(model, DataSource(model.event_shape, draw, draw, model.shift, model.scale, num_held_out=40), seed)


def steps_of(model, fraction=0.8, marginal=0.7):
    return Steps(HMC, (fraction * model.schedule.sigma[1:]).float(), marginal, list(range(9)), [0.8] * 10)


def test_marks_are_powers_of_ten_and_the_end():
    assert marks(0) == [0]
    assert marks(1) == [0, 1]
    assert marks(1000) == [0, 1, 10, 100, 1000]
    assert marks(250) == [0, 1, 10, 100, 250]


def test_samples_have_the_exact_law_with_springs_and_without(tmp_path):
    """x_0 ~ N(0, 1) for unit data at any noise. 30 steps per level forget their starts to within 1 %."""
    model = gaussian_model()
    plan = Plan(steps=(30,), num=3000, marginal_steps=20)
    result, samples = long_run(model, plan, steps_of(model), judge(model), tmp_path)
    check_moments(samples["30"], 0.0, 1.0, slack=0.01)
    check_moments(samples["marginal-20"], 0.0, 1.0, slack=0.01)
    assert abs(result["runs"]["30"]["f_gap"]) < 4.5 * result["runs"]["30"]["f_gap_standard_error"] + 0.05
    assert [row["steps"] for row in result["marginal"]] == [0, 1, 10, 20]
    # Independent unit Gaussians are sqrt(2) apart; chains move towards that.
    moved = [row["moved"] for row in result["marginal"]]
    assert moved[0] == 0 < moved[1] < moved[2]
    assert abs(moved[3] - math.sqrt(2)) < 0.15
    assert json.loads((tmp_path / "longrun.json").read_text()) == result


class Stops(Silent):
    """A reporter that is interrupted after some steps of the bars of chains."""

    def __init__(self, after):
        self.left = after

    @contextmanager
    def bar(self, what, total, start=0):
        self.counts = "per level" in what or "without" in what
        yield self

    def advance(self, steps=1):
        self.left -= self.counts
        if self.left < 0:
            raise KeyboardInterrupt


def test_an_interrupted_run_goes_on_with_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setattr(longrun, "SAVE_EVERY", 0.0)
    monkeypatch.setattr(longrun, "STRETCH", 7)
    model = gaussian_model()
    plan = Plan(steps=(1, 3), num=5, marginal_steps=30)
    whole, samples = long_run(model, plan, steps_of(model), judge(model), tmp_path / "whole")
    for after in (4, 3, 8, 3, 2):
        with pytest.raises(KeyboardInterrupt):
            long_run(model, plan, steps_of(model), judge(model), tmp_path / "parts", Stops(after))
    parts, again = long_run(model, plan, steps_of(model), judge(model), tmp_path / "parts")
    assert samples.keys() == again.keys()
    for name, x in samples.items():
        assert torch.equal(x, again[name]), name
    for row, other in zip(whole["marginal"], parts["marginal"], strict=True):
        assert row == pytest.approx(other, abs=1e-4)


def test_samples_do_not_depend_on_the_batch_nor_on_their_number(tmp_path):
    model = gaussian_model()
    _, one = long_run(model, Plan((2,), 7, 12), steps_of(model), judge(model), tmp_path / "a")
    _, two = long_run(model, Plan((2,), 9, 12, batch=4), steps_of(model), judge(model), tmp_path / "b")
    for name, x in one.items():
        assert torch.allclose(x, two[name][:7], atol=1e-6)


def test_another_plan_starts_anew(tmp_path):
    model = gaussian_model()
    _, first = long_run(model, Plan((2,), 6, 0), steps_of(model), judge(model), tmp_path)
    _, other = long_run(model, Plan((2,), 6, 0, seed=1), steps_of(model), judge(model, 1), tmp_path)
    assert not torch.equal(first["2"], other["2"])


def test_one_step_per_level_is_the_guess_alone(tmp_path):
    """As in the paper: the guess is the first step, and the size of the steps of a kernel matters from the second on."""
    model = gaussian_model()
    samples = [long_run(model, Plan((1, 2), 6, 0), steps_of(model, f), judge(model), tmp_path / str(f))[1] for f in (0.8, 0.4)]
    assert torch.equal(samples[0]["1"], samples[1]["1"])
    assert not torch.equal(samples[0]["2"], samples[1]["2"])


def test_good_chains_pass_their_diagnosis_and_slow_ones_do_not(tmp_path):
    model = gaussian_model()
    # Two steps of 0.7 standard deviations of the conditional are near a quarter of a period, where draws are almost
    # independent.
    # Near half a period chains alternate between two sides and their distance from the centre mixes slowly.
    width = (model.schedule.scale**-2 + model.schedule.spring_precision).rsqrt()
    steps = steps_of(model)._replace(step_size=(0.7 * width).float())
    good = [d.numbers for d in diagnose(model, steps, [0, 4, 8, FREE], Length(300, 8))]
    assert [row["level"] for row in good] == [0, 4, 8, 0]
    assert [row["spring"] for row in good] == [True, True, True, False]
    for row in good:
        assert row["rhat"] < 1.05
        assert row["ess_bulk"] > 300
        assert row["ebfmi"] > 0.5
        assert row["gradients_per_step"] == 2
    slow = [d.numbers for d in diagnose(model, steps_of(model, 0.02, 0.02), [4, FREE], Length(300, 8))]
    for row in slow:
        assert row["rhat"] > 1.1
        assert row["ess_bulk"] < 100


def test_chains_that_stand_still_have_no_rhat(tmp_path):
    model = gaussian_model()
    with pytest.warns(RuntimeWarning):
        (found,) = diagnose(model, steps_of(model, 1e3, 1e3), [4], Length(20, 4))
    assert found.numbers["rhat"] is None
    assert found.numbers["acceptance"] == 0


@pytest.mark.parametrize("kernel", ["hmc", "nuts", "langevin"])
def test_longrun_from_the_command_line(springwell, tmp_path, kernel):
    quick = ("--pilot-chains", 4, "--pilot-steps", 6, "--pilot-levels", 3)
    command = ("longrun", "digits", "--kernel", kernel, "--steps", 1, 2, "--num", 8, "--marginal-steps", 3, *quick)
    result = springwell(*command, "--json")
    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout.splitlines()[-1])
    assert [row["total_steps"] for row in told["runs"].values()] == [12, 24]
    out = tmp_path / f"digits-longrun-{kernel}"
    for name in ("longrun.json", "longrun.png", "samples.png"):
        assert (out / name).stat().st_size > 100
    assert len(list(out.glob(f"steps-{'hmc2' if kernel == 'hmc' else kernel}/*/all-0.npz"))) == 1
    again = springwell(*command, "--json")
    assert json.loads(again.stdout.splitlines()[-1])["runs"] == told["runs"]


def test_longrun_of_vectors_and_diagnose(springwell, tmp_path):
    quick = ("--pilot-chains", 8, "--pilot-steps", 10)
    result = springwell("longrun", "checkerboard", "--steps", 1, 5, "--num", 50, "--marginal-steps", 10, *quick)
    assert result.returncode == 0, result.stderr
    assert "10 without spring" in result.stdout
    result = springwell("diagnose", "checkerboard", "--steps", 40, "--num", 4, *quick)
    assert result.returncode == 0, result.stderr
    assert "no spring" in result.stdout
    found = json.loads((tmp_path / "checkerboard-chains" / "diagnosis.json").read_text())
    assert [row["level"] for row in found["levels"]] == [0, 1, 2, 3, 0]
    assert (tmp_path / "checkerboard-chains" / "diagnosis.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("longrun", "checkerboard", "--steps", "0"), "--steps 0: needs numbers of at least 1"),
        (("longrun", "checkerboard", "--num", "0"), "--num 0: must be at least 1"),
        (("longrun", "checkerboard", "--band", "0.9", "0.6"), "--band 0.9 0.6: needs 0 < low < high < 1"),
        (("longrun", "checkerboard", "--pilot-chains", "0"), "--pilot-chains 0: out of range"),
        (("diagnose", "checkerboard", "--levels", "4"), "--levels 4: out of range; this model has levels 0 ... 3"),
        (("diagnose", "checkerboard", "--num", "1"), "--num 1: must be at least 2"),
        (("longrun", "checkerboard", "--fid"), "--fid: works for images only; checkerboard is a model of vectors [2]"),
        (("diagnose", "nonsense"), "nonsense: not a run"),
    ],
)
def test_bad_values_are_one_line(arguments, words, capsys, tmp_path, monkeypatch):
    from springwell.app.cli import main

    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    error = capsys.readouterr().err
    assert stop.value.code == 2
    assert words in error
    assert error.count("\n") == 1
    assert not np.any([path.name == "longrun.json" for path in tmp_path.rglob("*")])


def test_the_gap_is_f_of_held_out_data_less_that_of_samples():
    """f = -|y|^2 / (2 v) of level 0: samples at 3 are less likely than data from N(0, I), and held-out data are what counts."""
    model = gaussian_model()

    def far(noise):
        return 100 + noise.normal(*model.event_shape)

    def near(noise):
        return noise.normal(*model.event_shape)

    judged = Judge(model, DataSource(model.event_shape, far, near, model.shift, model.scale, num_held_out=40))
    found = judged(torch.full((10, *model.event_shape), 3.0))
    f_samples = -3 * 9 / 2
    assert found["f"] == pytest.approx(f_samples, rel=1e-4)
    assert found["f_gap"] == pytest.approx(judged.of_data["f"] - f_samples, rel=1e-4)
    # E f of data is -D / 2, with a standard deviation of sqrt(D / 2).
    assert abs(judged.of_data["f"] + 1.5) < 4.5 * math.sqrt(1.5 / 40)


def test_chains_without_spring_stand_in_the_coordinates_of_their_level(tmp_path):
    """y = scale x: steps of almost no length leave x where it was, and long ones reach N(0, I) with a scale of 0.6."""
    schedule = NoiseSchedule.from_sigmas([0.8, 0.9], 0.1)
    energy = GaussianEnergy(schedule)
    model = Model(lambda y, t: energy(y, t), schedule, LevelSampler("mala", 1, 0.1), event_shape=(3,))
    for marginal, num, moved in ((1e-5, 5, 0.0), (0.6, 2000, None)):
        steps = Steps(HMC, torch.full((2,), 0.3), marginal, [0, 1], [0.8] * 3)
        result, samples = long_run(model, Plan((2,), num, 20), steps, judge(model), tmp_path / str(num))
        if moved is not None:
            assert [row["moved"] for row in result["marginal"]] == pytest.approx([0.0] * 4, abs=1e-3)
        else:
            check_moments(samples["marginal-20"], 0.0, 1.0, slack=0.02)

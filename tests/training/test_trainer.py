"""The loop: resumption to the bit, the moving average, objectives, divergence, and what is written."""

import errno
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from springwell.app.api import load, save
from springwell.app.build import build_energy, build_schedule
from springwell.app.config import LinearConfig, LogSNRConfig, MarginalConfig, T6Config, with_fields
from springwell.data.toy import toy_data
from springwell.errors import DivergenceError, UserError
from springwell.noise import Noise
from springwell.progress import Silent
from springwell.store.checkpoint import save_tensors
from springwell.store.run import Run
from springwell.training import state, step
from springwell.training.ema import update_ema
from springwell.training.step import learning_rate
from tests.training.tiny import changed, tiny, train

# The paper's chains: from the noisy observation, without jumps.
PAPER = {"start": "noisy", "jump_proposals": 0}


def tensors(folder):
    return load_file(folder / "model.safetensors")


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "undisturbed"
    assert train(tiny(), out, "cpu").status == "finished"
    return out


@pytest.mark.parametrize("pieces", [(1, 9, 20), (10, 13, 7), (29, 1)])
def test_an_interrupted_run_ends_with_the_same_bits(tmp_path, undisturbed, pieces):
    out = tmp_path / "run"
    for i, piece in enumerate(pieces):
        status = train(tiny(), out, "cpu", stop_after=piece).status
        assert status == ("finished" if i == len(pieces) - 1 else "interrupted")
    assert same(tensors(out), tensors(undisturbed))
    newest = "checkpoints/checkpoint-00000030.safetensors"
    assert same(load_file(out / newest), load_file(undisturbed / newest))
    assert (out / "metrics.jsonl").read_text() == (undisturbed / "metrics.jsonl").read_text()


def test_seeds_differ_and_repeat(tmp_path, undisturbed):
    train(tiny(), tmp_path / "again", "cpu")
    train(tiny(seed=1), tmp_path / "other", "cpu")
    assert same(tensors(tmp_path / "again"), tensors(undisturbed))
    assert not same(tensors(tmp_path / "other"), tensors(undisturbed))


def test_a_finished_run_is_left_alone(undisturbed):
    before = {
        p: (p.stat().st_mtime_ns, p.read_bytes()) for p in undisturbed.rglob("*") if p.is_file() and p.name != "config.json"
    }
    for config in (tiny(), tiny(keep=5)):
        assert train(config, undisturbed, "cpu").status == "already finished"
    assert {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in before} == before


def test_the_global_generator_is_left_alone(tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train(tiny(iterations=3), tmp_path / "run", "cpu")
    load(tmp_path / "run").sample(10)
    assert torch.equal(torch.rand(3), expected)


def test_metrics_have_every_level_and_every_statistic(undisturbed):
    lines = Run(undisturbed).read_metrics()
    assert [line["iteration"] for line in lines] == [7, 14, 21, 28, 30]
    for line in lines:
        for name in ("loss", "f_pos", "f_neg", "displacement", "acceptance", "step_size"):
            assert len(line[name]) == 4
            assert all(isinstance(v, float) for v in line[name])


def test_a_metrics_line_cut_short_does_no_harm(tmp_path, undisturbed):
    out = tmp_path / "run"
    train(tiny(), out, "cpu", stop_after=15)
    with (out / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 21, "lo')
    train(tiny(), out, "cpu")
    assert (out / "metrics.jsonl").read_text() == (undisturbed / "metrics.jsonl").read_text()


def test_step_sizes_are_adapted_and_saved(undisturbed):
    model = load(undisturbed)
    first = 0.45 * model.schedule.sigma[1:].float()
    assert not torch.allclose(model.step_size, first)
    assert model.step_size.tolist() == pytest.approx(Run(undisturbed).read_metrics()[-1]["step_size"], rel=1e-5)


def test_hmc_trains_adapts_and_samples(tmp_path):
    config = changed(tiny(iterations=20), "sampler", kernel="hmc", num_leapfrog=3)
    train(config, tmp_path / "run", "cpu")
    model = load(tmp_path / "run")
    assert not torch.allclose(model.step_size, (0.45 * model.schedule.sigma[1:]).float())
    *_, (t, x, acceptance) = model.trajectory(torch.arange(16))
    assert t == 0
    assert bool(torch.isfinite(x).all())
    # Without a Metropolis test the acceptance would be 1.
    assert 0 < float(acceptance.mean()) < 1


def test_fixed_step_sizes_stay(tmp_path):
    config = changed(tiny(iterations=5), "sampler", target_acceptance=None)
    train(config, tmp_path / "run", "cpu")
    model = load(tmp_path / "run")
    assert torch.equal(model.step_size, (0.45 * model.schedule.sigma[1:]).float())


def test_old_checkpoints_are_removed(undisturbed):
    names = sorted(p.name for p in (undisturbed / "checkpoints").iterdir())
    assert names == [f"checkpoint-000000{i}.{kind}" for i in (20, 30) for kind in ("json", "safetensors")]


def test_a_truncated_checkpoint_is_passed_over(tmp_path, undisturbed):
    out = tmp_path / "run"
    train(tiny(), out, "cpu", stop_after=25)
    newest = out / "checkpoints" / "checkpoint-00000025.safetensors"
    newest.write_bytes(newest.read_bytes()[:-100])
    said = _Listener()
    train(tiny(), out, "cpu", reporter=said)
    assert any("checkpoint-00000025.safetensors: truncated or altered" in line for line in said.warnings)
    assert any("resuming" in line and "iteration 20" in line for line in said.lines)
    assert same(tensors(out), tensors(undisturbed))


@pytest.mark.parametrize("content", ["", "{}", "not json", '{"format": 99}', '{"format": 1, "iteration": "x"}', "[1]"])
def test_a_foreign_record_is_passed_over(tmp_path, content):
    out = tmp_path / "run"
    train(tiny(), out, "cpu", stop_after=20)
    (out / "checkpoints" / "checkpoint-00000099.json").write_text(content)
    said = _Listener()
    train(tiny(), out, "cpu", reporter=said, stop_after=1)
    assert any("checkpoint-00000099.json" in line for line in said.warnings)
    assert any("iteration 20" in line for line in said.lines)


def test_a_checkpoint_of_another_model_is_passed_over(tmp_path):
    out, other = tmp_path / "run", tmp_path / "other"
    train(changed(tiny(), "network", width=24), other, "cpu", stop_after=25)
    train(tiny(), out, "cpu", stop_after=10)
    for path in (other / "checkpoints").glob("checkpoint-00000025.*"):
        path.rename(out / "checkpoints" / path.name)
    said = _Listener()
    train(tiny(), out, "cpu", reporter=said, stop_after=1)
    assert any("belongs to another model" in line for line in said.warnings)
    assert any("iteration 10" in line for line in said.lines)


def test_a_run_with_checkpoints_of_another_model_alone_does_not_begin_anew(tmp_path):
    out, other = tmp_path / "run", tmp_path / "other"
    train(changed(tiny(), "network", width=24), other, "cpu", stop_after=10)
    train(tiny(), out, "cpu", stop_after=1)
    for path in (out / "checkpoints").iterdir():
        path.unlink()
    for path in (other / "checkpoints").iterdir():
        path.rename(out / "checkpoints" / path.name)
    with pytest.raises(UserError, match="belongs to another model, and there is no other; choose another folder"):
        train(tiny(), out, "cpu", reporter=Silent())
    assert (out / "metrics.jsonl").exists()


@pytest.mark.parametrize("content", ['"iteration": 28', '"iteration": -5', '"iteration": 1e999', '"a": ' + "[" * 100_000])
def test_an_altered_record_is_passed_over(tmp_path, undisturbed, content):
    out = tmp_path / "run"
    train(tiny(), out, "cpu", stop_after=25)
    record = out / "checkpoints" / "checkpoint-00000025.json"
    record.write_text(record.read_text().replace('"iteration": 25', content))
    said = _Listener()
    train(tiny(), out, "cpu", reporter=said)
    assert any("iteration 20" in line for line in said.lines)
    assert same(tensors(out), tensors(undisturbed))


def test_files_of_the_user_among_checkpoints_are_left_alone(tmp_path):
    train(tiny(), tmp_path / "run", "cpu", stop_after=10)
    folder = tmp_path / "run" / "checkpoints"
    mine = folder / "best-checkpoint-10.safetensors"
    mine.write_bytes((folder / "checkpoint-00000010.safetensors").read_bytes())
    train(tiny(), tmp_path / "run", "cpu")
    assert mine.exists()


def test_a_model_is_loaded_from_the_newest_checkpoint_that_can_be(tmp_path):
    out = tmp_path / "run"
    train(tiny(), out, "cpu", stop_after=20)
    path = out / "checkpoints" / "checkpoint-00000020.safetensors"
    values = load_file(path)
    values["model.scale"] = torch.full_like(values["model.scale"], math.nan)
    save_tensors(path, values, 20)
    told = []
    assert load(out, warn=told.append).iteration == 10
    assert "'scale' has values that are not finite" in told[0]


def test_a_configuration_that_claims_a_giant_takes_no_memory(tmp_path):
    save(load("checkerboard"), tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text())
    config["network"] |= {"width": 20_000, "depth": 1000}
    path.write_text(json.dumps(config))
    with pytest.raises(UserError, match="it belongs to another model"):
        load(tmp_path / "model")


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda c: changed(c, "training", lr=0.5), "lr=0.01, not lr=0.5"),
        (lambda c: changed(c, "network", width=17), "width=16, not width=17"),
        (lambda c: replace(c, data="rings"), "data='checkerboard', not data='rings'"),
    ],
)
def test_a_run_of_another_config_is_refused_by_name(tmp_path, change, name):
    out = tmp_path / "run"
    train(tiny(), out, "cpu", stop_after=2)
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    with pytest.raises(UserError, match=name.replace(".", r"\.")):
        train(change(tiny()), out, "cpu")
    assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == before


def test_free_fields_may_change(tmp_path, undisturbed):
    out = tmp_path / "run"
    train(tiny(), out, "cpu", stop_after=12)
    train(tiny(checkpoint_every=5, keep=3), out, "cpu")
    assert same(tensors(out), tensors(undisturbed))


def test_a_crash_while_the_config_was_written_is_forgotten(tmp_path, undisturbed):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".config.json.x1y2").write_text("{")
    train(tiny(), tmp_path / "run", "cpu")
    assert same(tensors(tmp_path / "run"), tensors(undisturbed))
    assert not (tmp_path / "run" / ".config.json.x1y2").exists()


def test_a_directory_of_something_else_is_refused(tmp_path):
    (tmp_path / "precious.txt").write_text("x")
    with pytest.raises(UserError, match="is not a run"):
        train(tiny(), tmp_path, "cpu")
    assert [p.name for p in tmp_path.iterdir()] == ["precious.txt"]


@pytest.mark.parametrize(
    ("objective", "schedule", "sampler", "lr"),
    [
        (
            "recovery",
            T6Config(),
            {"kernel": "langevin", "step_fraction": None, **PAPER},
            1e-3,
        ),
        ("recovery", LogSNRConfig(num_levels=5), {"num_steps": 6, **PAPER}, 1e-3),
        ("dsm", LinearConfig(num_levels=20), {}, 5e-3),
        (
            "marginal",
            MarginalConfig(initial_noise=0.1),
            {"kernel": "langevin", "step_fraction": 0.1, **PAPER},
            1e-3,
        ),
    ],
    ids=["t6", "ladder", "dsm", "marginal"],
)
def test_every_objective_moves_towards_the_data(tmp_path, objective, schedule, sampler, lr):
    """A few hundred iterations on eight_gaussians raise f at data over f between the modes, on the same circle."""
    config = changed(tiny(iterations=200, batch=128, lr=lr, log_every=50), "sampler", **sampler)
    config = with_fields(replace(config, schedule=schedule, data="eight_gaussians"), objective=objective)
    config = changed(config, "network", output_scale="step" if schedule.schedule == "t6" else "learned")
    train(config, tmp_path / "run", "cpu")
    model = load(tmp_path / "run")
    noise = Noise(9, torch.arange(2000))
    data = model.schedule.diffuse(toy_data("eight_gaussians").sample(noise), torch.zeros(2000, dtype=torch.long), noise)
    angle = torch.arange(8) * (torch.pi / 4) + torch.pi / 8
    between = 1.4 * torch.stack([angle.cos(), angle.sin()], -1)
    scale = model.schedule.scale[0].float()
    gap = model.f(scale * data).mean() - model.f(scale * between).mean()
    assert float(gap.detach()) > 0.1


def test_normal_approximation_negatives_have_their_law(tmp_path):
    """K = 0: y^- is x_{t+1} plus its drift plus sigma times a normal, so in units of sigma it moves by E[chi_2] / sqrt(2).

    Where sigma is below 0.1 the drift adds less than 1 % to that.
    """
    config = changed(tiny(iterations=60, batch=200, lr=1e-3, log_every=60), "sampler", num_steps=0)
    config = replace(config, schedule=LinearConfig(num_levels=200))
    train(config, tmp_path / "run", "cpu")
    (line,) = Run(tmp_path / "run").read_metrics()
    small = (load(tmp_path / "run").schedule.sigma[1:] < 0.1).tolist()
    moved = torch.tensor([d for d, s in zip(line["displacement"], small, strict=True) if s])
    samples = 60 * sum(small)
    spread = math.sqrt(1 - math.pi / 4)
    assert abs(float(moved.mean()) - math.sqrt(math.pi) / 2) < 4.5 * spread / math.sqrt(samples) + 0.01


def test_runaway_training_stops_with_its_level_and_keeps_the_last_checkpoint(tmp_path):
    config = changed(tiny(iterations=4000, lr=1.0, clip=None, log_every=5, checkpoint_every=5, warmup=100), "sampler", **PAPER)
    config = changed(config, "training", on_divergence="stop")
    with pytest.raises(DivergenceError, match=r"at level \d|is not finite"):
        train(config, tmp_path / "run", "cpu")
    kept = [json.loads(p.read_text())["iteration"] for p in (tmp_path / "run" / "checkpoints").glob("*.json")]
    for path in (tmp_path / "run" / "checkpoints").glob("*.safetensors"):
        assert all(bool(torch.isfinite(t).all()) for t in load_file(path).values())
    assert kept
    assert all(k % 5 == 0 for k in kept)


def test_non_finite_values_are_never_saved(tmp_path, monkeypatch):
    """A nan that the logged window would show only later is found before the checkpoint is written."""
    real = step.update_ema

    def poison(average, current, decay, iteration):
        real(average, current, decay, iteration)
        if iteration == 12:
            next(average.parameters()).data.fill_(float("nan"))

    monkeypatch.setattr(step, "update_ema", poison)
    with pytest.raises(DivergenceError, match="last good checkpoint is that of iteration 10"):
        train(tiny(log_every=1000, on_divergence="stop"), tmp_path / "run", "cpu")
    assert sorted(p.stem for p in (tmp_path / "run" / "checkpoints").glob("*.json")) == ["checkpoint-00000010"]


def test_moving_average_formula():
    average, current = torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False)
    values, weight = [1.0, 4.0, -2.0, 3.0], None
    for i, value in enumerate(values):
        torch.nn.init.constant_(current.weight, value)
        if i == 0:
            torch.nn.init.constant_(average.weight, 0.5)
            weight = 0.5
        decay = min(0.9, (1 + i) / (10 + i))
        update_ema(average, current, 0.9, i)
        weight = decay * weight + (1 - decay) * value
    assert float(average.weight.detach()) == pytest.approx(weight, rel=1e-6)


def test_weight_decay_takes_its_share_off_matrices_alone(tmp_path):
    """After one step: by lr times decay times the first weights, whatever the gradient was."""
    once = {"iterations": 1, "warmup": 0, "lr": 0.02}
    ends = {}
    for decay in (0.5, 0.0):
        train(tiny(**once, weight_decay=decay), tmp_path / str(decay), "cpu")
        ends[decay] = load_file(tmp_path / str(decay) / "checkpoints" / "checkpoint-00000001.safetensors")
    config = tiny(**once)
    first = dict(build_energy(config, build_schedule(config), (2,)).named_parameters())
    for name, weight in first.items():
        expected = 0.02 * 0.5 * weight if weight.ndim > 1 else torch.zeros_like(weight)
        torch.testing.assert_close(ends[0.0][f"current.{name}"] - ends[0.5][f"current.{name}"], expected, rtol=1e-3, atol=1e-6)
    assert sum(weight.ndim > 1 and bool(weight.any()) for weight in first.values()) > 2


def test_learning_rate_rises_and_falls():
    config = tiny(iterations=1000, warmup=100, lr=0.01)
    assert learning_rate(config.training, 0) == pytest.approx(0.01 / 100)
    assert learning_rate(config.training, 99) == pytest.approx(0.01, rel=0.03)
    assert learning_rate(config.training, 500) == pytest.approx(0.005)
    assert learning_rate(config.training, 999) < 1e-6
    constant = changed(config, "training", lr_decay="constant")
    assert learning_rate(constant.training, 999) == 0.01


def test_tensorboard(tmp_path):
    train(tiny(iterations=8, tensorboard=True), tmp_path / "run", "cpu")
    assert list((tmp_path / "run" / "tensorboard").glob("events*"))


class _Listener:
    """A reporter that remembers."""

    def __init__(self):
        self.lines, self.warnings, self.bar = [], [], Silent().bar

    def say(self, line):
        self.lines.append(line)

    def warn(self, line):
        self.warnings.append(line)


def test_two_processes_give_the_result_of_one(python, tmp_path):
    """The same global batch on two CPU processes: equal up to the order of float additions."""
    options = [
        "--iterations", "20", "--batch", "64", "--width", "16", "--num-features", "16", "--checkpoint-every", "7",
        "--preview-every", "0", "--warmup", "2", "--no-evaluate", "--device", "cpu", "--threads", "1", "--json", "--out",
    ]  # fmt: skip
    command = ["-m", "springwell", "train", "checkerboard", *options]
    one = python.run([*command, "one"], cwd=tmp_path)
    two = python.run_together([*command, "two"], cwd=tmp_path)
    for result in (one, two):
        assert result.returncode == 0, result.stderr[-2000:]
    first, second = tensors(tmp_path / "one"), tensors(tmp_path / "two")
    for name, value in first.items():
        torch.testing.assert_close(second[name], value, rtol=1e-3, atol=1e-4, msg=lambda m, name=name: f"{name}: {m}")
    # One process speaks for all.
    assert json.loads(result.stdout)["status"] == "finished"
    lines = (tmp_path / "two" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["iteration"] for line in lines] == [20]


def test_other_data_under_the_same_name_are_refused(tmp_path):
    path = tmp_path / "x.npy"
    rows = torch.randn(200, 2, generator=torch.Generator().manual_seed(0)).numpy()
    np.save(path, rows)
    config = replace(tiny(), data=f"npy:{path}")
    train(config, tmp_path / "run", "cpu", stop_after=10)
    np.save(path, 50 * rows + 1000)
    with pytest.raises(UserError, match="data are not what they were"):
        train(config, tmp_path / "run", "cpu")


def test_few_samples_do_not_prove_divergence(tmp_path):
    """One stuck chain of a level's single sample is chance, not collapse."""
    config = tiny(iterations=60, batch=4, log_every=1)
    assert train(config, tmp_path / "run", "cpu").status == "finished"


def test_two_trainings_do_not_share_a_directory(tmp_path):
    train(tiny(), tmp_path / "run", "cpu", stop_after=10)
    with (
        Run(tmp_path / "run").alone(print),
        pytest.raises(UserError, match="another process is training it; wait for that, or choose another folder"),
    ):
        train(tiny(), tmp_path / "run", "cpu")
    assert train(tiny(), tmp_path / "run", "cpu").status == "finished"


def test_a_full_disk_is_named_and_the_run_goes_on(tmp_path, monkeypatch, undisturbed):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    train(tiny(), tmp_path / "run", "cpu", stop_after=10)
    with monkeypatch.context() as patched:
        patched.setattr(state, "save_checkpoint", full)
        with pytest.raises(UserError, match=r"run: cannot be written \(No space left on device\); its checkpoints"):
            train(tiny(), tmp_path / "run", "cpu")
    train(tiny(), tmp_path / "run", "cpu")
    assert same(tensors(tmp_path / "run"), tensors(undisturbed))


def test_the_scale_of_the_fp16_loss_is_restored():
    first, second = (torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=2) for _ in range(2))
    weight = torch.ones(1, requires_grad=True)
    adam = torch.optim.SGD([weight], lr=0.1)
    for _ in range(3):
        adam.zero_grad()
        first.scale(weight.sum()).backward()
        first.step(adam)
        first.update()
    state.restore_scaler(second, state.scaler_tensor(first))
    assert second.state_dict() == first.state_dict()
    assert second.state_dict()["scale"] == 2.0**13
    assert second.state_dict()["_growth_tracker"] == 1

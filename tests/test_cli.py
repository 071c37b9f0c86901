"""The real command line: files, JSON, exit codes, interruption, bad input."""

import json
import os
import pty
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.data.published import photographs, write_folder

TINY = (
    "--iterations", "12", "--batch", "32", "--width", "8", "--num-features", "8", "--num-steps", "2", "--sample-steps", "3",
    "--log-every", "4", "--checkpoint-every", "5", "--preview-every", "10", "--device", "cpu", "--threads", "1",
)  # fmt: skip


def last_json(result):
    return json.loads(result.stdout.splitlines()[-1])


def files(folder):
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    command = [sys.executable, "-m", "springwell", "train", "two_moons", *TINY, "--out", "run", "--json"]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return folder / "run", result


def test_help_is_quick_and_imports_nothing_heavy(springwell, tmp_path):
    heavy = ("torch", "accelerate", "matplotlib", "numpy")
    script = f"import sys, springwell, springwell.app.cli; print([m for m in {heavy} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
    for command in (
        ["--help"],
        ["train", "--help"],
        ["train", "checkerboard", "--help"],
        ["sample", "--help"],
        ["evaluate", "--help"],
        ["reproduce", "--help"],
    ):
        result = springwell(*command)
        assert result.returncode == 0
        assert "springwell" in result.stdout
        assert result.stderr == ""


def test_train_trains_samples_measures_and_draws(finished):
    run, result = finished
    out = last_json(result)
    assert out["status"] == "finished"
    assert out["evaluation"]["num_samples"] == 2000
    assert {"kl", "nll", "entropy", "tv", "mmd2", "mmd2_null_95", "modes_covered"} <= out["evaluation"].keys()
    names = {p.name for p in run.iterdir()}
    assert {
        "config.json",
        "metrics.jsonl",
        "checkpoints",
        "previews",
        "model.safetensors",
        "evaluation.json",
        "report.png",
        "curves.png",
    } <= names
    assert (run / "previews" / "00000010.png").read_bytes().startswith(b"\x89PNG")
    assert len(result.stdout.splitlines()) == 1


def test_a_finished_run_says_so_and_does_nothing(springwell, finished):
    run, _ = finished
    before = files(run)
    result = springwell("train", "two_moons", *TINY, "--out", run, "--json")
    assert result.returncode == 0
    assert "is finished (12 iterations); nothing to do" in result.stderr
    assert last_json(result)["status"] == "already finished"
    assert files(run) == before


def test_sample_writes_the_same_numbers_as_python(springwell, finished, tmp_path):
    run, _ = finished
    result = springwell("sample", run, "--num", 100, "--seed", 5, "--out", "x.npy", "--device", "cpu", "--json")
    assert last_json(result)["shape"] == [100, 2]
    x = np.load(tmp_path / "x.npy")
    import springwell as sw

    np.testing.assert_allclose(x, sw.load(run).sample(100, seed=5).numpy(), atol=1e-5)
    springwell("sample", run, "--num", 30, "--seed", 5, "--batch", 8, "--out", "y.npz", "--device", "cpu")
    np.testing.assert_allclose(np.load(tmp_path / "y.npz")["samples"], x[:30], atol=1e-4)
    assert springwell("sample", run, "--num", 30, "--out", "z.png", "--device", "cpu").returncode == 0
    assert (tmp_path / "z.png").read_bytes().startswith(b"\x89PNG")


def test_evaluate_writes_where_it_is_told(springwell, finished, tmp_path):
    run, _ = finished
    before = files(run)
    result = springwell("evaluate", run, "--num", 300, "--out", "eval", "--device", "cpu")
    assert result.returncode == 0
    assert "kl " in result.stdout
    assert "nats" in result.stdout
    assert "300 samples" in result.stdout
    assert json.loads((tmp_path / "eval" / "evaluation.json").read_text())["num_samples"] == 300
    assert files(run) == before


def test_dry_run_prints_the_cost_and_writes_nothing(springwell, tmp_path):
    result = springwell("train", "checkerboard", *TINY, "--dry-run", "--json")
    out = last_json(result)
    assert out["gradient_evaluations"] == 12 * out["gradient_evaluations_per_iteration"]
    assert out["parameters"] > 0
    assert out["seconds_per_iteration"] > 0
    assert out["config"]["batch"] == 32
    assert list(tmp_path.iterdir()) == []


def test_presets_lists_them(springwell):
    assert "checkerboard" in springwell("presets").stdout
    assert "two_spirals" in last_json(springwell("presets", "--json"))["presets"]


def test_ctrl_c_saves_and_the_same_command_goes_on(tmp_path):
    options = [*TINY, "--iterations", "400", "--checkpoint-every", "1000", "--preview-every", "0", "--json"]
    command = [sys.executable, "-m", "springwell", "train", "rings", *options, "--out"]

    def start(name):
        return subprocess.Popen([*command, name], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    process = start("stopped")
    metrics = tmp_path / "stopped" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not (metrics.exists() and metrics.read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    report = json.loads(out.splitlines()[-1])
    assert report["status"] == "interrupted"
    assert 0 < report["iteration"] < 400
    assert "run the same command to go on" in err
    process = start("stopped")
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0
    assert f"at iteration {report['iteration']}" in err
    start("whole").communicate(timeout=300)
    first, second = files(tmp_path / "stopped"), files(tmp_path / "whole")
    name = next(p for p in first if p.name == "model.safetensors")
    assert first[name] == second[name]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train"], "no preset given; choose checkerboard"),
        (["train", "nope"], "preset 'nope': unknown; choose checkerboard"),
        (["train", "checkerboard", "--data", "cifar"], "--data 'cifar': unknown; choose checkerboard"),
        (["train", "checkerboard", "--data", "npy:none.npy"], "no such file"),
        (["train", "checkerboard", "--bogus", "3"], "--bogus"),
        (["train", "checkerboard", "--lr", "fast"], "--lr"),
        (["train", "checkerboard", "--lr", "-1"], "--lr -1.0: out of range"),
        (["train", "checkerboard", "--batch", "0"], "--batch 0: out of range"),
        (["train", "checkerboard", "--num-steps", "-2"], "--num-steps -2: out of range"),
        (["train", "checkerboard", "--schedule", "log-snr", "--num-levels", "0"], "--num-levels 0: out of range"),
        (["train", "checkerboard", "--device", "quantum"], "--device quantum: not available"),
        (["train", "checkerboard", "--threads", "0"], "--threads 0: out of range"),
        (["train", "checkerboard", "--out", "/proc/springwell"], "cannot be written"),
        (["sample", "nowhere"], "nowhere: not a run"),
        (["evaluate", "nowhere"], "nowhere: not a run"),
        (["reproduce", "fig99"], "fig99"),
        (["reproduce", "fig2", "--scale", "0"], "--scale 0: out of range"),
        (["frobnicate"], "command 'frobnicate': unknown; choose presets, train"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(springwell, tmp_path, arguments, words):
    result = springwell(*arguments, "--json")
    assert result.returncode == 2
    assert words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert "Traceback" not in result.stderr
    assert words in last_json(result)["error"]
    assert list(tmp_path.iterdir()) == []


def test_bad_input_to_a_run(springwell, finished, tmp_path):
    run, _ = finished
    before = files(run)
    for arguments, words in (
        (["train", "two_moons", *TINY, "--lr", "0.5", "--out", run], "--lr 0.01, not 0.5"),
        (["train", "rings", *TINY, "--out", run], "--data two_moons, not rings"),
        (["sample", run, "--num", "0"], "--num 0"),
        (["sample", run, "--num", 10**15, "--out", "x.npy"], "out of memory"),
        (["sample", run, "--out", "x.jpeg"], "unknown kind '.jpeg'; use .npy"),
        (["sample", run, "--noise-scale", "0.5"], "a Metropolis test needs 1"),
        (["evaluate", run, "--num", "3"], "--num 3: out of range"),
    ):
        result = springwell(*arguments, "--device", "cpu")
        assert result.returncode == 2, result.stderr
        assert words in result.stderr
        assert "Traceback" not in result.stderr
    assert files(run) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_unwritable_directory(springwell, tmp_path):
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o500)
    result = springwell("train", "checkerboard", *TINY, "--out", folder / "run")
    assert result.returncode == 2
    assert "cannot be written" in result.stderr


def test_data_of_ones_own_in_three_dimensions(springwell, tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal([1, 2, 3], [1, 5, 0.1], (500, 3)))
    result = springwell("train", "checkerboard", *TINY, "--data", "npy:x.npy", "--out", "run", "--json")
    assert result.returncode == 0, result.stderr
    assert "mmd2" in last_json(result)["evaluation"]
    result = springwell("sample", "run", "--num", 500, "--device", "cpu", "--out", "s.npy")
    assert np.load(tmp_path / "s.npy").shape == (500, 3)


def test_divergence_is_exit_code_1(springwell):
    result = springwell(
        "train", "checkerboard", *TINY, "--iterations", "3000", "--lr", "1", "--clip", "None", "--chain-start", "noisy",
        "--jump-proposals", "0", "--out", "run",
    )  # fmt: skip
    assert result.returncode == 1
    assert "diverged" in result.stderr
    assert "at level" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("name", ["fig2", "fig3", "ladder"])
def test_figures_are_drawn_with_their_numbers(springwell, tmp_path, name):
    """At a hundredth of the iterations: the picture, the numbers beside it, and reuse of the runs by a second call."""
    arguments = ("reproduce", name, "--scale", "0.01", "--device", "cpu", "--threads", "1", "--json")
    result = springwell(*arguments)
    assert result.returncode == 0, result.stderr
    out = last_json(result)
    assert (tmp_path / out["figure"]).read_bytes().startswith(b"\x89PNG")
    numbers = json.loads((tmp_path / out["numbers"]).read_text())
    if name == "fig2":
        for rows in numbers["data"].values():
            recovery, marginal = rows["recovery"]["gradient_evaluations"], rows["marginal"]["gradient_evaluations"]
            # Equal up to the rounding of the number of iterations.
            assert abs(recovery - marginal) <= 31
    elif name == "ladder":
        ladder, rule = (numbers[kind]["gradient_evaluations"] for kind in ("ladder", "authors' rule"))
        assert abs(ladder - rule) <= 31
    else:
        assert [level["t"] for level in numbers["levels"]] == [4, 3, 2, 1, 0]
    if name == "fig3":
        models = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("model.safetensors")}
        assert springwell(*arguments).returncode == 0
        assert {p: p.stat().st_mtime_ns for p in models} == models


def test_an_early_evaluation_is_not_taken_for_the_final_one(springwell, tmp_path):
    command = ("train", "checkerboard", *TINY, "--preview-every", "0", "--out", "run", "--json")
    result = springwell(*command)
    first = last_json(result)["evaluation"]
    early = {**first, "iteration": 5, "kl": 99.0}
    (tmp_path / "run" / "evaluation.json").write_text(json.dumps(early))
    assert last_json(springwell(*command))["evaluation"]["kl"] == pytest.approx(first["kl"])


def test_errors_are_one_line_on_a_terminal_too(tmp_path):
    controller, terminal = pty.openpty()
    command = [sys.executable, "-m", "springwell", "train", "checkerboard", "--lr", "abc"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=terminal, stderr=terminal, env={**os.environ, "TERM": "xterm-256color"}
    )
    assert process.wait(timeout=60) == 2
    os.close(terminal)
    said = os.read(controller, 100_000).decode()
    os.close(controller)
    assert said.count("\n") == 1
    assert "--lr" in said
    assert "\x1b" not in said
    assert "──" not in said


def test_dry_run_on_a_folder_decodes_one_image_and_writes_nothing(springwell, tmp_path):
    write_folder(tmp_path / "photographs", photographs(12, 24, 20))
    options = ("--data", "folder:photographs", "--image-size", 16, "--data-root", tmp_path / "root", "--width", 8)
    result = springwell("train", "digits", *options, "--dry-run", "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["parameters"] > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["photographs"]


def test_a_reader_that_has_enough_is_no_error(tmp_path):
    command = f"{sys.executable} -m springwell presets --json | head -c 5; exit ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, '{"com', "")


@pytest.mark.parametrize("content", ["{ not json", '{"iteration": 5, "num_samples": 5, "mmd2": 1}', "[1]", "[" * 100_000])
def test_a_damaged_evaluation_is_measured_again(tmp_path, content):
    from springwell.app.cli.evaluate import known_evaluation

    path = tmp_path / "evaluation.json"
    assert known_evaluation(path) == {}
    path.write_text(content)
    assert known_evaluation(path) == {}

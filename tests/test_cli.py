"""The real command line: files, JSON, exit codes, interruption, bad input."""

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import springwell as sw
from springwell.app.cli import COMMANDS, find, main
from springwell.app.messages import as_options
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
def finished(python, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    result = python.run(["-m", "springwell", "train", "two_moons", *TINY, "--out", "run", "--json"], cwd=folder)
    assert result.returncode == 0, result.stderr
    return folder / "run", result


@pytest.fixture
def here(tmp_path, monkeypatch, capsys):
    """Runs a command in this process, in an empty directory: its exit code, and what it printed."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        with pytest.raises(SystemExit) as done:
            main(list(map(str, arguments)))
        printed = capsys.readouterr()
        return done.value.code, printed.out, printed.err

    return run


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


def test_presets_say_what_they_are_what_they_cost_and_which_ship(springwell):
    lines = {line.split()[0]: line for line in springwell("presets").stdout.splitlines() if line}
    assert lines["mnist"].endswith("MNIST by 72 levels without chains and a U-Net.")
    assert "53 min" in lines["mnist"]
    assert " yes " in lines["mnist"]
    assert " yes " not in lines["two_spirals"]
    rows = last_json(springwell("presets", "--json"))["presets"]
    assert rows["two_spirals"]["ships"] is False
    assert rows["mnist"]["gradient_evaluations"] == 2 * 16 * 25_000
    assert rows["mnist"]["config"]["num_levels"] == 72
    assert all(row["about"].endswith(".") for row in rows.values())


def test_help_shows_the_options_that_apply(springwell):
    mnist, digits, vectors = (springwell("train", name, "--help").stdout for name in ("mnist", "digits", "checkerboard"))
    for title in ("schedule options", "network options", "sampler options", "training options", "images options"):
        assert title in mnist
    assert "--dense-units INT" in mnist
    assert "--num-steps" not in mnist
    assert "--target-acceptance" in digits
    assert "--dense-units" not in digits
    assert "--network KIND" in digits
    assert "--dense-units" in springwell("train", "digits", "--network", "unet", "--help").stdout
    for option in ("--flip", "--image-size", "--fid-every", "--precision", "--multipliers"):
        assert option not in vectors
    assert "--evaluate, --no-evaluate" in vectors
    assert "--init-from RUN" in vectors
    assert "RUN" in springwell("sample", "--help").stdout.splitlines()[0]
    # Lines of a docstring are joined, so that a box is filled whatever the source's line breaks are.
    words = " ".join(line.strip("│ ") for line in mnist.splitlines())
    assert "noise: use the precision of the level's noise, so that a U-Net adds" in words
    assert any(line.rstrip("│ ").endswith("noise: use the") for line in mnist.splitlines())


def test_words_become_values():
    from springwell.app.cli import parse

    _, command = parse(
        ["train", "checkerboard", "--iterations", "1e3", "--batch", "1_000", "--seed=7", "--clip", "None", "--no-evaluate"]
    )
    training = command.config.training
    assert (training.iterations, training.batch, training.seed, training.clip) == (1000, 1000, 7, None)
    assert not command.evaluate
    _, command = parse(
        [
            "train",
            "digits",
            "--network",
            "unet",
            "--dense-units",
            "4",
            "--kernel",
            "hmc",
            "--num-leapfrog",
            "3",
            "--multipliers",
            "1",
            "2",
            "2",
        ]
    )
    assert (command.config.network.dense_units, command.config.sampler.num_leapfrog) == (4, 3)
    assert command.config.network.multipliers == (1, 2, 2)
    for word, value in (("noise", "noise"), ("2", 2.0)):
        _, command = parse(["train", "digits", "--base-precision", word])
        assert command.config.network.base_precision == value
    _, command = parse(["sample", "run", "--num", "2e2"])
    assert (command.run, command.num) == ("run", 200)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("batch=7: cannot be divided among 2 processes", "--batch 7: cannot be divided among 2 processes"),
        ("data='npy:a b.npy': no such file", "--data npy:a b.npy: no such file"),
        ("flip=False: no; compile=True: yes", "--no-flip: no; --compile: yes"),
        ("sigmas=(0.5, 1.5): expected float <= 1.0", "--sigmas 0.5 1.5: expected float <= 1.0"),
        ("noise_scale: belongs to kernel='langevin'", "--noise-scale: belongs to --kernel langevin"),
        ("give image_size", "give --image-size"),
        ("c/config.json: training.lr='high': expected float", "c/config.json: training.lr='high': expected float"),
        ("--given 0=0.5: cannot be read", "--given 0=0.5: cannot be read"),
        ("use a smaller width; f = 3", "use a smaller width; f = 3"),
    ],
)
def test_arguments_are_shown_as_options(text, shown):
    assert as_options(text) == shown


def test_interruption_during_imports_prints_no_traceback(tmp_path):
    """SIGINT at once, before and while modules are imported: at most one line."""
    for delay in (0.4, 0.8, 1.6):
        command = [sys.executable, "-m", "springwell", "train", "checkerboard", "--out", "run"]
        process = subprocess.Popen(
            command,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A shell that runs the tests in the background has its children ignore the signal.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        deadline = time.monotonic() + 60
        # Python itself is up once its main module is mapped; an earlier signal is its own affair.
        while "springwell" not in Path(f"/proc/{process.pid}/cmdline").read_text() and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
        assert process.returncode in (130, -signal.SIGINT)
        assert "Traceback" not in err


def test_an_interruption_of_the_first_import_prints_no_traceback():
    """What is imported before ``main`` can catch a SIGINT is the package itself, which imports nothing more."""
    begun = (
        "import sys; known = set(sys.modules); import springwell, springwell.__main__; "
        "print(sorted(set(sys.modules) - known - {'__future__'}))"
    )
    source = str(Path(sw.__file__).parent.parent)
    bare = [sys.executable, "-S", "-c", f"import sys; sys.path.append({source!r}); {begun}"]
    result = subprocess.run(bare, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "['springwell', 'springwell.__main__']"
    interrupt = (
        "import signal, sys, springwell.__main__ as m; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "sys.meta_path.insert(0, type('', (), {'find_spec': lambda *_: signal.raise_signal(signal.SIGINT)})); m.main()"
    )
    result = subprocess.run([sys.executable, "-c", interrupt], capture_output=True, text=True, check=False)
    assert result.stderr == "springwell: interrupted\n"
    assert result.returncode in (130, -signal.SIGINT)


def test_every_command_says_what_it_does_in_one_place():
    for name, (_, about) in COMMANDS.items():
        assert find(name)[0].__doc__.splitlines()[0] == about


def test_an_existing_file_is_not_overwritten_silently(springwell, finished, tmp_path):
    run, _ = finished
    options = ("sample", run, "--num", 8, "--device", "cpu", "--out", "x.npy")
    assert springwell(*options).returncode == 0
    before = (tmp_path / "x.npy").read_bytes()
    result = springwell(*options, "--seed", 1)
    assert result.returncode == 2
    assert "--out x.npy: exists; choose another name, or add --overwrite" in result.stderr
    assert (tmp_path / "x.npy").read_bytes() == before
    assert springwell(*options, "--seed", 1, "--overwrite").returncode == 0
    assert (tmp_path / "x.npy").read_bytes() != before


def test_a_name_that_means_two_models_is_said_to(springwell, finished, tmp_path):
    run, _ = finished
    sample = ("--num", 8, "--steps", 1, "--device", "cpu", "--overwrite", "--out")
    shutil.copytree(run, tmp_path / "checkerboard")
    result = springwell("sample", "checkerboard", *sample, "a.npy")
    assert "checkerboard: the run in ./checkerboard; zoo:checkerboard is the model that ships" in result.stderr
    assert springwell("sample", "zoo:checkerboard", *sample, "b.npy").returncode == 0
    a, b = (np.load(tmp_path / name) for name in ("a.npy", "b.npy"))
    assert not np.array_equal(a, b)
    (tmp_path / "runs").mkdir()
    (tmp_path / "checkerboard").rename(tmp_path / "runs" / "checkerboard")
    result = springwell("sample", "checkerboard", *sample, "a.npy")
    assert "checkerboard: the model that ships; runs/checkerboard is your run" in result.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), b)


def test_a_run_that_is_not_finished_says_so(springwell, finished, tmp_path):
    run, _ = finished
    shutil.copytree(run, tmp_path / "run")
    for name in ("model.json", "model.safetensors"):
        (tmp_path / "run" / name).unlink()
    result = springwell("sample", "run", "--num", 8, "--steps", 1, "--device", "cpu", "--out", "a.npy")
    assert result.returncode == 0, result.stderr
    assert "warning: run: its training is not finished (iteration 12 of 12)" in result.stderr


def test_a_run_remembers_its_data_and_may_be_measured_on_others(springwell, tmp_path):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", rng.normal(size=(500, 2)))
    assert springwell("train", "checkerboard", *TINY, "--data", "npy:x.npy", "--no-evaluate", "--out", "run").returncode == 0
    assert json.loads((tmp_path / "run" / "config.json").read_text())["data"] == f"npy:{tmp_path / 'x.npy'}"
    (tmp_path / "elsewhere").mkdir()
    options = ("--num", 100, "--device", "cpu", "--json", "--out")
    result = springwell("evaluate", "../run", *options, "a", cwd=tmp_path / "elsewhere")
    assert result.returncode == 0, result.stderr
    near = last_json(result)["evaluation"]["mmd2"]
    np.save(tmp_path / "far.npy", rng.normal(3, 1, size=(500, 2)))
    result = springwell("evaluate", "run", *options, "b", "--data", "npy:far.npy")
    assert result.returncode == 0, result.stderr
    # The same standard deviation, three of them away: in the model's units nothing of it overlaps with the samples.
    assert last_json(result)["evaluation"]["mmd2"] > 1.2 * near
    assert last_json(result)["evaluation"]["nll"] > 4
    result = springwell("evaluate", "run", "--num", 100, "--device", "cpu", "--data", "npy:far.npy")
    assert "run-evaluation/evaluation.json" in result.stdout
    assert not (tmp_path / "run" / "evaluation.json").exists()
    (tmp_path / "x.npy").rename(tmp_path / "y.npy")
    result = springwell("evaluate", "run", "--num", 100, "--device", "cpu")
    assert result.returncode == 2
    assert "x.npy: no such file; where they have moved, evaluate, likelihood and score find them by --data" in result.stderr


def test_more_iterations_extend_a_finished_run_and_weights_may_be_another_runs(springwell, finished, tmp_path):
    run, _ = finished
    shutil.copytree(run, tmp_path / "run")
    options = [*TINY, "--no-evaluate", "--json", "--out"]
    result = springwell("train", "two_moons", *options, "run", "--iterations", 15)
    assert result.returncode == 0, result.stderr
    assert last_json(result)["iteration"] == 15
    result = springwell("train", "two_moons", *options, "fine", "--init-from", run, "--lr", 1e-6, "--iterations", 1)
    assert result.returncode == 0, result.stderr
    import springwell as sw

    before, after = sw.load(run).tensors(), sw.load(tmp_path / "fine").tensors()
    for name in before:
        if name.startswith("energy."):
            np.testing.assert_allclose(after[name], before[name], atol=1e-5)


def test_out_of_memory_names_the_options_to_lower(python, tmp_path):
    options = ("--batch", "1e6", "--width", "4096", "--iterations", "1", "--no-evaluate", "--device", "cpu")
    limited = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30)); import springwell.__main__ as m; m.main()"
    )
    result = python.run(["-c", limited, "train", "checkerboard", *options], cwd=tmp_path)
    assert result.returncode == 2, result.stderr
    assert "out of memory; lower --batch or --width, or raise --accumulate" in result.stderr


def test_ctrl_c_saves_and_the_same_command_goes_on(python, tmp_path):
    options = [*TINY, "--iterations", "150", "--checkpoint-every", "1000", "--preview-every", "0", "--no-evaluate", "--json"]
    command = ["-m", "springwell", "train", "rings", *options, "--out"]
    with (
        (tmp_path / "out").open("w") as out,
        (tmp_path / "err").open("w") as err,
        python.start([*command, "stopped"], [0, out.fileno(), err.fileno()], tmp_path) as process,
    ):
        metrics = tmp_path / "stopped" / "metrics.jsonl"
        deadline = time.monotonic() + 120
        while not (metrics.exists() and metrics.read_text()) and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        code = process.wait(120)
    said = (tmp_path / "err").read_text()
    assert code == 130, said
    report = json.loads((tmp_path / "out").read_text().splitlines()[-1])
    assert report["status"] == "interrupted"
    assert 0 < report["iteration"] < 150
    assert "run the same command to resume" in said
    resumed = python.run([*command, "stopped"], cwd=tmp_path)
    assert resumed.returncode == 0
    assert f"at iteration {report['iteration']}" in resumed.stderr
    python.run([*command, "whole"], cwd=tmp_path)
    first, second = files(tmp_path / "stopped"), files(tmp_path / "whole")
    name = next(p for p in first if p.name == "model.safetensors")
    assert first[name] == second[name]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train"], "no preset given; choose checkerboard"),
        (["train", "nope"], "preset 'nope': unknown"),
        (["train", "checkerboard", "--data", "cifar"], "--data cifar: unknown"),
        (["train", "checkerboard", "--data", "npy:none.npy"], "no such file"),
        (["train", "mnits"], "preset 'mnits': unknown; did you mean mnist?"),
        (["train", "checkerboard", "--bogus", "3"], "--bogus: unknown option; see springwell train checkerboard --help"),
        (["train", "checkerboard", "--widht", "3"], "--widht: unknown option; did you mean --width? See"),
        (["train", "mnist", "--spectral-norm"], "--spectral-norm: belongs to --network resnet"),
        (["train", "checkerboard", "--flip"], "--flip: belongs to"),
        (["train", "checkerboard", "--network", "own"], "--network own: a network of your own"),
        (["train", "checkerboard", "--lr", "fast"], "--lr fast: not a number"),
        (["train", "checkerboard", "--batch", "1.5"], "--batch 1.5: not a whole number"),
        (["train", "checkerboard", "--objective=recover"], "--objective recover: unknown; did you mean recovery?"),
        (["train", "checkerboard", "--sigmas"], "--sigmas: expected array of length >= 1"),
        (["train", "digits", "--log-snr", "3"], "--log-snr 3: takes 2 values, not 1"),
        (["train", "mnist-density", "--lr", "1e-3", "--atoms", "-1", "-1", "1"], "--atoms -1 -1 1: takes 2 values, not 3"),
        (["train", "tabel"], "preset 'tabel': unknown; did you mean table?"),
        (["train", "table", "--dat", "csv:x.csv"], "--dat: unknown option; did you mean --data? See"),
        (["train", "table"], "--data: is missing; see springwell train table --help"),
        (["sample"], "command sample: needs RUN; see"),
        (["sample", "digits", "--num"], "--num: needs a value; see"),
        (["score", "--json", "digits"], "command score: needs RUN IMAGES; see"),
        (["sample", "checkerboard", "--steps", "-1"], "--steps -1: must be at least 0"),
        (["data", "prepare"], "command data: needs ACTION SPEC OUT; see"),
        (["sample", "checkerboard", "more"], "'more': one argument too many"),
        (["sampel", "checkerboard"], "command 'sampel': unknown; did you mean sample?"),
        (["train", "checkerboard", "--lr", "-1"], "--lr -1.0: expected float > 0.0"),
        (["train", "checkerboard", "--batch", "0"], "--batch 0: expected int >= 1"),
        (["train", "checkerboard", "--num-steps", "-2"], "--num-steps -2: expected int >= 0"),
        (["train", "checkerboard", "--schedule", "log-snr", "--num-levels", "0"], "--num-levels 0: expected int >= 1"),
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
def test_bad_input_is_one_line_and_exit_code_2(here, tmp_path, arguments, words):
    code, out, err = here(*arguments, "--json")
    assert code == 2
    assert words in err
    assert err.count("\n") == 1
    assert words in json.loads(out)["error"]
    assert list(tmp_path.iterdir()) == []


def test_bad_input_to_a_run(here, finished):
    run, _ = finished
    before = files(run)
    for arguments, words in (
        (["train", "two_moons", *TINY, "--lr", "0.5", "--out", run], "--lr 0.01, not --lr 0.5"),
        (["train", "rings", *TINY, "--out", run], "--data two_moons, not --data rings"),
        (["sample", run, "--num", "0"], "--num 0"),
        (["sample", run, "--num", 10**15, "--out", "x.npy"], "out of memory"),
        (["sample", run, "--out", "x.jpeg"], "unknown kind '.jpeg'; use .npy"),
        (["sample", run, "--noise-scale", "0.5"], "a Metropolis test needs 1"),
        (["evaluate", run, "--num", "3"], "--num 3: out of range"),
    ):
        code, _, err = here(*arguments, "--device", "cpu")
        assert code == 2, err
        assert words in err
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
        "train", "checkerboard", *TINY, "--iterations", "3000", "--lr", "1", "--clip", "None", "--start", "noisy",
        "--jump-proposals", "0", "--out", "run",
    )  # fmt: skip
    assert result.returncode == 1
    assert "diverged" in result.stderr
    assert "at level" in result.stderr
    assert "Traceback" not in result.stderr


def test_an_early_evaluation_is_not_taken_for_the_final_one(springwell, finished, tmp_path):
    run, result = finished
    shutil.copytree(run, tmp_path / "run")
    first = last_json(result)["evaluation"]
    (tmp_path / "run" / "evaluation.json").write_text(json.dumps({**first, "iteration": 5, "kl": 99.0}))
    again = springwell("train", "two_moons", *TINY, "--out", "run", "--json")
    assert last_json(again)["evaluation"]["kl"] == pytest.approx(first["kl"])


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


def test_a_log_has_ten_lines_of_slow_work_and_one_of_quick_work(monkeypatch, capsys):
    from springwell import progress

    now = iter(range(10_000))
    for seconds, lines in ((lambda: next(now), 10), (lambda: 0.0, 1)):
        monkeypatch.setattr(progress.time, "monotonic", seconds)
        with progress.Terminal().bar("work", 20) as bar:
            for _ in range(20):
                bar.advance()
        shown = capsys.readouterr().err.splitlines()
        assert len(shown) == lines
        assert shown[-1].startswith("work: 20/20")


def test_errors_of_every_kind_have_an_exit_code(monkeypatch, capsys):
    from springwell.app import cli
    from springwell.errors import UnknownLogZError

    def unknown(*_):
        raise UnknownLogZError("log Z is not known")

    monkeypatch.setattr(cli, "parse", unknown)
    with pytest.raises(SystemExit) as done:
        cli.main(["sample"])
    assert done.value.code == 2
    assert capsys.readouterr().err == "springwell: log Z is not known\n"


def test_bars_are_drawn_on_terminals_and_in_notebooks(monkeypatch):
    from springwell.progress import Terminal

    for terminal, notebook, kind in ((True, False, "_RichBar"), (False, True, "_NotebookBar"), (False, False, "_Lines")):
        reporter = Terminal()
        reporter.console._force_terminal = terminal
        reporter.console.is_jupyter = notebook
        with reporter.bar("work", 10) as bar:
            assert type(bar).__name__ == kind
            bar.advance(10)

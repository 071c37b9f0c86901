"""The models that ship, how a name finds one, and what happens to damaged ones."""

import hashlib
import importlib.util
import json
import shutil
from itertools import islice, pairwise
from pathlib import Path

import pytest
import torch

from springwell.app.api import find, load
from springwell.app.build import config_of, measurable_data
from springwell.app.card import training_command, training_commands
from springwell.app.cli import parse
from springwell.app.cli.likelihood import likelihood_lines
from springwell.app.presets import PRESETS, preset
from springwell.errors import UserError
from springwell.evaluation.likelihood import measure
from springwell.likelihood import Settings
from springwell.progress import Silent
from springwell.store import zoo
from springwell.store.run import Run
from tests.images import small_config
from tests.training.tiny import tiny, train

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def ship():
    spec = importlib.util.spec_from_file_location("ship", ROOT / "tools" / "ship.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run with an evaluation and a picture, as ``springwell train`` leaves it."""
    out = tmp_path_factory.mktemp("zoo") / "tiny"
    train(tiny(), out, "cpu", Silent())
    counts = {"num_samples": 10000, "num_reference": 9000, "kid_subsets": 100, "kid_subset_size": 1000, "neighbours": 3}
    values = {"fid": 12.345, "kid": 0.001, "kid_std": 2e-4, "precision": 0.5, "recall": 0.25, "inception_score": None}
    quality = {"reference": "mnist@test", "seed": 0, **counts, **values}
    evaluation = {"data": "checkerboard", "iteration": 30, "num_samples": 2000, "kl": 0.123456, "modes": 8, "quality": quality}
    (out / "evaluation.json").write_text(json.dumps(evaluation))
    (out / "report.png").write_bytes(b"\x89PNG")
    return out


@pytest.fixture
def run(trained, tmp_path):
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.mark.parametrize("name", zoo.names())
def test_what_ships_is_whole(name):
    folder = zoo.folder(name)
    assert sum(p.stat().st_size for p in folder.iterdir()) <= 5_000_000
    warnings = []
    model = load(name, warn=warnings.append)
    assert warnings == []
    assert config_of(model) == preset(name)
    assert model.iteration == preset(name).training.iterations
    card = (folder / "README.md").read_text()
    assert "```sh\n" + "\n".join(training_commands(preset(name))) + "\n```" in card
    assert card.count("license: mit") == 1
    evaluation = json.loads((folder / "evaluation.json").read_text())
    assert evaluation["iteration"] == model.iteration
    assert Run(folder).read_metrics()[-1]["iteration"] == model.iteration
    assert (folder / "report.png").read_bytes().startswith(b"\x89PNG")
    record = json.loads((folder / "model.json").read_text())
    assert record["sha256"] == hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    steps = min(1, model.sampler.num_steps)
    # Down to the data, but for the thousand levels of t1k, which would take minutes.
    drawn = list(islice(model.trajectory(torch.arange(8), 1, steps), 101))
    assert drawn[-1].t == max(0, model.schedule.num_levels - 100)
    assert all(bool(torch.isfinite(x).all()) for _, x, _ in drawn)
    for (_, x, _), (_, again, _) in islice(zip(drawn, load(name).trajectory(torch.arange(8), 1, steps), strict=False), 4):
        assert torch.equal(again, x)


def test_ship_copies_exactly_the_files_of_a_finished_run(ship, run, tmp_path, monkeypatch):
    monkeypatch.setitem(PRESETS, "tiny", tiny())
    folder = ship.ship(run, "tiny", tmp_path / "zoo", "Nothing else was tried.")
    names = {"config.json", "model.safetensors", "model.json", "metrics.jsonl", "evaluation.json", "README.md", "report.png"}
    assert {p.name for p in folder.iterdir()} == names
    for name in names - {"README.md"}:
        assert (folder / name).read_bytes() == (run / name).read_bytes()
    card = (folder / "README.md").read_text()
    found = "fid        12.35   10,000 samples, 9,000 reference images"
    for words in (
        "# tiny",
        "springwell train tiny\n",
        "| kl | 0.1235 nats |",
        found,
        "Nothing else was tried.",
        'sw.load("tiny")',
    ):
        assert words in card
    monkeypatch.setattr(zoo, "FOLDER", tmp_path / "zoo")
    assert zoo.names() == ["tiny"]
    assert torch.equal(load("tiny").sample(20), load(run).sample(20))


def test_a_model_that_ships_takes_newer_measures(ship, run, tmp_path, monkeypatch):
    monkeypatch.setitem(PRESETS, "tiny", tiny())
    folder = ship.ship(run, "tiny", tmp_path / "zoo")
    measured = tmp_path / "measured"
    measured.mkdir()
    newer = json.loads((run / "evaluation.json").read_text()) | {"kl": 0.0625}
    (measured / "evaluation.json").write_text(json.dumps(newer))
    (measured / "report.png").write_bytes(b"\x89PNG newer")
    weights = (folder / "model.safetensors").read_bytes()
    ship.ship(folder, "tiny", tmp_path / "zoo", "Measured again.", measured)
    assert (folder / "model.safetensors").read_bytes() == weights
    assert json.loads((folder / "evaluation.json").read_text()) == newer
    assert (folder / "report.png").read_bytes() == b"\x89PNG newer"
    card = (folder / "README.md").read_text()
    assert "| kl | 0.0625 nats |" in card
    assert "Measured again." in card
    (measured / "likelihood.json").write_text("{}")
    with pytest.raises(UserError, match="was not written by `springwell likelihood`"):
        ship.ship(folder, "tiny", tmp_path / "zoo", "", measured)


def test_a_bracket_ships_with_its_model_and_stands_on_its_card(ship, run, tmp_path, monkeypatch):
    monkeypatch.setitem(PRESETS, "tiny", tiny())
    model, settings = load(run), Settings(1.0, 4, 4, systems=4, chains=4)
    record = json.loads(json.dumps(measure(model, measurable_data(model), settings, 20, burn=2).record))
    (run / "likelihood.json").write_text(json.dumps(record))
    folder = ship.ship(run, "tiny", tmp_path / "zoo")
    assert json.loads((folder / "likelihood.json").read_text()) == record
    assert (
        "\n".join(["By `springwell likelihood`:", "", "```", *likelihood_lines(record), "```"])
        in (folder / "README.md").read_text()
    )
    (run / "likelihood.json").write_text(json.dumps({**record, "weights": "0"}))
    with pytest.raises(UserError, match="is of other weights"):
        ship.ship(run, "tiny", tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_ship_refuses(ship, run, tmp_path, monkeypatch):
    with pytest.raises(UserError, match="the preset checkerboard has"):
        ship.ship(run, "checkerboard", tmp_path / "zoo")
    monkeypatch.setitem(PRESETS, "tiny", tiny())
    monkeypatch.setattr(ship, "MAX_BYTES", 10_000)
    with pytest.raises(UserError, match=r"of which model\.safetensors"):
        ship.ship(run, "tiny", tmp_path / "zoo")
    monkeypatch.setattr(ship, "MAX_BYTES", 5_000_000)
    (run / "evaluation.json").write_text('{"iteration": 10, "num_samples": 5}')
    with pytest.raises(UserError, match="its evaluation is of iteration 10"):
        ship.ship(run, "tiny", tmp_path / "zoo")
    (run / "model.safetensors").write_bytes(b"gone")
    with pytest.raises(UserError, match="truncated or altered"):
        ship.ship(run, "tiny", tmp_path / "zoo")
    assert not (tmp_path / "zoo").exists()


def test_a_long_log_is_thinned_evenly_and_keeps_its_end(ship, monkeypatch):
    lines = [{"iteration": i, "loss": [0.5] * 10} for i in range(1, 101)]
    assert ship.thinned(lines).count(b"\n") == 100
    monkeypatch.setattr(ship, "MAX_LOG_BYTES", 2000)
    kept = [json.loads(line)["iteration"] for line in ship.thinned(lines).splitlines()]
    assert kept[-1] == 100
    assert len({b - a for a, b in pairwise(kept)}) == 1
    assert 1000 < len(ship.thinned(lines)) <= 2000


def test_a_directory_with_a_model_wins_over_a_name(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find("checkerboard") == zoo.folder("checkerboard")
    (tmp_path / "checkerboard").mkdir()
    assert find("checkerboard") == zoo.folder("checkerboard")
    shutil.copy(run / "config.json", tmp_path / "checkerboard")
    assert find("checkerboard") == Path("checkerboard")


def test_an_unknown_name_lists_what_there_is():
    with pytest.raises(UserError, match=r"nowhere: not a run, nor a model that ships \(checkerboard"):
        load("nowhere")


def test_a_damaged_model_is_noticed_and_its_checkpoint_taken(run):
    expected = load(run).sample(20)
    content = bytearray((run / "model.safetensors").read_bytes())
    content[-3] ^= 1
    (run / "model.safetensors").write_bytes(content)
    warnings = []
    assert torch.equal(load(run, warn=warnings.append).sample(20), expected)
    assert warnings == [
        "model.safetensors: truncated or altered (its SHA-256 is not the recorded one); taking the newest good checkpoint"
    ]
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(UserError, match=r"truncated or altered.*no good checkpoint"):
        load(run)


def test_a_model_without_record_is_the_last_resort(run):
    """A crash between the two files leaves checkpoints, which are taken; older versions wrote no record at all."""
    expected = load(run).sample(20)
    (run / "model.json").unlink()
    warnings = []
    assert load(run, warn=warnings.append).source.parent.name == "checkpoints"
    assert warnings == []
    assert train(tiny(), run, "cpu", Silent()).status == "finished"
    assert (run / "model.json").exists()
    (run / "model.json").unlink()
    shutil.rmtree(run / "checkpoints")
    assert torch.equal(load(run, warn=warnings.append).sample(20), expected)
    assert "has no model.json beside it" in warnings[0]


@pytest.mark.parametrize("name", PRESETS)
def test_the_command_on_a_card_trains_that_config(name):
    assert training_command(preset(name)) == f"springwell train {name}"


def test_a_card_names_every_training_that_one_model_needs():
    both = [
        "springwell train mnist-density-start",
        "springwell train mnist-density --init-from runs/mnist-density-start",
    ]
    assert training_commands(preset("mnist-density")) == both
    # What ships need not be trained again.
    assert training_commands(preset("mnist-cond")) == ["springwell train mnist-cond --init-from mnist-density"]
    assert training_commands(preset("digits")) == ["springwell train digits"]


@pytest.mark.parametrize("config", [tiny(iterations=77), small_config(denoise=False), small_config(denoise=True)])
def test_the_command_on_a_card_names_what_differs(config):
    _, command = parse(training_command(config).split()[1:])
    assert command.config == config

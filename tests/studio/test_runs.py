"""Runs as the studio shows them, and the report of one."""

import io
import json
import re
import zipfile

import pytest
import torch

import springwell as sw
from springwell.app.cli import parse
from springwell.app.presets import preset
from springwell.app.studio import recipes
from springwell.app.studio.report import MODULES, joined_modules
from springwell.app.studio.runs import details, drawing_name, folders, metrics, picture
from springwell.errors import UserError
from springwell.store import zoo
from springwell.store.run import Run

FILE = re.compile(r'<script id="data" type="application/json">(.*?)</script>', re.DOTALL)


def test_every_model_that_ships_and_every_run_is_listed(http):
    listed = {model["name"]: model for model in http.get("/models").json()["models"]}
    assert set(zoo.names()) <= set(listed)
    assert listed["digits"] == {**listed["digits"], "kind": "images", "shape": [1, 8, 8], "ships": True, "finished": True}
    assert listed["checkerboard"]["kind"] == "plane"
    tiny = listed["runs/tiny"]
    assert (tiny["kind"], tiny["iteration"], tiny["iterations"], tiny["ships"]) == ("plane", 30, 30, False)


def test_a_run_in_the_folder_hides_no_model_that_ships(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").mkdir()
    (tmp_path / "digits" / "config.json").write_text("{}")
    found = folders(tmp_path / "runs")
    assert "digits" not in found
    assert found["zoo:digits"] == zoo.folder("digits")


def test_a_run_has_its_curves_previews_command_and_card(http):
    run = http.get("/run", params={"name": "runs/tiny"}).json()
    assert run["previews"] == ["00000010.png", "00000020.png", "00000030.png"]
    assert run["metrics"]["iteration"] == [7, 14, 21, 28, 30]
    assert run["recipe"]["command"].startswith("springwell train checkerboard")
    for file in run["previews"]:
        answer = http.get("/preview", params={"name": "runs/tiny", "file": file})
        assert answer.content.startswith(b"\x89PNG")
    mnist = http.get("/run", params={"name": "mnist"}).json()
    assert mnist["quality"]["fid"] > 0
    assert mnist["card"]
    assert not mnist["card"].startswith("---")


def test_a_model_is_downloaded_with_all_that_loads_it(http, tmp_path):
    for name, title in (("checkerboard", "checkerboard"), ("runs/tiny", "tiny")):
        answer = http.get("/model", params={"name": name})
        assert f'filename="{title}.zip"' in answer.headers["content-disposition"]
        with zipfile.ZipFile(io.BytesIO(answer.content)) as file:
            file.extractall(tmp_path)
        assert sw.load(tmp_path / title).event_shape == (2,)
    x = torch.zeros(1, 2)
    torch.testing.assert_close(sw.load(tmp_path / "checkerboard").energy(x), sw.load("checkerboard").energy(x))


@pytest.mark.parametrize("name", ["", "..", "/etc", "runs/../../tiny", "nothing"])
def test_no_other_folder_is_downloaded(http, name):
    answer = http.get("/model", params={"name": name})
    assert answer.status_code == 400
    assert len(answer.text) < 300


@pytest.mark.parametrize("name", ["checkerboard", "mnist-density", "two_moons-cond", "mnist-cond", "digits"])
def test_a_run_is_trained_again_by_its_command_and_its_lines(name, monkeypatch):
    """Also in two steps, where the preset begins with another one."""
    trained = []

    def train(config, init_from=None, **fields):
        trained.append((sw.app.config.with_fields(preset(config), **fields), init_from))
        return config

    config = sw.app.config.with_fields(preset(name), lr=0.0123)
    recipe = recipes.run(config)
    monkeypatch.setattr(sw, "train", train)
    exec(recipe["python"], {})
    assert trained[-1][0] == config
    commands = recipe["command"].splitlines()
    assert len(commands) == len(trained)
    for line, (expected, begun) in zip(commands, trained, strict=True):
        _, command = parse(line.split()[1:])
        assert command.config == expected
        assert (command.init_from is None) == (begun is None)


def test_the_gap_of_f_is_data_less_chains_and_takes_the_place_of_both():
    line = {"iteration": 5, "lr": 0.1, "loss": [1, None], "f_pos": [3.0, 2.0], "f_neg": [1.0, None]}
    found = metrics([line, {"iteration": 6, "rollback": 5}, {**line, "iteration": 9, "loss": [float("inf"), 2]}])
    assert found["iteration"] == [5, 9]
    assert found["tables"] == {"loss": [[1, None], [None, 2]], "f_gap": [[2, None]] * 2}


def test_long_logs_and_many_levels_are_thinned():
    lines = [{"iteration": i, "loss": [0.0] * 1000} for i in range(5000)]
    found = metrics(lines)
    assert len(found["iteration"]) <= 200
    assert len(found["levels"]) <= 72
    assert (found["iteration"][0], found["iteration"][-1]) == (0, 4999)


def test_only_pictures_of_the_run_are_handed_out(tmp_path):
    (tmp_path / "report.png").write_bytes(b"no picture")
    (tmp_path.parent / "outside.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    for file in ("report.png", "../outside.png", "config.json", ""):
        with pytest.raises(UserError, match="is no"):
            picture(tmp_path, file)


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "x" * 60, "a b", "\x00"])
def test_a_drawing_has_a_plain_name(name):
    with pytest.raises(UserError, match="name="):
        drawing_name(name)


def test_the_modules_of_a_report_are_one_script():
    script = joined_modules()
    assert not re.search(r"^(import|export) ", script, re.MULTILINE)
    names = re.findall(r"^(?:async )?(?:function|const|let|class) (\w+)", script, re.MULTILINE)
    assert len(names) == len(set(names)), MODULES


def test_a_report_holds_its_run_and_asks_for_nothing(springwell, http, tmp_path):
    result = springwell("report", "digits", "--json")
    assert result.returncode == 0, result.stderr
    text = (tmp_path / "digits-report.html").read_text()
    held = json.loads(FILE.search(text)[1])
    assert held["run"]["title"] == "digits"
    assert held["run"]["metrics"] == details("digits", zoo.folder("digits"))["metrics"]
    assert all(address.startswith("data:image/png;base64,") for address in held["pictures"].values())
    assert not re.search(r"""(src|href)\s*=\s*["']?https?:""", text)
    assert http.get("/report", params={"name": "digits"}).text == text


def test_text_of_a_run_cannot_leave_its_place_in_a_report(tmp_path, springwell):
    """A card is text, whatever it says."""
    folder = tmp_path / "runs" / "mine"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "README.md").write_text("</script><script>alert(1)</script>")
    assert springwell("report", "runs/mine").returncode == 0
    text = (folder / "report.html").read_text()
    assert "alert(1)" in text
    assert "<script>alert" not in text
    assert Run(folder).config_path.exists()


def test_a_report_of_nothing_is_refused(springwell):
    for words in (["report", "nothing"], ["report", "digits", "--out", "x.pdf"]):
        result = springwell(*words)
        assert result.returncode == 2
        assert result.stderr.startswith("springwell: ")
        assert result.stderr.count("\n") == 1


def test_a_studio_that_cannot_listen_says_so(springwell, server):
    for words in (["--port", str(server.port)], ["--port", "70000"], ["--threads", "0"], ["--host", "no.such.host.invalid"]):
        result = springwell("studio", "--no-browser", *words)
        assert result.returncode == 2, result.stderr
        assert "Traceback" not in result.stderr


def test_the_calibration_is_a_table_where_training_knows_it():
    """c_t = -E<eps, s grad f> / E|s grad f|^2 of every level; where nothing was seen, there is none."""
    line = {"loss": [1.0, 2.0, 3.0], "inner": [3.0, 1.0, None], "square": [4.0, 1.0, 2.0]}
    tables = metrics([{"iteration": i, **line} for i in (10, 20)])["tables"]
    assert tables["calibration"] == [[0.75, 1.0, None]] * 2
    assert set(tables) == {"loss", "calibration"}

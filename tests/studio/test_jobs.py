"""Jobs over the websocket: what they make is what the library makes, one at a time per model, and nothing is lost."""

import io
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import springwell as sw
from springwell.app.build import config_of
from springwell.app.cli import find, parse
from springwell.app.cli.common import Context
from springwell.app.config import with_fields
from springwell.app.presets import preset
from springwell.app.studio.recipes import STEPS
from springwell.data.pictures import grid, to_bytes
from springwell.evaluation.plane import CELLS, log_density, nodes
from tests.studio.client import Page
from tests.training.tiny import train

CHAINS = {"level": 0, "frames": 2, "thin": 3, "kernel": "mala", "num_leapfrog": 3, "seed": 5, "step_size": 0.2}
CHAINS |= {"first": 7, "since": 7}


def one(messages, event):
    found = [message for message in messages if message[0]["event"] == event]
    assert found, [message[0] for message in messages]
    return found[-1]


def made_again(recipe, steps=0):
    """Runs the command of a recipe, and its Python lines, whose names it returns."""
    name, command = parse([word.replace(STEPS, str(steps)) for word in shlex.split(recipe["command"])[1:]])
    find(name)[1](command, Context(command.common))
    names = {}
    exec(recipe["python"].replace(STEPS, str(steps)), names)
    return names


def taken(http, page, *files):
    """Downloads files of a page's first job to the present folder."""
    for file in files:
        answer = http.get(f"/download/{page.name}/1/{file}")
        assert answer.status_code == 200, answer.text
        Path(file).write_bytes(answer.content)


def pixels(path):
    """The bytes of a picture ``[H, W, C]``."""
    with Image.open(path) as picture:
        found = np.array(picture)
    return found.reshape(*found.shape[:2], -1)


def nearly_equal(found, expected):
    """Bytes that differ by rounding alone."""
    np.testing.assert_allclose(np.asarray(found, int), np.asarray(expected, int), atol=1)


@pytest.fixture(scope="module")
def checkerboard():
    return sw.load("checkerboard")


@pytest.fixture(scope="module")
def digits():
    return sw.load("digits")


@pytest.fixture(scope="module")
def image(digits):
    return to_bytes(digits.sample(1, seed=3))[0]


def test_levels_are_the_models_densities(page, http, checkerboard, tmp_path, monkeypatch):
    messages = page.do("levels", "checkerboard")
    tables = {m[0]["level"]: m for m in messages if m[0]["event"] == "level"}
    assert sorted(tables) == list(range(checkerboard.schedule.num_levels))
    extent = tables[0][0]["extent"]
    grid = nodes(extent, CELLS)
    area = (extent[1] - extent[0]) * (extent[3] - extent[2]) / CELLS**2
    for t, (_, arrays) in tables.items():
        found = torch.from_numpy(arrays["log_density"].copy()).flatten().double()
        assert abs(float(found.logsumexp(0)) + np.log(area)) < 1e-4
        f = -checkerboard.energy(grid, t).double()
        torch.testing.assert_close(found - found[0], f - f[0], atol=1e-3, rtol=1e-4)
    monkeypatch.chdir(tmp_path)
    again = made_again(messages[-1][0]["recipe"])["found"]
    shown = np.load(io.BytesIO(http.get(f"/download/{page.name}/1/levels.npz").content))
    with np.load("levels.npz") as written:
        for key in shown.files:
            np.testing.assert_allclose(written[key], shown[key], atol=1e-4)
            np.testing.assert_allclose(again[key], shown[key], atol=1e-4)


def test_the_score_points_uphill(page):
    """The gradient of the table of log-densities, at the nodes of the arrows."""
    _, arrays = one(page.do("levels", "checkerboard"), "level")
    log_p, score = arrays["log_density"].astype(float), arrays["score"]
    assert score.shape == (16, 16, 2)
    width = 2 * 2.8 / CELLS
    slope = np.stack(np.gradient(log_p, width)[::-1], -1)
    # An arrow's node is between the nodes 6 i + 2 and 6 i + 3 of the finer grid.
    near = (slope[2::6, 2::6] + slope[3::6, 3::6] + slope[2::6, 3::6] + slope[3::6, 2::6]) / 4
    assert np.corrcoef(near.ravel(), score.ravel())[0, 1] > 0.98


@pytest.mark.parametrize("kernel", ["langevin", "mala", "hmc", "nuts"])
@pytest.mark.parametrize("spring", [False, True])
def test_chains_are_made_again_by_their_command_and_their_lines(page, tmp_path, monkeypatch, kernel, spring):
    start = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)
    options = {**CHAINS, "kernel": kernel, "level": 1, "spring": spring, "end_x": 0.5, "end_y": -0.25}
    header, arrays = page.do("chains", "checkerboard", {"positions": start}, **options)[-1]
    assert header["event"] == "done", header
    assert (header["acceptance"] is None) == (kernel == "langevin")
    more = {**options, "first": 13, "since": 7}
    _, arrays = page.do("chains", "checkerboard", {"positions": arrays["frames"][-1]}, **more)[-1]
    monkeypatch.chdir(tmp_path)
    np.savetxt("start.csv", start, "%.9g", ",", header="x,y", comments="")
    found = made_again(header["recipe"], steps=12)
    np.testing.assert_allclose(found["x"], arrays["frames"][-1], atol=1e-5)
    np.testing.assert_allclose(np.loadtxt("particles.csv", delimiter=",", skiprows=1), arrays["frames"][-1], atol=1e-5)


def test_chains_that_run_away_are_counted_and_stay(page):
    start = np.full((4, 2), 0.3, np.float32)
    header, arrays = page.do(
        "chains", "checkerboard", {"positions": start}, **{**CHAINS, "kernel": "langevin", "step_size": 900.0}
    )[-1]
    assert header["event"] == "done"
    assert np.isfinite(arrays["frames"]).all()


def test_samples_are_those_of_the_library_level_by_level(page, http, digits, tmp_path, monkeypatch):
    messages = page.do("sample", "digits", num=5, seed=9)
    frames = {m[0]["t"]: m[1]["images"] for m in messages if m[0]["event"] == "frame"}
    assert sorted(frames) == list(range(digits.schedule.num_levels + 1))
    expected = to_bytes(digits.sample(5, seed=9))
    np.testing.assert_array_equal(frames[0], expected)
    way = [np.abs(frames[t].astype(int) - frames[0]).mean() for t in (12, 6, 1)]
    assert way[0] > way[1] > way[2]
    monkeypatch.chdir(tmp_path)
    np.testing.assert_array_equal(to_bytes(made_again(messages[-1][0]["recipe"])["x"]), expected)
    np.testing.assert_array_equal(pixels("samples.png"), grid(expected))
    with np.load(io.BytesIO(http.get(f"/download/{page.name}/1/sample.npz").content)) as file:
        np.testing.assert_array_equal(file["samples"], expected)
        np.testing.assert_array_equal(file["levels"], np.arange(12, -1, -1))
    with Image.open(io.BytesIO(http.get(f"/download/{page.name}/1/sample.gif").content)) as gif:
        assert gif.n_frames == 13
    assert http.get(f"/download/{page.name}/1/sample.png").headers["content-type"] == "image/png"
    assert http.get(f"/download/{page.name}/1/other.png").status_code == 400
    assert http.get(f"/download/{page.name}/2/sample.png").status_code == 404


def test_quick_samples_are_those_of_the_integrator(page, tmp_path, monkeypatch):
    messages = page.do("sample", "digits-density", num=2, seed=3, quick=True)
    frames = {m[0]["t"]: m[1]["images"] for m in messages if m[0]["event"] == "frame"}
    assert sorted(frames, reverse=True) == [48, *sw.Integrator(24).levels(48)]
    expected = to_bytes(sw.load("digits-density").sample(2, seed=3, evaluations=24))
    np.testing.assert_array_equal(frames[0], expected)
    monkeypatch.chdir(tmp_path)
    np.testing.assert_array_equal(to_bytes(made_again(messages[-1][0]["recipe"])["x"]), expected)
    np.testing.assert_array_equal(pixels("samples.png"), grid(expected))


def test_what_is_seen_keeps_its_bytes(page, http, image, tmp_path, monkeypatch):
    mask = np.zeros((8, 8), np.uint8)
    mask[:, 4:] = 1
    messages = page.do("inpaint", "digits", {"image": image, "mask": mask}, num=3, seed=2, sweeps=1)
    _, arrays = one(messages, "images")
    assert arrays["images"].shape == (3, 8, 8, 1)
    np.testing.assert_array_equal(arrays["images"][:, :, :4], np.broadcast_to(image[:, :4], (3, 8, 4, 1)))
    assert (arrays["images"][:, :, 4:] != arrays["images"][:1, :, 4:]).any()
    monkeypatch.chdir(tmp_path)
    taken(http, page, "image.png", "mask.png")
    np.testing.assert_array_equal(pixels("mask.png")[..., 0] > 127, mask > 0)
    nearly_equal(to_bytes(made_again(messages[-1][0]["recipe"])["filled"]), arrays["images"])
    nearly_equal([pixels(f"image-inpainted/image-{n}.png") for n in range(3)], arrays["images"])


@pytest.mark.parametrize("value", [0, 1])
def test_a_mask_of_nothing_or_everything_is_refused(page, image, value):
    mask = np.full((8, 8), value, np.uint8)
    header, _ = page.do("inpaint", "digits", {"image": image, "mask": mask}, num=1, seed=0, sweeps=0)[-1]
    assert header["event"] == "failed"
    assert header["text"].startswith("mask: hides")


def test_the_ends_of_a_path_are_the_samples(page, digits, tmp_path, monkeypatch):
    messages = page.do("interpolate", "digits", seeds=[0, 1], num=3)
    _, arrays = one(messages, "images")
    ends = [to_bytes(digits.sample(1, seed=seed))[0] for seed in (0, 1)]
    np.testing.assert_array_equal(arrays["images"][[0, -1]], np.stack(ends))
    monkeypatch.chdir(tmp_path)
    nearly_equal(to_bytes(made_again(messages[-1][0]["recipe"])["x"]), arrays["images"])
    nearly_equal(pixels("interpolation.png"), grid(arrays["images"], 3))


@pytest.mark.parametrize("task", ["denoise", "superres", "deblur"])
def test_restoration(page, http, image, task, tmp_path, monkeypatch):
    options = {"task": task, "noise": 0.1, "factor": 2, "width": 1.0, "num": 2, "seed": 0, "sweeps": 0}
    messages = page.do("restore", "digits", {"image": image}, **options)
    _, arrays = one(messages, "restored")
    assert arrays["samples"].shape == (2, 8, 8, 1)
    nearer = np.abs(arrays["mean"][0].astype(int) - image).mean()
    assert nearer < np.abs(arrays["mean"][0].astype(int) - 255 + image.astype(int)).mean()
    assert http.get(f"/download/{page.name}/1/restore.png").status_code == 200
    monkeypatch.chdir(tmp_path)
    taken(http, page, "image.png")
    found = made_again(messages[-1][0]["recipe"])
    nearly_equal(to_bytes(found["samples"][0]), arrays["samples"])
    nearly_equal(to_bytes(found["mean"]), arrays["mean"])
    nearly_equal([pixels(f"image-{task}/image-{n}.png") for n in range(2)], arrays["samples"])


def test_noise_is_less_likely_than_a_sample(page, http, image, tmp_path, monkeypatch):
    noise = np.random.default_rng(0).integers(0, 256, (8, 8, 1), np.uint8)
    jobs = [page.do("score", "digits", {"image": x}, seed=0) for x in (image, noise)]
    found = [one(messages, "scored") for messages in jobs]
    assert found[0][0]["value"] > found[1][0]["value"] + 50
    assert found[1][0]["percentile"] == 0
    assert found[0][0]["num_reference"] == 256
    assert found[1][1]["maps"].shape[1:] == (8, 8)
    assert found[1][1]["maps"][0].mean() > found[0][1]["maps"][0].mean()
    monkeypatch.chdir(tmp_path)
    taken(http, page, "image.png", "image.npz", "score.png")
    panels = [pixels("score.png")[:, 66 * i : 66 * i + 64] for i in range(1 + len(found[0][1]["maps"]))]
    np.testing.assert_array_equal(panels[0], grid(np.broadcast_to(image, (8, 8, 3))[None]))
    for panel, scores in zip(panels[1:], found[0][1]["maps"], strict=True):
        largest = np.divmod(scores.argmax(), 8)
        assert tuple(panel[8 * largest[0], 8 * largest[1]]) == (253, 231, 37)  # the brightest colour of viridis
    again, (header, arrays) = made_again(jobs[0][-1][0]["recipe"]), found[0]
    assert float(again["found"].score) == pytest.approx(header["value"], rel=1e-5)
    assert again["percentile"] == pytest.approx(header["percentile"])
    np.testing.assert_allclose(np.stack(again["maps"]), arrays["maps"], rtol=1e-4, atol=1e-4)
    with np.load("scores/scores.npz") as written:
        np.testing.assert_allclose(written["profile"][0], header["profile"], rtol=1e-5)


def test_test_images_are_those_of_the_data(page):
    from springwell.evaluation.sources import open_source

    header, arrays = page.do("photograph", "digits", number=300)[-1]
    assert (header["number"], header["of"]) == (1, 299)
    np.testing.assert_array_equal(arrays["image"], open_source("digits@test").rows(1, 2)[0].permute(1, 2, 0))


def test_long_chains_go_on_from_where_they_are(page, digits, tmp_path, monkeypatch):
    state = (to_bytes(digits.sample(2, seed=0)).transpose(0, 3, 1, 2) / 127.5 - 1).astype(np.float32)
    options = {"kernel": "mala", "num_leapfrog": 1, "steps": 3, "first": 0, "since": 0, "seed": 0, "step_size": 0.01}
    header, arrays = page.do("walk", "digits", {"state": state}, **options)[-1]
    assert header["acceptance"] > 0.5
    assert 0 < np.abs(arrays["state"] - state).max() < 0.5
    f = digits.level_f(torch.from_numpy(arrays["state"].copy()))
    np.testing.assert_allclose(arrays["f"], f.numpy(), rtol=1e-4)
    header, arrays = page.do("walk", "digits", {"state": arrays["state"]}, **{**options, "first": 3})[-1]
    monkeypatch.chdir(tmp_path)
    np.save("start.npy", state)
    found = made_again(header["recipe"], steps=6)
    np.testing.assert_allclose(found["x"], arrays["state"], atol=1e-5)
    np.testing.assert_allclose(found["f"], arrays["f"], rtol=1e-4)
    nearly_equal(pixels("chains.png"), grid(arrays["images"]))


def test_training_on_drawn_points_stops_goes_on_and_is_a_run(page, server, http, tmp_path, monkeypatch):
    angle = np.random.default_rng(0).uniform(0, 6.3, 300)
    points = np.stack([2 * np.cos(angle), 2 * np.sin(angle)], 1).astype(np.float32)
    options = {"name": "ring", "iterations": 60, "seed": 0}
    number = page.start("train", "training", {"points": points}, **options)
    header, arrays = page.until("landscape", "failed", "done")[-1]
    assert header["event"] == "landscape", header
    assert arrays["log_density_0"].shape == (64, 64)
    page.send(kind="cancel", job=number)
    stopped = page.until("done", "failed")[-1][0]
    assert stopped["status"] == "interrupted"
    assert stopped["iteration"] < 60
    messages = page.do("train", "training", **options, resume=True)
    assert messages[-1][0]["status"] == "finished"
    assert messages[-1][0]["iteration"] == 60
    first = next(m[0] for m in messages if m[0]["event"] == "progress")
    assert first["done"] > stopped["iteration"]
    with Image.open(io.BytesIO(http.get(f"/download/{page.name}/{messages[-1][0]['job']}/train.gif").content)) as gif:
        assert gif.size == (4 * 64 * 3, 64 * 3)
    text = http.get(f"/download/{page.name}/{messages[-1][0]['job']}/points.csv").text
    np.testing.assert_allclose(np.loadtxt(io.StringIO(text), delimiter=",", skiprows=1), points, rtol=1e-6)
    assert "runs/ring" in [model["name"] for model in http.get("/models").json()["models"]]
    model = sw.load(server.folder / "runs" / "ring")
    inside, outside = (float(model.energy(torch.tensor([[x, 0.0]]))) for x in (2.0, 0.0))
    assert inside < outside
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    shutil.copy(server.folder / "runs" / "ring.npy", "runs")
    recipe, names = messages[-1][0]["recipe"], {}
    exec(recipe["python"], names)
    places = nodes([-3, 3, -3, 3], 8)
    torch.testing.assert_close(names["model"].energy(places), model.energy(places), atol=1e-3, rtol=1e-3)
    name, command = parse(shlex.split(recipe["command"])[1:])
    assert name == "train"
    assert replace(command.config, data="") == replace(config_of(model), data="")
    again = page.do("train", "training", {"points": points}, **options)[-1][0]
    assert "exists" in again["text"]


def test_a_class_of_a_model_that_knows_classes(page, server, tmp_path, monkeypatch):
    config = with_fields(preset("two_moons-cond"), iterations=4, batch=32, warmup=1, width=16, num_levels=6, preview_every=0)
    train(config, server.folder / "runs" / "moons")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").symlink_to(server.folder / "runs")
    model = sw.load("runs/moons")
    for options in ({}, {"label": "1", "guidance": 2.0}):
        messages = page.do("levels", "runs/moons", **options)
        header, arrays = one(messages, "level")
        assert header["classes"] == ["0", "1"]
        given = model.given("1", 2.0) if options else model
        expected = log_density(given, header["level"], header["extent"])
        np.testing.assert_allclose(arrays["log_density"], expected, atol=1e-3)
        Path("levels.npz").unlink(missing_ok=True)
        again = made_again(messages[-1][0]["recipe"])["found"]["log_density"]
        np.testing.assert_allclose(again[header["level"]], arrays["log_density"], atol=1e-3)
    assert "unknown" in page.do("levels", "runs/moons", label="2", guidance=1.0)[-1][0]["text"]
    assert "knows no classes" in page.do("levels", "checkerboard", label="1", guidance=1.0)[-1][0]["text"]


def test_every_tool_takes_a_class_and_its_command_does_too(page, http, server, tmp_path, monkeypatch):
    """The same seed gives another image for another class, and the recipe makes the one that is shown."""
    config = preset("digits-density")
    config = with_fields(config, classes=("all",), iterations=2, batch=16, warmup=1, width=16, num_levels=4, preview_every=0)
    train(config, server.folder / "runs" / "classes")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").symlink_to(server.folder / "runs")
    model = sw.load("runs/classes")
    # After two iterations the classes hardly differ, and their differences would be lost in rounding.
    with torch.no_grad():
        for name, value in model.energy_function.named_parameters():
            if name.endswith("classes.weight"):
                value.normal_(0, 3, generator=torch.Generator().manual_seed(0))
    shutil.rmtree(server.folder / "runs" / "classes")
    model.save(server.folder / "runs" / "classes")
    one_class = model.given("7", 1.5)
    assert page.do("ready", "runs/classes")[-1][0]["classes"] == list(model.classes)
    image = to_bytes(one_class.sample(1, seed=3))[0]
    mask = np.zeros((8, 8), np.uint8)
    mask[:, 4:] = 1
    given = {"label": "7", "guidance": 1.5, "seed": 1}
    number = int(page.do("inpaint", "runs/classes", {"image": image, "mask": mask}, num=2, sweeps=0, **given)[-1][0]["job"])
    for file in ("image.png", "mask.png"):
        Path(file).write_bytes(http.get(f"/download/{page.name}/{number}/{file}").content)

    def shown(task, event, key, arrays=None, /, **options):
        """What a tool shows of a class, and what its recipe makes."""
        messages = page.do(task, "runs/classes", arrays, **options)
        assert messages[-1][0]["event"] == "done", messages[-1][0]
        whole = page.do(task, "runs/classes", arrays, **{k: v for k, v in options.items() if k not in ("label", "guidance")})
        assert not np.array_equal(one(messages, event)[1][key], one(whole, event)[1][key])
        return one(messages, event), made_again(messages[-1][0]["recipe"])

    (_, arrays), again = shown("inpaint", "images", "images", {"image": image, "mask": mask}, num=2, sweeps=0, **given)
    nearly_equal(to_bytes(again["filled"]), arrays["images"])
    nearly_equal([pixels(f"image-inpainted/image-{n}.png") for n in range(2)], arrays["images"])
    (_, arrays), again = shown("interpolate", "images", "images", seeds=[0, 1], num=3, label="7", guidance=1.5)
    nearly_equal(to_bytes(again["x"]), arrays["images"])
    nearly_equal(pixels("interpolation.png"), grid(arrays["images"], 3))
    options = {"task": "denoise", "noise": 0.3, "num": 2, "sweeps": 0, **given}
    (_, arrays), again = shown("restore", "restored", "samples", {"image": image}, **options)
    nearly_equal(to_bytes(again["samples"][0]), arrays["samples"])
    nearly_equal([pixels(f"image-denoise/image-{n}.png") for n in range(2)], arrays["samples"])
    np.savez("image.npz", samples=image[None])
    (header, arrays), again = shown("score", "scored", "maps", {"image": image}, **given)
    assert float(again["found"].score) == pytest.approx(header["value"], rel=1e-5)
    with np.load("scores/scores.npz") as written:
        np.testing.assert_allclose(written["profile"][0], header["profile"], rtol=1e-5)
    assert header["classes"] == []
    # Without a class the page is told which one the image may have.
    messages = page.do("score", "runs/classes", {"image": image}, seed=1)
    shares = dict(one(messages, "scored")[0]["classes"])
    expected = model.classify(torch.from_numpy(image).permute(2, 0, 1)[None] / 127.5 - 1)[0].exp()
    np.testing.assert_allclose([shares[name] for name in model.classes], expected, atol=1e-4)
    assert list(shares.values()) == sorted(shares.values(), reverse=True)


def test_pictures_of_the_page_become_a_film(page):
    frames = np.random.default_rng(0).integers(0, 256, (3, 20, 30, 3), np.uint8)
    frames[:, :10] = np.arange(3, dtype=np.uint8)[:, None, None, None] * 100
    header, arrays = page.do("film", "checkerboard", {"frames": frames})[-1]
    assert header["event"] == "done", header
    with Image.open(io.BytesIO(arrays["file"].tobytes())) as gif:
        assert gif.n_frames == 3
        assert gif.size == (30, 20)
    for shape in ((0, 4, 4, 3), (121, 1, 1, 3), (1, 641, 1, 3), (1, 0, 4, 3), (2, 4, 4, 1)):
        header, _ = page.do("film", "checkerboard", {"frames": np.zeros(shape, np.uint8)})[-1]
        assert header["event"] == "failed"
        assert header["text"].startswith("frames: ")


@pytest.mark.parametrize(
    ("task", "model", "options"),
    [
        ("nothing", "digits", {}),
        ("sample", "nothing", {"num": 1, "seed": 0}),
        ("sample", "../digits", {"num": 1, "seed": 0}),
        ("sample", "/etc", {"num": 1, "seed": 0}),
        ("sample", "digits", {"num": 10**9, "seed": 0}),
        ("sample", "digits", {"num": 1, "seed": -1}),
        ("sample", "digits", {"num": "1", "seed": 0}),
        ("sample", "checkerboard", {"num": 1, "seed": 0}),
        ("levels", "digits", {}),
        ("chains", "checkerboard", CHAINS),
        ("interpolate", "digits", {"seeds": [1, 2, 3], "num": 3}),
        ("train", "training", {"name": "../x", "iterations": 10, "seed": 0}),
        ("train", "training", {"name": "few", "iterations": 10, "seed": 0}),
        ("inpaint", "digits", {"num": 1, "seed": 0, "sweeps": 0}),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(page, task, model, options):
    header, _ = page.do(task, model, **options)[-1]
    assert header["event"] == "failed"
    assert "unexpected" not in header["text"]
    assert "\n" not in header["text"]


def test_a_job_is_cancelled_and_the_next_one_runs(page):
    first = page.start("interpolate", "digits", seeds=[0, 1], num=33)
    second = page.start("interpolate", "digits", seeds=[0, 1, 2, 3], num=9)
    third = page.start("sample", "digits", num=1, seed=0)
    for number in (second, first):
        page.send(kind="cancel", job=number)
    ends = {}
    while third not in ends:
        header, _ = page.until("done", "failed", "cancelled")[-1]
        ends[header["job"]] = header["event"]
    assert ends == {first: "cancelled", second: "cancelled", third: "done"}


def test_one_job_at_a_time_per_model(server, page):
    """A second page waits for the first, and is told so."""
    with Page(server) as other:
        page.start("interpolate", "digits", seeds=[0, 1], num=33)
        page.until("progress")
        other.start("sample", "digits", num=1, seed=0)
        assert other.hear()[0]["event"] == "waiting"
        page.send(kind="cancel", job="1")
        assert page.until("cancelled", "done")[-1][0]["event"] == "cancelled"
        assert other.until("done", "failed")[-1][0]["event"] == "done"


def test_a_page_that_comes_back_sees_its_jobs(server):
    with Page(server) as page:
        page.start("sample", "digits", num=2, seed=4)
        page.until("frame")
    with Page(server, page.name) as back:
        about = back.again[0][0]
        assert (about["event"], about["task"], about["options"]) == ("again", "sample", {"num": 2, "seed": 4})
        messages = back.again
        if not any(m[0]["event"] == "done" for m in messages):
            messages += back.until("done", "failed")
        frames = {m[0]["t"] for m in messages if m[0]["event"] == "frame"}
        assert frames == set(range(13))
    with Page(server) as stranger:
        assert stranger.again == []


def test_a_page_must_say_hello(server, page):
    page.send(kind="nothing")
    assert page.hear()[0]["event"] == "refused"
    page.socket.send(b"\x00\x01")
    assert page.hear()[0]["event"] == "refused"
    page.send(kind="start", job="9", task="models", model="files", options={})
    assert page.hear()[0]["event"] == "refused"

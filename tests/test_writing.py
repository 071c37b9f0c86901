"""What ``springwell sample`` writes, read back."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from springwell.app import writing
from springwell.app.api import load, save
from springwell.app.writing import Drawing, write_samples, write_trajectory
from springwell.data.pictures import grid, to_bytes
from springwell.errors import InterruptionError, UserError
from springwell.progress import Silent
from tests.images import small_model


@pytest.fixture(scope="module")
def model():
    return small_model()


def drawing(model, **options):
    return Drawing(model, "small", Silent(), **options)


def test_bytes_are_rounded_and_cut_off():
    x = torch.tensor([-1.0, 1.0, 0.0, -3.0, 3.0, 100 / 127.5 - 1 + 0.49 / 127.5]).view(1, 1, 2, 3)
    assert to_bytes(x)[0, :, :, 0].tolist() == [[0, 255, 128], [0, 255, 100]]


@pytest.mark.parametrize("channels", [1, 3])
def test_a_grid_shows_every_image_where_it_belongs(channels):
    images = np.random.default_rng(0).integers(0, 255, (5, 28, 28, channels), dtype=np.uint8)
    picture = grid(images)
    assert picture.shape == (2 * 58 - 2, 3 * 58 - 2, channels)
    for i, image in enumerate(images):
        row, column = divmod(i, 3)
        tile = picture[row * 58 : row * 58 + 56, column * 58 : column * 58 + 56]
        assert (tile[::2, ::2] == image).all()
        assert (tile[1::2, 1::2] == image).all()
    assert (picture[56:58] == 255).all()
    assert (picture[58:, 116:] == 255).all()


def test_numbers_grid_and_folder_hold_the_same_samples(model, tmp_path):
    expected = to_bytes(model.sample(10, seed=3))
    write_samples(drawing(model, num=10, seed=3), tmp_path / "x.npz")
    write_samples(drawing(model, num=10, seed=3), tmp_path / "x.npy")
    with np.load(tmp_path / "x.npz") as found:
        assert list(found) == ["samples"]
        assert found["samples"].dtype == np.uint8
        assert (found["samples"] == expected).all()
    assert (np.load(tmp_path / "x.npy") == expected).all()
    write_samples(drawing(model, num=10, seed=3), tmp_path / "x.png")
    assert (np.asarray(Image.open(tmp_path / "x.png")) == grid(expected)[..., 0]).all()
    write_samples(drawing(model, num=10, seed=3), tmp_path / "x")
    for i in range(10):
        assert (np.asarray(Image.open(tmp_path / "x" / f"{i:06d}.png")) == expected[i, ..., 0]).all()


def test_colours_stay_in_order(tmp_path):
    model = small_model(channels=3)
    expected = to_bytes(model.sample(2))
    write_samples(drawing(model, num=2), tmp_path / "x")
    assert (np.asarray(Image.open(tmp_path / "x" / "000001.png")) == expected[1]).all()


def test_a_folder_is_filled_up_and_never_mixed(model, tmp_path):
    out = tmp_path / "x"
    write_samples(drawing(model, num=9, batch=4), out)
    before = {p.name: p.read_bytes() for p in out.iterdir()}
    for i in (6, 7, 8):
        (out / f"{i:06d}.png").unlink()
    untouched = (out / "000005.png").stat().st_mtime_ns
    assert write_samples(drawing(model, num=9), out)["found"] == 6
    assert {p.name: p.read_bytes() for p in out.iterdir()} == before
    assert (out / "000005.png").stat().st_mtime_ns == untouched
    assert json.loads((out / "samples.json").read_text()) == {
        "run": "small",
        "iteration": 7,
        "seed": 0,
        "sampler": model.sampler.description(),
    }
    for options in ({"seed": 1}, {"steps": 3}):
        with pytest.raises(UserError, match="holds samples with"):
            write_samples(drawing(model, num=9, **options), out)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    with pytest.raises(UserError, match=r"is not empty and has no samples\.json"):
        write_samples(drawing(model), tmp_path / "other")


def test_an_interrupted_folder_goes_on(model, tmp_path, monkeypatch):
    save_png = writing.pictures.save_png

    def interrupted(picture, path):
        if path.name == "000005.png":
            raise KeyboardInterrupt
        return save_png(picture, path)

    monkeypatch.setattr(writing.pictures, "save_png", interrupted)
    with pytest.raises(InterruptionError, match="run the same command to resume"):
        write_samples(drawing(model, num=9), tmp_path / "x")
    monkeypatch.setattr(writing.pictures, "save_png", save_png)
    assert write_samples(drawing(model, num=9), tmp_path / "x")["found"] == 5
    write_samples(drawing(model, num=9), tmp_path / "whole")
    for i in range(9):
        name = f"{i:06d}.png"
        assert (tmp_path / "x" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_samples_do_not_depend_on_the_batch(model):
    """To the bit from eight images up; below, convolutions take another path, with other rounding."""
    reference = model.sample(24, batch=24)
    for batch in (8, 11, None):
        assert torch.equal(model.sample(20, batch=batch), reference[:20])
    torch.testing.assert_close(model.sample(3, batch=1), reference[:3], rtol=0, atol=1e-3)
    *_, tail = model.sample_batches(24, start=13)
    assert torch.equal(tail, reference[13:])


def test_a_batch_that_does_not_fit_is_halved(model, monkeypatch):
    expected, rows = model.sample(20), []
    trajectory = model._trajectory

    def cramped(index, *arguments):
        rows.append(len(index))
        if len(index) > 9:
            raise torch.OutOfMemoryError("out of memory")
        return trajectory(index, *arguments)

    monkeypatch.setattr(model, "_trajectory", cramped)
    assert torch.equal(torch.cat(list(model.sample_batches(20, batch=16))), expected)
    assert rows == [16, 8, 8, 8]


def test_the_automatic_batch_follows_the_size_of_an_image(model, monkeypatch):
    """Half the memory, for twice what one more chain keeps."""
    assert model.automatic_batch() == 256
    per_chain = model._bytes_per_chain()
    # At least the input of every convolution: 8 and 16 channels at 8x8 and 4x4, and no more than ten times that.
    assert 4 * 8 * 64 * 2 < per_chain < 4 * 8 * 64 * 20
    monkeypatch.setattr("springwell.model.CPU_MEMORY", 2 * per_chain * 21)
    assert model.automatic_batch() == 21


def test_trajectories(model, tmp_path):
    model = replace_denoise(model)
    result = write_trajectory(drawing(model, num=4, seed=2), tmp_path / "t.npz")
    assert result["levels"] == [3, 2, 1, 0]
    expected = {t: x for t, x, _ in model.trajectory(torch.arange(8), seed=2)}
    with np.load(tmp_path / "t.npz") as found:
        assert found["levels"].tolist() == [3, 2, 1, 0]
        for t, x in zip(found["levels"], found["trajectory"], strict=True):
            wanted = model.sample(4, seed=2) if t == 0 else expected[int(t)][:4]
            np.testing.assert_array_equal(x, wanted.numpy())
        columns = to_bytes(torch.from_numpy(found["trajectory"]).transpose(0, 1).flatten(0, 1))
    write_trajectory(drawing(model, num=4, seed=2), tmp_path / "t.png")
    assert (np.asarray(Image.open(tmp_path / "t.png")) == grid(columns, 4)[..., 0]).all()
    write_trajectory(drawing(model, num=4, seed=2), tmp_path / "t.gif")
    animation = Image.open(tmp_path / "t.gif")
    assert animation.n_frames == 4
    animation.seek(3)
    last = grid(to_bytes(model.sample(4, seed=2)))[..., 0]
    assert np.abs(np.asarray(animation.convert("L")).astype(int) - last).max() <= 1


def replace_denoise(model):
    changed = small_model()
    changed.denoise = True
    return changed


def test_vectors_show_their_trajectory_too(tmp_path):
    model = load("checkerboard")
    result = write_trajectory(drawing(model, num=50, steps=2), tmp_path / "t.npz")
    with np.load(tmp_path / "t.npz") as found:
        assert found["trajectory"].shape == (5, 50, 2)
        np.testing.assert_array_equal(found["trajectory"][-1], model.sample(50, num_steps=2).numpy())
    assert result["levels"] == [4, 3, 2, 1, 0]
    write_trajectory(drawing(model, num=50, steps=2), tmp_path / "t.png")
    assert Image.open(tmp_path / "t.png").size == (5 * 420, 460)
    write_trajectory(drawing(model, num=50, steps=2), tmp_path / "t.gif")
    assert Image.open(tmp_path / "t.gif").n_frames == 5


@pytest.mark.parametrize(
    ("write", "name", "num", "words"),
    [
        (write_samples, "x.png", 10_001, "a grid holds at most 10000 images, not 10001; use .npz or a folder"),
        (write_samples, "x.gif", 4, "add --trajectory"),
        (write_trajectory, "x.npy", 4, "as .png, .gif or .npz"),
        (write_trajectory, "x.png", 101, "at most 100 rows"),
    ],
)
def test_what_cannot_be_written_is_refused_before_any_work(model, tmp_path, write, name, num, words):
    with pytest.raises(UserError, match=words):
        write(drawing(model, num=num), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_progress_counts_levels(model, tmp_path):
    class Counting(Silent):
        total, done = 0, 0

        def bar(self, what, total, start=0):
            self.total, self.done = total, start
            outer = self

            class Bar:
                def __enter__(self):
                    return self

                def __exit__(self, *_):
                    pass

                def advance(self, steps=1):
                    outer.done += steps

            return Bar()

    reporter = Counting()
    write_samples(Drawing(model, "small", reporter, num=20, batch=8), tmp_path / "x.npy")
    assert reporter.done == reporter.total == 20 * 4


def test_the_command_writes_beside_the_run(model, tmp_path, monkeypatch, capsys):
    from springwell.app.cli import main

    monkeypatch.chdir(tmp_path)
    save(model, tmp_path / "run")
    for arguments, where in (
        (["run", "--num", "9"], "run/samples.png"),
        (["run", "--trajectory", "--num", "2"], "run/trajectory.png"),
        (["checkerboard", "--steps", "1"], "checkerboard.png"),
    ):
        with pytest.raises(SystemExit) as stop:
            main(["sample", *arguments, "--device", "cpu", "--json"])
        assert stop.value.code == 0
        assert json.loads(capsys.readouterr().out.splitlines()[-1])["out"] == where
        assert (tmp_path / where).read_bytes().startswith(b"\x89PNG")
    assert (np.asarray(Image.open("run/samples.png")) == grid(to_bytes(model.sample(9)))[..., 0]).all()

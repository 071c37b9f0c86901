"""springwell interpolate, inpaint and restore: files, bytes, resumption, bad input."""

import json
import os

import numpy as np
import pytest
from PIL import Image

from springwell.app import files
from springwell.app.cli import Context, find, parse
from springwell.app.files import read_images, read_mask, unique_names
from springwell.app.messages import as_options
from springwell.errors import UserError
from springwell.model import Model
from tests.images import small_model


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a command in this process, in a folder with a small untrained model of 8x8 grey images."""
    monkeypatch.chdir(tmp_path)
    model = small_model()
    assert isinstance(model, Model)
    model.save(tmp_path / "model")

    def call(*arguments):
        name, command = parse([*map(str, arguments), "--device", "cpu"])
        return find(name)[1](command, Context(command.common))

    return call


def picture(path, size=8, mode="L", seed=0):
    shape = (size, size) if mode == "L" else (size, size, 3)
    pixels = np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
    Image.fromarray(pixels).save(path)
    return pixels


def load(path):
    return np.asarray(Image.open(path))


def test_interpolate_writes_pictures_animations_and_numbers(run, tmp_path, capsys):
    result = run("interpolate", "model", "--seeds", 3, 4, 5, 6, "--num", 3)
    assert result["shape"] == [2, 3, 1, 8, 8]
    assert "largest distance of neighbours" in capsys.readouterr().out
    assert (tmp_path / "model-interpolation.png").exists()
    with Image.open("model-interpolation.gif") as animation:
        assert animation.n_frames == 3
    run("sample", "model", "--seed", 4, "--num", 1, "--out", "own.npy")
    run("interpolate", "model", "--seeds", 3, 4, "--num", 3, "--out", "path.npy")
    assert np.array_equal(np.load("path.npy")[0, -1], np.load("own.npy")[0])
    run("interpolate", "model", "--seeds", 3, 4, 5, 6, "--num", 3, "--manifold", "--out", "m.gif")
    with Image.open("m.gif") as animation:
        assert animation.n_frames == 9


@pytest.mark.parametrize("where", [("--half", "left"), ("--box", "0,0,4,8"), ("--mask", "mask.png")])
def test_inpainted_images_keep_the_bytes_that_are_seen(run, tmp_path, where):
    pixels = picture(tmp_path / "x.png")
    mask = np.zeros((8, 8), np.uint8)
    mask[:, :4] = 255
    Image.fromarray(mask).save("mask.png")
    result = run("inpaint", "model", "x.png", *where, "--num", 2, "--sweeps", 1, "--out", "o")
    assert result["images"] == 1
    first, second = (load(f"o/x-{j}.png") for j in (0, 1))
    for sample in (first, second):
        assert np.array_equal(sample[:, 4:], pixels[:, 4:])
    assert not np.array_equal(first[:, :4], second[:, :4])


def test_a_folder_goes_on_where_it_stopped_and_lists_what_it_could_not_do(run, tmp_path, capsys):
    folder = tmp_path / "images"
    folder.mkdir()
    for name in ("a", "b", "c"):
        picture(folder / f"{name}.png", seed=ord(name))
    (folder / "bad.png").write_bytes(b"no image")
    picture(folder / "large.png", size=9)
    picture(folder / "colour.png", mode="RGB")
    command = ("inpaint", "model", "images", "--half", "top", "--num", 1, "--out", "o")
    result = run(*command)
    assert result["images"] == 3
    assert len(result["failures"]) == 3
    said = capsys.readouterr()
    assert "3 of 6 images failed" in said.out
    for words in ("bad.png: cannot be read", "large.png: is 9 x 9 pixels; 8 x 8 are needed", "colour.png: is in colour"):
        assert words in said.out
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in (tmp_path / "o").iterdir()}
    # One picture is missing: it is drawn again, as it was, and nothing else is.
    (tmp_path / "o" / "b.png").unlink()
    run(*command)
    for path, (time, content) in before.items():
        assert path.read_bytes() == content
        assert path.name.startswith("b") or path.stat().st_mtime_ns == time
    with pytest.raises(UserError, match="holds samples with seed 0, not 1"):
        run(*command, "--seed", 1)
    assert run("inpaint", "model", "images", "--half", "top", "--num", 1, "--resize", "--out", "r")["images"] == 5


def test_no_two_images_write_the_same_file(run, tmp_path):
    folder = tmp_path / "images"
    (folder / "sub" / "a").mkdir(parents=True)
    for i, name in enumerate(("a", "a-0", "sub/a/b", "sub/a-b")):
        picture(folder / f"{name}.png", seed=i)
    assert run("inpaint", "model", "images", "--half", "top", "--num", 2, "--sweeps", 0, "--out", "o")["images"] == 4
    # A row and two samples of each, and two files of notes.
    assert len(list((tmp_path / "o").iterdir())) == 4 * 3 + 2
    seen = sorted(load(f"images/{name}.png")[4:].tobytes() for name in ("a", "a-0", "sub/a/b", "sub/a-b"))
    assert sorted(load(path)[4:].tobytes() for path in (tmp_path / "o").glob("*-1.png")) == seen


def test_names_are_kept_where_nothing_collides():
    assert unique_names(["a.png", "b-1.png", "c/d.jpg"]) == ["a", "b-1", "c-d"]
    for names in (
        ["a.png", "a.jpg"],
        ["a.png", "A.jpg"],
        ["a.png", "a-7.png"],
        ["a.png", "a-mean.png"],
        ["a/b.png", "a-b.png"],
    ):
        assert [name.rpartition("_")[2] for name in unique_names(names)] == ["0", "1"]


def test_changed_images_are_drawn_again_and_changed_masks_refused(run, tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    for name in ("a", "b"):
        picture(folder / f"{name}.png", seed=ord(name))
    mask = np.zeros((8, 8), np.uint8)
    mask[:, :4] = 255
    Image.fromarray(mask).save("mask.png")
    command = ("inpaint", "model", "images", "--mask", "mask.png", "--num", 1, "--sweeps", 0, "--out", "o")
    run(*command)
    kept = (tmp_path / "o" / "b.png").stat().st_mtime_ns
    pixels = picture(folder / "a.png", seed=7)
    run(*command)
    assert np.array_equal(load("o/a-0.png")[:, 4:], pixels[:, 4:])
    assert (tmp_path / "o" / "b.png").stat().st_mtime_ns == kept
    Image.fromarray(mask.T).save("mask.png")
    with pytest.raises(UserError, match="mask_sha256"):
        run(*command)


@pytest.mark.parametrize("options", [("deblur", "--kernel", "k.npy"), ("custom", "--operator", "own.py:f")])
def test_changed_kernels_and_operators_are_refused(run, tmp_path, options):
    picture(tmp_path / "x.png")

    def write(kernel, factor):
        np.save("k.npy", np.array([kernel]))
        (tmp_path / "own.py").write_text(f"def f(x):\n    return {factor} * x\n")

    command = ("restore", "model", "x.png", "--task", *options, "--num", 1, "--out", "o")
    write([0.2, 0.6, 0.2], 0.5)
    run(*command)
    write([0.3, 0.4, 0.3], 0.7)
    with pytest.raises(UserError, match="file_sha256"):
        run(*command)


def test_a_limit_above_the_number_of_images_takes_all_of_them(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (25, 8, 8), np.uint8)
    np.savez(tmp_path / "few.npz", test=pixels, train=pixels)
    source = f"npz:{tmp_path / 'few.npz'}@test"
    assert [len(read_images(source, (1, 8, 8), limit=limit)) for limit in (3, 24, 26)] == [3, 24, 25]


def test_a_folder_is_not_begun_for_images_that_cannot_be_used(run, tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "bad.png").write_bytes(b"no image")
    with pytest.raises(UserError, match="cannot be read"):
        run("inpaint", "model", "images", "--half", "top", "--out", "o")
    assert not (tmp_path / "o").exists()


def test_results_below_the_source_are_no_part_of_it(run, tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    picture(folder / "m.png")
    command = ("inpaint", "model", "images", "--half", "top", "--num", 1, "--sweeps", 0, "--out", "images/done")
    for _ in range(2):
        assert run(*command)["images"] == 1


@pytest.mark.parametrize(
    ("task", "options", "size"),
    [
        ("denoise", (), 8),
        ("superres", ("--factor", 4), 2),
        ("deblur", ("--kernel", "box:3"), 8),
        ("deblur", ("--kernel", "k.npy"), 8),
        ("custom", ("--operator", "own.py:flip"), 8),
    ],
)
def test_restored_images_with_their_mean_and_deviation(run, tmp_path, task, options, size):
    picture(tmp_path / "x.png", size=size)
    np.save("k.npy", np.full((1, 3), 1 / 3))
    (tmp_path / "own.py").write_text("def flip(x):\n    return x.flip(-1)\n")
    run("restore", "model", "x.png", "--task", task, *options, "--num", 3, "--out", "o")
    with np.load("o/x.npz") as arrays:
        samples, mean, std = (arrays[name] for name in ("samples", "mean", "std"))
    np.testing.assert_allclose(mean, samples.mean(0), atol=1e-5)
    np.testing.assert_allclose(std, samples.std(0, ddof=1), atol=1e-5)
    names = {path.name for path in (tmp_path / "o").iterdir()}
    assert names == {"restore.json", "images.json", "x.npz", "x.png", *(f"x-{name}.png" for name in ("mean", "std", 0, 1, 2))}


def test_simulated_measurements_are_judged(run, tmp_path, capsys):
    folder = tmp_path / "images"
    folder.mkdir()
    for i in range(3):
        picture(folder / f"{i}.png", seed=i)
    command = ("restore", "model", "images", "--simulate", "--noise", 0.3, "--num", 2)
    psnr = run(*command)["psnr"]
    # 10 log10(4 / 0.09) = 16.5 dB, and a little more because the noisy image is cut off at black and white.
    assert 16 < psnr["measurement"]["psnr"] < 18
    assert psnr["mean"]["num"] == 3
    assert "psnr measurement" in capsys.readouterr().out
    (tmp_path / "images-denoise" / "1.png").unlink()
    assert run(*command)["psnr"] == psnr


def test_vectors_are_compared_with_the_exact_conditional(run, tmp_path):
    result = run("inpaint", "checkerboard", "--given", "0=0.5", "--num", 50, "--sweeps", 1)
    assert (tmp_path / "checkerboard-inpainted.png").read_bytes().startswith(b"\x89PNG")
    assert 0 < result["ks_data"] < 1
    assert result["ks_null_95"] == pytest.approx(1.358 / 50**0.5)
    run("inpaint", "checkerboard", "--given", "1=-0.5", "--num", 20, "--sweeps", 0, "--out", "x.npy")
    assert np.all(np.load("x.npy")[:, 1] == -0.5)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_masks_are_read_from_files_of_the_right_size(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "null.png").symlink_to(os.devnull)
    for name in ("pipe.png", "null.png"):
        with pytest.raises(UserError, match=rf"^--mask .*{name}: cannot be read \(not a regular file\)$"):
            read_mask(tmp_path / name, (1, 8, 8))
    turned = Image.fromarray(np.eye(4, 8, dtype=np.uint8) * 255)
    exif = Image.Exif()
    exif[0x0112] = 6
    turned.save(tmp_path / "turned.png", exif=exif)
    assert read_mask(tmp_path / "turned.png", (1, 8, 4)).sum() == 4
    with pytest.raises(UserError, match=r"is 4 x 8 pixels; 8 x 4 are needed$"):
        read_mask(tmp_path / "turned.png", (1, 4, 8))
    monkeypatch.setattr(files, "decode", None)
    Image.new("I;16", (300, 200)).save(tmp_path / "large.png")
    with pytest.raises(UserError, match=r"is 300 x 200 pixels; 8 x 8 are needed$"):
        read_mask(tmp_path / "large.png", (1, 8, 8))


def test_bad_input_is_one_line(run, tmp_path):
    picture(tmp_path / "x.png")
    picture(tmp_path / "wide.png", size=9)
    Image.fromarray(np.zeros((8, 8), np.uint8)).save("nothing.png")
    Image.fromarray(np.full((8, 8), 255, np.uint8)).save("everything.png")
    Image.fromarray(np.zeros((4, 4), np.uint8)).save("small.png")
    (tmp_path / "broken.png").write_bytes(b"\x89PNG")
    (tmp_path / "own.py").write_text("raise ValueError('no')\n")
    np.savez("archive.npz", np.eye(3))
    (tmp_path / "archive.npz").rename("archive.npy")
    (tmp_path / "pk.npy").write_bytes(b"PK\x03\x04 and more")
    np.save("sum.npy", np.ones((3, 3)))
    np.save("nan.npy", np.full((3, 3), np.nan))
    deblur = ["restore", "model", "x.png", "--task", "deblur", "--kernel"]
    huge = 10**22
    for arguments, words in (
        (["interpolate", "model", "--seeds", 1], "every path has two ends"),
        (["interpolate", "model", "--seeds", 1, 2**64], f"--seed {2**64}: out of range"),
        (["inpaint", "model", "x.png", "--half", "left", "--seed", -(2**70)], "out of range; use an integer of 64 bits"),
        (["restore", "model", "x.png", "--seed", 2**64], "out of range; use an integer of 64 bits"),
        (["interpolate", "model", "--num", 101, "--seeds", 1, 2, 3, 4, "--manifold"], "at most 10000 samples"),
        (["interpolate", "model", "--seeds", 1, 2, "--manifold"], "4 corners"),
        (["interpolate", "model", "--num", 1], "--num 1: must be at least 2"),
        (["interpolate", "model", "--out", "x.jpg"], "unknown kind '.jpg'"),
        (["interpolate", "checkerboard", "--out", "x.gif"], "draws vectors"),
        (["inpaint", "model", "x.png"], "one of --mask, --box and --half"),
        (["inpaint", "model", "x.png", "--half", "left", "--box", "0,0,1,1"], "one of --mask, --box and --half"),
        (["inpaint", "model", "x.png", "--mask", "small.png"], "--mask small.png: is 4 x 4 pixels; 8 x 8 are needed"),
        (["inpaint", "model", "x.png", "--mask", "nothing.png"], "hides nothing"),
        (["inpaint", "model", "x.png", "--mask", "everything.png"], "hides everything"),
        (["inpaint", "model", "x.png", "--mask", "none.png"], "none.png: cannot be read"),
        (["inpaint", "model", "x.png", "--box", "0,0,9,1"], "leaves the image"),
        (["inpaint", "model", "x.png", "--box", "0,0"], "write 4 whole numbers"),
        (["inpaint", "model", "wide.png", "--half", "left"], "is 9 x 9 pixels; 8 x 8 are needed; use --resize"),
        (["inpaint", "model", "broken.png", "--half", "left"], "broken.png: cannot be read"),
        (["inpaint", "model", "absent.png", "--half", "left"], "absent.png: no such file"),
        (["inpaint", "model", "x.png", "--half", "left", "--out", "y.PNG"], "--out y.PNG: the output is a folder"),
        (["restore", "model", "x.png", "--out", "y.npz"], "--out y.npz: the output is a folder"),
        (["inpaint", "model"], "give an image, or --given"),
        (["inpaint", "model", "--given", "0=1"], "a model of images"),
        (["inpaint", "checkerboard", "x.png"], "a model of vectors"),
        (["inpaint", "checkerboard", "--given", "2=0"], "coordinates are 0 ... 1"),
        (["inpaint", "checkerboard", "--given", "a"], "write I=VALUE"),
        (["inpaint", "checkerboard", "--given", "0=0,1=0"], "hides nothing"),
        (["restore", "model", "x.png", "--noise", 0], "--noise 0: out of range"),
        (["restore", "model", "x.png", "--task", "superres", "--factor", 3], "--factor 3: must be at least 2 and divide 8 x 8"),
        (["restore", "model", "x.png", "--task", "superres"], "is 8 x 8 pixels; 4 x 4 are needed"),
        (["restore", "model", "x.png", "--task", "deblur", "--kernel", "box:2"], "both sides must be odd"),
        (["restore", "model", "x.png", "--task", "deblur", "--kernel", "sharp"], "write gaussian:WIDTH"),
        ([*deblur, "archive.npy"], "--kernel archive.npy: cannot be used"),
        ([*deblur, "pk.npy"], "--kernel pk.npy: cannot be used"),
        ([*deblur, "nan.npy"], "--kernel nan.npy: cannot be used"),
        ([*deblur, "sum.npy"], "--kernel sum.npy: sums to 9, not to 1; save k / k.sum()"),
        (["interpolate", "model", "--seeds", 1, 2, 3, 3], "seeds 3, 3: two are the same"),
        (["interpolate", "model", "--seeds", -1, 2**64 - 1], "two are the same (modulo 2^64)"),
        (["interpolate", "model", "--num", huge, "--out", "x.npy"], f"--num {huge}: too many"),
        (["inpaint", "model", "x.png", "--half", "left", "--num", huge], f"--num {huge}: a picture holds at most"),
        (["inpaint", "checkerboard", "--given", "0=0", "--num", 10**10], f"--num {10**10}: too many"),
        (["inpaint", "checkerboard", "--given", "0=0", "--half", "left"], "leave out --mask"),
        (["restore", "model", "x.png", "--num", 10**10], f"--num {10**10}: a picture holds at most"),
        (["restore", "model", "x.png", "--task", "custom"], "--operator and --task custom go together"),
        (["restore", "model", "x.png", "--task", "custom", "--operator", "none.py:f"], "no such file"),
        (["restore", "model", "x.png", "--task", "custom", "--operator", "own.py:f"], "the file fails (ValueError: no)"),
        (["restore", "checkerboard", "x.png"], "is a model of vectors"),
    ):
        with pytest.raises(UserError) as caught:
            run(*arguments)
        assert words in as_options(str(caught.value)), arguments
        assert "\n" not in as_options(str(caught.value))


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (
            "def f(x):\n    return torch.cat([x, x], 1)",
            "makes [2, 8, 8] of [1, 8, 8]; from here it must be an image of 1 channel",
        ),
        ("def f(x):\n    return x.expand(-1, 3, -1, -1)", "makes [3, 8, 8]"),
        ("def f(x):\n    return x.view(1, 1, 8, 8)", "fails on a batch of 8 (RuntimeError: shape"),
        ("def f(x):\n    return x[:1]", "a row for each sample"),
        ("def f(x):\n    return 3", "makes int of [1, 1, 8, 8]"),
        ("def f(x):\n    open('none')", "fails on a batch of 1 (FileNotFoundError: No such file"),
        ("def f(x):\n    return x.detach()", "cannot be differentiated"),
        ("raise ValueError('one\\ntwo')", "the file fails (ValueError: one)"),
        ("import sys\nsys.exit(3)", "the file fails (SystemExit: 3)"),
    ],
)
def test_operators_that_cannot_be_used_are_one_line(run, tmp_path, code, words):
    picture(tmp_path / "x.png")
    (tmp_path / "own.py").write_text(f"import torch\n{code}\n")
    with pytest.raises(UserError) as caught:
        run("restore", "model", "x.png", "--task", "custom", "--operator", "own.py:f", "--simulate", "--num", 1)
    assert as_options(str(caught.value)).startswith("--operator own.py:f: ")
    assert words in as_options(str(caught.value))
    assert "\n" not in as_options(str(caught.value))
    assert not (tmp_path / "x-custom").exists()


def test_vectors_do_not_depend_on_how_many_are_drawn(run):
    few, many = (
        run("inpaint", "checkerboard", "--given", "0=0.5", "--num", num, "--sweeps", 0, "--out", f"{num}.npy")
        for num in (3, 200)
    )
    assert (few["num"], many["num"]) == (3, 200)
    assert np.array_equal(np.load("3.npy"), np.load("200.npy")[:3])


def test_exit_codes_of_the_real_command_line(springwell, tmp_path):
    picture(tmp_path / "x.png")
    result = springwell("inpaint", "digits", "x.png", "--half", "left", "--num", 1, "--sweeps", 0, "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["images"] == 1
    result = springwell("inpaint", "digits", "y.png", "--half", "left")
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1

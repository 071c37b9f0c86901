"""FID, KID, Inception score, precision and recall against closed forms; features from cache and processes; springwell fid."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm
from torch import nn

from springwell.app.cli import main
from springwell.data.pictures import to_bytes
from springwell.errors import UserError
from springwell.evaluation import metrics, weights
from springwell.evaluation.metrics import (
    fid,
    image_metrics,
    inception_score,
    kid,
    metric_lines,
    precision_recall,
    reference_features,
    torchmetrics,
)
from springwell.evaluation.sources import Images, array_images, folder_images, model_images, open_source
from springwell.store.parts import Parts
from tests.data.published import photographs, write_folder
from tests.images import small_model
from tests.listener import Listener

DATA = Path(os.environ.get("SPRINGWELL_DATA") or "~/data").expanduser()


class Tiny(nn.Module):
    """Six features: means over parts of the image."""

    num_features = 6
    preprocessing = "tf1"

    def __init__(self, digest="tiny", fc=None):
        super().__init__()
        self.digest, self.fc, self.calls = digest, fc, 0

    def forward(self, images):
        self.calls += 1
        return nn.functional.adaptive_avg_pool2d(images.float().mean(1, keepdim=True) / 64, (2, 3)).flatten(1)


@pytest.fixture(autouse=True)
def _places(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def normal(num, width=6, seed=0):
    return torch.randn(num, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def with_moments(mean, root):
    """2 d points with exactly this mean and the covariance root root^T (divided by 2 d - 1)."""
    steps = root.T * ((2 * len(mean) - 1) / 2) ** 0.5
    return torch.cat([mean + steps, mean - steps])


def test_fid_of_gaussians_is_the_closed_form():
    roots, means = (normal(5, 5, 1), normal(5, 5, 2)), (normal(1, 5, 3)[0], normal(1, 5, 4)[0])
    samples, reference = (with_moments(m, root) for m, root in zip(means, roots, strict=True))
    covariances = [(root @ root.T).numpy() for root in roots]
    np.testing.assert_allclose(np.cov(samples.numpy(), rowvar=False), covariances[0], rtol=1e-12)
    middle = np.trace(sqrtm(covariances[0] @ covariances[1])).real
    expected = float((means[0] - means[1]).square().sum()) + np.trace(covariances[0] + covariances[1]) - 2 * middle
    assert fid(samples, reference) == pytest.approx(expected, rel=1e-9)
    assert fid(reference, samples) == pytest.approx(expected, rel=1e-9)


def test_fid_of_a_shift_is_its_square():
    x, shift = normal(50), normal(1, seed=1)
    trace = float(x.var(0).sum())
    # A square root of eigenvalues that are 0 but for rounding turns 1e-16 into 1e-8.
    assert fid(x, x) == pytest.approx(0, abs=1e-7 * trace)
    assert fid(x, x + shift) == pytest.approx(float(shift.square().sum()), abs=1e-7 * trace)
    few = normal(4)
    assert fid(few, few) == pytest.approx(0, abs=1e-6 * float(few.var(0).sum()))


def test_fid_is_what_torchmetrics_makes_of_the_network():
    images = [torch.from_numpy(photographs(40, 8, 8, seed)).permute(0, 3, 1, 2) for seed in (0, 1)]
    metric = torchmetrics().FrechetInceptionDistance(feature=Tiny())
    for x, real in zip(images, (False, True), strict=True):
        metric.update(x, real=real)
    features = [metrics.features(array_images("x", x.numpy()), Tiny(), batch=7) for x in images]
    assert fid(*features) == pytest.approx(float(metric.compute()), rel=1e-5)


def test_kid_is_the_unbiased_mmd():
    x, y = normal(30), normal(40, seed=1) + 0.3

    def kernel(a, b):
        return (a @ b.T / 6 + 1) ** 3

    def off_diagonal(k):
        return (k.sum() - k.trace()) / (len(k) * (len(k) - 1))

    expected = off_diagonal(kernel(x, x)) + off_diagonal(kernel(y[:30], y[:30])) - 2 * kernel(x, y[:30]).mean()
    assert kid(x, y[:30], size=30, subsets=2) == (pytest.approx(float(expected)), pytest.approx(0, abs=1e-12))
    mean, spread = kid(normal(4000), normal(4000, seed=1), size=40, subsets=100)
    # Disjoint subsets of this number would be independent; these are nearly.
    assert abs(mean) < 4 * spread / 10
    assert kid(x, y, 10, 5, seed=1) == kid(x, y, 10, 5, seed=1) != kid(x, y, 10, 5, seed=2)


def test_inception_score_at_its_ends():
    before = torch.random.get_rng_state()
    constant, spread = inception_score(normal(1, 7).expand(200, 7))
    assert (constant, spread) == (pytest.approx(1), pytest.approx(0, abs=1e-9))
    one_hot = 100 * torch.eye(8, dtype=torch.float64).repeat(20, 1)
    assert inception_score(one_hot) == (pytest.approx(8), pytest.approx(0, abs=1e-9))
    halves = torch.cat([one_hot[:80], torch.zeros(80, 8)])
    assert inception_score(halves, splits=2) == (pytest.approx(4.5), pytest.approx(3.5))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_precision_and_recall_are_shares_of_points_in_balls():
    x, y = normal(60).numpy(), 1.3 * normal(50, seed=1).numpy()

    def share(points, others):
        within = np.linalg.norm(others[:, None] - others, axis=-1)
        radius = np.sort(within, 1)[:, 3]
        return float((np.linalg.norm(points[:, None] - others, axis=-1) <= radius).any(1).mean())

    expected = share(x, y), share(y, x)
    assert 0 < expected[1] < expected[0] < 1 or 0 < expected[0] < expected[1] <= 1
    x, y = torch.from_numpy(x), torch.from_numpy(y)
    assert precision_recall(x, y) == expected
    assert precision_recall(y, x) == expected[::-1]
    assert precision_recall(x, x) == (1, 1)
    assert precision_recall(x, y + 100) == (0, 0)
    # Samples from one of two modes are all right and cover half.
    two = torch.cat([x, x + 100])
    assert precision_recall(x, two) == (1, 0.5)


def test_blocks_do_not_change_the_neighbours(monkeypatch):
    x, y = normal(60), normal(50, seed=1)
    whole = precision_recall(x, y)
    monkeypatch.setattr(metrics, "_parts", lambda x, columns: x.split(7))
    assert precision_recall(x, y) == whole


def test_all_metrics_carry_their_counts():
    listener, x, y = Listener(), normal(60).float(), normal(50, seed=1).float()
    fc = normal(9, 6, 5).float()
    result = image_metrics(x, y, fc, listener)
    assert listener.said == [
        "warning: FID of 50 images is biased upward; compare it with FIDs of as many, and use 10,000 or more"
    ]
    assert result["fid"] == fid(x, y)
    assert (result["precision"], result["recall"]) == precision_recall(x, y)
    assert result["inception_score"] == inception_score(x.double() @ fc.double().T)[0]
    assert (result["kid"], result["kid_std"]) == kid(x, y, size=25)
    lines = metric_lines(result)
    assert len(lines) == 5
    assert all("60 samples" in line for line in lines)
    assert all("50 reference images" in line for line in lines[:4])
    without = image_metrics(x, y)
    assert without["inception_score"] is None
    assert metric_lines(without)[4].startswith("is         not computed: these weights of Inception have no fc layer")


def test_features_are_cached_by_what_they_depend_on(tmp_path):
    rows = photographs(30, 8, 8).transpose(0, 3, 1, 2)
    images, network, listener = array_images("set@test", rows), Tiny(), Listener()
    expected = metrics.features(images, network)
    network.calls = 0
    assert torch.equal(reference_features(images, network), expected)
    assert torch.equal(reference_features(images, network, listener), expected)
    assert network.calls == 1
    (file,) = (tmp_path / "cache/springwell/features").glob("*/*.npz")
    assert file.parent.name.startswith("set-test-30-tf1-")
    assert listener.said == ["features of set@test: 30 of 30 are done already"]
    for damage in (lambda: file.write_bytes(file.read_bytes()[:-1]), lambda: file.write_bytes(b"")):
        damage()
        for calls in (1, 0):
            network.calls = 0
            assert torch.equal(reference_features(images, network), expected)
            assert network.calls == calls
    others = [(array_images("set", rows[:29]), network), (array_images("set", 255 - rows), network), (images, Tiny("other"))]
    pytorch = Tiny()
    pytorch.preprocessing = "pytorch"
    for source, other in [*others, (images, pytorch)]:
        other.calls = 0
        reference_features(source, other, keep=False)
        assert other.calls == 1
    assert len(list(file.parent.parent.iterdir())) == 1


def test_an_interrupted_reference_goes_on(tmp_path):
    rows = torch.from_numpy(photographs(100, 8, 8).transpose(0, 3, 1, 2).copy())
    whole, network = array_images("set@test", rows.numpy()), Tiny()

    def some(start, stop):
        if start == 64:
            raise KeyboardInterrupt
        return rows[start:stop]

    with pytest.raises(KeyboardInterrupt):
        reference_features(replace(whole, rows=some), network)
    network.calls = 0
    assert torch.equal(reference_features(whole, network), Tiny()(rows))
    assert network.calls == 2
    assert len(list((tmp_path / "cache/springwell/features").glob("*/*.npz"))) == 4


def test_a_cache_that_cannot_be_written_is_no_obstacle(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    listener = Listener()
    assert len(reference_features(array_images("x", photographs(30, 8, 8).transpose(0, 3, 1, 2)), Tiny(), listener)) == 30
    assert "cannot be written" in listener.said[-1]


def test_images_are_asked_for_together_and_computed_in_batches():
    asked, sizes = [], []
    rows = torch.from_numpy(photographs(50, 8, 8).transpose(0, 3, 1, 2).copy())

    def some(start, stop):
        asked.append((start, stop))
        return rows[start:stop]

    network = Tiny()
    network.register_forward_pre_hook(lambda module, arguments: sizes.append(len(arguments[0])))
    found = metrics.features(Images("x", 50, (3, 8, 8), some, together=20), network, batch=8)
    assert torch.equal(found, Tiny()(rows))
    assert asked == [(0, 24), (24, 48), (48, 50)]
    assert sizes == [8, 8, 8, 8, 8, 8, 2]


def test_interrupted_features_go_on(tmp_path):
    rows = torch.from_numpy(photographs(50, 8, 8).transpose(0, 3, 1, 2).copy())
    asked, listener, fail_at = [], Listener(), {24}

    def some(start, stop):
        if start in fail_at:
            raise KeyboardInterrupt
        asked.append(start)
        return rows[start:stop]

    images = Images("x", 50, (3, 8, 8), some)
    with pytest.raises(KeyboardInterrupt):
        metrics.features(images, Tiny(), batch=8, parts=Parts(tmp_path / "parts"))
    fail_at.clear()
    found = metrics.features(images, Tiny(), listener, batch=8, parts=Parts(tmp_path / "parts"))
    assert torch.equal(found, Tiny()(rows))
    assert asked == [0, 8, 16, 24, 32, 40, 48]
    assert listener.said == ["features of x: 24 of 50 are done already"]


def test_features_must_be_finite():
    network = Tiny()
    network.forward = lambda images: torch.full((len(images), 6), torch.nan)
    with pytest.raises(UserError, match="x: the network's features are not finite"):
        metrics.features(array_images("x", np.zeros((20, 1, 4, 4), np.uint8)), network)


@pytest.fixture
def run(monkeypatch, capsys):
    """springwell fid in this process, with the tiny network."""
    monkeypatch.setattr(weights, "load_inception", lambda *arguments: Tiny())

    def call(*arguments, code=0):
        with pytest.raises(SystemExit) as stop:
            main(["fid", *map(str, arguments), "--device", "cpu"])
        said = capsys.readouterr()
        assert stop.value.code == code, said.err
        return said

    return call


def last_json(said):
    return json.loads(said.out.splitlines()[-1])


# How many images suit a process depends on its device's memory, so the two differ.
SCRIPT = """
import os
from dataclasses import replace
import torch
from springwell.app import cli
from springwell.evaluation import sources, weights
from tests.evaluation.test_metrics import Tiny
torch.set_num_threads(1)
weights.load_inception = lambda *arguments: Tiny(fc=torch.eye(6))
whole = sources.open_source
sources.open_source = lambda *arguments: replace(whole(*arguments), together=8 + 10 * int(os.environ["RANK"]))
cli.main(["fid", "a", "b.npz", "--batch", "7", "--device", "cpu", "--json"])
"""


def test_two_processes_give_the_result_of_one(run, python, tmp_path, monkeypatch):
    write_folder(tmp_path / "a", photographs(45, 8, 8, 0))
    np.savez("b.npz", samples=photographs(40, 8, 8, 1))
    monkeypatch.setattr(weights, "load_inception", lambda *arguments: Tiny(fc=torch.eye(6)))
    one = last_json(run("a", "b.npz", "--batch", 7, "--json"))
    Path("script.py").write_text(SCRIPT)
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parents[2]}{os.pathsep}{Path(__file__).parents[2] / 'src'}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    result = python.run_together(["script.py"], cwd=tmp_path)
    assert result.returncode == 0, result.stderr[-2000:]
    assert json.loads(result.stdout) == one
    assert (one["num_samples"], one["num_reference"]) == (45, 40)


def test_sources_hold_the_same_images(run, tmp_path):
    images = photographs(60, 8, 8)
    write_folder(tmp_path / "folder", images)
    np.savez("x.npz", samples=images)
    np.save("x.npy", images)
    np.savez("both.npz", train=images[:40], test=images[40:])
    for source in ("folder", "folder:folder", "x.npz", "npz:x.npz", "x.npy"):
        found = open_source(source)
        assert (found.num, found.shape) == (60, (3, 8, 8))
        assert torch.equal(found.rows(10, 60), torch.from_numpy(images[10:].transpose(0, 3, 1, 2)))
    assert torch.equal(open_source("both.npz@test").rows(0, 20), torch.from_numpy(images[40:].transpose(0, 3, 1, 2)))
    # Every tenth image is held out from training.
    assert torch.equal(open_source("x.npz@train").rows(9, 10), torch.from_numpy(images[10:11].transpose(0, 3, 1, 2)))
    with pytest.raises(UserError, match=r"x.npy@train: an .npy is not divided; leave out @train"):
        open_source("x.npy@train")
    result = last_json(run("folder", "x.npz", "--json"))
    assert result["fid"] == pytest.approx(0, abs=1e-6)
    assert (result["precision"], result["recall"], result["num_samples"]) == (1, 1, 60)


def test_the_command_prints_values_with_counts(run):
    said = run("digits", "digits@test", "--num", 200)
    lines = said.out.splitlines()
    assert lines[0] == "digits@train against digits@test, preprocessing tf1"
    a, b = (open_source(source, 200) for source in ("digits@train", "digits@test"))
    expected = image_metrics(metrics.features(a, Tiny()), metrics.features(b, Tiny()))
    assert lines[1:] == metric_lines(expected)
    assert said.err.count("grey images; their channel is repeated three times") == 2
    assert "warning: FID of 200 images is biased upward" in said.err
    assert "200 of 200 are done already" in run("digits", "digits@test", "--num", 200).err


def test_samples_are_the_images_that_are_written():
    model = small_model()
    images = model_images("model", model, 12, seed=3)
    expected = torch.from_numpy(to_bytes(model.sample(12, seed=3))).permute(0, 3, 1, 2)
    assert torch.equal(torch.cat([images.rows(0, 5), images.rows(5, 12)]), expected)


def test_few_unreadable_images_are_left_out(run, tmp_path):
    write_folder(tmp_path / "a", photographs(120, 8, 8))
    (tmp_path / "a" / "0007.png").write_bytes(b"no image")
    said = run("a", "a", "--json")
    assert "a: 1 of 120 images cannot be read (first: 0007.png: not an image); left out" in said.err
    result = last_json(said)
    assert (result["num_samples"], result["unreadable_a"], result["unreadable_b"]) == (119, 1, 1)
    # One of 120 is less than 1 %, however few are asked for.
    assert last_json(run("a", "a", "--num", 20, "--json"))["unreadable_a"] == 1
    (tmp_path / "a" / "0008.png").write_bytes(b"")
    said = run("a", "a", code=2)
    assert said.err.splitlines()[-1] == (
        "springwell: a: 2 of 120 images cannot be read (first: 0007.png: not an image), more than 1%; mend or remove them"
    )


def test_unreadable_images_of_a_decoded_set_count_every_time(run, tmp_path, monkeypatch):
    monkeypatch.setenv("SPRINGWELL_DATA", str(tmp_path))
    for name, num in (("good", 240), ("bad", 60)):
        write_folder(tmp_path / name, photographs(num, 8, 8))
        (tmp_path / name / "0007.png").write_bytes(b"no image")
    for _ in range(2):
        said = run("good@train", "good@test", "--json")
        assert "good@train: 1 of 240 images could not be decoded; left out" in said.err
        assert last_json(said)["unreadable_a"] == 1
        assert "bad@train: 1 of 60 images could not be decoded, more than 1%" in run("bad@train", "good", code=2).err


def test_grey_and_coloured_images_may_be_mixed(tmp_path):
    write_folder(tmp_path / "a", photographs(20, 8, 8, channels=1))
    assert folder_images("a", tmp_path / "a").shape == (1, 8, 8)
    write_folder(tmp_path / "a", photographs(20, 8, 8), start=20)
    listener = Listener()
    images = folder_images("a", tmp_path / "a", reporter=listener)
    assert listener.said == ["a: 20 of 40 images are grey; their channel is repeated three times"]
    assert images.shape == (3, 8, 8)
    first = images.rows(0, 1)[0]
    assert torch.equal(first[0], first[1])


def test_bad_input_is_one_line(run, tmp_path, monkeypatch):
    monkeypatch.setenv("SPRINGWELL_DATA", str(tmp_path))
    Path("empty").mkdir()
    write_folder(tmp_path / "few", photographs(5, 8, 8))
    write_folder(tmp_path / "mixed", photographs(20, 8, 8))
    write_folder(tmp_path / "mixed", photographs(1, 9, 8), start=20)
    Path("bad.npz").write_text("nothing")
    np.savez("both.npz", train=photographs(20, 8, 8), test=photographs(20, 8, 8))
    for arguments, message in (
        (("empty", "digits"), "empty: holds no images (png, jpg, webp, gif, bmp, tif, ppm, jp2, avif)"),
        (("digits", "few"), "few: has 5 images; 20 are the fewest"),
        (("digits", "digits@test", "--num", 1000), "digits@test: has 299 images; --num 1000 asks for more"),
        (("mixed", "digits"), "mixed: 0020.png is 8 x 9 pixels, 0000.png is 8 x 8; give --image-size to crop and resize all"),
        (("folder:absent", "digits"), "folder:absent: no such folder"),
        (("absent.npz", "digits"), "absent.npz: no such file"),
        (("bad.npz", "digits"), "bad.npz: is not a readable .npz file"),
        (("both.npz", "digits"), "both.npz: holds train and test; choose one by @train or @test"),
        (("cifar", "digits"), "cifar: unknown; choose digits, mnist"),
        (("cifar10@test", "digits"), "cifar10@test: not found; looked in"),
        (("digits", "digits", "--num", 3), "--num 3: out of range; use 20 ..."),
    ):
        said = run(*arguments, code=2)
        (line,) = [line for line in said.err.splitlines() if line.startswith("springwell: ")]
        assert message in line
    assert last_json(run("mixed", "digits", "--image-size", 8, "--num", 20, "--json"))["num_samples"] == 20
    said = run("mixed", "digits", "--image-size", 9, "--num", 20)
    assert "pixels" not in said.err
    write_folder(tmp_path / "large", photographs(20, 9, 9))
    assert "large and digits@train have 9 x 9 and 8 x 8 pixels" in run("large", "digits", "--num", 20).err
    monkeypatch.setitem(sys.modules, "torchmetrics.image.fid", None)
    assert "need torchmetrics; pip install 'springwell[evaluate]'" in run("digits", "digits", code=2).err


def test_missing_and_wrong_weights_are_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SPRINGWELL_DATA", str(tmp_path))
    monkeypatch.delenv("SPRINGWELL_INCEPTION", raising=False)
    monkeypatch.setattr(weights, "URL", "http://127.0.0.1:1/inception.pth")
    Path("x-00000000.pth").write_text("x")
    for arguments, message in (
        ((), "no weights of Inception here, and the download failed (Connection refused). Get http"),
        (("--inception", "absent.pth"), "--inception absent.pth: no such file. Get http"),
        (("--inception", "x-00000000.pth"), "--inception x-00000000.pth: damaged; its SHA-256 begins with 2d711642"),
    ):
        with pytest.raises(SystemExit) as stop:
            main(["fid", "digits", "digits", *arguments])
        assert stop.value.code == 2
        assert message in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize(("how", "expected"), [("tf1", 24.94), ("pytorch", 24.84)])
def test_cifar10_is_known(how, expected, tmp_path, monkeypatch):
    """First 2,000 training images against first 2,000 test images; the figures were computed independently."""
    monkeypatch.setenv("SPRINGWELL_DATA", str(DATA))
    if weights.find_weights() is None or not list(DATA.glob("cifar-10-*")):
        pytest.skip("needs CIFAR-10 and the weights of Inception")
    network = weights.load_inception(None, how)
    x, y = (metrics.features(open_source(f"cifar10@{split}", 2000), network) for split in ("train", "test"))
    assert fid(x, y) == pytest.approx(expected, abs=0.02)

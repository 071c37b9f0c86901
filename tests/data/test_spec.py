"""One grammar for data: names before paths, kinds, splits."""

import numpy as np
import pytest
import torch
from PIL import Image

from springwell.data.formats import UnusableDataError
from springwell.data.source import open_data
from springwell.data.spec import TOYS, Spec, parse, parse_source
from springwell.data.toy import TOY_DATA
from springwell.errors import UserError
from springwell.evaluation.sources import open_source
from tests.data.published import photographs, write_folder


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("photos", "mnist", "checkerboard", "set", "a@test"):
        (tmp_path / folder).mkdir()
    (tmp_path / "set" / "prepared.json").touch()
    for file in ("x.png", "x.npz", "x.npy", "x.zip"):
        (tmp_path / file).touch()


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("mnist", Spec("mnist")),
        ("checkerboard", Spec("checkerboard")),
        ("./mnist", Spec("folder", "./mnist")),
        ("mnist@test", Spec("mnist", split="test")),
        ("lsun/bedroom@train", Spec("lsun", "bedroom", "train")),
        ("photos", Spec("folder", "photos")),
        ("folder:nowhere", Spec("folder", "nowhere")),
        ("folder:photos@test", Spec("folder", "photos", "test")),
        ("photos@other", Spec("", "photos@other")),
        ("a@test", Spec("folder", "a@test")),
        ("set", Spec("prepared", "set")),
        ("prepared:set@test", Spec("prepared", "set", "test")),
        ("hf:owner/name@config", Spec("hf", "owner/name@config")),
        ("hf:owner/name@config@test", Spec("hf", "owner/name@config", "test")),
        ("x.png", Spec("image", "x.png")),
        ("x.npz@test", Spec("npz", "x.npz", "test")),
        ("x.npy", Spec("npy", "x.npy")),
        ("x.zip", Spec("zip", "x.zip")),
        ("nowhere.npz", Spec("npz", "nowhere.npz")),
        ("csv:x", Spec("csv", "x")),
        ("x.csv", Spec("csv", "x.csv")),
        ("parquet:a b.pq", Spec("parquet", "a b.pq")),
        ("nowhere", Spec("", "nowhere")),
        ("ftp:x", Spec("", "ftp:x")),
        ("", Spec("")),
        ("@test", Spec("", split="test")),
    ],
)
def test_the_grammar(text, spec):
    found = parse_source(text)
    assert found == spec
    # What a spec is written as names the same thing again.
    assert parse(str(found)) == Spec(spec.kind, spec.place)


def test_every_toy_is_named():
    assert list(TOY_DATA) == list(TOYS)


def test_paths_are_made_absolute(tmp_path):
    for text, path in (("photos", "folder:{}/photos"), ("npz:x.npz", "npz:{}/x.npz"), ("set@test", "prepared:{}/set")):
        assert str(parse_source(text).absolute()) == path.format(tmp_path)
    for text in ("mnist", "checkerboard", "lsun/bedroom", "hf:owner/name@config", "nowhere", "folder:", ""):
        assert str(parse(text).absolute()) == text


def test_a_kind_needs_its_path():
    with pytest.raises(UnusableDataError, match="no path is given; write folder:PATH"):
        _ = parse("folder:").path


def test_a_path_is_what_its_kind_is(tmp_path):
    """Everything that reads data takes the same words for it."""
    images = photographs(40, 8, 8)
    write_folder(tmp_path / "photos", images)
    np.savez("x.npz", images=images)
    rows = np.random.default_rng(0).normal(size=(40, 2))
    np.save("x.npy", rows)
    for short, long in (("photos", "folder:photos"), ("x.npz", "npz:x.npz"), ("x.npy", "npy:x.npy")):
        a, b = open_data(short), open_data(long)
        assert a.event_shape == b.event_shape
        assert torch.equal(a.scale, b.scale)
        if short != "x.npy":
            assert np.array_equal(a.rows, b.rows)
            one, two = open_source(f"{short}@test", None, fewest=1), open_source(f"{long}@test", None, fewest=1)
            assert torch.equal(one.rows(0, 4), two.rows(0, 4))
    Image.fromarray(images[0]).save("x.png")
    for text in ("x.png", "nowhere"):
        with pytest.raises(UserError, match=f"data='{text}': unknown; choose checkerboard"):
            open_data(text)

"""Labels of every source of data: they belong to their rows, and what cannot be learned is refused in one line."""

import numpy as np
import pytest
import torch

from springwell.data.arrays import array_source
from springwell.data.classes import checked, numbered
from springwell.data.source import open_data
from springwell.data.spec import UnusableDataError
from springwell.data.toy import toy_data
from springwell.errors import UserError
from springwell.noise import Noise


def png(path, value, size=8):
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((size, size), value, np.uint8)).save(path)


def test_toys_know_the_mode_of_a_point():
    data = open_data("pinwheel")
    labels = data.labels()
    x, label = labels.sample(Noise(0, torch.arange(500)))
    assert torch.equal(x, data.sample(Noise(0, torch.arange(500))))
    assert labels.classes == tuple("01234")
    # Arms overlap a little.
    assert (toy_data("pinwheel").mode_log_density(x).argmax(-1) == label).double().mean() > 0.97


def test_digits_have_their_labels():
    from sklearn.datasets import load_digits

    data = open_data("digits")
    labels, found = data.labels(), load_digits()
    images = {
        image.tobytes(): int(c)
        for image, c in zip(np.rint(found.images * 255 / 16).astype(np.uint8), found.target, strict=True)
    }
    for x, label in (labels.sample(Noise(0, torch.arange(64))), labels.held_out(Noise(0, torch.arange(64)))):
        rows = ((x + 1) * 127.5).round().to(torch.uint8).numpy()[:, 0]
        assert [images[np.ascontiguousarray(row).tobytes()] for row in rows] == label.tolist()
    assert torch.equal(labels.sample(Noise(0, torch.arange(8)))[0], data.sample(Noise(0, torch.arange(8))))


def test_few_labels_are_those_of_rows_and_the_others_are_withheld():
    labels = open_data("digits").labels()
    few = labels.limited(20, seed=0)
    x, label = few.sample(Noise(0, torch.arange(4000)))
    known = label >= 0
    assert 0.45 < known.double().mean() < 0.55
    assert len(torch.unique(x[known].flatten(1), dim=0)) == 20
    assert torch.unique(label[known]).tolist() == list(range(10))
    assert len(torch.unique(x[~known].flatten(1), dim=0)) > 1000
    for num in (5, 10**6):
        with pytest.raises(UnusableDataError, match=f"labelled={num}: out of range"):
            labels.limited(num, 0)
    with pytest.raises(UnusableDataError, match="have no end"):
        open_data("rings").labels().limited(10, 0)


def test_sub_folders_are_classes(tmp_path, monkeypatch):
    monkeypatch.setenv("SPRINGWELL_DATA", str(tmp_path / "data"))
    for i in range(12):
        png(tmp_path / "set" / "cat" / f"{i:02d}.png", 10 + i)
        png(tmp_path / "set" / "dog" / f"{i:02d}.png", 200 + i)
    (tmp_path / "set" / "cat" / "03.png").write_bytes(b"no image")
    data = open_data(f"folder:{tmp_path / 'set'}")
    labels = data.labels()
    assert labels.classes == ("cat", "dog")
    for x, label in (labels.sample(Noise(0, torch.arange(64))), labels.held_out(Noise(0, torch.arange(64)))):
        assert ((x[:, 0, 0, 0] > 0).long() == label).all()


def test_images_outside_of_sub_folders_have_no_label(tmp_path, monkeypatch):
    monkeypatch.setenv("SPRINGWELL_DATA", str(tmp_path / "data"))
    for i in range(12):
        png(tmp_path / "set" / "cat" / f"{i:02d}.png", i)
        png(tmp_path / "set" / "dog" / f"{i:02d}.png", i)
    png(tmp_path / "set" / "stray.png", 1)
    with pytest.raises(UnusableDataError, match="1 of 25 rows have no label"):
        open_data(f"folder:{tmp_path / 'set'}").labels()


def test_labels_of_a_column(tmp_path):
    rows = [(i, i % 7, "red" if i % 2 else "blue") for i in range(60)]
    file = tmp_path / "table.csv"
    file.write_text("x,y,colour\n" + "".join(f"{x},{y},{c}\n" for x, y, c in rows))
    data = open_data(f"csv:{file}", label_column="colour")
    labels = data.labels()
    assert data.event_shape == (2,)
    assert labels.classes == ("blue", "red")
    u, label = labels.sample(Noise(0, torch.arange(200)))
    x = (data.shift + data.scale * u)[:, 0].round().long()
    assert torch.equal(x % 2, label)
    with pytest.raises(UserError, match="has no column 'shape', only x, y, colour"):
        open_data(f"csv:{file}", label_column="shape")
    file.write_text("x,y,colour\n1,red\n")
    with pytest.raises(UserError, match="row 0 has 2 cells, and the header 3"):
        open_data(f"csv:{file}", label_column="colour")


def test_labels_from_python():
    x, y = torch.randn(100, 3), torch.arange(100) // 50
    labels = array_source((x, y)).labels()
    assert labels.classes == ("0", "1")
    assert labels.train.tolist() == [int(c) for i, c in enumerate(y) if i % 10 != 9]
    with pytest.raises(UserError, match="100 rows and 3 labels"):
        array_source((x, [0, 1, 2]))
    with pytest.raises(UnusableDataError, match="has no labels"):
        array_source(x).labels()


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        (["a"] * 5, ["a"], "has one class only, 'a'"),
        (["a", "b", ""], ["a"], "1 of 4 rows have no label"),
        (["", ""], [""], "has no labels"),
        ([str(i) for i in range(10_000)], ["1"], "has 10,000 classes for 10,001 rows; at most 1,000"),
        (["a", "b"], ["c"], "class 'c' has no training rows"),
    ],
)
def test_labels_that_cannot_be_learned(train, test, message):
    with pytest.raises(UnusableDataError, match=message):
        checked(numbered(train, test))


def test_classes_are_in_order():
    assert numbered(["10", "9", "b", "a"], []).classes == ("9", "10", "a", "b")

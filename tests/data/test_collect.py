"""Encoded sets: the right images in the right split, cropped as published, and what is missing is said in one line."""

import contextlib
import io
import os
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from springwell.data import collect, decode, prepare
from springwell.data.images import prepare_images
from springwell.data.options import ImageOptions
from springwell.data.prepare import open_prepared
from springwell.data.source import open_data
from springwell.errors import InterruptionError, UserError
from springwell.noise import Noise
from springwell.store import parts as store_parts
from springwell.store.files import write_atomically
from tests.data import published


def prepared(spec, tmp_path, **options):
    prepare_images(spec, tmp_path / "out", ImageOptions(data_root=str(tmp_path), **options), workers=1)
    return open_prepared(tmp_path / "out")[0]


def planes(images):
    return images.transpose(0, 3, 1, 2)


IMAGES = published.photographs(30, 8, 8)


def test_folder_without_splits(tmp_path):
    published.write_folder(tmp_path / "set" / "b", IMAGES[15:], start=15)
    published.write_folder(tmp_path / "set" / "a", IMAGES[:15])
    (tmp_path / "set" / "readme.txt").write_text("not an image")
    (tmp_path / "set" / "a" / ".hidden.png").write_text("not an image")
    arrays = prepared(f"folder:{tmp_path / 'set'}", tmp_path)
    np.testing.assert_array_equal(arrays.test, planes(IMAGES[9::10]))
    np.testing.assert_array_equal(arrays.train, planes(IMAGES[np.arange(30) % 10 != 9]))


@pytest.mark.parametrize("held_out", ["test", "val"])
@pytest.mark.parametrize("prefix", ["", "wrapped/twice/"])
def test_folder_and_zip_with_splits(tmp_path, held_out, prefix):
    base = tmp_path / "set" / prefix
    published.write_folder(base / "train" / "cats", IMAGES[:20])
    published.write_folder(base / held_out, IMAGES[20:])
    arrays = prepared(f"folder:{tmp_path / 'set'}", tmp_path)
    np.testing.assert_array_equal(arrays.train, planes(IMAGES[:20]))
    np.testing.assert_array_equal(arrays.test, planes(IMAGES[20:]))
    shutil.make_archive(str(tmp_path / "set"), "zip", tmp_path / "set")
    shutil.rmtree(tmp_path / "out")
    zipped = prepared(f"zip:{tmp_path / 'set.zip'}", tmp_path)
    np.testing.assert_array_equal(zipped.train, arrays.train)
    np.testing.assert_array_equal(zipped.test, arrays.test)


FACES = published.photographs(12, 218, 178)
PARTS = [0] * 7 + [1, 1] + [2] * 3


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("size", [None, 32])
def test_celeba(tmp_path, zipped, size):
    published.write_celeba(tmp_path, FACES, PARTS, zipped)
    arrays = prepared("celeba", tmp_path, image_size=size)
    assert arrays.train.shape == (7, 3, size or 64, size or 64)
    assert arrays.test.shape[0] == 3
    side = size or 64
    for i, found in [(0, arrays.train[0]), (6, arrays.train[6]), (9, arrays.test[0])]:
        jpeg = Image.open(io.BytesIO(published.encoded(FACES[i], "JPEG", quality=95)))
        cropped = Image.fromarray(np.asarray(jpeg)[20:198])
        reference = cropped.resize((side, side), Image.Resampling.BILINEAR)
        np.testing.assert_array_equal(found, np.asarray(reference).transpose(2, 0, 1))


def test_celeba_with_a_csv_and_images_that_are_missing_or_wrong(tmp_path):
    published.write_celeba(tmp_path, FACES, PARTS)
    base = tmp_path / "celeba"
    lines = (base / "list_eval_partition.txt").read_text().replace(" ", ",")
    (base / "list_eval_partition.txt").unlink()
    (base / "list_eval_partition.csv").write_text("image_id,partition\n" + lines)
    (base / "img_align_celeba" / "000002.jpg").unlink()
    (base / "img_align_celeba" / "000003.jpg").write_bytes(published.encoded(IMAGES[0], "JPEG"))
    record = prepare_images("celeba", tmp_path / "out", ImageOptions(data_root=str(tmp_path)), workers=1)
    assert (record["num_train"], record["num_test"], record["num_unreadable"]) == (5, 3, 2)
    assert record["unreadable"] == [
        ("000002.jpg", "No such file or directory"),
        ("000003.jpg", "is 8 x 8 pixels, not 178 x 218"),
    ]


@pytest.mark.parametrize("base", ["lsun", "."])
def test_lsun(tmp_path, base):
    pytest.importorskip("lmdb")
    tall, wide = published.photographs(12, 100, 70), published.photographs(3, 64, 90, seed=1)
    published.write_lsun(tmp_path / base / "church_outdoor_train_lmdb", list(tall))
    published.write_lsun(tmp_path / base / "church_outdoor_val_lmdb", list(wide))
    arrays = prepared("lsun/church_outdoor", tmp_path)
    square = [Image.fromarray(image[15:85]).resize((64, 64), Image.Resampling.BILINEAR) for image in tall]
    np.testing.assert_array_equal(arrays.train, planes(np.stack([np.asarray(image) for image in square])))
    np.testing.assert_array_equal(arrays.test, planes(wide[:, :, 13:77]))


def hugging_face_set(**splits):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"label": datasets.Value("int32"), "picture": datasets.Image()})
    return {
        name: datasets.Dataset.from_dict(
            {
                "label": [0] * len(images),
                "picture": [{"bytes": published.encoded(image), "path": None} for image in images],
            },
            features=features,
        )
        for name, images in splits.items()
    }


@pytest.mark.parametrize("kind", ["parquet", "saved"])
@pytest.mark.parametrize("has_test", [False, True])
def test_hugging_face(tmp_path, kind, has_test):
    splits = hugging_face_set(**({"train": IMAGES[:20], "test": IMAGES[20:]} if has_test else {"train": IMAGES}))
    if kind == "saved":
        import datasets

        datasets.DatasetDict(splits).save_to_disk(tmp_path / "set")
    else:
        (tmp_path / "set" / "data").mkdir(parents=True)
        for name, split in splits.items():
            split.to_parquet(tmp_path / "set" / "data" / f"{name}-00000-of-00001.parquet")
    arrays = prepared(f"hf:{tmp_path / 'set'}", tmp_path)
    last = np.arange(30) >= 20 if has_test else np.arange(30) % 10 == 9
    np.testing.assert_array_equal(arrays.train, planes(IMAGES[~last]))
    np.testing.assert_array_equal(arrays.test, planes(IMAGES[last]))


@pytest.mark.parametrize("has_test", [False, True])
def test_an_interrupted_stream_goes_on(tmp_path, monkeypatch, has_test):
    for module in (collect, prepare):
        monkeypatch.setattr(module, "CHUNK", 4)
    splits = hugging_face_set(**({"train": IMAGES[:20], "test": IMAGES[20:]} if has_test else {"train": IMAGES}))
    (tmp_path / "set").mkdir()
    for name, split in splits.items():
        split.to_parquet(tmp_path / "set" / f"{name}.parquet")
    whole = prepared(f"hf:{tmp_path / 'set'}", tmp_path)
    (tmp_path / "out").rename(tmp_path / "whole")
    written = []

    def stop_after_a_few(path, content):
        written.append(path.name)
        if len(written) % 4 == 0:
            raise KeyboardInterrupt
        write_atomically(path, content)

    monkeypatch.setattr(store_parts, "write_atomically", stop_after_a_few)
    while not (tmp_path / "out" / "prepared.json").exists():
        with contextlib.suppress(InterruptionError):
            prepare_images(f"hf:{tmp_path / 'set'}", tmp_path / "out", workers=1)
    assert len(written) > 7
    again = open_prepared(tmp_path / "out")[0]
    np.testing.assert_array_equal(again.train, whole.train)
    np.testing.assert_array_equal(again.test, whole.test)


@pytest.mark.parametrize(("first", "channels"), [("L", 1), ("RGB", 3)])
def test_modes_may_be_mixed(tmp_path, first, channels):
    modes = [first, "1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "YCbCr", "L"]
    (tmp_path / "set").mkdir()
    for i, mode in enumerate(modes):
        source = Image.fromarray(IMAGES[i])
        image = (
            Image.fromarray(np.asarray(source.convert("L")).astype(np.uint16) * 257) if mode == "I;16" else source.convert(mode)
        )
        image.save(tmp_path / "set" / f"{i:02d}.{'tif' if mode in ('CMYK', 'YCbCr') else 'png'}")
    arrays = prepared(f"folder:{tmp_path / 'set'}", tmp_path)
    assert arrays.train.shape == (10, channels, 8, 8)
    assert arrays.test.shape == (1, channels, 8, 8)
    opaque = [0, 2, 3, 6, 8]
    for i in opaque:
        reference = Image.fromarray(IMAGES[i]).convert(
            modes[i] if modes[i] in ("L", "RGB") else "L" if modes[i] != "RGBA" else "RGB"
        )
        found = np.asarray(reference.convert("L" if channels == 1 else "RGB"))
        np.testing.assert_array_equal(arrays.train[i], found[None] if channels == 1 else found.transpose(2, 0, 1))


def test_hugging_face_folder_of_images(tmp_path):
    pytest.importorskip("datasets")
    published.write_folder(tmp_path / "set" / "train", IMAGES[:20])
    published.write_folder(tmp_path / "set" / "test", IMAGES[20:])
    arrays = prepared(f"hf:{tmp_path / 'set'}", tmp_path)
    np.testing.assert_array_equal(arrays.train, planes(IMAGES[:20]))
    np.testing.assert_array_equal(arrays.test, planes(IMAGES[20:]))


def test_open_data_prepares_once(tmp_path, monkeypatch):
    published.write_folder(tmp_path / "set", IMAGES)
    images = ImageOptions(data_root=str(tmp_path / "root"))
    source = open_data(f"folder:{tmp_path / 'set'}", images)
    x = source.held_out(Noise(0, torch.arange(3)))
    np.testing.assert_array_equal(((x + 1) * 127.5).round().numpy(), planes(IMAGES[9::10]))
    (cache,) = (tmp_path / "root" / ".springwell").iterdir()
    assert cache.name.startswith("set-full-")
    monkeypatch.setattr("springwell.data.images.prepare", None)
    again = open_data(f"folder:{tmp_path / 'set'}", images)
    noise = [Noise(2, torch.arange(100)) for _ in range(3)]
    assert torch.equal(again.sample(noise[0]), source.sample(noise[1]))
    assert torch.equal(open_data(f"prepared:{cache}").sample(noise[2]), again.sample(Noise(2, torch.arange(100))))
    assert open_data(str(cache)).event_shape == (3, 8, 8)
    heard = []

    class Listener:
        def warn(self, line):
            heard.append(line)

    (tmp_path / "set" / "0000.png").unlink()
    open_data(f"folder:{tmp_path / 'set'}", images, Listener())
    assert "the images have changed" in heard[0]
    (tmp_path / "set").rename(tmp_path / "gone")
    assert open_data(f"folder:{tmp_path / 'set'}", images).event_shape == (3, 8, 8)
    with pytest.raises(UserError, match="was prepared at 8 x 8 pixels, not image_size=16; prepare it again"):
        open_data(f"prepared:{cache}", ImageOptions(image_size=16))


def make_bad_inputs(root):
    """A folder with one bad input for every line of the table below."""
    published.write_folder(root / "mixed", IMAGES[:20])
    (root / "mixed" / "0003.png").write_bytes(published.encoded(published.photographs(1, 9, 7)[0]))
    published.write_folder(root / "few", IMAGES[:9])
    (root / "empty").mkdir()
    published.write_folder(root / "broken", IMAGES[:20])
    for i in range(1, 12):
        (root / "broken" / f"{i:04d}.png").write_bytes(b"nothing")
    (root / "hopeless").mkdir()
    for i in range(12):
        (root / "hopeless" / f"{i:04d}.png").write_bytes(b"nothing")
    published.write_folder(root / "no-test" / "train", IMAGES[:10])
    published.write_folder(root / "no-test" / "test", IMAGES[:1])
    (root / "no-test" / "test" / "0000.png").write_bytes(b"nothing")
    shutil.make_archive(str(root / "short"), "zip", root / "mixed")
    (root / "short.zip").write_bytes((root / "short.zip").read_bytes()[:-300])
    (root / "file.txt").write_text("text")
    with zipfile.ZipFile(root / "other.zip", "w") as archive:
        archive.writestr("readme.txt", "text")
    (root / "celeba").mkdir()
    (root / "lsun" / "bedroom_train_lmdb").mkdir(parents=True)
    (root / "lsun" / "bedroom_val_lmdb").mkdir(parents=True)
    (root / "lsun" / "bedroom_train_lmdb" / "data.mdb").write_bytes(b"x" * 100)
    (root / "lsun" / "tower_train_lmdb").mkdir(parents=True)
    (root / "half").mkdir()
    (root / "half" / ".parts").mkdir()


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("mnist", "not found; looked in ROOT for MNIST/raw/train-images.* get it from yann.lecun.com.*, or set data_root"),
        ("fashion-mnist", "not found; looked in ROOT for FashionMNIST/raw.*zalandoresearch"),
        ("cifar10", "not found; looked in ROOT for cifar-10-batches-bin, .* get it from www.cs.toronto.edu/~kriz/cifar.html"),
        ("celeba", "not found; looked in ROOT for celeba/img_align_celeba/, .*mmlab.ie.cuhk.edu.hk"),
        ("lsun/church_outdoor", "not found; looked in ROOT for lsun/church_outdoor_train_lmdb, .*github.com/fyu/lsun"),
        ("lsun/bedroom", "bedroom_train_lmdb is not a readable LMDB"),
        ("lsun/tower", "tower_val_lmdb is missing"),
        ("lsun/../x", "no category"),
        ("folder:ROOT/nowhere", "no such folder"),
        ("folder:ROOT/file.txt", "is not a folder"),
        ("folder:ROOT/empty", "found no images .png, jpg.*; needs at least 10"),
        ("folder:ROOT/few", "found 9 images"),
        ("folder:ROOT/mixed", "0003.png is 7 x 9 pixels, others are 8 x 8; give image_size"),
        ("folder:ROOT/broken", "more than half of the 20 images are unreadable .first: 0001.png: not an image"),
        ("folder:ROOT/hopeless", "none of the images for training can be read .first: 0000.png: not an image"),
        ("folder:ROOT/no-test", "no image of the test split can be read"),
        ("zip:ROOT/nowhere.zip", "no such file"),
        ("zip:ROOT/short.zip", "short.zip is not a readable zip file"),
        ("zip:ROOT/file.txt", "file.txt is not a readable zip file .File is not a zip file"),
        ("zip:ROOT/other.zip", "found no images"),
        ("hf:ROOT/nowhere", "cannot be opened"),
        ("prepared:ROOT/nowhere", "no such folder"),
        ("prepared:ROOT/empty", "holds no prepared.json"),
        ("prepared:ROOT/half", "is not complete; run the same springwell data prepare again"),
    ],
)
def test_bad_input_is_one_line(tmp_path, monkeypatch, spec, words):
    if spec.startswith(("hf:", "lsun/bed")):
        pytest.importorskip("datasets" if spec.startswith("hf:") else "lmdb")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    make_bad_inputs(tmp_path)
    before = sorted(p for p in tmp_path.rglob("*") if p.is_file() and p.name != "lock.mdb")
    spec = spec.replace("ROOT", str(tmp_path))
    with pytest.raises(UserError, match=words.replace("ROOT", str(tmp_path))) as caught:
        open_data(spec, ImageOptions(data_root=str(tmp_path)))
    assert str(caught.value).startswith(f"data='{spec}': ")
    assert "\n" not in str(caught.value)
    assert sorted(p for p in tmp_path.rglob("*") if p.is_file() and p.name != "lock.mdb") == before


def test_celeba_files_that_are_not(tmp_path):
    images = ImageOptions(data_root=str(tmp_path))
    published.write_celeba(tmp_path, FACES, PARTS)
    partition = tmp_path / "celeba" / "list_eval_partition.txt"
    for text, words in [
        ("000001.jpg 0\n../../passwd 2\n", "line 2: '../../passwd 2' is not an image's name"),
        ("000001.jpg 0\n", "lists no images for training .0. or for testing"),
        ("x.jpg 0\ny.jpg 2\n", "holds none of the images that list_eval_partition.txt lists"),
    ]:
        partition.write_text(text)
        with pytest.raises(UserError, match=words):
            open_data("celeba", images)
    partition.unlink()
    with pytest.raises(UserError, match=r"list_eval_partition\.txt is missing; get it"):
        open_data("celeba", images)


def test_unknown_names_every_choice():
    with pytest.raises(
        UserError, match=r"'cifar': unknown; choose checkerboard, .*two_spirals, digits, mnist, .*prepared:PATH, or npy"
    ):
        open_data("cifar")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_pipes_and_devices_among_images(tmp_path):
    published.write_folder(tmp_path / "set", IMAGES)
    os.mkfifo(tmp_path / "set" / "pipe.png")
    (tmp_path / "set" / "null.png").symlink_to(os.devnull)
    (tmp_path / "set" / "other.png").symlink_to(tmp_path / "set" / "0000.png")
    record = prepare_images(f"folder:{tmp_path / 'set'}", tmp_path / "out", workers=1)
    assert record["unreadable"] == [("null.png", "not a regular file"), ("pipe.png", "not a regular file")]
    os.mkfifo(tmp_path / "set.zip")
    with pytest.raises(UserError, match=r"is not a readable zip file \(not a regular file\)"):
        prepare_images(f"zip:{tmp_path / 'set.zip'}", tmp_path / "zipped", workers=1)


def test_files_are_bounded(tmp_path, monkeypatch):
    published.write_folder(tmp_path, IMAGES[:1])
    monkeypatch.setattr(decode, "MAX_FILE", 10)
    with pytest.raises(OSError, match="larger than 10 bytes"):
        decode.Container("files").read(tmp_path / "0000.png")
    with pytest.raises(decode.UnreadableError, match="larger than"):
        decode.Container("bytes").read(bytes(11))
    assert decode.Container("bytes").read(bytes(10)) == bytes(10)


def test_rows_that_point_to_no_file(tmp_path, monkeypatch):
    pytest.importorskip("fsspec")
    monkeypatch.setattr(collect, "MAX_FILE", 10)
    (tmp_path / "a").write_bytes(bytes(20))
    assert collect._content({"bytes": None, "path": str(tmp_path / "a")}) == bytes(11)
    assert collect._content({"bytes": None, "path": os.devnull}) is None
    assert collect._content({"bytes": None, "path": str(tmp_path / "none")}) is None


def test_old_versions_of_datasets_are_not_used(monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets, "__version__", "3.6.0")
    with pytest.raises(UserError, match="needs datasets 4"):
        prepare_images("hf:someone/something", Path("out"), workers=1)

"""Published files: bytes come out as they went in, and whatever is wrong with a file is said in one line."""

import gzip
import io
import os
import pickle
import struct
import tarfile
import zipfile

import numpy as np
import pytest
from sklearn.datasets import load_digits

from springwell.data import formats
from springwell.data.options import ImageOptions
from springwell.data.source import open_data
from springwell.errors import UserError
from springwell.evaluation.sources import open_source
from tests.data import published

ROWS = 20
BINARY = [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]
PYTHON = [name.removesuffix(".bin") for name in BINARY]


def refused(spec, root, words):
    with pytest.raises(UserError, match=words) as caught:
        open_data(spec, ImageOptions(data_root=str(root)))
    assert str(caught.value).startswith(f"data='{spec}': ")
    assert "\n" not in str(caught.value)


def test_digits():
    arrays = formats.digits()
    assert arrays.train.shape == (1498, 1, 8, 8)
    assert arrays.test.shape == (299, 1, 8, 8)
    levels = load_digits().images
    np.testing.assert_array_equal(np.rint(arrays.test[:, 0] * (16 / 255)), levels[5::6])
    assert arrays.train.max() == 255


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize(("spec", "folder"), [("mnist", "MNIST/raw"), ("mnist", "."), ("fashion-mnist", "fashion-mnist")])
def test_idx_round_trip(tmp_path, suffix, spec, folder):
    train, test = np.split(np.random.default_rng(0).integers(0, 256, (30, 28, 28), dtype=np.uint8), [20])
    published.write_idx(tmp_path / folder / f"train-images-idx3-ubyte{suffix}", train)
    published.write_idx(tmp_path / folder / f"t10k-images-idx3-ubyte{suffix}", test)
    arrays = formats.idx(tmp_path, [folder], "")
    np.testing.assert_array_equal(arrays.train[:, 0], train)
    np.testing.assert_array_equal(arrays.test[:, 0], test)
    data = open_data(spec, ImageOptions(data_root=str(tmp_path)))
    assert data.num_held_out == 10
    with pytest.raises(formats.UnusableDataError, match="and with it the labels"):
        data.labels()
    for name, num in (("train", 20), ("t10k", 10)):
        content = struct.pack(">II", 0x801, num) + bytes(i % 10 for i in range(num))
        path = tmp_path / folder / f"{name}-labels-idx1-ubyte{suffix}"
        path.write_bytes(gzip.compress(content) if suffix else content)
    assert data.labels().train.tolist() == [i % 10 for i in range(20)]
    path.write_bytes(content[:-1])
    with pytest.raises(formats.UnusableDataError, match="get it again"):
        data.labels()


GOOD_IDX = struct.pack(">IIII", 0x803, 3, 4, 4) + bytes(48)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("train-images-idx3-ubyte", GOOD_IDX[:-1], "has 63 bytes, not 64; get it again"),
        ("train-images-idx3-ubyte", GOOD_IDX + b"x", "has 65 bytes, not 64"),
        ("train-images-idx3-ubyte", b"", "is not an idx file of images .it begins with nothing"),
        ("train-images-idx3-ubyte", struct.pack(">IIII", 0x801, 3, 4, 4), "begins with 00000801"),
        ("train-images-idx3-ubyte", struct.pack(">IIII", 0x803, 2**31, 4096, 4096), "which cannot be"),
        ("train-images-idx3-ubyte.gz", gzip.compress(struct.pack(">IIII", 0x803, 2**21, 64, 64), mtime=0), "which cannot be"),
        ("train-images-idx3-ubyte.gz", gzip.compress(GOOD_IDX, mtime=0)[:-12], "cannot be read .Compressed file ended"),
        ("train-images-idx3-ubyte.gz", gzip.compress(GOOD_IDX[:-1], mtime=0), "is truncated"),
        ("train-images-idx3-ubyte.gz", gzip.compress(GOOD_IDX + b"x", mtime=0), "is too long"),
        ("train-images-idx3-ubyte.gz", b"<html>not found</html>", "cannot be read .Not a gzipped file"),
        ("train-images-idx3-ubyte", struct.pack(">IIII", 0x803, 1, 5, 5) + bytes(25), "5 x 5 pixels, t10k.* of 4 x 4"),
    ],
)
def test_broken_idx(tmp_path, name, content, words):
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(GOOD_IDX)
    (tmp_path / name).write_bytes(content)
    refused("mnist", tmp_path, words)


def test_half_of_mnist_is_missing(tmp_path):
    (tmp_path / "train-images-idx3-ubyte").write_bytes(GOOD_IDX)
    refused("mnist", tmp_path, r"t10k-images-idx3-ubyte\(.gz\) is missing; get it from")


def cifar_files(kind):
    rows = np.random.default_rng(1).integers(0, 256, (6, ROWS, 3, 32, 32), dtype=np.uint8)
    if kind == "bin":
        return rows, {name: published.cifar_binary(batch) for name, batch in zip(BINARY, rows, strict=True)}
    python2 = kind == "py2"
    return rows, {name: published.cifar_pickle(batch, python2) for name, batch in zip(PYTHON, rows, strict=True)}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", ["bin", "py2", "py3"])
def test_cifar10_round_trip(tmp_path, monkeypatch, kind, packed):
    monkeypatch.setattr(formats, "CIFAR_ROWS", ROWS)
    rows, files = cifar_files(kind)
    folder = f"cifar-10-batches-{'bin' if kind == 'bin' else 'py'}"
    if packed:
        archive = f"cifar-10-{'binary' if kind == 'bin' else 'python'}.tar.gz"
        published.write_tar(
            tmp_path / archive, {f"{folder}/readme.html": b"x"} | {f"{folder}/{n}": d for n, d in files.items()}
        )
    else:
        (tmp_path / folder).mkdir()
        for name, data in files.items():
            (tmp_path / folder / name).write_bytes(data)
    arrays = formats.cifar10(tmp_path)
    np.testing.assert_array_equal(arrays.train, rows[:5].reshape(-1, 3, 32, 32))
    np.testing.assert_array_equal(arrays.test, rows[5])
    assert packed == (not (tmp_path / folder).exists())
    labels = arrays.labels()
    assert labels.classes[3] == "cat"
    assert labels.train.tolist() == [i % 10 for i in range(ROWS)] * 5
    assert labels.test.tolist() == [i % 10 for i in range(ROWS)]


class Malicious:
    def __reduce__(self):
        return os.system, ("touch executed",)


class BigArray:
    def __reduce__(self):
        return np.ndarray, ((1 << 50,),)


def nested(depth):
    """Opcodes of a tuple of a tuple ..., each twice: 2^depth leaves."""
    return b"K\x01" + b"".join(b"q%ch%c\x86" % (i, i) for i in range(depth))


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (b"\x80\x02}" + nested(45) + b"K\x01s.", "does not hold one array"),
        (b"\x80\x04\x8f(" + nested(45) + b"\x90.", "does not hold one array"),
        (b"\x80\x02}r\xff\xff\xff\x7f.", "does not hold one array"),
        (b"\x80\x02(" + b")" * (1 << 20) + b"l.", "does not hold one array"),
        (pickle.dumps({"data": Malicious()}, 2), "does not hold one array"),
        (pickle.dumps({b"data": BigArray()}, 2), "does not hold one array"),
        (pickle.dumps({b"data": np.zeros((3, 3072), np.uint8)}, 2), r"does not hold one array uint8 \[20, 3072\]"),
        (pickle.dumps({b"data": np.zeros((ROWS, 768), np.float32)}, 2), "does not hold one array"),
        (pickle.dumps({b"data": np.zeros((ROWS, 3072), np.uint8), b"more": bytes(ROWS * 3072)}, 2), "does not hold one array"),
        (pickle.dumps([1, 2], 2), "does not hold one array"),
        (published.cifar_pickle(np.zeros((20, 3072), np.uint8))[:-3000], "cannot be read"),
        (b"", "cannot be read .pickle exhausted"),
    ],
)
def test_pickles_that_are_not_cifar10(tmp_path, monkeypatch, batch, words):
    monkeypatch.setattr(formats, "CIFAR_ROWS", ROWS)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(batch)
    refused("cifar10", tmp_path, words)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("protocol", range(5))
def test_batches_of_every_protocol(monkeypatch, protocol):
    monkeypatch.setattr(formats, "CIFAR_ROWS", ROWS)
    rows = np.random.default_rng(0).integers(0, 256, (ROWS, 3072), dtype=np.uint8)
    labels = [i % 10 for i in range(ROWS)]
    batch = {b"batch_label": b"one", b"labels": labels, b"data": rows, b"filenames": [b"a.png", b"b.png"]}
    for names in (batch, {name.decode(): value for name, value in batch.items()}):
        found, read = formats._python_batch(pickle.dumps(names, protocol), formats.Path("x"))
        np.testing.assert_array_equal(found.reshape(ROWS, -1), rows)
        assert read is not None
        assert read.tolist() == labels


def test_broken_cifar10(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "CIFAR_ROWS", ROWS)
    _, files = cifar_files("bin")
    archive = tmp_path / "cifar-10-binary.tar.gz"
    published.write_tar(archive, {f"cifar-10-batches-bin/{n}": d for n, d in files.items()})
    whole = archive.read_bytes()
    archive.write_bytes(whole[: len(whole) // 2])
    refused("cifar10", tmp_path, "cifar-10-binary.tar.gz cannot be read")
    archive.write_bytes(b"<html>")
    refused("cifar10", tmp_path, "cifar-10-binary.tar.gz cannot be read")
    published.write_tar(archive, {"cifar-100-binary/train.bin": b"x"})
    refused("cifar10", tmp_path, "lacks data_batch_1.bin")
    published.write_tar(archive, {f"../../{n}": d[:-1] for n, d in files.items()})
    refused("cifar10", tmp_path, "data_batch_1.bin has 61459 bytes, not 61460")
    archive.unlink()
    (tmp_path / "cifar-10-batches-bin").mkdir()
    for name, data in files.items():
        (tmp_path / "cifar-10-batches-bin" / name).write_bytes(b"\xff" + data[1:])
    refused("cifar10", tmp_path, "has labels above 9")


@pytest.mark.parametrize("size", [3 << 30, -1])
def test_sizes_of_a_tar_are_not_believed(tmp_path, size):
    """A name of 3 GB, which tarfile would read at once, and one that ends before it begins."""
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, size
    with gzip.open(tmp_path / "cifar-10-binary.tar.gz", "wb") as file:
        file.write(info.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    refused("cifar10", tmp_path, "lacks data_batch_1.bin")


def test_long_names_in_a_tar(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "CIFAR_ROWS", ROWS)
    rows, files = cifar_files("bin")
    published.write_tar(tmp_path / "cifar-10-binary.tar.gz", {"x" * 300: b"x"} | {f"a/{n}": d for n, d in files.items()})
    np.testing.assert_array_equal(formats.cifar10(tmp_path).test, rows[5])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_pipes_and_devices_are_not_read(tmp_path):
    (tmp_path / "cifar-10-batches-bin").mkdir()
    os.mkfifo(tmp_path / "cifar-10-batches-bin" / "data_batch_1.bin")
    refused("cifar10", tmp_path, r"data_batch_1.bin cannot be read \(not a regular file\)")
    for name in ("x.npz", "x.npy"):
        os.mkfifo(tmp_path / name)
        (tmp_path / f"null-{name}").symlink_to(os.devnull)
        for path in (tmp_path / name, tmp_path / f"null-{name}"):
            refused(f"{name[2:]}:{path}", tmp_path, "not a regular file")
    refused(f"npy:{tmp_path}", tmp_path, "is a folder")


BYTES = np.random.default_rng(2).integers(0, 256, (30, 3, 6, 5), dtype=np.uint8)
GREY = np.random.default_rng(3).integers(0, 256, (30, 6, 5), dtype=np.uint8)


@pytest.mark.parametrize(
    ("arrays", "expected"),
    [
        ({"images": BYTES}, BYTES),
        ({"arr_0": BYTES.transpose(0, 2, 3, 1)}, BYTES),
        ({"x": GREY}, GREY[:, None]),
        ({"x": GREY[..., None]}, GREY[:, None]),
        ({"samples": BYTES.astype(np.int64)}, BYTES),
        ({"x": BYTES / np.float32(255)}, BYTES),
        ({"x": BYTES / 127.5 - 1}, BYTES),
        ({"x": (BYTES / 127.5 - 1).astype(np.float16)}, None),
        ({"labels": np.arange(30), "x_train": BYTES[np.arange(30) % 10 != 9], "x_test": BYTES[9::10]}, BYTES),
        ({"train": BYTES[np.arange(30) % 10 != 9], "test": BYTES[9::10]}, BYTES),
    ],
)
def test_npz_round_trip(tmp_path, arrays, expected):
    np.savez(tmp_path / "x.npz", **arrays)
    said = []
    found = formats.npz(tmp_path / "x.npz", said.append)
    if expected is None:
        assert np.abs(found.test.astype(int) - BYTES[9::10]).max() <= 1
    else:
        np.testing.assert_array_equal(found.test, expected[9::10])
        np.testing.assert_array_equal(found.train, expected[np.arange(30) % 10 != 9])
    floats = any(a.dtype.kind == "f" for a in arrays.values())
    assert [line.rpartition("read as ")[2] for line in said] == (
        [] if not floats else ["[-1, 1]" if min(a.min() for a in arrays.values()) < 0 else "[0, 1]"]
    )


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"y": BYTES}, "holds y; needs an array named train and test, or images"),
        ({"x": BYTES[:5]}, "holds 5 images; needs at least 10"),
        ({"x": BYTES * 2.0}, "floats must be in"),
        ({"x": np.full((20, 4, 4), np.nan)}, "values from nan to nan"),
        ({"x": GREY.astype(int) + 3}, "integers must be grey values"),
        ({"x": GREY // 255}, "multiply by 255"),
        ({"x": np.zeros((20, 3, 8, 3), np.uint8)}, r"could be \[N, C, H, W\] or \[N, H, W, C\]"),
        ({"x": np.zeros((20, 8, 8, 4), np.uint8)}, "has neither 1 nor 3 channels"),
        ({"x": np.zeros((20, 64), np.uint8)}, r"'x' is uint8 \[20, 64\]; needs"),
        ({"x": np.array([{}] * 20)}, "not a readable .npz file of numbers"),
        ({"train": BYTES, "test": GREY}, r"train has images \[3, 6, 5\], test \[1, 6, 5\]"),
    ],
)
def test_unusable_npz(tmp_path, arrays, words):
    np.savez(tmp_path / "x.npz", **arrays)
    refused(f"npz:{tmp_path / 'x.npz'}", tmp_path, words)


def test_broken_npz(tmp_path):
    path = tmp_path / "x.npz"
    refused(f"npz:{path}", tmp_path, "no such file")
    np.savez(path, x=BYTES)
    path.write_bytes(path.read_bytes()[:-100])
    refused(f"npz:{path}", tmp_path, "not a readable .npz file")
    np.save(tmp_path / "x.npy", BYTES)
    refused(f"npz:{tmp_path / 'x.npy'}", tmp_path, "is not a readable .npz file; write it with numpy.savez")


def npy(header, data=bytes(2000)):
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header) + 1) + header.encode() + b"\n" + data


HEADER = "{'descr': %s, 'fortran_order': False, 'shape': %s}"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"hello world", "the magic string is not correct"),
        (b"", "EOF"),
        (npy(HEADER % ("'" + "a" * 4000 + "'", "(20, 8, 8)")), r"not a readable[^\n]{,500}$"),
        (npy("-" * 4000 + "1"), "not a readable"),
        (npy(HEADER % ("()", "(20, 8, 8)")), "tuple index"),
        (npy(HEADER % ("'|u1'", "(-20, -8, 8)")), "shape cannot be"),
        (npy(HEADER % ("'|u1'", f"({2**32}, {2**32}, 8)")), "more than 4096 MiB|truncated"),
        (npy(HEADER % ("'<f8'", f"({2**20}, 16, 16)")), "more than 1024 MiB; save bytes|truncated"),
        (npy(HEADER % ("'|u1'", "(20, 100, 100)")), "truncated"),
        (npy(HEADER % ("[('a', '|u1')]", "(20, 8, 8)")), "not numbers"),
        (npy(HEADER % ("'|O'", "(20, 8, 8)"), pickle.dumps([Malicious()])), "not numbers"),
        (npy(HEADER % ("'|u1'", "(20, 8, 8)")).replace(b"\x01\x00", b"\x09\x00", 1), "version"),
    ],
)
def test_arrays_that_are_none(tmp_path, content, words):
    (tmp_path / "x.npy").write_bytes(content)
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("train.npy", content)
    for kind in ("npz", "npy"):
        path = tmp_path / f"x.{kind}"
        refused(f"{kind}:{path}", tmp_path, words)
        with pytest.raises(UserError, match=words):
            open_source(str(path))


def test_archives_that_are_damaged(tmp_path):
    buffer, path = io.BytesIO(), tmp_path / "x.npz"
    np.savez(buffer, x=BYTES)
    (tmp_path / "x.npy").write_bytes(buffer.getvalue())
    refused(f"npy:{tmp_path / 'x.npy'}", tmp_path, "magic string is not correct")
    encrypted = bytearray(buffer.getvalue())
    encrypted[6] |= 1
    encrypted[encrypted.find(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(encrypted)
    refused(f"npz:{path}", tmp_path, "is encrypted")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("x.npy", npy(HEADER % ("'|u1'", "(20, 8, 8)"), BYTES.tobytes()))
    damaged = bytearray(path.read_bytes())
    damaged[60:90] = bytes(byte ^ 0x5A for byte in damaged[60:90])
    path.write_bytes(damaged)
    refused(f"npz:{path}", tmp_path, "not a readable .npz file of numbers .Corrupt input data")

"""Prepared sets: the same bytes however often the work was interrupted, and nothing half-written ever."""

import errno
import hashlib
import io
import json
import os
import resource
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from PIL import Image

from springwell.app.cli import main
from springwell.data import collect, formats, prepare
from springwell.data.decode import decode_all
from springwell.data.images import prepare_images
from springwell.data.options import ImageOptions
from springwell.data.prepare import open_prepared
from springwell.errors import UserError
from springwell.progress import Silent
from tests.data import published

NUM = 96
IMAGES = published.photographs(NUM, 8, 8)
# Prepares a folder by two processes in chunks of 8, and does something to itself when the given number of chunks is done.
SCRIPT = """
import contextlib, multiprocessing, os, signal, sys
from springwell.data import collect, prepare
from springwell.data.images import prepare_images
from springwell.errors import InterruptionError
from springwell.progress import Silent

# Whoever starts the tests in the background may have switched it off.
signal.signal(signal.SIGINT, signal.default_int_handler)
collect.CHUNK = prepare.CHUNK = 8
spec, out, after, how = sys.argv[1:]


class Bar:
    done = 0

    def advance(self, steps):
        self.done += 1
        if self.done == int(after):
            with open(out + ".pids", "w") as file:
                file.write(" ".join(str(child.pid) for child in multiprocessing.active_children()))
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            elif how == "interrupt":
                signal.raise_signal(signal.SIGINT)
            elif how == "kill-in-a-write":
                os.replace = lambda *paths: os.kill(os.getpid(), signal.SIGKILL)


class Reporter(Silent):
    @contextlib.contextmanager
    def bar(self, what, total, start=0):
        print("start", start)
        yield Bar()


# There is no test for __main__ here, as in many scripts.
try:
    print(prepare_images(spec, prepare.Path(out), workers=2, reporter=Reporter())["num_unreadable"])
except InterruptionError as error:
    print(error)
"""


class Listener(Silent):
    def __init__(self):
        self.heard = []

    def say(self, line):
        self.heard.append(line)


@pytest.fixture
def folder(tmp_path):
    published.write_folder(tmp_path / "set", IMAGES)
    (tmp_path / "set" / "0020.png").write_bytes(b"broken")
    return tmp_path / "set"


def run(tmp_path, out, after=0, how=""):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    command = [sys.executable, str(path), f"folder:{tmp_path / 'set'}", str(out), str(after), how]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def contents(path):
    return {p.relative_to(path).as_posix(): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.fixture
def small_chunks(monkeypatch):
    for module in (collect, prepare):
        monkeypatch.setattr(module, "CHUNK", 8)


def part(**arrays):
    """The bytes of a part."""
    content = io.BytesIO()
    np.savez(content, **arrays)
    return content.getvalue()


def test_interrupted_sets_end_with_the_same_bytes(tmp_path, folder, small_chunks):
    """Killed between two parts, killed while one is written, interrupted: by two processes, and ended by one."""
    prepare_images(f"folder:{folder}", tmp_path / "whole", workers=1)
    expected = contents(tmp_path / "whole")
    assert set(expected) == {"train.npy", "test.npy", "prepared.json"}
    kept = np.delete(np.arange(NUM), 20)
    train, test = (a.transpose(0, 3, 1, 2) for a in (IMAGES[kept[kept % 10 != 9]], IMAGES[9::10]))
    np.testing.assert_array_equal(np.load(tmp_path / "whole" / "train.npy"), train)
    np.testing.assert_array_equal(np.load(tmp_path / "whole" / "test.npy"), test)

    out = tmp_path / "out"
    assert run(tmp_path, out, 3, "kill").returncode == -9
    assert not (out / "prepared.json").exists()
    assert len(list((out / ".parts").glob("train-*.npz"))) == 3
    orphans = [int(pid) for pid in (tmp_path / "out.pids").read_text().split()]
    assert orphans
    deadline = time.monotonic() + 20
    while not all(map(gone, orphans)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert all(map(gone, orphans))
    assert run(tmp_path, out, 2, "kill-in-a-write").returncode == -9
    assert len(list((out / ".parts").glob("train-*.npz"))) == 5
    interrupted = run(tmp_path, out, 1, "interrupt")
    assert interrupted.stdout.splitlines()[0] == "start 40"
    assert f"interrupted; what is done is kept in {out}: run the same command to resume" in interrupted.stdout
    assert interrupted.stderr == ""
    reporter = Listener()
    assert prepare_images(f"folder:{folder}", out, workers=1, reporter=reporter)["num_unreadable"] == 1
    assert reporter.heard[0] == "48 images are done already"
    assert contents(out) == expected


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("train-000001.npz", None),
        ("train-000001.npz", b""),
        ("train-000001.npz", lambda data: data[:-1]),
        ("train-000001.npz", lambda data: data.replace(b"(8, 3, 8, 8)", b"(7, 3, 8, 8)")),
        ("train-000001.npz", lambda data: data[:400] + bytes([data[400] ^ 1]) + data[401:]),
        ("train-000001.npz", part(rows=np.zeros((8, 8, 8, 3), np.uint8), unreadable=np.empty((0, 2), "U1"))),
        ("train-000001.npz", part(rows=np.zeros((7, 3, 8, 8), np.uint8), unreadable=np.empty((0, 2), "U1"))),
        ("train-000001.npz", part(rows=np.zeros((8, 3, 8, 8), np.float32), unreadable=np.empty((0, 2), "U1"))),
        ("train-000001.npz", part(rows=np.zeros((8, 3, 8, 8), np.uint8), unreadable=np.array([1]))),
        ("train-000001.npz", part(rows=np.zeros((8, 3, 8, 8), np.uint8))),
        ("train-x.npz", b""),
        ("train-000099.npz", lambda data: data),
    ],
)
def test_damaged_parts_are_decoded_again(tmp_path, folder, small_chunks, monkeypatch, name, content):
    spec, out = f"folder:{folder}", tmp_path / "out"
    prepare_images(spec, tmp_path / "whole", workers=1)
    with monkeypatch.context() as full:
        full.setattr(prepare, "_write_npy", lambda *arguments: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(RuntimeError, match="interrupted"):
            prepare_images(spec, out, workers=1)
    path, good = out / ".parts" / name, out / ".parts" / "train-000001.npz"
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content(good.read_bytes()) if callable(content) else content)
    calls = []
    monkeypatch.setattr(prepare, "decode_all", lambda *arguments: calls.append(arguments) or decode_all(*arguments))
    prepare_images(spec, out, workers=1)
    assert len(calls) == ("train-000001" in name)
    assert contents(out) == contents(tmp_path / "whole")


def test_large_images_are_decoded_a_few_at_a_time(tmp_path, folder, monkeypatch):
    prepare_images(f"folder:{folder}", tmp_path / "whole", workers=1)
    monkeypatch.setattr(prepare, "_CHUNK_BYTES", 1000)
    lengths = []
    monkeypatch.setattr(prepare, "decode_all", lambda c, items, rule: lengths.append(len(items)) or decode_all(c, items, rule))
    prepare_images(f"folder:{folder}", tmp_path / "out", workers=1)
    assert set(lengths) == {1000 // (3 * 8 * 8), 87 % 5, 9 % 5}
    monkeypatch.setattr(prepare, "_CHUNK_BYTES", 1)
    lengths.clear()
    prepare_images(f"folder:{folder}", tmp_path / "single", workers=1)
    assert lengths == [1] * NUM
    assert contents(tmp_path / "out") == contents(tmp_path / "single") == contents(tmp_path / "whole")


def test_two_at_once_do_the_work_once(tmp_path, folder, small_chunks, monkeypatch):
    calls = []

    def slow(container, items, rule):
        calls.append(items)
        time.sleep(0.02)
        return decode_all(container, items, rule)

    monkeypatch.setattr(prepare, "decode_all", slow)
    reporters, records = [Listener(), Listener()], [None, None]

    def work(i):
        records[i] = prepare_images(f"folder:{folder}", tmp_path / "out", workers=1, reporter=reporters[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [record["num_train"] for record in records] == [86, 86]
    assert len(calls) == 11 + 2
    assert sum("is being prepared by another process; waiting" in line for r in reporters for line in r.heard) == 1
    assert set(contents(tmp_path / "out")) == {"train.npy", "test.npy", "prepared.json"}


def test_record(tmp_path, folder):
    record = prepare_images(f"folder:{folder}", tmp_path / "out", workers=1)
    saved = json.loads((tmp_path / "out" / "prepared.json").read_text())
    assert saved["unreadable"] == [["0020.png", "not an image"]]
    assert (saved["num_train"], saved["num_test"], saved["num_unreadable"]) == (86, 9, 1)
    assert (saved["format"], saved["shape"], saved["image_size"]) == (1, [3, 8, 8], None)
    for name in ("train", "test"):
        assert saved["sha256"][name] == hashlib.sha256((tmp_path / "out" / f"{name}.npy").read_bytes()).hexdigest()
    assert record["sha256"] == saved["sha256"]
    arrays, _ = open_prepared(tmp_path / "out")
    assert isinstance(arrays.train, np.memmap)


def test_arrays_are_prepared_too(tmp_path):
    prepare_images("digits", tmp_path / "out")
    arrays, _ = open_prepared(tmp_path / "out")
    np.testing.assert_array_equal(arrays.train, formats.digits().train)
    np.testing.assert_array_equal(arrays.test, formats.digits().test)
    before = contents(tmp_path / "out")
    prepare_images("digits", tmp_path / "out")
    assert contents(tmp_path / "out") == before


def test_full_disk_while_a_part_is_written(tmp_path, folder, small_chunks, monkeypatch):
    spec, out = f"folder:{folder}", tmp_path / "out"
    prepare_images(spec, tmp_path / "whole", workers=1)
    with monkeypatch.context() as full:
        calls = iter(range(100))

        def fsync(handle):
            if next(calls) == 4:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        full.setattr(os, "fsync", fsync)
        with pytest.raises(
            UserError, match=r"No space left on device.; what is done is kept: make room and run the same"
        ) as caught:
            prepare_images(spec, out, workers=1)
    assert str(caught.value).startswith(f"data='{spec}': {out} cannot be written")
    assert sorted(p.name for p in (out / ".parts").glob("*.npz")) == [f"train-{i:06d}.npz" for i in range(3)]
    assert not [p for p in (out / ".parts").iterdir() if p.name.startswith(".")]
    prepare_images(spec, out, workers=1)
    assert contents(out) == contents(tmp_path / "whole")


def test_full_disk_while_parts_are_joined(tmp_path, folder, small_chunks, monkeypatch):
    spec, out = f"folder:{folder}", tmp_path / "out"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(UserError, match=r"File too large.; what is done is kept"):
            prepare_images(spec, out, workers=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not (out / "train.npy").exists()
    monkeypatch.setattr(prepare, "decode_all", None)
    assert prepare_images(spec, out, workers=1)["num_train"] == 86


def test_places_that_are_not_for_it_stay_as_they_are(tmp_path, folder):
    spec, other = f"folder:{folder}", tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match="exists and is not a prepared set; choose another place"):
        prepare_images(spec, other, workers=1)
    with pytest.raises(UserError, match="exists and is not a prepared set"):
        prepare_images(spec, other / "thesis.tex", workers=1)
    assert contents(other) == {"thesis.tex": b"years of work"}
    out = tmp_path / "out"
    prepare_images(spec, out, workers=1)
    before = contents(out)
    with pytest.raises(UserError, match=f"already holds {spec} at its own size; choose another place or remove it"):
        prepare_images("digits", out)
    with pytest.raises(UserError, match="already holds"):
        prepare_images(spec, out, ImageOptions(image_size=4), workers=1)
    (folder / "0000.png").unlink()
    with pytest.raises(UserError, match="the images have changed since"):
        prepare_images(spec, out, workers=1)
    assert contents(out) == before


def test_a_part_of_another_set_is_refused(tmp_path, folder, monkeypatch):
    out = tmp_path / "out"
    monkeypatch.setattr(prepare, "_decode_to_parts", lambda *arguments: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(RuntimeError, match="interrupted"):
        prepare_images(f"folder:{folder}", out, workers=1)
    with pytest.raises(UserError, match=r"holds a part of folder:.* at its own size; choose another place"):
        prepare_images(f"folder:{folder}", out, ImageOptions(image_size=4), workers=1)


def test_damage_is_found(tmp_path, folder):
    out, spec = tmp_path / "out", f"folder:{folder}"
    prepare_images(spec, out, workers=1)
    data = (out / "train.npy").read_bytes()
    (out / "train.npy").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(UserError, match=r"train\.npy is not what was written"):
        prepare_images(spec, out, workers=1)
    (out / "train.npy").write_bytes(data[:-1])
    with pytest.raises(UserError, match=r"train\.npy cannot be read .*; prepare it again"):
        prepare_images(spec, out, workers=1)
    record = json.loads((out / "prepared.json").read_text())
    for text in ("{", "[" * 100_000, "[]", json.dumps(record | {"sha256": []})):
        (out / "prepared.json").write_text(text)
        with pytest.raises(UserError, match=r"prepared\.json cannot be read"):
            prepare_images(spec, out, workers=1)


def test_a_folder_that_cannot_be_made(tmp_path, folder):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot be written \(Not a directory\); choose another place"):
        prepare_images(f"folder:{folder}", tmp_path / "file" / "out", workers=1)


@pytest.mark.parametrize(
    ("modes", "words"), [("LRR", "grey like the first of them, so colours are dropped"), ("RLR", "in colour")]
)
def test_a_message_says_whether_a_set_is_grey(tmp_path, modes, words):
    (tmp_path / "set").mkdir()
    for i, mode in enumerate(4 * modes):
        Image.new("L" if mode == "L" else "RGB", (4, 4)).save(tmp_path / "set" / f"{i:02d}.png")
    listener = Listener()
    prepare_images(f"folder:{tmp_path / 'set'}", tmp_path / "out", workers=1, reporter=listener)
    assert any(line.endswith(f"11 train and 1 test images of 4 x 4, {words}") for line in listener.heard), listener.heard


def test_what_is_no_set_of_images(tmp_path):
    with pytest.raises(UserError, match="data='checkerboard': is no set of images; choose digits"):
        prepare_images("checkerboard", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_command(springwell, tmp_path, folder, capsys):
    result = springwell("data", "prepare", "folder:set", "out", "--image-size", 4, "--workers", 1, "--json")
    assert result.returncode == 0, result.stderr
    record = json.loads(result.stdout.splitlines()[-1])
    assert (record["shape"], record["num_train"], record["num_unreadable"]) == ([3, 4, 4], 86, 1)
    assert "1 of 96 images are unreadable and left out (first: 0020.png: not an image)" in result.stderr
    with pytest.raises(SystemExit) as stop:
        main(["data", "prepare", "folder:nowhere", "other"])
    assert stop.value.code == 2
    assert capsys.readouterr().err == "springwell: --data folder:nowhere: no such folder\n"

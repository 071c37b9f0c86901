"""Atomic writes, locks that end with their process, and files of others."""

import errno
import os
import subprocess
import sys
import threading
import time

import pytest

from springwell.errors import UserError
from springwell.store.files import LOCK, is_empty, locked, parse_json, read_json, read_lines, write_atomically, write_json


def refuse():
    raise UserError("busy")


def test_a_lock_keeps_others_out_and_leaves_nothing(tmp_path):
    with locked(tmp_path, refuse, print), pytest.raises(UserError, match="busy"), locked(tmp_path, refuse, print):
        pass
    with locked(tmp_path, refuse, print):
        pass
    assert list(tmp_path.iterdir()) == []


def test_whoever_waits_gets_the_lock(tmp_path):
    order, waiting = [], threading.Event()

    def second():
        with locked(tmp_path, waiting.set, print):
            order.append("second")

    thread = threading.Thread(target=second)
    with locked(tmp_path, refuse, print):
        thread.start()
        assert waiting.wait(10)
        time.sleep(0.1)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]
    assert list(tmp_path.iterdir()) == []


def test_a_lock_ends_with_its_process(tmp_path):
    script = f"""
import pathlib, os, signal
from springwell.store.files import locked
with locked(pathlib.Path({str(tmp_path)!r}), lambda: None, print):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9
    assert (tmp_path / LOCK).exists()
    assert is_empty(tmp_path, "config.json")
    (tmp_path / LOCK).touch()
    with locked(tmp_path, refuse, print):
        pass


def test_a_file_system_without_locks_is_a_warning(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")

    def missing(*arguments):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", missing)
    heard = []
    with locked(tmp_path, refuse, heard.append):
        assert heard == [f"{tmp_path} cannot be locked; do not write to it by two commands at the same time"]


def test_a_failed_write_changes_nothing(tmp_path):
    path = tmp_path / "x"
    write_atomically(path, "old")

    def fail(file):
        file.write(b"new")
        raise OSError(errno.ENOSPC, "full")

    with pytest.raises(OSError, match="full"):
        write_atomically(path, fail)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask()


def umask():
    value = os.umask(0)
    os.umask(value)
    return value


def test_json(tmp_path):
    path = tmp_path / "x.json"
    with pytest.raises(UserError, match=r"x\.json: no such file"):
        read_json(path)
    write_json(path, {"a": [1, None]})
    assert read_json(path) == {"a": [1, None]}
    with pytest.raises(OSError, match="larger than 3 bytes"):
        parse_json(path, 3)
    for content in ("{", "[" * 100_000):
        path.write_text(content)
        with pytest.raises(UserError, match="not valid JSON"):
            read_json(path)
    path.write_text('{"iteration": 1}\n[]\n{"iteration": "2"}\n{"itera')
    assert [line["iteration"] for line in read_lines(path)] == [1, 2]

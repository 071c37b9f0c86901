"""Finished parts: found again, computed again when damaged, shared between processes; folders of one's own are refused."""

import json
import os

import numpy as np
import pytest
import torch

from springwell.errors import UserError
from springwell.store.parts import Parts, Results, key_of


def tasks(calls, num=5):
    def task(i):
        calls.append(i)
        return {"x": torch.full((2, 3), float(i)), "i": torch.tensor(i)}

    return [lambda i=i: task(i) for i in range(num)]


def test_parts_are_computed_once(tmp_path):
    calls, parts = [], Parts(tmp_path / "a" / "b")
    first, again = parts.run("walk", tasks(calls)), parts.run("walk", tasks(calls))
    assert calls == [0, 1, 2, 3, 4]
    for i, (x, y) in enumerate(zip(first, again, strict=True)):
        assert int(y["i"]) == i
        assert y["x"].dtype == torch.float32
        assert torch.equal(x["x"], y["x"])
    parts.run("other", tasks(calls, 1))
    assert parts.names("walk") == [f"walk-{i}" for i in range(5)]
    parts.clear()
    assert not (tmp_path / "a" / "b").exists()


def test_nothing_is_kept_without_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    calls, parts = [], Parts()
    for _ in range(2):
        parts.run("walk", tasks(calls, 2))
    parts.write("x", {"x": torch.ones(2)})
    assert calls == [0, 1, 0, 1]
    assert parts.read("x") is None
    assert parts.names() == list(tmp_path.iterdir()) == []


def every_byte(data):
    for i in range(len(data)):
        yield data[:i] + bytes([data[i] ^ 0xFF]) + data[i + 1 :]


def test_damaged_parts_are_missing_or_whole(tmp_path):
    """Whatever byte of a file is another one: what is read is what was written, or nothing."""
    parts, x = Parts(tmp_path), np.arange(12, dtype=np.float32).reshape(3, 4)
    parts.write("x", {"x": x})
    path = tmp_path / "x.npz"
    good = path.read_bytes()
    for data in [*every_byte(good), good[:-1], good[: len(good) // 2], b""]:
        path.write_bytes(data)
        found = (parts.read("x") or {}).get("x")
        assert found is None or np.array_equal(found, x)
    path.unlink()
    assert parts.read("x") is None
    path.mkdir()
    assert parts.read("x") is None


def test_pickles_are_not_read(tmp_path):
    class Harm:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "harmed"),)

    np.savez(tmp_path / "x.npz", x=np.array([Harm()], object))
    assert Parts(tmp_path).read("x") is None
    assert not (tmp_path / "harmed").exists()


def test_processes_share_a_folder(tmp_path):
    calls = [[], []]
    with pytest.raises(UserError, match=r"walk-0\.npz: is not there; its process has ended"):
        Parts(tmp_path, rank=1, world=2).run("walk", tasks(calls[1]))
    found = Parts(tmp_path, rank=0, world=2).run("walk", tasks(calls[0]))
    assert calls == [[0, 2, 4], [1, 3]]
    assert [int(part["i"]) for part in found] == [0, 1, 2, 3, 4]


def test_keys_tell_settings_apart():
    keys = [key_of(*values) for values in ([1, "a"], [1, "b"], ["1", "a"], [[1], "a"], [1.0, "a"], [1, "a", None])]
    assert len(set(keys)) == len(keys)
    assert key_of({"a": 1}, (2,)) == key_of({"a": 1}, [2])
    assert all(len(key) == 16 for key in keys)


def test_a_folder_for_people_keeps_to_its_settings(tmp_path):
    out, record = tmp_path / "out", {"seed": 0, "steps": 2}
    results = Results(out, "samples", record)
    for _ in range(2):
        assert results.begin({"a": "", "b": ""}) == ["a", "b"]
    assert json.loads((out / "samples.json").read_text()) == record
    (out / "a.png").touch()
    assert results.begin({"a": "", "b": ""}) == ["b"]
    with pytest.raises(UserError, match=r"out='.*out': holds samples with seed 0, not 1; choose another folder"):
        Results(out, "samples", {"seed": 1, "steps": 2}).begin({})
    with pytest.raises(UserError, match=r"is not empty and has no other\.json"):
        Results(out, "other", record).begin({})
    (out / "samples.json").write_text("[]")
    with pytest.raises(UserError, match="holds samples with"):
        results.begin({})


def test_results_of_changed_images_are_done_again(tmp_path):
    results = Results(tmp_path / "out", "inpaint", {"seed": 0})
    assert results.begin({"a": "1", "b": "2"}) == ["a", "b"]
    for name in "ab":
        (tmp_path / "out" / f"{name}.png").touch()
    assert results.begin({"a": "1"}) == []
    assert results.begin({"a": "1", "b": "3", "c": "4"}) == ["b", "c"]
    assert not (tmp_path / "out" / "b.png").exists()
    (tmp_path / "out" / "images.json").write_text("[]")
    assert results.begin({"a": "1"}) == ["a"]

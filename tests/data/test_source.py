"""Arrays of one's own: standardised, split, and refused with a reason when they cannot be used."""

import numpy as np
import pytest
import torch

from springwell.data.source import open_data
from springwell.errors import UserError
from springwell.noise import Noise


def write(path, array):
    np.save(path, array)
    return f"npy:{path}"


def test_vectors_are_standardised_and_split(tmp_path):
    rows = np.random.default_rng(0).normal([5, -3, 100], [0.1, 2, 30], (2000, 3))
    source = open_data(write(tmp_path / "x.npy", rows))
    assert source.event_shape == (3,)
    u = source.sample(Noise(0, torch.arange(5000)))
    x = (source.shift + source.scale * u).numpy()
    np.testing.assert_allclose(x.mean(0), rows.mean(0), atol=0.2 * rows.std(0).max())
    train = {tuple(np.round(r, 4)) for r in u.numpy()}
    held = {tuple(np.round(r, 4)) for r in source.held_out(Noise(0, torch.arange(5000))).numpy()}
    assert len(held) == source.num_held_out == 200
    assert not train & held


def test_data_in_the_units_of_a_model_that_was_trained_on_others(tmp_path):
    """u = (x - shift) / scale of that model; the data themselves stay what they are."""
    rows = np.random.default_rng(0).normal([5, -3], [0.1, 2], (400, 2))
    source = open_data(write(tmp_path / "x.npy", rows))
    noise = Noise(0, torch.arange(30))
    x = source.shift + source.scale * source.held_out(noise)
    shift, scale = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 0.5])
    other = source.in_units(shift, scale)
    torch.testing.assert_close(other.held_out(noise), (x - shift) / scale)
    torch.testing.assert_close(other.shift + other.scale * other.held_out(noise), x)
    assert source.in_units(source.shift, source.scale) is source
    toy = open_data("rings")
    assert toy.in_units(torch.zeros(2), torch.ones(2)).toy is not None
    assert toy.in_units(shift, scale).toy is None


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.full((50, 2), np.nan), "50 of 50 rows are not finite"),
        (
            np.concatenate([np.random.default_rng(0).normal(size=(49, 2)), [[np.inf, 0]]]),
            r"1 of 50 rows are not finite \(first: row 49\)",
        ),
        (np.zeros((50, 2)), "column 0 is constant"),
        (np.random.default_rng(0).normal([0, 1.7e9], 1, (50, 2)), "column 1 has mean 1.7e"),
        (np.random.default_rng(0).normal(size=(50, 2)) * 1e-50, "which float32 cannot hold"),
        (np.zeros(50), r"found float64 \[50\]; needs numbers of shape \[N, D\]"),
        (np.zeros((3, 2)), "N >= 20"),
        (np.array([["a", "b"]] * 30), "needs numbers"),
    ],
)
def test_unusable_arrays(tmp_path, array, words):
    with pytest.raises(UserError, match=words):
        open_data(write(tmp_path / "x.npy", array))


def test_pickles_and_broken_files_are_not_read(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.array([{"a": 1}] * 30, dtype=object), allow_pickle=True)
    with pytest.raises(UserError, match=r"not a readable \.npy file"):
        open_data(f"npy:{path}")
    path.write_bytes(b"\x93NUMPY\x01\x00v\x00{'descr'")
    with pytest.raises(UserError, match=r"not a readable \.npy file"):
        open_data(f"npy:{path}")
    with pytest.raises(UserError, match="no such file"):
        open_data("npy:nowhere.npy")
    with pytest.raises(UserError, match="'cifar': unknown; choose checkerboard"):
        open_data("cifar")

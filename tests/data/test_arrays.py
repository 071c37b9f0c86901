"""Data of one's own in memory: tensors, arrays and Datasets give the same batches; wrong ones get one sentence."""

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from springwell.data.arrays import array_source
from springwell.data.options import ImageOptions
from springwell.data.source import open_data
from springwell.errors import UserError
from springwell.noise import Noise

VECTORS = np.random.default_rng(0).normal([5, -3], [0.1, 30], (200, 2))
BYTES = np.random.default_rng(1).integers(0, 256, (40, 3, 8, 6), dtype=np.uint8)
NOISE = torch.arange(100)


def same(a, b):
    assert torch.equal(a.sample(Noise(1, NOISE)), b.sample(Noise(1, NOISE)))
    assert torch.equal(a.held_out(Noise(2, NOISE)), b.held_out(Noise(2, NOISE)))
    assert torch.equal(a.scale, b.scale)
    assert torch.equal(a.shift, b.shift)
    assert (a.event_shape, a.num_held_out, a.fingerprint) == (b.event_shape, b.num_held_out, b.fingerprint)


def test_vectors_are_those_of_a_file(tmp_path):
    np.save(tmp_path / "x.npy", VECTORS)
    known = open_data(f"npy:{tmp_path / 'x.npy'}")
    tensor = torch.from_numpy(VECTORS).requires_grad_()
    for data in (VECTORS, tensor, TensorDataset(tensor.detach(), torch.arange(200)), TensorDataset(tensor.detach())):
        same(array_source(data), known)
    assert known.num_held_out == 20
    held = known.shift + known.scale * known.held_out(Noise(0, NOISE))
    torch.testing.assert_close(held, torch.from_numpy(VECTORS[9::10]).float())


def test_images_are_those_of_a_file(tmp_path):
    np.savez(tmp_path / "x.npz", images=BYTES)
    for options in (ImageOptions(), ImageOptions(flip=True, dequantise=True)):
        known = open_data(f"npz:{tmp_path / 'x.npz'}", options)
        floats = BYTES / np.float32(127.5) - 1
        for data in (BYTES, torch.from_numpy(BYTES), floats, TensorDataset(torch.from_numpy(BYTES))):
            same(array_source(data, options), known)
    assert np.array_equal(known.rows, BYTES[np.arange(40) % 10 != 9])


def with_row(row):
    return np.concatenate([VECTORS, [row]])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([[1.0, 2.0]] * 30, "data: is a list; give a tensor, a numpy array or a torch Dataset"),
        ("checkerboard", "data: is a str; give a tensor"),
        (VECTORS[:19], "data: has 19 rows; needs at least 20"),
        (np.float64(3), "data: is a float64; give a tensor"),
        (np.array(3.0), r"data: found float64 \[\]; needs"),
        (
            VECTORS[:, 0],
            r"data: found float64 \[200\]; needs numbers of shape \[N, D\], .* add the missing .* data\[:, None\]",
        ),
        (np.zeros((50, 8, 8, 3)), r"has 8 channels; .* C = 1 or 3, as data.transpose\(0, 3, 1, 2\) makes of \[N, H, W, C\]"),
        (VECTORS.astype(str), "data: found <U"),
        (VECTORS > 0, "data: found bool"),
        (VECTORS + 1j, "data: found complex128"),
        (np.empty((30, 0)), r"data: found float64 \[30, 0\]"),
        (with_row([np.nan, 0]), r"data: 1 of 201 rows are not finite \(first: row 200\)"),
        (np.stack([VECTORS[:, 0], np.ones(200)], 1), "data: column 1 is constant; drop it"),
        (VECTORS + np.array([0, 1e9]), "data: column 1 has mean 1e.09"),
        (torch.zeros(30, 2, dtype=torch.bfloat16), "data: column 0 is constant"),
        (np.zeros((30, 2, 8, 8)), "data: has 2 channels"),
        (np.full((30, 3, 8, 8), 2.0), "data: holds float64 images; needs bytes, or finite floats in"),
        (np.full((30, 3, 8, 8), np.nan), "finite floats"),
        (np.ones((30, 3, 8, 8), int), "data: holds int64 images"),
        (np.ones((30, 3, 0, 8), np.uint8), r"data: found uint8 \[30, 3, 0, 8\]"),
        (TensorDataset(torch.zeros(5, 2)), "data: has 5 rows"),
    ],
)
def test_wrong_data_get_one_sentence(data, words):
    with pytest.raises(UserError, match=words) as caught:
        array_source(data)
    assert "\n" not in str(caught.value)


class Ragged(torch.utils.data.Dataset):
    def __len__(self):
        return 30

    def __getitem__(self, i):
        return torch.zeros(2 + i % 2)


class Endless(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter([])


def test_datasets_that_cannot_be_stacked():
    with pytest.raises(UserError, match="its rows cannot be stacked"):
        array_source(Ragged())
    with pytest.raises(UserError, match="data: is an Endless"):
        array_source(Endless())

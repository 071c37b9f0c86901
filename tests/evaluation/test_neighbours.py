"""Nearest training images against all pairs, and whether copies are noticed."""

import numpy as np
import torch

from springwell.evaluation import neighbours
from springwell.evaluation.neighbours import memorisation, nearest

RNG = np.random.default_rng(3)
ROWS = RNG.integers(0, 256, (300, 1, 4, 5), dtype=np.uint8)


def images(rows):
    return torch.from_numpy(rows).float() / 127.5 - 1


def test_nearest_are_the_nearest(monkeypatch):
    # Blocks of 37 rows, so that neighbours come from several.
    monkeypatch.setattr(neighbours, "_BLOCK_BYTES", 37 * 4 * 20)
    x = images(RNG.integers(0, 256, (11, 1, 4, 5), dtype=np.uint8))
    distance, index = nearest(x, ROWS, 5)
    every = (x.flatten(1)[:, None] - images(ROWS).flatten(1)[None]).square().mean(-1).sqrt()
    expected = every.sort(1)
    torch.testing.assert_close(distance, expected.values[:, :5], atol=1e-5, rtol=1e-5)
    assert torch.equal(index, expected.indices[:, :5])


def test_copies_are_noticed_and_new_images_are_not():
    fresh = images(RNG.integers(0, 256, (400, 1, 4, 5), dtype=np.uint8))
    copies, near = memorisation(images(ROWS[:50]), fresh, ROWS, shown=3, number=2)
    assert copies["nearer_than_99_percent"] == 1
    # Distances come from dot products, whose rounding a root makes larger.
    assert copies["neighbour_samples"] < 2e-3
    np.testing.assert_array_equal(near[:, 0], ROWS[:3])
    honest, _ = memorisation(fresh[:200], fresh[200:], ROWS)
    # Two samples of 200 are expected; ten would happen once in ten thousand times.
    assert honest["nearer_than_99_percent"] <= 0.05
    assert abs(honest["neighbour_samples"] / honest["neighbour_held_out"] - 1) < 0.05

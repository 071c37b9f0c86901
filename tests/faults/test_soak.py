"""Nothing grows: memory, open files and disk of long work."""

import sys

import pytest

from tests.faults.soak import sampling, training

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def check(seen, megabytes):
    first, last = seen[0], seen[-1]
    assert last.files == first.files
    assert last.disk <= 1.01 * first.disk
    assert last.memory - first.memory < megabytes * 2**20


def test_five_hundred_iterations(tmp_path):
    """A leak of one batch of chains per iteration, 0.1 MB, would be 45 MB."""
    check(training(tmp_path, 500), 15)


@pytest.mark.slow
def test_ten_thousand_iterations(tmp_path):
    check(training(tmp_path, 10_000), 15)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "num", "suffix", "size"), [("checkerboard", 100_000, ".npy", 8), ("digits", 10_000, ".npz", 64)]
)
def test_many_samples_take_no_more_memory_than_they_are(tmp_path, model, num, suffix, size):
    before, after = sampling(tmp_path, model, num, suffix)
    assert after.files == before.files
    # The samples themselves, as float32, and 200 MB for one batch of chains.
    assert after.memory - before.memory < 4 * num * size + 200 * 2**20

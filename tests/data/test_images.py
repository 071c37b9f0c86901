"""Batches of images: scaled, mirrored, dequantised, and following from their noise alone."""

import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from springwell.data.formats import Arrays, digits
from springwell.data.images import image_source
from springwell.data.options import ImageOptions
from springwell.data.source import open_data
from springwell.noise import Noise

RNG = np.random.default_rng(0)
TRAIN = RNG.integers(0, 256, (40, 3, 5, 6), dtype=np.uint8)
TEST = RNG.integers(0, 256, (12, 3, 5, 6), dtype=np.uint8)


def source(**options):
    return image_source(Arrays(TRAIN, TEST), ImageOptions(**options))


def to_bytes(x):
    levels = (x + 1) * 127.5
    torch.testing.assert_close(levels, levels.round(), atol=1e-4, rtol=0)
    return levels.round().to(torch.uint8).numpy()


def test_values_shape_and_split():
    data = source()
    assert data.event_shape == (3, 5, 6)
    assert torch.equal(data.shift, torch.zeros(3, 5, 6))
    assert torch.equal(data.scale, torch.ones(3, 5, 6))
    x = data.sample(Noise(0, torch.arange(4000)))
    assert x.dtype == torch.float32
    rows = (Noise(0, torch.arange(4000)).uniform() * 40).long().numpy()
    np.testing.assert_array_equal(to_bytes(x), TRAIN[rows])
    counts = np.bincount(rows, minlength=40)
    # A chi-square of 39 degrees of freedom exceeds 72 with probability 0.001.
    assert ((counts - 100) ** 2 / 100).sum() < 72
    assert data.num_held_out == 12
    np.testing.assert_array_equal(to_bytes(data.held_out(Noise(5, torch.arange(7)))), TEST[:7])
    np.testing.assert_array_equal(to_bytes(data.held_out(Noise(5, torch.arange(100)))), TEST)


def test_black_is_minus_one_and_white_is_one():
    ends = np.stack([np.zeros((1, 2, 2), np.uint8), np.full((1, 2, 2), 255, np.uint8)])
    x = image_source(Arrays(ends, ends), ImageOptions()).held_out(Noise(0, torch.arange(2)))
    assert x[0].unique().tolist() == [-1.0]
    assert x[1].unique().tolist() == [1.0]


def test_half_are_mirrored():
    plain, flipped = (to_bytes(source(flip=flip).sample(Noise(3, torch.arange(4000)))) for flip in (False, True))
    same = (flipped == plain).all((1, 2, 3))
    mirrored = (flipped == plain[..., ::-1]).all((1, 2, 3))
    assert (same ^ mirrored).all()
    # Four standard errors of a fair coin thrown 4000 times.
    assert abs(mirrored.mean() - 0.5) < 4 * 0.5 / 4000**0.5
    held = source(flip=True).held_out(Noise(0, torch.arange(12)))
    np.testing.assert_array_equal(to_bytes(held), TEST)


def test_dequantised_values_fill_their_cells():
    plain, noisy = (source(dequantise=d).sample(Noise(1, torch.arange(2000))) for d in (False, True))
    u = (noisy - plain).double() * 127.5
    rounding = 127.5 * 2.0**-23
    assert u.abs().max() <= 0.5 + 2 * rounding
    standard_error = (1 / 12 / u.numel()) ** 0.5
    assert abs(u.mean()) < 4 * standard_error
    assert abs(u.var() - 1 / 12) < 4 * (1 / 180 / u.numel()) ** 0.5
    quarters = torch.histc(u.float(), 4, -0.5, 0.5) / u.numel()
    assert (quarters - 0.25).abs().max() < 5 * (0.25 * 0.75 / u.numel()) ** 0.5


def test_the_cells_of_digits_are_those_of_their_17_values():
    data, plain = open_data("digits", ImageOptions(dequantise=True)), open_data("digits")
    assert data.cell == pytest.approx(2 / 16)
    exact = load_digits().images[5::6][:, None]
    u = data.held_out(Noise(0, torch.arange(299))).double().numpy() * 8 + 8 - exact
    assert np.abs(u).max() <= 0.5 + 1e-5
    assert abs(u.mean()) < 4 * (1 / 12 / u.size) ** 0.5
    assert abs(u.var() - 1 / 12) < 4 * (1 / 180 / u.size) ** 0.5
    np.testing.assert_allclose(plain.held_out(Noise(0, torch.arange(299))) * 8 + 8, exact, atol=0.5 * 16 / 255 + 1e-6)
    assert open_data("digits", ImageOptions(image_size=16)).cell == pytest.approx(2 / 255)
    assert open_data("checkerboard").cell == 0


@pytest.mark.parametrize("options", [{}, {"flip": True}, {"flip": True, "dequantise": True}])
def test_a_sample_follows_from_its_noise_alone(options):
    data = source(**options)
    torch.manual_seed(0)
    whole = data.sample(Noise(9, torch.arange(50), stream=4))
    torch.manual_seed(1)
    parts = [data.sample(Noise(9, torch.arange(a, b), stream=4)) for a, b in ((0, 13), (13, 50))]
    assert torch.equal(whole, torch.cat(parts))
    assert not torch.equal(whole, data.sample(Noise(9, torch.arange(50), stream=5)))


def test_threads_draw_the_same(tmp_path):
    data = source(flip=True, dequantise=True)
    expected = [data.sample(Noise(0, torch.arange(64), stream=i)) for i in range(40)]
    drawn = [None] * 40

    def draw(first):
        for i in range(first, 40, 4):
            drawn[i] = data.sample(Noise(0, torch.arange(64), stream=i))

    threads = [threading.Thread(target=draw, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(a, b) for a, b in zip(drawn, expected, strict=True))


def test_open_digits():
    data = open_data("digits")
    assert data.event_shape == (1, 8, 8)
    assert data.num_held_out == 299
    np.testing.assert_array_equal(to_bytes(data.held_out(Noise(0, torch.arange(299)))), digits().test)
    assert open_data("digits", ImageOptions(image_size=16)).event_shape == (1, 16, 16)


def test_toy_data_and_workers_stay_light():
    code = (
        "import sys; import springwell.data.worker; assert 'torch' not in sys.modules; "
        "from springwell.data.source import open_data; open_data('checkerboard'); assert 'PIL' in sys.modules; "
        "assert 'springwell.data.images' not in sys.modules and 'sklearn' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

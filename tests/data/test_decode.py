"""One image: every mode becomes the right bytes, and resizing is Pillow's."""

import io

import numpy as np
import pytest
from PIL import Image

from springwell.data import decode as module
from springwell.data.decode import Rule, UnreadableError, decode, resize_rows
from tests.data.published import encoded, photographs

RAMP = np.arange(256, dtype=np.uint8).reshape(16, 16)
COLOUR = photographs(1, 16, 16)[0]


def saved(image, kind, **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def over_white(values, alpha):
    return values * (alpha / 255) + 255 * (1 - alpha / 255)


def test_grey_modes_keep_one_channel():
    np.testing.assert_array_equal(decode(encoded(RAMP), Rule())[0], RAMP)
    bits = Image.fromarray(((RAMP > 99) * 255).astype(np.uint8)).convert("1")
    np.testing.assert_array_equal(decode(saved(bits, "PNG"), Rule())[0], (RAMP > 99) * 255)
    wide = RAMP.astype(np.uint16) * 257
    np.testing.assert_array_equal(decode(saved(Image.fromarray(wide), "PNG"), Rule())[0], RAMP)
    np.testing.assert_array_equal(
        decode(saved(Image.fromarray(wide + 100), "TIFF"), Rule(shape=(1, 1, 1)))[0][0, :5], RAMP[0, :5]
    )
    np.testing.assert_array_equal(decode(saved(Image.fromarray(wide.astype(np.int32)), "TIFF"), Rule())[0], RAMP)
    alpha = np.full_like(RAMP, 51)
    grey_alpha = Image.merge("LA", [Image.fromarray(RAMP), Image.fromarray(alpha)])
    np.testing.assert_allclose(decode(saved(grey_alpha, "PNG"), Rule())[0], over_white(RAMP, alpha), atol=1)


def test_colour_modes_have_three_channels():
    planes = COLOUR.transpose(2, 0, 1)
    np.testing.assert_array_equal(decode(encoded(COLOUR), Rule()), planes)
    alpha = RAMP
    rgba = Image.fromarray(np.dstack([COLOUR, alpha]))
    found = decode(saved(rgba, "PNG"), Rule())
    np.testing.assert_allclose(found, over_white(planes.astype(float), alpha), atol=1)
    palette = Image.fromarray(COLOUR).quantize(64)
    expected = np.asarray(palette.convert("RGB")).transpose(2, 0, 1)
    np.testing.assert_array_equal(decode(saved(palette, "PNG"), Rule()), expected)
    clear = decode(saved(palette, "PNG", transparency=3), Rule())
    hidden = np.asarray(palette) == 3
    assert (clear[:, hidden] == 255).all()
    np.testing.assert_array_equal(clear[:, ~hidden], expected[:, ~hidden])
    cmyk = Image.fromarray(COLOUR).convert("CMYK")
    np.testing.assert_array_equal(decode(saved(cmyk, "TIFF"), Rule()), planes)
    assert np.abs(decode(saved(cmyk, "JPEG", quality=100), Rule()).astype(int) - planes).mean() < 3
    frames = [Image.fromarray(COLOUR).quantize(16), Image.new("P", (16, 16))]
    first = np.asarray(frames[0].convert("RGB")).transpose(2, 0, 1)
    animation = saved(frames[0], "GIF", save_all=True, append_images=frames[1:])
    np.testing.assert_array_equal(decode(animation, Rule()), first)


def test_channels_follow_the_set():
    grey = decode(encoded(COLOUR), Rule(shape=(1, 16, 16)))
    np.testing.assert_array_equal(grey[0], np.asarray(Image.fromarray(COLOUR).convert("L")))
    np.testing.assert_array_equal(decode(encoded(RAMP), Rule(shape=(3, 16, 16))), np.stack([RAMP] * 3))
    wide = saved(Image.fromarray(RAMP.astype(np.uint16) * 257), "PNG")
    np.testing.assert_array_equal(decode(wide, Rule(shape=(3, 16, 16))), np.stack([RAMP] * 3))


@pytest.mark.parametrize(("height", "width"), [(90, 60), (60, 90), (41, 64), (20, 20)])
def test_resize_is_the_antialiased_reference(height, width):
    image = photographs(1, height, width)[0]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    square = Image.fromarray(image[top : top + side, left : left + side])
    reference = np.asarray(square.resize((32, 32), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    found = decode(encoded(image), Rule(32))
    np.testing.assert_array_equal(found, reference)
    np.testing.assert_array_equal(resize_rows(image.transpose(2, 0, 1)[None], 32)[0], reference)


def test_reduction_averages():
    """A checkerboard of single pixels, reduced fourfold, is grey: nothing is aliased."""
    board = (np.indices((64, 64)).sum(0) % 2 * 255).astype(np.uint8)
    found = decode(encoded(board), Rule(16))
    assert np.abs(found[0, 1:-1, 1:-1].astype(int) - 127).max() <= 1


def test_orientation():
    turned = Image.fromarray(COLOUR[:8])
    exif = Image.Exif()
    exif[0x0112] = 6
    data = saved(turned, "PNG", exif=exif)
    np.testing.assert_array_equal(decode(data, Rule(orient=False)), COLOUR[:8].transpose(2, 0, 1))
    np.testing.assert_array_equal(decode(data, Rule()), np.rot90(COLOUR[:8], -1).transpose(2, 0, 1))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (b"hello", "not an image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n", "not an image"),
        (encoded(COLOUR)[:-200], "truncated|broken"),
        (encoded(COLOUR, "JPEG")[:300], "(?i)truncated"),
        (saved(Image.fromarray(RAMP.astype(np.float32)), "TIFF"), "floating-point"),
        (saved(Image.fromarray(RAMP.astype(np.int32) * 1000), "TIFF"), "values of 32 bits .0 ... 255000"),
    ],
)
def test_unreadable(data, words):
    with pytest.raises(UnreadableError, match=words):
        decode(data, Rule())


def test_bounds(monkeypatch):
    monkeypatch.setattr(module, "MAX_PIXELS", 255)
    with pytest.raises(UnreadableError, match="16 x 16 pixels are too many"):
        decode(encoded(COLOUR), Rule())
    monkeypatch.setattr(module, "MAX_PIXELS", 256)
    with pytest.raises(UnreadableError, match="is 16 x 16 pixels, not 178 x 218"):
        decode(encoded(COLOUR), Rule(published=(178, 218)))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(UnreadableError, match="exceeds limit"):
        decode(encoded(COLOUR), Rule())

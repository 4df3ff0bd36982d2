"""Decoding against Pillow: unusual images are converted as documented, hostile ones rejected."""

import dataclasses
import io
import struct
import zlib

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tests.pipelines import hostile
from tests.pipelines.encoded import pixels
from vit_tf.images import decoding
from vit_tf.images.decoding import decode_image
from vit_tf.preprocessing import Preprocessing

READABLE, UNREADABLE = hostile.readable(), hostile.unreadable()


@pytest.fixture(scope="module")
def in_graph():
    """`decode_image` in a graph, as in training and exports."""
    return tf.function(decode_image, [tf.TensorSpec([], tf.string)])


def _encode(image, file_format, **options):
    file = io.BytesIO()
    image.save(file, file_format, **options)
    return file.getvalue()


def _pillow(mode="RGB", size=(53, 37)):
    """A random image whose second half is smooth."""
    image = Image.fromarray(pixels(size[1], size[0]))
    image.paste((200, 30, 90), (size[0] // 2, 0, *size))
    return image.convert(mode)


@pytest.mark.parametrize(
    ("file_format", "mode", "tolerance"),
    [
        ("PNG", "RGB", 0),
        ("PNG", "L", 0),
        ("PNG", "LA", 0),
        ("PNG", "P", 0),
        ("PNG", "1", 0),
        ("GIF", "P", 0),
        ("BMP", "RGB", 0),
        ("BMP", "L", 0),
        ("BMP", "P", 0),
        # JPEG decoders differ by rounding; TensorFlow uses the fast transform.
        ("JPEG", "RGB", 8),
        ("JPEG", "L", 8),
        ("JPEG", "CMYK", 8),
    ],
)
def test_decode_image_equals_pillow(file_format, mode, tolerance):
    options = {"quality": 90, "subsampling": 0} if file_format == "JPEG" else {}
    encoded = _encode(_pillow(mode), file_format, **options)
    decoded = decode_image(tf.constant(encoded))
    expected = np.asarray(Image.open(io.BytesIO(encoded)).convert("RGB"))
    assert decoded.dtype == tf.uint8
    assert decoded.shape == (37, 53, 3)
    difference = np.abs(np.asarray(decoded, int) - expected)
    assert difference.max() <= tolerance


@pytest.mark.parametrize("quality", [75, 95])
@pytest.mark.parametrize("subsampling", [0, 2])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_accurate_jpegs_have_pillows_pixels(mode, subsampling, quality):
    preprocessing = Preprocessing(image_size=(8, 8), antialias=True)
    assert preprocessing.jpeg == "accurate"
    data = _encode(_pillow(mode), "JPEG", quality=quality, subsampling=subsampling)
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    np.testing.assert_array_equal(preprocessing.decode(data), expected)
    np.testing.assert_array_equal(tf.function(preprocessing.decode)(tf.constant(data)), expected)
    fast = dataclasses.replace(preprocessing, jpeg="fast").decode(data)
    np.testing.assert_array_equal(fast, decode_image(data))
    assert np.any(fast != expected)
    with pytest.raises(tf.errors.InvalidArgumentError, match="claims more than 8 pixels"):
        preprocessing.decode(data, max_pixels=8)
    with pytest.raises(tf.errors.InvalidArgumentError):
        preprocessing.decode(data[: len(data) // 2])


def test_decode_image_drops_alpha():
    image = _pillow()
    transparent = image.copy()
    transparent.putalpha(Image.fromarray(pixels(37, 53)[..., 0]))
    np.testing.assert_array_equal(decode_image(_encode(transparent, "PNG")), np.asarray(image))


def test_decode_image_keeps_the_high_byte_of_16_bits():
    values = np.random.default_rng(0).integers(0, 2**16, (5, 4)).astype(np.uint16)
    decoded = decode_image(_encode(Image.fromarray(values), "PNG"))
    np.testing.assert_array_equal(decoded, np.repeat((values >> 8)[..., None], 3, -1))


def test_decode_image_takes_the_first_frame():
    frames = [Image.new("RGB", (4, 3), color) for color in ("red", "lime", "blue")]
    animation = _encode(frames[0], "GIF", save_all=True, append_images=frames[1:])
    np.testing.assert_array_equal(decode_image(animation), np.asarray(frames[0]))


def test_decode_image_static_shape_in_a_graph():
    dataset = tf.data.Dataset.from_tensors(_encode(_pillow(), "PNG")).map(decode_image)
    assert dataset.element_spec == tf.TensorSpec([None, None, 3], tf.uint8)


@pytest.mark.parametrize("name", READABLE)
def test_odd_files_become_what_is_documented(name, in_graph):
    _, contents, expected, tolerance = READABLE[name]
    decoded = decode_image(contents)
    assert decoded.dtype == tf.uint8
    np.testing.assert_array_equal(in_graph(contents), decoded)
    if expected is None:
        expected = np.asarray(Image.open(io.BytesIO(contents)).convert("RGB"))
        tolerance = 6
    assert decoded.shape == expected.shape
    assert np.abs(decoded.numpy().astype(int) - expected).max() <= tolerance


@pytest.mark.parametrize("name", UNREADABLE)
def test_hostile_files_are_refused(name, in_graph):
    _, contents = UNREADABLE[name]
    text = "134,217,728 pixels" if name.startswith("huge") else None
    for decode in (decode_image, in_graph):
        with pytest.raises(tf.errors.InvalidArgumentError, match=text):
            decode(contents)


def test_adobes_mark_says_that_cmyk_is_inverted():
    """Without the mark the values are amounts of ink; Pillow always treats them as inverted."""
    contents = READABLE["CMYK"][1]
    place = contents.index(b"\xff\xee")
    length = int.from_bytes(contents[place + 2 : place + 4], "big")
    unmarked = contents[:place] + contents[place + 2 + length :]
    assert b"Adobe" in contents and b"Adobe" not in unmarked
    cmyk = np.asarray(Image.open(io.BytesIO(unmarked)), int)
    for data, ink in ((contents, cmyk), (unmarked, 255 - cmyk)):
        expected = (255 - ink[..., :3]) * (255 - ink[..., 3:]) / 255
        assert np.abs(decode_image(data).numpy() - expected).max() <= 6


def test_size_of_a_gif_is_that_of_its_first_frame():
    """Pillow reports the canvas, TensorFlow the largest frame."""
    gif = bytearray(READABLE["animated GIF"][1])
    second = hostile.gif_frames(gif)[0][1]
    gif[6:10] = bytes([200, 0, 100, 0])  # a larger canvas
    gif[second + 5 : second + 9] = bytes([1, 0, 1, 0])
    assert decode_image(bytes(gif)).shape == (7, 9, 3)


def test_frames_of_a_gif_that_are_not_wanted_are_not_even_read():
    """The bytes that TensorFlow decodes end after the first frame."""
    bomb = hostile.gif_bomb(side=20, frames=50)
    whole, size = decoding._first_frame_of_gif(tf.constant(bomb))
    (first,), end = hostile.gif_frames(whole.numpy())
    assert [int(side) for side in size] == [20, 20]
    assert end == len(whole.numpy()) - 1
    assert first < end < len(bomb) / 30


def test_a_gif_of_too_many_blocks_is_refused(monkeypatch):
    data = Image.fromarray(np.random.default_rng(0).integers(0, 256, (90, 90), np.uint8))
    file = io.BytesIO()
    data.save(file, "GIF")
    gif = tf.constant(file.getvalue())
    decoding._first_frame_of_gif(gif)
    monkeypatch.setattr(decoding, "_MAX_FRAME_BLOCKS", 16)
    with pytest.raises(tf.errors.InvalidArgumentError, match="no whole frame"):
        decoding._first_frame_of_gif(gif)


def test_the_limit_counts_pixels():
    """A header at the limit passes the check; then the decoder fails for lack of pixels."""
    png = bytearray(READABLE["1 x 1"][1])
    for sides, text in (((2**9, 2**18), "Invalid PNG"), ((2**9, 2**18 + 1), "claims more than")):
        png[16:24] = struct.pack(">II", *sides)
        png[29:33] = struct.pack(">I", zlib.crc32(png[12:29]))
        with pytest.raises(tf.errors.InvalidArgumentError, match=text):
            decode_image(bytes(png))


@pytest.mark.parametrize("name", READABLE)
def test_another_limit(name):
    contents = READABLE[name][1]
    image = decode_image(contents)
    pixels = image.shape[0] * image.shape[1]
    np.testing.assert_array_equal(decode_image(contents, pixels), image)
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"claims more than {pixels - 1:,} "):
        decode_image(contents, pixels - 1)

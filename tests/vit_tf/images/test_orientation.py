"""EXIF orientations against Pillow, wherever a file has them, and hostile files."""

import io
import struct
import warnings

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageOps

from pipelines.config.augmentation import Augmentation
from pipelines.data.transforms.augmentation import augment, inception_crop
from tests.pipelines.encoded import encode, pixels
from vit_tf.images.decoding import decode_image
from vit_tf.images.orientation import is_plain, orientation, stored_window, upright
from vit_tf.preprocessing import Preprocessing

_SHORT, _LONG = 3, 4
# Without halved colors, so that a part of a JPEG decodes to the same pixels as the whole.
_JPEG = {"quality": 95, "subsampling": 0}


def entry(order, tag, kind, count, value):
    packed = struct.pack(order + ("H2x" if kind == _SHORT else "I"), value)
    return struct.pack(order + "HHI", tag, kind, count) + packed


def structure(order, *entries, offset=8, count=None):
    """A TIFF structure with one directory."""
    start = {"<": b"II*\0", ">": b"MM\0*"}[order] + struct.pack(order + "I", offset)
    count = len(entries) if count is None else count
    return (
        start + bytes(offset - 8) + struct.pack(order + "H", count) + b"".join(entries) + bytes(4)
    )


def segment(marker, content, length=None):
    length = len(content) + 2 if length is None else length
    return b"\xff" + bytes([marker]) + struct.pack(">H", length) + content


def exif(tiff, length=None):
    return segment(0xE1, b"Exif\0\0" + tiff, length)


def plain_jpeg(height=16, width=24):
    """A JPEG without EXIF, as Pillow writes it: JFIF, then tables."""
    return encode(pixels(height, width), "JPEG", **_JPEG)


JPEG = plain_jpeg()
JFIF, REST = JPEG[2:20], JPEG[20:]


def jpeg(*segments):
    return b"\xff\xd8" + b"".join(segments) + REST


def orientation_of(data):
    return int(orientation(tf.constant(data)))


def pillow_orientation(data):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns of damaged structures.
        return Image.open(io.BytesIO(data)).getexif().get(0x0112, 1)


def turned_by_pillow(stored, value):
    image = Image.fromarray(stored.numpy())
    image.getexif()[0x0112] = value
    return np.asarray(ImageOps.exif_transpose(image))


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", [_SHORT, _LONG])
@pytest.mark.parametrize("value", range(1, 9))
def test_orientations_equal_pillow_s(value, kind, order):
    """First or after other segments, in a directory at its usual or another place."""
    maker = entry(order, 0x010F, 2, 4, 0x41424300)
    field = entry(order, 0x0112, kind, 1, value)
    tiff = structure(order, maker, field, entry(order, 0x011A, 5, 1, 26))
    moved = structure(order, field, offset=40)
    other = segment(0xED, bytes(70))
    for data in (
        jpeg(exif(tiff)),
        jpeg(JFIF, exif(moved)),
        jpeg(JFIF, segment(0xFE, b"a comment"), other, exif(tiff)),
        jpeg(segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0"), exif(tiff)),
    ):
        assert orientation_of(data) == pillow_orientation(data) == value
        if bool(is_plain(data)):
            assert value == 1
        stored = decode_image(data)
        expected = turned_by_pillow(stored, value)
        np.testing.assert_array_equal(upright(stored, tf.constant(value)), expected)
        np.testing.assert_array_equal(decode_image(data, exif="apply"), expected)


@pytest.mark.parametrize("order", ["<", ">"])
def test_usual_files_are_recognized_quickly(order):
    maker, field = entry(order, 0x010F, 2, 4, 0x41), entry(order, 0x0112, _SHORT, 1, 1)
    pointer = entry(order, 0x8769, _LONG, 1, 90)
    for entries in (
        (maker, field, pointer),
        (field,),
        (*[maker] * 20, field),
        (maker, pointer),
        (),
    ):
        usual = exif(structure(order, *entries))
        for data in (JPEG, jpeg(usual), jpeg(JFIF, usual)):
            assert bool(is_plain(data)) and orientation_of(data) == pillow_orientation(data) == 1
    turned = entry(order, 0x0112, _SHORT, 1, 6)
    no_value = entry(order, 0x0112, _SHORT, 1, 0)
    for entries in (
        (maker, turned),
        (turned, field),
        (maker, turned, field),
        (no_value, turned),
        (*[maker] * 12, turned),
        (*[maker] * 20, turned),
    ):
        data = jpeg(exif(structure(order, *entries)))
        assert not bool(is_plain(data)) and orientation_of(data) == 6
    # A table after JFIF would be at byte 20, where this file has the number of its entries.
    data = jpeg(exif(structure("<", entry("<", 0x0112, _SHORT, 1, 6), count=0xDBFF)))
    assert data[20:22] == b"\xff\xdb"
    assert not bool(is_plain(data)) and orientation_of(data) == 6


def test_other_files_are_upright():
    field = entry("<", 0x0112, _SHORT, 1, 6)
    tiff = structure("<", field)
    big = b"MM" + tiff[2:]
    hostile = {
        "no EXIF": JPEG,
        "nothing in it": jpeg(exif(b"")),
        "no directory": jpeg(exif(structure("<")[:8])),
        "an empty directory": jpeg(exif(structure("<"))),
        "cut entries": jpeg(exif(tiff[:-8])),
        "the other order": jpeg(exif(big)),
        "no order": jpeg(exif(b"XX" + tiff[2:])),
        "a directory behind the end": jpeg(exif(tiff[:4] + struct.pack("<I", 2000) + tiff[8:])),
        "a negative place": jpeg(exif(tiff[:4] + struct.pack("<I", 2**32 - 8) + tiff[8:])),
        "the place of the header": jpeg(exif(tiff[:4] + bytes(4) + tiff[8:])),
        "a value of 0": jpeg(exif(structure("<", entry("<", 0x0112, _SHORT, 1, 0)))),
        "a value of 9": jpeg(exif(structure("<", entry("<", 0x0112, _SHORT, 1, 9)))),
        "a value of 0x0106": jpeg(exif(structure("<", entry("<", 0x0112, _SHORT, 1, 0x0106)))),
        "a value of 2**31": jpeg(exif(structure(">", entry(">", 0x0112, _LONG, 1, 2**31)))),
        "two values": jpeg(exif(structure("<", entry("<", 0x0112, _SHORT, 2, 6)))),
        "a text": jpeg(exif(structure("<", entry("<", 0x0112, 2, 1, 6)))),
        "between two entries": jpeg(exif(structure("<", bytes(6) + field + bytes(6)))),
        "behind the directory": jpeg(exif(structure("<", bytes(12), field, count=1))),
        "behind the segment": jpeg(exif(tiff, length=16)),
        "a length of 0": b"\xff\xd8" + exif(tiff, length=0)[:12] + REST,
        "a segment behind the end": b"\xff\xd8" + segment(0xE0, b"", length=2**16 - 1) + REST,
        "a loop": b"\xff\xd8" + segment(0xE0, b"", length=0) * 200 + REST,
        "after too many segments": jpeg(*[segment(0xFE, b"")] * 100, exif(tiff)),
        "after the tables": JPEG[: JPEG.index(b"\xff\xc0")] + exif(tiff) + REST,
        "tables with its name": b"\xff\xd8" + segment(0xDB, b"Exif\0\0" + tiff) + REST,
        "30 bytes": (b"\xff\xd8" + exif(tiff))[:30],
    }
    assert {name: orientation_of(data) for name, data in hostile.items()} == dict.fromkeys(
        hostile, 1
    )
    # A claim of more entries than there are takes those there. The first of several counts.
    both = (field, entry("<", 0x0112, _SHORT, 1, 3))
    for data in (exif(structure("<", field, count=2**16 - 1)), exif(structure("<", *both))):
        assert orientation_of(jpeg(data)) == pillow_orientation(jpeg(data)) == 6


def test_damaged_files_give_some_orientation():
    """Random bytes in the header: no error, and nothing but 1 to 8."""
    rng = np.random.default_rng(0)
    data = jpeg(exif(structure(">", entry(">", 0x0112, _SHORT, 1, 6))))
    for count in range(300):
        changed = bytearray(data)
        for place in rng.integers(2, 60, 3):
            changed[place] = rng.integers(256)
        cut = len(data) if count % 2 else int(rng.integers(24, 70))
        damaged = bytes(changed[:cut])
        found = orientation_of(damaged)
        assert found in ((1,) if bool(is_plain(damaged)) else range(1, 9))


@pytest.mark.parametrize("value", range(1, 9))
def test_a_window_of_the_upright_image(value):
    image = np.arange(5 * 7).reshape(5, 7, 1)
    turned = upright(tf.constant(image), tf.constant(value)).numpy()
    height, width = turned.shape[:2]
    for top, left, tall, wide in ((0, 0, height, width), (1, 2, 2, 3), (height - 1, 0, 1, 4)):
        stored = stored_window(tf.constant([top, left, tall, wide]), tf.constant([5, 7]), value)
        y, x, h, w = stored.numpy()
        again = upright(tf.constant(image[y : y + h, x : x + w]), tf.constant(value))
        np.testing.assert_array_equal(again, turned[top : top + tall, left : left + wide])


@pytest.mark.parametrize("value", range(1, 9))
def test_training_crops_are_those_of_the_upright_image(value):
    data = jpeg(exif(structure("<", entry("<", 0x0112, _SHORT, 1, value))))
    png = tf.io.encode_png(decode_image(data, exif="apply"))
    for seed in ([3, 1], [4, 2], [5, 3]):
        seed = tf.constant(seed, tf.int64)
        found = inception_crop(tf.constant(data), seed, (0.1, 0.9), exif="apply")
        np.testing.assert_array_equal(found, inception_crop(png, seed, (0.1, 0.9)))


@pytest.mark.parametrize("value", [1, 6, 7])
@pytest.mark.parametrize("crop", ["inception", "random", "none"])
def test_training_changes_the_upright_image(crop, value):
    data = jpeg(exif(structure("<", entry("<", 0x0112, _SHORT, 1, value))))
    png = tf.io.encode_png(turned_by_pillow(decode_image(data, jpeg="accurate"), value))
    options = Augmentation(crop=crop, crop_resize_to=15 if crop == "random" else None)
    preprocessing = Preprocessing(image_size=(12, 9), exif="apply", jpeg="accurate")
    for seed in ([3, 1], [4, 2], [5, 3]):
        found, expected = (
            augment(x, seed, preprocessing, options) for x in (tf.constant(data), png)
        )
        np.testing.assert_array_equal(found, expected)

"""A 64-bit perceptual hash: which of the lowest frequencies of an image are above their median.

The image becomes gray and 32 x 32, without keeping its aspect ratio. Its discrete cosine transform
has a coefficient for each pair of a vertical and a horizontal frequency; the hash has a bit for
each of the 64 lowest pairs, without the mean. Brightness and contrast do not change it; other
sizes, JPEG and small changes of color flip a few bits. (A form of pHash: Zauner, Implementation and
Benchmarking of Perceptual Image Hash Functions, 2010.)

Crops and mirroring flip many bits. So an image has the hashes of 20 views: all of it, and nine
parts of 80 % of its area; each as it is and mirrored. The distance of two images is the smallest
between view 0 of one of them and any view of the other.
"""

import functools

import numpy as np
import tensorflow as tf

from pipelines.data.decoding import decode_batch
from vit_tf.preprocessing import Preprocessing

BITS = 64
SIDE = 32
# Images are read with this side, a multiple of `SIDE`, so that parts of them can be resized.
READ_SIDE = 64
# (top, left, side) of all of an image and of its parts, as fractions of its sides.
_PART = 0.8**0.5
_OFFSETS = (0.0, (1 - _PART) / 2, 1 - _PART)
_WHOLE = (0.0, 0.0, 1.0)
WINDOWS = (_WHOLE, *((top, left, _PART) for top in _OFFSETS for left in _OFFSETS))
# View 2 i is window i, and view 2 i + 1 its mirror image.
VIEWS = 2 * len(WINDOWS)
# The standard deviation of the gray levels 0 .. 255, in the frequencies of the hash, below which an
# image is plain: noise decides its bits, so it has no hash.
LEAST_DEVIATION = 1.0
_PREPROCESSING = Preprocessing(
    image_size=(READ_SIDE, READ_SIDE), interpolation="area", exif="apply"
)
_GRAY = (0.299, 0.587, 0.114)  # ITU-R BT.601, as in JPEG.
# (vertical, horizontal) frequencies of the bits, the lowest first.
_FREQUENCIES = np.array(
    sorted(np.ndindex(SIDE, SIDE), key=lambda pair: (pair[0] ** 2 + pair[1] ** 2, pair))
)[1 : BITS + 1]
_HIGHEST = int(_FREQUENCIES.max()) + 1
# Neighboring frequencies are in different quarters of the hash, which `buckets` searches by.
_SHIFTS = np.array([16 * (k % 4) + k // 4 for k in range(BITS)], np.uint64)
_ONES = np.array([value.bit_count() for value in range(2**16)], np.uint8)


def hashes_of_files(contents):
    """The hashes of encoded images.

    Args:
        contents: the bytes of each file, a sequence of `n` or an object array.

    Returns:
        uint64 `[VIEWS, n]`; bool `[n]`, whether the image could be decoded; and bool `[n]`, whether
        it has a hash.
    """
    images, is_readable = (x.numpy() for x in _decode(tf.constant(list(contents), tf.string)))
    hashes, is_hashed = hashes_of_pixels(images)
    return hashes, is_readable, is_hashed & is_readable


def hashes_of_pixels(images):
    """The hashes of images of one size.

    Args:
        images: floating `[n, S, S, 3]` in [-1, 1], where S is a multiple of `SIDE`.

    Returns:
        The first and the last result of `hashes_of_files`.
    """
    # Term by term: a product with a vector rounds differently for other numbers of images.
    gray = sum(127.5 * x * np.asarray(images[..., c], np.float64) for c, x in enumerate(_GRAY))
    coefficients = _coefficients(gray, WINDOWS)
    is_hashed = np.sqrt(np.sum(coefficients[0] ** 2, axis=1)) / SIDE >= LEAST_DEVIATION
    # The mirror image has the same cosines, with the opposite sign at odd horizontal frequencies.
    signs = 1 - 2 * (_FREQUENCIES[:, 1] % 2)
    return np.stack([_hash(x * s) for x in coefficients for s in (1, signs)]), is_hashed


def _coefficients(gray, windows):
    """The 64 lowest coefficients of windows of gray images `[n, S, S]`: a list of `[n, 64]`."""
    size = gray.shape[1]
    # The windows have few different ranges of rows, and this is most of the work.
    vertical = {
        (top, side): _cosines(size, top, side) @ gray for top, side in {x[::2] for x in windows}
    }
    return [
        (vertical[top, side] @ _cosines(size, left, side).T)[
            :, _FREQUENCIES[:, 0], _FREQUENCIES[:, 1]
        ]
        for top, left, side in windows
    ]


@functools.cache
def _cosines(size, offset, side):
    """From pixels of a side to cosine coefficients of a part of it, `[_HIGHEST, size]`.

    The part, which is given in fractions, becomes 32 pixels: means over the area that they cover.
    Then the first rows of the orthonormal DCT-II follow.
    """
    edges = size * (offset + side * np.arange(SIDE + 1) / SIDE)[:, None]
    pixels = np.arange(size)
    covered = np.minimum(edges[1:], pixels + 1) - np.maximum(edges[:-1], pixels)
    means = np.clip(covered, 0, None) / (size * side / SIDE)
    angles = np.pi / SIDE * np.outer(np.arange(_HIGHEST), np.arange(SIDE) + 0.5)
    cosines = np.sqrt(2 / SIDE) * np.cos(angles)
    cosines[0] /= np.sqrt(2)
    return cosines @ means


def _hash(values):
    # Coefficients that are equal but for their rounding, as of small images, get equal bits.
    values = np.round(values, 6)
    return pack_bits(values > np.median(values, axis=1, keepdims=True))


def pack_bits(bits):
    """Bools `[n, 64]` as uint64 `[n]`; neighbors are in different quarters of 16 bits."""
    return np.bitwise_or.reduce(bits.astype(np.uint64) << _SHIFTS, axis=1)


def hamming(first, second):
    """The number of different bits of uint64 arrays of broadcastable shapes: uint8."""
    return _count_bits(np.atleast_1d(first ^ second))


def _count_by_table(values):
    """The number of bits that are set in uint64 `[...]`: uint8 `[...]`."""
    quarters = np.ascontiguousarray(values).view(np.uint16)
    return _ONES[quarters].reshape(*values.shape, 4).sum(axis=-1, dtype=np.uint8)


# NumPy 2 has a function that is several times as fast.
_count_bits = getattr(np, "bitwise_count", _count_by_table)


@tf.function(input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)
def _decode(images):
    return decode_batch(images, _PREPROCESSING)

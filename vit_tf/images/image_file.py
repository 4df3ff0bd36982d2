"""Reads one image file, with errors that name it."""

import tensorflow as tf

from vit_tf.files import storage
from vit_tf.images.decoding import FORMATS, MAX_PIXELS, decode_image

# Larger than any photo. A file is read into memory as a whole.
_MAX_BYTES = 2**28


def read_bytes(path) -> bytes:
    """The contents of an image file.

    Raises:
        ValueError: if there is no such file, or it cannot be read or is too large.
    """
    # A pipe or device can be endless.
    if not storage.is_file(path):
        raise ValueError(f"{path} is not a file.")
    if storage.size_and_time(path)[0] > _MAX_BYTES:
        raise ValueError(f"{path} has more than {_MAX_BYTES // 2**20} MB, too much for an image.")
    try:
        return storage.read(path, _MAX_BYTES)
    except OSError as error:
        raise ValueError(f"Cannot read {path}: {error.strerror}.") from None


def read_image(path) -> tf.Tensor:
    """The pixels of an image file, as `decode_image` returns them.

    Raises:
        ValueError: as `read_bytes`, or if the file cannot be decoded.
    """
    contents = read_bytes(path)
    try:
        return decode_image(contents)
    except tf.errors.OpError:
        raise ValueError(undecodable(path)) from None


def undecodable(path) -> str:
    """The message about a file that cannot be decoded."""
    return (
        f"Cannot decode {path}. Expected a whole {FORMATS} file of at most "
        f"{MAX_PIXELS // 10**6} megapixels."
    )

"""Reads one image file, with errors that name it."""

import tensorflow as tf

from vit_tf.files import storage
from vit_tf.images.decoding import FORMATS, MAX_PIXELS, decode_image

# Larger than any photo. A file is read into memory as a whole.
_MAX_BYTES = 2**28


def unusable(path) -> str:
    """The reason why a path is not a file that can be an image; "" if it may be one."""
    # A pipe or device can be endless.
    if not storage.is_file(path):
        return f"{path} is not a file."
    if storage.size_and_time(path)[0] > _MAX_BYTES:
        return f"{path} has more than {_MAX_BYTES // 2**20} MB, too much for an image."
    return ""


def read_bytes(path) -> bytes:
    """The contents of a file that may be an image.

    Raises:
        ValueError: if the file cannot be read.
    """
    try:
        return storage.read(path, _MAX_BYTES)
    except OSError as error:
        raise ValueError(f"Cannot read {path}: {error.strerror}.") from None


def read_image(path, decode=decode_image) -> tf.Tensor:
    """The pixels of an image file.

    Args:
        path: the file.
        decode: `decode_image`, or the `decode` of a `Preprocessing`.

    Raises:
        ValueError: if the file is not usable, cannot be read or cannot be decoded.
    """
    if reason := unusable(path):
        raise ValueError(reason)
    contents = read_bytes(path)
    try:
        return decode(contents)
    except tf.errors.OpError:
        raise ValueError(undecodable(path, foreign_format(contents))) from None


def undecodable(path, reason="") -> str:
    """The message about a file that cannot be decoded, with the reason if one is known."""
    return (
        f"Cannot decode {path}{f': {reason}' if reason else ''}. Expected a whole {FORMATS} file "
        f"of at most {MAX_PIXELS // 10**6} megapixels."
    )


def foreign_format(image_bytes) -> str | None:
    """The reason for a format that cameras and scanners write and that is not read here."""
    if image_bytes[4:8] == b"ftyp":
        name = "AVIF" if image_bytes[8:12] in (b"avif", b"avis") else "HEIC"
    elif image_bytes[:4] in (b"II*\0", b"MM\0*"):
        name = "TIFF"
    else:
        return None
    return f"it is a {name} file; convert it to JPEG or PNG"

"""Image files for the tests: encoded in memory, with the pixels they hold."""

import io
import struct
import zlib

import numpy as np
import tensorflow as tf
from PIL import Image


def pixels(height, width, seed=0):
    """A random image, uint8 `[height, width, 3]`."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def encode(array, file_format, **options):
    file = io.BytesIO()
    Image.fromarray(array).save(file, file_format, **options)
    return file.getvalue()


def every_format():
    """(bytes, uint8 pixels) of each format that is served, in different sizes, big and small."""
    png, grey, alpha, bmp, jpeg = (
        pixels(*size, seed=i)
        for i, size in enumerate([(17, 23), (9, 31), (40, 5), (12, 18), (33, 20)])
    )
    with_alpha = np.concatenate([alpha, grey[:1, :1, :1].repeat(40, 0).repeat(5, 1)], axis=-1)
    first, second = (Image.fromarray(pixels(14, 8, seed)).convert("P") for seed in (5, 6))
    gif = io.BytesIO()
    first.save(gif, "GIF", save_all=True, append_images=[second])
    jpeg_bytes = encode(jpeg, "JPEG")
    return [
        (encode(png, "PNG"), png),
        (encode(grey[..., 0], "PNG"), grey[..., :1].repeat(3, axis=-1)),
        (encode(with_alpha, "PNG"), alpha),
        (encode(bmp, "BMP"), bmp),
        (gif.getvalue(), np.array(first.convert("RGB"))),
        (jpeg_bytes, tf.io.decode_jpeg(jpeg_bytes).numpy()),
    ]


def broken():
    """Name -> bytes that are no whole image."""
    image = pixels(40, 30)
    jpeg, png = encode(image, "JPEG"), encode(image, "PNG")
    return {
        "empty": b"",
        "garbage": bytes(range(256)),
        "text": b"not an image\n",
        "cut JPEG": jpeg[: len(jpeg) // 2],
        "cut PNG": png[: len(png) // 2],
        "PNG header only": png[:8],
    }


def huge():
    """Format -> a small file whose header claims 50,000 x 50,000 pixels."""
    side = 50_000
    image = pixels(8, 8)
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    jpeg = bytearray(encode(image, "JPEG"))
    frame = jpeg.index(b"\xff\xc0")  # marker, length, precision, height, width
    jpeg[frame + 5 : frame + 9] = struct.pack(">HH", side, side)
    gif = bytearray(encode(image, "GIF"))
    gif[6:10] = struct.pack("<HH", side, side)
    png = (
        b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(b"\0" * 99))
    )
    return {"JPEG": bytes(jpeg), "GIF": bytes(gif), "PNG": png + _chunk(b"IEND", b"")}


def _chunk(name, data):
    checksum = struct.pack(">I", zlib.crc32(name + data))
    return struct.pack(">I", len(data)) + name + data + checksum

"""Encodes image files in memory for the tests, together with their pixels."""

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
    """(bytes, uint8 pixels) of each format that is served, in several sizes."""
    png, gray, alpha, bmp, jpeg = (
        pixels(*size, seed=i)
        for i, size in enumerate([(17, 23), (9, 31), (40, 5), (12, 18), (33, 20)])
    )
    with_alpha = np.concatenate([alpha, gray[:1, :1, :1].repeat(40, 0).repeat(5, 1)], axis=-1)
    first, second = (Image.fromarray(pixels(14, 8, seed)).convert("P") for seed in (5, 6))
    gif = io.BytesIO()
    first.save(gif, "GIF", save_all=True, append_images=[second])
    jpeg_bytes = encode(jpeg, "JPEG")
    webp = pixels(21, 15, seed=7)
    return [
        (encode(png, "PNG"), png),
        (encode(gray[..., 0], "PNG"), gray[..., :1].repeat(3, axis=-1)),
        (encode(with_alpha, "PNG"), alpha),
        (encode(bmp, "BMP"), bmp),
        (gif.getvalue(), np.array(first.convert("RGB"))),
        (jpeg_bytes, tf.io.decode_jpeg(jpeg_bytes).numpy()),
        (encode(webp, "WEBP", lossless=True), webp),
    ]


def broken():
    """Name -> bytes that are not a whole image."""
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
    """Format -> a small file whose header states 60,000 x 60,000 pixels, or its maximum."""
    side, webp_side = 60_000, 2**14 - 1
    image = pixels(8, 8)
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    jpeg = bytearray(encode(image, "JPEG"))
    frame = jpeg.index(b"\xff\xc0")  # marker, length, precision, height, width
    jpeg[frame + 5 : frame + 9] = struct.pack(">HH", side, side)
    gif = bytearray(encode(image, "GIF"))
    gif[6:10] = struct.pack("<HH", side, side)
    gif_frame = bytearray(encode(image, "GIF"))
    frame = gif_frame.rindex(b"\x2c" + bytes(4) + struct.pack("<HH", 8, 8))
    gif_frame[frame + 5 : frame + 9] = struct.pack("<HH", side, side)
    png = (
        b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(b"\0" * 99))
    )
    bmp = bytearray(encode(image, "BMP"))
    bmp[18:26] = struct.pack("<ii", side, -side)
    lossy, lossless = (
        bytearray(encode(image, "WEBP")),
        bytearray(encode(image, "WEBP", lossless=True)),
    )
    lossy[26:30] = struct.pack("<HH", webp_side, webp_side)
    lossless[21:25] = struct.pack("<I", webp_side | webp_side << 14)
    frames = [Image.fromarray(pixels(8, 8, seed)) for seed in (1, 2)]
    file = io.BytesIO()
    frames[0].save(file, "WEBP", save_all=True, append_images=frames[1:])
    animation = bytearray(file.getvalue())
    animation[24:30] = 2 * struct.pack("<I", side - 1)[:3]
    return {
        "JPEG": bytes(jpeg),
        "GIF": bytes(gif),
        "GIF frame": bytes(gif_frame),
        "PNG": png + _chunk(b"IEND", b""),
        "BMP": bytes(bmp),
        "WebP": bytes(lossy),
        "WebP lossless": bytes(lossless),
        "WebP animation": bytes(animation),
    }


def _chunk(name, data):
    checksum = struct.pack(">I", zlib.crc32(name + data))
    return struct.pack(">I", len(data)) + name + data + checksum

"""Unusual, damaged and malicious image files, built in memory."""

import io
import struct

import numpy as np
from PIL import Image

from tests.pipelines.encoded import broken, encode, huge, pixels

SIDE = 60_000


def _save(image, file_format, **options):
    file = io.BytesIO()
    image.save(file, file_format, **options)
    return file.getvalue()


def _smooth(height, width, mode="RGB"):
    """A picture that JPEG changes only a little."""
    rows, columns = np.mgrid[:height, :width]
    channels = [rows * 255 // height, columns * 255 // width, (rows + columns) % 256]
    return Image.fromarray(np.stack(channels, -1).astype(np.uint8)).convert(mode)


def _frames(mode="RGB", size=(9, 7)):
    return [Image.new("RGB", size, color).convert(mode) for color in ("red", "lime", "blue")]


def _animation(frames, file_format, **options):
    return _save(frames[0], file_format, save_all=True, append_images=frames[1:], **options)


def gif_frames(gif):
    """The positions of the image descriptors of a GIF, and of the end of the last frame."""
    places, place = [], 13 + 3 * (2 << (gif[10] & 7)) * (gif[10] >> 7)
    while gif[place] in b"\x21\x2c":
        if gif[place] == 0x2C:
            places.append(place)
            flags = gif[place + 9]
            place += 11 + 3 * (2 << (flags & 7)) * (flags >> 7)
        else:
            place += 2
        while gif[place]:
            place += 1 + gif[place]
        place += 1
    return places, place


def _later_frame_is_huge():
    gif = bytearray(_animation(_frames(), "GIF"))
    second = gif_frames(gif)[0][1]
    gif[second + 5 : second + 9] = struct.pack("<HH", SIDE, SIDE)
    return bytes(gif)


def _frame_beside_the_canvas():
    gif = bytearray(_save(_frames()[0], "GIF"))
    first = gif_frames(gif)[0][0]
    gif[first + 1 : first + 5] = struct.pack("<HH", 3, 2)
    return bytes(gif)


def gif_bomb(side=6000, frames=200):
    """A few megabytes with gigabytes of frames."""
    gif = _save(Image.new("P", (side, side)), "GIF")
    (first,), end = gif_frames(gif)
    return gif[:first] + gif[first:end] * frames + b";"


def _unusual_bmps():
    """Name -> a BMP that TensorFlow refuses, or reads with other colors."""
    plain = _save(_smooth(6, 8).convert("RGBA"), "BMP")
    compressed = bytearray(_save(_smooth(6, 8).convert("L"), "BMP"))
    compressed[30] = 1
    masks = struct.pack("<III", 0xFF, 0xFF00, 0xFF0000)  # Red, green, blue.
    head = bytearray(plain[:54])
    head[2:6], head[10:14] = (struct.pack("<I", x + 12) for x in (len(plain), 54))
    head[14:18], head[30:34] = struct.pack("<I", 52), struct.pack("<I", 3)
    beyond = bytearray(_save(_smooth(6, 8).convert("L"), "BMP"))
    beyond[14:18] = struct.pack("<i", 2**31 - 15)
    return {
        "BMP of 1 bit": _save(_smooth(6, 8).convert("1"), "BMP"),
        "BMP with compression": bytes(compressed),
        "BMP with other masks": bytes(head) + masks + plain[54:],
        "BMP with headers beyond its end": bytes(beyond),
    }


def readable():
    """Name -> (suffix, bytes, RGB pixels, largest difference from them)."""
    rgb = _smooth(24, 30)
    alpha = rgb.copy()
    alpha.putalpha(Image.fromarray(pixels(24, 30)[..., 0]))
    transparent = _frames("RGBA")
    transparent[0].putalpha(100)
    deep = np.random.default_rng(0).integers(0, 2**16, (5, 4)).astype(np.uint16)
    turned = Image.Exif()
    turned[0x0112] = 6  # orientation: rotated by 90 degrees
    red = np.asarray(_frames()[0])
    lossless = {"lossless": True, "exact": True}

    def jpeg(image, **options):
        return _save(image, "JPEG", quality=95, subsampling=0, **options)

    cmyk = rgb.convert("CMYK")
    plain, wide = np.asarray(rgb), _smooth(1, 20_000)
    gray = rgb.convert("L")
    palette = rgb.convert("P", palette=Image.Palette.ADAPTIVE)
    few = rgb.convert("P", palette=Image.Palette.ADAPTIVE, colors=5)
    return {
        "1 x 1": ("png", encode(pixels(1, 1), "PNG"), pixels(1, 1), 0),
        "1 x 20000": ("png", _save(wide, "PNG"), np.asarray(wide), 0),
        "20000 x 1": ("jpg", jpeg(wide.transpose(Image.Transpose.ROTATE_90)), None, 0),
        "CMYK": ("jpg", jpeg(cmyk), np.asarray(cmyk.convert("RGB")), 12),
        "gray JPEG": ("jpeg", jpeg(gray), np.asarray(gray.convert("RGB")), 6),
        "palette": ("png", _save(palette, "PNG"), np.asarray(palette.convert("RGB")), 0),
        "16 bit": ("png", encode(deep, "PNG"), (deep >> 8)[..., None].repeat(3, -1), 0),
        "RGBA": ("png", _save(alpha, "PNG"), plain, 0),
        "RGBA WebP": ("webp", _save(alpha, "WEBP", **lossless), plain, 0),
        "animated GIF": ("gif", _animation(_frames(), "GIF"), red, 0),
        "GIF with a huge second frame": ("gif", _later_frame_is_huge(), red, 0),
        "GIF beside its canvas": ("gif", _frame_beside_the_canvas(), red, 0),
        "animated WebP": ("webp", _animation(_frames(), "WEBP", lossless=True), red, 0),
        "animated WebP with alpha": ("webp", _animation(transparent, "WEBP", **lossless), red, 0),
        "BMP with a palette": ("bmp", _save(palette, "BMP"), np.asarray(palette.convert("RGB")), 0),
        "BMP with few colors": ("bmp", _save(few, "BMP"), np.asarray(few.convert("RGB")), 0),
        "EXIF": ("jpg", jpeg(rgb, exif=turned), plain, 8),
        "PNG named .jpg": ("jpg", _save(rgb, "PNG"), plain, 0),
    }


def unreadable():
    """Name -> (suffix, bytes) of small files that must be rejected."""
    files = {name: ("jpg", data) for name, data in broken().items()}
    picture = _smooth(40, 30)
    for file_format in ("JPEG", "GIF", "BMP", "WEBP"):
        data = _save(picture, file_format)
        files[f"{file_format} cut off"] = (file_format.lower(), data[: len(data) * 2 // 3])
        files[f"{file_format} without its end"] = (file_format.lower(), data[:20])
    files |= {name: ("bmp", data) for name, data in _unusual_bmps().items()}
    animation = _animation(_frames(), "WEBP", lossless=True)
    files["animated WebP cut off"] = ("webp", animation[:60])
    files["RIFF"] = ("webp", b"RIFF\0\0\0\0WEBPwhatever")
    files["GIF that only announces"] = ("gif", b"GIF89a" + bytes(7) + b"\x21\xf9\0" * 10_000)
    files |= {f"huge {name}": (name.split()[0].lower(), data) for name, data in huge().items()}
    return files

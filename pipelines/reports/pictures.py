"""Pictures of maps and images as arrays, uint8 `[h, w, 3]`; PNG and JPEG of them."""

import base64

import numpy as np
import tensorflow as tf

from pipelines.reports import charts
from vit_tf.analysis import inspection

# The shorter pictures are enlarged to about this side, in pixels.
SIDE = 224
# Longer side of the pictures inside the page.
_ON_PAGE = 200
# Of JPEG; at 80 the pictures of attention heads are a third larger.
_QUALITY = 70
_CROP_COLOR = (255, 64, 32)
_WHITE = 255


def enlarged(image, side=SIDE):
    """The image with every pixel repeated, so that its longer side is about `side`."""
    times = max(1, round(side / max(image.shape[:2])))
    return image.repeat(times, axis=0).repeat(times, axis=1)


def shrunk(image, most):
    """The image, an array or a tensor, with a longer side of at most `most` pixels: an array."""
    scale = most / max(image.shape[:2])
    if scale >= 1:
        return np.asarray(image)
    size = [max(1, round(side * scale)) for side in image.shape[:2]]
    small = tf.image.resize(image, size, method="area").numpy()
    return np.round(small).astype(np.uint8)


def with_crop(image, box, side=2 * SIDE):
    """A small copy of the original, with the part that the model sees in a frame."""
    small = enlarged(shrunk(image, side))
    scale = np.array(small.shape[:2] * 2) / (*image.shape[:2], *image.shape[:2])
    top, left, bottom, right = np.round(np.array(box) * scale).astype(int)
    picture = (small * 0.55).astype(np.uint8)
    picture[top:bottom, left:right] = small[top:bottom, left:right]
    width = max(1, max(small.shape[:2]) // 150)
    frame = np.zeros(small.shape[:2], bool)
    frame[top:bottom, left:right] = True
    frame[top + width : bottom - width, left + width : right - width] = False
    picture[frame] = _CROP_COLOR
    return picture


def heat(values, low=None, high=None):
    """A map in the colors of the charts: violet is its smallest value, yellow its largest."""
    if low is None:
        scaled = inspection.to_unit_range(values)
    else:
        scaled = np.clip((np.asarray(values) - low) / (high - low), 0, 1)
    return _to_uint8(charts.colors(scaled)[..., :3])


def heats(maps):
    """Maps `[..., rows, columns]` as `heat` draws them, each on its own scale."""
    return _to_uint8(charts.colors(inspection.to_unit_range(maps, axis=(-2, -1)))[..., :3])


def overlay(values, seen, cell):
    """A map over the gray image: each cell of the map covers its pixels.

    Args:
        values: float `[rows, columns]`.
        seen: uint8 `[h, w, 3]`, the pixels that the model saw.
        cell: (height, width) of a cell in pixels.
    """
    colored = _on_pixels(heat(values), seen.shape[:2], cell)
    gray = np.repeat(seen.mean(axis=2, keepdims=True), 3, axis=2)
    picture = gray.copy()  # Pixels beyond the last whole patch have no color.
    inside = picture[: colored.shape[0], : colored.shape[1]]
    inside[:] = 0.45 * inside + 0.55 * colored
    return enlarged(_round(picture))


def masked(rollout, seen, patch_pixels):
    """The image times the mask of its rollout, as in the paper's figures 6 and 14."""
    mask = inspection.rollout_mask(rollout, seen.shape[:2], patch_pixels)
    return enlarged(_round(seen * mask[..., None]))


def components(values, size, cell):
    """Up to three components as red, green and blue, on the pixels of an image.

    Args:
        values: float `[rows, columns, 1 to 3]` in [0, 1].
        size: (height, width) of the image.
        cell: (height, width) of a cell in pixels.
    """
    colors = np.zeros((*values.shape[:2], 3))
    colors[..., : values.shape[2]] = values
    return enlarged(_on_pixels(_to_uint8(colors), size, cell))


def tiles(images, columns, gap=1):
    """Pictures of equal size side by side, row after row, with white gaps.

    Args:
        images: uint8 `[n, h, w, 3]`.
        columns: pictures in a row.
        gap: width of the gaps, in pixels.
    """
    count, height, width, _ = images.shape
    rows = -(-count // columns)
    full = np.full((rows * columns, height + gap, width + gap, 3), _WHITE, np.uint8)
    full[:count, :height, :width] = images
    grid = full.reshape(rows, columns, height + gap, width + gap, 3).swapaxes(1, 2)
    return grid.reshape(rows * (height + gap), columns * (width + gap), 3)[:-gap, :-gap]


def heads(maps):
    """A tile for every head: rows are layers, columns heads; each has its own scale.

    Args:
        maps: float `[layers, heads, rows, columns]`.
    """
    colored = heats(maps)
    return enlarged(tiles(colored.reshape(-1, *colored.shape[2:]), maps.shape[1]), 2 * SIDE)


def filters(kernels, columns=7):
    """Filters `[n, P, P, 3]`, each scaled to its own range."""
    scaled = _to_uint8(inspection.to_unit_range(kernels, axis=(1, 2, 3)))
    return enlarged(tiles(scaled, columns), 2 * SIDE)


def similarity(maps):
    """A tile for every position, from -1 (violet) to 1 (yellow): `[rows, columns, r, c]`."""
    colored = heat(maps, -1, 1)
    picture = tiles(colored.reshape(-1, *colored.shape[2:]), maps.shape[1])
    return shrunk(enlarged(picture, 2 * SIDE), 4 * SIDE)


def png(picture) -> bytes:
    """The picture as a PNG file."""
    return tf.io.encode_png(picture).numpy()


def page_uri(picture, most=_ON_PAGE) -> str:
    """A small copy of the picture for a page: the smaller one of a PNG and a JPEG."""
    small = shrunk(np.ascontiguousarray(picture), most)
    forms = {"png": png(small), "jpeg": tf.io.encode_jpeg(small, quality=_QUALITY).numpy()}
    kind = min(forms, key=lambda name: len(forms[name]))
    return f"data:image/{kind};base64,{base64.b64encode(forms[kind]).decode('ascii')}"


def _on_pixels(picture, size, cell):
    """Each pixel repeated on its cell; the last cells may be cut off by the end of the image."""
    return picture.repeat(cell[0], axis=0).repeat(cell[1], axis=1)[: size[0], : size[1]]


def _to_uint8(values):
    """Values in [0, 1] as uint8."""
    return _round(255 * np.asarray(values))


def _round(values):
    return np.clip(np.round(values), 0, 255).astype(np.uint8)

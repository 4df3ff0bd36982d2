"""Converts decoded images to the size and the value range that a model reads.

The rules of cropping are described in `vit_tf.preprocessing`; shapes are `[..., H, W, C]`.
"""

import numpy as np
import tensorflow as tf

from vit_tf.images.value_range import MEAN, STD

# Interpolation -> kernel of the op, and its radius in pixels when it enlarges. Both kernels are
# Pillow's; the cubic one has a = -0.5.
_KERNELS = {"bilinear": ("triangle", 1), "bicubic": ("keyscubic", 2)}
# Largest number of pixels between the two passes, 100 MB. Only images with a very long side exceed
# it, such as 60,000 x 10.
_MOST_PIXELS = 2**23
# Reduction from which filters that average read only every k-th pixel of a side. It bounds their
# weights, which would take 2 GB for 1 x 134,217,728 pixels. To 224 pixels it begins at 57,344.
_MOST_REDUCTION = 128


def resize(images, size, interpolation="bilinear", antialias=False):
    """Stretches images `[..., H, W, C]` to `size`, (height, width).

    Returns:
        float32, values 0 .. 255.
    """
    if interpolation == "area" or (interpolation == "bilinear" and not antialias):
        return tf.cast(tf.image.resize(images, size, interpolation, antialias=False), tf.float32)
    return _resample(images, tf.constant(size, tf.int64), [0, 0], size, (interpolation, antialias))


def resize_and_crop(
    images, rule, resize_to, crop_size, interpolation="bilinear", antialias=False, *, place=None
):
    """Resizes by a rule and returns the crop at the center or `place`: float32, 0 .. 255.

    Only the pixels that the crop needs are read. Resizing the whole image first would take 15 GB
    for an image of 1 x 20,000 pixels.

    Args:
        images: uint8 or floating.
        rule: "resize_small", "shortest_edge", "center" or "squash".
        resize_to: side before the crop, in pixels.
        crop_size: (height, width) of the result.
        interpolation: "bilinear", "bicubic" or "area".
        antialias: whether to filter as Pillow does.
        place: float32 `[2]` in [0, 1), row and column of the crop as parts of the room that it has.
            None: the center.
    """
    resized, start = _place(tf.shape(images, tf.int64)[-3:-1], rule, resize_to, crop_size)
    if place is not None:
        room = tf.maximum(resized - tf.constant(crop_size, tf.int64), 0)
        drawn = tf.cast(place * tf.cast(room + 1, tf.float32), tf.int64)
        # Rounding in float32 may give `room + 1`.
        start = tf.minimum(drawn, room)
    if interpolation == "bilinear" and not antialias:
        return _bilinear_crop(images, resized, start, crop_size)
    if interpolation == "area":
        return _area_crop(images, resized, start, crop_size)
    return _resample(images, resized, start, crop_size, (interpolation, antialias))


def crop_box(size, rule, resize_to, crop_size) -> tuple[float, float, float, float]:
    """The part of an image of `size` that `resize_and_crop` returns: top, left, bottom, right.

    The sides are floats, in pixels of the image.
    """
    resized, start = _place(tf.constant(size, tf.int64), rule, resize_to, crop_size)
    scale = np.asarray(size) / resized.numpy()
    top, left = start.numpy() * scale
    bottom, right = (start.numpy() + crop_size) * scale
    return float(top), float(left), float(bottom), float(right)


def to_model_range(pixels, mean=MEAN, std=STD, dtype="float32"):
    """Maps values 0 .. 255 to (v / 255 - mean) / std, by default in [-1, 1], or to uint8.

    It is computed after every resize, in float.
    """
    pixels = tf.convert_to_tensor(pixels)
    if dtype == "uint8":
        return pixels if pixels.dtype == tf.uint8 else to_uint8(pixels)
    # Graphs replace a division by a constant with this product. With it, eager results are equal.
    center, scale = _per_color([255 * m for m in mean]), _per_color([1 / (255 * s) for s in std])
    return (tf.cast(pixels, tf.float32) - center) * scale


def to_uint8(pixels):
    """Rounds floats 0 .. 255 to uint8; halves are rounded up."""
    return tf.cast(pixels + 0.5, tf.uint8)


def _per_color(values):
    """A number if all colors have the same, which is faster, else float32 `[3]`."""
    return values[0] if len(set(values)) == 1 else tf.constant(values)


def _place(size, rule, resize_to, crop_size):
    """Size of the whole resized image and start of the crop in it, both int64 `[2]`.

    1 x 9,000,000 pixels become 256 x 2,304,000,000; only the crop is computed.
    """
    if rule == "resize_small":
        ratio = tf.cast(resize_to, tf.float32) / tf.cast(tf.reduce_min(size), tf.float32)
        resized = tf.cast(tf.round(tf.cast(size, tf.float32) * ratio), tf.int64)
    elif rule == "squash":
        resized = tf.constant([resize_to, resize_to], tf.int64)
    else:
        resized = size * resize_to // tf.reduce_min(size)
    rest = resized - tf.constant(crop_size, tf.int64)
    if rule in ("center", "squash"):
        return resized, tf.cast(tf.round(tf.cast(rest, tf.float64) / 2), tf.int64)
    return resized, rest // 2


def _bilinear_crop(images, resized, start, crop_size):
    """The crop of a bilinear resize without antialiasing."""
    size = tf.shape(images)[-3:-1]
    taps = [_taps(size[i], resized[i], start[i], crop_size[i]) for i in range(2)]
    (top, bottom), (left, right) = [(lower[0], upper[-1] + 1) for lower, upper, _ in taps]
    images = images[..., top:bottom, left:right, :]

    for axis, (lower, upper, fraction) in zip((-3, -2), taps, strict=True):
        before = tf.cast(tf.gather(images, lower - lower[0], axis=axis), tf.float32)
        after = tf.cast(tf.gather(images, upper - lower[0], axis=axis), tf.float32)
        fraction = tf.reshape(fraction, [-1] + [1] * (-axis - 1))
        images = before + (after - before) * fraction
    return images


def _taps(length, resized, start, crop):
    """Bilinear taps of `crop` pixels from `start` of an axis resized from `length` to `resized`.

    Samples are at pixel centers and are clamped to the border, as in `tf.image.resize`.

    Returns:
        Source pixels before and after each, int32 `[crop]`, and the weight of the second.
    """
    scale = tf.cast(length, tf.float64) / tf.cast(resized, tf.float64)
    source = (tf.range(crop, dtype=tf.float64) + tf.cast(start, tf.float64) + 0.5) * scale - 0.5
    lower = tf.floor(source)
    index = tf.cast(lower, tf.int32)
    fraction = tf.cast(source - lower, tf.float32)
    return tf.maximum(index, 0), tf.minimum(index + 1, length - 1), fraction


def _thinned(images, resized):
    """Keeps every k-th pixel of a side that shrinks by at least k times `_MOST_REDUCTION`."""
    steps = tf.shape(images, tf.int64)[-3:-1] // (resized * _MOST_REDUCTION)
    steps = tf.maximum(steps, 1)
    thinned = images[..., :: steps[0], :: steps[1], :]
    thinned.set_shape([*images.shape[:-3], None, None, images.shape[-1]])
    return thinned


def _area_crop(images, resized, start, crop_size):
    """The crop of a resize in which each pixel is the mean over the area that it covers."""
    images = _thinned(images, resized)
    windows, weights = [], []
    for axis in range(2):
        length = tf.shape(images)[axis - 3]
        scale = tf.cast(length, tf.float64) / tf.cast(resized[axis], tf.float64)
        places = start[axis] + tf.range(crop_size[axis] + 1, dtype=tf.int64)
        edges = tf.cast(places, tf.float64) * scale
        first = tf.cast(edges[0], tf.int32)
        last = tf.minimum(tf.cast(tf.math.ceil(edges[-1]), tf.int32), length)
        pixels = tf.cast(tf.range(first, last), tf.float64)
        covered = tf.minimum(edges[1:, None], pixels + 1) - tf.maximum(edges[:-1, None], pixels)
        windows.append(slice(first, last))
        weights.append(tf.cast(tf.maximum(covered, 0) / scale, tf.float32))
    images = tf.cast(images[(..., *windows, slice(None))], tf.float32)
    images = tf.einsum("nh,...hwc->...nwc", weights[0], images)
    return tf.einsum("nw,...hwc->...hnc", weights[1], images)


def _resample(images, resized, start, crop_size, kind):
    """A separable resize: with antialiasing as in Pillow, else with a kernel of fixed width.

    Pillow widens the kernel by the factor of the reduction, resizes widths before heights, and
    rounds the result of each pass to 0 .. 255. Results equal Pillow's up to ties in rounding.
    (Pillow 13 resizes heights first if they shrink much more than widths.)

    Args:
        images: uint8 or floating, rank 3 or 4.
        resized: size of the whole resized image, int64 `[2]`.
        start: (top, left) of the crop in it.
        crop_size: (height, width) of the result.
        kind: (interpolation, antialias).
    """
    (kernel, radius), antialias = _KERNELS[kind[0]], kind[1]
    rank = images.shape.rank
    images = images[None] if rank == 3 else images
    images = _thinned(images, resized) if antialias else images
    scales = tf.unstack(resized / tf.shape(images, tf.int64)[1:3])
    shifts = []
    for axis, scale in enumerate(scales):
        begin = tf.cast(start[axis], tf.float64)
        margin = radius * tf.maximum(1 / scale, 1) + 1
        first = tf.maximum(tf.cast(begin / scale - margin, tf.int32), 0)
        last = tf.cast((begin + crop_size[axis]) / scale + margin, tf.int32)
        window = [slice(None)] * 2 + [slice(first, last)]
        images = images[tuple(window[1 - axis :])]
        shifts.append(tf.cast(first, tf.float64) * scale - begin)

    def one_axis(images, axis):
        def at_axis(value, other):
            return tf.stack([value, other] if axis == 0 else [other, value])

        images = tf.raw_ops.ScaleAndTranslate(
            images=images,
            size=at_axis(crop_size[axis], tf.shape(images)[2 - axis]),
            scale=tf.cast(at_axis(scales[axis], 1.0), tf.float32),
            translation=tf.cast(at_axis(shifts[axis], 0.0), tf.float32),
            kernel_type=kernel,
            antialias=antialias,
        )
        images = tf.floor(images + 0.5) if antialias else images
        return tf.clip_by_value(images, 0.0, 255.0)

    between = tf.cast(tf.shape(images)[1], tf.int64) * crop_size[1]
    images = tf.cond(
        between > _MOST_PIXELS,
        lambda: one_axis(one_axis(images, 0), 1),
        lambda: one_axis(one_axis(images, 1), 0),
    )
    return images[0] if rank == 3 else images

"""RandAugment (Cubuk et al., 2020) with AugReg's pool and levels (Steiner et al., 2022, section 3).

Each layer applies one of 16 operations, drawn uniformly. All operations use the same magnitude `m`,
with 10 as the design value. Operations map uint8 `[h, w, 3]` of static shape to the same shape and
dtype. Random draws are arguments, so that an operation is a pure function. If Pillow has the
operation, results are rounded as in Pillow. Sums are over integers, so that their result does not
depend on the number of threads.
"""

import math

import numpy as np
import tensorflow as tf

# Value of empty pixels: gray, which has little effect on operations on contrast.
FILL = 128


def rand_augment(image, seed, layers, magnitude, rules="exact"):
    """Applies `layers` operations of the pool, each drawn uniformly and always applied.

    Magnitude 0 is not the identity: color factors are 0.1, and Posterize keeps 0 bits.

    Args:
        image: uint8 `[h, w, 3]` of static shape.
        seed: int64 tensor `[2]`.
        layers: number of operations; the same one may be drawn again.
        magnitude: `m`, from 0 to `config.augmentation.MAX_MAGNITUDE`.
        rules: "exact" or "published", see `pool`.

    Returns:
        uint8 `[h, w, 3]`.
    """
    if not layers:
        return image
    operations = pool(magnitude, rules)
    draws = tf.random.stateless_uniform([layers, 4], seed)
    for layer in range(layers):
        draw = draws[layer]
        choice = tf.cast(draw[0] * len(operations), tf.int32)
        sign = tf.where(draw[1] < 0.5, -1.0, 1.0)
        branches = [
            lambda image=image, run=run, sign=sign, draw=draw: run(image, sign, draw[2:])
            for run in operations.values()
        ]
        image = tf.ensure_shape(tf.switch_case(choice, branches), image.shape)
    return image


def pool(magnitude, rules="exact"):
    """Returns the 16 operations at a magnitude.

    Args:
        magnitude: `m`.
        rules: "exact", or "published": as AugReg's graph code computes them (docs/paper.md F.7).
            Solarize's threshold wraps modulo 256, Posterize keeps at least one bit, and Contrast
            starts from the number of pixels over 256, at most 255, instead of the mean gray.

    Returns:
        Dict from the published name to a function of an image, a sign (1.0 or -1.0: direction of
        geometric operations) and two numbers in [0, 1) (place of the square of Cutout).
    """
    level = magnitude / 10
    factor = 1.8 * level + 0.1
    bits, threshold, start = int(4 * level), int(256 * level), mean_gray
    if rules == "published":
        bits, threshold, start = max(bits, 1), threshold % 256, _pixels_over_256
    return {
        "AutoContrast": lambda image, sign, place: auto_contrast(image),
        "Equalize": lambda image, sign, place: equalize(image),
        "Invert": lambda image, sign, place: 255 - image,
        "Rotate": lambda image, sign, place: rotate(image, sign * 30 * level),
        "Posterize": lambda image, sign, place: posterize(image, bits),
        "Solarize": lambda image, sign, place: solarize(image, threshold),
        "Color": lambda image, sign, place: color(image, factor),
        "Contrast": lambda image, sign, place: blend(start(image), image, factor),
        "Brightness": lambda image, sign, place: brightness(image, factor),
        "Sharpness": lambda image, sign, place: sharpness(image, factor),
        "ShearX": lambda image, sign, place: shear(image, sign * 0.3 * level, 0.0),
        "ShearY": lambda image, sign, place: shear(image, 0.0, sign * 0.3 * level),
        "TranslateX": lambda image, sign, place: translate(image, sign * 100 * level, 0.0),
        "TranslateY": lambda image, sign, place: translate(image, 0.0, sign * 100 * level),
        "Cutout": lambda image, sign, place: cutout(image, int(40 * level), place),
        "SolarizeAdd": lambda image, sign, place: solarize_add(image, int(110 * level)),
    }


def auto_contrast(image):
    """Stretches each channel to 0 .. 255; a channel with only one value is unchanged."""
    low, high = (
        tf.cast(reduce(tf.reshape(image, [-1, 3]), axis=0), tf.float64)[:, None]
        for reduce in (tf.reduce_min, tf.reduce_max)
    )
    # With float64 and this order of operations, results are rounded as in Pillow's Python code.
    scale = 255.0 / tf.maximum(high - low, 1.0)
    values = np.arange(256, dtype=np.float64)[None]
    table = tf.clip_by_value(values * scale + -low * scale, 0.0, 255.0)
    return _look_up(image, tf.cast(tf.where(high > low, table, values), tf.uint8))


def equalize(image):
    """Maps the values of each channel so that its histogram becomes as flat as possible."""
    bins = tf.math.bincount(_channel_values(image), minlength=768, maxlength=768)
    counts = tf.reshape(bins, [3, 256])
    highest = tf.reduce_max(tf.where(counts > 0, np.arange(256)[None], 0), axis=1)
    most = tf.gather(counts, highest, axis=1, batch_dims=1)[:, None]
    step = (tf.reduce_sum(counts, axis=1, keepdims=True) - most) // 255
    below = tf.cumsum(counts, axis=1, exclusive=True)
    table = tf.minimum((step // 2 + below) // tf.maximum(step, 1), 255)
    table = tf.where(step > 0, table, np.arange(256, dtype=np.int32)[None])
    return _look_up(image, tf.cast(table, tf.uint8))


def posterize(image, bits):
    """Keeps the upper `bits` of every value; 0 returns black, 8 and more return the image."""
    return tf.bitwise.bitwise_and(image, tf.constant(256 - 2 ** (8 - min(bits, 8)), tf.uint8))


def solarize(image, threshold):
    """Inverts the values from `threshold` on; 256 and more return the image."""
    if threshold > 255:
        return tf.identity(image)
    return tf.where(image < threshold, image, 255 - image)


def solarize_add(image, addition):
    """Adds `addition` to the values below 128; results are at most 255."""
    added = addition * tf.cast(image < 128, tf.float32)
    return tf.cast(tf.minimum(tf.cast(image, tf.float32) + added, 255.0), tf.uint8)


def color(image, factor):
    """Changes the saturation: factor 0 returns the gray image, 1 the image."""
    return blend(gray(image)[..., None], image, factor)


def brightness(image, factor):
    """Changes the brightness: factor 0 returns black, 1 the image."""
    return blend(0.0, image, factor)


def sharpness(image, factor):
    """Changes the sharpness: factor 0 returns the image smoothed by 3 x 3, except its border."""
    height, width, _ = image.shape
    if min(height, width) < 3:
        return tf.identity(image)
    values = tf.cast(image, tf.float32)
    rows = values[:-2] + values[1:-1] + values[2:]
    inner = values[1:-1, 1:-1]
    # The weights are 5 in the middle and 1 around it, so values are multiples of 1/13. These are
    # never halfway between two integers, so the rounding of halves does not matter.
    total = rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:] + 4 * inner
    smooth = tf.floor(total * (1 / 13) + 0.5)
    inner = blend(smooth, inner, factor)
    inner = tf.concat([image[1:-1, :1], inner, image[1:-1, -1:]], axis=1)
    return tf.concat([image[:1], inner, image[-1:]], axis=0)


def rotate(image, degrees):
    """Rotates the image around its center; nearest neighbor."""
    angle = degrees * (math.pi / 180)
    cos, sin = tf.cos(angle), tf.sin(angle)
    return _warp(image, [(cos, -sin, 0.0), (sin, cos, 0.0)], centered=True)


def shear(image, x, y):
    """Each pixel gets the value at (column + x * row, row + y * column); nearest neighbor."""
    return _warp(image, [(1.0, x, 0.0), (y, 1.0, 0.0)])


def translate(image, x, y):
    """Each pixel gets the value at (column + x, row + y); nearest neighbor."""
    return _warp(image, [(1.0, 0.0, x), (0.0, 1.0, y)])


def cutout(image, half, place):
    """Fills a square of side `2 half` around a random point with gray, clipped at the border."""
    height, width, _ = image.shape
    row, column = (
        tf.cast(draw * side, tf.int32) for draw, side in ((place[0], height), (place[1], width))
    )
    return fill_box(image, row - half, column - half, row + half, column + half, FILL)


def fill_box(image, top, left, bottom, right, values):
    """Returns the image with `values`, a number or another image, inside a box.

    Args:
        image: `[h, w, c]` of static shape.
        top, left, bottom, right: int32 scalars; bottom and right are exclusive. The box may reach
            outside the image.
        values: values inside the box, of the image's dtype; `[h, w, c]` or a number.
    """
    height, width, channels = image.shape
    # Columns are repeated per channel: broadcasting over the last axis takes five times longer.
    rows = tf.range(height)[:, None]
    columns = tf.constant(np.arange(width, dtype=np.int32).repeat(channels))[None]
    inside = ((rows >= top) & (rows < bottom)) & ((columns >= left) & (columns < right))
    inside = tf.reshape(inside, image.shape)
    return tf.where(inside, tf.broadcast_to(tf.cast(values, image.dtype), image.shape), image)


def gray(image):
    """Returns the ITU-R 601 luma, rounded as in Pillow: integers as float32 `[h, w]`."""
    # 16-bit fixed point: all sums are integers below 2**24, so they are exact in float32.
    weights = tf.constant([19595.0, 38470.0, 7471.0])
    luma = tf.linalg.matvec(tf.cast(image, tf.float32), weights)
    return tf.floor((luma + 32768.0) * 2.0**-16)


def mean_gray(image):
    """Returns the mean of `gray`, rounded to an integer; float32 scalar."""
    values = tf.cast(gray(image), tf.int32)
    count = tf.size(values, tf.int64)
    total = tf.reduce_sum(tf.cast(tf.reduce_sum(values, axis=1), tf.int64))
    return tf.cast((2 * total + count) // (2 * count), tf.float32)


def _pixels_over_256(image):
    """Returns the number of pixels over 256, rounded down and at most 255."""
    height, width, _ = image.shape
    return float(min(height * width // 256, 255))


def blend(start, image, factor):
    """Interpolates: factor 0 returns `start`, 1 the image; above 1 extrapolates.

    Args:
        start, image: values 0 .. 255 of shapes that broadcast.
        factor: number or scalar tensor, at least 0.

    Returns:
        uint8; clipped to 0 .. 255 and rounded down, as in Pillow.
    """
    mixed = start + factor * (tf.cast(image, tf.float32) - start)
    return tf.cast(tf.clip_by_value(mixed, 0.0, 255.0), tf.uint8)


def _channel_values(image):
    """Returns each value plus 256 times its channel, 0 .. 767, int32 `[h w 3]`."""
    flat = tf.reshape(image, [-1])
    # A constant of the image's size: broadcasting over the last axis takes five times longer.
    offsets = np.tile(np.array([0, 256, 512], np.int32), flat.shape[0] // 3)
    return tf.cast(flat, tf.int32) + offsets


def _look_up(image, table):
    """Maps the values of each channel with its row of `table`, uint8 `[3, 256]`."""
    values = tf.gather(tf.reshape(table, [-1]), _channel_values(image))
    return tf.reshape(values, image.shape)


def _warp(image, matrix, centered=False):
    """Each pixel gets the value of the pixel nearest to `matrix @ (column, row, 1)`.

    Args:
        image: uint8 `[h, w, 3]`.
        matrix: 2 x 3 numbers or scalar tensors.
        centered: whether coordinates start at the center of the image instead of its first pixel.
    """
    height, width, _ = image.shape
    middle = ((width - 1) / 2, (height - 1) / 2) if centered else (0.0, 0.0)
    columns = (tf.range(width, dtype=tf.float32) - middle[0])[None]
    rows = (tf.range(height, dtype=tf.float32) - middle[1])[:, None]
    column, row = (
        tf.cast(tf.floor((a * columns + b * rows) + (shift + (origin + 0.5))), tf.int32)
        for (a, b, shift), origin in zip(matrix, middle, strict=True)
    )
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    # Places outside the image use the index of one extra pixel, which is gray.
    index = tf.where(inside, row * width + column, height * width)
    pixels = tf.pad(tf.reshape(image, [-1, 3]), [[0, 1], [0, 0]], constant_values=FILL)
    return tf.gather(pixels, index)

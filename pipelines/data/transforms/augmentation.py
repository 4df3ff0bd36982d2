"""Random changes to training images, as functions of an explicit seed.

The seed of an example is from `stateless_random.example_seeds`: it depends on the seed of the run,
the step, and the slot in the global batch. Each operation adds its own number to this seed. So an
example gets the same crop on one device, on several replicas or hosts, after a restart, eagerly,
and inside `tf.data`.

Order: crop and resize, mirror, color jitter, RandAugment, normalization, random erasing; then
MixUp or CutMix on the batch (`mixing.py`).
"""

import functools

import tensorflow as tf

from pipelines.data.transforms.randaugment import (
    blend,
    fill_box,
    gray,
    mean_gray,
    rand_augment,
)
from vit_tf.images.decoding import DCT_METHODS, check_size, decode_if_not_jpeg, separate
from vit_tf.images.orientation import is_plain, orientation, stored_window, upright, upright_size
from vit_tf.images.resizing import resize, resize_and_crop, to_model_range, to_uint8

# One number per random operation. Never reuse a number.
_CROP, _FLIP, _JITTER, _RANDAUGMENT, _ERASING, _NOISE, _VERTICAL_FLIP = range(1, 8)

# Range of width over height of the random crop: TensorFlow's default, as in the reference code.
_ASPECT = (0.75, 1.33)
_ERASING_ATTEMPTS = 100


def augment(image_bytes, seed, preprocessing, options):
    """Decodes and augments an image.

    Args:
        image_bytes: scalar string tensor, an encoded image.
        seed: int64 tensor `[2]`, the seed of the example.
        preprocessing: `vit_tf.Preprocessing`: size, interpolation, antialiasing, mean and standard
            deviation, dtype, `exif`, `jpeg`; and for crop="none" the rule of the resize.
        options: `config.augmentation.Augmentation`.

    Returns:
        `[h, w, 3]`, the model's input: float32, in [-1, 1] unless `preprocessing` has another mean
        or deviation; or uint8.
    """
    changes_values = any(options.color_jitter) or options.randaugment_layers > 0
    if options.crop == "inception":
        image = resize(
            inception_crop(
                image_bytes, seed, options.crop_area, preprocessing.exif, preprocessing.jpeg
            ),
            preprocessing.image_size,
            preprocessing.interpolation,
            preprocessing.antialias,
        )
    elif options.crop == "random":
        image = random_crop(image_bytes, seed, preprocessing, options.crop_resize_to)
    else:
        image = preprocessing.resized(preprocessing.decode(image_bytes))
    image = tf.ensure_shape(image, [*preprocessing.image_size, 3])
    if options.flip:
        image = random_flip(image, seed)
    if options.vertical_flip:
        image = random_vertical_flip(image, seed)
    if changes_values:
        image = to_uint8(image)
        if any(options.color_jitter):
            image = jitter_colors(image, seed, options.color_jitter)
        image = rand_augment(
            image,
            _operation_seed(seed, _RANDAUGMENT),
            options.randaugment_layers,
            options.randaugment_magnitude,
            options.randaugment_rules,
        )
    model_range = preprocessing.mean, preprocessing.std, preprocessing.dtype
    image = to_model_range(image, *model_range)
    if options.random_erasing:
        image = erase(
            image,
            seed,
            options.random_erasing,
            options.random_erasing_area,
            options.random_erasing_aspect,
            options.random_erasing_fill,
            model_range,
        )
    return image


def inception_crop(image_bytes, seed, area, exif="ignore", jpeg="fast"):
    """Decodes a window of an image with random area, aspect ratio and place (Szegedy et al., 2015).

    If 100 attempts find no window that fits, returns the whole image. For a JPEG, only the window
    is decoded, which takes about a third less time. If the JPEG stores color at half resolution,
    values at the border of the window can differ by a few levels from the fully decoded image.

    Args:
        image_bytes: scalar string tensor, an encoded image.
        seed: int64 tensor `[2]`, the seed of the example.
        area: range (low, high) of the window's area, as a fraction of the image area.
        exif, jpeg: see `decode_image`; the window is one of the turned image.

    Returns:
        uint8 `[h, w, 3]`; size and place depend only on the seed and the image's size.
    """

    def crop_jpeg():
        shape = tf.io.extract_jpeg_shape(image_bytes)
        with tf.control_dependencies([check_size(shape[:2])]):
            shape, contents = tf.identity(shape), tf.identity(image_bytes)

        def crop():
            return _decode_window(contents, _window(shape, seed, area), jpeg)

        if exif == "ignore":
            return crop()
        return tf.cond(
            is_plain(contents), crop, lambda: _turned_cropper(area, jpeg)(contents, seed)
        )

    def crop_other():
        image = decode_if_not_jpeg(image_bytes)
        begin, size = _crop_box(tf.shape(image), seed, area)
        return tf.slice(image, begin, size)

    image = tf.cond(tf.io.is_jpeg(image_bytes), crop_jpeg, crop_other)
    image.set_shape([None, None, 3])
    return image


@functools.cache
def _turned_cropper(area, jpeg):
    """`inception_crop` of a JPEG that is turned."""

    @separate(tf.TensorSpec([], tf.string), tf.TensorSpec([2], tf.int64))
    def crop(image_bytes, seed):
        shape, turn = tf.io.extract_jpeg_shape(image_bytes), orientation(image_bytes)
        turned_shape = tf.concat([upright_size(shape[:2], turn), shape[2:]], axis=0)
        window = stored_window(_window(turned_shape, seed, area), shape[:2], turn)
        return upright(_decode_window(image_bytes, window, jpeg), turn)

    return crop


def _decode_window(image_bytes, window, jpeg):
    """A window (top, left, height, width) of a JPEG, uint8 `[h, w, 3]`."""
    return tf.io.decode_and_crop_jpeg(image_bytes, window, channels=3, dct_method=DCT_METHODS[jpeg])


def _window(shape, seed, area):
    """A random window of an image: top, left, height, width."""
    begin, size = _crop_box(shape, seed, area)
    return tf.concat([begin[:2], size[:2]], axis=0)


def random_crop(image_bytes, seed, preprocessing, side):
    """Decodes and resizes an image, and takes a window of the model's size at a random place.

    Args:
        image_bytes: scalar string tensor, an encoded image.
        seed: int64 tensor `[2]`, the seed of the example.
        preprocessing: `Preprocessing`: size of the window, decoding, rule and filter of the resize.
            With the rule "direct", both sides get the same length.
        side: side before the window, in pixels.

    Returns:
        float32 `[h, w, 3]`, 0 .. 255.
    """
    rule = "squash" if preprocessing.resize == "direct" else preprocessing.resize
    return resize_and_crop(
        preprocessing.decode(image_bytes),
        rule,
        side,
        preprocessing.image_size,
        preprocessing.interpolation,
        preprocessing.antialias,
        place=tf.random.stateless_uniform([2], _operation_seed(seed, _CROP)),
    )


def random_flip(image, seed):
    """Mirrors an image `[h, w, c]` left to right with probability 0.5."""
    draw = tf.random.stateless_uniform([], _operation_seed(seed, _FLIP))
    return tf.cond(draw < 0.5, lambda: tf.reverse(image, axis=[1]), lambda: image)


def random_vertical_flip(image, seed):
    """Mirrors an image `[h, w, c]` top to bottom with probability 0.5."""
    draw = tf.random.stateless_uniform([], _operation_seed(seed, _VERTICAL_FLIP))
    return tf.cond(draw < 0.5, lambda: tf.reverse(image, axis=[0]), lambda: image)


def jitter_colors(image, seed, strengths):
    """Changes brightness, contrast, saturation and hue at random, in this order.

    The first three interpolate with a factor from [max(0, 1 - s), 1 + s] between black, the mean
    gray or the gray image, and the image (see `blend`). Hue is rotated by a fraction of the circle
    from [-s, s]. After each change, values are clipped to 0 .. 255.

    Args:
        image: uint8 `[h, w, 3]`.
        seed: int64 tensor `[2]`, the seed of the example.
        strengths: four numbers `s`; 0 skips that change.

    Returns:
        uint8 `[h, w, 3]`; the result of each change is rounded down to integers, as in Pillow.
    """
    draws = tf.random.stateless_uniform([4], _operation_seed(seed, _JITTER))
    starts = (lambda values: 0.0, mean_gray, lambda values: gray(values)[..., None])
    for start, strength, draw in zip(starts, strengths, tf.unstack(draws), strict=False):
        if strength:
            low = max(0.0, 1.0 - strength)
            factor = low + draw * (1.0 + strength - low)
            image = blend(start(image), image, factor)
    if strengths[3]:
        turn = (draws[3] * 2 - 1) * strengths[3]
        # The op takes and returns floats in 0 .. 1.
        image = to_uint8(tf.image.adjust_hue(tf.cast(image, tf.float32) * (1 / 255), turn) * 255.0)
    return image


def erase(image, seed, probability, area, aspect, fill, model_range):
    """Erases a random rectangle (Zhong et al., 2020, algorithm 1).

    Area and aspect ratio are drawn uniformly. The first of 100 draws that fits into the image is
    placed uniformly. If no draw fits, the image is unchanged.

    Args:
        image: float32 or uint8 `[h, w, 3]` from `to_model_range`.
        seed: int64 tensor `[2]`, the seed of the example.
        probability: probability that the image gets a rectangle.
        area: range (low, high) of the rectangle's area, as a fraction of the image area.
        aspect: range (low, high) of height over width.
        fill: "noise": uniform values from black to white; "grey": between them.
        model_range: further arguments of `to_model_range`, which these values get too.

    Returns:
        `[h, w, 3]` in the dtype of the image.
    """
    height, width, channels = image.shape
    draws = tf.random.stateless_uniform([_ERASING_ATTEMPTS + 2, 2], _operation_seed(seed, _ERASING))
    shares = area[0] + draws[2:, 0] * (area[1] - area[0])
    aspects = aspect[0] + draws[2:, 1] * (aspect[1] - aspect[0])
    rows = tf.round(tf.sqrt(shares * float(height * width) * aspects))
    columns = tf.round(tf.sqrt(shares * float(height * width) / aspects))
    fits = (rows < height) & (columns < width)
    first = tf.argmax(tf.cast(fits, tf.int32))
    rows, columns = tf.cast(rows[first], tf.int32), tf.cast(columns[first], tf.int32)
    top, left = (
        tf.cast(draw * tf.cast(room + 1, tf.float32), tf.int32)
        for draw, room in ((draws[1, 0], height - rows), (draws[1, 1], width - columns))
    )

    def erased():
        shape = [height, width, channels]
        values = tf.fill(shape, 127.5)
        if fill == "noise":
            values = tf.random.stateless_uniform(shape, _operation_seed(seed, _NOISE), 0.0, 255.0)
        values = to_model_range(values, *model_range)
        return fill_box(image, top, left, top + rows, left + columns, values)

    return tf.cond((draws[0, 0] < probability) & fits[first], erased, lambda: image)


def _crop_box(shape, seed, area):
    """Returns begin `[3]` and size `[3]` of a random window of an image of this shape, int32."""
    begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
        shape,
        bounding_boxes=tf.zeros([1, 0, 4]),
        seed=_operation_seed(seed, _CROP),
        min_object_covered=0.0,
        aspect_ratio_range=_ASPECT,
        area_range=area,
        max_attempts=100,
        use_image_if_no_bounding_boxes=True,
    )
    # The size of the channel axis is -1, which means "all" in tf.slice.
    return begin, size


def _operation_seed(seed, operation):
    """Returns the seed `[2]` of one operation for an example."""
    return seed + tf.constant([0, operation], tf.int64)

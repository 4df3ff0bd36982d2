"""Decodes many images; one that cannot be decoded does not affect the others.

Training, exported models and `predict` use it. Shapes: `B` images, `h x w` pixels of the model's
input.

Values v of 16 bits become v // 256, as if images used all of 0 .. 65535. Cameras and scanners store
8 to 14 bits so, too: 0 .. 255 becomes black, and 0 .. 4095 becomes 0 .. 15. Reports count them.
"""

import os

import numpy as np
import tensorflow as tf

from pipelines.errors import first_line
from vit_tf.images.decoding import MAX_PIXELS, decode_image
from vit_tf.images.image_file import foreign_format

# Images that are given to TensorFlow at a time, for each core. A core decodes one of them after the
# other. With only one, cores wait for the thread that hands out images, and at the end of a batch
# for its slowest image. That is long beside other processes, where two cores worked 91 % of the
# time and 98 % with 16, and with many cores and small batches; short on two cores alone (99 %).
_IMAGES_PER_CORE = 16
# With `skips_bad_images`, images are decoded in groups of this size, within a group one after the
# other. Smaller groups are slower; larger groups need more memory, because each core holds a few.
_GROUP = 32
# Values of an image of 16 bits, if they are as near to each other as values of 14 bits.
_NARROW_SPAN = 2**14
# What is said about such images.
NARROW = (
    "values in less than a quarter of 0 .. 65535, of which only the high byte is read: they become "
    "dark or flat. Stretch the values, or save 8 bits"
)


def decode_error(image_bytes):
    """Returns the reason why the bytes of an image cannot be decoded; None if they can."""
    if not image_bytes:  # See `sources.files.FileSource`.
        return "it is empty, too large or cannot be opened"
    try:
        decode_image(tf.constant(image_bytes))
    except tf.errors.OpError as error:
        return foreign_format(image_bytes) or first_line(error)
    return None


@tf.function(input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)
def decoded_sizes(images):
    """Decodes encoded images, string `[n]`, and keeps their sizes.

    Returns:
        Height and width, int32 `[n, 2]`, zero where decoding failed; and bool `[n]`, true where
        decoding succeeded.
    """
    tried = map_ignoring_errors(
        lambda image: tf.shape(decode_image(image))[:2], images, [2], tf.data.AUTOTUNE
    )
    return tried.get_single_element()


def is_deep(data: bytes) -> bool:
    """Whether a file is a PNG with 16 bits for a value; its first bytes are enough."""
    return data.startswith(b"\x89PNG\r\n\x1a\n") and data[24:25] == b"\x10"


def is_narrow(data: bytes) -> bool:
    """Whether a file is such a PNG, and few levels are left of its colors, but they do differ."""
    width, height = (int.from_bytes(data[begin : begin + 4], "big") for begin in (16, 20))
    if not is_deep(data) or width * height > MAX_PIXELS:
        return False
    try:
        pixels = tf.io.decode_png(data, dtype=tf.uint16).numpy()
    except tf.errors.OpError:
        return False
    if pixels.shape[2] in (2, 4):
        pixels = pixels[..., :-1]  # Without alpha.
    return 0 < int(np.ptp(pixels)) < _NARROW_SPAN


def decode_batch(image_bytes, preprocessing, max_pixels=MAX_PIXELS):
    """Decodes and preprocesses images of mixed formats and sizes; bad ones become zeros.

    Args:
        image_bytes: string `[B]`.
        preprocessing: `vit_tf.Preprocessing`.
        max_pixels: images with more pixels are not decoded.

    Returns:
        float32 `[B, h, w, 3]`, the model's input, zero where decoding failed; and bool `[B]`, true
        where decoding succeeded.
    """
    shape = (*preprocessing.image_size, 3)
    tried = map_ignoring_errors(
        lambda data: preprocessing(preprocessing.decode(data, max_pixels)),
        image_bytes,
        shape,
        tf.data.AUTOTUNE,
    )
    images, valid = tried.get_single_element()
    return tf.ensure_shape(images, [None, *shape]), tf.ensure_shape(valid, [None])


def cores():
    """The number of processor cores of this process; each decodes one image at a time."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def decode_batches(examples, decode, batch_size, preprocessing, skips_bad_images):
    """Decodes images in parallel and makes batches.

    With `skips_bad_images`, takes 5 % more CPU time (1.06 against 1.01 ms for a JPEG of ImageNet's
    size with Inception crop, in batches of 32), and 7 % more with batches above `_GROUP`, which are
    copied once more.

    Args:
        examples: dataset of examples with image (bytes), seed and weight.
        decode: maps the bytes and the seed of an example to an image; pure TensorFlow.
        batch_size: size of the batches that are returned.
        preprocessing: the `Preprocessing` that `decode` applies.
        skips_bad_images: whether images that cannot be decoded become black and get weight 0; else
            they raise an error.

    Returns:
        Dataset of batches of the examples, with decoded images and without the seeds.
    """
    if not skips_bad_images:

        def decode_example(example):
            image = decode(example["image"], example.pop("seed"))
            return {**example, "image": image}

        images = examples.map(decode_example, _IMAGES_PER_CORE * cores(), deterministic=True)
        return images.batch(batch_size, drop_remainder=True)

    group = min(_GROUP, batch_size)
    shape, black = (*preprocessing.image_size, 3), preprocessing.normalized(tf.zeros([3]))

    def decode_group(rows):
        rows = dict(rows)
        weight, columns = rows.pop("weight"), {key: rows.pop(key) for key in ("image", "seed")}
        tried = map_ignoring_errors(lambda row: decode(row["image"], row["seed"]), columns, shape)

        def blacken(image, valid):
            image = tf.cond(
                tf.reduce_all(valid),
                lambda: image,
                lambda: tf.where(valid[:, None, None, None], image, black),
            )
            image = tf.ensure_shape(image, [weight.shape[0], *shape])
            return {**rows, "image": image, "weight": tf.where(valid, weight, 0.0)}

        return tried.map(blacken)

    groups = examples.batch(group, drop_remainder=group == batch_size)
    # Works as a parallel map, because each inner dataset has one element. A map with
    # `Dataset.get_single_element` would also work, but op determinism runs it in one thread.
    images = groups.interleave(
        decode_group,
        cycle_length=cores(),
        num_parallel_calls=cores(),
        deterministic=True,
    )
    return images if group == batch_size else images.rebatch(batch_size, drop_remainder=True)


def map_ignoring_errors(function, rows, shape, num_parallel_calls=None):
    """Applies a function that may fail to each of some rows.

    Args:
        function: maps a row to a tensor of numbers; pure TensorFlow.
        rows: tensor `[n, ...]` or structure of such tensors.
        shape: shape of the tensor that `function` returns.
        num_parallel_calls: see `tf.data.Dataset.map`; None runs one row after the other.

    Returns:
        Dataset with one element: `[n, *shape]` in the dtype of the results, zero where the function
        failed; and bool `[n]`, true where the function succeeded.
    """
    # TensorFlow has no "try". A tf.data pipeline can drop rows that fail; each row carries its
    # index, which shows afterwards which rows are left.
    count = tf.shape(tf.nest.flatten(rows)[0], tf.int64)[0]
    tried = tf.data.Dataset.from_tensor_slices((tf.range(count), rows)).map(
        lambda index, row: (index, function(row)), num_parallel_calls=num_parallel_calls
    )
    # One extra row, so that the batch is never empty.
    zeros = tf.zeros([1, *shape], tried.element_spec[1].dtype)
    last = tf.data.Dataset.from_tensor_slices((count[None], zeros))

    def scatter(index, outputs):
        index, outputs = index[:-1], outputs[:-1]
        valid = tf.scatter_nd(index[:, None], tf.ones_like(index, tf.bool), [count])
        outputs = tf.cond(
            tf.reduce_all(valid),
            lambda: outputs,
            lambda: tf.scatter_nd(index[:, None], outputs, tf.stack([count, *shape])),
        )
        return outputs, valid

    return tried.ignore_errors().concatenate(last).batch(count + 1).map(scatter)

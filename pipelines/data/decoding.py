"""Decodes many images; one that cannot be decoded does not affect the others.

Training, exported models and `predict` use it. Shapes: `B` images, `h x w` pixels of the model's
input.
"""

import os

import tensorflow as tf

from pipelines.errors import first_line
from vit_tf.images.decoding import decode_image

# Images are decoded in groups of this size, within a group one after the other. Smaller groups are
# slower; larger groups need more memory, because each core holds a few groups.
_GROUP = 32


def parallel_calls():
    """The number of images that a pipeline decodes at the same time: one per core."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def decode_error(image_bytes):
    """Returns the reason why the bytes of an image cannot be decoded; None if they can."""
    if not image_bytes:  # See `files.FileSource`.
        return "it is empty, too large or cannot be opened"
    try:
        decode_image(tf.constant(image_bytes))
    except tf.errors.OpError as error:
        return first_line(error)
    return None


@tf.function(input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)
def can_decode(images):
    """Returns whether each of some encoded images, string `[n]`, can be decoded, bool `[n]`."""

    def decode(image):
        # The size is a small result, and it is only known after decoding.
        return tf.cast(tf.size(decode_image(image)), tf.float32)

    return map_ignoring_errors(decode, images, (), tf.data.AUTOTUNE).get_single_element()[1]


def decode_batch(image_bytes, preprocessing):
    """Decodes and preprocesses images of mixed formats and sizes; bad ones become zeros.

    Args:
        image_bytes: string `[B]`.
        preprocessing: `vit_tf.Preprocessing`.

    Returns:
        float32 `[B, h, w, 3]`, the model's input, zero where decoding failed; and bool `[B]`, true
        where decoding succeeded.
    """
    shape = (*preprocessing.image_size, 3)
    tried = map_ignoring_errors(
        lambda data: preprocessing(decode_image(data)),
        image_bytes,
        shape,
        tf.data.AUTOTUNE,
    )
    images, valid = tried.get_single_element()
    return tf.ensure_shape(images, [None, *shape]), tf.ensure_shape(valid, [None])


def decode_lenient(dataset, decode, batch_size, preprocessing):
    """Decodes the images of a dataset; bad images become black and get weight 0.

    Takes 5 % more CPU time than a dataset that stops at bad images (1.06 against 1.01 ms for a JPEG
    of ImageNet's size with Inception crop, in batches of 32), and 7 % more with batches above
    `_GROUP`, which are copied once more.

    Args:
        dataset: examples as dicts with image (bytes), seed, weight and others.
        decode: maps the bytes and the seed of an example to an image.
        batch_size: size of the batches that are returned.
        preprocessing: the `vit_tf.Preprocessing` that `decode` applies.

    Returns:
        Dataset of batches: the same dicts without seed, with image as
        `[batch_size, height, width, 3]`.
    """
    shape = (*preprocessing.image_size, 3)
    group = min(_GROUP, batch_size)
    black = preprocessing.normalized(tf.zeros([3]))

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

    dataset = dataset.batch(group, drop_remainder=group == batch_size)
    # Works as a parallel map, because each inner dataset has one element. A map with
    # `Dataset.get_single_element` would also work, but op determinism runs it in one thread.
    dataset = dataset.interleave(
        decode_group,
        cycle_length=parallel_calls(),
        num_parallel_calls=parallel_calls(),
        deterministic=True,
    )
    return dataset if group == batch_size else dataset.rebatch(batch_size, drop_remainder=True)


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

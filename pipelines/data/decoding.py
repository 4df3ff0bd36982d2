"""Decoding many images where one bad file spoils only itself, inside a graph.

Training, exported models and `predict` share it. `B` images, `h x w` pixels of the model's input.
"""

import tensorflow as tf

from vit_tf.images.decoding import decode_image


def decode_batch(image_bytes, preprocessing):
    """Decodes and preprocesses images of mixed formats and sizes; a bad one spoils only itself.

    Args:
        image_bytes: string `[B]`.
        preprocessing: `vit_tf.Preprocessing`.

    Returns:
        float32 `[B, h, w, 3]`, the model's input, zero where decoding failed; and bool `[B]`, where
        it did not fail.
    """
    shape = (*preprocessing.image_size, 3)
    tried = try_each(
        lambda data: preprocessing(decode_image(data)), image_bytes, shape, tf.data.AUTOTUNE
    )
    images, whole = tried.get_single_element()
    return tf.ensure_shape(images, [None, *shape]), tf.ensure_shape(whole, [None])


def try_each(function, rows, shape, num_parallel_calls=None):
    """Applies a function that may fail to each of some rows.

    Args:
        function: maps a row to a float32 tensor; pure TensorFlow.
        rows: tensor `[n, ...]` or structure of such tensors.
        shape: what `function` returns.
        num_parallel_calls: see `tf.data.Dataset.map`; None is one row after the other.

    Returns:
        Dataset with one element: float32 `[n, *shape]`, zero where the function failed; and bool
        `[n]`, where it did not fail.
    """
    # TensorFlow has no "try". A tf.data pipeline can drop what fails; the index that travels with
    # each row tells afterwards which ones are left.
    count = tf.shape(tf.nest.flatten(rows)[0], tf.int64)[0]
    tried = tf.data.Dataset.from_tensor_slices((tf.range(count), rows)).map(
        lambda index, row: (index, function(row)), num_parallel_calls=num_parallel_calls
    )
    # One row more, so that the batch is never empty.
    last = tf.data.Dataset.from_tensor_slices((count[None], tf.zeros([1, *shape])))

    def spread(index, outputs):
        index, outputs = index[:-1], outputs[:-1]
        whole = tf.scatter_nd(index[:, None], tf.ones_like(index, tf.bool), [count])
        outputs = tf.cond(
            tf.reduce_all(whole),
            lambda: outputs,
            lambda: tf.scatter_nd(index[:, None], outputs, tf.stack([count, *shape])),
        )
        return outputs, whole

    return tried.ignore_errors().concatenate(last).batch(count + 1).map(spread)

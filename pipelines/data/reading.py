"""Reads windows of examples inside tf.data, and yields the examples in their final order.

Python makes an index of each window: where its examples are stored, and ids, positions and seeds in
their final order. That is all that passes through Python: about 60 bytes for an example, and the
path of each image or run of records. TensorFlow ops read the files, many at a time, and put the
images into their order.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from pipelines.data.labels.encoding import FILLER
from pipelines.errors import DataError

# Rows that leave a window at a time: enough to make the cost of a call negligible.
_ROWS_PER_CHUNK = 128


class Window(NamedTuple):
    """Examples that are read together, in the order in which they are yielded."""

    indices: np.ndarray  # int64 [n]: stored index of each row, -1 for a padding row
    positions: np.ndarray  # int64 [n]: place of each row in the stream of global batches


def read_windows(source, windows, columns, signature):
    """Returns a dataset of chunks of the examples of some windows, in order.

    The next window is read while the examples of one are used, so memory holds at most two windows
    of encoded images.

    Args:
        source: a `DataSource`. An error of `source.index` is also stored in `source.failure`.
        windows: function without arguments that returns an iterator of `Window`s.
        columns: maps a `Window` and the ids of its rows, int64 `[n]`, -1 for padding, to a dict of
            arrays `[n, ...]`.
        signature: `tf.TensorSpec`s of these arrays.

    Returns:
        Dataset of dicts, each of up to 128 rows: image (string; a black PNG for padding), label (as
        from `DataSource.load`; 0 or only `FILLER` for padding) and the rows of `columns`.
    """
    padding = tf.io.encode_png(tf.zeros([1, 1, 3], tf.uint8)), tf.constant(0)
    if source.multi_label:
        padding = padding[0], tf.constant([FILLER])
    indexed = tf.data.Dataset.from_generator(
        lambda: _index_windows(source, windows(), columns),
        output_signature=(
            dict(source.index_signature),
            tf.TensorSpec([], tf.int64),
            tf.TensorSpec([None], tf.int64),
            signature,
        ),
    )

    def read(index, count, rows, own):
        last = tf.data.Dataset.from_tensors(tuple(x[None] for x in padding))
        batches = source.load(index).concatenate(last)
        if source.multi_label:
            images, labels = (
                batches.unbatch()
                .padded_batch(count, padding_values=("", FILLER))
                .get_single_element()
            )
        else:
            images, labels = batches.rebatch(count).get_single_element()
        # Fails if there are fewer, so that no image gets the label of another one.
        return tf.reshape(images, [count]), labels, rows, own

    def chunks(images, labels, rows, own):
        def gather(rows, own):
            return {"image": tf.gather(images, rows), "label": tf.gather(labels, rows), **own}

        ordered = tf.data.Dataset.from_tensor_slices((rows, own)).batch(_ROWS_PER_CHUNK)
        return ordered.map(gather, num_parallel_calls=2, deterministic=True)

    return indexed.prefetch(1).map(read).prefetch(1).flat_map(chunks)


def _index_windows(source, windows, columns):
    """Yields `(index, count, rows, columns)` of each window.

    `count` is the number of stored examples of `index`, and one more for the padding. `rows` has
    the place of each row among them.
    """
    for window in windows:
        is_padding = window.indices < 0
        stored, places = np.unique(window.indices[~is_padding], return_inverse=True)
        rows = np.full(len(window.indices), len(stored))
        rows[~is_padding] = places
        ids = np.full(len(rows), -1)
        try:
            ids[~is_padding] = source.ids(stored)[places]
            index = source.index(stored)
        except DataError as error:
            source.failure = error
            raise
        yield index, len(stored) + 1, rows, columns(window, ids)

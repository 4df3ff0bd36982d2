"""Reads the slices of windows that a host needs inside tf.data, and decodes them.

Python locates the examples of each window, and computes ids, slots and seeds in their final order.
That is all that passes through Python: about 60 bytes for an example, and the path of each image or
run of records. TensorFlow ops read the files, many at a time, put the images into their order and
decode them.
"""

import os
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from pipelines.data.decoding import map_ignoring_errors
from pipelines.data.labels.encoding import FILLER
from pipelines.data.order import Window
from pipelines.errors import DataError

# Rows that leave a window at a time: enough to make the cost of a call negligible.
_ROWS_PER_CHUNK = 128
# Images that are given to TensorFlow at a time, for each core. A core decodes one of them after the
# other. With only one, cores wait for the thread that hands out images, and at the end of a batch
# for its slowest image. That is long beside other processes, where two cores worked 91 % of the
# time and 98 % with 16, and with many cores and small batches; short on two cores alone (99 %).
_IMAGES_PER_CORE = 16
# With `skips_bad_images`, images are decoded in groups of this size, within a group one after the
# other. Smaller groups are slower; larger groups need more memory, because each core holds a few.
_GROUP = 32


class HostSlice(NamedTuple):
    """The slots of every global batch that a host needs: [begin, end), divided among `replicas`.

    With `with_partners`, the host also needs the slot before `begin` (modulo the batch size), see
    `mixing.py`. With `mixes_alone`, the partner of the first row is instead the last row of the
    slice.
    """

    batch_size: int
    begin: int
    end: int
    replicas: int
    with_partners: bool
    mixes_alone: bool

    @property
    def has_neighbor(self):
        """Whether the partner of the first row belongs to another host."""
        is_part = self.end - self.begin < self.batch_size
        return self.with_partners and not self.mixes_alone and is_part

    @property
    def num_rows(self):
        """Number of examples read per global batch."""
        return self.end - self.begin + self.has_neighbor

    def select(self, window):
        """Returns a `Window` of the rows that the host needs."""
        slots = window.offsets % self.batch_size
        held = (slots >= self.begin) & (slots < self.end)
        if self.has_neighbor:
            held |= slots == (self.begin - 1) % self.batch_size
        return Window(window.indices[held], window.offsets[held])

    def own(self, column):
        """Returns the rows of the slice, without the neighbor, from the rows of a global batch."""
        # The neighbor is the first row, except on the first host, where it is the last row.
        skipped = int(self.has_neighbor and self.begin > 0)
        return column[skipped : skipped + self.end - self.begin]

    def partners(self, column):
        """Returns the partner of each row of `own`: the row before it."""
        return self.own(tf.roll(column, 1, axis=0))


def slice_of_host(batch_size, input_context=None, with_partners=False, mixes_alone=False):
    """Returns the `HostSlice` of a host.

    Args:
        batch_size: examples in a global batch.
        input_context: `tf.distribute.InputContext`; None for a single replica.
        with_partners: whether batches are mixed.
        mixes_alone: whether a host mixes only rows of its own slice, as with sharding="files".

    Raises:
        ValueError: if the number of replicas does not divide the batch size, or the number of hosts
            does not divide the number of replicas.
    """
    context = input_context or tf.distribute.InputContext()
    hosts, replicas = context.num_input_pipelines, context.num_replicas_in_sync
    if batch_size < 1 or batch_size % replicas:
        raise ValueError(
            f"batch_size={batch_size} cannot be divided among {replicas} replicas. Expected a "
            f"positive multiple of {replicas}."
        )
    if replicas % hosts:
        raise ValueError(f"{replicas} replicas cannot be divided among {hosts} hosts.")
    length = batch_size // hosts
    begin = context.input_pipeline_id * length
    return HostSlice(
        batch_size, begin, begin + length, replicas // hosts, with_partners, mixes_alone
    )


def read_windows(source, windows, columns, signature):
    """Returns a dataset of chunks of the examples of some windows, in order.

    The next window is read while the examples of one are used, so memory holds at most two windows
    of encoded images.

    Args:
        source: a `DataSource`. An error of `source.locate` is also stored in `source.failure`.
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
    located = tf.data.Dataset.from_generator(
        lambda: _locate_windows(source, windows(), columns),
        output_signature=(
            dict(source.location_signature),
            tf.TensorSpec([], tf.int64),
            tf.TensorSpec([None], tf.int64),
            signature,
        ),
    )

    def read(location, count, rows, own):
        last = tf.data.Dataset.from_tensors(tuple(x[None] for x in padding))
        batches = source.load(location).concatenate(last)
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

    return located.prefetch(1).map(read).prefetch(1).flat_map(chunks)


def _locate_windows(source, windows, columns):
    """Yields `(location, count, rows, columns)` of each window.

    `count` is the number of examples of `location`, and one more for the padding. `rows` has the
    row of each example of the window among them.
    """
    for window in windows:
        is_padding = window.indices < 0
        stored, stored_rows = np.unique(window.indices[~is_padding], return_inverse=True)
        rows = np.full(len(window.indices), len(stored))
        rows[~is_padding] = stored_rows
        ids = np.full(len(rows), -1)
        try:
            ids[~is_padding] = source.ids(stored)[stored_rows]
            location = source.locate(stored)
        except DataError as error:
            source.failure = error
            raise
        yield location, len(stored) + 1, rows, columns(window, ids)


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

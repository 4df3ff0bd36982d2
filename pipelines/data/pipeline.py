"""Training and evaluation batches as `tf.data` datasets.

Python locates the examples of each window, and computes ids, slots and seeds in their final order.
That is all that passes through Python: about 60 bytes for an example, and the path of each image or
run of records. TensorFlow ops read the files, many at a time, put the images into their order and
decode them.

`train_dataset` and `eval_dataset` are for `strategy.distribute_datasets_from_function`: they take
the `InputContext` of a host and return a dataset whose consecutive elements are the batches of that
host's replicas. The pixels of an example and its global batch never depend on the number of
replicas. They depend on the number of hosts only with `data.sharding=files`, see `order.py`.

A batch of one replica, with b = global batch size / replicas:

| key | | |
| --- | --- | --- |
| image | float32 `[b, h, w, 3]` | the model's input, by default in [-1, 1]; or uint8, \
0 .. 255: `Preprocessing.dtype` |
| label | int32 `[b]` | of multi-label sources, 1 for each label of the image: float32 `[b, K]`; \
with MixUp or CutMix, weights of the classes: float32 `[b, K]` |
| id | int64 `[b]` | see `sources.source.DataSource`; -1 for padding |
| slot | int32 `[b]` | place in the global batch |
| weight | float32 `[b]` | 1; 0 for padding, and for an image left out by `data.bad_images=skip` |
"""

import contextlib
import dataclasses

import numpy as np
import tensorflow as tf

from pipelines.data import stateless_random
from pipelines.data.decoding import decode_batches
from pipelines.data.labels.encoding import FILLER, multi_hot
from pipelines.data.order import EvalBatches, TrainBatches, Window, slice_of_host
from pipelines.data.transforms.augmentation import augment
from pipelines.data.transforms.mixing import DRAWS, Mixing, mixed_batches
from pipelines.errors import DataError
from vit_tf.images.value_range import MEAN, STD

# AutoGraph rewrites the source of every function that a dataset maps, which takes seconds at each
# start. None of them has Python control flow on tensors.
_without_autograph = tf.autograph.experimental.do_not_convert

# Rows that leave a window at a time: enough to make the cost of a call negligible.
_ROWS_PER_CHUNK = 128
# Rows that `encoded_eval_dataset` reads together: photos of 5 MB may be among them.
_ENCODED_WINDOW = 256


@_without_autograph
def train_dataset(
    source,
    sampling,
    augmentation,
    preprocessing,
    *,
    start_step=0,
    stop_step=None,
    skips_bad_images=False,
    input_context=None,
):
    """Returns the dataset of training batches from `start_step` on; endless without `stop_step`.

    Epochs follow one another without a gap (see `order.TrainOrder`), so no example is dropped.

    Args:
        source: a `DataSource`.
        sampling: `config.data.Sampling`; its seed is also used for augmentation.
        augmentation: `config.augmentation.Augmentation`.
        preprocessing: `vit_tf.Preprocessing`; its resize rule is used with crop="none". The dtype
            uint8 is for batches that are not mixed.
        start_step: index of the first global batch. Batches are the same as in a run from step 0.
        stop_step: index after the last global batch; None for no end. With a `stop_step`, stored
            examples that only later batches need are not read.
        skips_bad_images: whether a black image of weight 0 replaces an image that cannot be
            decoded; else such an image raises an error.
        input_context: `tf.distribute.InputContext` of this host; None for a single replica.

    Returns:
        `tf.data.Dataset` of replica batches with static shapes; see the head of this module. An
        image that cannot be decoded raises `tf.errors.InvalidArgumentError`, unless it is left out;
        `bad_images.explain_input_error` finds the image.

    Raises:
        ValueError: if the number of replicas does not divide the batch size, an argument is out of
            range, or there are fewer files than hosts with sharding="files".
    """
    if start_step < 0:
        raise ValueError(f"start_step={start_step} is negative. Expected the index of a batch.")
    mixing = Mixing(
        mixup=augmentation.mixup,
        cutmix=augmentation.cutmix,
        seed=sampling.seed,
        image_size=preprocessing.image_size,
        num_classes=source.num_classes,
        steps=augmentation.mixing_steps,
    )
    host_slice = slice_of_host(
        sampling.batch_size,
        input_context,
        with_partners=bool(mixing),
        mixes_alone=sampling.sharding == "files",
    )
    hosts = input_context.num_input_pipelines if input_context else 1
    host = input_context.input_pipeline_id if input_context else 0
    batches = TrainBatches(source, sampling, hosts)

    def decode(image_bytes, seed):
        return augment(image_bytes, seed, preprocessing, augmentation)

    examples = _encoded_examples(
        source,
        lambda: map(host_slice.select, batches.windows(start_step, stop_step, host)),
        sampling.batch_size,
        sampling.seed,
        mixing=mixing or None,
    )
    # Mixing needs the whole batch of the host, because partners can be on different replicas.
    rows = host_slice.num_rows if mixing else host_slice.num_rows // host_slice.replicas
    dataset = decode_batches(examples, decode, rows, preprocessing, skips_bad_images)
    if mixing:
        dataset = mixed_batches(dataset, host_slice, mixing, may_be_bad=skips_bad_images)
    return _in_order(dataset)


@_without_autograph
def encoded_dataset(source, sampling):
    """Returns the batches of `train_dataset` before images are decoded, for one host.

    Args:
        source, sampling: as for `train_dataset`.

    Returns:
        Endless `tf.data.Dataset` of global batches: image (string `[B]`), label, id, slot, weight,
        and seed (int64 `[B, 2]`).
    """
    windows = TrainBatches(source, sampling).windows
    examples = _encoded_examples(source, windows, sampling.batch_size, sampling.seed)
    return _in_order(examples.batch(sampling.batch_size, drop_remainder=True))


def sample_images(source, preprocessing, seed, augmentation, count=16):
    """Returns the first stored images, augmented: float32 `[n, h, w, 3]` in [-1, 1].

    Images that cannot be decoded are left out here; training reports them when it reads them.

    Args:
        source: a `DataSource`.
        preprocessing: `vit_tf.Preprocessing`.
        seed: seed of the run.
        augmentation: `config.augmentation.Augmentation`.
        count: largest number of images.
    """
    images = source.read(range(min(count, source.num_examples))).images
    seeds = stateless_random.example_seeds(seed, 0, np.arange(len(images)))
    shown = dataclasses.replace(preprocessing, mean=MEAN, std=STD, dtype="float32")
    samples = [tf.zeros([0, *preprocessing.image_size, 3])]
    for image, own_seed in zip(images, seeds, strict=True):
        with contextlib.suppress(tf.errors.OpError):
            samples.append(augment(tf.constant(image), own_seed, shown, augmentation)[None])
    return tf.concat(samples, axis=0)


@_without_autograph
def eval_dataset(
    source,
    *,
    batch_size,
    preprocessing,
    skips_bad_images=False,
    input_context=None,
    max_batches=0,
    border=0,
):
    """Returns the dataset with every example once, in stored order; see `order.EvalBatches`.

    Padding is black images of weight 0, label 0 (multi-label: none) and id -1, so every replica
    gets as many batches of the same shape. Of every image, `border` pixels at each side are cut off
    before the resize.

    Other args, return value and errors are as for `train_dataset`.
    """
    host_slice = slice_of_host(batch_size, input_context)
    batches = EvalBatches(source, batch_size, max_batches)

    def decode(image_bytes, seed):
        del seed  # nothing is random
        return preprocessing(_without_border(preprocessing.decode(image_bytes), border))

    examples = _encoded_examples(
        source, lambda: map(host_slice.select, batches.windows()), batch_size, seed=0
    )
    rows = host_slice.num_rows // host_slice.replicas
    dataset = decode_batches(examples, decode, rows, preprocessing, skips_bad_images)
    count = len(batches) * host_slice.replicas
    return _in_order(dataset).apply(tf.data.experimental.assert_cardinality(count))


@_without_autograph
def encoded_eval_dataset(source, ranges, batch_size):
    """Returns the examples of some ranges in stored order, before images are decoded.

    Args:
        source: a `DataSource`.
        ranges: pairs of the first index and the index after the last; each begins a new batch.
        batch_size: examples in a batch.

    Returns:
        `tf.data.Dataset` of batches for one host, as in `encoded_dataset`; the last batch of
        a range is padded with id -1.
    """

    def windows():
        offset = 0
        for start, stop in ranges:
            end = start - (start - stop) // batch_size * batch_size
            for first in range(start, end, _ENCODED_WINDOW):
                rows = np.arange(first, min(first + _ENCODED_WINDOW, end))
                yield Window(np.where(rows < stop, rows, -1), offset + rows - first)
                offset += len(rows)

    examples = _encoded_examples(source, windows, batch_size, seed=0)
    return _in_order(examples.batch(batch_size, drop_remainder=True))


def _without_border(image, width):
    """An image `[h, w, 3]` without `width` pixels at each side; at least one pixel stays."""
    if not width:
        return image
    rows, columns = tf.unstack(tf.minimum(width, (tf.shape(image)[:2] - 1) // 2))
    size = tf.shape(image)
    return image[rows : size[0] - rows, columns : size[1] - columns]


def _encoded_examples(source, windows, batch_size, seed, mixing=None):
    """Returns a dataset of the examples of a host: single examples, in final order, encoded.

    Args:
        source: a `DataSource`.
        windows: function without arguments that returns an iterator of `Window`s.
        batch_size: examples in a global batch.
        seed: seed of the run.
        mixing: a `Mixing`; its draws are added to the examples. None if batches are not mixed.
    """
    signature = {
        "id": tf.TensorSpec([None], tf.int64),
        "slot": tf.TensorSpec([None], tf.int32),
        "weight": tf.TensorSpec([None], tf.float32),
        "seed": tf.TensorSpec([None, 2], tf.int64),
    }
    if mixing is not None:
        signature["mixing"] = tf.TensorSpec([None, DRAWS], tf.float32)

    def columns(window, ids):
        return _columns(window.offsets, ids, batch_size, seed, mixing)

    examples = read_windows(source, windows, columns, signature).unbatch()
    if not source.multi_label:
        return examples
    return examples.map(
        lambda example: {**example, "label": multi_hot(example["label"], source.num_classes)}
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


def _columns(offsets, ids, batch_size, seed, mixing):
    """Returns the columns of consecutive examples; see `_encoded_examples`."""
    batches, slots = np.divmod(offsets, batch_size)
    each, member = np.unique(batches, return_inverse=True)
    seeds = [stateless_random.example_seeds(seed, k, slots[batches == k]) for k in each]
    columns = {
        "id": ids,
        "slot": slots.astype(np.int32),
        "weight": np.where(ids < 0, 0, 1).astype(np.float32),
        "seed": np.concatenate([np.zeros([0, 2], np.int64), *seeds]),
    }
    if mixing is not None:
        draws = [mixing.draw(k) for k in each]
        columns["mixing"] = np.reshape(draws, [-1, DRAWS]).astype(np.float32)[member]
    return columns


def _in_order(dataset):
    """Returns the dataset with prefetching, deterministic order, and no automatic sharding."""
    options = tf.data.Options()
    options.deterministic = True
    # The autotuner of TensorFlow 2.20 can miss the end of its dataset. Deleting the dataset then
    # blocks for up to a minute. Without it, TensorFlow makes no map parallel on its own.
    options.autotune.enabled = False
    # The dataset contains only the slice of this host.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return dataset.prefetch(tf.data.AUTOTUNE).with_options(options)

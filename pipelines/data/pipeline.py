"""Training and evaluation batches as `tf.data` datasets.

Both functions serve `strategy.distribute_datasets_from_function`: they take the `InputContext` of a
host and return a dataset whose consecutive elements are the batches of that host's replicas. What
an example looks like, and in which global batch it is, never depends on the number of hosts or
replicas: a host reads whole windows, but keeps and decodes only its slice of every global batch.

A batch of one replica, with b = global batch size / replicas:

| key | | |
| --- | --- | --- |
| image | float32 `[b, h, w, 3]` | in [-1, 1] |
| label | int32 `[b]` | with MixUp or CutMix: float32 `[b, K]`, shares of the classes |
| id | int64 `[b]` | see `sources.Source`; -1 for padding |
| position | int32 `[b]` | place in the global batch |
| weight | float32 `[b]` | 1; 0 for padding |
"""

import functools
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from pipelines.data import augmentation, keys
from pipelines.data.mixing import DRAWS, Mixing
from pipelines.data.order import TrainOrder
from pipelines.data.reading import ROWS_PER_READ, Window, read_ahead
from pipelines.data.sources import DataError, first_line
from vit_tf.preprocessing import decode_image

# Stored rows that evaluation reads at a time.
_EVAL_WINDOW = 1024


# What a dataset raises when an example cannot be read or decoded.
INPUT_ERRORS = (
    tf.errors.InvalidArgumentError,
    tf.errors.DataLossError,
    tf.errors.NotFoundError,
    tf.errors.UnknownError,
)


def train_dataset(
    source,
    *,
    batch_size,
    preprocessing,
    seed,
    window,
    start_step=0,
    mixup=0.0,
    cutmix=0.0,
    input_context=None,
    **augment,
):
    """Returns the endless dataset of training batches, from `start_step` on.

    Epochs follow one another without a gap (see `order.TrainOrder`), so no example is dropped.

    Args:
        source: a `Source`.
        batch_size: examples in a global batch.
        preprocessing: `vit_tf.Preprocessing`; its resize rule is used with crop="none".
        seed: seed of the order and of the augmentation, 0 .. 2**64 - 1.
        window: examples shuffled together; about as many encoded images are held in memory.
        start_step: index of the first global batch; batches are those of a run from step 0.
        mixup, cutmix: parameter of Beta(a, a) of each; 0 turns it off. See `mixing.Mixing`.
        input_context: `tf.distribute.InputContext` of this host; None for a single replica.
        **augment: crop, flip, randaugment_layers, ...: see `augmentation.Augmentation`.

    Returns:
        `tf.data.Dataset` of replica batches with static shapes; see the head of this module. An
        image that cannot be decoded raises `tf.errors.InvalidArgumentError`; `find_unreadable`
        tells which one.

    Raises:
        ValueError: if the batch size does not fit the replicas, or an argument is out of range.
    """
    if start_step < 0:
        raise ValueError(f"start_step={start_step} is negative. Expected the index of a batch.")
    augment = augmentation.Augmentation(**augment)
    mixing = Mixing(
        mixup=mixup,
        cutmix=cutmix,
        seed=seed,
        image_size=preprocessing.image_size,
        num_classes=source.num_classes,
    )
    share = _share_of_host(batch_size, input_context, with_partners=bool(mixing))
    order = TrainOrder(source.shard_lengths, window, seed)
    first = start_step * batch_size

    def windows():
        for epoch, number in order.windows_from(first):
            start, stop = order.positions(epoch, number)
            positions = np.arange(max(start, first), stop)
            positions = positions[share.holds(positions)]
            indices = order.indices(epoch, number)[positions - start]
            yield Window(order.pieces(epoch, number), indices, positions)

    prepare = functools.partial(augment, preprocessing=preprocessing)
    return _dataset(source, windows, prepare, share, seed, mixing)


def sample_images(source, preprocessing, seed, count=16, **augment):
    """The first stored images as training would see them, float32 `[n, h, w, 3]` in [-1, 1].

    Args:
        source: a `Source`.
        preprocessing: `vit_tf.Preprocessing`.
        seed: seed of the run.
        count: how many, at most.
        **augment: fields of `augmentation.Augmentation`.
    """
    prepare = augmentation.Augmentation(**augment)
    images = source.read([(0, min(count, source.num_examples))]).images
    seeds = keys.example_seeds(seed, 0, np.arange(len(images)))
    return tf.stack(
        [prepare(tf.constant(x), s, preprocessing) for x, s in zip(images, seeds, strict=True)]
    )


def eval_dataset(source, *, batch_size, preprocessing, input_context=None):
    """Returns the dataset that holds every example once, in stored order.

    The last global batch is padded with black images of weight 0, label 0 and id -1, so every
    replica gets `eval_steps(source, batch_size)` batches of the same shape.

    Args, returns and raises: as `train_dataset`.
    """
    share = _share_of_host(batch_size, input_context)
    end = eval_steps(source, batch_size) * batch_size

    def windows():
        for start in range(0, end, _EVAL_WINDOW):
            positions = np.arange(start, min(start + _EVAL_WINDOW, end))
            positions = positions[share.holds(positions)]
            indices = np.where(positions < source.num_examples, positions, -1)
            stop = min(start + _EVAL_WINDOW, source.num_examples)
            yield Window([(start, stop)] if start < stop else [], indices, positions)

    def prepare(image_bytes, example_seed):
        del example_seed  # nothing is random
        return preprocessing(decode_image(image_bytes))

    dataset = _dataset(source, windows, prepare, share, seed=0, mixing=None)
    count = end // batch_size * share.replicas
    return dataset.apply(tf.data.experimental.assert_cardinality(count))


def eval_steps(source, batch_size):
    """Returns the number of global batches in `eval_dataset`."""
    return -(-source.num_examples // batch_size)


def train_indices(source, *, batch_size, seed, window, step):
    """Returns the positions in the source of the examples of one training batch, int64 `[B]`."""
    order = TrainOrder(source.shard_lengths, window, seed)
    return order.stream(step * batch_size, (step + 1) * batch_size)


def find_unreadable(source, indices):
    """Finds the first image that cannot be decoded, to explain why a dataset has stopped.

    Args:
        source: a `Source`.
        indices: positions in the source, such as `train_indices` of the failed step, or
            `range(source.num_examples)`.

    Returns:
        `DataError` that names the image and the reason, or says why the files cannot be read; None
        if every image can be decoded.
    """
    indices = np.asarray(indices, np.int64)
    for start in range(0, len(indices), ROWS_PER_READ):
        part = indices[start : start + ROWS_PER_READ]
        runs = np.split(part, np.flatnonzero(np.diff(part) != 1) + 1)
        try:
            examples = source.read([(int(run[0]), int(run[-1]) + 1) for run in runs])
        except DataError as error:
            return error
        if error := _first_unreadable(source, examples):
            return error
    return None


def _first_unreadable(source, examples):
    """Returns the `DataError` for the first image that cannot be decoded, or None."""
    for image, example_id in zip(examples.images, examples.ids, strict=True):
        try:
            decode_image(tf.constant(image))
        except tf.errors.OpError as error:
            # See `files.FileSource` for images without bytes.
            reason = first_line(error) if image else "it is empty, huge or cannot be opened"
            return DataError(
                f"The image {source.describe(int(example_id))} (id {example_id}) cannot be "
                f"decoded: {reason}. Remove or replace it."
            )
    return None


class _Share(NamedTuple):
    """What a host needs of every global batch: places [begin, end), divided among `replicas`.

    With partners, also the place before them (modulo the batch size): see `mixing.py`.
    """

    batch_size: int
    begin: int
    end: int
    replicas: int
    with_partners: bool

    @property
    def has_neighbour(self):
        """Whether the partner of the first example is an example of another host."""
        return self.with_partners and self.end - self.begin < self.batch_size

    @property
    def rows(self):
        """Number of examples read per global batch."""
        return self.end - self.begin + self.has_neighbour

    def holds(self, positions):
        """Which stream positions the host needs, bool."""
        place = positions % self.batch_size
        held = (place >= self.begin) & (place < self.end)
        if self.has_neighbour:
            held |= place == (self.begin - 1) % self.batch_size
        return held

    def own(self, column):
        """Returns the slice itself of the rows of one global batch."""
        # In the order of the stream the neighbour comes first, except for the first host.
        skipped = int(self.has_neighbour and self.begin > 0)
        return column[skipped : skipped + self.end - self.begin]

    def partners(self, column):
        """Returns the row before each of `own`."""
        return self.own(tf.roll(column, 1, axis=0))


def _share_of_host(batch_size, input_context, with_partners=False):
    """Returns the `_Share` of a host; checks that the replicas divide the batch."""
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
    return _Share(batch_size, begin, begin + length, replicas // hosts, with_partners)


def _dataset(source, windows, prepare, share, seed, mixing):
    """Builds the dataset: read in final order, decode in parallel, batch, mix.

    Args:
        source: a `Source`.
        windows: function without arguments, returns an iterator of `Window`s.
        prepare: maps the bytes and the seed of an example to an image; pure TensorFlow.
        share: `_Share` of this host.
        seed: seed of the run.
        mixing: a `Mixing`; without partners in the share it is not used.
    """
    padding = tf.io.encode_png(tf.zeros([1, 1, 3], tf.uint8)).numpy()

    def chunks():
        for rows in read_ahead(source, windows()):
            padded = rows.ids < 0
            rows.images[padded] = padding
            steps, positions = np.divmod(rows.positions, share.batch_size)
            each, member = np.unique(steps, return_inverse=True)
            seeds = [keys.example_seeds(seed, step, positions[steps == step]) for step in each]
            chunk = {
                "image": rows.images,
                "label": rows.labels,
                "id": rows.ids,
                "position": positions.astype(np.int32),
                "weight": np.where(padded, 0, 1).astype(np.float32),
                "seed": np.concatenate(seeds),
            }
            if share.with_partners:
                chunk["mixing"] = np.stack([mixing.draw(step) for step in each])[member]
            yield chunk

    def finish(example):
        image = prepare(example["image"], example.pop("seed"))
        return {**example, "image": image}

    def mix(rows):
        draw = rows.pop("mixing")[0]
        batch = {key: share.own(column) for key, column in rows.items()}
        partners = [share.partners(rows[key]) for key in ("image", "label")]
        batch["image"], batch["label"] = mixing.mix(draw, batch["image"], batch["label"], *partners)
        return batch

    def divide(batch):
        return {
            key: tf.reshape(column, [share.replicas, -1, *column.shape[1:]])
            for key, column in batch.items()
        }

    signature = {
        "image": tf.TensorSpec([None], tf.string),
        "label": tf.TensorSpec([None], tf.int32),
        "id": tf.TensorSpec([None], tf.int64),
        "position": tf.TensorSpec([None], tf.int32),
        "weight": tf.TensorSpec([None], tf.float32),
        "seed": tf.TensorSpec([None, 2], tf.int64),
    }
    if share.with_partners:
        signature["mixing"] = tf.TensorSpec([None, DRAWS], tf.float32)
    dataset = tf.data.Dataset.from_generator(chunks, output_signature=signature).unbatch()
    dataset = dataset.map(finish, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    if share.with_partners:
        # Mixed as one batch of the host, because replicas share neighbours.
        dataset = dataset.batch(share.rows, drop_remainder=True)
        dataset = dataset.map(mix)
        if share.replicas > 1:
            dataset = dataset.map(divide).unbatch()
    else:
        dataset = dataset.batch(share.rows // share.replicas, drop_remainder=True)
    options = tf.data.Options()
    options.deterministic = True
    # Hosts have their slices already.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return dataset.prefetch(tf.data.AUTOTUNE).with_options(options)

"""Training and evaluation batches as `tf.data` datasets.

Both functions serve `strategy.distribute_datasets_from_function`: they take the `InputContext` of a
host and return a dataset whose consecutive elements are the batches of that host's replicas. What
an example looks like, and in which global batch it is, never depends on the number of replicas,
nor, unless `data.sharding` says so, of hosts: see `sharding.py`.

A batch of one replica, with b = global batch size / replicas:

| key | | |
| --- | --- | --- |
| image | float32 `[b, h, w, 3]` | in [-1, 1] |
| label | int32 `[b]` | with MixUp or CutMix: float32 `[b, K]`, shares of the classes |
| id | int64 `[b]` | see `sources.Source`; -1 for padding |
| position | int32 `[b]` | place in the global batch |
| weight | float32 `[b]` | 1; 0 for padding, and for an image left out by `data.bad_images=skip` |
"""

import contextlib
import functools

import numpy as np
import tensorflow as tf

from pipelines.data import stateless_random
from pipelines.data.bad_images import decode_all
from pipelines.data.prefetch import Window, read_ahead
from pipelines.data.sharding import share_of_host, streams
from pipelines.data.transforms.augmentation import augment
from pipelines.data.transforms.mixing import DRAWS, Mixing
from vit_tf.images.decoding import decode_image

# Stored rows that evaluation reads at a time.
_EVAL_WINDOW = 1024


def train_dataset(
    source,
    *,
    batch_size,
    preprocessing,
    seed,
    shuffle_window,
    augmentation,
    start_step=0,
    mixup=0.0,
    cutmix=0.0,
    sharding="global",
    bad_images=None,
    input_context=None,
):
    """Returns the endless dataset of training batches, from `start_step` on.

    Epochs follow one another without a gap (see `order.TrainOrder`), so no example is dropped.

    Args:
        source: a `Source`.
        batch_size: examples in a global batch.
        preprocessing: `vit_tf.Preprocessing`; its resize rule is used with crop="none".
        seed: seed of the order and of the augmentation, 0 .. 2**64 - 1.
        shuffle_window: examples shuffled together; about as many encoded images are held in memory.
        augmentation: `config.augmentation.Augmentation`.
        start_step: index of the first global batch; batches are those of a run from step 0.
        mixup, cutmix: parameter of Beta(a, a) of each; 0 turns it off. See `mixing.Mixing`.
        sharding: "global" or "files", see `sharding.py`.
        bad_images: `BadImages` of the run, to leave out what cannot be decoded; None stops there.
        input_context: `tf.distribute.InputContext` of this host; None for a single replica.

    Returns:
        `tf.data.Dataset` of replica batches with static shapes; see the head of this module. An
        image that cannot be decoded raises `tf.errors.InvalidArgumentError`, unless it is left out;
        `bad_images.find_unreadable` tells which one.

    Raises:
        ValueError: if the batch size does not fit the replicas, an argument is out of range, or
            there are fewer files than hosts with sharding="files".
    """
    if start_step < 0:
        raise ValueError(f"start_step={start_step} is negative. Expected the index of a batch.")
    mixing = Mixing(
        mixup=mixup,
        cutmix=cutmix,
        seed=seed,
        image_size=preprocessing.image_size,
        num_classes=source.num_classes,
    )
    share = share_of_host(batch_size, input_context, bool(mixing), sharding)
    hosts = input_context.num_input_pipelines if input_context else 1
    parts = streams(
        source,
        batch_size=batch_size,
        shuffle_window=shuffle_window,
        seed=seed,
        sharding=sharding,
        hosts=hosts,
    )
    # The global order is one for all hosts.
    stream = parts[input_context.input_pipeline_id if len(parts) > 1 else 0]

    def windows():
        return map(share.cut, stream.windows(start_step))

    prepare = functools.partial(augment, preprocessing=preprocessing, options=augmentation)
    return _dataset(
        source, windows, prepare, share, seed, preprocessing.image_size, mixing, bad_images
    )


def sample_images(source, preprocessing, seed, augmentation, count=16):
    """The first stored images as training would see them, float32 `[n, h, w, 3]` in [-1, 1].

    Images that cannot be decoded are missing; training tells about them when it meets them.

    Args:
        source: a `Source`.
        preprocessing: `vit_tf.Preprocessing`.
        seed: seed of the run.
        augmentation: `config.augmentation.Augmentation`.
        count: how many, at most.
    """
    images = source.read([(0, min(count, source.num_examples))]).images
    samples = [tf.zeros([0, *preprocessing.image_size, 3])]
    for image, own in zip(
        images, stateless_random.example_seeds(seed, 0, np.arange(len(images))), strict=True
    ):
        with contextlib.suppress(tf.errors.OpError):
            samples.append(augment(tf.constant(image), own, preprocessing, augmentation)[None])
    return tf.concat(samples, axis=0)


def eval_dataset(source, *, batch_size, preprocessing, bad_images=None, input_context=None):
    """Returns the dataset that holds every example once, in stored order.

    The last global batch is padded with black images of weight 0, label 0 and id -1, so every
    replica gets `eval_steps(source, batch_size)` batches of the same shape.

    Args, returns and raises: as `train_dataset`.
    """
    share = share_of_host(batch_size, input_context)
    end = eval_steps(source, batch_size) * batch_size

    def windows():
        for start in range(0, end, _EVAL_WINDOW):
            positions = np.arange(start, min(start + _EVAL_WINDOW, end))
            indices = np.where(positions < source.num_examples, positions, -1)
            stop = min(start + _EVAL_WINDOW, source.num_examples)
            pieces = [(start, stop)] if start < stop else []
            yield share.cut(Window(pieces, indices, positions))

    def prepare(image_bytes, example_seed):
        del example_seed  # nothing is random
        return preprocessing(decode_image(image_bytes))

    size = preprocessing.image_size
    dataset = _dataset(source, windows, prepare, share, 0, size, None, bad_images)
    count = end // batch_size * share.replicas
    return dataset.apply(tf.data.experimental.assert_cardinality(count))


def eval_steps(source, batch_size):
    """Returns the number of global batches in `eval_dataset`."""
    return -(-source.num_examples // batch_size)


def train_indices(source, *, batch_size, seed, shuffle_window, step, sharding="global", hosts=1):
    """Returns the positions in the source of the examples of one training batch, int64 `[B]`."""
    parts = streams(
        source,
        batch_size=batch_size,
        shuffle_window=shuffle_window,
        seed=seed,
        sharding=sharding,
        hosts=hosts,
    )
    return np.concatenate([part.indices(step) for part in parts])


def _dataset(source, windows, prepare, share, seed, image_size, mixing, bad_images):
    """Builds the dataset: read in final order, decode in parallel, batch, mix.

    Args:
        source: a `Source`.
        windows: function without arguments, returns an iterator of `Window`s.
        prepare: maps the bytes and the seed of an example to an image; pure TensorFlow.
        share: `Share` of this host.
        seed: seed of the run.
        image_size: (height, width) of the images, in pixels.
        mixing: a `Mixing`, None for evaluation; without partners in the share it is not used.
        bad_images: `BadImages`, or None to stop at the first one.
    """
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
    if bad_images is not None:
        signature["step"] = tf.TensorSpec([None], tf.int64)
    chunks = functools.partial(_chunks, source, windows, share.batch_size, seed, mixing)

    def columns():
        return ({key: chunk[key] for key in signature} for chunk in chunks())

    # Batches to mix are those of the host, because replicas share neighbours.
    batch_size = share.rows if share.with_partners else share.rows // share.replicas
    dataset = tf.data.Dataset.from_generator(columns, output_signature=signature).unbatch()
    if bad_images is None:

        def decode(example):
            image = prepare(example["image"], example.pop("seed"))
            return {**example, "image": image}

        dataset = dataset.map(decode, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        dataset = dataset.batch(batch_size, drop_remainder=True)
    else:

        def note(ids, images, steps, positions):
            bad_images.add(source, ids, images)
            if mixing is not None:  # training
                for step in np.unique(steps):
                    places = positions[steps == step].tolist()
                    bad_images.miss(source, int(step), places, share.batch_size)

        dataset = decode_all(dataset, prepare, batch_size, image_size, note)
    if share.with_partners:
        dataset = dataset.map(functools.partial(_mix, share, mixing, bad_images is not None))
        if share.replicas > 1:
            dataset = dataset.map(functools.partial(_divide, share.replicas)).unbatch()
    options = tf.data.Options()
    options.deterministic = True
    # Hosts have their slices already.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return dataset.prefetch(tf.data.AUTOTUNE).with_options(options)


def _chunks(source, windows, batch_size, seed, mixing):
    """Yields consecutive examples of a host as dictionaries of columns; see `_dataset`."""
    padding = tf.io.encode_png(tf.zeros([1, 1, 3], tf.uint8)).numpy()
    for rows in read_ahead(source, windows()):
        padded = rows.ids < 0
        rows.images[padded] = padding
        steps, positions = np.divmod(rows.positions, batch_size)
        each, member = np.unique(steps, return_inverse=True)
        seeds = [
            stateless_random.example_seeds(seed, step, positions[steps == step]) for step in each
        ]
        chunk = {
            "image": rows.images,
            "label": rows.labels,
            "id": rows.ids,
            "position": positions.astype(np.int32),
            "weight": np.where(padded, 0, 1).astype(np.float32),
            "seed": np.concatenate(seeds),
            "step": steps,
        }
        if mixing:
            chunk["mixing"] = np.stack([mixing.draw(step) for step in each])[member]
        yield chunk


def _mix(share, mixing, may_be_bad, rows):
    """Mixes the rows of one global batch that a host has read; returns its own."""
    rows = dict(rows)
    draw = rows.pop("mixing")[0]
    batch = {key: share.own(column) for key, column in rows.items()}
    image, label, weight = (batch[key] for key in ("image", "label", "weight"))
    partners = [share.partners(rows[key]) for key in ("image", "label")]
    batch["image"], batch["label"] = mixing.mix(draw, image, label, *partners)
    if may_be_bad:
        # A black image must not show in others, nor get a share of them.
        whole = weight * share.partners(rows["weight"]) > 0
        one_hot = tf.one_hot(label, mixing.num_classes)
        batch["image"], batch["label"] = tf.cond(
            tf.reduce_all(whole),
            lambda: (batch["image"], batch["label"]),
            lambda: (
                tf.where(whole[:, None, None, None], batch["image"], image),
                tf.where(whole[:, None], batch["label"], one_hot),
            ),
        )
    return batch


def _divide(replicas, batch):
    """Divides the batch of a host among its replicas."""
    return {
        key: tf.reshape(column, [replicas, -1, *column.shape[1:]]) for key, column in batch.items()
    }

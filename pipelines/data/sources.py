"""Where examples come from: any prepared TFDS data set, and the built-in ones, by name.

A source hands out encoded images by position, so that the order of training is decided elsewhere
(`order.py`) and images are decoded only where they are used. Nothing here uses the network.
"""

import functools
import operator
import re
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from pipelines.data import catalog
from pipelines.data.catalog import DataError

# A split up to this size is read once and kept in memory, encoded.
MAX_CACHED_BYTES = 256 * 2**20

_ROWS_PER_READ = 256


class Examples(NamedTuple):
    """Rows of a source, as stored."""

    images: np.ndarray  # object [n]: bytes, the encoded file of each image
    labels: np.ndarray  # int32 [n]
    ids: np.ndarray  # int64 [n]


class Part(NamedTuple):
    """A contiguous stored range of one split; `first_id` is the id of that split's example 0."""

    split: str
    start: int
    stop: int
    first_id: int


class Source:
    """The examples of a split, addressed by position 0 .. num_examples - 1; see `open_source`.

    An id is the position of an example in the stored order of its whole split, so it is the same
    under "train", "train[:90%]" and "train[100:]". In a union such as "train+validation" the ids
    of each further split begin where the previous whole split ends.

    Attributes:
        name: data set with configuration, such as "cifar10" or "digits/low".
        version: its version, such as "3.0.2".
        split: the split as it was asked for.
        num_examples, num_classes: counts.
        labels: class names in label order.
        shard_lengths: number of examples of each contiguous stored run.
    """

    def __init__(self, builder, split, parts, examples=None):
        self.name = "/".join(filter(None, [builder.name, builder.builder_config_name]))
        self.version = str(builder.version)
        self.split = split
        self._builder = builder
        self._examples = examples
        self._parts = parts or (Part(split, 0, len(examples.ids), 0),)
        self._starts = np.cumsum([0] + [part.stop - part.start for part in self._parts])
        self.num_examples = int(self._starts[-1])
        if not self.num_examples:
            raise DataError(f"{self} has no examples. Choose another split.")
        self.shard_lengths = (
            _runs(builder.info.splits, self._parts) if parts else (self.num_examples,)
        )
        feature = builder.info.features[_image_and_label(builder)[1]]
        self.num_classes = feature.num_classes
        self.labels = tuple(str(label) for label in feature.names)

    def __str__(self):
        return f"{self.name}:{self.version} split {self.split!r}"

    def read(self, ranges):
        """Returns the `Examples` at some positions, one range after the other.

        Opening files costs about as much as reading 300 images, so ask for many at a time.

        Args:
            ranges: list of (start, stop).

        Raises:
            DataError: if the files are damaged or incomplete, or examples have no label.
        """
        if self._examples is None and self._num_bytes() <= MAX_CACHED_BYTES:
            self._examples = self._read_files([(0, self.num_examples)])
        if self._examples is None:
            return self._read_files(ranges)
        positions = np.concatenate([np.arange(*limits) for limits in ranges])
        return Examples(*(column[positions] for column in self._examples))

    def describe(self, example_id):
        """Returns a name for an id that a person can find again, such as "train example 17"."""
        for part in self._parts:
            place = example_id - part.first_id
            if part.start <= place < part.stop:
                return f"{part.split} example {place} of {self.name}:{self.version}"
        return f"example {example_id} of {self}"

    def manifest(self):
        """Returns what the ids of this source stand for, as a dictionary that JSON can hold."""
        return {
            "data_set": self.name,
            "version": self.version,
            "split": self.split,
            "num_examples": self.num_examples,
            "labels": list(self.labels),
            "id": "first_id of its part plus the position in the stored order of the whole split",
            "parts": [part._asdict() for part in self._parts],
        }

    def _num_bytes(self):
        """Size of the stored examples, estimated from the size of their splits."""
        splits = self._builder.info.splits
        share = [(part.stop - part.start) / splits[part.split].num_examples for part in self._parts]
        return sum(
            fraction * splits[part.split].num_bytes
            for fraction, part in zip(share, self._parts, strict=True)
        )

    def _read_files(self, ranges):
        """As `read`, from the files."""
        instructions, ids = [], []
        for start, stop in ranges:
            for part, offset in zip(self._parts, self._starts, strict=False):
                first = part.start + max(start - offset, 0)
                last = min(part.stop, part.start + stop - offset)
                if first < last:
                    instructions.append(
                        tfds.core.ReadInstruction(part.split, first, last, unit="abs")
                    )
                    ids.append(np.arange(first, last) + part.first_id)
        instruction, ids = functools.reduce(operator.add, instructions), np.concatenate(ids)

        images, labels = _fetch(self._builder, instruction, str(self))
        if len(labels) != len(ids):
            raise DataError(
                f"{self} has {len(labels)} examples where {len(ids)} were expected. Its files in "
                f"{self._builder.data_dir} are incomplete; prepare them again."
            )
        return Examples(images, labels, ids)


def open_source(name, split, data_dir=None):
    """Opens a split of a data set.

    A built-in data set is prepared on first use; every other one must have been prepared before.

    Args:
        name: TFDS name, `name[/config][:version]`.
        split: split in TFDS notation: "train", "train[:90%]", "train[100:]", "train+validation".
        data_dir: directory of prepared data sets; None is TFDS' own default.

    Returns:
        A `Source`.

    Raises:
        DataError: if there is no such data set or split, its files are not there, or it holds no
            labelled images.
    """
    builder = catalog.find_builder(name, data_dir)
    _image_and_label(builder)
    parts = _resolve(builder, split) if builder.info.splits else ()

    try:
        whole = tfds.core.ReadInstruction(parts[0].split) if parts else split
        stored = int(builder.as_dataset(split=whole).cardinality())
    except (AssertionError, KeyError, ValueError):  # no folder; a folder without its information
        raise catalog.missing(name, builder) from None
    if parts and stored == builder.info.splits[parts[0].split].num_examples:
        return Source(builder, split, parts)

    # TFDS does not tell where the examples are (its mocks do not): they are read once and kept.
    images, labels = _fetch(builder, split, f"{builder.name} split {split!r}")
    return Source(builder, split, (), Examples(images, labels, np.arange(len(labels))))


def _image_and_label(builder):
    """Returns the names of the image and the label feature."""
    features = builder.info.features
    images = [key for key in features if isinstance(features[key], tfds.features.Image)]
    labels = [key for key in features if isinstance(features[key], tfds.features.ClassLabel)]
    keys = builder.info.supervised_keys
    if not keys or len(keys) != 2 or keys[0] not in images or keys[1] not in labels:
        keys = (images[0], labels[0]) if len(images) == len(labels) == 1 else None
    if keys is None or features[keys[0]].np_dtype not in (np.uint8, np.uint16):
        raise DataError(
            f"{builder.name} is not a data set for image classification. Expected one image of "
            f"integers and one class label in each example. Received the features: "
            f"{', '.join(f'{key} ({type(features[key]).__name__})' for key in features)}."
        )
    return keys


def _resolve(builder, split):
    """Returns the `Part`s of a split in TFDS notation."""
    splits = builder.info.splits
    try:
        ranges = tfds.core.ReadInstruction.from_spec(split).to_absolute(splits)
    except (ValueError, AssertionError, NotImplementedError):
        known = ", ".join(f"{name} ({info.num_examples:,})" for name, info in splits.items())
        raise DataError(
            f"{builder.name} has no split {split!r}. It has: {known}. Parts are written "
            f"train[:90%], train[100:], train+test."
        ) from None

    parts, first_ids = [], {}
    for piece in ranges:
        length = splits[piece.splitname].num_examples
        if piece.splitname not in first_ids:
            first_ids[piece.splitname] = sum(splits[name].num_examples for name in first_ids)
        start, stop = piece.from_ or 0, length if piece.to is None else piece.to
        if start < stop:
            parts.append(Part(piece.splitname, start, stop, first_ids[piece.splitname]))
    if not parts:
        raise DataError(f"The split {split!r} of {builder.name} is empty. Choose a larger part.")
    return tuple(parts)


def _runs(splits, parts):
    """Returns the lengths of the contiguous stored runs: parts cut at the ends of shards."""
    runs = []
    for part in parts:
        ends = np.cumsum([0, *splits[part.split].shard_lengths]).clip(part.start, part.stop)
        runs += [int(length) for length in np.diff(ends) if length]
    return tuple(runs)


def first_line(error):
    """Returns what a TensorFlow error says to a person, without the graph's names for its nodes."""
    message = re.sub(r"\{\{.*?\}\}\s*", "", error.message).strip()
    return message.partition("\n")[0].rstrip(".")


class _Only(tfds.decode.PartialDecoding):
    """Reads the named features and no others; its parent logs a deprecation at every call."""

    def __init__(self, keys, decoders):
        super().__init__(dict.fromkeys(keys, True), decoders)
        self._keys = keys

    def extract_features(self, features):
        return tfds.features.FeaturesDict({key: features[key] for key in self._keys})


def _fetch(builder, split, title):
    """Reads encoded images, object `[n]`, and labels, int32 `[n]`, in stored order.

    Args:
        builder: TFDS builder.
        split: what to read, in a form that TFDS takes.
        title: name of the source in messages.
    """
    image_key, label_key = _image_and_label(builder)
    options = tf.data.Options()
    # Reading happens while other pipelines wait for it; they must not hold all the threads.
    options.threading.private_threadpool_size = 2
    dataset = builder.as_dataset(
        split=split,
        decoders=_Only((image_key, label_key), {image_key: tfds.decode.SkipDecoding()}),
        # One file after the other: positions are then the stored order.
        read_config=tfds.ReadConfig(
            options=options, interleave_cycle_length=1, try_autocache=False
        ),
    )
    images, labels = [np.zeros(0, object)], [np.zeros(0, np.int32)]
    try:
        for batch in dataset.batch(_ROWS_PER_READ).as_numpy_iterator():
            images.append(batch[image_key])
            labels.append(batch[label_key].astype(np.int32))
    except tf.errors.OpError as error:
        raise DataError(
            f"{title} cannot be read from {builder.data_dir}: {first_line(error)}. Prepare it "
            f"again, or copy its files again."
        ) from None
    images, labels = np.concatenate(images), np.concatenate(labels)
    if (labels < 0).any():  # how test splits without labels are published
        raise DataError(f"{title} has examples without a label. Choose a labelled split.")
    return images, labels

"""The interface of a source of examples: encoded images, labels and ids, addressed by index.

Every kind of source (TFDS, files, TFRecord, arrays) has this interface. `order.py` decides the
training order. Python computes only where examples are (`DataSource.locate`); TensorFlow ops read
them (`DataSource.load`). Images stay encoded until they are used.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from pipelines.data.labels.encoding import from_rows
from pipelines.errors import DataError, counted

# Examples that `read` is best called with at a time.
ROWS_PER_READ = 1024
# Files, or groups of examples, that are read at the same time. Network file systems are slow, but
# serve many requests at a time.
READERS = 8
GROUP = 32


class Examples(NamedTuple):
    """Rows of a source; images are encoded."""

    images: np.ndarray  # object [n]: bytes, the encoded file of each image
    labels: np.ndarray  # int32 [n], or multi-label: object [n] of int32 arrays without repetition
    ids: np.ndarray  # int64 [n]


class SplitRange(NamedTuple):
    """A contiguous stored range of one split; `first_id` is the id of the split's example 0."""

    split: str
    start: int
    stop: int
    first_id: int


class DataSource:
    """The examples of a split, addressed by index 0 .. num_examples - 1, in stored order.

    An id is the index of an example in its whole split, so an example has the same id in "train",
    "train[:90%]" and "train[100:]". In a union such as "train+validation", the ids of the second
    split begin where the ids of the whole first split end.

    Attributes:
        name: name of the data set, such as "cifar10", "digits/low" or "folder:/data/pets".
        version: changes when the examples change, such as "3.0.2".
        split: the requested split, in TFDS notation.
        num_examples, num_classes: number of examples and of classes.
        labels: class names in label order.
        multi_label: whether an example has a list of labels, which may be empty, not one label.
        shard_lengths: number of examples of each shard, a contiguous stored range.
        failure: the `DataError` that ended an input pipeline, or None; TensorFlow passes on only
            the text of an error.
        location_signature: `tf.TensorSpec` of each column of `locate`.
        label_rule: name of the rule in `labels/rules.py` that gives the labels, or None.
        setting: for a part of a split, the setting that chose its examples, such as
            "data.fraction=0.1"; else empty.
        labels_in_memory: whether `read_labels` is fast for all examples.
        one_file_each: whether every example is a file of its own, the "path" of `locate`.
        beside: opens another split of the data set without listing its files again; None if
            opening lists none.
    """

    failure = None
    label_rule: str | None = None
    setting = ""
    labels_in_memory = False
    one_file_each = False
    beside: Callable[[str], "DataSource"] | None = None
    location_signature: Mapping[str, tf.TensorSpec] = {}
    # Meaning of the ids, for the manifest of a run. With another text, old runs would not resume.
    id_rule = "first_id of its part plus the position in the stored order of the whole split"

    def __init__(
        self, *, name, version, split, split_ranges, labels, shard_lengths, multi_label=False
    ):
        self.name, self.version, self.split = name, version, split
        self.labels = tuple(str(label) for label in labels)
        self.num_classes = len(self.labels)
        self.multi_label = multi_label
        self.shard_lengths = shard_lengths
        self._split_ranges = split_ranges
        lengths = [split_range.stop - split_range.start for split_range in split_ranges]
        self._starts = np.cumsum([0, *lengths])
        self.num_examples = int(self._starts[-1])
        if not self.num_examples:
            raise DataError(f"{self} has no examples. Choose another split.")

    def __str__(self):
        return f"{self.name}:{self.version} split {self.split!r}"

    def locate(self, indices) -> dict[str, np.ndarray]:
        """Returns where some examples are stored: a dict of arrays, the argument of `load`.

        Args:
            indices: increasing indices, int64 `[n]`.

        Raises:
            DataError: if the files are damaged or incomplete.
        """
        raise TypeError(f"{type(self).__name__} must implement `locate`.")

    def load(self, location) -> tf.data.Dataset:
        """Reads examples with TensorFlow ops only.

        Args:
            location: from `locate`, as tensors.

        Returns:
            Dataset of batches of any size, in the order of `location`: images, string `[k]`, and
            labels, int32 `[k]`, or multi-label: int32 `[k, longest]`, filled up with -1.
        """
        raise TypeError(f"{type(self).__name__} must implement `load`.")

    def load_at(self, indices) -> tf.data.Dataset:
        """Like `load`, for the examples at increasing indices, int64 `[n]`; errors of `locate`."""
        location = self.locate(indices)
        return self.load(
            {
                key: tf.constant(column, self.location_signature[key].dtype)
                for key, column in location.items()
            }
        )

    def read(self, indices):
        """Returns the `Examples` at some indices, in this order.

        Args:
            indices: integers `[n]` in any order; a sequence, range or array.

        Raises:
            DataError: if the files are damaged or incomplete.
        """
        stored, rows = np.unique(np.asarray(indices, np.int64), return_inverse=True)
        images, labels = self._read_stored(stored)
        return Examples(images[rows], labels[rows], self.ids(indices))

    def _read_stored(self, indices):
        """Images and labels, as in `Examples`, at increasing indices, int64 `[n]`."""
        images, labels = [np.zeros(0, object)], []
        for batch in on_own_threads(self.load_at(indices)).as_numpy_iterator():
            images.append(batch[0])
            labels += [*batch[1]]
        return np.concatenate(images), from_rows(labels, self.multi_label)

    def ids(self, indices):
        """Returns the ids at some indices, int64 `[n]`, without reading images."""
        parts, stored = self._in_splits(indices)
        return stored + np.array([part.first_id for part in self._split_ranges])[parts]

    def read_labels(self, indices):
        """Returns the labels at some indices, as in `Examples`.

        Sources that hold the labels in memory read no images. Errors are as for `read`.
        """
        return self.read(indices).labels

    def skipped(self):
        """Returns the files in folders that are no images: whole split -> suffix -> number."""
        return {}

    def content_stamp(self):
        """Returns a text that changes when images change without a change of the manifest.

        It is empty if the version says everything. No image is read from a disk.
        """
        return ""

    def describe(self, example_id):
        """Returns a readable name for an id, such as "train example 17 of cifar10:3.0.2"."""
        for split, start, stop, first_id in self._split_ranges:
            stored = example_id - first_id
            if start <= stored < stop:
                return f"{split} example {stored} of {self.name}:{self.version}"
        return f"example {example_id} of {self}"

    def path(self, example_id) -> str | None:
        """The path or URL of the file of an example; None if it is not a file of its own."""
        del example_id
        return None

    def manifest(self):
        """Returns data set, split and meaning of the ids, as a dictionary that JSON can hold."""
        # Without these fields for usual labels, the manifests of earlier runs stay the same.
        kind = {"multi_label": True} if self.multi_label else {}
        rule = {} if self.label_rule is None else {"label_rule": self.label_rule}
        return {
            "data_set": self.name,
            "version": self.version,
            "split": self.split,
            "num_examples": self.num_examples,
            "labels": list(self.labels),
            **kind,
            **rule,
            "id": self.id_rule,
            "parts": [split_range._asdict() for split_range in self._split_ranges],
        }

    def is_all(self, split, ranges) -> bool:
        """Whether stored ranges have all examples of a split, so that their order is no matter.

        Args:
            split: name of the split.
            ranges: pairs of the first place and the place after the last.
        """
        del split, ranges
        return True  # There is one order.

    def _in_splits(self, indices):
        """The number in `_split_ranges` of the part of each index, and its index in that split."""
        indices = np.asarray(indices, np.int64)
        parts = np.searchsorted(self._starts, indices, side="right") - 1
        starts = np.array([part.start for part in self._split_ranges])
        return parts, indices - self._starts[parts] + starts[parts]


def on_own_threads(dataset):
    """Returns a dataset that Python reads while other pipelines may occupy all shared threads."""
    return dataset.with_options(own_threads())


def own_threads():
    """The options of `on_own_threads`."""
    options = tf.data.Options()
    options.threading.private_threadpool_size = 2
    options.autotune.enabled = False  # Deleting the dataset would sometimes block for a minute.
    return options


def load_in_groups(columns, function, labels):
    """Reads examples one by one, several groups of them at the same time.

    Args:
        columns: tensors `[n]`, or a structure of them.
        function: maps a group of rows of `columns` to a dataset with one element, the images,
            string `[k]`.
        labels: int32 `[n]` or `[n, longest]`.

    Returns:
        See `DataSource.load`.
    """
    groups = tf.data.Dataset.from_tensor_slices((columns, labels)).batch(GROUP)
    # Works as a parallel map, because each inner dataset has one element. Op determinism would run
    # a map that reads files in one thread.
    # TensorFlow's type stubs only accept functions of one argument.
    return groups.interleave(
        lambda rows, own: function(rows).map(  # pyright: ignore[reportArgumentType]
            lambda images: (images, own)
        ),
        cycle_length=READERS,
        num_parallel_calls=READERS,
        deterministic=True,
    )


def resolve_split(splits, split, name, border=None):
    """Returns the `SplitRange`s of a split in TFDS notation.

    Args:
        splits: mapping from the name of each whole split to its `tfds.core.SplitInfo`.
        split: such as "train", "train[:90%]", "train[100:]" or "train+validation". In addition to
            TFDS, a range of a range: "train[90%:][:200]" are the first 200 of the last tenth.
        name: name of the data set, for messages.
        border: where a range of a whole split begins or ends that is given in percent: a function
            of the name of the split, the part of it and its examples up to there; None: there.

    Raises:
        DataError: if the split does not exist or is empty.
    """
    try:
        pieces = [*_pieces(splits, split, border)]
    except (ValueError, AssertionError, NotImplementedError):
        known = ", ".join(f"{key} ({info.num_examples:,})" for key, info in splits.items())
        raise DataError(
            f"{name} has no split {split!r}. It has: {known}. Ranges are written "
            f"train[:90%], train[100:], train+test."
        ) from None

    used = list(dict.fromkeys(key for key, *_ in pieces))
    split_ranges, first_ids = [], {}
    for key, start, stop in pieces:
        if key not in first_ids:
            first_ids[key] = sum(splits[other].num_examples for other in first_ids)
        if start < stop:
            split_ranges.append(SplitRange(key, start, stop, first_ids[key]))
    if not split_ranges:
        sizes = ", ".join(f"{key} has {counted(splits[key].num_examples, 'image')}" for key in used)
        raise DataError(
            f"The split {split!r} of {name} is empty: {sizes}. Choose a larger range. To train on "
            f"all of it without evaluations: data.train_split={used[0]} data.eval_split=none."
        )
    return tuple(split_ranges)


def _pieces(splits, split, border):
    """Yields `(name, start, stop)` for each piece of a split; see `resolve_split`."""
    for part in split.split("+"):
        first, *inner = part.strip().replace("][", "]\n[").split("\n")
        for name, start, stop in _absolute(splits, first):
            if border is not None:
                begin, end = _parts(first)
                start = start if begin is None else border(name, begin, start)
                stop = stop if end is None else border(name, end, stop)
            for text in inner:
                outer = {"outer": split_info("outer", [stop - start])}
                ((_, begin, end),) = _absolute(outer, f"outer{text}")
                start, stop = start + begin, start + end
            yield name, start, stop


def _absolute(splits, text):
    """`(name, start, stop)` for each piece of a text that TFDS understands."""
    pieces = tfds.core.ReadInstruction.from_spec(text).to_absolute(splits)
    lengths = [splits[piece.splitname].num_examples for piece in pieces]
    return [
        (piece.splitname, piece.from_ or 0, length if piece.to is None else piece.to)
        for piece, length in zip(pieces, lengths, strict=True)
    ]


def _parts(text):
    """Where a range in percent begins and ends, from 0 to 1; None for an end that is not given."""
    read = tfds.core.ReadInstruction.from_spec(text)
    # Others are of several splits, or in examples.
    if not isinstance(read, tfds.core.ReadInstruction) or read.unit != "%":
        return None, None
    return [x if x is None else (x + 100 * (x < 0)) / 100 for x in (read.from_, read.to)]


def split_info(split, shard_lengths):
    """Returns the `tfds.core.SplitInfo` of a split that TFDS does not store."""
    return tfds.core.SplitInfo(
        name=split, shard_lengths=list(shard_lengths), num_bytes=0, filename_template=None
    )


def shard_lengths_within(splits, split_ranges):
    """Returns the number of examples of each shard inside some `SplitRange`s, in order.

    Args:
        splits: as for `resolve_split`.
        split_ranges: from `resolve_split`. A shard that a range cuts counts with the examples
            inside the range.
    """
    lengths = []
    for split, start, stop, _ in split_ranges:
        ends = np.cumsum([0, *splits[split].shard_lengths]).clip(start, stop)
        lengths += [int(length) for length in np.diff(ends) if length]
    return tuple(lengths)

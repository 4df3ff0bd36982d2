"""A source for TFDS data sets that are prepared on this machine. Never uses the network."""

import functools
import operator

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from pipelines.data.labels import RaggedLabels, no_labels
from pipelines.data.sources import tfds_catalog
from pipelines.data.sources.source import (
    DataSource,
    Examples,
    SplitRange,
    resolve_split,
    shard_lengths_within,
)
from pipelines.errors import DataError, MissingLabelError, first_line

# Splits up to this size are read once and kept in memory, encoded.
MAX_CACHED_BYTES = 256 * 2**20

_ROWS_PER_READ = 256


class TfdsSource(DataSource):
    """A split of a prepared TFDS data set; its ids follow the stored order of the whole split."""

    # Opening the files of a range takes about as long as reading this many images.
    read_along = 300

    def __init__(self, builder, split, split_ranges, all_examples=None):
        self._builder = builder
        feature = builder.info.features[_image_and_label(builder)[1]]
        multi_label = not isinstance(feature, tfds.features.ClassLabel)
        count = len(all_examples[0]) if all_examples else 0
        super().__init__(
            name="/".join(filter(None, [builder.name, builder.builder_config_name])),
            version=str(builder.version),
            split=split,
            split_ranges=split_ranges or (SplitRange(split, 0, count, 0),),
            labels=feature.feature.names if multi_label else feature.names,
            shard_lengths=(
                shard_lengths_within(builder.info.splits, split_ranges)
                if split_ranges
                else (count,)
            ),
            multi_label=multi_label,
        )
        self._examples = None
        if all_examples:
            images, labels = all_examples
            self._examples = Examples(images, labels.column(multi_label), np.arange(count))
        self._in_memory = np.full(len(self.shard_lengths), all_examples is not None)

    def read(self, ranges):
        """See `DataSource.read`; also raises `DataError` if examples have no label.

        Opening files is slow, so read many images per call.
        """
        if self._examples is None and self._num_bytes() > MAX_CACHED_BYTES:
            return self._read_files(ranges)
        positions = np.concatenate([np.arange(*limits) for limits in ranges])
        return Examples(*(column[positions] for column in self._cached(positions)))

    def _cached(self, positions) -> Examples:
        """Returns the columns in memory, after reading the missing shards of some positions."""
        if self._examples is None:
            count = self.num_examples
            labels = no_labels(count, self.multi_label)
            self._examples = Examples(np.empty(count, object), labels, np.zeros(count, np.int64))
        ends = np.cumsum(self.shard_lengths)
        shards = np.unique(np.searchsorted(ends, positions, side="right"))
        shards = shards[~self._in_memory[shards]]
        if len(shards):
            limits = [(int(ends[i]) - self.shard_lengths[i], int(ends[i])) for i in shards]
            rows = np.concatenate([np.arange(*one) for one in limits])
            for column, values in zip(self._examples, self._read_files(limits), strict=True):
                column[rows] = values
            self._in_memory[shards] = True
        return self._examples

    def _num_bytes(self):
        """Estimates the size of the stored examples from the size of their splits."""
        splits = self._builder.info.splits
        return sum(
            (stop - start) / splits[split].num_examples * splits[split].num_bytes
            for split, start, stop, _ in self._split_ranges
        )

    def _read_files(self, ranges):
        """Like `read`, without the cache."""
        instructions = []
        for split, start, stop, _ in self._locate(ranges):
            instructions.append(tfds.core.ReadInstruction(split, start, stop, unit="abs"))
        instruction, ids = functools.reduce(operator.add, instructions), self.ids(ranges)

        images, labels = _fetch(self._builder, instruction, str(self))
        if len(labels) != len(ids):
            raise DataError(
                f"{self} has {len(labels)} examples where {len(ids)} were expected. Its files in "
                f"{self._builder.data_dir} are incomplete; prepare them again."
            )
        if self.multi_label and (wrong := labels.find_wrong(self.num_classes)):
            example = self.describe(int(ids[wrong[0]]))
            raise DataError(f"{example} {wrong[1]}. Prepare the data set again.")
        return Examples(images, labels.column(self.multi_label), ids)


def open_tfds(name, split, data_dir=None):
    """Opens a split of a prepared TFDS data set; arguments as for `open_source`."""
    builder = tfds_catalog.find_builder(name, data_dir)
    _image_and_label(builder)
    splits = builder.info.splits
    split_ranges = resolve_split(splits, split, builder.name) if splits else ()

    try:
        whole = tfds.core.ReadInstruction(split_ranges[0].split) if split_ranges else split
        stored = int(builder.as_dataset(split=whole).cardinality())  # pyright: ignore[reportCallIssue]
    except (AssertionError, KeyError, ValueError):  # no folder, or no dataset_info.json
        raise tfds_catalog.not_prepared_error(name, builder) from None
    if split_ranges and stored == builder.info.splits[split_ranges[0].split].num_examples:
        return TfdsSource(builder, split, split_ranges)

    # TFDS has no shard lengths here (as in its mocks): read all examples once and keep them.
    return TfdsSource(builder, split, (), _fetch(builder, split, f"{builder.name} split {split!r}"))


def tfds_splits(name, data_dir=None):
    """Returns the split names of a TFDS data set; an empty tuple if it is not prepared."""
    return tuple(tfds_catalog.find_builder(name, data_dir).info.splits)


def _image_and_label(builder):
    """Returns the names of the image feature and of the label feature.

    Without a class label for the whole image, the feature of labels is a list of class labels:
    `labels`, or the only one.
    """
    features = builder.info.features
    images = [key for key in features if isinstance(features[key], tfds.features.Image)]
    labels = [key for key in features if isinstance(features[key], tfds.features.ClassLabel)]
    if not labels:
        labels = [key for key in features if _is_list_of_labels(features[key])]
        labels = ["labels"] if "labels" in labels else labels
    keys = builder.info.supervised_keys
    if not keys or len(keys) != 2 or keys[0] not in images or keys[1] not in labels:
        keys = (images[0], labels[0]) if len(images) == len(labels) == 1 else None
    if keys is None or features[keys[0]].np_dtype not in (np.uint8, np.uint16):
        raise DataError(
            f"{builder.name} is not a data set for image classification. Expected one image of "
            f"integers and one class label, or list of class labels, in each example. Received the "
            f"features: "
            f"{', '.join(f'{key} ({type(features[key]).__name__})' for key in features)}."
        )
    return keys


def _is_list_of_labels(feature):
    """Whether a feature is a sequence of class labels. One of fixed length is no set of labels."""
    if not isinstance(feature, tfds.features.Sequence):
        return False
    return isinstance(feature.feature, tfds.features.ClassLabel) and feature.shape == (None,)


class _SelectedFeatures(tfds.decode.PartialDecoding):
    """Reads only the named features; the parent's method logs a deprecation at every call."""

    def __init__(self, keys, decoders):
        super().__init__(dict.fromkeys(keys, True), decoders)
        self._keys = keys

    def extract_features(self, features):
        selected = {key: features[key] for key in self._keys}  # pyright: ignore[reportIndexIssue]
        return tfds.features.FeaturesDict(selected)


def _fetch(builder, split, title):
    """Reads encoded images, object `[n]`, and `RaggedLabels`, in stored order.

    Args:
        builder: TFDS builder.
        split: the split to read, in a form that TFDS accepts.
        title: name of the source in messages.
    """
    image_key, label_key = _image_and_label(builder)
    options = tf.data.Options()
    # Other pipelines wait for this read and may occupy all shared threads: use private ones.
    options.threading.private_threadpool_size = 2
    dataset = builder.as_dataset(
        split=split,
        decoders=_SelectedFeatures((image_key, label_key), {image_key: tfds.decode.SkipDecoding()}),
        # One file after another, so that examples come in stored order.
        read_config=tfds.ReadConfig(
            options=options, interleave_cycle_length=1, try_autocache=False
        ),
    )
    multi_label = _is_list_of_labels(builder.info.features[label_key])

    def columns(batch):
        labels = batch[label_key]
        if multi_label:
            return batch[image_key], labels.values, labels.row_lengths()
        return batch[image_key], labels, tf.ones_like(labels)

    images, values, counts = [np.zeros(0, object)], [np.zeros(0, np.int32)], [[0]]
    try:
        for batch in dataset.ragged_batch(_ROWS_PER_READ).map(columns).as_numpy_iterator():
            for column, part in zip((images, values, counts), batch, strict=True):
                column.append(part)
    except tf.errors.OpError as error:
        raise DataError(
            f"{title} cannot be read from {builder.data_dir}: {first_line(error)}. Prepare it "
            f"again, or copy its files again."
        ) from None
    labels = RaggedLabels(np.concatenate(values), np.cumsum(np.concatenate(counts)))
    if (labels.values < 0).any():  # Published test splits without labels have label -1.
        raise MissingLabelError(f"{title} has examples without a label. Choose a labelled split.")
    return np.concatenate(images), labels

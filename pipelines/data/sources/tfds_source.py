"""A source for TFDS data sets that are prepared on this machine. Never uses the network."""

import functools
import operator
import os

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from pipelines.data.labels.encoding import RaggedLabels
from pipelines.data.labels.rules import RULES
from pipelines.data.sources import tfds_catalog
from pipelines.data.sources.arrays import EncodedSource
from pipelines.data.sources.record_files import RecordFiles
from pipelines.data.sources.source import own_threads, resolve_split, shard_lengths_within
from pipelines.data.sources.tfds_features import BINARY_IMAGES, image_and_label
from pipelines.errors import DataError, MissingLabelError, first_line

_ROWS_PER_READ = 256


class TfdsSource(RecordFiles):
    """A split of a data set that TFDS stored as TFRecord files.

    Its ids follow the stored order of the whole split.

    Args:
        builder: TFDS builder.
        split: the split, in TFDS notation.
        split_ranges: its parts, from `resolve_split`.
        image: name of the image feature.
        rule: `LabelRule` of the label.
    """

    def __init__(self, builder, split, split_ranges, image, rule):
        splits = builder.info.splits
        used = dict.fromkeys(split_range.split for split_range in split_ranges)
        files = {
            key: [
                *zip(map(os.fspath, splits[key].filepaths), splits[key].shard_lengths, strict=True)
            ]
            for key in used
        }
        self._data_dir, self._is_binary = builder.data_dir, builder.name in BINARY_IMAGES
        super().__init__(
            files,
            image,
            rule,
            split_ranges=split_ranges,
            shard_lengths=shard_lengths_within(splits, split_ranges),
            **_description(builder, split, rule),
        )

    def _prepared(self, images):
        return _spread(images) if self._is_binary else images

    def _unreadable(self, reason, files):
        return (
            f"{self} cannot be read from {self._data_dir}: {reason}. Prepare it again, or copy "
            f"{' or '.join(files)} again."
        )

    def content_stamp(self):
        """See `DataSource.content_stamp`; the same files hold all labels of the data set."""
        return f"{super().content_stamp()} {self._label.name}{' spread' * self._is_binary}"

    def _check_labels(self, ids, labels):
        # Published test splits without labels have label -1.
        if not self.multi_label and (labels.values == -1).any():
            raise MissingLabelError(f"{self} has examples without a label. Choose a labeled split.")
        super()._check_labels(ids, labels)


def _description(builder, split, rule):
    """The name of a source, and the classes of its label, as arguments of `DataSource` by name."""
    return {
        "name": "/".join(filter(None, [builder.name, builder.builder_config_name])),
        "version": str(builder.version),
        "split": split,
        "labels": rule.classes,
        "multi_label": rule.multi_label,
    }


def open_tfds(name, split, data_dir=None, label=None):
    """Opens a split of a prepared TFDS data set; arguments as for `open_source`."""
    builder = tfds_catalog.find_builder(name, data_dir)
    image, rule = image_and_label(builder, label)
    source = _open(name, builder, split, image, rule)
    if rule.name in RULES.get(builder.name, {}):
        source.label_rule = rule.name
    return source


def _open(name, builder, split, image, rule):
    splits, file_format = builder.info.splits, builder.info.file_format
    if file_format not in (None, tfds.core.FileFormat.TFRECORD):
        raise DataError(
            f"{name} is stored as {file_format.value}, whose files TensorFlow cannot read. Prepare "
            "it as tfrecord: tfds build --file_format=tfrecord."
        )
    split_ranges = resolve_split(splits, split, builder.name) if splits else ()

    try:
        whole = tfds.core.ReadInstruction(split_ranges[0].split) if split_ranges else split
        stored = int(builder.as_dataset(split=whole).cardinality())  # pyright: ignore[reportCallIssue]
    except (AssertionError, KeyError, ValueError):  # no folder, or no dataset_info.json
        raise tfds_catalog.not_prepared_error(name, builder) from None
    is_stored = split_ranges and stored == splits[split_ranges[0].split].num_examples
    if is_stored:
        return TfdsSource(builder, split, split_ranges, image, rule)

    # The mocks of TFDS have no files: all examples are read once and kept.
    description = _description(builder, split, rule)
    images, labels = _fetch(builder, split, image, rule, f"{builder.name} split {split!r}")
    labels = labels.column(rule.multi_label)
    return EncodedSource(images, labels, description.pop("labels"), **description)


def tfds_splits(name, data_dir=None):
    """Returns the split names of a TFDS data set; an empty tuple if it is not prepared."""
    return tuple(tfds_catalog.find_builder(name, data_dir).info.splits)


class _SelectedFeatures(tfds.decode.PartialDecoding):
    """Reads only the named features; the parent's method logs a deprecation at every call."""

    def __init__(self, keys, decoders):
        super().__init__(dict.fromkeys(keys, True), decoders)
        self._keys = keys

    def extract_features(self, features):
        selected = {key: features[key] for key in self._keys}  # pyright: ignore[reportIndexIssue]
        return tfds.features.FeaturesDict(selected)


def _fetch(builder, split, image, rule, title):
    """Reads encoded images, object `[n]`, and `RaggedLabels`, in stored order.

    Args:
        builder: TFDS builder.
        split: the split to read, in a form that TFDS accepts.
        image, rule: see `TfdsSource`.
        title: name of the source in messages.
    """
    paths = {name: name.split("/") for name in rule.reads}
    dataset = builder.as_dataset(
        split=split,
        decoders=_SelectedFeatures(
            {image, *(path[0] for path in paths.values())}, {image: tfds.decode.SkipDecoding()}
        ),
        # One file after another, so that examples come in stored order.
        read_config=tfds.ReadConfig(
            options=own_threads(), interleave_cycle_length=1, try_autocache=False
        ),
    )

    def columns(batch):
        values = {
            name: _as_lists(functools.reduce(operator.getitem, path, batch))
            for name, path in paths.items()
        }
        labels = rule.compute(values)
        images = _spread(batch[image]) if builder.name in BINARY_IMAGES else batch[image]
        return images, labels.values, labels.row_lengths()

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
        raise MissingLabelError(f"{title} has examples without a label. Choose a labeled split.")
    return np.concatenate(images), labels


def _as_lists(values):
    """A batch of a feature as in `tf.train.Example`: all values in a row, ragged `[n, None]`."""
    if isinstance(values, tf.Tensor):
        rows = tf.reshape(values, [tf.shape(values)[0], -1])
        return tf.RaggedTensor.from_tensor(rows)  # pyright: ignore[reportAttributeAccessIssue]
    return values.merge_dims(1, -1) if values.shape.rank > 2 else values


def _spread(images):
    """PNGs with the levels 0 and 1, string `[n]`, as PNGs with 0 and 255."""

    def spread(image):
        levels = tf.io.decode_png(image)
        return tf.io.encode_png(tf.where(levels > 0, tf.constant(255, tf.uint8), levels))

    return tf.map_fn(spread, images)

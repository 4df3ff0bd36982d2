"""Examples in TFRecord files that are read from given bytes on, by TensorFlow ops only."""

import os
from collections.abc import Mapping
from concurrent import futures

import numpy as np
import tensorflow as tf

from pipelines.data.labels.encoding import FILLER, RaggedLabels
from pipelines.data.sources.files import stamp_of_files
from pipelines.data.sources.record_starts import record_starts
from pipelines.data.sources.source import READERS, DataSource, on_own_threads
from pipelines.errors import DataError, first_line

# More records would take more memory, since several runs are read at the same time.
_RECORDS_PER_RUN = 64
_BUFFER_BYTES = 2**20


class RecordFiles(DataSource):
    """Examples in TFRecord files; the base of `RecordSource` and `tfds_source.TfdsSource`.

    Args:
        files: mapping from each split that is used to its files: a list of
            (path, number of records), in stored order.
        image: name of the feature with the encoded image, in a `tf.train.Example`.
        label: `labels.rules.LabelRule`.
        others: see `DataSource`.
    """

    # For messages: the feature that names the classes, and how to read lists of labels.
    _listing, _lists = "the data set", ""
    location_signature: Mapping[str, tf.TensorSpec] = {
        "path": tf.TensorSpec([None], tf.string),
        "start": tf.TensorSpec([None], tf.int64),
        "count": tf.TensorSpec([None], tf.int64),
        "buffer": tf.TensorSpec([None], tf.int64),
    }

    def __init__(self, files, image, label, **others):
        super().__init__(**others)
        self._image, self._label = image, label
        self._splits = files
        # Path and number of records of all files in a row. For each split: its first file,
        # and where each of its files ends in the stored order.
        self._files = [file for split in files for file in files[split]]
        firsts = np.cumsum([0, *(len(files[split]) for split in files)])
        self._firsts = dict(zip(files, firsts.tolist(), strict=False))
        self._ends = {split: np.cumsum([n for _, n in files[split]]) for split in files}
        self._record_starts = {}  # For the files that were read so far, by their number.

    def locate(self, indices):
        """See `DataSource.locate`; a row is a run of records that follow one another in a file.

        Each run is a batch of `load`: the datasets that TensorFlow reads at the same time must have
        one element, or else an error in one of them would not end the others.
        """
        numbers, records = self._find(indices)
        missing = [number for number in np.unique(numbers) if number not in self._record_starts]
        if missing:
            with futures.ThreadPoolExecutor(READERS) as readers:
                found = readers.map(lambda number: record_starts(*self._files[number]), missing)
                self._record_starts.update(zip(missing, found, strict=True))
        begins, ends = _runs(numbers, records)
        start, size = np.zeros([2, len(begins)], np.int64)
        for number in np.unique(numbers):
            rows = numbers[begins] == number
            starts = self._record_starts[number]
            start[rows] = starts[records[begins[rows]]]
            size[rows] = starts[records[ends[rows]] + 1] - start[rows]
        path = np.empty(len(begins), object)
        path[:] = [os.fsencode(self._files[number][0]) for number in numbers[begins]]
        return {
            "path": path,
            "start": start,
            "count": ends - begins + 1,
            # Several reads of equal length, so that nothing behind the run is read.
            "buffer": -(-size // -(-size // _BUFFER_BYTES)),
        }

    def load(self, location):
        """See `DataSource.load`; the batches of a run have a fixed size."""
        num_classes = self.num_classes

        def check(images, labels):
            # Unlike an assertion, `tf.gather` keeps a dataset parallel with op determinism.
            values = tf.gather(tf.range(num_classes), labels.values)
            if self.multi_label:
                rows = labels.with_values(values).to_tensor(FILLER)
                # At least one column, see `labels.padded`.
                return images, tf.pad(rows, [[0, 0], [0, 1]], constant_values=FILLER)
            one = tf.gather([0], labels.row_lengths() - 1)  # Fails unless each has one label.
            return images, values + one

        return self._records(location).map(check)

    def _records(self, location):
        """Dataset of batches of images, string `[k]`, and their lists of labels, ragged int64."""
        features = {
            self._image: tf.io.FixedLenFeature([], tf.string),
            **{
                name: tf.io.RaggedFeature(dtype, row_splits_dtype=tf.int64)
                for name, dtype in self._label.reads.items()
            },
        }

        def parse(batch):
            found = tf.io.parse_example(batch, features)
            return self._prepared(found[self._image]), self._label.compute(found)

        def run(row):
            # Only the op behind tf.data.TFRecordDataset takes an offset.
            variant = tf.raw_ops.TFRecordDatasetV2(
                filenames=[row["path"]],
                compression_type="",
                buffer_size=row["buffer"],
                byte_offsets=[row["start"]],
            )
            records = tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))
            return records.take(row["count"]).batch(_RECORDS_PER_RUN).map(parse)

        return tf.data.Dataset.from_tensor_slices(location).interleave(
            run,
            cycle_length=READERS,
            num_parallel_calls=READERS,
            deterministic=True,
        )

    def _prepared(self, images):
        """The encoded images, string `[k]`, from the stored ones."""
        return images

    def _read_stored(self, indices):
        """See `DataSource._read_stored`; the errors name the file, or the example."""
        images, labels = self._parsed(self.locate(indices), len(indices))
        ids = self.ids(indices)
        self._check_labels(ids, labels)
        return images, labels.column(self.multi_label)

    def _parsed(self, location, count):
        """The records of a location: images, object `[count]`, and `RaggedLabels`, unchecked."""
        columns = {
            key: tf.constant(column, self.location_signature[key].dtype)
            for key, column in location.items()
        }
        dataset = self._records(columns).map(
            lambda images, labels: (images, labels.values, labels.row_lengths())
        )
        images, values, counts = [np.zeros(0, object)], [np.zeros(0, np.int64)], [[0]]
        try:
            for batch in on_own_threads(dataset).as_numpy_iterator():
                for column, part in zip((images, values, counts), batch, strict=True):
                    column.append(part)
        except tf.errors.OpError as error:
            files = np.unique(location["path"])
            for file in files if len(files) > 1 else ():  # The error does not name the file.
                rows = location["path"] == file
                part = {key: column[rows] for key, column in location.items()}
                self._parsed(part, int(part["count"].sum()))
            names = [os.fsdecode(file) for file in files[:3]]
            raise DataError(self._unreadable(first_line(error), names)) from None
        images = np.concatenate(images)
        if len(images) != count:
            raise DataError(
                f"{self} has {len(images)} records where {count} were expected. Its files have "
                f"changed; open it again."
            )
        return images, RaggedLabels(np.concatenate(values), np.cumsum(np.concatenate(counts)))

    def _unreadable(self, reason, files):
        """The text of the error for files that cannot be read or parsed."""
        return (
            f"{self} cannot be read: {reason}. {' or '.join(files)} is damaged, or its records "
            f"lack {self._image}. Write or copy it again."
        )

    def _check_labels(self, ids, labels):
        """Raises `DataError` if an example has wrong labels; `labels` are `RaggedLabels`."""
        if wrong := labels.find_wrong(self.num_classes):
            raise DataError(
                f"{self.describe(int(ids[wrong[0]]))} {wrong[1]}, as {self._listing} has "
                f"{self.num_classes} labels. Write the record again."
            )
        counts = np.diff(labels.bounds)
        if not self.multi_label and (counts != 1).any():
            first = np.argmax(counts != 1)
            raise DataError(
                f"{self.describe(int(ids[first]))} has {counts[first]} values of "
                f"{self._label.name}. Expected one{self._lists}."
            )

    def content_stamp(self):
        """See `DataSource.content_stamp`; a hash of the sizes and times of change of all files."""
        return stamp_of_files(
            [path for split in sorted(self._splits) for path, _ in self._splits[split]]
        )

    def _find(self, indices):
        """For each index the number of its file in `_files`, and its record's number there."""
        parts, stored = self._in_splits(indices)
        numbers, records = np.zeros([2, len(stored)], np.int64)
        for part in np.unique(parts):
            split, rows = self._split_ranges[part].split, parts == part
            own = np.searchsorted(self._ends[split], stored[rows], side="right")
            first = np.concatenate([[0], self._ends[split]])[own]
            numbers[rows], records[rows] = own + self._firsts[split], stored[rows] - first
        return numbers, records


def _runs(numbers, records):
    """The rows of the first and of the last record of each run, int64 arrays.

    Args:
        numbers: file of each record.
        records: its number in the file.
    """
    rows = np.arange(len(records))
    is_first = np.ones(len(records), bool)
    is_first[1:] = (np.diff(numbers) != 0) | (np.diff(records) != 1)
    # Long runs are cut: the rows since the beginning of each of them are counted.
    since = rows - np.maximum.accumulate(np.where(is_first, rows, 0))
    begins = np.flatnonzero(since % _RECORDS_PER_RUN == 0)
    return begins, np.append(begins[1:], len(records))[: len(begins)] - 1

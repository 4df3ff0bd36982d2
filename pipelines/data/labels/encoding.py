"""Labels of examples: one class per image, or a list of classes per image (multi-label).

Sources give single labels as int32 `[n]`, and lists as object `[n]` of int32 arrays, one array per
image, empty without labels. In a batch, a list is a row of `K` zeros and ones.
"""

import numpy as np
import tensorflow as tf

FILLER = -1  # In `padded`; `multi_hot` ignores it.


class RaggedLabels:
    """Lists of labels of many examples in two arrays, without an object for each example.

    Args:
        values: integers, the labels of all lists one after another; kept as int32, where larger
            ones become the largest.
        bounds: int64 `[n + 1]`; list `i` is `values[bounds[i]:bounds[i + 1]]`.
    """

    def __init__(self, values, bounds):
        values, limits = np.asarray(values), np.iinfo(np.int32)
        lowest = 0 if values.dtype.kind == "u" else limits.min
        self.values = np.clip(values, lowest, limits.max).astype(np.int32)
        self.bounds = np.asarray(bounds, np.int64)

    @classmethod
    def from_lists(cls, lists):
        """The labels of a sequence of lists of integers."""
        limit = np.iinfo(np.int64).max
        labels = (min(int(label), limit) for labels in lists for label in labels)
        values = np.fromiter(labels, np.int64)
        return cls(values, np.cumsum([0, *map(len, lists)]))

    def __len__(self):
        return len(self.bounds) - 1

    def __getitem__(self, rows):
        """The lists of some rows, integers `[m]` or a slice: object `[m]` of int32 arrays."""
        begins, ends = self.bounds[:-1][rows], self.bounds[1:][rows]
        lists = (self.values[b:e] for b, e in zip(begins, ends, strict=True))
        return np.fromiter(lists, object, len(begins))

    def column(self, multi_label):
        """All labels as a column of `Examples`: `multi_label` says whether lists are lists."""
        return self[:] if multi_label else self.values

    def tobytes(self):
        """The bytes of both arrays, for a hash."""
        return self.bounds.tobytes() + self.values.tobytes()

    def find_wrong(self, num_classes):
        """The first list with a label that is out of range or there twice.

        Returns:
            `(index of the list, problem)`, such as (3, "has the label 7 twice. Expected every label
            once"); None if there is none.
        """
        rows = np.repeat(np.arange(len(self)), np.diff(self.bounds))
        wrong = (self.values < 0) | (self.values >= num_classes)
        if wrong.any():
            first, fix = np.argmax(wrong), f". Expected 0 .. {num_classes - 1}"
            return int(rows[first]), f"has the label {self.values[first]}{fix}"
        order = np.lexsort((self.values, rows))
        twice = (np.diff(rows[order]) == 0) & (np.diff(self.values[order]) == 0)
        if twice.any():
            first, fix = order[np.argmax(twice)], " twice. Expected every label once"
            return int(rows[first]), f"has the label {self.values[first]}{fix}"
        return None


def no_labels(count, multi_label):
    """Labels for rows without an example: int32 zeros `[count]`, or `count` empty lists."""
    if not multi_label:
        return np.zeros(count, np.int32)
    return RaggedLabels([], np.zeros(count + 1))[:]


def padded(labels):
    """Returns single labels unchanged; lists as int32 `[n, longest]`, filled up with -1.

    There is at least one column: TensorFlow 2.20 crashes when it unbatches rows without any.
    """
    if labels.dtype != object:
        return labels
    rows = np.full([len(labels), max(map(len, labels), default=1) or 1], FILLER, np.int32)
    for row, values in zip(rows, labels, strict=True):
        row[: len(values)] = values
    return rows


def from_rows(rows, multi_label):
    """Returns the labels of `Examples` from a list of scalars, or of rows of `padded`."""
    if not multi_label:
        return np.array(rows, np.int32)
    return np.fromiter((row[row != FILLER] for row in rows), object, len(rows))


def multi_hot(labels, num_classes):
    """Ones at the labels of an example, float32 `[num_classes]`; `labels` is a row of `padded`.

    A label that is there twice is an error when the op runs.
    """
    counts = tf.scatter_nd(
        tf.maximum(labels, 0)[:, None], tf.cast(labels != FILLER, tf.int32), [num_classes]
    )
    # `tf.gather` refuses other counts, also in a dataset with op determinism.
    return tf.gather([0.0, 1.0], counts)


def as_targets(labels, num_classes):
    """Weights of the classes, float32 `[b, K]`, from the labels of a batch.

    Args:
        labels: int `[b]`; or float `[b, K]`, mixed or multi-label, which is returned unchanged.
        num_classes: `K`.
    """
    is_integer = tf.as_dtype(labels.dtype).is_integer
    return tf.one_hot(labels, num_classes) if is_integer else labels


def is_unicode(text):
    """Whether a text can be encoded as UTF-8; file names and JSON can hold lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True

"""Checks the number of examples of each class. NumPy only, as `evaluation/few_shot.py`."""

import numpy as np

from pipelines.errors import DataError, counted

_SHOWN = 5  # Classes that a line names at most.


def class_counts(source) -> np.ndarray | None:
    """The number of examples of each class, int64 `[num_classes]`, without reading images.

    None if the labels are stored with the images, or an example has a list of labels.
    """
    if source.multi_label or not source.labels_in_memory:
        return None
    labels = source.read_labels(np.arange(source.num_examples))
    return np.bincount(labels, minlength=source.num_classes)


def describe_sizes(source) -> str:
    """Describes the size of a `DataSource` and of its classes, the largest first."""
    text = f"{counted(source.num_examples, 'image')} of {source.num_classes:,} classes"
    counts = class_counts(source)
    if counts is None:
        return text
    order = [index for index in np.argsort(-counts, kind="stable") if counts[index]]
    shown = order if len(order) <= _SHOWN else [*order[:2], None, *order[-2:]]
    parts = ["..." if x is None else f"{source.labels[x]} {counts[x]:,}" for x in shown]
    absent = [source.labels[index] for index in np.flatnonzero(counts == 0)]
    more = " and others" if len(absent) > _SHOWN else ""
    without = f", none of {', '.join(absent[:_SHOWN])}{more}" if absent else ""
    return f"{text} ({', '.join(parts)}{without})"


def check_class_sizes(labels, source, needed, setting, otherwise) -> np.ndarray:
    """Checks that every class of a `DataSource` has enough examples.

    Args:
        labels: integers `[n]`, one for each example.
        source: the `DataSource` that they are from.
        needed: number of examples of each class.
        setting: name of the flag or field with this number, for the message.
        otherwise: the alternative to lowering it, for the message.

    Returns:
        The number of examples of each class, int64 `[num_classes]`.

    Raises:
        DataError: if a class has fewer.
    """
    counts = np.bincount(labels, minlength=source.num_classes)
    label = int(counts.argmin())
    if counts[label] < needed:
        fix = f"set {setting} to at most {counts[label]}, or {otherwise}"
        fix = fix if counts[label] else otherwise
        raise DataError(
            f"The class {source.labels[label]!r} of {source} has "
            f"{counted(int(counts[label]), 'image')}, fewer than the {needed} of {setting}. "
            f"{fix[0].upper()}{fix[1:]}."
        )
    return counts

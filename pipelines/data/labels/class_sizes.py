"""The number of examples of each class: lines and a check. NumPy only."""

import numpy as np

from pipelines.errors import DataError, counted

_SHOWN = 5  # Classes that a line names at most.


def describe_sizes(source) -> str:
    """Describes the size of a `DataSource` and, if the labels are in memory, of its classes."""
    images = counted(source.num_examples, "image")
    text = f"{images} of {source.num_classes:,} classes from {source}"
    if source.multi_label or not source.labels_in_memory:
        return text
    labels = source.read_labels(np.arange(source.num_examples))
    counts = np.bincount(labels, minlength=source.num_classes)
    return f"{text}: {name_sizes(source.labels, counts)}"


def name_sizes(names, counts, values=None) -> str:
    """Names the rarest and the largest classes with their counts, and those without examples.

    Args:
        names: those of all classes.
        counts: number of examples of each class.
        values: text for each class, which follows its count; None: nothing.
    """
    order = [index for index in np.argsort(counts, kind="stable") if counts[index]]
    shown = order if len(order) <= _SHOWN else [*order[: _SHOWN - 2], None, *order[-1:]]
    ends = [f" {value}" for value in values] if values is not None else [""] * len(names)
    parts = [
        "..." if index is None else f"{names[index]} ({counts[index]:,}){ends[index]}"
        for index in shown
    ]
    absent = [names[index] for index in np.flatnonzero(counts == 0)]
    more = " and others" if len(absent) > _SHOWN else ""
    return ", ".join(parts) + f"; none of {', '.join(absent[:_SHOWN])}{more}" * bool(absent)


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

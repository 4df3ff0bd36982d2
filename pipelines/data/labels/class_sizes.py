"""The number of examples of each class: lines, warnings and a check. NumPy only."""

import numpy as np

from pipelines.errors import DataError, counted

_SHOWN = 5  # Classes that a line names at most.
_FEW = 100  # An evaluation with fewer images gets a warning: one is more than 1 % of the accuracy.


def describe_sizes(source) -> str:
    """Describes the size of a `DataSource` and, if the labels are in memory, of its classes."""
    images = counted(source.num_examples, "image")
    text = f"{images} of {source.num_classes:,} classes from {source}"
    if source.multi_label or not source.labels_in_memory:
        return text
    return f"{text}: {name_sizes(source.labels, _count(source))}"


def size_warnings(train, evaluation) -> list[str]:
    """Warnings about classes that are only trained or evaluated, and about few evaluation images.

    Args:
        train, evaluation: `DataSource`s; their classes count if the labels are in memory.
    """
    lines = [f"warning: {line}" for line in few_images(evaluation)]
    if not (train.labels_in_memory and evaluation.labels_in_memory):
        return lines
    trained, evaluated = _count(train), _count(evaluation)
    for there, missing, what in (
        (trained, evaluated, "trained and never evaluated"),
        (evaluated, trained, "evaluated and never trained"),
    ):
        rows = np.flatnonzero((there > 0) & (missing == 0))
        if len(rows):
            named = ", ".join(f"{train.labels[row]} ({there[row]:,})" for row in rows[:_SHOWN])
            more = ", ..." * (len(rows) > _SHOWN)
            lines.append(
                f"warning: {len(rows):,} of {len(there):,} classes {what}, with their images: "
                f"{named}{more}. Add images of them, leave them out, or choose other ranges for "
                "data.train_split and data.eval_split."
            )
    return lines


def few_images(evaluation) -> list[str]:
    """A sentence if an evaluation has so few images that its accuracy is coarse, or nothing."""
    count = evaluation.num_examples
    if count >= _FEW:
        return []
    return [
        f"only {counted(count, 'image')} to evaluate: each is {1 / count:.1%} of the "
        "accuracy. Add images, or take more of them for data.eval_split."
    ]


def _count(source):
    """The examples of each class, int64 `[K]`; one with several labels counts for each."""
    labels = source.read_labels(np.arange(source.num_examples))
    labels = np.concatenate(labels) if source.multi_label else labels
    return np.bincount(labels, minlength=source.num_classes)


def name_sizes(names, counts, values=None) -> str:
    """Names the rarest and the largest classes with their counts, and those without examples.

    Args:
        names: the names of all classes.
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

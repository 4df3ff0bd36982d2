"""Checks the number of examples of each class. NumPy only, as `evaluation/few_shot.py`."""

import numpy as np

from pipelines.errors import DataError


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
            f"The class {source.labels[label]!r} of {source} has {counts[label]:,} images, fewer "
            f"than the {needed} of {setting}. {fix[0].upper()}{fix[1:]}."
        )
    return counts

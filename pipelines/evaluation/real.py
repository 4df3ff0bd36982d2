"""The accuracy on ReaL's lists of labels (docs/paper.md H.5). NumPy only."""

import numpy as np

from pipelines.evaluation.predictions import top_classes

# Images of ImageNet's validation split that have a label, of 50,000.
LABELED = 46_837


def real_accuracy(logits, labels) -> float:
    """The share of the images whose most probable class is one of their labels.

    Images without labels do not count (Beyer et al., *Are we done with ImageNet?*, arXiv
    2006.07159).

    Args:
        logits: finite floats `[n, K]`; of ImageNet's classes K = 1000. The first of equal logits is
            the most probable class.
        labels: `n` collections of classes 0 .. K - 1, such as lists, sets or arrays.

    Raises:
        ValueError: if the shapes do not fit, a label is out of range, or no image has a label.
    """
    best, classes = top_classes(logits, 1)[:, 0], np.shape(logits)[1]
    if len(labels) != len(best):
        raise ValueError(
            f"Expected a collection of labels for each row of logits. Received: {len(labels)} "
            f"collections for {len(best)} rows."
        )
    for own in labels:
        for label in own:
            if not 0 <= label < classes:
                raise ValueError(f"Expected labels from 0 to {classes - 1}. Received: {label}.")
    return labeled_accuracy(best, labels)


def labeled_accuracy(best, labels) -> float:
    """`real_accuracy` of the most probable class of each image, int `[n]`."""
    right = [x in own for x, own in zip(best, labels, strict=True) if len(own)]
    if not right:
        raise ValueError("Expected an image with a label. Received: none.")
    return float(np.mean(right))

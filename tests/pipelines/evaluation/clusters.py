"""Features of random classes."""

import numpy as np


def clusters(count, width, num_classes, seed=0, spread=2.0):
    """Random classes around random centers: `(features float32, labels int32)`, shuffled."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(count) % num_classes).astype(np.int32)
    centers = np.random.default_rng(99).normal(size=(num_classes, width))
    return (centers[labels] + spread * rng.normal(size=(count, width))).astype(np.float32), labels

"""Makes training batches from one flat dictionary of options, and compares batches."""

import dataclasses

import numpy as np

from pipelines.config.augmentation import Augmentation
from pipelines.config.data import Sampling
from pipelines.data import pipeline

KEYS = ("image", "label", "id", "slot", "weight")


def train_dataset(source, **options):
    """`pipeline.train_dataset`; `options` include fields of `Sampling` and `Augmentation`."""
    options = {"sharding": "global"} | options
    sampling, augmentation = (_pop(cls, options) for cls in (Sampling, Augmentation))
    return pipeline.train_dataset(source, sampling, augmentation, **options)


def _pop(cls, options):
    """Makes a dataclass object from its fields in the options, and removes these there."""
    names = {field.name for field in dataclasses.fields(cls)} & options.keys()
    return cls(**{name: options.pop(name) for name in names})


def to_numpy(dataset):
    return [{key: value.numpy() for key, value in batch.items()} for batch in dataset]


def assert_equal(batches, expected):
    assert len(batches) == len(expected)
    for batch, other in zip(batches, expected, strict=True):
        assert batch.keys() == other.keys() == set(KEYS)
        for key in KEYS:
            np.testing.assert_array_equal(batch[key], other[key], err_msg=key)


def join(parts):
    """Joins the lists of each replica's batches to global batches, in the order of the replicas."""
    return [
        {key: np.concatenate([part[key] for part in step]) for key in KEYS}
        for step in zip(*parts, strict=True)
    ]

"""Imports the packages of data, which must start no device."""

import tensorflow as tf

from pipelines.data import (  # noqa: F401
    batch_listing,
    decoding,
    order,
    pipeline,
    stateless_random,
)
from pipelines.data.builtin import digits, shapes  # noqa: F401
from pipelines.data.sources import arrays, open, record_writer, tfds_catalog  # noqa: F401
from pipelines.data.transforms import augmentation, mixing, randaugment  # noqa: F401

if __name__ == "__main__":
    # Impossible once TensorFlow has started its devices.
    tf.config.threading.set_inter_op_parallelism_threads(1)

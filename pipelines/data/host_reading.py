"""Checks that the hosts which one process drives can read its data."""

import numpy as np
import tensorflow as tf

from pipelines.data.bad_images import INPUT_ERRORS
from pipelines.distribution.strategies import is_tpu, num_hosts
from pipelines.errors import DataError, first_line

_BUCKETS = 2**31 - 1  # of a hash: TPUs get no strings


def check_hosts(strategy, source):
    """Checks that all hosts of a TPU slice read the same first image.

    The process of a slice locates the images, and each host reads its own. A folder of one host is
    not there on the others: with `data.bad_images=skip` their images would all be left out.

    Args:
        strategy: the `tf.distribute.Strategy`; only TPUs have hosts without a process of their own.
        source: the `DataSource` to read from.

    Raises:
        DataError: if a host cannot read the image, or reads other bytes.
    """
    if not is_tpu(strategy) or (hosts := num_hosts(strategy)) == 1:
        return

    def hashes(context):
        images = source.load_at(np.array([0])).map(lambda images, labels: images).unbatch()
        found = images.map(lambda image: tf.strings.to_hash_bucket_fast(image, _BUCKETS))
        return found.repeat(context.num_replicas_in_sync // hosts)

    try:
        read = next(iter(strategy.distribute_datasets_from_function(hashes)))
        found = {int(value.numpy()) for value in strategy.experimental_local_results(read)}
    except INPUT_ERRORS as error:
        reason = f"one of them cannot read the first image: {first_line(error)}"
    else:
        if len(found) == 1:
            return
        reason = "the bytes of its first image are not the same on all of them"
    raise DataError(
        f"{hosts} hosts of the TPU read {source}, and {reason}. Put the data at a URL, such as "
        "gs://bucket/data, or into a folder that all hosts share."
    )

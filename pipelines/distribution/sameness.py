"""What must be equal in all workers before the first step: programs, data, weights."""

import hashlib
import os
import platform
import zlib

import keras
import numpy as np
import tensorflow as tf

import custom_ops
import vit_tf
from pipelines.distribution.group import current_group
from vit_tf.files import storage

# Examples of a data set whose files are compared.
_SAMPLE = 1000


def program(devices) -> dict:
    """The code, libraries and devices of this process.

    Args:
        devices: text about those that share its part of a batch.
    """
    ops = custom_ops.describe()
    return {
        "devices": devices,
        "versions": {
            "python": platform.python_version(),
            "tensorflow": tf.__version__,
            "keras": keras.__version__,
            "numpy": np.__version__,
        },
        "compiled ops": {
            "implementation": ops["implementation"],
            "compiled": ops["compiled"],
            "library": _file_digest(ops["path"]) if ops["compiled"] else None,
        },
        "code": {
            path: digest
            for package in (custom_ops.__file__, vit_tf.__file__, os.path.dirname(__file__))
            for path, digest in _code(os.path.dirname(package))
        },
    }


def _code(folder):
    """Yields path and digest of each Python file of a package."""
    top = os.path.dirname(folder)
    for directory, _, names in sorted(os.walk(folder)):
        for name in sorted(names):
            if name.endswith(".py"):
                path = os.path.join(directory, name)
                yield os.path.relpath(path, top), _file_digest(path)


def _file_digest(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:12]


def check_same_data(what, sources):
    """Checks that all workers read the same data.

    Compared are what a manifest holds (data set, version, number of images, names of the classes),
    the sizes of the shards, and names and sizes of at most 1,000 files, evenly over the data.

    Args:
        what: name of the data, for the message.
        sources: use -> `DataSource`. Two uses of one split may have different parts of it.

    Raises:
        UserError: if two workers read different data; in all workers.
    """
    if current_group().count > 1:
        contents = {use: _content(source) for use, source in sources.items()}
        current_group().compare(what, contents)


def _content(source):
    """What is compared of a `DataSource`."""
    count = source.num_examples
    sample = np.unique(np.linspace(0, count - 1, min(count, _SAMPLE)).round().astype(np.int64))
    files = {}
    for example_id in map(int, source.ids(sample)):
        path = source.path(example_id)
        files[source.describe(example_id)] = _size(path) if path else None
    lengths = ",".join(map(str, source.shard_lengths))
    return {
        **source.manifest(),
        "shards": len(source.shard_lengths),
        "lengths of the shards": hashlib.sha256(lengths.encode()).hexdigest()[:12],
        "files": files,
    }


def _size(path):
    try:
        return storage.size_and_time(path)[0]
    except OSError as error:
        return error.strerror


def check_same_weights(what, variables):
    """Checks that variables have the same bits in all workers.

    Args:
        what: where they are from, for the message.
        variables: Keras variables.

    Raises:
        UserError: if they differ; in all workers.
    """
    if current_group().count > 1:
        checksums = {x.path: zlib.crc32(np.ascontiguousarray(x.numpy())) for x in variables}
        current_group().compare(what, {"checksums": checksums})

"""The bytes of files: their checksum, and that they are on disk."""

import hashlib
import os

from vit_tf.files import storage


def sha256(path) -> str:
    """The checksum of a file or URL."""
    digest = hashlib.sha256()
    for part in storage.chunks(path):
        digest.update(part)
    return digest.hexdigest()


def to_disk(path):
    """Flushes a file, or a rename in a directory, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

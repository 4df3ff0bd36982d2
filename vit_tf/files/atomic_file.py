"""Writes files so that a reader never sees an incomplete file, even after a crash."""

import os

from vit_tf.files import storage
from vit_tf.files.temporary import new_file


def write_atomically(path, write):
    """Writes a temporary file in the same directory, flushes it to disk and renames it.

    A URL is written as one whole object: object stores have no rename, and show no partial object.

    Args:
        path: file name or URL; its directory must exist.
        write: called with the open binary file.
    """
    path = os.fspath(path)
    if storage.is_url(path):
        storage.write_object(path, write)
        return
    directory = os.path.dirname(os.path.abspath(path))
    file = new_file(directory, f"{os.path.basename(path)}.")
    try:
        with file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(file.name, path)
    except BaseException:
        os.unlink(file.name)
        raise

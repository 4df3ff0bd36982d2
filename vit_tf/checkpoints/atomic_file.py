"""Writes files so that a reader never sees an incomplete file, even after a crash."""

import os
import tempfile


def write_atomically(path, write):
    """Writes a temporary file in the same directory, flushes it to disk and renames it.

    Args:
        path: file name; its directory must exist.
        write: called with the open binary file.
    """
    path = os.fspath(path)
    directory = os.path.dirname(os.path.abspath(path))
    descriptor, temporary = tempfile.mkstemp(dir=directory, prefix=os.path.basename(path) + ".")
    try:
        with os.fdopen(descriptor, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise

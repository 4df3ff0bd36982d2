"""New files and folders under random names, which are renamed when they are complete.

Unlike files of the module `tempfile`, they have the usual permissions: the umask decides who may
read them.
"""

import os
import secrets


def new_file(folder, prefix):
    """Creates a file in a folder; returns it, open for binary writing. Its `name` is the path."""
    return open(_path(folder, prefix), "xb")


def new_folder(folder, prefix) -> str:
    """Creates a folder in another one; returns its path."""
    path = _path(folder, prefix)
    os.mkdir(path)
    return path


def _path(folder, prefix):
    return os.path.join(folder, f"{prefix}{secrets.token_hex(6)}")

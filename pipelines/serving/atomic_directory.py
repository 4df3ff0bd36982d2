"""Writes a directory atomically: readers never see a partial one."""

import contextlib
import os
import shutil
import tempfile

from pipelines.errors import UserError
from vit_tf.files import storage
from vit_tf.files.temporary import new_folder


@contextlib.contextmanager
def atomic_directory(path, marker):
    """Yields a new directory beside `path` that replaces `path` when the block ends.

    If the block raises, the new directory and the parents created for it are removed.

    Args:
        path: the directory. Its URL is replaced by a copy of the new directory, which is then a
            local one.
        marker: the file of the directory that is copied last and deleted first: a URL without it
            holds an incomplete copy.

    Raises:
        UserError: if the parent of `path` (`--output`) cannot be created or written.
    """
    if storage.is_url(path):
        with tempfile.TemporaryDirectory() as temporary:
            yield temporary
            _copy(temporary, path, marker)
        return
    parent, name = os.path.split(path)
    created = _make_directories(parent)
    try:
        temporary = new_folder(parent, f".{name}.")
    except OSError as error:
        raise UserError(f"Cannot write to --output {parent}: {error.strerror}.") from None
    try:
        yield temporary
        _replace(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        for directory in created:
            with contextlib.suppress(OSError):
                os.rmdir(directory)
        raise


def _copy(folder, url, marker):
    try:
        if storage.exists(storage.join(url, marker)):
            storage.remove(storage.join(url, marker))
        storage.remove_folder(url)
        storage.upload_folder(folder, url, last=[marker])
    except OSError as error:
        raise UserError(f"Cannot write to --output {url}: {error.strerror}.") from None


def _make_directories(path):
    """Creates `path` and its parents; returns the folders that were missing, the deepest first."""
    missing, directory = [], os.path.abspath(path)
    while not os.path.exists(directory):
        missing.append(directory)
        directory = os.path.dirname(directory)
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise UserError(f"Cannot create --output {path}: {error.strerror}.") from None
    return missing


def _replace(temporary, path):
    """Renames `temporary` to `path`; an old directory there is moved aside and deleted last."""
    if not os.path.lexists(path):
        os.rename(temporary, path)
        return
    parent, name = os.path.split(path)
    aside = new_folder(parent, f".{name}.old.")
    old = os.path.join(aside, name)
    try:
        os.rename(path, old)
        try:
            os.rename(temporary, path)
        except BaseException:
            os.rename(old, path)
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)

"""Files on local disks and behind URLs, with one set of functions and errors.

A URL names a file of any file system that `tf.io.gfile` has, such as `gs://bucket/run`; `ram://` is
the memory of this process. A local path takes Python's own functions, and never loads TensorFlow.

An object store has no folders, no links, no append and no atomic rename: so a URL is always written
as a whole object and never renamed. Every function raises `OSError`, with the path as `filename`.
"""

import contextlib
import errno
import os
import re
import shutil
import tempfile

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_CHUNK = 2**23
# The copy of a larger object is on the disk, not in memory.
_MOST_IN_MEMORY = 2**26


def is_url(path) -> bool:
    """Whether a path is a URL and not a local path."""
    return _URL.match(os.fspath(path)) is not None


def join(folder, path) -> str:
    """`os.path.join`, which would put a URL behind the folder."""
    return path if is_url(path) else os.path.join(folder, path)


def normal(path) -> str:
    """The path; `file:///a` is `/a`, and a URL loses slashes at its end: `a//b` is not `a/b`."""
    path = os.fspath(path)
    if path.lower().startswith("file:///"):
        return path[len("file://") :]
    return path.rstrip("/") if is_url(path) else path


def absolute(path) -> str:
    """`normal`, and a local path is made absolute."""
    path = normal(path)
    return path if is_url(path) else os.path.abspath(path)


def exists(path) -> bool:
    """Whether there is a file or a folder."""
    return _status(path) is not None if is_url(path) else os.path.exists(path)


def is_folder(path) -> bool:
    """Whether there is a folder; of an object store, a prefix of names."""
    if not is_url(path):
        return os.path.isdir(path)
    status = _status(path)
    return status is not None and status.is_directory


def is_file(path) -> bool:
    """Whether there is a regular file."""
    if not is_url(path):
        return os.path.isfile(path)
    status = _status(path)
    return status is not None and not status.is_directory


def size_and_time(path) -> tuple[int, int]:
    """Size in bytes, and time of the last change in ns; the time is 0 if the store has none."""
    if not is_url(path):
        status = os.stat(path)
        return status.st_size, status.st_mtime_ns
    if (status := _status(path)) is None:
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return status.length, status.mtime_nsec


def list_names(folder) -> list[str]:
    """The sorted names in a folder."""
    return sorted([x for x, _ in _entries(folder)] if is_url(folder) else os.listdir(folder))


def list_folder(folder, suffixes=()) -> tuple[list[str], list[str]]:
    """The sorted names of the folders, and of all other entries, in the folder of a URL.

    Args:
        folder: a URL.
        suffixes: endings of the names of files, in lower case; asking a store what each name is
            would cost a request for each.
    """
    folders, others = [], []
    for name, marked in _entries(folder):
        known = name.lower().endswith(tuple(suffixes)) if suffixes else False
        found = marked or (not known and is_folder(join(folder, name)))
        (folders if found else others).append(name)
    return sorted(folders), sorted(others)


def walk(folder, suffixes=()):
    """`os.walk`; a URL must name a folder. For `suffixes` see `list_folder`."""
    if not is_url(folder):
        yield from os.walk(folder)
        return
    folders, files = list_folder(folder, suffixes)
    yield folder, folders, files
    for name in folders:
        yield from walk(join(folder, name), suffixes)


def make_folders(path):
    """Creates a folder and its parents, where they are missing."""
    if not is_url(path):
        os.makedirs(path, exist_ok=True)
        return
    if is_file(path):  # Object stores would accept it.
        raise OSError(errno.ENOTDIR, "it is a file, not a folder", path)
    with _os_errors(path):
        _gfile().makedirs(path)


def remove(path):
    """Deletes a file."""
    if not is_url(path):
        os.remove(path)
        return
    with _os_errors(path):
        _gfile().remove(path)


def remove_folder(path):
    """Deletes a folder with all that it holds; ignores files that cannot be deleted."""
    if not is_url(path):
        shutil.rmtree(path, ignore_errors=True)
        return
    with contextlib.suppress(OSError), _os_errors(path):
        _gfile().rmtree(path)


def open_local(path):
    """Opens a file to read bytes at any place; a URL is first copied to an unnamed local file."""
    if not is_url(path):
        return open(path, "rb")
    copy = tempfile.SpooledTemporaryFile(_MOST_IN_MEMORY)  # noqa: SIM115 - closed by the caller
    try:
        for chunk in chunks(path):
            copy.write(chunk)
        copy.seek(0)
    except BaseException:
        copy.close()
        raise
    return copy


def read(path, limit) -> bytes:
    """The first bytes of a file, at most `limit`; asks for no size, which could be outdated."""
    if not is_url(path):
        with open(path, "rb") as file:
            return file.read(limit)
    with _os_errors(path), _gfile().GFile(path, "rb") as file:
        return file.read(limit)


def chunks(path):
    """Yields the content of a file in parts of some MB."""
    is_remote = is_url(path)
    with _os_errors(path), _gfile().GFile(path, "rb") if is_remote else open(path, "rb") as file:
        while part := file.read(_CHUNK):
            yield part


def write_object(url, write):
    """Writes a URL as one whole object; readers see the object before or after it.

    Args:
        url: the URL.
        write: called with an open binary file.
    """
    # A named file: `upload` is one call, while an object that is written in parts would be closed,
    # and so replaced by its first parts, if an exception came between two of them.
    with tempfile.NamedTemporaryFile() as file:
        write(file)
        file.flush()
        upload(file.name, url)


def upload(path, url):
    """Copies a local file to a URL."""
    with _os_errors(url):
        # TensorFlow appends to a file of ram:// where other file systems replace it as a whole.
        new = f"{url}.new" if url.startswith("ram://") else url
        _gfile().copy(os.fspath(path), new, overwrite=True)
        if new != url:
            _gfile().rename(new, url, overwrite=True)


def upload_folder(folder, url, last=()):
    """Copies a local folder to a URL.

    Args:
        folder: the local folder.
        url: where its files go.
        last: paths below the folder that are written after all others, in this order: a marker
            that is there says that everything is.
    """
    found = [
        os.path.relpath(os.path.join(parent, name), folder)
        for parent, _, names in os.walk(folder)
        for name in names
    ]
    for parent in sorted({os.path.dirname(name) for name in found}):
        make_folders(join(url, parent).rstrip("/"))
    for name in [*sorted(set(found) - set(last)), *last]:
        upload(os.path.join(folder, name), join(url, name))


def download_folder(url, folder):
    """Copies the files directly in the folder of a URL to a local folder."""
    for name in list_folder(url)[1]:
        with open(os.path.join(folder, name), "wb") as file:
            for part in chunks(join(url, name)):
                file.write(part)


def _entries(folder):
    """Yields each name in the folder of a URL, and whether the store marks it as a folder."""
    with _os_errors(folder):
        names = _gfile().listdir(folder)
    for name in names:
        if stripped := name.strip("/"):
            yield stripped, name.endswith("/")


def _status(url):
    """TensorFlow's `FileStatistics` of a URL; None if there is nothing."""
    import tensorflow as tf

    with _os_errors(url):
        try:
            return _gfile().stat(url)
        except tf.errors.NotFoundError:
            return None


def _gfile():
    import tensorflow as tf  # here, since local paths need no TensorFlow

    return tf.io.gfile


@contextlib.contextmanager
def _os_errors(path):
    """Raises errors of TensorFlow's file systems as `OSError`; does nothing for a local path."""
    if not is_url(path):
        yield
        return
    import tensorflow as tf

    numbers = {
        tf.errors.NotFoundError: errno.ENOENT,
        tf.errors.PermissionDeniedError: errno.EACCES,
        tf.errors.UnauthenticatedError: errno.EACCES,
        tf.errors.ResourceExhaustedError: errno.ENOSPC,
    }
    try:
        yield
    except tf.errors.OpError as error:
        number = numbers.get(type(error), errno.EIO)
        reason = (error.message.strip().splitlines() or [os.strerror(number)])[0][:200].rstrip(".")
        if number == errno.ENOENT:
            reason = os.strerror(number)
        if isinstance(error, tf.errors.UnimplementedError):
            scheme = _URL.match(os.fspath(path))[1]  # pyright: ignore[reportOptionalSubscript]
            reason = f"this TensorFlow has no file system for {scheme}://"
        raise OSError(number, reason, os.fspath(path)) from None

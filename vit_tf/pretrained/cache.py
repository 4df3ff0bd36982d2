"""The cache of published weights: a folder of files that were checked when they came.

A file that was verified (`verified.py`) must be the same. Any other is trusted on first use: its
sha256 is recorded then, and compared at every later use.
"""

import contextlib
import fcntl
import functools
import hashlib
import os
import sys
import urllib.parse

from vit_tf.checkpoints.published.npz_archive import NpzArchive
from vit_tf.files.atomic_file import write_atomically
from vit_tf.pretrained.download import DownloadError, download, remove_state

# A folder, or the address of a server, that has the files instead of the authors' server.
MIRROR = "VIT_WEIGHTS_MIRROR"


def cache_path(record) -> str:
    """Where the file of a record is kept: below KERAS_HOME, which by default is `~/.keras`."""
    home = os.environ.get("KERAS_HOME") or os.path.join(os.path.expanduser("~"), ".keras")
    return os.path.join(home, "vit_tf", f"{record.name}.npz")


def fetch(record, describe) -> str:
    """The path of the file of a record, which is downloaded if it is not in the cache.

    Args:
        record: a `WeightsRecord`.
        describe: called as `describe(file, path)` with a new file that was not renamed to `path`
            yet; writes the sidecar of `path`, or raises ValueError if the file is no model.

    Raises:
        DownloadError: if the file cannot be downloaded, is damaged, or is not the file that was
            verified or first used.
    """
    path = cache_path(record)
    if not _is_complete(path):
        try:
            with _lock(path, record.name):
                if not _is_complete(path):
                    _add(record, path, describe)
                    return path
        except DownloadError:
            raise
        except OSError as error:
            raise DownloadError(
                f"Cannot write {path}: {error.strerror}. Set KERAS_HOME to a folder that you can "
                "write to."
            ) from None
    _check_verified(record, path, path)
    _check_digest(path, path, "Delete it to download it again")
    return path


def _is_complete(path):
    return all(os.path.exists(file) for file in (path, _digest_path(path), path + ".json"))


def _add(record, path, describe):
    """Downloads the file of a record unless somebody put it there, checks and describes it."""
    new = path
    if not os.path.exists(path):
        new = path + ".part"
        download(_url(record), new, record.most_bytes, record.name)
    try:
        archive = NpzArchive(new)
        with contextlib.closing(archive):
            archive.check_all()
        _check_verified(record, new, path)
        _check_digest(
            new, path, f"If you trust the new file, delete {_digest_path(path)} and try again"
        )
        if new != path or not os.path.exists(path + ".json"):
            describe(new, path)
        if not os.path.exists(_digest_path(path)):
            line = f"{digest(new)}  {os.path.basename(path)}\n"
            write_atomically(_digest_path(path), lambda file: file.write(line.encode()))
    except (ValueError, OSError) as error:
        if new != path:
            os.unlink(new)
            remove_state(new)
        if isinstance(error, OSError) and not isinstance(error, DownloadError):
            raise
        raise DownloadError(str(error).replace(new, path)) from None
    os.replace(new, path)
    remove_state(new)


def _url(record):
    """The address of the file of a record: https, or another scheme of a mirror."""
    address = urllib.parse.urlsplit(record.url)
    path, mirror = urllib.parse.quote(address.path.lstrip("/")), os.environ.get(MIRROR, "")
    if not mirror:
        return f"{address.scheme}://{address.netloc}/{path}"
    if "://" not in mirror:
        mirror = "file://" + urllib.parse.quote(os.path.abspath(mirror))
    if urllib.parse.urlsplit(mirror).scheme not in ("http", "https", "file"):
        raise DownloadError(
            f"{MIRROR} must be a folder, or an address that begins with https, http or file. "
            f"Received: {mirror!r}."
        )
    return f"{mirror.rstrip('/')}/{path}"


def _check_verified(record, file, path):
    """Raises `DownloadError` if `file`, the one of `path`, has another digest than was verified."""
    if record.verified and (found := digest(file)) != record.verified.sha256:
        fix = f"Delete it to download {record.name} again"
        if file != path:
            fix = f"It was not kept. Set {MIRROR} to a folder or server that has the right file"
        raise DownloadError(
            f"{path} is not the file {record.name} that was verified: its sha256 is "
            f"{found[:12]}..., expected {record.verified.sha256[:12]}.... {fix}."
        )


def _check_digest(file, path, fix):
    """Raises `DownloadError` if `file` has another digest than the one recorded for `path`."""
    try:
        with open(_digest_path(path), encoding="ascii", errors="replace") as recorded:
            expected = recorded.read(64)
    except FileNotFoundError:
        return
    if (found := digest(file)) != expected:
        raise DownloadError(
            f"{path} is not the file that was first used: its sha256 is {found[:12]}..., expected "
            f"{expected[:12]}.... {fix}."
        )


def _digest_path(path):
    return path + ".sha256"


def digest(path) -> str:
    """The sha256 of a file in hexadecimal."""
    status = os.stat(path)
    return _digest_of(path, status.st_ino, status.st_mtime_ns, status.st_size)


@functools.lru_cache
def _digest_of(path, *state):
    """The sha256 of a file, computed once in a process for each `state` of the file."""
    del state
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def _lock(path, name):
    """Lets one process at a time add a file to the cache; the others wait for it."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for another process that downloads {name}", file=sys.stderr, flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            pass  # The file system has no locks.
        yield

"""One writer per workdir: a locked file in it, for as long as the training process lives.

The operating system releases the lock when the process ends, also by SIGKILL. Readers take none.
"""

import contextlib
import errno
import fcntl
import json
import os
import socket
import time
from pathlib import Path

from pipelines.errors import RunError, UserError
from pipelines.runs.json_file import read_json

_NAME = "lock"
# File systems without locks, such as Lustre mounted without `flock`, answer with these.
_UNSUPPORTED = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)


@contextlib.contextmanager
def only_writer(workdir, log):
    """Makes a workdir and holds its lock; a workdir that is left empty is removed again.

    Args:
        workdir: its path.
        log: called with a warning where the file system has no locks.

    Raises:
        UserError: if another process holds the lock, which is named, or the directory cannot be
            made.
        RunError: if the disk is full.
    """
    workdir = Path(workdir)
    path = workdir / _NAME
    try:
        made = [folder for folder in (workdir, *workdir.parents) if not folder.exists()]
        workdir.mkdir(parents=True, exist_ok=True)
        lock = _acquire(path, log)
    except OSError as error:
        raise cannot_write(workdir, error) from None
    try:
        yield
    finally:
        # Removed before it is released, so that it is never the file of the next process.
        if _is_at(lock, path):
            os.unlink(path)
        os.close(lock)
        with contextlib.suppress(OSError):  # The run has left something in it.
            for folder in made:
                folder.rmdir()


def cannot_write(workdir, error):
    """The error to raise when an `OSError` has stopped the first write to a workdir."""
    problem = f"Cannot write to --workdir {workdir}: {error.strerror}."
    return RunError(problem) if error.errno == errno.ENOSPC else UserError(problem)


def _acquire(path, log):
    """Locks a file, with what names this process in it; returns its descriptor."""
    holder = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": time.strftime("%Y-%m-%d %H:%M:%S %z"),
    }
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock(lock, path, log)
            if _is_at(lock, path):
                os.ftruncate(lock, 0)
                os.write(lock, json.dumps(holder).encode())
                return lock
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)  # The process that held it has just removed it.


def _lock(lock, path, log):
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(
            f"{path.parent} is in use by {_describe_holder(path)}. Wait for its end or stop it, or "
            "choose another --workdir."
        ) from None
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        log(
            f"{path.parent} cannot be locked ({error.strerror}): a second process that trains "
            "there at the same time would damage the run"
        )


def _is_at(lock, path):
    """Whether an open file is still the one at a path."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(lock), os.stat(path))
    return False


def _describe_holder(path):
    try:
        holder = read_json(path)
    except UserError:  # Locked this moment, and not written yet.
        return "another process"
    pid, host, since = (str(holder.get(key))[:80] for key in ("pid", "host", "since"))
    return f"process {pid} on {host} since {since}"

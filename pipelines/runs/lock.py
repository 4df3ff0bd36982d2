"""Allows one writer per workdir: the training process locks a file in it until the process ends.

The operating system releases the lock when the process ends, also after SIGKILL. Readers do not
lock. A workdir behind a URL has a lease instead, see `lease.py`.
"""

import contextlib
import errno
import fcntl
import json
import logging
import os
from pathlib import Path

from pipelines.distribution.group import current_group
from pipelines.distribution.shared_folder import is_seen
from pipelines.errors import InUseError, RunError, UserError
from pipelines.runs import lease
from pipelines.runs.json_file import read_json
from vit_tf.files import storage

_log = logging.getLogger(__name__)

_NAME = "lock"
# Files of an otherwise empty workdir while it has a writer.
LOCKS = {_NAME, lease.NAME}
# Tries to create the folder and open the file before an error is reported.
_OPENS = 20
# Errors of file systems without locks, such as Lustre mounted without `flock`.
_UNSUPPORTED = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)


def only_writer(workdir, flag="--workdir"):
    """Creates a workdir and holds its lock; afterwards removes the workdir if it is empty.

    Args:
        workdir: path or URL of the workdir.
        flag: the flag that names it, for messages.

    Returns:
        A context manager of a function without arguments; call it before writing: it raises
        `RunError` if another process has taken the lease.

    Raises:
        InUseError: if another process holds the lock; the message names it.
        UserError: if the directory cannot be created.
        RunError: if the disk is full.
    """
    workdir = storage.normal(workdir)
    return _leased(workdir, flag) if storage.is_url(workdir) else _locked(Path(workdir), flag)


@contextlib.contextmanager
def written_by_chief(workdir):
    """The same for all workers of a run: the chief holds the lock, and the others must see it.

    Yields the function of `only_writer`, or None in another worker. Errors are raised in all, also
    a `UserError` if a worker does not see the lock.
    """
    with contextlib.ExitStack() as stack:
        checks = []
        current_group().from_chief(lambda: checks.append(stack.enter_context(only_writer(workdir))))
        _check_shared(workdir)
        yield checks[0] if checks else None


def _check_shared(workdir):
    """Checks that all workers see the workdir of the chief, which they need to resume.

    A folder of the same name may have the files of another run, but not the lock of this one.
    """
    group = current_group()
    if group.count == 1:
        return
    workdir = storage.normal(workdir)
    holder = group.from_chief(lambda: _holder(workdir))
    seen = group.gather(is_seen(lambda: _holder(workdir) == holder))
    if blind := [index for index, sees in enumerate(seen) if not sees]:
        raise UserError(
            f"Worker {blind[0]} does not see the workdir of worker 0, {workdir}. Choose a "
            "--workdir in a folder that all machines share, or a URL."
        )


def _holder(workdir):
    """What the lock or lease of a workdir says about the process that holds it."""
    try:
        values = read_json(storage.join(workdir, lease.NAME if storage.is_url(workdir) else _NAME))
    except (UserError, OSError):  # There is none, or it is just being written.
        return {}
    return {name: value for name, value in values.items() if name != "renewed"}


@contextlib.contextmanager
def _leased(workdir, flag):
    with contextlib.ExitStack() as stack:
        try:
            if not storage.exists(workdir):
                stack.callback(_remove_if_empty, workdir)
            storage.make_folders(workdir)
            held = stack.enter_context(lease.Lease(workdir, flag=flag))
        except OSError as error:
            raise cannot_write(workdir, error, flag) from None
        yield held.check


def _remove_if_empty(url):
    with contextlib.suppress(OSError):
        if not storage.list_names(url):
            storage.remove_folder(url)


@contextlib.contextmanager
def _locked(workdir, flag):
    path = workdir / _NAME
    try:
        made = [folder for folder in (workdir, *workdir.parents) if not folder.exists()]
        lock = _acquire(path, flag)
    except OSError as error:
        raise cannot_write(workdir, error, flag) from None
    try:
        yield lambda: None
    finally:
        # Removed before the lock is released: afterwards another process could own the file.
        if _is_at(lock, path):
            os.unlink(path)
        os.close(lock)
        with contextlib.suppress(OSError):  # The folder is not empty.
            for folder in made:
                folder.rmdir()


def cannot_write(workdir, error, flag="--workdir"):
    """Returns the error to raise after an `OSError` at the first write to a workdir."""
    problem = f"Cannot write to {flag} {workdir}: {error.strerror}."
    return RunError(problem) if error.errno == errno.ENOSPC else UserError(problem)


def _acquire(path, flag):
    """Locks a file and writes the identity of this process to it; returns its descriptor.

    Creates the folder of the file if it is missing.
    """
    while True:
        lock = _open(path)
        try:
            _lock(lock, path, flag)
            if _is_at(lock, path):
                os.ftruncate(lock, 0)
                os.write(lock, json.dumps(lease.this_process()).encode())
                return lock
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)  # Another process removed the file before this one locked it.


def _open(path):
    for _ in range(_OPENS):
        # Another process may remove the folder, if it is empty, between two calls.
        with contextlib.suppress(FileNotFoundError, FileExistsError):
            return _open_once(path)
    return _open_once(path)


def _open_once(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)


def _lock(lock, path, flag):
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InUseError(
            f"{path.parent} is in use by {_describe_holder(path)}. Wait until it ends, stop it, or "
            f"choose another {flag}."
        ) from None
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        _log.warning(
            f"{path.parent} cannot be locked ({error.strerror}): a second process that trains "
            "there at the same time would damage the run"
        )


def _is_at(lock, path):
    """Whether an open file is still the file at `path`."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(lock), os.stat(path))
    return False


def _describe_holder(path):
    try:
        return lease.describe_process(read_json(path))
    except (UserError, OSError):  # It has not written to the file yet, or has just removed it.
        return "another process"

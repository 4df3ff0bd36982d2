"""Allows one writer per workdir behind a URL, where there are no locks: a lease in a file.

The writer renews `lease.json` every minute and deletes it at its end. A start that meets a lease
waits. If the lease changes meanwhile, its holder is alive and the start is refused; if the lease
stays the same for five minutes, its holder has died and the start takes the lease. The five minutes
belong to the waiting machine: the clocks of two machines may differ, so no time in the file is
compared with a clock.
"""

import contextlib
import dataclasses
import json
import logging
import os
import socket
import threading
import time
import uuid

from pipelines.errors import InUseError, RunError
from vit_tf.files import storage

_log = logging.getLogger(__name__)

NAME = "lease.json"
_MOST_BYTES = 4096


@dataclasses.dataclass(frozen=True)
class Times:
    """Seconds of a lease.

    Attributes:
        renew: from one renewal to the next.
        stale: without a change after which another start takes the lease.
        settle: from writing a lease to reading it back, in which another start may write its own.
        poll: between two looks at a lease that another process holds.
    """

    renew: float = 60.0
    stale: float = 300.0
    settle: float = 2.0
    poll: float = 5.0


TIMES = Times()


class Lease:
    """A lease; a `with` block holds it.

    Args:
        workdir: URL of the workdir, which must exist.
        times: `Times`; None means `TIMES`.
        flag: the flag that names the workdir, for messages.

    Raises:
        InUseError: if another process renews its lease while this one waits.
        OSError: if the workdir cannot be read or written.
    """

    def __init__(self, workdir, times=None, flag="--workdir"):
        self._workdir, self._times, self._flag = workdir, times or TIMES, flag
        self._path = storage.join(workdir, NAME)
        self._holder = {"id": uuid.uuid4().hex} | this_process()
        self._renewed = 0.0
        self._lost = None  # A sentence that says how this process has lost the lease.
        self._lock, self._end = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._renew_regularly, name="lease", daemon=True)

    def __enter__(self):
        while True:
            looked = time.monotonic()
            if (found := self._read()) is not None:
                looked = self._wait(found)
            if self._write_and_settle(looked):
                break
        self._thread.start()
        return self

    def __exit__(self, *exc_info):
        self._end.set()
        self._thread.join()
        with contextlib.suppress(OSError):  # It becomes stale.
            if self._is_own(self._read()):
                storage.remove(self._path)

    def check(self):
        """Checks that this process still holds the lease; call it before writing.

        Raises:
            RunError: if another process has taken the lease, or it was deleted.
        """
        # A machine that slept has missed renewals.
        if time.time() - self._renewed > 2 * self._times.renew:
            with contextlib.suppress(OSError):
                self._renew()
        if self._lost is not None:
            raise RunError(self._lost)

    def _wait(self, found):
        """Waits until the lease `found` is gone or stale; returns when it looked last."""
        stale = self._times.stale
        _log.info(
            f"{self._workdir} is in use by {_describe(found)}: waiting until that process ends, or "
            f"at most {stale:,.0f} s in case it has died"
        )
        begin = looked = time.monotonic()
        while looked - begin < stale:
            time.sleep(self._times.poll)
            looked = time.monotonic()
            now = self._read()
            if now is None:
                return looked
            if now != found:
                raise InUseError(
                    f"{self._workdir} is in use by {_describe(now)}, which renews its lease. Wait "
                    f"until it ends, stop it, or choose another {self._flag}."
                )
        _log.info(f"that lease has not been renewed for {stale:,.0f} s: taking it")
        return looked

    def _write_and_settle(self, looked):
        """Writes the lease; returns whether it is still there after `Times.settle`.

        If the write ends late, another start may have settled meanwhile. Its next renewal then
        finds this lease, so this start waits until that renewal is over too.

        Args:
            looked: the time at which there was no lease, or a stale one.
        """
        self._write()
        is_late = time.monotonic() - looked > self._times.settle
        time.sleep(self._times.settle + is_late * self._times.renew)
        return self._is_own(self._read())

    def _renew_regularly(self):
        while not self._end.wait(self._times.renew):
            with contextlib.suppress(OSError):  # The next renewal may reach the store.
                self._renew()

    def _renew(self):
        with self._lock:
            if self._lost is not None:
                return
            found = self._read()
            if self._is_own(found):
                self._write()
            elif found is None:  # Another process may have taken it, ended and deleted it.
                self._lost = (
                    f"{self._path}, the lease of this process, has been deleted, so another "
                    "process may write there. Nothing more is written; start again."
                )
            else:
                self._lost = (
                    f"{self._workdir} has been taken over by {_describe(found)}. Nothing more is "
                    "written; start again once that process has ended."
                )

    def _write(self):
        # The time differs in each renewal; it is for readers of the file.
        text = json.dumps(self._holder | {"renewed": time.time()})
        storage.write_object(self._path, lambda file: file.write(text.encode()))
        self._renewed = time.time()

    def _read(self):
        """The content of the lease; None if there is none."""
        try:
            return storage.read(self._path, _MOST_BYTES)
        except FileNotFoundError:
            return None

    def _is_own(self, content):
        return content is not None and _parse(content).get("id") == self._holder["id"]


def _parse(content):
    try:
        values = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def _describe(content):
    return describe_process(_parse(content))


def this_process() -> dict:
    """Returns the identity of this process, for people."""
    since = time.strftime("%Y-%m-%d %H:%M:%S %z")
    return {"pid": os.getpid(), "host": socket.gethostname(), "since": since}


def describe_process(values) -> str:
    """Returns a phrase about the process of a dict that `this_process` has returned there."""
    if not {"pid", "host", "since"} <= values.keys():
        return "another process"
    pid, host, since = (str(values[key])[:80] for key in ("pid", "host", "since"))
    return f"process {pid} on {host} since {since}"

"""Bounds how many requests are computed, and how many wait for that."""

import contextlib
import threading


class Busy(Exception):
    """There is no room for a request, or it waited too long."""


class Gate:
    """Lets a number of threads in at a time.

    Args:
        running: how many are inside at a time.
        waiting: how many others may wait; more are sent away at once.
        patience: seconds that one waits at most.
    """

    def __init__(self, running, waiting, patience):
        self._free = threading.Semaphore(running)
        self._places = threading.Semaphore(running + waiting)
        self._patience = patience

    @contextlib.contextmanager
    def entered(self):
        """The time inside.

        Raises:
            Busy: if too many wait, or it takes too long.
        """
        if not self._places.acquire(blocking=False):
            raise Busy
        try:
            if not self._free.acquire(timeout=self._patience):
                raise Busy
            try:
                yield
            finally:
                self._free.release()
        finally:
            self._places.release()

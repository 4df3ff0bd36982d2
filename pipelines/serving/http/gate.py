"""Bounds how many requests are computed, and how many wait for that."""

import collections
import contextlib
import threading


class Busy(Exception):
    """There is no room for a request, or it waited too long."""


class Gate:
    """Lets a number of threads in at a time; the others wait in the order in which they came.

    Args:
        running: how many are inside at a time.
        waiting: how many others may wait; more are sent away at once.
        patience: seconds that one waits at most.
    """

    def __init__(self, running, waiting, patience):
        self._free, self._most_waiting, self._patience = running, waiting, patience
        self._waiting, self._lock = collections.deque(), threading.Lock()

    @contextlib.contextmanager
    def entered(self):
        """The time inside.

        Raises:
            Busy: if too many wait, or it takes too long.
        """
        self._enter()
        try:
            yield
        finally:
            self._leave()

    def _enter(self):
        with self._lock:
            if self._free:
                self._free -= 1
                return
            if len(self._waiting) >= self._most_waiting:
                raise Busy
            turn = threading.Event()
            self._waiting.append(turn)
        if turn.wait(self._patience):
            return
        with self._lock:
            if turn.is_set():  # Its turn came just now.
                return
            self._waiting.remove(turn)
        raise Busy

    def _leave(self):
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._free += 1

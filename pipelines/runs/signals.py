"""Signals that ask a run to stop: Ctrl-C and SIGTERM."""

import contextlib
import os
import signal
import threading

from pipelines.errors import Interrupted


class Signals:
    """Notes Ctrl-C and SIGTERM, so that a run can look at them between two steps.

    A second Ctrl-C ends the process in the ordinary way. Outside the main thread, where Python
    cannot install handlers, signals keep their meaning.
    """

    def __init__(self):
        self._received = None
        self._previous = {}

    def __enter__(self):
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *exc_info):
        self._restore()

    def _restore(self):
        while self._previous:
            signal.signal(*self._previous.popitem())

    def _receive(self, number, frame):
        del frame
        self._received = signal.Signals(number).name
        # Not print: the signal may have come in the middle of one, which must not be entered again.
        with contextlib.suppress(OSError):
            os.write(1, f"{self._received}: saving after the running step ...\n".encode())
        self._restore()

    def check(self):
        """Raises `Interrupted` if a signal came since the last look."""
        if self._received:
            name, self._received = self._received, None
            raise Interrupted(name)

"""The progress of an inspection, with the time that is left."""

import datetime
import logging
import time

_log = logging.getLogger(__name__)
# Seconds between two lines.
_EVERY = 5.0


class Progress:
    """Logs every few seconds how much is done.

    Args:
        total: number of forward passes, about.
    """

    def __init__(self, total):
        self._total, self._done = max(total, 1), 0
        # When the first passes ended, which also trace the model, and their number.
        self._begin, self._first = None, 0
        self._shown = time.perf_counter()

    def add(self, count):
        """Adds finished forward passes."""
        self._done += count
        now = time.perf_counter()
        if self._begin is None:
            self._begin, self._first = now, count
        elif now - self._shown >= _EVERY:
            self._shown = now
            seconds = (now - self._begin) / (self._done - self._first)
            left = datetime.timedelta(seconds=round(seconds * max(self._total - self._done, 0)))
            _log.info(f"inspecting: {min(self._done / self._total, 1.0):.0%}  ETA {left}")

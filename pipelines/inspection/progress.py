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
        self._begin = self._shown = time.perf_counter()

    def add(self, count):
        """Adds finished forward passes."""
        self._done += count
        now = time.perf_counter()
        if now - self._shown < _EVERY:
            return
        self._shown = now
        share = min(self._done / self._total, 1.0)
        left = datetime.timedelta(seconds=round((now - self._begin) * (1 - share) / share))
        _log.info(f"inspecting: {share:.0%}  ETA {left}")

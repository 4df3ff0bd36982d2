"""Lines about the progress of a loop over many examples."""

import datetime
import logging
import time

_log = logging.getLogger(__name__)

_LINE_EVERY = 10.0  # seconds


class ProgressLines:
    """Logs every 10 s how many examples of a loop are done, their rate, and the time left.

    The rate leaves out what was done before the first `show`: it often includes compiling a graph
    or opening files.

    Args:
        what: what the loop does, such as "reading the labels of digits".
        total: number of examples.
    """

    def __init__(self, what, total):
        self._what, self._total = what, total
        self._first, self._begin, self._shown = None, 0.0, 0.0

    def show(self, done):
        """Logs a line if the last one is old and not all of the examples are done.

        Args:
            done: number of examples that are done.
        """
        now = time.perf_counter()
        if self._first is None:
            self._first, self._begin, self._shown = done, now, now
        elif now - self._shown >= _LINE_EVERY and done < self._total:
            self._shown = now
            rate = (done - self._first) / (now - self._begin)
            eta = datetime.timedelta(seconds=round((self._total - done) / rate))
            _log.info(f"{self._what}: {done:,} of {self._total:,}, {rate:,.0f} a second, ETA {eta}")

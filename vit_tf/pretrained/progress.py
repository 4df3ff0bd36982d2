"""Prints the progress of a download to stderr: bytes, rate and remaining time."""

import sys
import time

_SECONDS_ON_TERMINAL, _SECONDS_IN_LOG = 0.2, 10.0


class DownloadProgress:
    """Progress of one file. On a terminal, one line is rewritten; in a log, lines are far apart.

    Args:
        name: of the download.
        total: bytes of the whole file; None if unknown.
        done: bytes that an earlier download left.
    """

    def __init__(self, name, total, done=0):
        self._total, self._first, self._done = total, done, done
        self._begin = self._printed = time.monotonic()
        self._on_terminal = sys.stderr.isatty()
        size = "" if total is None else f" ({_megabytes(total)})"
        resumed = f", continued at {_megabytes(done)}" if done else ""
        print(f"downloading {name}{size}{resumed}", file=sys.stderr, flush=True)

    def add(self, count):
        """Counts bytes that were received, and prints if the last print is long ago."""
        self._done += count
        pause = _SECONDS_ON_TERMINAL if self._on_terminal else _SECONDS_IN_LOG
        if time.monotonic() - self._printed >= pause:
            self._printed = time.monotonic()
            end = "\r" if self._on_terminal else "\n"
            print(self.line(), end=end, file=sys.stderr, flush=True)

    def close(self):
        """Prints the last line."""
        print(self.line(), file=sys.stderr, flush=True)

    def line(self) -> str:
        """The state: "  120.0 of 330.3 MB (36 %), 12.1 MB/s, 0:17 left"."""
        elapsed = max(time.monotonic() - self._begin, 1e-3)
        rate = (self._done - self._first) / elapsed
        if self._total is None:
            return f"  {_megabytes(self._done)}, {_megabytes(rate)}/s"
        left = ""
        if rate > 0 and self._done < self._total:
            minutes, seconds = divmod(round((self._total - self._done) / rate), 60)
            left = f", {minutes}:{seconds:02} left"
        part = self._done / max(self._total, 1)
        done = f"{self._done / 1e6:,.1f} of {_megabytes(self._total)} ({part:.0%})"
        return f"  {done}, {_megabytes(rate)}/s{left}"


def _megabytes(count):
    return f"{count / 1e6:,.1f} MB"

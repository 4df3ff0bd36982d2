"""The processor time of the threads of this process."""

import collections
import contextlib
import pathlib


def by_thread():
    """Counter of clock ticks by the number of the thread."""
    ticks = collections.Counter()
    for task in pathlib.Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # It has just ended.
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            ticks[task.name] = int(fields[11]) + int(fields[12])
    return ticks

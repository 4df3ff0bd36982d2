"""A batch job as an engine sees it: a function of ranges of indices, and what it needs to start.

Without an engine, a command computes in its own process.
"""

from collections.abc import Callable
from typing import Any, Protocol

# The most blocks of a job: an engine holds a few kB for each of them.
_MOST_BLOCKS = 20_000
# Examples of a block, at least: a few seconds of work of one core.
_SMALLEST = 1024


class Job(Protocol):
    """What is computed. It is sent to other processes, so it holds values and no open files."""

    def open(self) -> Callable[[range], Any]:
        """Opens a model, say, once for each process; returns the function of a range of indices.

        The function depends on nothing but the range, so a range that is lost may be computed
        again. Its result is sent back: arrays, bytes, numbers and their tuples.
        """
        ...


def blocks(ranges, multiple=1, smallest=_SMALLEST) -> list[range]:
    """Divides ranges into blocks, each of which one process computes in one piece.

    Args:
        ranges: pairs of the first index and the index after the last.
        multiple: a block begins at a multiple of this number behind the begin of its range.
        smallest: the fewest examples of a block that is not the last of its range.
    """
    total = sum(stop - start for start, stop in ranges)
    size = max(smallest, -(-total // _MOST_BLOCKS), multiple)
    size = -(-size // multiple) * multiple
    return [
        range(first, min(first + size, stop))
        for start, stop in ranges
        for first in range(start, stop, size)
    ]

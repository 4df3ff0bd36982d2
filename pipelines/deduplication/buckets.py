"""Finds 64-bit keys at a small Hamming distance without comparing all pairs.

A key has four quarters of 16 bits. The keys are sorted by each quarter, so that keys with an equal
quarter are neighbors: a bucket. Two keys that differ in at most d = 4 r + s bits (s < 4) differ in
at most r bits in one of the first s + 1 quarters, or in at most r - 1 in one of the others; else
they would differ in d + 1. So a search reads the buckets of all values within these radii, and
finds every key within d (multi-index hashing: Norouzi et al., arXiv 1307.2982). With d = 10 these
are 428 of 262,144 buckets.
"""

import functools

import numpy as np

from pipelines.deduplication.perceptual_hash import hamming

QUARTERS = 4
_VALUES = 2**16
# Pairs of keys, and values of quarters, that are in memory at a time.
_AT_ONCE = 2**21
# Queries between two calls of `progress`, at most.
_QUERIES = 1024


def sorted_rows(keys):
    """The rows of keys, uint64 `[n]`, sorted by each quarter: uint32 `[4, n]`."""
    return np.stack([np.argsort(x, kind="stable") for x in _quarters(keys)]).astype(np.uint32)


class Buckets:
    """Keys that can be searched.

    Args:
        keys: uint64 `[n]`, in memory or mapped from a file.
        rows: `sorted_rows(keys)`, in memory or mapped from a file.
    """

    def __init__(self, keys, rows):
        # A mapped array would be pickled with a copy, also for the memory that processes share.
        self._keys, self._rows = np.asarray(keys), np.asarray(rows)
        sizes = [np.bincount(quarter, minlength=_VALUES) for quarter in _quarters(keys)]
        self._ends = np.cumsum(sizes, axis=1)
        self._begins = self._ends - sizes

    def near(self, queries, most, progress=lambda count: None):
        """Yields the pairs of keys that differ in at most `most` bits; a pair may come repeatedly.

        Args:
            queries: uint64 `[m]`.
            most: the largest distance, from 0.
            progress: called with the number of queries of each group that is done.

        Yields:
            Rows of `queries` and rows of `keys`, int64 arrays of one length.
        """
        searches = [
            (quarter, _masks(radius)) for quarter, radius in enumerate(radii(most)) if radius >= 0
        ]
        step = max(1, min(_QUERIES, _AT_ONCE // len(searches[0][1])))
        for start in range(0, len(queries), step):
            block = queries[start : start + step]
            for quarter, masks in searches:
                probes = _quarters(block)[quarter][:, None] ^ masks
                for own, rows in self._in_buckets(quarter, probes):
                    is_near = hamming(block[own], self._keys[rows]) <= most
                    yield start + own[is_near], rows[is_near]
            progress(len(block))

    def _in_buckets(self, quarter, probes):
        """Yields the pairs in the buckets of some values, `[m, masks]`: rows of both."""
        begins, ends = self._begins[quarter][probes], self._ends[quarter][probes]
        sizes = ends - begins
        # Groups of queries whose buckets together hold few keys, or one query.
        groups = np.cumsum(sizes.sum(axis=1)) // _AT_ONCE
        for group in np.unique(groups):
            chosen = np.flatnonzero(groups == group)
            counts = sizes[chosen].ravel()
            if total := int(counts.sum()):
                before = np.cumsum(counts) - counts
                places = np.repeat(begins[chosen].ravel() - before, counts) + np.arange(total)
                own = np.repeat(np.repeat(chosen, probes.shape[1]), counts)
                yield own, self._rows[quarter][places].astype(np.int64)


def radii(most):
    """The radius of the search in each quarter for a distance; -1: it need not be searched."""
    radius, rest = divmod(most, QUARTERS)
    return [radius if quarter <= rest else radius - 1 for quarter in range(QUARTERS)]


@functools.cache
def _masks(radius):
    """The values with at most `radius` bits, int64."""
    return np.array([value for value in range(_VALUES) if value.bit_count() <= radius])


def _quarters(keys):
    """The quarters of keys, uint64 `[n]`, the lowest bits first: 4 times uint16 `[n]`."""
    return [(keys >> np.uint64(16 * quarter)).astype(np.uint16) for quarter in range(QUARTERS)]

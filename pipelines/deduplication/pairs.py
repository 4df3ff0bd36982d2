"""The pairs of a query image and a reference image that are near-duplicates."""

import math
from typing import NamedTuple

import numpy as np

from pipelines.data.progress_lines import ProgressLines
from pipelines.deduplication import embeddings
from pipelines.deduplication.index import HASHED, UNREADABLE
from pipelines.deduplication.perceptual_hash import BITS, VIEWS, hamming

# The distance of pairs without two hashes.
NO_DISTANCE = BITS + 1
# Pairs whose embeddings are in memory at a time.
_AT_ONCE = 4096


# (view of the query, view of the reference) of which two images are near; odd rows are mirrored.
_VIEWS = [(view, 0) for view in range(VIEWS)] + [(0, view) for view in range(VIEWS)]


class Pairs(NamedTuple):
    """Pairs in the order of the query's rows, then of the distance and of the cosine."""

    query: np.ndarray  # int64 [n]: row in the index of the query
    reference: np.ndarray  # int64 [n]: row in the index of the reference
    distance: np.ndarray  # uint8 [n]: different bits of the hashes; NO_DISTANCE without them
    cosine: np.ndarray  # float32 [n]: of the embeddings without their mean; NaN without a model
    view: np.ndarray  # int64 [n]: row of `_VIEWS`, the views that are near

    @property
    def is_mirrored(self):
        """Whether it is a mirror image that is near, bool `[n]`."""
        return self.view % 2 == 1

    @property
    def is_part_of_query(self):
        """Whether the training image is near to a part of the query, bool `[n]`."""
        return (self.view > 1) & (self.view < VIEWS)

    @property
    def is_part_of_reference(self):
        """Whether the query is near to a part of the training image, bool `[n]`."""
        return self.view > VIEWS + 1


class Searcher:
    """Searches the images of a reference.

    Args:
        reference: a filled `Index`.
        most_bits: hashes that differ in at most so many of their 64 bits are near.
        least_cosine: embeddings with at least this cosine are near; used if there are embeddings.
    """

    def __init__(self, reference, most_bits, least_cosine):
        self._reference = reference
        self._most_bits, self._least_cosine = most_bits, least_cosine
        self._count = reference.source.num_examples
        self._hashes, self._hashed = reference.hash_buckets()
        if self._has_embeddings:
            self._signs, self._embedded, self._mean = reference.embedding_buckets()

    @property
    def _has_embeddings(self):
        return self._reference.embeddings is not None

    def pairs(self, query, check=lambda: None) -> Pairs:
        """The near-duplicates of a query: those by hash or by embedding, each pair once.

        Args:
            query: a filled `Index`; with embeddings, one that `is_query`.
            check: called after every group of keys; it may raise an error to stop.
        """
        progress = self._progress(query, check)
        found = [self._by_query_views(query, progress), self._by_reference_views(query, progress)]
        if self._has_embeddings:
            found += [self._by_embedding(query, view, progress) for view in (0, 1)]
        own, rows = np.divmod(np.unique(np.concatenate(found)), self._count)
        distances = np.stack([self._distances(query, own, rows, *views) for views in _VIEWS])
        cosines = np.full([2, len(own)], np.nan, np.float32)
        if self._has_embeddings:
            cosines[:] = [self._cosines(query, own, rows, view) for view in (0, 1)]
        distance, cosine = distances.min(axis=0), cosines.max(axis=0)
        by_hash = distance <= self._most_bits
        view = np.where(by_hash, distances.argmin(axis=0), cosines[1] > cosines[0])
        order = np.lexsort((rows, -cosine, distance, own))
        return Pairs(*(x[order] for x in (own, rows, distance, cosine, view)))

    def _by_query_views(self, query, progress):
        """The pairs of any view of the query and view 0 of the reference."""
        own = np.flatnonzero(query.states == HASHED)

        def near():
            for view in range(VIEWS):
                keys = query.hashes[view, own]
                for left, right in self._hashes.near(keys, self._most_bits, progress):
                    yield own[left], self._hashed[right]

        return self._numbers(near())

    def _by_reference_views(self, query, progress):
        """The pairs of view 0 of the query and any other view of the reference."""
        buckets, own = query.hash_buckets()

        def near():
            for view in range(1, VIEWS):
                keys = self._reference.hashes[view, self._hashed]
                for left, right in buckets.near(keys, self._most_bits, progress):
                    yield own[right], self._hashed[left]

        return self._numbers(near())

    def _by_embedding(self, query, view, progress):
        own = np.flatnonzero(query.states != UNREADABLE)
        keys = embeddings.sign_keys(query.embeddings, own, view, self._mean)

        def near():
            most = sign_distance(self._least_cosine)
            for left, right in self._signs.near(keys, most, progress):
                pair = own[left], self._embedded[right]
                is_near = self._cosines(query, *pair, view) >= self._least_cosine
                yield pair[0][is_near], pair[1][is_near]

        return self._numbers(near())

    def _progress(self, query, check):
        """A function that counts keys that are done, logs the progress, and calls `check`."""
        keys = VIEWS * np.sum(query.states == HASHED) + (VIEWS - 1) * len(self._hashed)
        if self._has_embeddings:
            keys += 2 * np.sum(query.states != UNREADABLE)
        lines, done = ProgressLines(f"searching {self._reference.source}", int(keys)), 0
        lines.show(0)

        def progress(count):
            nonlocal done
            done += count
            lines.show(done)
            check()

        return progress

    def _numbers(self, pairs):
        """One number for each pair of arrays of rows, int64, sorted, each once."""
        numbers = [own * self._count + rows for own, rows in pairs]
        return np.unique(np.concatenate([np.zeros(0, np.int64), *numbers]))

    def _distances(self, query, own, rows, left, right):
        """The distance of two views of each pair, uint8."""
        distances = hamming(query.hashes[left, own], self._reference.hashes[right, rows])
        are_hashed = (query.states[own] == HASHED) & (self._reference.states[rows] == HASHED)
        return np.where(are_hashed, distances, np.uint8(NO_DISTANCE))

    def _cosines(self, query, own, rows, view):
        """The cosine of each pair, float32."""
        cosines = np.empty(len(own), np.float32)
        for start in range(0, len(own), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            left = embeddings.centered(query.embeddings, own[part], view, self._mean)
            right = embeddings.centered(self._reference.embeddings, rows[part], 0, self._mean)
            cosines[part] = np.einsum("nf,nf->n", left, right)
        return cosines


def sign_distance(cosine):
    """How many of 64 signs may differ for two embeddings to be compared.

    Each sign differs with probability angle / pi. The distance is the mean of their number and two
    standard deviations more, for the angle of the smallest cosine: so of pairs with exactly this
    cosine one in 50 is missed, and of nearer ones fewer. It is 12 at 0.95, 15 at 0.9, 20 at 0.8.
    """
    share = math.acos(cosine) / math.pi
    return math.ceil(BITS * share + 2 * math.sqrt(BITS * share * (1 - share)))

"""The pairs of a query image and a reference image that are near-duplicates."""

import itertools
import math
from typing import NamedTuple

import numpy as np

from pipelines.data.progress_lines import ProgressLines
from pipelines.deduplication import embeddings
from pipelines.deduplication.buckets import Buckets
from pipelines.deduplication.index import HASHED, UNREADABLE
from pipelines.deduplication.perceptual_hash import BITS, VIEWS, hamming
from pipelines.distribution.engine.jobs import blocks

# The distance of pairs without two hashes.
NO_DISTANCE = BITS + 1
# Pairs whose embeddings are in memory at a time.
_AT_ONCE = 4096
# Keys that a process of an engine searches in one piece, at least: half a minute among those of 14
# million images.
_KEYS = 1 << 14


# Pairs (view of the query, view of the reference) where images are near; odd rows are mirrored.
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


class Hashes(NamedTuple):
    """The hashes of images, and the hashes of view 0 in buckets."""

    views: np.ndarray  # uint64 [VIEWS, n]
    rows: np.ndarray  # int64 [m]: the images that have a hash
    buckets: Buckets  # of view 0 of these images


class _HashSearch(NamedTuple):
    """A job for an engine, see `distribution.engine.jobs.Job`: the pairs of `near_by_hash`.

    Its indices are those of keys: each view of the query, then each of the reference but view 0.
    The result of a block has each of its pairs once.
    """

    query: Hashes
    reference: Hashes
    most: int

    @property
    def ranges(self):
        """The keys of each view, as pairs of the first index and the index after the last."""
        sizes = VIEWS * [len(self.query.rows)] + (VIEWS - 1) * [len(self.reference.rows)]
        ends = itertools.pairwise(itertools.accumulate(sizes, initial=0))
        return [(start, stop) for start, stop in ends if stop > start]

    def open(self):
        """See `Job.open`."""
        return self.near

    def near(self, block, progress=lambda count: None):
        """The pairs of the keys of a block, which belong to one view: rows of both, sorted."""
        own_keys = VIEWS * len(self.query.rows)
        is_query = block.start < own_keys
        side, other = (self.query, self.reference) if is_query else (self.reference, self.query)
        view, first = divmod(block.start - (0 if is_query else own_keys), len(side.rows))
        rows = side.rows[first : first + len(block)]
        keys = side.views[view if is_query else view + 1, rows]
        pairs = (
            (rows[own], other.rows[found])
            for own, found in other.buckets.near(keys, self.most, progress)
        )
        ordered = pairs if is_query else ((found, own) for own, found in pairs)
        return _each_once(ordered, self.reference.views.shape[1])


def near_by_hash(query, reference, most, progress=lambda count: None, engine=None):
    """The pairs of images where view 0 of one image and any view of the other are near.

    Args:
        query, reference: `Hashes`.
        most: hashes that differ in at most so many bits are near.
        progress: see `Buckets.near`; it is told VIEWS times the images of the query that have a
            hash, and VIEWS - 1 times the reference's.
        engine: such as `ray_engine.RayEngine`; None searches in this process.

    Returns:
        Rows of the query and of the reference, int64 `[n]`, sorted, each pair once.
    """
    search = _HashSearch(query, reference, most)

    def near():
        if engine is None:
            yield from (search.near(range(*ends), progress) for ends in search.ranges)
            return
        groups = blocks(search.ranges, smallest=_KEYS)
        found = engine.map(search, groups, lambda: progress(0))
        for group, pairs in zip(groups, found, strict=True):
            progress(len(group))
            yield pairs

    return _each_once(near(), reference.views.shape[1])


def view_distances(query, reference, own, rows):
    """The distance of each pair of views that is compared, uint8 `[2 VIEWS, n]`.

    Args:
        query, reference: hashes, uint64 `[VIEWS, ...]`.
        own, rows: the images of each pair, int64 `[n]`.
    """
    return np.stack([hamming(query[left, own], reference[right, rows]) for left, right in _VIEWS])


def _each_once(pairs, count):
    """The different ones of some pairs of arrays of rows, sorted; the second are below `count`."""
    numbers = [own * count + rows for own, rows in pairs]
    return np.divmod(np.unique(np.concatenate([np.zeros(0, np.int64), *numbers])), max(count, 1))


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
        self._hashes = _hashes(reference)
        if self._has_embeddings:
            self._signs, self._embedded, self._mean = reference.embedding_buckets()

    @property
    def _has_embeddings(self):
        return self._reference.embeddings is not None

    def pairs(self, query, check=lambda: None, engine=None) -> Pairs:
        """The near-duplicates of a query: those by hash or by embedding, each pair once.

        Args:
            query: a filled `Index`; with embeddings, one that `is_query`.
            check: called after every group of keys; it may raise an error to stop.
            engine: that compares the hashes, see `near_by_hash`.
        """
        progress = self._progress(query, check)
        found = [near_by_hash(_hashes(query), self._hashes, self._most_bits, progress, engine)]
        if self._has_embeddings:
            found += [self._by_embedding(query, view, progress) for view in (0, 1)]
        own, rows = _each_once(found, self._count)
        distances = self._distances(query, own, rows)
        cosines = np.full([2, len(own)], np.nan, np.float32)
        if self._has_embeddings:
            cosines[:] = [self._cosines(query, own, rows, view) for view in (0, 1)]
        distance, cosine = distances.min(axis=0), cosines.max(axis=0)
        by_hash = distance <= self._most_bits
        view = np.where(by_hash, distances.argmin(axis=0), cosines[1] > cosines[0])
        order = np.lexsort((rows, -cosine, distance, own))
        return Pairs(*(x[order] for x in (own, rows, distance, cosine, view)))

    def _by_embedding(self, query, view, progress):
        own = np.flatnonzero(query.states != UNREADABLE)
        keys = embeddings.sign_keys(query.embeddings, own, view, self._mean)

        def near():
            most = sign_distance(self._least_cosine)
            for left, right in self._signs.near(keys, most, progress):
                pair = own[left], self._embedded[right]
                is_near = self._cosines(query, *pair, view) >= self._least_cosine
                yield pair[0][is_near], pair[1][is_near]

        return _each_once(near(), self._count)

    def _progress(self, query, check):
        """A function that counts keys that are done, logs the progress, and calls `check`."""
        keys = VIEWS * np.sum(query.states == HASHED) + (VIEWS - 1) * len(self._hashes.rows)
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

    def _distances(self, query, own, rows):
        """As `view_distances`, but `NO_DISTANCE` for pairs without two hashes."""
        distances = view_distances(query.hashes, self._reference.hashes, own, rows)
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


def _hashes(index):
    buckets, rows = index.hash_buckets()
    return Hashes(np.asarray(index.hashes), rows, buckets)


def sign_distance(cosine):
    """How many of 64 signs may differ for two embeddings to be compared.

    Each sign differs with probability angle / pi. The distance is the mean of their number and two
    standard deviations more, for the angle of the smallest cosine: so of pairs with exactly this
    cosine one in 50 is missed, and of nearer ones fewer. It is 12 at 0.95, 15 at 0.9, 20 at 0.8.
    """
    share = math.acos(cosine) / math.pi
    return math.ceil(BITS * share + 2 * math.sqrt(BITS * share * (1 - share)))

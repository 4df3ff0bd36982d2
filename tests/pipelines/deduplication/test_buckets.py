"""The search in buckets against all pairs."""

import itertools

import numpy as np
import pytest

from pipelines.deduplication import buckets
from pipelines.deduplication.buckets import Buckets, sorted_rows
from pipelines.deduplication.pairs import Hashes, near_by_hash
from pipelines.deduplication.perceptual_hash import VIEWS


def clustered(seed, count):
    """Keys around a few centers, at all distances, some of them equal."""
    random = np.random.default_rng(seed)
    centers = random.integers(0, 2**64, 5, np.uint64, endpoint=False)
    keys = random.choice(centers, count)
    for key in range(count):
        for bit in random.choice(64, random.integers(0, 15), replace=False):
            keys[key] ^= np.uint64(1) << np.uint64(bit)
    return keys


def all_pairs(queries, keys, most):
    return {
        (i, j)
        for i, query in enumerate(queries.tolist())
        for j, key in enumerate(keys.tolist())
        if (query ^ key).bit_count() <= most
    }


@pytest.mark.parametrize("most", [0, 1, 3, 4, 7, 10, 13])
def test_every_near_pair_is_found_and_no_other(most, monkeypatch):
    keys, queries = clustered(0, 120), clustered(1, 70)
    queries[:3], keys[5] = keys[:3], keys[6]
    expected = all_pairs(queries, keys, most)
    assert expected
    searched = Buckets(keys, sorted_rows(keys))
    for at_once in (None, 40):  # Then in many small pieces.
        if at_once:
            monkeypatch.setattr(buckets, "_AT_ONCE", at_once)
        done = []
        found = [
            pair
            for rows in searched.near(queries, most, done.append)
            for pair in zip(*(row.tolist() for row in rows), strict=True)
        ]
        assert set(found) == expected and sum(done) == len(queries)


def covers(radii, ways):
    """Whether in each of some ways a quarter has no more different bits than its radius."""
    return all(any(n <= r for n, r in zip(way, radii, strict=True)) for way in ways)


def test_the_radii_cover_every_distance():
    """For all ways to spread so many different bits over the quarters; and one less would not."""
    for most in range(14):
        radii = buckets.radii(most)
        ways = [way for way in itertools.product(range(14), repeat=4) if sum(way) <= most]
        assert covers(radii, ways)
        for quarter in range(4):
            if radii[quarter] >= 0:
                smaller = [r - (i == quarter) for i, r in enumerate(radii)]
                assert not covers(smaller, ways)


def test_nothing_to_search():
    none = np.zeros(0, np.uint64)
    for keys, queries in ((none, clustered(0, 3)), (clustered(0, 3), none)):
        assert list(Buckets(keys, sorted_rows(keys)).near(queries, 10)) == []


@pytest.mark.parametrize("side", [0, 1])
def test_the_hash_of_a_whole_image_is_compared_with_every_view(side):
    """Pair k is near in view k of one side and view 0 of the other, and no other pair is."""
    views = np.random.default_rng(side).integers(0, 2**64, (2, VIEWS, VIEWS), np.uint64)
    for k in range(VIEWS):
        views[side, k, k] = views[1 - side, 0, k] ^ np.uint64(0b1011)
    rows = np.arange(VIEWS)
    hashes = [Hashes(x, rows, Buckets(x[0], sorted_rows(x[0]))) for x in views]
    for most, expected in ((2, []), (3, rows)):
        own, found = near_by_hash(*hashes, most)
        np.testing.assert_array_equal(own, expected)
        np.testing.assert_array_equal(found, expected)

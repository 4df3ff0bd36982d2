"""The stored order of a split of files, and where ranges of the split begin and end in it.

Folders and lists are often sorted by class, so the listing is no order to train in. Everything here
depends on a hash of each file's relative path, which does not depend on other files: new files
change an order, and the ranges in it, only a little.
"""

import hashlib
import os
from typing import NamedTuple

import numpy as np

from pipelines.data.labels.encoding import RaggedLabels

# Both sides of a border between these parts of a split have images of every class with at least
# two. The default border is at the last. With small classes, it is before this part of the files,
# and earlier borders are in proportion, so that ranges between borders are not empty.
_BOTH_SIDES = (0.7, 0.9)
# In the order by class, the last image of a class is not before this part of the split.
_LAST = 0.95


def path_hashes(paths) -> np.ndarray:
    """The hash of each relative path, uint64 `[n]`."""
    digests = (
        hashlib.blake2b(os.fsencode(path), digest_size=8, person=b"stored order").digest()
        for path in paths
    )
    return np.frombuffer(b"".join(digests), ">u8").astype(np.uint64)


class StoredOrder(NamedTuple):
    """The order of the files of a whole split.

    Attributes:
        rows: int64 `[n]`, the place in the listing of each stored file.
        lowest, highest: limits of a border that is to leave classes on both sides.
    """

    rows: np.ndarray
    lowest: int = 0
    highest: int | None = None

    def border(self, part, place) -> int:
        """Where a range begins or ends that is given in percent.

        Args:
            part: of the split, from 0 to 1.
            place: the same in files, rounded.
        """
        first, last = _BOTH_SIDES
        if self.highest is not None and part <= last:
            place = min(place, round(part / last * self.highest))
        return max(place, self.lowest) if part >= first else place


def by_hash(hashes) -> StoredOrder:
    """The order of the hashes: a range has about the same part of every large class."""
    return StoredOrder(np.argsort(hashes, kind="stable"))


def by_class(hashes, labels) -> StoredOrder:
    """An order in which every range has its part of each class, up to one image.

    The images of a class are ordered by their hashes and spread evenly over the split. The only
    image of a class is in the first half.

    Args:
        hashes: uint64 `[n]`, see `path_hashes`.
        labels: int32 `[n]`, or `RaggedLabels`: a list counts as its rarest label.
    """
    classes = _rarest(labels) if isinstance(labels, RaggedLabels) else labels
    rows = np.lexsort((hashes, classes))
    sizes = np.bincount(classes)
    counts = sizes[classes[rows]]
    ranks = np.arange(len(rows)) - (np.cumsum(sizes) - sizes)[classes[rows]]
    # Not the bits that the ranks depend on.
    within = (hashes[rows] & np.uint64(2**32 - 1)) / 2**32
    places = (ranks + within) / counts
    is_last = (ranks == counts - 1) & (counts > 1)
    places = np.where(is_last, np.maximum(places, _LAST + (1 - _LAST) * within), places)
    places = np.where(counts == 1, within / 2, places)
    order = np.lexsort((hashes[rows], places))
    return StoredOrder(
        rows[order],
        lowest=int(np.flatnonzero(ranks[order] == 0)[-1]) + 1,
        highest=next(iter(np.flatnonzero(is_last[order]).tolist()), None),
    )


def _rarest(labels):
    """The label of each list that the fewest lists have, int `[n]`; one more without labels."""
    counts = np.bincount(labels.values, minlength=1)
    owners = np.repeat(np.arange(len(labels)), np.diff(labels.bounds))
    order = np.lexsort((labels.values, counts[labels.values], owners))
    having, first = np.unique(owners[order], return_index=True)
    rarest = np.full(len(labels), len(counts))
    rarest[having] = labels.values[order][first]
    return rarest

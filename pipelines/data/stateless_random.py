"""Counter-based random numbers: every draw is a function of the integers passed to it.

Only the raw words of Philox are used. NumPy guarantees that they are the same in all versions and
on all platforms, while the methods of `numpy.random.Generator` may change. A run that resumes after
an upgrade of NumPy therefore continues with the same data.
"""

import numpy as np

# One domain per kind of draw, so that no two kinds use the same stream. Never reuse a number.
BLOCK_ORDER, WINDOW_ORDER, EXAMPLE, SPLIT, MIXING, SHAPES, SUBSET = range(1, 8)

# `words_at` draws at most this many words at a time: 32 MiB.
_WORDS_AT_ONCE = 2**22


def random_words(seed, domain, counter, count):
    """Returns the first `count` words of the stream of (seed, domain, counter).

    Args:
        seed: seed of the run, an integer in 0 .. 2**64 - 1.
        domain: one of the constants above.
        counter: up to four non-negative integers. The first integer advances by one per four words,
            so streams that differ in one of the other integers never overlap.
        count: number of words.

    Returns:
        uint64 array `[count]`.
    """
    counter = np.array([*counter, 0, 0, 0, 0][:4], np.uint64)
    return np.random.Philox(key=np.array([seed, domain], np.uint64), counter=counter).random_raw(
        count
    )


def words_at(seed, domain, numbers):
    """Returns single words of the stream of (seed, domain), uint64 `[n]`.

    Word i of the stream depends only on (seed, domain, i).

    Args:
        seed, domain: as for `random_words`.
        numbers: non-negative integers `[n]` in any order: the number of each word in the stream.
            Numbers that are close to each other are fast.
    """
    words, order = np.empty(len(numbers), np.uint64), np.argsort(numbers, kind="stable")
    cuts = np.flatnonzero(np.diff(numbers[order] // _WORDS_AT_ONCE)) + 1
    for rows in np.split(order, cuts):
        if rows.size:
            block = int(numbers[rows[0]]) // 4  # The first integer of a counter counts four words.
            drawn = numbers[rows] - 4 * block
            words[rows] = random_words(seed, domain, (block,), int(drawn[-1]) + 1)[drawn]
    return words


def permutation(length, seed, domain, *counter):
    """Returns a permutation of `range(length)`, int64, drawn from (seed, domain, counter)."""
    # The first integer of the counter is 0, because `random_words` advances it. The sort is stable,
    # so equal words keep their order.
    return np.argsort(random_words(seed, domain, (0, *counter), length), kind="stable")


def example_seeds(seed, step, slots):
    """Returns the seed of each example of one global batch, for the stateless ops of TensorFlow.

    Args:
        seed: seed of the run.
        step: index of the global batch since the start of training.
        slots: integer array `[n]`, places of the examples in the global batch.

    Returns:
        int64 array `[n, 2]`. Row i depends only on (seed, step, slots[i]), so a slice of the
        batch gets the same seeds as in the whole batch.
    """
    slots = np.asarray(slots, np.int64)
    if not slots.size:
        return np.zeros((0, 2), np.int64)
    first = int(slots.min())
    count = int(slots.max()) - first + 1
    words = random_words(seed, EXAMPLE, (first, step), 4 * count).reshape(count, 4)
    return words[slots - first, :2].view(np.int64)

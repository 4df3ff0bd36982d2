"""Random numbers as functions: pinned values, which do not depend on the grouping of calls."""

import numpy as np

from pipelines.data import stateless_random


def test_words_are_pinned():
    """Changed words would change the data of every interrupted run."""
    words = stateless_random.random_words(7, stateless_random.BLOCK_ORDER, (0, 3), 4)
    assert words.dtype == np.uint64
    assert [hex(word) for word in words] == [
        "0x5723652c797e9485",
        "0x1c79e569a7046ba9",
        "0x42459d48f0d8c85a",
        "0xed05bd0babc1223d",
    ]


def test_first_counter_word_advances_by_four_words():
    words = stateless_random.random_words(7, stateless_random.EXAMPLE, (0, 3), 40)
    np.testing.assert_array_equal(
        stateless_random.random_words(7, stateless_random.EXAMPLE, (5, 3), 20), words[20:]
    )


def test_every_part_of_the_name_counts():
    names = [(s, d, (0, a, b)) for s in (0, 1) for d in (1, 2) for a in (0, 1) for b in (0, 1)]
    firsts = {int(stateless_random.random_words(*name, 1)[0]) for name in names}
    assert len(firsts) == len(names)


def test_single_words(monkeypatch):
    """In any order and in pieces; pinned, since another choice of examples is another run."""
    domain = stateless_random.SUBSET
    whole = stateless_random.random_words(7, domain, (), 64)
    assert hex(whole[6]) == "0x924bd416e637999d"
    for most in (2**22, 8, 3):
        monkeypatch.setattr(stateless_random, "_WORDS_AT_ONCE", most)
        for numbers in ([6], [], [40, 3, 63, 3, 0, 8, 7], np.arange(64)):
            numbers = np.array(numbers, np.int64)
            words = stateless_random.words_at(7, domain, numbers)
            np.testing.assert_array_equal(words, whole[numbers])
    far = stateless_random.words_at(7, domain, np.array([2**41 + 1, 5]))
    np.testing.assert_array_equal(
        far, [stateless_random.random_words(7, domain, (2**39,), 2)[1], whole[5]]
    )


def test_permutation():
    permutation = stateless_random.permutation(1000, 5, stateless_random.WINDOW_ORDER, 2, 3)
    np.testing.assert_array_equal(np.sort(permutation), np.arange(1000))
    # A random permutation keeps 1 position on average, and ranks are independent of positions.
    assert (permutation == np.arange(1000)).sum() < 10
    assert abs(np.corrcoef(permutation, np.arange(1000))[0, 1]) < 0.15
    other = stateless_random.permutation(1000, 5, stateless_random.WINDOW_ORDER, 2, 4)
    assert (permutation != other).mean() > 0.95


def test_example_seeds_depend_on_step_and_position_alone():
    whole = stateless_random.example_seeds(3, 11, np.arange(64))
    assert whole.dtype == np.int64
    assert len(np.unique(whole)) == 128
    np.testing.assert_array_equal(
        stateless_random.example_seeds(3, 11, np.arange(48, 64)), whole[48:]
    )
    np.testing.assert_array_equal(
        stateless_random.example_seeds(3, 11, [9, 2, 40]), whole[[9, 2, 40]]
    )
    assert stateless_random.example_seeds(3, 11, []).shape == (0, 2)
    for seed, step in ((4, 11), (3, 12)):
        assert not np.isin(stateless_random.example_seeds(seed, step, np.arange(64)), whole).any()

"""The choice of cases in which every pair of values meets."""

import itertools

from tests.pairwise import pairwise


def test_every_pair_of_values_occurs_in_few_cases():
    lists = [0, 1, 2, 3], ["a", "b"], [[], [1], [2]], [None, True]
    cases = pairwise(*lists)
    for first, second in itertools.combinations(range(4), 2):
        for pair in itertools.product(lists[first], lists[second]):
            assert pair in [(case[first], case[second]) for case in cases]
    assert len(cases) == 12  # The product has 48; the two longest lists need 12.
    assert cases == pairwise(*lists)

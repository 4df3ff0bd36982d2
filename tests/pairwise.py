"""Short lists of cases in which every pair of values of two parameters meets."""

import itertools


def pairwise(*lists):
    """Chooses few of the cases in the product of the lists.

    Args:
        lists: the values of each parameter, of at least three: of two, the product is the result.

    Returns:
        List of tuples with one value of each list, always the same. Any two values of different
        lists occur in one of them.
    """
    # By position: values need not be hashable.
    cases = list(itertools.product(*(range(len(values)) for values in lists)))
    missing = set().union(*map(_pairs, cases))
    chosen = []
    while missing:
        best = max(cases, key=lambda case: len(missing & _pairs(case)))
        missing -= _pairs(best)
        chosen.append(tuple(values[i] for values, i in zip(lists, best, strict=True)))
    return chosen


def _pairs(case):
    return set(itertools.combinations(enumerate(case), 2))

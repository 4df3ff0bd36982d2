"""The order in which test files start: the longest first.

A long file that starts last would run alone while the other workers are idle. The wall seconds of
the long files in one run beside other work are in `tests/durations.json`. The order of the others
matters little: with the ten longest files alone, three workers need 0.1 % more time than with all.
"""

import json
import pathlib
import random

TABLE = pathlib.Path(__file__).parent / "durations.json"


def in_order(files, seed=None):
    """The test files in the order in which they start.

    Args:
        files: paths below the checkout.
        seed: a string, for a random order; None for the order by wall time.
    """
    if seed is not None:
        return random.Random(seed).sample(sorted(files), len(files))
    table = json.loads(TABLE.read_text())
    return sorted(files, key=lambda file: -table.get(file, 0))

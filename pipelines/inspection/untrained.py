"""Whether a model looks untrained: its weights and attention compared with random weights."""

import math

import numpy as np

from pipelines.reports.check import Check
from vit_tf.analysis import inspection

# From this multiple of the number of random weights on, a number shows trained weights.
# Twelve random models of all families, with 3 layers of 3 heads, differed from their twins by at
# most 1.1 and 1.6 times.
_TIMES = 1.2
_TIMES_ATTENTION = 2.0
# Below this part, multiples of tiny numbers mean nothing.
_LEAST = 0.01
# Standard errors from zero.
_ERRORS = 4.0


def checks(config, trained, random) -> list[Check]:
    """Numbers that tell trained from random weights; `passed` is False where they look random.

    Args:
        config: configuration of the model.
        trained, random: `model_numbers.of_weights` and `model_numbers.statistics`, in one dict, of
            the model and of its twin.
    """
    found = [
        _check(
            "Largest component's share of the filters' variance",
            *(_largest_share(x["singular_values"]) for x in (trained, random)),
            _TIMES,
        )
    ]
    if "similarity" in trained:
        found.append(_position_check(config, trained["similarity"], random["similarity"]))
    if "distance" in trained and max(config.grid) > 1:
        uniform = inspection.uniform_distance(
            config.grid, config.patch_pixels, config.num_prefix_tokens
        )
        found.append(
            _check(
                f"Attention distances: mean deviation from uniform attention ({uniform:.1f} px)",
                *(float(np.abs(x["distance"] / uniform - 1).mean()) for x in (trained, random)),
                _TIMES_ATTENTION,
            )
        )
    if "entropy" in trained and config.mutual_places > 1:
        largest = math.log(config.mutual_places)
        found.append(
            _check(
                f"Entropy of attention: mean part missing to uniform attention ({largest:.2f})",
                *(float(1 - x["entropy"].mean() / largest) for x in (trained, random)),
                _TIMES_ATTENTION,
            )
        )
    return found


def kind(found) -> str:
    """What the checks say: "fail" if all look random, "pass" if none does, else "mixed"."""
    passed = {check.passed for check in found if check.passed is not None}
    return "pass" if passed == {True} else "mixed" if True in passed else "fail"


def verdict(found) -> str:
    """The checks in a sentence."""
    judged = [check.passed for check in found if check.passed is not None]
    count = len(judged)
    return {
        "fail": f"LOOKS UNTRAINED: {count} of {count} numbers like random weights.",
        "pass": f"Looks trained: no number of {count} is like that of random weights.",
        "mixed": f"Looks trained by {sum(judged)} of {count} numbers; the rest are like those of "
        "random weights, as in small or briefly trained models.",
    }[kind(found)]


def _check(name, value, random, times):
    least = max(times * random, _LEAST)
    return Check(
        name=name,
        value=f"{value:.1%}",
        expected=f"above {least:.1%}; random weights: {random:.1%}",
        passed=value > least,
    )


def _largest_share(singular_values):
    variances = np.square(singular_values)
    return float(variances[0] / variances.sum()) if variances.any() else 0.0


def _position_check(config, similarity, random):
    """Near positions are more similar than far ones: rank correlation over all pairs."""
    count = config.grid[0] * config.grid[1]
    pairs = np.triu_indices(count, k=1)
    nearness = -inspection.distances(config.grid).reshape(count, count)[pairs]
    value, other = (
        inspection.rank_correlation(maps.reshape(count, count)[pairs], nearness)
        for maps in (similarity, random)
    )
    name = "Positions: rank correlation of similarity and nearness"
    if not config.position_embedding.startswith("learned"):
        return Check(name=name, value=f"{value:.3f}", expected="not judged: fixed, not learned")
    # Embeddings of rows and columns make positions of one row similar, also if random. There
    # are fewer independent pairs: pairs of rows, and pairs of columns.
    sides = [count] if config.position_embedding == "learned_1d" else config.grid
    independent = sum(side * (side - 1) // 2 for side in sides)
    least = max(other, 0.0) + _ERRORS / math.sqrt(max(independent, 1))
    if least >= 1:
        return Check(name=name, value=f"{value:.3f}", expected="not judged: too few patches")
    return Check(
        name=name,
        value=f"{value:.3f}",
        expected=f"above {least:.3f}; random weights: {other:.3f}",
        passed=value > least,
    )

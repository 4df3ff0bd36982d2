"""Whether the models of a study can become better and worse, so that a difference can show."""

import dataclasses
from collections.abc import Mapping, Sequence

from pipelines.research.paper.findings import Cell, Claim

# Accuracies between which a model has learned the task and has not finished it.
_LOW, _HIGH = 0.60, 0.85


def with_headroom(bases: Mapping[str, Cell], claims: Sequence[Claim]) -> list[Claim]:
    """The claims of a study, behind one about the headroom of its base models.

    Without it the others have no verdict: a model that has not learned, or that makes hardly an
    error, says nothing about what would help it. The claim is only reported, so it adds nothing to
    the number of expectations that show.

    Args:
        bases: name -> the accuracies of a base model.
        claims: the others.
    """
    holds = all(_LOW <= each.mean <= _HIGH for each in bases.values())
    numbers = ", ".join(f"{name} {each.mean:.1%}" for name, each in bases.items())
    if not holds:
        numbers += "; it does not hold, so no other expectation has a verdict"
        claims = [dataclasses.replace(each, shows=None) for each in claims]
    text = f"headroom: accuracies from {_LOW:.0%} to {_HIGH:.0%}"
    return [Claim(text, None, numbers), *claims]

"""Rules between tensors and the canonical published arrays, used in both directions."""

import dataclasses
from collections.abc import Callable

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class Rule:
    """A tensor of a model or of a file, and the published arrays that hold the same values.

    Attributes:
        name: the tensor's name in the file; the path of a variable of a model.
        tensor_shape: the tensor's shape.
        shapes: published key -> shape.
        to_arrays: tensor -> list of published arrays, in the order of `shapes`.
        to_tensor: the inverse.
        resizable: whether the last axis of an array, of relative positions, may have another odd
            length; `to_tensor` then resizes the array.
    """

    name: str
    tensor_shape: tuple[int, ...]
    shapes: dict[str, tuple[int, ...]]
    to_arrays: Callable
    to_tensor: Callable
    resizable: bool = False


class RuleReader:
    """Reads published arrays by key from tensors, one tensor at a time.

    Args:
        rules: a `Rule` for each tensor.
        read_tensor: name of a tensor -> its values, float32.

    Attributes:
        shapes: published key -> shape.
    """

    def __init__(self, rules, read_tensor):
        self.shapes = {key: shape for rule in rules for key, shape in rule.shapes.items()}
        self._rules = {key: rule for rule in rules for key in rule.shapes}
        self._read_tensor = read_tensor
        self._unread = None, {}

    def read(self, key) -> np.ndarray:
        """The array of a published key, float32; KeyError if there is none."""
        rule = self._rules[key]
        # Queries, keys and values are often one tensor, and they are usually read in turn.
        if self._unread[0] is not rule or key not in self._unread[1]:
            arrays = rule.to_arrays(self._read_tensor(rule.name))
            self._unread = rule, dict(zip(rule.shapes, arrays, strict=True))
        return np.asarray(self._unread[1].pop(key), order="C")

"""Rules between tensors, of a file or a model, and published arrays; used in both directions."""

import dataclasses
from collections.abc import Callable

import numpy as np

from vit_tf.models.lora import adapted


@dataclasses.dataclass(frozen=True, eq=False)
class Rule:
    """A tensor of a model or of a file, and the published arrays that hold the same values.

    Attributes:
        name: the tensor's name in the file; the path of a variable of a model.
        tensor_shape: the tensor's shape.
        shapes: published key -> shape.
        to_arrays: tensor -> list of published arrays, in the order of `shapes`.
        to_tensor: the inverse.
        more: names of further tensors that `to_arrays` gets. They have rules of their own.
        resizable: whether the last axis of an array, of relative positions, may have another odd
            length; `to_tensor` then resizes the array.
    """

    name: str
    tensor_shape: tuple[int, ...]
    shapes: dict[str, tuple[int, ...]]
    to_arrays: Callable
    to_tensor: Callable
    more: tuple[str, ...] = ()
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
            arrays = rule.to_arrays(*map(self._read_tensor, (rule.name, *rule.more)))
            self._unread = rule, dict(zip(rule.shapes, arrays, strict=True))
        return np.asarray(self._unread[1].pop(key), order="C")


class ModelWeights(RuleReader):
    """The weights of a model by published key, with the interface of an open checkpoint.

    Kernels of layers with adapters are merged with them.

    Args:
        model: the model.
        rules: the rules of the model.
        path: where the model is from, for messages.
        preprocessing: its `Preprocessing`, if it is known.
    """

    notes = ()
    position_resize = "bilinear"

    def __init__(self, model, rules, path="", preprocessing=None):
        variables = variables_by_path(model)
        merged = {layer.kernel.path: layer for layer in adapted(model)}

        def read(name):
            if name in merged:
                return merged[name].merged_kernel()
            return np.asarray(variables[name].value, np.float32)

        super().__init__(rules, read)
        self.path, self.preprocessing = path, preprocessing
        self.trained_config = model.config
        self.grid = model.config.grid

    def check(self, key):
        """Does nothing: arrays in memory are never damaged."""


def variables_by_path(model) -> dict:
    """The variables that the rules of a model name."""
    return {variable.path: variable for variable in model.variables}


def reshaped(variable, key, shape) -> Rule:
    """A variable that is one published array, possibly of another shape."""
    return Rule(
        variable.path,
        tuple(variable.shape),
        {key: tuple(shape)},
        to_arrays=lambda value: [value.reshape(shape)],
        to_tensor=lambda arrays: arrays[0].reshape(variable.shape),
    )


def layer_rules(layer, prefix, names=("kernel", "bias")) -> list[Rule]:
    """The variables `names` of a layer, which have the same names in the file."""
    variables = [(name, getattr(layer, name)) for name in names]
    return [reshaped(variable, f"{prefix}/{name}", variable.shape) for name, variable in variables]


def variable_rules(layer, prefix) -> list[Rule]:
    """All variables of a layer, at their paths from the layer's own name on."""
    start = len(layer.path) - len(layer.name)
    return [
        reshaped(variable, f"{prefix}/{variable.path[start:]}", variable.shape)
        for variable in layer.variables
    ]


def kernel(layer, prefix) -> Rule:
    """The kernel of a layer without bias."""
    return layer_rules(layer, prefix, ("kernel",))[0]

"""Rules between the variables of a model and its published arrays, and a reader of such arrays."""

import numpy as np

from vit_tf.checkpoints.rule import Rule, RuleReader


class ModelWeights(RuleReader):
    """The weights of a model by published key, with the interface of an open checkpoint.

    Args:
        model: the model.
        rules: the rules of the model.
        path: where the model is from, for messages.
        preprocessing: its `Preprocessing`, if it is known.

    Attributes:
        shapes: published key -> shape.
        trained_config, grid: configuration and patch grid of the model.
        preprocessing: see above.
        notes: none.
    """

    notes = ()

    def __init__(self, model, rules, path="", preprocessing=None):
        variables = variables_by_path(model)
        super().__init__(rules, lambda name: np.asarray(variables[name].value, np.float32))
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

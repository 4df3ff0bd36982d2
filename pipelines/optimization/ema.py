"""Exponential moving average of the weights."""

import contextlib

import tensorflow as tf

from pipelines.optimization.replica_update import update_on_all_replicas


class ExponentialMovingAverage:
    """Polyak averaging: a <- decay a + (1 - decay) w after every update (paper, section 4.1).

    Create it inside `strategy.scope()`. `state.by_path` maps the path of each variable to its
    average; checkpoints store `state`. The moving averages of BatchNorm are averaged like the
    weights, so that they belong to weights of about the same age.

    Args:
        variables: Keras variables. The average of one that never changes keeps its value.
        decay: 0.9999 in the paper.
    """

    def __init__(self, variables, decay):
        self._decay = decay
        self._variables = [variable.value for variable in variables]
        self.state = tf.Module()
        self.state.by_path = {
            weight.path: tf.Variable(tf.zeros_like(variable), trainable=False, name=weight.path)
            for weight, variable in zip(variables, self._variables, strict=True)
        }
        self._averages = list(self.state.by_path.values())

    def initialize(self):
        """Sets the averages to the current weights."""
        for average, variable in zip(self._averages, self._variables, strict=True):
            average.assign(variable)

    def update(self, condition=True):
        """Updates the averages; call it in replica context, after the optimizer.

        Args:
            condition: scalar bool, equal on all replicas; if false, nothing changes.
        """
        update_on_all_replicas(self._update_all, condition)

    def _update_all(self, extended):
        for average, variable in zip(self._averages, self._variables, strict=True):
            extended.update(average, self._update, args=(variable,), group=False)

    def _update(self, average, variable):
        average.assign_add((1 - self._decay) * (variable - average))

    @contextlib.contextmanager
    def swapped_in(self):
        """Replaces the model's weights by the averages inside a `with` block."""
        weights = [variable.numpy() for variable in self._variables]
        try:
            for variable, average in zip(self._variables, self._averages, strict=True):
                variable.assign(average)
            yield
        finally:
            for variable, value in zip(self._variables, weights, strict=True):
                variable.assign(value)

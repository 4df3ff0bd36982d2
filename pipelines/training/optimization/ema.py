"""Exponential moving average of the weights."""

import contextlib
import math

import tensorflow as tf

from pipelines.training.optimization.replica_variables import update_on_all_replicas


class ExponentialMovingAverage:
    """Polyak averaging: a <- decay a + (1 - decay) w after every update (docs/paper.md F.5).

    With a warm-up the decay of the update of step t is min(decay, (1 + t) / (10 + t)): the average
    forgets its initial weights at once, however large the decay. The step is in every checkpoint; a
    step that changes nothing counts in t as it does in Adam's bias correction.

    Create it inside `strategy.scope()`. `state.by_path` maps the path of each variable to its
    average; checkpoints store `state`. The moving averages of BatchNorm are averaged like the
    weights, so that they belong to weights of about the same age.

    Args:
        variables: Keras variables. The average of one that never changes keeps its value.
        decay: 0.9999 in the paper.
        warmup: whether the decay begins small.
        slices: `Slices`, if each replica keeps and updates its slice of the averages; None: all
            replicas do the same.
    """

    def __init__(self, variables, decay, warmup=False, slices=None):
        self._decay, self._warmup, self._slices = decay, warmup, slices
        self._variables = [variable.value for variable in variables]
        self.state = tf.Module()
        self.state.by_path = {
            weight.path: self._average(variable, weight.path)
            for weight, variable in zip(variables, self._variables, strict=True)
        }
        self._averages = list(self.state.by_path.values())

    def _average(self, variable, name):
        if self._slices:
            return self._slices.variable(variable.shape, variable.dtype, name)
        return tf.Variable(tf.zeros_like(variable), trainable=False, name=name)

    def initialize(self):
        """Sets the averages to the current weights."""
        for average, variable in zip(self._averages, self._variables, strict=True):
            average.assign(variable)

    def update(self, step, condition=True):
        """Updates the averages; call it in replica context, after the optimizer.

        Args:
            step: scalar int64 tensor, steps done before this one.
            condition: scalar bool, equal on all replicas; if false, nothing changes.
        """
        share = tf.constant(1 - self._decay)
        if self._warmup:
            share = tf.maximum(share, 9 / (10 + tf.cast(step, tf.float32)))
        if not self._slices:
            update_on_all_replicas(self._update_all, condition, share)
            return
        for average, variable in zip(self._averages, self._variables, strict=True):
            old, weight = tf.convert_to_tensor(average.own), self._slices.own(variable)
            new = old + tf.cast(share, old.dtype) * (weight - old)
            average.own.assign(tf.where(condition, new, old))

    def _update_all(self, extended, share):
        for average, variable in zip(self._averages, self._variables, strict=True):
            extended.update(average, self._update, args=(variable, share), group=False)

    def _update(self, average, variable, share):
        average.assign_add(tf.cast(share, average.dtype) * (variable - average))

    @contextlib.contextmanager
    def swapped_in(self):
        """Replaces the model's weights by the averages inside a `with` block.

        Every worker enters it at the same time: with `slices`, each has a part of the averages.
        """
        weights = [variable.numpy() for variable in self._variables]
        try:
            averages = self._averages
            wholes = self._slices.wholes(averages) if self._slices else averages
            for variable, average in zip(self._variables, wholes, strict=True):
                variable.assign(average)
            yield
        finally:
            for variable, value in zip(self._variables, weights, strict=True):
                variable.assign(value)


def initial_share(decay, warmup, steps) -> float:
    """The share of the initial weights in the average: the product of the decays of all steps.

    The decays of the warm-up are 1/10, 2/11, ...: n of them have the product 1 / C(n + 9, 9).

    Args:
        decay, warmup: as for `ExponentialMovingAverage`.
        steps: number of steps.
    """
    warm = min(steps, max(0, math.ceil((10 * decay - 1) / (1 - decay)))) if warmup else 0
    return decay ** (steps - warm) / math.comb(warm + 9, 9)

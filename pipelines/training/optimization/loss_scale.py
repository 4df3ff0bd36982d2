"""Dynamic loss scaling for float16 (docs/training.md, Precision)."""

import contextlib

import tensorflow as tf

from pipelines.training.optimization.replica_variables import (
    assign_on_all_replicas,
    replicated_variable,
)

INITIAL = 2.0**15
SMALLEST, LARGEST = 1.0, 2.0**24
# Updates in a row after which the scale is doubled.
DOUBLE_AFTER = 2000


class LossScale:
    """The factor of the loss in the backward pass, which keeps float16 gradients in range.

    The gradient is divided by the same factor, a power of two, before it is used. An overflow skips
    the update and halves the factor; `DOUBLE_AFTER` updates in a row double it.

    Create it inside `strategy.scope()`. Checkpoints store `state`: the variables `value` and
    `updates`.
    """

    def __init__(self):
        self.value = replicated_variable(INITIAL, "loss_scale")
        # Updates since the factor changed.
        self.updates = replicated_variable(tf.constant(0, tf.int64), "loss_scale_updates")
        self.state = tf.train.Checkpoint(value=self.value, updates=self.updates)

    def gradient(self, tape, loss, values):
        """The gradient of `loss` with respect to `values`, through a scaled backward pass.

        Args:
            tape: the `tf.GradientTape` that has watched `values`.
            loss: scalar float32.
            values: list of tensors.

        Returns:
            List of tensors; some are not finite if the scaled gradient exceeds float16.
        """
        scale = tf.convert_to_tensor(self.value)
        # As the cotangent, and not as a product with the loss, which could overflow itself.
        gradients = tape.gradient(loss, values, output_gradients=scale)
        return [gradient / scale for gradient in gradients]

    def answers(self, loss, norm):
        """Whether a step that was not applied overflowed because the factor is too large.

        Args:
            loss: the loss of the step; the factor has no influence on it.
            norm: the norm of its gradient.
        """
        overflowed = tf.math.is_finite(loss) & ~tf.math.is_finite(norm)
        return overflowed & (tf.convert_to_tensor(self.value) > SMALLEST)

    def update(self, applied, overflowed):
        """Halves the factor after an overflow, and doubles it after enough updates.

        Call it in replica context. The arguments are equal on all replicas, at most one is true.

        Args:
            applied: whether the step updated the weights.
            overflowed: whether `answers` was true for the step.
        """
        scale, updates = (tf.convert_to_tensor(x) for x in (self.value, self.updates))
        updates += tf.cast(applied, tf.int64)
        doubles = updates >= DOUBLE_AFTER
        scale = tf.where(overflowed, scale / 2, tf.where(doubles, scale * 2, scale))
        updates = tf.where(overflowed | doubles, tf.zeros_like(updates), updates)
        scale = tf.clip_by_value(scale, SMALLEST, LARGEST)
        assign_on_all_replicas([(self.value, scale), (self.updates, updates)])


@contextlib.contextmanager
def unscaled(loss_scale):
    """A block with the factor 1, to examine a step without overflows that the factor causes.

    Args:
        loss_scale: `LossScale`; None does nothing.
    """
    if loss_scale is None:
        yield
        return
    scale = float(loss_scale.value.numpy())
    loss_scale.value.assign(1.0)
    try:
        yield
    finally:
        loss_scale.value.assign(scale)

"""Normalization: by batch over all replicas, by group of channels, and by token."""

import contextvars

import keras
import tensorflow as tf

import custom_ops
from vit_tf.config import GROUPS

_current = contextvars.ContextVar("vit_tf_batch_statistics", default=None)


class BatchStatistics:
    """Sets the weights of the examples, and collects new moving averages, in a `with` block.

    Enter it inside the function that runs on a replica, around the forward pass of the whole batch
    of that replica. `BatchNorm` then changes no variable: the training step decides whether it
    assigns `updates`, so that a step that is not finite changes nothing.

    Args:
        weights: float `[b]`; an example of weight 0, such as padding, does not count.

    Attributes:
        weights: as given.
        updates: pairs of a Keras variable and its new value, equal on all replicas.
    """

    def __init__(self, weights):
        self.weights = tf.cast(weights, tf.float32)
        self.updates = []
        self._examples = None
        self._tokens = []

    def examples(self):
        """Sum of the weights over all replicas; models without BatchNorm do not need it.

        Not a `functools.cached_property`, whose lock in Python 3.11 stops the replicas: the thread
        of each replica waits for the others here.
        """
        if self._examples is None:
            self._examples = _sum_over_replicas(tf.reduce_sum(self.weights))
        return self._examples

    def __enter__(self):
        self._tokens.append(_current.set(self))
        return self

    def __exit__(self, *exc_info):
        _current.reset(self._tokens.pop())


@keras.saving.register_keras_serializable(package="vit_tf")
class BatchNorm(keras.layers.Layer):
    """Normalizes each channel by its mean and variance over the batch, in float32.

    In training the statistics cover the whole batch of all replicas. Inference, and a frozen
    layer (`gamma` is not trainable), use moving averages, which training updates as
    new = momentum * old + (1 - momentum) * statistic. The variance that normalizes is the mean
    square (`/ n`); its moving average is of the unbiased variance (`/ (n - 1)`), as in PyTorch and
    unlike in Keras. PyTorch's momentum of 0.1 is 0.9 here.

    The weights of a `BatchStatistics` apply. Without one (Keras `fit`), all examples count, and the
    call assigns the moving averages.

    Args:
        epsilon: added to the variance.
        momentum: share of the old value in an update of the moving averages.
        axis: the axis of the channels.
        scale: initial value of the scale `gamma`.

    Call arguments:
        inputs: `[B, ..., C, ...]`.
        training: bool.

    Returns:
        A tensor of the same shape and dtype.
    """

    def __init__(self, epsilon, momentum=0.9, axis=-1, scale=1.0, **kwargs):
        super().__init__(**kwargs)
        self.epsilon = epsilon
        self.momentum = momentum
        self.axis = axis
        self.scale = scale

    def build(self, input_shape):
        initial = {"gamma": self.scale, "beta": 0.0, "moving_mean": 0.0, "moving_variance": 1.0}
        for name, value in initial.items():
            weight = self.add_weight(
                name=name,
                shape=(input_shape[self.axis],),
                initializer=keras.initializers.Constant(value),
                trainable=not name.startswith("moving"),
                autocast=False,
                # All replicas have the same statistics.
                aggregation="only_first_replica" if name.startswith("moving") else "none",
            )
            setattr(self, name, weight)

    def call(self, inputs, training=False):
        x = tf.cast(inputs, tf.float32)
        if training and self.gamma.trainable:
            centered, variance = self._centered_by_batch(x)
        else:
            centered = x - self._aligned(self.moving_mean.value, x)
            variance = self._aligned(self.moving_variance.value, x)
        gamma, beta = (self._aligned(v.value, x) for v in (self.gamma, self.beta))
        scale = tf.math.rsqrt(variance + self.epsilon) * gamma
        return tf.cast(centered * scale + beta, inputs.dtype)

    def compute_output_shape(self, input_shape):
        return input_shape

    def _aligned(self, vector, x):
        """A vector over the channels as float32, in a shape that broadcasts with `x`."""
        axis = self.axis % len(x.shape)
        return tf.reshape(tf.cast(vector, tf.float32), [-1] + [1] * (len(x.shape) - 1 - axis))

    def _centered_by_batch(self, x):
        """`x` minus its mean, and its variance, over the batches of all replicas."""
        batch = _current.get()
        axis = self.axis % len(x.shape)
        axes = [i for i in range(1, len(x.shape)) if i != axis]
        if batch is None:
            weights = tf.ones([tf.shape(x)[0]])
            examples = _sum_over_replicas(tf.reduce_sum(weights))
        else:
            weights, examples = batch.weights, batch.examples()
        each = tf.reduce_prod(tf.gather(tf.shape(x), axes))
        count = tf.cast(each, tf.float32) * examples

        def total(values):
            """Sum over pixels, examples and replicas, `[C]`."""
            sums = tf.reduce_sum(values, axis=axes)
            return _sum_over_replicas(tf.reduce_sum(sums * weights[:, None], axis=0))

        mean = tf.math.divide_no_nan(total(x), count)
        # Two passes: the mean square minus the squared mean would cancel.
        centered = x - self._aligned(mean, x)
        variance = tf.math.divide_no_nan(total(tf.square(centered)), count)
        unbiased = variance * tf.math.divide_no_nan(count, tf.maximum(count - 1, 1))
        # A batch in which no example counts has no statistics.
        rate = tf.where(count > 0, 1 - self.momentum, 0.0)
        for variable, value in ((self.moving_mean, mean), (self.moving_variance, unbiased)):
            old = tf.cast(variable.value, tf.float32)
            new = tf.stop_gradient(old + rate * (value - old))
            if batch is None:
                variable.assign(new)
            else:
                batch.updates.append((variable, new))
        return centered, self._aligned(variance, x)

    def get_config(self):
        return super().get_config() | {
            "epsilon": self.epsilon,
            "momentum": self.momentum,
            "axis": self.axis,
            "scale": self.scale,
        }


def _sum_over_replicas(value):
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return value
    return context.all_reduce(tf.distribute.ReduceOp.SUM, value)


@keras.saving.register_keras_serializable(package="vit_tf")
class GroupNorm(keras.layers.Layer):
    """Normalizes groups of channels of each example (Wu and He, 2018), in float32.

    Args:
        epsilon: added to the variance.
        groups: number of groups; must divide `C`.
        scale: initial value of the scale `gamma`.
        axis: the axis of the channels.

    Call arguments:
        inputs: `[B, H, W, C]`, or any other shape in which `axis` is not the first axis.

    Returns:
        A tensor of the same shape and dtype.
    """

    def __init__(self, epsilon, groups=GROUPS, scale=1.0, axis=-1, **kwargs):
        super().__init__(**kwargs)
        self.groups = groups
        self.epsilon = epsilon
        self.scale = scale
        self.axis = axis

    def build(self, input_shape):
        channels = input_shape[self.axis]
        if channels % self.groups:
            raise ValueError(f"{channels} channels are not a multiple of groups={self.groups}.")
        for name, initial in (("gamma", self.scale), ("beta", 0.0)):
            weight = self.add_weight(
                name=name,
                shape=(channels,),
                initializer=keras.initializers.Constant(initial),
                autocast=False,
            )
            setattr(self, name, weight)

    def call(self, inputs):
        x = tf.cast(inputs, tf.float32)
        x -= self._group_means(x)
        scale = tf.math.rsqrt(self._group_means(tf.square(x)) + self.epsilon)
        after = [1] * (len(x.shape) - 1 - self.axis % len(x.shape))
        gamma, beta = (
            tf.reshape(tf.cast(v.value, tf.float32), [-1, *after]) for v in (self.gamma, self.beta)
        )
        return tf.cast(x * (scale * gamma) + beta, inputs.dtype)

    def compute_output_shape(self, input_shape):
        return input_shape

    def _group_means(self, x):
        """For each channel the mean of its group, in a shape that broadcasts with `x`."""
        axis = self.axis % len(x.shape)
        channels = x.shape[axis]
        # The mean over pixels comes first: it adds whole vectors of channels.
        others = [i for i in range(1, len(x.shape)) if i != axis]
        means = tf.reshape(
            tf.reduce_mean(x, axis=others), [-1, self.groups, channels // self.groups]
        )
        means = tf.reduce_mean(means, axis=-1, keepdims=True)
        shape = [channels if i == axis else 1 for i in range(1, len(x.shape))]
        return tf.reshape(tf.tile(means, [1, 1, channels // self.groups]), [-1, *shape])

    def get_config(self):
        return super().get_config() | {
            "groups": self.groups,
            "epsilon": self.epsilon,
            "scale": self.scale,
            "axis": self.axis,
        }


@keras.saving.register_keras_serializable(package="vit_tf")
class ResidualNorm(keras.layers.LayerNormalization):
    """LayerNorm in one op with the addition of a residual branch, see `custom_ops.layer_norm`.

    Call arguments:
        tokens: `[..., D]`.
        branch: of the same shape, or None.

    Returns:
        Normalized tokens; with a branch, `(tokens + branch, normalized)`.
    """

    def compute_output_spec(self, tokens, branch=None):
        total, normalized = (keras.KerasTensor(tokens.shape, self.compute_dtype) for _ in range(2))
        return normalized if branch is None else (total, normalized)

    def call(self, tokens, branch=None):
        return custom_ops.layer_norm(
            tokens, self.gamma, self.beta, epsilon=self.epsilon, branch=branch
        )

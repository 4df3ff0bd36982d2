"""Dropout and stochastic depth whose masks do not depend on how a batch is split.

Each mask is a pure function of (seed, step, slot of the example in the global batch, stream).
So one device, several replicas, several workers and accumulated micro-batches train the same model,
and a resumed run continues with the masks of an uninterrupted run. There is no state to checkpoint.
XLA draws other numbers than a plain graph; they do not depend on the split either.
"""

import contextvars

import keras
import tensorflow as tf

_PHILOX = 1  # tf.random.Algorithm.PHILOX as an int for the raw op: four 32-bit values per counter.
# Odd numbers of 64 bits for `_mix`.
_SEED_FACTOR, _STREAM_FACTOR = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9
_OFFSET, _MIX_FACTOR = 0x94D049BB133111EB, 0xD6E8FEB86659FD93
_current = contextvars.ContextVar("vit_tf_random_context", default=None)


class RandomContext:
    """Sets seed, step and slots of the examples for the random layers called in a `with` block.

    Enter it inside the function that runs on a replica: each replica runs in its own thread.

    Args:
        seed: the seed of the run: int, or a scalar int64 tensor or variable.
        step: scalar int tensor or int, the training step.
        slots: int tensor `[b]`, places of these examples in the global batch. They must be
            consecutive: a replica's batch is a contiguous slice.
    """

    def __init__(self, seed, step, slots):
        self.seed = seed
        self.step = tf.cast(step, tf.int64)
        self.slots = tf.cast(slots, tf.int64)
        self._tokens = []

    @staticmethod
    def current() -> "RandomContext | None":
        """The context that was entered last, None outside of all."""
        return _current.get()

    def __enter__(self):
        self._tokens.append(_current.set(self))
        return self

    def __exit__(self, *exc_info):
        _current.reset(self._tokens.pop())


def uniform_per_example(shape, stream, seed, step, first_slot):
    """Uniform numbers in [0, 1); row i is the same for slot `first_slot + i` in any split.

    Philox generates four 32-bit values per counter. Each example uses a whole number of counters,
    and the first counter of a slice follows the counters of all examples before it.

    Args:
        shape: int tensor or sequence, the shape of the result; `shape[0]` examples.
        stream: int, different for each layer with the same seed and step.
        seed: int, or a scalar int64 tensor or variable.
        step: scalar int64 tensor.
        first_slot: scalar int64 tensor, the slot of row 0.

    Returns:
        float32 tensor of shape `shape`.
    """
    shape = tf.convert_to_tensor(shape, tf.int32)
    values = tf.reduce_prod(shape[1:])
    counters = (values + 3) // 4
    key, _ = tf.raw_ops.StatelessRandomGetKeyCounter(seed=tf.stack([_mixed(seed, stream), step]))
    first_counter = tf.cast(first_slot * tf.cast(counters, tf.int64), tf.uint64)
    draws = tf.raw_ops.StatelessRandomUniformV2(
        shape=[shape[0], 4 * counters],
        key=key,
        counter=tf.stack([first_counter, tf.zeros([], tf.uint64)]),
        alg=_PHILOX,
        dtype=tf.float32,
    )
    return tf.reshape(draws[:, :values], shape)


def _mixed(seed, stream):
    """Spreads (seed, stream) over 63 bits, so that neighboring pairs have different keys.

    Returns:
        Scalar int64 tensor: a constant if `seed` is an int.
    """
    if not tf.is_tensor(seed):
        return tf.constant(_mix(seed, stream), tf.int64)
    # The same as `_mix`: uint64 wraps around.
    value = tf.cast(seed, tf.uint64) * _SEED_FACTOR + (stream * _STREAM_FACTOR + _OFFSET) % 2**64
    value = (value ^ tf.bitwise.right_shift(value, _uint64(31))) * _MIX_FACTOR
    value = value ^ tf.bitwise.right_shift(value, _uint64(32))
    return tf.cast(value & (2**63 - 1), tf.int64)


def _mix(seed, stream):
    value = (seed * _SEED_FACTOR + stream * _STREAM_FACTOR + _OFFSET) % 2**64
    value = (value ^ (value >> 31)) * _MIX_FACTOR % 2**64
    return (value ^ (value >> 32)) & (2**63 - 1)


def _uint64(value):
    return tf.constant(value, tf.uint64)


class _RandomLayer(keras.layers.Layer):
    """Draws with the `RandomContext` or, without one (Keras `fit`), with a SeedGenerator."""

    def __init__(self, rate, stream=0, **kwargs):
        super().__init__(**kwargs)
        if not 0.0 <= rate < 1.0:
            raise ValueError(f"rate must be in [0, 1). Received: rate={rate}.")
        self.rate = rate
        self.stream = stream
        self.supports_masking = True
        if rate > 0:
            self.seed_generator = keras.random.SeedGenerator()
        self.built = True

    def kept(self, shape):
        """Boolean tensor of shape `shape`, true with probability `1 - rate`."""
        context = _current.get()
        if context is None:
            drawn = tf.cast(self.seed_generator.next(), tf.int64)
            seed, step, first_slot = 0, drawn[0] * 2**32 + drawn[1], tf.zeros([], tf.int64)
        else:
            seed, step, first_slot = context.seed, context.step, context.slots[0]
        return uniform_per_example(shape, self.stream, seed, step, first_slot) >= self.rate

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return super().get_config() | {"rate": self.rate, "stream": self.stream}


@keras.saving.register_keras_serializable(package="vit_tf")
class Dropout(_RandomLayer):
    """Zeroes elements with probability `rate` and scales the rest by `1 / (1 - rate)`.

    Args:
        rate: drop probability in [0, 1).
        stream: int that separates the random numbers of this layer from other layers.

    Call arguments:
        inputs: float tensor `[B, ...]`.
        training: bool; inference returns the inputs.
    """

    def call(self, inputs, training=False):
        if not training or self.rate == 0:
            return inputs
        kept = self.kept(tf.shape(inputs))
        return tf.where(kept, inputs / (1 - self.rate), tf.zeros([], inputs.dtype))


@keras.saving.register_keras_serializable(package="vit_tf")
class StochasticDepth(_RandomLayer):
    """Drops a whole residual branch for a random subset of the examples (Huang et al., 2016).

    Args:
        rate: probability that an example loses the branch, in [0, 1).
        stream: int that separates the random numbers of this layer from other layers.

    Call arguments:
        inputs: float tensor `[B, ...]`, the branch before it is added.
        training: bool; inference returns the inputs.
    """

    def call(self, inputs, training=False):
        if not training or self.rate == 0:
            return inputs
        ones = tf.ones([len(inputs.shape) - 1], tf.int32)
        kept = self.kept(tf.concat([tf.shape(inputs)[:1], ones], axis=0))
        return tf.where(kept, inputs / (1 - self.rate), tf.zeros([], inputs.dtype))

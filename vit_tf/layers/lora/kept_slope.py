"""Forms of GELU for training that keep one tensor, their derivative, for the gradient.

TensorFlow keeps the inputs of each operation: six tensors of the hidden width for the tanh form. A
block whose dense layers are frozen needs none of them for its kernels, so that these would be most
of the memory of a step.
"""

import math

import tensorflow as tf

# Of the tanh form of GELU (docs/paper.md A.6): sqrt(2 / pi), and that times 0.044715.
GELU_FACTORS = 0.7978845608028654, 0.035677408136300125


def gelu_tanh(x):
    """The same number as `encoder.gelu_tanh`."""
    of_x, of_cube = GELU_FACTORS

    @tf.custom_gradient
    def activated(x):
        # Beyond 16 tanh is 1; in float16 the cube would overflow, and 0 times it is no number.
        near = tf.clip_by_value(x, -16.0, 16.0)
        cubic = of_cube * near * near
        tanh = tf.tanh(near * (of_x + cubic))
        share = 0.5 + 0.5 * tanh
        slope = share + (0.5 * near) * (1.0 - tanh * tanh) * (of_x + 3.0 * cubic)
        return x * share, lambda upstream: upstream * slope

    return activated(x)


def gelu_erf(x):
    """The same number as `encoder.gelu_erf`, up to rounding."""

    @tf.custom_gradient
    def activated(x):
        share = 0.5 * (1.0 + tf.math.erf(x * math.sqrt(0.5)))
        slope = share + x * (tf.exp(-0.5 * x * x) / math.sqrt(2 * math.pi))
        return x * share, lambda upstream: upstream * slope

    return activated(x)


KEPT_SLOPE = {"gelu_tanh": gelu_tanh, "gelu_erf": gelu_erf}

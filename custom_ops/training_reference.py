"""The ops of a training step in plain TensorFlow: the definition, the fallback, the oracle.

Inputs are tensors that `custom_ops.training` has checked; gradients are TensorFlow's own. `D` is
the width, the last dimension of tokens.
"""

import math

import tensorflow as tf

# sqrt(2 / pi), and 0.044715 times that.
GELU_TANH = (0.7978845608028654, 0.035677408136300125)


def gelu_tanh(x):
    """The tanh form of GELU, which the published weights were trained with (docs/paper.md A.6).

    Computes `x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2`. In this order of operations few
    tensors are kept for the gradient, and x^2, which overflows in float16 from 256 on, is never
    computed alone.
    """
    linear, cubic = GELU_TANH
    inner = x * (linear + cubic * x * x)
    return x * (0.5 + 0.5 * tf.tanh(inner))


def gelu_erf(x):
    """The exact GELU, x times the normal distribution function.

    `tf.nn.gelu` gives the same bits, but in float64 its root of 1/2 is that of float32.
    """
    return 0.5 * x * tf.math.erfc(-x * math.sqrt(0.5))


def bias_gelu(x, bias, activation, keep_slope=False):
    """Bias and GELU; `custom_ops.bias_gelu` documents it."""
    plain, kept = _GELU[activation]
    return (kept if keep_slope else plain)(tf.nn.bias_add(x, tf.cast(bias, x.dtype)))


@tf.custom_gradient
def _kept_gelu_tanh(x):
    linear, cubic = GELU_TANH
    # Beyond 16 tanh is 1; in float16 the cube would overflow, and 0 times it is no number.
    near = tf.clip_by_value(x, -16.0, 16.0)
    square = cubic * near * near
    tanh = tf.tanh(near * (linear + square))
    share = 0.5 + 0.5 * tanh
    slope = share + (0.5 * near) * (1.0 - tanh * tanh) * (linear + 3.0 * square)
    return x * share, lambda upstream: upstream * slope


@tf.custom_gradient
def _kept_gelu_erf(x):
    share = 0.5 * (1.0 + tf.math.erf(x * math.sqrt(0.5)))
    slope = share + x * (tf.exp(-0.5 * x * x) / math.sqrt(2 * math.pi))
    return x * share, lambda upstream: upstream * slope


_GELU = {"gelu_tanh": (gelu_tanh, _kept_gelu_tanh), "gelu_erf": (gelu_erf, _kept_gelu_erf)}


def layer_norm(x, scale, bias, epsilon):
    """LayerNorm in the order of operations of Keras; see `custom_ops.layer_norm`."""
    wide = x.dtype if x.dtype == tf.float64 else tf.float32
    scale, bias = (tf.cast(table, wide) for table in (scale, bias))
    number = tf.cast(x, wide)
    mean, variance = tf.nn.moments(number, axes=[-1], keepdims=True)
    factor = tf.math.rsqrt(variance + epsilon) * scale
    return tf.cast(number * factor + (-mean * factor + bias), x.dtype)


def sgd_update(weight, gradient, momentum, scalars, *, momentum_decay, weight_decay):
    """An update by SGD with momentum; `custom_ops.sgd_update` documents it."""
    gradient_scale, rate = tf.unstack(scalars)
    gradient = gradient * tf.cast(gradient_scale, gradient.dtype)
    new = momentum_decay * tf.cast(momentum, gradient.dtype) + gradient
    return _moved(weight, new, rate, weight_decay), tf.cast(new, momentum.dtype)


def adamw_update(  # noqa: PLR0913 - as in `custom_ops.adamw_update`
    weight, gradient, momentum, variance, scalars, *, beta_1, beta_2, epsilon, weight_decay
):
    """An update by AdamW; `custom_ops.adamw_update` documents it."""
    gradient_scale, rate, correction_1, correction_2 = tf.unstack(scalars)
    gradient = gradient * tf.cast(gradient_scale, gradient.dtype)
    first = beta_1 * tf.cast(momentum, gradient.dtype) + (1 - beta_1) * gradient
    second = beta_2 * variance + (1 - beta_2) * gradient**2
    direction = (first / correction_1) / (tf.sqrt(second / correction_2) + epsilon)
    new_weight = _moved(weight, direction, rate, weight_decay)
    return new_weight, tf.cast(first, momentum.dtype), second


def _moved(weight, direction, rate, weight_decay):
    if weight_decay:
        direction += weight_decay * weight
    return weight - rate * direction

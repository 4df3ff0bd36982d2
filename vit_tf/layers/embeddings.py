"""Layers that turn pixels into tokens: patch projection, class token (paper, eq. 1), registers.

Shapes: `B` images, `H x W` pixels, `C` channels, `P` patch side, `N` patches, `D` width,
`T` prefix tokens.
"""

import keras
import tensorflow as tf

import custom_ops
from custom_ops import dispatch
from vit_tf.images.value_range import OFFSET, SCALE

PATCH_FORMS = ("dense", "convolution")


@keras.saving.register_keras_serializable(package="vit_tf")
class PatchEmbedding(keras.layers.Layer):
    """Cuts images into patches and projects each one to `D` values (paper, section 3.1).

    Tokens come in row-major order of the patch grid; pixels right of and below the last whole
    patch are not read, as in the reference's VALID convolution.

    Args:
        patch_size: side `P` of a patch in pixels.
        hidden_size: width `D` of a token.
        form: "dense" (the paper's wording: flatten each patch, then a linear map; one op with the
            prefix and positions) or "convolution" (kernel = stride = `P`, as
            in the reference code). Both use the same kernel and agree up to rounding.
        implementation: for the dense form, see `custom_ops.patch_embed`.

    Call arguments:
        images: `[B, H, W, C]` float in [-1, 1], or uint8 0..255, which is mapped to [-1, 1].
        prefix: optional `[T, D]` tokens to put before the patches.
        position: optional `[T + N, D]` table to add.

    Returns:
        `[B, T + N, D]` in the layer's compute dtype.
    """

    def __init__(self, patch_size, hidden_size, form="dense", implementation="auto", **kwargs):
        super().__init__(**kwargs)
        if form not in PATCH_FORMS:
            raise ValueError(f"form must be one of {', '.join(PATCH_FORMS)}. Received: {form!r}.")
        self.patch_size = patch_size
        self.hidden_size = hidden_size
        self.form = form
        self.implementation = implementation
        self.supports_jit = form == "convolution" or dispatch.supports_jit(implementation)

    def build(self, input_shape):
        kernel_shape = (self.patch_size, self.patch_size, input_shape[-1], self.hidden_size)
        self.kernel = self.add_weight(
            name="kernel", shape=kernel_shape, initializer=keras.initializers.LecunNormal()
        )
        self.bias = self.add_weight(name="bias", shape=(self.hidden_size,), initializer="zeros")

    def compute_output_spec(self, images, prefix=None, position=None):
        del position
        batch, height, width, _ = images.shape
        count = None
        if None not in (height, width):
            count = (height // self.patch_size) * (width // self.patch_size)
            count += 0 if prefix is None else prefix.shape[0]
        return keras.KerasTensor((batch, count, self.hidden_size), self.compute_dtype)

    def call(self, images, prefix=None, position=None):
        kernel, bias, prefix, position = (
            in_dtype(x, self.compute_dtype) for x in (self.kernel, self.bias, prefix, position)
        )
        whole_range = images.dtype == tf.uint8
        scale, offset = (SCALE, OFFSET) if whole_range else (1.0, 0.0)
        if self.form == "dense":
            return custom_ops.patch_embed(
                images,
                kernel,
                bias,
                scale=scale,
                offset=offset,
                prefix=prefix,
                position=position,
                implementation=self.implementation,
            )
        images = tf.cast(tf.cast(images, tf.float32) * scale + offset, kernel.dtype)
        tokens = tf.nn.conv2d(images, kernel, strides=self.patch_size, padding="VALID") + bias
        rows, columns = (tf.shape(images)[axis] // self.patch_size for axis in (1, 2))
        tokens = tf.reshape(tokens, [tf.shape(images)[0], rows * columns, self.hidden_size])
        if prefix is not None:
            tokens = _prepend(prefix, tokens)
        return tokens if position is None else tokens + position

    def get_config(self):
        return super().get_config() | {
            "patch_size": self.patch_size,
            "hidden_size": self.hidden_size,
            "form": self.form,
            "implementation": "auto",
        }


@keras.saving.register_keras_serializable(package="vit_tf")
class ClassToken(keras.layers.Layer):
    """Prepends one learned vector, initially zero, to the patches (paper, eq. 1).

    Call arguments:
        patches: `[B, N, D]`.

    Returns:
        `[B, 1 + N, D]`.
    """

    def build(self, input_shape):
        self.token = self.add_weight(name="token", shape=(1, input_shape[-1]), initializer="zeros")

    def compute_output_shape(self, input_shape):
        batch, count, width = input_shape
        return (batch, None if count is None else count + 1, width)

    def call(self, patches):
        return _prepend(in_dtype(self.token, patches.dtype), patches)


@keras.saving.register_keras_serializable(package="vit_tf")
class RegisterTokens(keras.layers.Layer):
    """Puts learned vectors without positions before the patches (Darcet et al., 2024).

    They start from a normal distribution with standard deviation 0.02: equal ones would stay equal.

    Args:
        count: number of vectors `R`.
        first: tokens that stay before them: 1 with a class token, else 0.

    Call arguments:
        tokens: `[B, first + N, D]`, with positions.

    Returns:
        `[B, first + R + N, D]`.
    """

    def __init__(self, count, first, **kwargs):
        super().__init__(**kwargs)
        self.count = count
        self.first = first

    def build(self, input_shape):
        self.tokens = self.add_weight(
            name="tokens",
            shape=(self.count, input_shape[-1]),
            initializer=keras.initializers.RandomNormal(stddev=0.02),
        )

    def compute_output_shape(self, input_shape):
        batch, count, width = input_shape
        return (batch, None if count is None else count + self.count, width)

    def call(self, tokens):
        registers = in_dtype(self.tokens, tokens.dtype)
        patches = _prepend(registers, tokens[:, self.first :])
        return tf.concat([tokens[:, : self.first], patches], axis=1) if self.first else patches

    def with_zeros(self, table):
        """A position table `[first + N, D]` with zeros for the registers: `[first + R + N, D]`."""
        table = tf.convert_to_tensor(table)
        zeros = tf.zeros([self.count, table.shape[-1]], table.dtype)
        return tf.concat([table[: self.first], zeros, table[self.first :]], axis=0)

    def get_config(self):
        return super().get_config() | {"count": self.count, "first": self.first}


def _prepend(prefix, tokens):
    shape = [tf.shape(tokens)[0], prefix.shape[0], prefix.shape[1]]
    return tf.concat([tf.broadcast_to(prefix, shape), tokens], axis=1)


def in_dtype(variable, dtype):
    """A variable or tensor as a tensor of `dtype`; None stays None."""
    return None if variable is None else tf.cast(tf.convert_to_tensor(variable), dtype)

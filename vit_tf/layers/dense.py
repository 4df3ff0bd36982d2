"""A dense layer: one op for bias and GELU, and adapters (LoRA) without the kernel's gradient."""

import keras
import numpy as np
import tensorflow as tf

import custom_ops
from custom_ops.reference import GELU

_NAMES = {function: name for name, function in GELU.items()}
for _function in _NAMES:  # So that configurations of layers hold their names.
    keras.saving.register_keras_serializable(package="vit_tf")(_function)


@keras.saving.register_keras_serializable(package="vit_tf")
class Dense(keras.layers.Dense):
    """`keras.layers.Dense` with adapters that take little time and memory.

    With an activation of `custom_ops.reference.GELU`, bias and activation are one op.

    After `enable_lora(rank, alpha)` it computes `x (W + alpha / rank A B) + b`, and only A and B
    are trained (Hu et al., 2021, arXiv:2106.09685, eq. 3). The layer of Keras does so too, but
    its gradient of A and B goes through that of the sum, which is as expensive as that of W: a
    third of a training step. Here gradients pass through products with A and B alone.

    Files of Keras get the merged kernel, as they do there.

    Attributes:
        kernel: the variable W, also with an adapter. Keras returns the sum instead.
        keeps_slope: `keep_slope` of `custom_ops.bias_gelu` in training.
    """

    keeps_slope = False

    @property
    def kernel(self):
        return self._kernel if self.lora_enabled else super().kernel

    def call(self, inputs, training=None):
        gelu = self.use_bias and _NAMES.get(self.activation)
        if not (gelu or self.lora_enabled):
            return super().call(inputs, training=training)
        outputs = self._product(inputs)
        if gelu:
            keep_slope = self.keeps_slope and bool(training)
            return custom_ops.bias_gelu(outputs, self.bias, gelu, keep_slope=keep_slope)
        if self.bias is not None:
            outputs = keras.ops.add(outputs, self.bias)
        return outputs if self.activation is None else self.activation(outputs)

    def _product(self, inputs):
        if not self.lora_enabled:
            return keras.ops.matmul(inputs, self.kernel)
        return _adapted(
            inputs,
            *(tf.convert_to_tensor(x.value) for x in (self.lora_kernel_a, self.lora_kernel_b)),
            tf.convert_to_tensor(self._kernel.value),
            self.lora_alpha / self.lora_rank,
        )

    def merged_kernel(self) -> np.ndarray:
        """The kernel with the change by the adapter, float32."""
        kernel = np.asarray(self._kernel.value, np.float32)
        if not self.lora_enabled:
            return kernel
        a, b = (np.asarray(x.value) for x in (self.lora_kernel_a, self.lora_kernel_b))
        return kernel + np.float32(self.lora_alpha / self.lora_rank) * (a @ b)

    def save_own_variables(self, store):
        if not self.lora_enabled:
            super().save_own_variables(store)
            return
        store["0"] = self.merged_kernel()
        if self.bias is not None:
            store["1"] = self.bias


def _adapted(inputs, a, b, kernel, scale):
    """`inputs (kernel + scale a b)` of `[..., D]`, with gradients of all but the kernel."""

    @tf.custom_gradient
    def product(inputs, a, b):
        def gradient(upstream):
            rows = tf.reshape(inputs, [-1, kernel.shape[0]])
            upstream = tf.reshape(upstream, [-1, kernel.shape[1]])
            low = scale * tf.matmul(upstream, b, transpose_b=True)
            of_inputs = tf.matmul(upstream, kernel, transpose_b=True)
            of_inputs += tf.matmul(low, a, transpose_b=True)
            of_b = scale * tf.matmul(tf.matmul(rows, a), upstream, transpose_a=True)
            of_a = tf.matmul(rows, low, transpose_a=True)
            return tf.reshape(of_inputs, tf.shape(inputs)), of_a, of_b

        return tf.tensordot(inputs, kernel + scale * tf.matmul(a, b), 1), gradient

    return product(inputs, a, b)

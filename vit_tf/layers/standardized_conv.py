"""Convolutions whose kernels are standardized (weight standardization; Qiao et al., 2019)."""

import contextvars

import keras
import tensorflow as tf

_current = contextvars.ContextVar("vit_tf_standardized_kernels", default=None)


@keras.saving.register_keras_serializable(package="vit_tf")
class StandardizedConv(keras.layers.Layer):
    """2-D convolution without bias, with `(w - mean) / (sqrt(variance + v) + d)` as its kernel.

    Mean and variance are over the weights of each output channel, in float32 under every policy.

    Args:
        filters: output channels.
        kernel_size: side of the square kernel, in pixels.
        strides: pixels between two outputs.
        padding: "same" (TensorFlow's rule: ceil(side / strides) outputs, an odd zero after), or
            the number of zeros on every side.
        variance_epsilon, deviation_epsilon: v and d.

    Call arguments:
        inputs: `[B, H, W, C]`.

    Returns:
        `[B, h, w, filters]` in the compute dtype.
    """

    def __init__(
        self,
        filters,
        kernel_size,
        strides,
        padding,
        variance_epsilon,
        deviation_epsilon,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.filters = filters
        self.kernel_size = kernel_size
        self.strides = strides
        self.padding = padding
        self.variance_epsilon = variance_epsilon
        self.deviation_epsilon = deviation_epsilon

    def build(self, input_shape):
        self.kernel = self.add_weight(
            name="kernel",
            shape=(self.kernel_size, self.kernel_size, input_shape[-1], self.filters),
            initializer="lecun_normal",
            # Otherwise a mixed policy would round the weights before mean and variance.
            autocast=False,
        )

    def compute_output_shape(self, input_shape):
        return (input_shape[0], *map(self._side, input_shape[1:3]), self.filters)

    def _side(self, side):
        if side is None:
            return None
        if self.padding != "same":
            side += 2 * self.padding - self.kernel_size + 1
        return -(-side // self.strides)

    def standardized(self):
        """The standardized kernel, float32."""
        kernel = tf.cast(self.kernel.value, tf.float32)
        centered = kernel - tf.reduce_mean(kernel, axis=[0, 1, 2])
        variance = tf.reduce_mean(tf.square(centered), axis=[0, 1, 2])
        deviation = tf.sqrt(variance + self.variance_epsilon) + self.deviation_epsilon
        return centered / deviation

    def call(self, inputs):
        kernels = _current.get()
        kernel = self.standardized() if kernels is None else kernels.of(self)
        if self.padding == "same":
            padding = "SAME"
        else:
            padding = [[0, 0], [self.padding] * 2, [self.padding] * 2, [0, 0]]
        return tf.nn.conv2d(inputs, tf.cast(kernel, inputs.dtype), self.strides, padding)

    def get_config(self):
        return super().get_config() | {
            "filters": self.filters,
            "kernel_size": self.kernel_size,
            "strides": self.strides,
            "padding": self.padding,
            "variance_epsilon": self.variance_epsilon,
            "deviation_epsilon": self.deviation_epsilon,
        }


class StandardizedKernels:
    """The kernels of a model, standardized once for all calls inside a `with` block.

    Use it to call a model several times with the same weights, as in gradient accumulation, or to
    export a model with constant kernels.

    Args:
        model: a `VisionTransformer` or `ResNet`.
        constant: whether to keep the kernels in new variables of the compute dtype, for an export.

    Attributes:
        layers: the `StandardizedConv` layers of the model.
        values: standardized kernels, in the order of `layers`: float32 tensors, or variables.
    """

    def __init__(self, model, constant=False):
        self.layers = model.standardized_convs()
        self.values = [layer.standardized() for layer in self.layers]
        if constant:
            # In the dtype of the convolution, so that no call casts them.
            self.values = [
                tf.Variable(tf.cast(value, layer.compute_dtype), trainable=False)
                for layer, value in zip(self.layers, self.values, strict=True)
            ]
        self._by_layer = {
            id(layer): value for layer, value in zip(self.layers, self.values, strict=True)
        }
        self._tokens = []

    def of(self, layer):
        """The standardized kernel of a layer."""
        return self._by_layer[id(layer)]

    def substitute(self, variables) -> list[tf.Tensor]:
        """The values of variables; each kernel is replaced by its standardized kernel."""
        by_kernel = {
            id(layer.kernel): value for layer, value in zip(self.layers, self.values, strict=True)
        }
        return [by_kernel.get(id(variable), variable.value) for variable in variables]

    def raw_gradients(self, tape, variables, gradients):
        """Converts gradients of `substitute(variables)` to gradients of the variables.

        Args:
            tape: a `tf.GradientTape` that recorded the construction of this object.
            variables: Keras variables; kernels that are not among them have no gradient.
            gradients: list of tensors, one for each.
        """
        by_kernel = {
            id(variable): gradient for variable, gradient in zip(variables, gradients, strict=True)
        }
        pairs = [
            (layer.kernel, value)
            for layer, value in zip(self.layers, self.values, strict=True)
            if id(layer.kernel) in by_kernel
        ]
        kernels = [kernel for kernel, _ in pairs]
        raw = tape.gradient(
            [value for _, value in pairs],
            [kernel.value for kernel in kernels],
            output_gradients=[by_kernel[id(kernel)] for kernel in kernels],
        )
        by_kernel |= {id(kernel): gradient for kernel, gradient in zip(kernels, raw, strict=True)}
        return [by_kernel[id(variable)] for variable in variables]

    def __enter__(self):
        self._tokens.append(_current.set(self))
        return self

    def __exit__(self, *exc_info):
        _current.reset(self._tokens.pop())

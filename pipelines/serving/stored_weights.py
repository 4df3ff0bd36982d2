"""The values that an export stores for the weights of a model."""

import contextlib

import keras
import tensorflow as tf

from vit_tf.layers import StandardizedKernels
from vit_tf.models.image_model import all_layers


@contextlib.contextmanager
def stored_weights(model):
    """A context in which the functions to export are traced: they read the values that it gives.

    Kernels of standardized convolutions are stored standardized. Weights that a model with mixed
    precision rounds to bfloat16 in each call are stored in bfloat16: the results are the same, the
    file is half as large, and no call casts them.

    Args:
        model: a `VisionTransformer`, `PackedModel` or `ResNet`.

    Yields:
        List of all variables of TensorFlow that a SavedModel of the model needs.
    """
    # The weights of an export do not change.
    with StandardizedKernels(model, constant=True) as kernels:
        stored = kernels.substitute(model.weights)
        scope = keras.StatelessScope(initialize_variables=False)
        rounded = _rounded(model)
        for index, variable in enumerate(model.weights):
            if id(variable) in rounded and stored[index] is variable.value:
                value = tf.cast(variable.value, tf.bfloat16)
                stored[index] = tf.Variable(value, trainable=False)
                scope.add_update((variable, stored[index]))
        with scope:
            yield [*stored, *model.arrays]


def _rounded(model):
    """The ids of the variables that the layers of a model round to bfloat16 in each call."""
    read = []
    for layer in all_layers(model.layers):
        if layer.compute_dtype == "bfloat16":
            # Not the variables of layers inside, which may have another policy.
            inside = {id(x) for inner in all_layers(layer)[1:] for x in inner.variables}
            read += [x for x in layer.variables if x.dtype == "float32" and id(x) not in inside]
    found = set()

    def look(inputs):
        # In a call, Keras gives the dtype that the layer reads: some variables are never cast.
        found.update(id(x) for x in read if x.dtype == "bfloat16")
        return inputs

    if read:
        keras.layers.Lambda(look, dtype="mixed_bfloat16")(tf.zeros([1]))
    return found

"""Recomputes activations in the backward pass (Chen et al., 2016, arXiv:1604.06174)."""

import contextvars

import keras
import tensorflow as tf


def recomputed(layer, function, inputs):
    """Calls `function(inputs)`; its gradient computes the tensors inside again.

    Only `inputs` and the weights of the layer are kept for the gradient. It is the same as without,
    but for last bits that TensorFlow's graph optimizer changes in large graphs: context variables
    (`RandomContext`, the implementation of the ops) and seed generators have the values of the
    first call again, which `tf.recompute_grad` does not restore.

    Args:
        layer: the built Keras layer that `function` calls; without `BatchNorm` and
            `StandardizedConv`, since moving averages and shared kernels are not passed on.
        function: function of one tensor that returns one tensor.
        inputs: floating-point tensor.

    Returns:
        The result of `function(inputs)`.
    """
    trainable, state = layer.trainable_variables, layer.non_trainable_variables
    # Read here, so that the caller's tape connects the gradient to the variables that it watches.
    weights = [tf.convert_to_tensor(variable.value) for variable in trainable]
    before = [tf.convert_to_tensor(variable.value) for variable in state]
    context, names = contextvars.copy_context(), tf.get_current_name_scope()
    scope_name = f"{names}/" if names else ""  # With the slash, the scope is not numbered.

    def scope_of(weights):
        values = zip((*trainable, *state), (*weights, *before), strict=True)
        return keras.StatelessScope(state_mapping=list(values))

    @tf.custom_gradient
    def outputs_of(inputs, *weights):
        with scope_of(weights) as scope:
            old = [scope.get_current_value(variable) for variable in state]
            outputs = context.run(function, inputs)
            new = [scope.get_current_value(variable) for variable in state]
        for variable, old_value, new_value in zip(state, old, new, strict=True):
            if new_value is not old_value:  # A seed generator, outside of a `RandomContext`.
                variable.assign(new_value)

        def gradient(upstream):
            # Without dependencies on `upstream`, TensorFlow and XLA would compute equal operations
            # once, and keep the results. XLA ignores control dependencies, but not this choice.
            # The first call gives the names too: TensorFlow sorts the terms of sums by name.
            with tf.control_dependencies([upstream]):
                first = tf.reshape(upstream, [-1])[0]
                nan = tf.constant(float("nan"), inputs.dtype)
                read = [tf.where(first == first, inputs, nan), *map(tf.identity, weights)]
                with tf.GradientTape(watch_accessed_variables=False) as tape:
                    tape.watch(read)
                    with scope_of(read[1:]), tf.name_scope(scope_name):
                        outputs = context.run(function, read[0])
                return tape.gradient(outputs, read, output_gradients=upstream)

        return outputs, gradient

    return outputs_of(inputs, *weights)

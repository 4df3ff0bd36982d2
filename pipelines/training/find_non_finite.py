"""Finds the first non-finite value of a step by repeating the step in eager mode."""

import dataclasses
import functools

import tensorflow as tf

from pipelines.errors import first_line
from vit_tf.models.image_model import all_layers


@dataclasses.dataclass(frozen=True)
class Finding:
    """The place of the first non-finite value of a step.

    Attributes:
        what: "weight", "image", "layer", "loss", "gradient", "sum" (only the sum over the
            batch is not finite), "nothing" (every value of the repeated step is finite) or "error"
            (the step could not be repeated).
        text: the finding as the end of a sentence.
        layer, variable: paths in the model, or None. If `layer` is set, `variable` is the first one
            in backward order whose gradient is not finite.
        ids: of the images with non-finite values; of the whole micro-batch if the images cannot be
            identified.
    """

    what: str
    text: str
    layer: str | None = None
    variable: str | None = None
    ids: tuple[int, ...] = ()


def find_non_finite(model, gradients, micro_batches, step) -> Finding:
    """Repeats a step in eager mode, up to the first non-finite value.

    Checks in the order of the computation: the weights; for each micro-batch the images, layers,
    loss and gradients (from the head down); the sums over the batch. The model is unchanged
    afterwards.

    Args:
        model: has the weights from before the step.
        gradients: function of a micro-batch and the step, returns the loss and the list of
            gradients with respect to `model.trainable_variables`; calls the model.
        micro_batches: the micro-batches of the step in order, as large as on a replica.
        step: index of the step.
    """
    if finding := find_non_finite_weight(model):
        return finding
    # A forward pass may change these, such as running statistics.
    kept = [(variable, variable.numpy()) for variable in model.non_trainable_weights]
    try:
        return _find_in_micro_batches(model, gradients, micro_batches, step)
    except tf.errors.OpError as error:
        return Finding("error", f"and it could not be repeated: {first_line(error)}")
    finally:
        for variable, value in kept:
            variable.assign(value)


def find_non_finite_weight(model) -> Finding | None:
    """The first weight of a model that is not finite, None if all are."""
    for weight in model.weights:
        if not _is_finite(weight.value):
            path = _relative(weight.path)
            return Finding("weight", f"first in the weight {path}", _owner(path), path)
    return None


def _find_in_micro_batches(model, gradients, micro_batches, step):
    loss_sum, gradient_sums = tf.zeros([]), None
    for batch in micro_batches:
        if not _is_finite(batch["image"]):
            return Finding("image", "first in the input images", ids=_ids(batch, batch["image"]))
        with _CallWatcher(model) as calls:
            loss, batch_gradients = gradients(batch, tf.constant(step, tf.int64))
        by_variable = calls.last_first(model.trainable_variables, batch_gradients)
        variable = next((path for path, value in by_variable if not _is_finite(value)), None)
        if calls.layer is not None:
            text = f"first in the output of layer {calls.layer}"
            text += f" and in the gradient of {variable}" if variable else ""
            return Finding("layer", text, calls.layer, variable, _ids(batch, calls.value))
        if not _is_finite(loss):
            text = "first in the loss: the logits are finite"
            return Finding("loss", text, variable=variable, ids=_ids(batch))
        if variable is not None:
            text = f"first in the gradient of {variable}"
            return Finding("gradient", text, _owner(variable), variable, _ids(batch))
        loss_sum += loss
        if gradient_sums is None:
            gradient_sums = batch_gradients
        else:
            pairs = zip(gradient_sums, batch_gradients, strict=True)
            gradient_sums = [sum_ + gradient for sum_, gradient in pairs]
    by_variable = calls.last_first(model.trainable_variables, gradient_sums)
    return _find_in_sums(loss_sum, gradient_sums, by_variable)


def _find_in_sums(loss_sum, gradient_sums, by_variable):
    """Finds a non-finite sum over the batch after every micro-batch was finite.

    Args:
        loss_sum: scalar tensor.
        gradient_sums: list of tensors.
        by_variable: `gradient_sums` as `[(path, tensor), ...]` in the order of the backward pass.
    """
    variable = next((path for path, value in by_variable if not _is_finite(value)), None)
    if variable is not None or not _is_finite(tf.linalg.global_norm(gradient_sums)):
        # If only the norm overflows, the largest gradient is the cause.
        largest = max(by_variable, key=lambda pair: float(tf.reduce_max(tf.abs(pair[1]))))[0]
        variable = variable or largest
        text = f"first in the gradient of {variable} summed over the batch"
        return Finding("sum", text, _owner(variable), variable)
    if not _is_finite(loss_sum):
        return Finding("sum", "first in the sum of the losses over the batch")
    return Finding(
        "nothing", "but it is when the step is repeated: this suggests faulty memory or hardware"
    )


class _CallWatcher:
    """Watches the calls of all layers of a model inside a `with` block, in eager mode.

    Keras has no hook for calls, but it calls the attribute `call` of a layer. In each layer this
    class sets `call` to a function that also checks inputs and outputs, and restores it at the end.

    Args:
        model: any Keras model.

    Attributes:
        layer: path of the first layer with a non-finite output, or None. If a layer receives a
            non-finite value that no layer returned, the path of its caller.
        value: the non-finite value.
    """

    def __init__(self, model):
        self.layer = self.value = None
        self._model = model
        self._replaced = []  # Pairs of a layer and its instance attribute `call`, or None.
        self._names = []  # Names of the layers that are being called, the model first.
        self._order = {}  # Path of a variable -> rank of its layer in the order of completion.

    def __enter__(self):
        try:
            for layer in all_layers(self._model):
                self._replaced.append((layer, vars(layer).get("call")))
                layer.call = self._watched(layer, layer.call)
        except BaseException:
            self._restore()
            raise
        return self

    def __exit__(self, *exc_info):
        self._restore()

    def _restore(self):
        while self._replaced:
            layer, own = self._replaced.pop()
            if own is not None:
                layer.call = own
            elif "call" in vars(layer):
                del layer.call

    def _watched(self, layer, call):
        @functools.wraps(call)
        def watched(*args, **kwargs):
            self._look((args, kwargs))
            self._names.append(layer.name)
            try:
                outputs = call(*args, **kwargs)
                self._look(outputs)
            finally:
                self._names.pop()
            if self._names:  # Not for the model itself, which ends last.
                for variable in layer.trainable_variables:
                    self._order.setdefault(variable.path, len(self._order))
            return outputs

        return watched

    def _look(self, values):
        if self.layer is not None or not tf.executing_eagerly():
            return
        for value in tf.nest.flatten(values):
            if isinstance(value, tf.Tensor) and not _is_finite(value):
                self.layer = "/".join(self._names[1:] or self._names)
                self.value = value
                return

    def last_first(self, variables, gradients):
        """`[(path, gradient), ...]`, the variables of the last layer first."""
        pairs = zip(variables, gradients, strict=True)
        last_first = sorted(pairs, key=lambda pair: -self._order.get(pair[0].path, -1))
        return [(_relative(variable.path), gradient) for variable, gradient in last_first]


def _is_finite(value):
    value = tf.convert_to_tensor(value)
    return not value.dtype.is_floating or bool(tf.reduce_all(tf.math.is_finite(value)))


def _ids(batch, value=None):
    """Ids of the images whose rows of `value` are not finite; of all if it has no row per image."""
    ids = batch["id"].numpy()
    if value is not None and value.shape.rank and value.shape[0] == len(ids):
        rows = tf.reshape(value, [len(ids), -1])
        ids = ids[~tf.reduce_all(tf.math.is_finite(rows), axis=1).numpy()]
    return tuple(ids.tolist())


def _relative(path):
    """The path of a variable without the name of the model."""
    return path.partition("/")[2] or path


def _owner(path):
    """The path of the layer that holds a variable, or None."""
    return path.rpartition("/")[0] or None

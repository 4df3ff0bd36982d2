"""Checks the loss that a model is compiled with."""

import inspect
import warnings

import keras
import tensorflow as tf


def check_loss(model, loss):
    """Warns if a model of logits is compiled with a loss of probabilities.

    Args:
        model: has `name` and `head`.
        loss: the argument of `compile`: a Keras loss, its name, a function, or a structure of them.
    """
    if model.head is None:
        return
    for given in tf.nest.flatten(loss):
        if name := _loss_of_probabilities(given):
            warnings.warn(
                f"{model.name} returns logits, and this loss reads them as probabilities: "
                f"training would not work. Compile with keras.losses.{name}(from_logits=True).",
                stacklevel=3,
            )
            return


def _loss_of_probabilities(loss):
    """The class name of a Keras loss that reads probabilities; None for any other loss."""
    if isinstance(loss, str):
        try:
            loss = keras.losses.get(loss)
        except ValueError:  # Keras has a better message.
            return None
    if isinstance(loss, keras.losses.Loss):
        reads = getattr(loss, "from_logits", None) is False
        return type(loss).__name__ if reads else None
    if not inspect.isfunction(loss):
        return None
    parameter = inspect.signature(loss).parameters.get("from_logits")
    if parameter is None or parameter.default is not False:
        return None
    return "".join(word.capitalize() for word in loss.__name__.split("_"))

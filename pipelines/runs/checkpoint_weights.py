"""The weights of a model in a checkpoint, which needs no other state of its run."""

import contextlib

import tensorflow as tf

from pipelines.errors import UserError


def weights_by_path(weights) -> tf.Module:
    """Returns a module that holds the weights of a model by path, for `tf.train.Checkpoint`.

    Keras' own tracking misses weights that a model keeps in lists. It also includes the states of
    seed generators, which are not needed here: random draws in training depend on the step.
    """
    module = tf.Module()
    module.by_path = {weight.path: weight.value for weight in weights}
    return module


def weight_shapes(file_prefix) -> list[list[int]]:
    """Returns the shapes of the model weights in a checkpoint, without reading the weights.

    Args:
        file_prefix: path prefix of the checkpoint's files, see `checkpoints.prefix`.

    Raises:
        UserError: if the checkpoint cannot be read.
    """
    with _read_errors(file_prefix):
        shapes = tf.train.load_checkpoint(file_prefix).get_variable_to_shape_map()
    return [shape for name, shape in shapes.items() if name.startswith("model/")]


def read_weights(file_prefix, model, ema=False, partly=False):
    """Reads all weights of a model from a checkpoint.

    Args:
        file_prefix: path prefix of the checkpoint's files, see `checkpoints.prefix`.
        model: the model whose weights are set.
        ema: whether the weights are set to their Polyak averages.
        partly: whether weights without an average, which never change, stay as they are.

    Raises:
        UserError: if the checkpoint cannot be read or lacks weights of the model.
    """
    with _read_errors(file_prefix):
        _read(file_prefix, model=weights_by_path(model.weights))
        if ema:
            stored = tf.train.load_checkpoint(file_prefix).get_variable_to_shape_map()
            averaged = [x for x in model.weights if not partly or _average_name(x) in stored]
            _read(file_prefix, ema=weights_by_path(averaged))


def _average_name(weight):
    """The name of the average of a weight in a checkpoint, where TensorFlow writes `.S` for `/`."""
    path = weight.path.replace(".", "..").replace("/", ".S")
    return f"ema/by_path/{path}/.ATTRIBUTES/VARIABLE_VALUE"


def _read(file_prefix, **objects):
    status = tf.train.Checkpoint(**objects).read(file_prefix)
    status.assert_existing_objects_matched().expect_partial()


@contextlib.contextmanager
def _read_errors(file_prefix):
    try:
        yield
    except (AssertionError, tf.errors.OpError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"Cannot read the checkpoint {file_prefix}: {reason}") from None

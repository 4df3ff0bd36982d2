"""The base class of the Keras models of all families, and the list of all layers inside one."""

import functools
import typing
import warnings
from collections.abc import Callable

import keras
import tensorflow as tf

import custom_ops
from vit_tf.models.inputs import check_images, checked_first_step, note_range
from vit_tf.models.losses import check_loss


class ServingStages(typing.NamedTuple):
    """A model as two functions, so that inputs of several kinds can share the second.

    Attributes:
        first: from the model's input to the input of `second`.
        second: from the output of `first` to the result of the model.
        spec: the `tf.TensorSpec` between them.
        reads_uint8: whether uint8 images of the model's size save memory: `first` does not make
            float images of them.
    """

    first: Callable
    second: Callable
    spec: tf.TensorSpec
    reads_uint8: bool = False


class ImageModel(keras.Model):
    """A model of images with a symbolic input and output, like a functional Keras model.

    A subclass sets `config` and `head`, defines `features(images, training)`, which returns the
    input of the head, and `depth_groups`, and calls `record_graph` at the end of its constructor.
    Then `keras.Model(model.input, model.get_layer("block_3").output)` is a model of intermediate
    features, as `vit_tf.feature_model` makes them. That model reads only floats in [-1, 1]; for
    uint8, call the stages on a `keras.Input` of that dtype.

    Attributes:
        input: `[None, H, W, 3]` of the configured size, in the dtype of the variables.
        output: the result of the model for `input`, computed in stages.
        inputs, outputs: lists that hold only `input` and only `output`.
        input_shape, output_shape: shapes of `input` and `output`.
    """

    def record_graph(self):
        """Calls the model's own layers once on a symbolic image: each gets `input` and `output`."""
        shape = (*self.config.image_size, 3)
        self._input = keras.Input(shape, dtype=self.variable_dtype, name="images")
        features = self.features(self._input)
        self._output = features if self.head is None else self.head(features)

    def depth_groups(self):
        """All layers with variables, in groups from the input to the output.

        The first group comes before the first layer of an encoder or the first stage of a ResNet,
        the last group is the final norm and the head.

        Returns:
            A list of lists of Keras layers.
        """
        raise TypeError(f"{type(self).__name__} does not define groups of layers.")

    def serving_stages(self) -> ServingStages:
        """The model as two functions; the first one changes nothing."""
        spec = tf.TensorSpec([None, *self.config.image_size, 3])
        return ServingStages(tf.identity, functools.partial(self, training=False), spec)

    @property
    def arrays(self) -> list:
        """Variables of TensorFlow that are not `weights`: none."""
        return []

    def stem_outputs(self):
        """Symbolic outputs of `stem` and the units inside it, by name, for `input`; often empty."""
        return {}

    def first_kernel(self):
        """The filters of the first layer as they act on pixels: `[P, P, 3, filters]`."""
        raise TypeError(f"{type(self).__name__} does not define its first filters.")

    def position_table(self):
        """The embeddings that are added to the tokens of the first block, or None: `[T, D]`."""
        return None

    @property
    def input(self):
        return self._input

    @property
    def output(self):
        return self._output

    @property
    def inputs(self):
        return [self._input]

    @property
    def outputs(self):
        return [self._output]

    @property
    def input_shape(self):
        return self._input.shape

    @property
    def output_shape(self):
        return self._output.shape

    def compute_output_shape(self, input_shape):
        return (input_shape[0], *self._output.shape[1:])

    def compute_output_spec(self, images, training=False):
        del training
        check_images(self, images)
        return keras.KerasTensor(self.compute_output_shape(images.shape), self._output.dtype)

    def compile(self, optimizer="rmsprop", loss=None, *args, **kwargs):
        """See `keras.Model.compile`. Warns about losses of Keras that read probabilities."""
        super().compile(optimizer, loss, *args, **kwargs)
        check_loss(self, loss)

    def compile_from_config(self, config):
        # Keras leaves models with a `compile` of their own uncompiled when it loads them.
        self.compile(**keras.saving.deserialize_keras_object(config))
        self.optimizer.build(self.trainable_variables)

    def make_train_function(self, force=False):
        """See `keras.Model.make_train_function`. The first step checks the range of its images."""
        before = self.train_function
        super().make_train_function(force)
        if self.train_function is not before:
            self.train_function = checked_first_step(self, self.train_function)

    def train_step(self, data):
        note_range(self, keras.utils.unpack_x_y_sample_weight(data)[0])
        return super().train_step(data)

    def export(
        self, filepath, format="tf_saved_model", verbose=None, input_signature=None, **kwargs
    ):
        """See `keras.Model.export`. The result has only ops of TensorFlow.

        It reads `images`, prepared ones like `input`, and returns the result of the model:
        preprocessing and classes are part of the exports of `python -m pipelines.export` only.

        Warns:
            UserWarning: if the model was created with `implementation="compiled"`.
        """
        if getattr(self.config, "implementation", "auto") == "compiled":
            warnings.warn(
                f"{self.name} has implementation='compiled', so that this export needs the "
                "compiled ops where it is loaded. Create the model with 'auto', or use "
                "python -m pipelines.export, which can store their library.",
                stacklevel=2,
            )
        if input_signature is None:  # Keras would want a call of the model before.
            input_signature = [tf.TensorSpec(self.input_shape, self.input.dtype, "images")]
        with custom_ops.implementation("reference"):
            super().export(filepath, format, verbose, input_signature, **kwargs)

    def get_config(self):
        return super().get_config() | {"config": self.config.to_dict()}

    def __repr__(self):
        if not self.built:
            return super().__repr__()
        return (
            f"<{type(self).__name__} name={self.name}, image_size={self.config.image_size}, "
            f"num_classes={self.config.num_classes}, parameters={self.count_params():,}>"
        )


def all_layers(model) -> list:
    """A model, or a layer, and all layers inside it, each once; also of the items of a list.

    `layers` lists the layers of a model. Keras has no such list for other layers: they are found
    among the attributes, also in lists, tuples and dictionaries.
    """
    found, waiting = {}, [model]
    while waiting:
        value = waiting.pop()
        if isinstance(value, keras.layers.Layer) and id(value) not in found:
            found[id(value)] = value
            inside = value.layers if isinstance(value, keras.Model) else vars(value).values()
            waiting += [
                x for x in inside if isinstance(x, keras.layers.Layer | list | tuple | dict)
            ]
        elif isinstance(value, list | tuple | dict):
            waiting += value.values() if isinstance(value, dict) else value
    return list(found.values())

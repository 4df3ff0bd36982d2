"""One model that is inspected: its functions of images, its twin, and what its family lacks."""

import dataclasses
import functools

import keras
import numpy as np
import tensorflow as tf

import vit_tf

# Images of 224 x 224 pixels in a forward pass, and in a pass that keeps the tokens of all layers.
_BATCH, _KEEPING_BATCH = 32, 8


@dataclasses.dataclass(frozen=True)
class Subject:
    """A model with its preprocessing and classes.

    Attributes:
        name: the path or name that the user gave.
        model, preprocessing, classes: see `vit_tf.LoadedModel`.
    """

    name: str
    model: object
    preprocessing: vit_tf.Preprocessing
    classes: vit_tf.Classes

    @property
    def config(self):
        """The configuration of the model."""
        return self.model.config

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes, or their indices."""
        return self.classes.names(self.config.num_classes)

    @functools.cached_property
    def twin(self):
        """A model of the same configuration with random weights, also in the head.

        A map that hardly changes with the weights explains nothing about them (Adebayo et al.,
        2018).
        """
        keras.utils.set_random_seed(0)
        twin = vit_tf.create_model(self.config, dtype="float32")
        if twin.head is not None:  # It starts from zeros, which have no gradient.
            kernel = twin.head.kernel
            normal = np.random.default_rng(0).normal(size=kernel.shape)
            kernel.assign(normal / np.sqrt(kernel.shape[0]))
        return twin

    @property
    def batch_size(self) -> int:
        """Images of a forward pass."""
        return self._images_of(_BATCH)

    @property
    def keeping_batch_size(self) -> int:
        """Images of a pass that keeps something of all layers."""
        return self._images_of(_KEEPING_BATCH)

    def _images_of(self, count):
        height, width = self.config.image_size
        return max(1, min(count, count * 224 * 224 // (height * width)))

    def results(self, images):
        """Probabilities `[B, K]` of prepared images, and what the head reads, `[B, D]`.

        For an unpooled model, the logits and embeddings of the patches are averaged.
        """
        return [value.numpy() for value in self._forward(tf.convert_to_tensor(images))]

    @functools.cached_property
    def _forward(self):
        model, classes = self.model, self.classes

        def forward(images):
            features = tf.cast(model.features(images), tf.float32)
            pooled = features if model.config.pooled else tf.reduce_mean(features, axis=1)
            if model.head is None:
                return tf.zeros([tf.shape(images)[0], 0]), pooled
            # The head is linear: the mean of the logits is the logit of the mean.
            return classes.to_probabilities(model.head(pooled)), pooled

        size = [None, *self.config.image_size, 3]
        signature = [tf.TensorSpec(size, self.preprocessing.dtype)]
        # One trace for all numbers of images: tracing takes seconds for deep models.
        return tf.function(forward, signature, autograph=False)

    @functools.cached_property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of the maps."""
        if self.config.grid is not None:
            return self.config.grid
        image = tf.zeros([1, *self.config.image_size, 3], self.preprocessing.dtype)
        return tuple(self.model.final_map(image).shape[1:3])

    def cells(self, shape):
        """(height, width) in pixels of the cells of a map of `shape`, rows and columns."""
        side = self.config.patch_pixels
        if side is not None:
            return side, side
        height, width = self.config.image_size
        return -(-height // shape[0]), -(-width // shape[1])

    def left_out(self) -> dict[str, str]:
        """Pictures that do not exist for the model -> the reason."""
        config, found = self.config, {}
        if config.grid is None:
            reason = "the model has no tokens of patches that attend to each other"
            names = ("attention", "rollout", "distance", "entropy", "norms", "positions")
            found |= dict.fromkeys((*names, "class share"), reason)
        else:
            if config.axial:
                found["entropy"] = "it is defined here for full attention, and this is axial"
            if not config.has_class_token:
                found["class share"] = "the model has no class token"
            if self.model.position_table() is None:
                found["positions"] = (
                    f"position_embedding={config.position_embedding} adds no table to the tokens"
                )
        if not config.num_classes:
            names = ("prediction", "activation", "occlusion", "curves")
            found |= dict.fromkeys(names, "the model has no classes (num_classes=0)")
        return found


def open_subject(source, opening) -> Subject:
    """The `Subject` of a `StoredModel`, opened as `StoredModel.open_model` says."""
    model, preprocessing, classes = source.open_model(opening)
    if model.config.num_classes == 1:
        # Maps explain a logit. There is one, for the last name.
        classes = dataclasses.replace(classes, labels=classes.labels[-1:])
    return Subject(source.name, model, preprocessing, classes)


def left_out_lines(subject) -> list[str]:
    """The pictures that do not exist for the model, a text for each reason."""
    by_reason = {}
    for name, reason in subject.left_out().items():
        by_reason.setdefault(reason, []).append(name)
    return [f"{', '.join(names)} ({reason})" for reason, names in by_reason.items()]


def batches(images, size):
    """The images in groups of at most `size`."""
    return [images[start : start + size] for start in range(0, len(images), size)]

"""Loads a stored model with its preprocessing and its classes, and classifies images with it."""

import functools
import itertools
import os
import typing
import warnings
from typing import Any

import numpy as np
import tensorflow as tf

from vit_tf import keras_file
from vit_tf.checkpoints.kinds import final_weights, kind_of
from vit_tf.checkpoints.shapes import assumed_square
from vit_tf.checkpoints.sidecar import read_sidecar
from vit_tf.classes import Classes
from vit_tf.create import check_file, create_model
from vit_tf.images.image_array import check_image
from vit_tf.images.image_file import read_image
from vit_tf.models.image_features import ImageFeatures
from vit_tf.preprocessing import Preprocessing
from vit_tf.pretrained.class_names import names_if_imagenet
from vit_tf.pretrained.records import find_file_record
from vit_tf.weights import find_weights, load_checkpoint, open_checkpoint

_BATCH_SIZE = 32


class LoadedModel(typing.NamedTuple):
    """A model with its weights, its preprocessing and the meaning of its logits.

    Attributes:
        model: the Keras model.
        preprocessing: makes its input of images of any size, values 0 .. 255.
        classes: names of the classes, and how logits become probabilities.
    """

    model: Any
    preprocessing: Preprocessing
    classes: Classes

    def predict(self, images, top=5) -> list[list[tuple[str, float]]]:
        """Classifies images as `python -m pipelines.predict` does.

        Args:
            images: an image, or a list of images. An image is the path or URL of a JPEG, PNG, WebP,
                GIF or BMP file, decoded as `vit_tf.images.decoding` says, or a uint8 array
                `[H, W, 3]` of values 0 .. 255 and any size. A batch is one uint8 array
                `[B, H, W, 3]`.
            top: classes in a result; all classes if there are fewer.

        Returns:
            A list with one result for each image, in order. A result is a list of pairs `(label,
            probability)`, the most probable first; for equal ones, the lower index first. Labels
            are `classes.labels`, or the indices of the classes in decimal if these are unknown.

        Raises:
            ValueError: if a file is not an image, an array has another shape or dtype, `top` is not
                a positive integer, or the model does not classify images.
        """
        names = self._names()
        if not isinstance(top, int) or isinstance(top, bool) or top < 1:
            raise ValueError(f"top must be a positive integer. Received: {top!r}.")
        results = []
        for batch in self._batches(images):
            logits = tf.cast(self.model(batch), tf.float32)
            for row in self.classes.to_probabilities(logits).numpy():
                # A stable sort keeps equal probabilities in the order of the classes.
                best = np.argsort(-row, kind="stable")[:top]
                results.append([(names[index], float(row[index])) for index in best])
        return results

    def features(self, images, layers=None, norm=True) -> ImageFeatures | list[ImageFeatures]:
        """Computes the tokens of images, as `get_intermediate_layers` of DINOv2 does.

        `model.features` gives what the head reads in place of them: one row for each image, which
        `python -m pipelines.predict --embed` writes.

        `B` images, `D` width, `R` registers.

        Args:
            images: see `predict`.
            layers: list, tuple or range of layers whose output is wanted, from 0; -1 is the last
                one. None: behind the last layer. An axial layer ends with its column block.
            norm: whether the final norm is applied to the tokens, also behind a layer that is not
                the last.

        Returns:
            `ImageFeatures` of float32 arrays: `class_token` `[B, D]` and `registers` `[B, R, D]`,
            None for a model without them, and `patches` `[B, rows, columns, D]`. With `layers` a
            list of them, one for each layer in their order. A model without tokens, such as a
            ResNet, has its last feature map as `patches`, and no `layers`.

        Raises:
            ValueError: if a file is not an image, an array has another shape or dtype, there is no
                image, or the model does not have a layer.

        Example:
            >>> features = vit_tf.load("dinov2-small").features(["a.jpg", "b.jpg"])
            >>> features.patches.shape
            (2, 16, 16, 384)
        """
        batches = [
            [_as_arrays(one) for one in self.model.image_features(batch, layers, norm)]
            for batch in self._batches(images)
        ]
        if not batches:
            raise ValueError("There is no image: images is empty.")
        found = [_joined(parts) for parts in zip(*batches, strict=True)]
        return found[0] if layers is None else found

    def _batches(self, images):
        """Yields batches of prepared images, float32 `[b, h, w, 3]`."""
        each = (
            self.preprocessing(image) for image in _read_images(images, self.preprocessing.decode)
        )
        while batch := list(itertools.islice(each, _BATCH_SIZE)):
            yield tf.stack(batch)

    def _names(self):
        """The names of all classes; raises if the model returns no logits of a whole image."""
        config, labels = self.model.config, self.classes.labels
        if not config.num_classes:
            raise ValueError("The model has no head (num_classes=0), so it predicts no classes.")
        if not config.pooled:
            raise ValueError("The model is unpooled: it classifies patches, and not images.")
        if not self.classes.fit(config.num_classes):
            raise ValueError(
                f"There are names of {len(labels)} classes, and the model has "
                f"{config.num_classes}. Name all of them, or none."
            )
        return self.classes.names(config.num_classes)


def load(path, dtype=None) -> LoadedModel:
    """Loads a model from a file, the folder of a run, or the name of published weights.

    Files are untrusted: no code in them runs, and they are checked before the model is built. A
    file that states no preprocessing gets the reference code's one: a direct resize to the
    model's image size, pixels in [-1, 1].

    Args:
        path: a `.npz` file (its sidecar is `<path>.json`), a `.safetensors` file or a folder of
            Hugging Face or timm, a `.keras` file, the folder of a run that has ended (its
            `final.npz`), the URL of one of these, or a name of `list_weights`, which is downloaded
            once.
        dtype: Keras dtype policy; None is the policy that the file states, else the global one.

    Returns:
        A `LoadedModel`, which is the tuple `(model, preprocessing, classes)`.

    Warns:
        UserWarning: if the file leaves settings open; the message has the assumed ones.

    Raises:
        ValueError: if there is no model at `path` and no published weights have this name, the
            run has not ended, or a file is damaged or describes a model that it does not hold.
        vit_tf.pretrained.download.DownloadError: if weights cannot be downloaded.

    Example:
        >>> model, preprocessing, classes = vit_tf.load("runs/flowers")
    """
    path = find_weights(path)
    if kind_of(path) == "run":
        path = final_weights(path)
    loaded, notes = open_file(path, dtype)
    if note := loaded.classes.note(loaded.model.config.num_classes):
        notes = [*notes, note]
    if notes:
        warnings.warn(f"{path}: {'; '.join(notes)}.", stacklevel=2)
    return loaded


def open_file(
    path, dtype=None, assumed=None, activation="softmax"
) -> tuple[LoadedModel, list[str]]:
    """Reads a file, or a folder of safetensors; see `load`.

    Args:
        path: the file or folder.
        dtype: see `load`.
        assumed: fields of `Preprocessing` by name, for a file that states no preprocessing.
        activation: `Classes.activation`, for such a file.

    Returns:
        The loaded model, and the assumptions about the file, one sentence each.

    Raises:
        ValueError: see `load`.
    """
    assume = functools.partial(_assume, os.fspath(path), assumed or {}, activation)
    if kind_of(path) == "keras":
        return _open_keras(path, dtype, assume), []
    with open_checkpoint(path) as checkpoint:
        check_file(checkpoint)
        preprocessing, classes = checkpoint.preprocessing, checkpoint.classes
        if preprocessing is None:
            preprocessing, classes = assume(checkpoint.config)
        model = create_model(checkpoint.config, dtype=dtype or checkpoint.dtype)
        load_checkpoint(model, checkpoint, head="keep", preprocessing=preprocessing)
        notes = checkpoint.notes
        if find_file_record(checkpoint.path, model.config.num_classes):
            # The models of published weights were trained on squares.
            notes = [x for x in notes if x != assumed_square(checkpoint.config.grid, path)]
        return LoadedModel(model, preprocessing, classes or Classes()), notes


def _open_keras(path, dtype, assume):
    """The loaded model of a `.keras` file."""
    sidecar, model = read_sidecar(path), keras_file.open_model(path, dtype)
    if sidecar.preprocessing is None:
        return LoadedModel(model, *assume(model.config))
    image_size = model.config.image_size
    if sidecar.preprocessing.image_size != image_size:
        raise ValueError(
            f"{path}.json prepares images of {sidecar.preprocessing.image_size}, the model reads "
            f"{image_size}. Restore or delete it."
        )
    return LoadedModel(model, sidecar.preprocessing, sidecar.classes or Classes())


def _assume(path, fields, activation, config) -> tuple[Preprocessing, Classes]:
    """Preprocessing and classes for a file that states none.

    A file with the name and the number of classes of published weights is taken for them: classes
    have names, and photos are not turned, as in the reference code.
    """
    published = find_file_record(path, config.num_classes)
    labels = names_if_imagenet(config.num_classes) if published else ()
    exif = "ignore" if published else "apply"
    preprocessing = Preprocessing(image_size=config.image_size, **{"exif": exif} | fields)
    return preprocessing, Classes(labels=labels, activation=activation)


def _as_arrays(features):
    """The same `ImageFeatures` as float32 arrays."""
    return ImageFeatures(*(None if x is None else tf.cast(x, tf.float32).numpy() for x in features))


def _joined(parts):
    """The `ImageFeatures` of several batches as one."""
    columns = zip(*parts, strict=True)
    return ImageFeatures(*(None if x[0] is None else np.concatenate(x) for x in columns))


def _read_images(images, decode):
    """Yields the pixels of each image, uint8 `[H, W, 3]`."""
    if isinstance(images, str | os.PathLike):
        images = [images]
    elif not isinstance(images, list | tuple):
        images = np.asarray(images)
        images = images if images.ndim == 4 else [images]
    for image in images:
        if isinstance(image, str | os.PathLike):
            yield read_image(image, decode)
            continue
        image = np.asarray(image)
        check_image(image)
        yield image

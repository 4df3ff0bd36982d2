"""Compares a LiteRT or ONNX file, called without TensorFlow, with the model it was made from."""

import dataclasses
import os

import numpy as np
import tensorflow as tf

import custom_ops
from pipelines.errors import RunError
from pipelines.serving import clean_process
from pipelines.serving.single_file.conversion import resizes_inside
from pipelines.stored_models import runtimes
from vit_tf.analysis.relative_difference import relative_difference

# Images of random pixels in the check: of the model's size, and of another one.
_OWN, _OTHER = 4, 2
# Images in a call of the model.
_BATCH = 50


@dataclasses.dataclass(frozen=True)
class FileCheck:
    """The measurements of `check_file`.

    Attributes:
        difference: largest absolute difference of a logit, divided by the largest logit.
        accuracy: fraction of the labeled images that the file classifies correctly; None without.
        model_accuracy: the same of the model.
    """

    difference: float
    accuracy: float | None = None
    model_accuracy: float | None = None


def check_file(path, model, preprocessing, classes, labeled=None) -> FileCheck:
    """Calls a file in a process that cannot import TensorFlow, and compares it with a model.

    Args:
        path: the file.
        model: the exported model; it runs with the reference implementation of the ops.
        preprocessing, classes: its own.
        labeled: images of the model's size, float32 `[N, h, w, 3]`, 0 .. 255, and their labels;
            None compares random images only.

    Raises:
        RunError: if the process cannot load or run the file, or an output has another shape or is
            not finite.
    """
    calls = list(_images(preprocessing))
    if labeled is not None:
        calls.append(labeled[0])
    try:
        answers, _ = clean_process.call_signatures(
            path, [(None, images) for images in calls], loader=runtimes.__file__
        )
    except clean_process.CleanProcessError as error:
        raise RunError(f"{os.path.basename(path)} does not run: {error}") from None
    differences, accuracies = [], []
    for images, answer in zip(calls, answers, strict=True):
        expected = _logits(model, preprocessing, images)
        probabilities = classes.to_probabilities(answer["logits"]).numpy()
        for name, value in (("logits", expected), ("probabilities", probabilities)):
            if answer[name].shape != value.shape or not np.isfinite(answer[name]).all():
                raise RunError(
                    f"{os.path.basename(path)} gives {name} of shape {answer[name].shape}, or not "
                    f"finite ones. Expected finite ones of shape {value.shape}."
                )
        differences.append(relative_difference(answer["logits"], expected))
        if images is calls[-1] and labeled is not None:
            accuracies = [
                float(np.mean(x.argmax(axis=1) == labeled[1])) for x in (answer["logits"], expected)
            ]
    return FileCheck(max(differences), *accuracies)


def _images(preprocessing):
    """Yields float32 batches of random images, 0 .. 255, for the file."""
    generator = np.random.default_rng(0)
    height, width = preprocessing.image_size
    sizes = [(_OWN, height, width)]
    if resizes_inside(preprocessing):
        sizes.append((_OTHER, 2 * height + 3, width + 7))
    for size in sizes:
        yield generator.integers(0, 256, (*size, 3)).astype(np.float32)


def _logits(model, preprocessing, images):
    """The model's logits for images, float32 arrays."""
    found = []
    # On the CPU, like the other process: GPUs round float32 products to 10 bits by default.
    with custom_ops.implementation("reference"), tf.device("CPU:0"):
        for start in range(0, len(images), _BATCH):
            part = images[start : start + _BATCH]
            inside = resizes_inside(preprocessing)
            pixels = preprocessing.resized(part) if inside else part
            found.append(model(preprocessing.normalized(pixels), training=False).numpy())
    return np.concatenate(found)

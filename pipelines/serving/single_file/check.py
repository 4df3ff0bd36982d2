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
# Images in a call.
_BATCH = 50


@dataclasses.dataclass(frozen=True)
class FileCheck:
    """The measurements of `check_file`.

    Attributes:
        difference: largest absolute difference of a logit, divided by the largest logit.
        accuracy: fraction of labeled images that the file classifies correctly; None without.
        model_accuracy: the same of the model.
    """

    difference: float
    accuracy: float | None = None
    model_accuracy: float | None = None


def check_file(path, loaded, images=None, labels=None) -> FileCheck:
    """Calls a file in a process that cannot import TensorFlow, and compares it with a model.

    Args:
        path: the file.
        loaded: the `vit_tf.LoadedModel` that was exported; it runs with the reference
            implementation of the ops.
        images: float32 `[N, h, w, 3]`, 0 .. 255; None: random ones of the sizes that it reads.
        labels: int `[N]`, the classes of `images`, or None.

    Raises:
        RunError: if the process cannot load or run the file, or an output has another shape or is
            not finite.
    """
    name = os.path.basename(path)
    if images is None:
        calls = list(_random_images(loaded.preprocessing))
    else:
        calls = [images[start : start + _BATCH] for start in range(0, len(images), _BATCH)]
    try:
        answers, _ = clean_process.call_signatures(
            path, [(None, images) for images in calls], loader=runtimes.__file__
        )
    except clean_process.CleanProcessError as error:
        raise RunError(f"{name} does not run: {error}") from None
    expected = [_logits(loaded, images) for images in calls]
    for answer, logits in zip(answers, expected, strict=True):
        probabilities = loaded.classes.to_probabilities(logits)
        for key, shape in (("logits", logits.shape), ("probabilities", probabilities.shape)):
            if answer[key].shape != shape or not np.isfinite(answer[key]).all():
                raise RunError(
                    f"{name} gives {key} of shape {answer[key].shape}, or not finite ones. "
                    f"Expected finite ones of shape {shape}."
                )
    difference = max(
        relative_difference(answer["logits"], logits)
        for answer, logits in zip(answers, expected, strict=True)
    )
    if labels is None:
        return FileCheck(difference)
    found = (np.concatenate(x) for x in ([answer["logits"] for answer in answers], expected))
    return FileCheck(difference, *(float((x.argmax(axis=1) == labels).mean()) for x in found))


def _random_images(preprocessing):
    """Yields float32 batches of random images, 0 .. 255, for the file."""
    generator = np.random.default_rng(0)
    height, width = preprocessing.image_size
    sizes = [(_OWN, height, width)]
    if resizes_inside(preprocessing):
        sizes.append((_OTHER, 2 * height + 3, width + 7))
    for size in sizes:
        yield generator.integers(0, 256, (*size, 3)).astype(np.float32)


def _logits(loaded, images):
    """The model's logits for images, a float32 array."""
    model, preprocessing, _ = loaded
    # On the CPU, like the other process: GPUs round float32 products to 10 bits by default.
    with custom_ops.implementation("reference"), tf.device("CPU:0"):
        pixels = preprocessing.resized(images) if resizes_inside(preprocessing) else images
        return model(preprocessing.normalized(pixels), training=False).numpy()

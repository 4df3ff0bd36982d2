"""Compares a LiteRT or ONNX file, called without TensorFlow, with the model it was made from."""

import dataclasses
import os

import numpy as np
import tensorflow as tf

import custom_ops
from pipelines.errors import RunError
from pipelines.serving import clean_process
from pipelines.serving.probes import pictures
from pipelines.serving.single_file.conversion import resizes_inside
from pipelines.stored_models import runtimes
from vit_tf.analysis.relative_difference import relative_difference

# Pictures in the check: of the model's size, and of another one.
_OWN, _OTHER = 4, 2
# Largest difference of a resized pixel, in levels of 255. The rounding of coordinates makes 0.006
# (2026-11, 224 x 224 pixels from 900 x 1201), another rule for their centers more than 1.
MOST_LEVELS = 0.05
# Largest difference of a logit after the resize, as a part of the largest one. A network may
# multiply its pixels' difference: it is 2e-5 for these 0.006 levels.
RESIZED_TOLERANCE = 1e-3
# Images in a call.
_BATCH = 50


@dataclasses.dataclass(frozen=True)
class FileComparison:
    """The measurements of `compare_file`.

    Attributes:
        difference: largest absolute difference of a logit, divided by the largest logit; for
            images of the model's own size. Of a model without a head the same of features.
        accuracy: fraction of labeled images that the file classifies correctly; None without.
        model_accuracy: the same of the model.
        resized: the same as `difference` for images of another size, which the file resizes; 0 for
            files that resize none, or with `images`.
        has_random_head: whether a random head computed the logits.
    """

    difference: float
    accuracy: float | None = None
    model_accuracy: float | None = None
    resized: float = 0.0
    has_random_head: bool = False


def compare_file(path, loaded, images=None, labels=None) -> FileComparison:
    """Calls a file in a process that cannot import TensorFlow, and compares it with a model.

    Args:
        path: the file.
        loaded: the `vit_tf.LoadedModel` that was exported; it runs with the reference
            implementation of the ops.
        images: float32 `[N, h, w, 3]`, 0 .. 255; None: `pictures` of the sizes that it reads.
        labels: int `[N]`, the classes of `images`, or None.

    Raises:
        RunError: if the process cannot load or run the file, or an output has another shape or is
            not finite.
    """
    name = os.path.basename(path)
    output = "embedding" if loaded.model.head is None else "logits"
    if images is None:
        calls = _pictures(loaded.preprocessing)
    else:
        calls = [images[start : start + _BATCH] for start in range(0, len(images), _BATCH)]
    answers = _call(path, calls)
    expected = [_logits(loaded, images) for images in calls]
    for answer, logits in zip(answers, expected, strict=True):
        shapes = {output: logits.shape}
        if output == "logits":
            shapes["probabilities"] = loaded.classes.to_probabilities(logits).shape
        for key, shape in shapes.items():
            if answer[key].shape != shape or not np.isfinite(answer[key]).all():
                raise RunError(
                    f"{name} gives {key} of shape {answer[key].shape}, or not finite ones. "
                    f"Expected finite ones of shape {shape}."
                )
    differences = [
        relative_difference(answer[output], logits)
        for answer, logits in zip(answers, expected, strict=True)
    ]
    if images is None:
        return FileComparison(differences[0], resized=max(differences[1:], default=0.0))
    difference = max(differences)
    if labels is None:
        return FileComparison(difference)
    found = (np.concatenate(x) for x in ([answer["logits"] for answer in answers], expected))
    return FileComparison(difference, *(float((x.argmax(axis=1) == labels).mean()) for x in found))


def compare_resize(path, preprocessing) -> float:
    """Calls the file of `conversion.make_resize` as `compare_file` does.

    Returns:
        The largest difference of a pixel from the model's resize, in levels of 255.

    Raises:
        RunError: if it does not run, or the difference is more than `MOST_LEVELS`.
    """
    [_, images] = _pictures(preprocessing)
    [answer] = _call(path, [images])
    with tf.device("CPU:0"):
        expected = preprocessing.resized(images).numpy()
    found = answer["pixels"]
    levels = np.abs(found - expected).max() if found.shape == expected.shape else np.inf
    if not levels <= MOST_LEVELS:
        raise RunError(
            f"The resize of the export differs from the model's by {levels:.3g} of 255 levels. "
            f"Allowed: {MOST_LEVELS}."
        )
    return float(levels)


def _call(path, calls):
    """The outputs of a file for each batch of images."""
    try:
        answers, _ = clean_process.call_signatures(
            path, [(None, images) for images in calls], loader=runtimes.__file__
        )
    except clean_process.CleanProcessError as error:
        raise RunError(f"{os.path.basename(path)} does not run: {error}") from None
    return answers


def _pictures(preprocessing):
    """Batches of pictures: of the model's size and, if the file resizes them, of another one."""
    height, width = preprocessing.image_size
    found = [pictures(_OWN, height, width)]
    if resizes_inside(preprocessing):
        found.append(pictures(_OTHER, 2 * height + 3, width + 7))
    return found


def _logits(loaded, images):
    """The model's logits for images, without a head its features; a float32 array."""
    model, preprocessing, _ = loaded
    # On the CPU, like the other process: GPUs round float32 products to 10 bits by default.
    with custom_ops.implementation("reference"), tf.device("CPU:0"):
        pixels = preprocessing.resized(images) if resizes_inside(preprocessing) else images
        return model(preprocessing.normalized(pixels), training=False).numpy()

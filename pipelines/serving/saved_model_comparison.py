"""Compares a SavedModel, called in a clean process, with the model that it was written from."""

import dataclasses

import numpy as np
import tensorflow as tf

import custom_ops
from pipelines.errors import RunError
from pipelines.serving import clean_process
from pipelines.serving.signatures import TOP_CLASSES
from vit_tf.analysis.attention_maps import attention_maps
from vit_tf.analysis.relative_difference import relative_difference
from vit_tf.classes import Classes
from vit_tf.images.decoding import MAX_PIXELS

# Largest relative difference allowed between the export and the model, by compute dtype. Graph
# optimization changes the rounding; measured up to 12 layers: 2e-6 in float32, 1e-3 in float16,
# 2e-2 in bfloat16. A wrong resize or a lost weight causes much larger differences.
TOLERANCE = {"float64": 1e-4, "float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}
# Outputs that are computed from the probabilities.
_TOP = ("top_classes", "top_probabilities")
# Smallest value by which a difference is divided.
_MIN_SCALE = 1e-3


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The measurements of `compare_saved_model`.

    Attributes:
        difference: largest `relative_difference` of all outputs.
        load_seconds: seconds of `tf.saved_model.load`.
    """

    difference: float
    load_seconds: float


def compare_saved_model(
    model,
    preprocessing,
    directory,
    signatures,
    tolerance,
    loader=None,
    classes=None,
    max_pixels=MAX_PIXELS,
) -> Comparison:
    """Calls a SavedModel in a process with TensorFlow only, and compares it with a model.

    Args:
        model: the exported model, or for packed weights in bfloat16 its copy in float32; it runs
            with the reference implementation of the ops.
        preprocessing: its `vit_tf.Preprocessing`.
        directory: the SavedModel.
        signatures: names of its signatures.
        tolerance: largest `relative_difference` that is allowed, see `TOLERANCE`.
        loader: Python file that the process runs before it loads the SavedModel, or None.
        classes: the model's `vit_tf.Classes`; None means unnamed ones, and a softmax.
        max_pixels: the most pixels of an encoded image, at least the model's own images' pixels.

    Raises:
        RunError: if the process cannot load or run it, or an output differs by more than
            `tolerance`.
    """
    calls, expected, classes = [], [], classes or Classes()
    labels = classes.names(model.config.num_classes)
    for name, images, inputs in _calls(preprocessing, max_pixels):
        if name in signatures:
            calls.append((name, inputs))
            with custom_ops.implementation("reference"):
                expected.append(_expected_outputs(name, model, preprocessing, classes, images))
    try:
        actual, load_seconds = clean_process.call_signatures(directory, calls, loader=loader)
    except clean_process.CleanProcessError as error:
        raise RunError(f"The export does not work with TensorFlow alone: {error}") from None
    largest = 0.0
    for (name, _), ours, theirs in zip(calls, expected, actual, strict=True):
        keys = [*ours, *_TOP] if "probabilities" in ours else list(ours)
        if set(keys) != theirs.keys():
            raise RunError(f"The export's {name} returns {sorted(theirs)}, not {sorted(keys)}.")
        for key in keys:
            # The top classes come last: the probabilities for them are compared by then.
            value = ours[key] if key in ours else _top(theirs["probabilities"], labels)[key]
            difference = _difference(theirs[key], value)
            if not difference <= tolerance:
                raise RunError(
                    f"The export differs from the model: {key} of {name} by {difference:.3g} of "
                    f"its largest value. Allowed: {tolerance:.0e}."
                )
            largest = max(largest, difference)
    return Comparison(largest, load_seconds)


def _calls(preprocessing, max_pixels):
    """Yields `(signature, images, inputs)`: a call, and the images in its inputs.

    Images are uint8 arrays, or None for an image that cannot be decoded. `labels` has no inputs.
    """
    yield "labels", [], None
    height, width = preprocessing.image_size
    generator = np.random.default_rng(0)
    own, odd, tiny = (
        generator.integers(0, 256, (batch, rows, columns, 3), np.uint8)
        for batch, rows, columns in ((2, height, width), (1, 2 * height + 3, width + 7), (1, 3, 5))
    )
    for images in (own, odd, tiny):
        for name in ("serving_default", "embed", "attend"):
            yield name, list(images), images.astype(np.float32)
        yield "serving_uint8", list(images), images
    first, second = [x for x in (*odd, *tiny, *own) if x.size // 3 <= max_pixels][:2]
    jpeg = tf.io.encode_jpeg(first).numpy()
    png = tf.io.encode_png(second).numpy()
    decoded = [preprocessing.decode(data).numpy() for data in (jpeg, png)]
    yield "serving_bytes", decoded, [jpeg, png]
    yield "serving_bytes_lenient", [decoded[0], None, decoded[1]], [jpeg, jpeg[:-9], png]


def _expected_outputs(name, model, preprocessing, classes, images):
    """The model's outputs for `images`, computed eagerly, without `_TOP`: dict of arrays."""
    if name == "labels":
        return {"classes": np.array(classes.names(model.config.num_classes))}
    height, width = preprocessing.image_size
    valid = np.array([image is not None for image in images])
    blank = np.zeros((height, width, 3), np.uint8)
    # On the CPU, like the other process: GPUs round float32 products to 10 bits by default.
    with tf.device("CPU:0"):
        inputs = tf.stack([preprocessing(blank if x is None else x) for x in images])
        if name == "attend":
            outputs = {"attention": attention_maps(model, inputs)}
        elif name == "embed":
            outputs = {"embedding": tf.cast(model.features(inputs), tf.float32)}
        else:
            logits = model(inputs, training=False)
            outputs = {"logits": logits, "probabilities": classes.to_probabilities(logits)}
    outputs = {key: value.numpy() for key, value in outputs.items()}
    for key, value in outputs.items():
        if not np.isfinite(value).all():
            raise RunError(f"The model's {key} for ordinary images are not finite.")
    if name == "serving_bytes_lenient":
        outputs["logits"][~valid] = outputs["probabilities"][~valid] = np.nan
        outputs["valid"] = valid
    return outputs


def _top(probabilities, labels):
    """The outputs `_TOP` for `probabilities` of the export, float `[B, K]`; dict of arrays.

    The export's own probabilities count: rounding may swap classes with nearly equal ones.
    """
    order = np.argsort(-probabilities, axis=1, kind="stable")[:, :TOP_CLASSES]
    invalid = np.isnan(probabilities).any(axis=1, keepdims=True)
    return {
        "top_classes": np.where(invalid, "", np.array(labels)[order]),
        "top_probabilities": np.take_along_axis(probabilities, order, axis=1),
    }


def _difference(actual, expected):
    """`relative_difference` of the values that are not NaN; inf if shape, type or NaNs differ."""
    if actual.shape != expected.shape or actual.dtype.kind != expected.dtype.kind:
        return float("inf")
    if expected.dtype.kind != "f":
        return 0.0 if np.array_equal(actual, expected) else float("inf")
    known = ~np.isnan(expected)
    if not np.array_equal(known, ~np.isnan(actual)):
        return float("inf")
    return relative_difference(actual[known], expected[known], _MIN_SCALE)

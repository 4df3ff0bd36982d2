"""Converts a model to the bytes of a LiteRT or an ONNX file.

`B` images, `H x W` their pixels, `h x w` the model's, `K` classes.
"""

import contextlib
import logging
import os
import re
import tempfile
import warnings

import numpy as np
import tensorflow as tf

from pipelines.errors import UserError
from pipelines.serving.single_file.short_names import with_short_names
from pipelines.serving.stored_weights import stored_weights
from pipelines.stored_models.runtimes import INPUT, SIGNATURE

# Of ONNX, from 2022-12: the highest one that tf2onnx 1.17 writes.
OPSET = 18
# Both formats keep their sizes in 32 bits.
_MOST_BYTES = 2**31 - 2**24
_UNCONVERTED = re.compile(r"\btf\.(\w+) op\b|'tf\.(\w+)'")


def resizes_inside(preprocessing) -> bool:
    """Whether the files resize images themselves.

    Both converters write a bilinear resize of the whole image without antialiasing. The other
    filters and the central crops are not converted.
    """
    return (preprocessing.resize, preprocessing.interpolation, preprocessing.antialias) == (
        "direct",
        "bilinear",
        False,
    )


def make_function(model, preprocessing, classes, batch=None):
    """The function of a file.

    Args:
        model: a `VisionTransformer` or `ResNet` in float32.
        preprocessing: its `vit_tf.Preprocessing`.
        classes: its `vit_tf.Classes`.
        batch: number of images in each call; None: any.

    Returns:
        A `tf.function` from `images`, float32 `[B, H, W, 3]` of values 0 .. 255, to `logits` and
        `probabilities`, float32 `[B, K]`; for a model without a head to `embedding`, float32 `[B,
        D or R]`. Without `resizes_inside`, `H x W` is `h x w`.
    """
    inside = resizes_inside(preprocessing)
    size = [None, None] if inside else preprocessing.image_size

    def classify(images):
        pixels = preprocessing.resized(images) if inside else images
        logits = tf.cast(model(preprocessing.normalized(pixels), training=False), tf.float32)
        if model.head is None:
            return {"embedding": logits}
        return {"logits": logits, "probabilities": classes.to_probabilities(logits)}

    images = tf.TensorSpec([batch, *size, 3], name=INPUT)
    return tf.function(classify, [images], autograph=False)


def make_resize(preprocessing, batch=None):
    """The resize alone of such a function, from `images` to `pixels`, float32 `[B, h, w, 3]`."""

    def resize(images):
        return {"pixels": preprocessing.resized(images)}

    images = tf.TensorSpec([batch, None, None, 3], name=INPUT)
    return tf.function(resize, [images], autograph=False)


def check_size(model):
    """Raises `UserError` if the weights do not fit into one file."""
    size = 4 * model.count_params()
    if size > _MOST_BYTES:
        raise UserError(
            f"The weights have {size / 1e9:.1f} GB, and a LiteRT or ONNX file holds at most "
            f"{_MOST_BYTES / 1e9:.1f} GB. Export a SavedModel with --format=portable."
        )


@contextlib.contextmanager
def litert_converter(model, function):
    """Yields `convert(quantize="none", samples=None)`, which returns the bytes of a LiteRT file.

    model: whose weights the function reads; None if it reads none.
    quantize: "none"; "float16" stores weights in 16 bits; "dynamic_int8" stores the large ones in
        8 bits, with a scale for each channel, and computes in float32 or with activations that each
        call quantizes; "int8" computes in 8 bits, with the ranges of activations that `samples`
        have. Input and outputs stay float32.
    samples: for "int8", an iterable of float32 images `[B, H, W, 3]`, 0 .. 255.

    Only ops of LiteRT itself are written. `convert` raises `UserError` with the names of ops that
    it does not have.
    """
    with tempfile.TemporaryDirectory() as folder:
        root = tf.Module()
        # The converter keeps the variables of a module, and finds no variables of Keras.
        with _weights(model) as variables:
            root.variables_ = variables
            signatures = {SIGNATURE: function.get_concrete_function()}
        tf.saved_model.save(root, folder, signatures=signatures)

        def convert(quantize="none", samples=None):
            converter = tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=[SIGNATURE])
            if quantize != "none":
                converter.optimizations = [tf.lite.Optimize.DEFAULT]
            if quantize == "float16":
                converter.target_spec.supported_types = [tf.float16]
            if quantize == "int8":
                converter.representative_dataset = lambda: ({INPUT: x} for x in samples)
            try:
                with _quiet():
                    return with_short_names(converter.convert())
            except Exception as error:  # TensorFlow has no public name for its type.
                raise _unconverted("LiteRT", _UNCONVERTED.findall(str(error)), error) from None

        yield convert


def to_onnx(model, function) -> bytes:
    """The bytes of an ONNX file; `model` as in `litert_converter`.

    Raises:
        UserError: with the names of ops that ONNX does not have.
    """
    import onnx
    import tf2onnx

    logger = logging.getLogger("tf2onnx")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with _weights(model), _quiet():
            proto, _ = tf2onnx.convert.from_function(
                function,
                input_signature=function.input_signature,
                opset=OPSET,
                custom_op_handlers={"Erfc": (_write_erfc, [])},
            )
    except Exception as error:  # tf2onnx raises many types.
        raise _unconverted("ONNX", [], error) from None
    finally:
        logger.setLevel(level)
    # tf2onnx copies ops that it does not know.
    unknown = {x.op_type for x in proto.graph.node if not onnx.defs.has(x.op_type, x.domain)}
    if unknown:
        raise _unconverted("ONNX", unknown, None)
    try:
        onnx.checker.check_model(proto)
    except onnx.checker.ValidationError as error:
        raise _unconverted("ONNX", [], error) from None
    return proto.SerializeToString()


def _write_erfc(graph, node, name, arguments):
    """Replaces a node of tf2onnx: ONNX has no Erfc, the exact GELU's, but erfc(x) = 1 - erf(x)."""
    del name, arguments
    [output] = node.output
    known = {"shapes": [graph.get_shape(output)], "dtypes": [graph.get_dtype(output)]}
    graph.remove_node(node.name)
    one = graph.make_const(f"{node.name}/one", np.float32(1))
    erf = graph.make_node("Erf", [node.input[0]])
    inputs = [one.output[0], erf.output[0]]
    graph.make_node("Sub", inputs, name=node.name, outputs=[output], **known)


def _weights(model):
    """The context of `stored_weights`; without a model, one that gives no variables."""
    return contextlib.nullcontext([]) if model is None else stored_weights(model)


@contextlib.contextmanager
def _quiet():
    """Discards warnings and what C++ writes to stderr.

    The converters write hundreds of lines about ops that they do not know. These are raised.
    """
    stderr = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)


def _unconverted(name, ops, error):
    ops = sorted({op if isinstance(op, str) else "".join(op) for op in ops})
    if ops:
        why = f"it uses ops of TensorFlow that {name} does not have: {', '.join(ops)}"
    else:
        why = f"{type(error).__name__}: {error}"
    return UserError(
        f"The model cannot be converted to {name}, since {why}. Export a SavedModel with "
        "--format=portable."
    )

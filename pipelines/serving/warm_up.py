"""Requests that TensorFlow Serving sends to an export when it loads it, before any client does.

The first call of a signature prepares its graph. `assets.extra/tf_serving_warmup_requests` is a
TFRecord file of `PredictionLog` messages. The `.proto` files of tensorflow-serving-api, which is
not needed here, define them; these are the fields that this module writes, with their numbers:

    PredictionLog   6 predict_log: PredictLog
    PredictLog      1 request: PredictRequest
    PredictRequest  1 model_spec: ModelSpec     2 inputs: map<string, TensorProto>
    ModelSpec       1 name: string              3 signature_name: string

An entry of a map is a message with the fields 1, key, and 2, value.
"""

import os

import numpy as np
import tensorflow as tf

FILE = os.path.join("assets.extra", "tf_serving_warmup_requests")
# TensorFlow Serving sends the requests to the model beside the file, whatever this name is.
_MODEL_NAME = "model"
# The wire type of strings, bytes and messages: a length, then so many bytes.
_LENGTH_DELIMITED = 2


def write_requests(directory, signatures, image_size):
    """Writes a request for each signature that classifies images, or for `embed` without these.

    Args:
        directory: the SavedModel.
        signatures: names of its signatures.
        image_size: (height, width) of the model; a request holds black images of this size.

    Raises:
        OSError, tf.errors.OpError: if the file cannot be written.
    """
    inputs = _inputs(*image_size)
    chosen = [name for name in inputs if name in signatures and name != "embed"] or ["embed"]
    path = os.path.join(directory, FILE)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with tf.io.TFRecordWriter(path) as file:
        for name in chosen:
            file.write(_prediction_log(name, *inputs[name]))


def _inputs(height, width):
    """The name and the value, a `TensorProto`, of the input of each signature."""
    image = np.zeros([height, width, 3], np.uint8)
    files = [tf.io.encode_jpeg(image).numpy(), tf.io.encode_png(image).numpy()]
    # One zero for all pixels: a short file.
    as_float, as_uint8 = (
        tf.make_tensor_proto(0, dtype, [1, height, width, 3]) for dtype in (tf.float32, tf.uint8)
    )
    return {
        "serving_default": ("images", as_float),
        "serving_uint8": ("images", as_uint8),
        "serving_bytes": ("image_bytes", tf.make_tensor_proto(files)),
        "serving_bytes_lenient": ("image_bytes", tf.make_tensor_proto(files)),
        "embed": ("images", as_float),
    }


def _prediction_log(signature, input_name, value):
    """The bytes of a `PredictionLog`."""
    model_spec = _field(1, _MODEL_NAME.encode()) + _field(3, signature.encode())
    entry = _field(1, input_name.encode()) + _field(2, value.SerializeToString())
    request = _field(1, model_spec) + _field(2, entry)
    return _field(6, _field(1, request))


def _field(number, content):
    """A field of a message: its number below 16, the length of its content, the content."""
    return bytes([number << 3 | _LENGTH_DELIMITED]) + _varint(len(content)) + content


def _varint(value):
    """An integer as groups of 7 bits, the lowest first; all but the last have the bit 128."""
    groups = []
    while value >= 128:
        groups.append(value % 128 | 128)
        value //= 128
    return bytes([*groups, value])

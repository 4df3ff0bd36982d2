"""Makes small models to export, and calls the exports quickly."""

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

import vit_tf
from pipelines.serving.signatures import make_signatures
from tests.vit_tf import tiny

LABELS = ("null", "one", "zwei", "três", "四")
CLASSES = vit_tf.Classes(labels=LABELS)
# Graph and eager round differently; bfloat16 keeps 8 bits.
TOLERANCE = {"float32": 2e-5, "bfloat16": 5e-2}


def make(fields=None, preprocessing=None):
    model = tiny.model(**(fields or {}))
    fields = {"exif": "apply"} | (preprocessing or {})
    rule = vit_tf.Preprocessing(image_size=model.config.image_size, **fields)
    return model, rule


def only(*names):
    """`make_signatures` without the other signatures, which take time to trace and check."""

    def make_some(*arguments):
        made = make_signatures(*arguments)
        return {name: made[name] for name in names if name in made}

    return make_some


def call_here(directory, calls, loader=None):
    """`clean_process.call_signatures` without the seconds of a new process."""
    loaded = tf.saved_model.load(directory)
    answers = []
    for name, inputs in calls:
        arguments = []
        if inputs is not None:
            dtype = None if isinstance(inputs, np.ndarray) else tf.string
            arguments.append(tf.constant(inputs, dtype))
        outputs = loaded.signatures[name](*arguments)
        answers.append({key: _array(value) for key, value in outputs.items()})
    return answers, 0.0


def _array(tensor):
    array = tensor.numpy()
    return np.char.decode(array.astype(bytes), "utf-8") if tensor.dtype == tf.string else array


def assert_close(model, actual, expected):
    tolerance = TOLERANCE[model.compute_dtype]
    assert actual.dtype == tf.float32
    assert actual.shape == expected.shape
    expected = tf.cast(expected, tf.float32).numpy()
    largest = np.abs(expected).max() if expected.size else 0
    np.testing.assert_allclose(actual.numpy(), expected, rtol=0, atol=tolerance * largest)


def read(path):
    proto = saved_model_pb2.SavedModel()
    proto.ParseFromString((path / "saved_model.pb").read_bytes())
    return proto


def nodes_of(proto):
    graph = proto.meta_graphs[0].graph_def
    return [*graph.node, *(node for f in graph.library.function for node in f.node_def)]

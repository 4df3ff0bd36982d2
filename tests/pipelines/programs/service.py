"""A service with TensorFlow and without this project: `python -I service.py EXPORTS IMAGE`.

EXPORTS holds a portable and a fused SavedModel. The program prints one JSON object:

    ops, unknown: the ops in the portable file, and those that TensorFlow does not know
    eager, session: logits of the portable one, called from Python and as TensorFlow Serving does
    valid: `valid` of both for the image and for bytes that are no image
    refusal: the error of the fused one before its loader has run
    fused: its logits after that
    errors: what each form says about images with four channels and a string outside a list
    growth: bytes by which 300 requests made the memory of the process grow
    ours: packages of this project that were imported
"""

import gc
import importlib.machinery
import json
import os
import pathlib
import runpy
import sys

REQUESTS, WARM_UP = 300, 60
# Bytes of a batch of uint8 images in a request; float copies of it are four times as large.
BATCH = (4, 256, 256, 3)


class _Finder(importlib.machinery.PathFinder):
    """Finds installed packages without this project, also if it is installed for development."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        missing = name.split(".")[0] in ("custom_ops", "keras", "orbit", "pipelines", "vit_tf")
        return None if missing else super().find_spec(name, path, target)


sys.meta_path[:] = [importlib.machinery.BuiltinImporter, importlib.machinery.FrozenImporter]
sys.meta_path.append(_Finder)

import numpy as np  # noqa: E402  What can be imported is decided above.
import tensorflow as tf  # noqa: E402
from tensorflow.core.protobuf import saved_model_pb2  # noqa: E402
from tensorflow.python.framework import op_def_registry  # noqa: E402


def ops_in(path):
    """The names of the ops in a SavedModel."""
    proto = saved_model_pb2.SavedModel()
    proto.ParseFromString((path / "saved_model.pb").read_bytes())
    graph = proto.meta_graphs[0].graph_def
    functions = {function.signature.name for function in graph.library.function}
    nodes = [node for function in graph.library.function for node in function.node_def]
    return {node.op for node in [*graph.node, *nodes]} - functions


def in_session(path, files):
    """The outputs of `serving_bytes_lenient` in a graph and a session."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        meta = tf.compat.v1.saved_model.load(session, ["serve"], str(path))
        signature = meta.signature_def["serving_bytes_lenient"]
        names = {key: info.name for key, info in signature.outputs.items()}
        return session.run(names, {signature.inputs["image_bytes"].name: files})


def memory():
    """Resident bytes of this process."""
    gc.collect()
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def growth(model, image):
    """Bytes by which requests of all kinds make the memory grow."""
    pixels = np.random.default_rng(0).integers(0, 256, BATCH, np.uint8)

    def answer(count):
        for number in range(count):
            model.signatures["serving_uint8"](images=tf.constant(pixels))
            model.signatures["serving_default"](images=tf.constant(pixels, tf.float32))
            # Different numbers of images, some of which cannot be decoded.
            files = [image] * (number % 5) + [b"no image"]
            model.signatures["serving_bytes_lenient"](image_bytes=tf.constant(files))

    answer(WARM_UP)
    before = memory()
    answer(REQUESTS)
    return memory() - before


def errors(model, data):
    """The messages about inputs of another shape."""
    wrong = [
        ("serving_default", {"images": tf.zeros([1, 20, 30, 4])}),
        ("serving_bytes", {"image_bytes": tf.constant(data)}),
    ]
    found = []
    for name, inputs in wrong:
        try:
            found.append(str(model.signatures[name](**inputs)))
        except tf.errors.InvalidArgumentError as error:
            found.append(error.message)
    return found


def main(exports, image):
    exports, data = pathlib.Path(exports), pathlib.Path(image).read_bytes()
    files, portable = [data, b"x"], exports / "portable"
    ops = ops_in(portable)
    model = tf.saved_model.load(portable)
    eager = model.signatures["serving_bytes_lenient"](tf.constant(files))
    session = in_session(portable, files)
    try:
        refusal = str(tf.saved_model.load(exports / "fused"))
    except RuntimeError as error:
        refusal = str(error)
    runpy.run_path(str(exports / "fused" / "assets.extra" / "load_ops.py"))
    fused = tf.saved_model.load(exports / "fused")
    logits = fused.signatures["serving_bytes"](tf.constant([data]))["logits"]
    seen = {
        "ops": sorted(ops),
        "unknown": sorted(op for op in ops if op_def_registry.get(op) is None),
        "eager": eager["logits"].numpy()[0].tolist(),
        "session": session["logits"][0].tolist(),
        "valid": [eager["valid"].numpy().tolist(), session["valid"].tolist()],
        "refusal": refusal,
        "fused": logits.numpy()[0].tolist(),
        "errors": [errors(model, data), errors(fused, data)],
        "growth": growth(model, data),
        "ours": sorted({name.split(".")[0] for name in sys.modules} & {"keras", "vit_tf"}),
    }
    print(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])

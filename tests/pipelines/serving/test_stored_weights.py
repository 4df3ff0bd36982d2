"""Exports in bfloat16 store rounded weights, with the results of rounding in each call."""

import pathlib

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

import custom_ops
import vit_tf
from pipelines.serving import saved_model
from pipelines.serving.saved_model_comparison import Comparison
from tests.pipelines import encoded
from tests.pipelines.serving.exports import only
from tests.vit_tf import tiny

RESNET = vit_tf.ResNetConfig(stage_depths=(1,), width=0.5, image_size=16, num_classes=5)
STEM = {"width": 0.5, "stage_depths": (1,)}
MODELS = {
    "factorized": {"position_embedding": "learned_2d", "representation_size": 7},
    "every layer": {"position_injection": "every_layer", "num_classes": 0},
    "axial": tiny.AXIAL | {"layers": 1, "num_classes": 0},
    "hybrid": {"stem": STEM, "image_size": 32, "patch_size": 2, "classifier": "map"},
    "relative": {"position_embedding": "relative", "classifier": "gap", "layers": 1},
    "resnet": RESNET,
}


def created(name):
    fields = MODELS[name]
    if isinstance(fields, dict):
        return tiny.model(dtype="mixed_bfloat16", **fields)
    model = vit_tf.create_model(fields, dtype="mixed_bfloat16")
    tiny.randomize(model)
    return model


def matrices_that_are_cast(path):
    """The names of the matrices that the graph of a SavedModel reads and casts."""
    proto = saved_model_pb2.SavedModel()
    proto.ParseFromString(pathlib.Path(path, "saved_model.pb").read_bytes())
    found = []
    for function in proto.meta_graphs[0].graph_def.library.function:
        ranks = {
            node.name: len(node.attr["_output_shapes"].list.shape[0].dim)
            for node in function.node_def
            if node.op == "ReadVariableOp"
        }
        sources = [node.input[0].split(":")[0] for node in function.node_def if node.op == "Cast"]
        found += [source for source in sources if ranks.get(source, 0) > 1]
    return found


OFTEN = ("factorized", "axial", "resnet")


@pytest.mark.parametrize(
    "name",
    [n if n in OFTEN else pytest.param(n, marks=pytest.mark.heavy("serving")) for n in MODELS],
)
def test_bfloat16(name, tmp_path, monkeypatch):
    # The outputs are compared here, and exactly.
    monkeypatch.setattr(saved_model, "compare_saved_model", lambda *_: Comparison(0.0, 0.0))
    model = created(name)
    shortest = "serving_default" if model.config.num_classes else "embed"
    chosen_signatures = only(shortest, "attend")
    monkeypatch.setattr(saved_model, "make_signatures", chosen_signatures)
    preprocessing = vit_tf.Preprocessing(image_size=model.config.image_size)
    report = saved_model.export(model, preprocessing, tmp_path)
    loaded = tf.saved_model.load(report.path)
    images = tf.constant(encoded.pixels(30, 20)[None], tf.float32)
    with custom_ops.implementation("reference"):
        for signature, direct in chosen_signatures(model, preprocessing).items():
            expected = direct(images)
            for key, value in loaded.signatures[signature](images=images).items():
                np.testing.assert_array_equal(value, expected[key], err_msg=key)
    assert matrices_that_are_cast(report.path) == []
    # Only the head computes in float32.
    matrices = [v for v in loaded.variables_ if v.shape.rank > 1]
    classes = [model.config.num_classes] if model.config.num_classes else []
    assert [v.shape[-1] for v in matrices if v.dtype != tf.bfloat16] == classes
    assert all(variable.value.dtype != tf.bfloat16 for variable in model.weights)

"""Exports with compiled ops: their contents, and how to load them."""

import filecmp
import os
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf

import custom_ops
import vit_tf
from custom_ops import library_file, loader
from pipelines.errors import RunError, UserError
from pipelines.predictions import results
from pipelines.serving import saved_model
from pipelines.serving.signatures import make_signatures
from tests.pipelines import encoded
from tests.pipelines.process import assert_user_error
from tests.pipelines.serving.exports import CLASSES, LABELS, assert_close, make, nodes_of, read
from tests.vit_tf import tiny
from vit_tf import packing
from vit_tf.checkpoints.kinds import exported_folder

FUSED_OPS = {"VitAttention", "VitAttentionTaps", "VitModel", "VitPatchEmbed"}


def ops_in(path):
    """The names of our ops in a SavedModel."""
    return {node.op for node in nodes_of(read(path)) if node.op.startswith("Vit")}


def test_the_form_decides_which_ops_are_inside(exported):
    model, preprocessing, folder = exported
    portable, fused = ((folder / f"{form}.txt").read_text() for form in ("portable", "fused"))
    assert ops_in(folder / "portable") == set() and ops_in(folder / "fused") == FUSED_OPS
    assert portable.endswith("loader: None [None]\n")
    files = ["preprocessing.json", "tf_serving_warmup_requests"]
    assert sorted(os.listdir(folder / "portable" / "assets.extra")) == files
    extra = folder / "fused" / "assets.extra"
    assert fused.endswith(f"loader: {extra / 'load_ops.py'} ['assets.extra/load_ops.py']\n")
    assert "with TensorFlow only, after load_ops.py: " in fused
    assert len((extra / "load_ops.py").read_text().splitlines()) == 2
    assert filecmp.cmp(extra / "_vit_ops.so", custom_ops.describe()["path"], shallow=False)

    assert "2 of 2 blocks in one op, float32" in fused and "packed" not in portable
    loaded = tf.saved_model.load(folder / "fused")
    for size in ((30, 20), model.config.image_size, model.config.image_size[::-1]):
        images = tf.constant(encoded.pixels(*size)[None])
        logits = loaded.signatures["serving_uint8"](images=images)["logits"]
        assert_close(model, logits, model(preprocessing(images)))


def test_all_signatures_share_packed_weights(exported):
    """The file holds no kernel of a block as well, and each variable once."""
    model, _, folder = exported
    loaded = tf.saved_model.load(folder / "fused")
    packed = 4 * sum(np.prod(w.shape) for w in vit_tf.pack_model(model).arrays)
    around = 4 * sum(layer.count_params() for layer in (model.norm, model.head))
    stored = {id(v): v.shape.num_elements() * v.dtype.size for v in loaded.variables_}
    assert sum(stored.values()) == packed + around


@pytest.mark.parametrize(
    ("attribute", "value", "text"),
    [("layout", 2, "layout 2, .*layout 1"), ("mlp_size", 24, "It is truncated")],
)
def test_other_packed_weights_are_not_loaded(exported, tmp_path, attribute, value, text):
    folder = shutil.copytree(exported.folder / "fused", tmp_path / "fused")
    proto = read(folder)
    for node in nodes_of(proto):
        if node.op == "VitModel":
            node.attr[attribute].i = value
    (folder / "saved_model.pb").write_bytes(proto.SerializeToString())
    with pytest.raises(ValueError, match=text):
        tf.saved_model.load(folder)
    with pytest.raises(UserError, match=f"{text}.*export"):
        results.find_classifier(tmp_path)


STEM = {"stem": {"width": 0.5, "stage_depths": (1,)}, "image_size": 32, "patch_size": 2}


@pytest.mark.parametrize(
    ("fields", "rule", "count"),
    [
        ({}, {}, 1),
        ({}, {"mean": (0.4, 0.5, 0.6)}, 0),
        ({}, {"resize": "center", "resize_to": 20}, 0),
        (STEM, {}, 0),
    ],
    ids=["default", "range", "resize", "stem"],
)
def test_uint8_images_stay_uint8_where_preprocessing_keeps_them(fields, rule, count):
    """Only then the op of the model has a branch for them; the default range is its own."""
    model, preprocessing = make(fields, rule)
    packed, _ = packing.packed_or_same(model)
    with custom_ops.implementation("compiled"):
        compute = make_signatures(packed, preprocessing)["serving_uint8"]
        graph = compute.get_concrete_function().graph.as_graph_def()
    nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
    dtypes = [node.attr["I"].type for node in nodes if node.op == "VitModel"]
    assert dtypes.count(tf.uint8.as_datatype_enum) == count


@pytest.mark.parametrize(
    "fields",
    [
        {"classifier": "gap", "dtype": "mixed_bfloat16"},
        pytest.param(tiny.AXIAL, marks=pytest.mark.heavy("serving")),
        pytest.param(
            {"classifier": "gap", "register_tokens": 2}, marks=pytest.mark.heavy("serving")
        ),
    ],
    ids=["gap", "axial", "registers"],
)
def test_without_a_class_token(fields, tmp_path, no_process):
    """`attend` is then the gradient of the op, inside the exported file."""
    model, preprocessing = make(fields | {"num_classes": 0})
    saved_model.export(model, preprocessing, tmp_path, form="fused")
    assert "VitAttentionGrad" in ops_in(tmp_path / "fused")


@pytest.mark.heavy("serving")
@pytest.mark.parametrize("form", ["portable", "fused"])
def test_two_heads(form, tmp_path, no_process):
    """The op of the model returns all tokens, which the heads of two of them read."""
    model, preprocessing = make({"classifier": "token_distilled"})
    saved_model.export(model, preprocessing, tmp_path, form=form)
    assert ("VitModel" in ops_in(tmp_path / form)) == (form == "fused")
    images = tf.constant(encoded.pixels(30, 20)[None])
    loaded = tf.saved_model.load(tmp_path / form)
    logits = loaded.signatures["serving_uint8"](images=images)["logits"]
    assert_close(model, logits, model(preprocessing(images)))


def test_attention_in_a_resnet(tmp_path, no_process):
    """A ResNet has no `attend`, and no op of ours but this one."""
    config = vit_tf.ResNetConfig(
        stage_depths=(1,), width=0.5, image_size=16, num_classes=0, spatial="sparse"
    )
    preprocessing = vit_tf.Preprocessing(image_size=config.image_size)
    model = vit_tf.create_model(config)
    report = saved_model.export(model, preprocessing, tmp_path, form="fused")
    assert "embed" in report.signatures and "attend" not in report.signatures
    assert ops_in(tmp_path / "fused") == {"VitAttention"}


@pytest.mark.parametrize(
    "fields",
    [
        {"classifier": "gap", "position_embedding": "relative", "layers": 1},
        pytest.param({"position_injection": "every_layer"}, marks=pytest.mark.heavy("serving")),
    ],
    ids=str,
)
def test_other_positions(fields, tmp_path, no_process):
    """The export is compared with the model, `attend` included."""
    model, preprocessing = make(fields | {"num_classes": 0})
    report = saved_model.export(model, preprocessing, tmp_path, form="fused")
    assert "attend" in report.signatures
    assert ops_in(tmp_path / "fused") >= {"VitAttention", "VitPatchEmbed"}


@pytest.mark.parametrize("name", ["vit_attention", "vit_model"])
def test_wrong_results_of_the_compiled_ops_fail(name, tmp_path, no_process, monkeypatch):
    """They are compared with TensorFlow's own ops."""
    ops = custom_ops.load()
    right = getattr(ops, name)

    def wrong(inputs, *arguments, **attributes):
        return right(1.01 * tf.cast(inputs, tf.float32), *arguments, **attributes)

    monkeypatch.setattr(ops, name, wrong)
    with pytest.raises(RunError, match="differs from the model"):
        saved_model.export(*make({"num_classes": 0}), tmp_path, form="fused")
    assert os.listdir(tmp_path) == []


def test_no_compiled_ops(command, tmp_path, monkeypatch):
    monkeypatch.setattr(library_file, "candidates", lambda: [])
    monkeypatch.setattr(loader, "_library", None)
    with pytest.raises(UserError, match="library .*build_ops"):
        saved_model.export(*make(), tmp_path, form="fused")
    for form in ("fused", "both"):
        result = command("export", "--format", form, "--output", "new")
        assert_user_error(result, "no compiled library")
    assert os.listdir(tmp_path) == []


def test_both_are_checked_before_one_is_written(command, tmp_path):
    (tmp_path / "out" / "fused").mkdir(parents=True)
    (tmp_path / "out" / "fused" / "mine").write_text("mine")
    result = command("export", "--format", "both", "--output", "out")
    assert_user_error(result, "fused exists and is not a SavedModel")
    assert os.listdir(tmp_path / "out") == ["fused"]


def test_prediction_reads_it(exported, tmp_path):
    model, preprocessing, folder = exported
    shutil.copytree(folder / "fused", tmp_path / "fused")
    assert exported_folder(tmp_path) == str(tmp_path / "fused")
    # The installed library serves it: code inside an export is not run.
    (tmp_path / "fused" / "assets.extra" / "load_ops.py").write_text("raise SystemExit(3)")
    library = tmp_path / "fused" / "assets.extra" / "_vit_ops.so"
    data, image = encoded.every_format()[0]
    classify, labels = results.find_classifier(tmp_path)
    outputs = classify(tf.constant([data]))
    assert labels == list(LABELS)
    expected = CLASSES.to_probabilities(model(preprocessing(image)[None]))
    np.testing.assert_allclose(outputs["probabilities"], expected, rtol=1e-4)
    assert str(library) not in pathlib.Path("/proc/self/maps").read_text()

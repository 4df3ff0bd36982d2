"""Exports with compiled ops: their contents, and how to load them."""

import filecmp
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

import custom_ops
import vit_tf
from custom_ops import library_file, loader
from pipelines.errors import RunError, UserError
from pipelines.serving import clean_process, prediction, saved_model
from pipelines.serving.saved_model_check import Comparison
from pipelines.serving.signatures import make_signatures
from tests.pipelines import encoded
from tests.pipelines.process import assert_user_error, run_command, run_here
from tests.pipelines.serving.exports import LABELS, assert_close, call_here, make
from tests.vit_tf import tiny

FUSED_OPS = {"VitAttention", "VitAttentionTaps", "VitEncoder", "VitPatchEmbed"}


def read(path):
    proto = saved_model_pb2.SavedModel()
    proto.ParseFromString((path / "saved_model.pb").read_bytes())
    return proto


def nodes_of(proto):
    graph = proto.meta_graphs[0].graph_def
    return [*graph.node, *(node for f in graph.library.function for node in f.node_def)]


def ops_in(path):
    """The names of our ops in a SavedModel."""
    return {node.op for node in nodes_of(read(path)) if node.op.startswith("Vit")}


def recorder(loaders):
    """Records the loader that the other process would run."""

    def call(directory, calls, loader=None):
        loaders.append(loader and os.path.relpath(loader, directory))
        return call_here(directory, calls)

    return call


@pytest.fixture
def no_process(monkeypatch):
    monkeypatch.setattr(clean_process, "call_signatures", call_here)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A model, its preprocessing, the reports of both forms, the loaders that were used."""
    model, preprocessing = make({}, {"labels": LABELS})
    folder, loaders = tmp_path_factory.mktemp("exported"), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clean_process, "call_signatures", recorder(loaders))
        # The form decides which ops are inside; the environment has no influence.
        patch.setenv("VIT_OPS", "compiled")
        portable = saved_model.export(model, preprocessing, folder)
        patch.setenv("VIT_OPS", "reference")
        fused = saved_model.export(model, preprocessing, folder, form="fused")
    return model, preprocessing, folder, portable, fused, loaders


def test_the_form_decides_which_ops_are_inside(exported):
    model, preprocessing, folder, portable, fused, loaders = exported
    assert loaders == [None, "assets.extra/load_ops.py"]
    assert sorted(os.listdir(folder)) == ["fused", "portable"]
    assert ops_in(folder / "portable") == set() and ops_in(folder / "fused") == FUSED_OPS
    assert portable.loader is None and not (folder / "portable" / "assets.extra").exists()
    extra = folder / "fused" / "assets.extra"
    assert fused.loader == str(extra / "load_ops.py") and "load_ops.py" in str(fused)
    assert len((extra / "load_ops.py").read_text().splitlines()) == 2
    assert filecmp.cmp(extra / "_vit_ops.so", custom_ops.describe()["path"], shallow=False)

    assert "2 of 2 blocks in one op, float32" in str(fused) and "packed" not in str(portable)

    loaded = tf.saved_model.load(fused.path)
    for size in ((30, 20), model.config.image_size, model.config.image_size[::-1]):
        images = tf.constant(encoded.pixels(*size)[None])
        logits = loaded.signatures["serving_uint8"](images=images)["logits"]
        assert_close(model, logits, model(preprocessing(images)))


def test_all_signatures_share_packed_weights(exported):
    """The file holds no kernel of a block as well, and the encoder is in it twice: for `embed`."""
    model, _, folder, *_ = exported
    loaded = tf.saved_model.load(folder / "fused")
    packed = 4 * sum(np.prod(w.shape) for w in vit_tf.pack_model(model).arrays)
    around = 4 * sum(layer.count_params() for layer in (model.norm, model.head))
    stored = {id(v): v.shape.num_elements() * v.dtype.size for v in loaded.variables_}
    assert sum(stored.values()) == packed + around
    assert [node.op for node in nodes_of(read(folder / "fused"))].count("VitEncoder") == 2


@pytest.mark.parametrize(
    ("attribute", "value", "text"),
    [("layout", 2, "layout 2, but .* reads layout 1"), ("mlp_size", 24, "It is truncated")],
)
def test_other_packed_weights_are_not_loaded(exported, tmp_path, attribute, value, text):
    folder = shutil.copytree(exported[2] / "fused", tmp_path / "fused")
    proto = read(folder)
    for node in nodes_of(proto):
        if node.op == "VitEncoder":
            node.attr[attribute].i = value
    (folder / "saved_model.pb").write_bytes(proto.SerializeToString())
    with pytest.raises(ValueError, match=text):
        tf.saved_model.load(folder)
    with pytest.raises(UserError, match=f"{text}.*export the model again"):
        prediction.load_classifier(prediction.find_model(tmp_path))


def test_uint8_images_stay_uint8_where_preprocessing_keeps_them(exported, tmp_path, monkeypatch):
    """Only the patch embedding is there twice, and its own range is that of the default."""

    def embeddings_of_uint8(path):
        nodes = [node for node in nodes_of(read(path)) if node.op == "VitPatchEmbed"]
        return [node.attr["I"].type for node in nodes].count(tf.uint8.as_datatype_enum)

    def only_uint8(model, preprocessing):
        return {"serving_uint8": make_signatures(model, preprocessing)["serving_uint8"]}

    assert embeddings_of_uint8(exported[2] / "fused") == 1
    monkeypatch.setattr(saved_model, "check_saved_model", lambda *_: Comparison(0.0, 0.0))
    monkeypatch.setattr(saved_model, "make_signatures", only_uint8)
    stem = {"stem": {"width": 0.5, "stage_depths": (1,)}, "image_size": 32, "patch_size": 2}
    for number, (fields, rule) in enumerate(
        (({}, {"mean": (0.4, 0.5, 0.6)}), ({}, {"resize": "center", "resize_to": 20}), (stem, {}))
    ):
        saved_model.export(*make(fields, rule), tmp_path / str(number), form="fused")
        assert embeddings_of_uint8(tmp_path / str(number) / "fused") == 0


@pytest.mark.parametrize(
    "fields", [{"classifier": "gap", "dtype": "mixed_bfloat16"}, tiny.AXIAL], ids=["gap", "axial"]
)
def test_without_a_class_token(fields, tmp_path, no_process):
    """`attend` is then the gradient of the op, inside the exported file."""
    model, preprocessing = make(fields | {"num_classes": 0})
    saved_model.export(model, preprocessing, tmp_path, form="fused")
    assert "VitAttentionGrad" in ops_in(tmp_path / "fused")


def test_attention_in_a_resnet(tmp_path, no_process):
    """A ResNet has no `attend`, and no op of ours but this one."""
    config = vit_tf.ResNetConfig(
        stage_depths=(1,), width=0.5, image_size=16, num_classes=0, spatial="sparse"
    )
    preprocessing = vit_tf.Preprocessing(image_size=config.image_size)
    for form, ops in (("portable", set()), ("fused", {"VitAttention"})):
        report = saved_model.export(vit_tf.create_model(config), preprocessing, tmp_path, form=form)
        assert "embed" in report.signatures and "attend" not in report.signatures
        assert ops_in(tmp_path / form) == ops


@pytest.mark.parametrize(
    "fields",
    [
        {"classifier": "gap", "position_embedding": "relative", "layers": 1},
        {"position_injection": "every_layer"},
    ],
    ids=str,
)
def test_other_positions(fields, tmp_path, no_process):
    """Both forms are compared with the model, `attend` included."""
    model, preprocessing = make(fields | {"num_classes": 0})
    for form, ops in (("portable", set()), ("fused", {"VitAttention", "VitPatchEmbed"})):
        report = saved_model.export(model, preprocessing, tmp_path, form=form)
        assert "attend" in report.signatures
        found = ops_in(tmp_path / form)
        assert found >= ops and bool(found) == bool(ops)


@pytest.mark.parametrize("name", ["vit_attention", "vit_encoder"])
def test_wrong_results_of_the_compiled_ops_fail(name, tmp_path, no_process, monkeypatch):
    """They are compared with TensorFlow's own ops."""
    ops = custom_ops.load()
    right = getattr(ops, name)

    def wrong(inputs, *arguments, **attributes):
        return right(1.01 * inputs, *arguments, **attributes)

    monkeypatch.setattr(ops, name, wrong)
    with pytest.raises(RunError, match="differs from the model"):
        saved_model.export(*make({"num_classes": 0}), tmp_path, form="fused")
    assert os.listdir(tmp_path) == []


def test_no_compiled_ops(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(library_file, "candidates", lambda: [])
    monkeypatch.setattr(loader, "_library", None)
    with pytest.raises(UserError, match="compiled ops, but no compiled library .*build_ops"):
        saved_model.export(*make(), tmp_path, form="fused")
    for form in ("fused", "both"):
        arguments = ("--format", form, "--output", "new")
        context = {"monkeypatch": monkeypatch, "capsys": capsys, "cwd": tmp_path}
        assert_user_error(run_here("export", *arguments, **context), "no compiled library")
    assert os.listdir(tmp_path) == []


def test_both_are_checked_before_one_is_written(tmp_path, monkeypatch, capsys):
    (tmp_path / "out" / "fused").mkdir(parents=True)
    (tmp_path / "out" / "fused" / "mine").write_text("mine")
    context = {"monkeypatch": monkeypatch, "capsys": capsys, "cwd": tmp_path}
    result = run_here("export", "--format", "both", "--output", "out", **context)
    assert_user_error(result, "fused exists and is not a SavedModel")
    assert os.listdir(tmp_path / "out") == ["fused"]


def test_prediction_reads_it(exported, tmp_path):
    model, preprocessing, folder, *_ = exported
    shutil.copytree(folder / "fused", tmp_path / "fused")
    found = prediction.find_model(tmp_path)
    assert (found.kind, found.path) == ("saved_model", str(tmp_path / "fused"))
    # The installed library serves it: code inside an export is not run.
    (tmp_path / "fused" / "assets.extra" / "load_ops.py").write_text("raise SystemExit(3)")
    library = tmp_path / "fused" / "assets.extra" / "_vit_ops.so"
    data, image = encoded.every_format()[0]
    classify, labels = prediction.load_classifier(found)
    outputs = classify(tf.constant([data]))
    assert labels == list(LABELS)
    expected = preprocessing.to_probabilities(model(preprocessing(image)[None]))
    np.testing.assert_allclose(outputs["probabilities"], expected, rtol=1e-4)
    assert str(library) not in pathlib.Path("/proc/self/maps").read_text()


# A service with TensorFlow and without this project.
SERVICE = """
import importlib.machinery, sys

class Finder(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        missing = name.split(".")[0] in ("custom_ops", "keras", "orbit", "pipelines", "vit_tf")
        return None if missing else super().find_spec(name, path, target)
builtin, frozen = importlib.machinery.BuiltinImporter, importlib.machinery.FrozenImporter
sys.meta_path[:] = [builtin, frozen, Finder]

import numpy as np
import tensorflow as tf

path, image = sys.argv[1:]
data = tf.constant([open(image, "rb").read()])
portable = tf.saved_model.load(path + "/portable").signatures["serving_bytes"](data)
try:
    tf.saved_model.load(path + "/fused")
except Exception as error:
    print(str(error).partition(" in binary")[0])
import runpy; runpy.run_path(path + "/fused/assets.extra/load_ops.py")
fused = tf.saved_model.load(path + "/fused").signatures["serving_bytes"](data)
np.testing.assert_allclose(fused["probabilities"], portable["probabilities"], rtol=1e-4)
assert (fused["top_classes"] == portable["top_classes"]).numpy().all()
print("served")
"""


@pytest.mark.process
def test_command_and_service(tmp_path, monkeypatch, capsys):
    """From a checkpoint to a process with TensorFlow only, which needs the loader."""
    model, preprocessing = make({}, {"labels": LABELS})
    vit_tf.save_npz(model, tmp_path / "model.npz", preprocessing)
    output = tmp_path / "out"
    arguments = ("--format=both", "--model", tmp_path / "model.npz", "--output", output)
    context = {"monkeypatch": monkeypatch, "capsys": capsys, "cwd": tmp_path}
    done = run_here("export", *arguments, **context)
    assert done.returncode == 0, done.stderr
    loader = output / "fused" / "assets.extra" / "load_ops.py"
    assert f"runpy.run_path({str(loader)!r})" in done.stdout
    for form in ("portable", "fused"):
        assert f"wrote {output / form}" in done.stdout
        assert f"tf.saved_model.load({str(output / form)!r})" in done.stdout

    (tmp_path / "image").write_bytes(encoded.every_format()[0][0])
    moved = tmp_path / "elsewhere"
    output.rename(moved)
    done = run_here("predict", "--model", moved / "fused", "image", **context)
    assert done.returncode == 0 and any(name in done.stdout for name in LABELS), done.stderr
    # Without the installed library it fails: the library inside the export is not loaded.
    without = {"VIT_OPS_LIBRARY": str(tmp_path / "none.so")}
    done = run_command("predict", "--model", moved / "fused", "image", cwd=tmp_path, **without)
    assert_user_error(done, "fused is a fused export, which needs the compiled ops, but", "none.so")
    done = subprocess.run(
        [sys.executable, "-I", "-c", SERVICE, moved, tmp_path / "image"],
        cwd="/",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    message, served = done.stdout.splitlines()
    assert message.startswith("Op type not registered 'Vit") and served == "served"

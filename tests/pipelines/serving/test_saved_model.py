"""Exports are checked before they are written; a wrong export is never left on disk."""

import json
import os
import stat
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import vit_tf
from pipelines.errors import RunError, UserError
from pipelines.serving import clean_process, clean_process_main, saved_model
from tests.pipelines import encoded
from tests.pipelines.process import assert_user_error, run_command, run_here
from tests.pipelines.serving.exports import LABELS, assert_close, call_here, make
from tests.vit_tf import tiny

CLASSIFIERS = ("serving_default", "serving_uint8", "serving_bytes", "serving_bytes_lenient")


@pytest.fixture
def no_process(monkeypatch):
    monkeypatch.setattr(clean_process, "call_signatures", call_here)


def test_without_head(tmp_path, no_process):
    model, preprocessing = make({"num_classes": 0}, {"labels": LABELS})
    report = saved_model.export(model, preprocessing, tmp_path)
    assert report.signatures == ("embed", "attend")
    loaded = tf.saved_model.load(report.path)
    assert set(loaded.signatures) == {"embed", "attend"}
    images = encoded.pixels(30, 20)[None].astype(np.float32)
    outputs = loaded.signatures["embed"](images=images)
    assert_close(model, outputs["embedding"], model(preprocessing(images)))


@pytest.mark.parametrize(
    ("fields", "preprocessing", "message"),
    [
        ({"classifier": "unpooled"}, {}, "unpooled.*'token' or 'gap'"),
        ({}, {"labels": ("a", "b")}, "names 2 classes, the model has 5"),
        ({}, {"labels": ("a", "b", "c", "d", "\ud800")}, "not valid Unicode"),
    ],
)
def test_refused_models(tmp_path, fields, preprocessing, message):
    with pytest.raises(UserError, match=message):
        saved_model.export(*make(fields, preprocessing), tmp_path / "new")
    assert os.listdir(tmp_path) == []


def test_preprocessing_of_another_size_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"\(12, 14\).*\(11, 14\)"):
        saved_model.export(tiny.model(), vit_tf.Preprocessing(image_size=(12, 14)), tmp_path)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A model, its preprocessing, and the answers of its export in the check."""
    model, preprocessing = make()
    answers = []

    def call(directory, calls, loader=None):
        answers.extend(call_here(directory, calls)[0])
        return answers, 0.0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clean_process, "call_signatures", call)
        saved_model.export(model, preprocessing, tmp_path_factory.mktemp("recorded"))
    return model, preprocessing, answers


@pytest.fixture
def quick(recorded, monkeypatch):
    """Exports that only write a numbered `saved_model.pb`; `answer` sets their check results."""
    model, preprocessing, answers = recorded
    written = []

    def write(model, signatures, directory):
        written.append(directory)
        with open(os.path.join(directory, "saved_model.pb"), "w") as file:
            file.write(f"export {len(written)}")

    def answer(name=None, change=None):
        changed = [
            {key: change(value) if key == name else value for key, value in outputs.items()}
            for outputs in answers
        ]
        monkeypatch.setattr(
            clean_process, "call_signatures", lambda directory, calls, loader: (changed, 0.0)
        )

    monkeypatch.setattr(saved_model, "_write", write)
    answer()
    return model, preprocessing, answer


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("logits", lambda x: x + 1e-3 * np.nanmax(np.abs(x))),
        ("probabilities", lambda x: x * np.nan),
        ("probabilities", lambda x: np.nan_to_num(x)),
        ("top_classes", lambda x: x[:, ::-1]),
        ("top_probabilities", lambda x: x * 0.999),
        ("classes", lambda x: x[::-1]),
        ("valid", lambda x: x | True),
        ("embedding", lambda x: x[:1]),
        ("attention", lambda x: x.swapaxes(1, 2)),
    ],
)
def test_difference_fails_and_leaves_nothing(tmp_path, quick, name, change):
    model, preprocessing, answer = quick
    answer(name, change)
    with pytest.raises(RunError, match=f"differs from the model: {name} of"):
        saved_model.export(model, preprocessing, tmp_path / "a" / "b")
    assert os.listdir(tmp_path) == []


def test_existing_output(tmp_path, quick):
    model, preprocessing, answer = quick
    path = tmp_path / "portable" / "saved_model.pb"
    saved_model.export(model, preprocessing, tmp_path)
    with pytest.raises(UserError, match="--overwrite"):
        saved_model.export(model, preprocessing, tmp_path)
    answer("logits", lambda x: x + 1)
    with pytest.raises(RunError):
        saved_model.export(model, preprocessing, tmp_path, overwrite=True)
    assert os.listdir(tmp_path) == ["portable"]
    assert path.read_text() == "export 1"

    answer()
    saved_model.export(model, preprocessing, tmp_path, overwrite=True)
    assert os.listdir(tmp_path) == ["portable"]
    assert path.read_text() == "export 3"


def test_failing_swap_keeps_the_old_export(tmp_path, quick, monkeypatch):
    model, preprocessing, _ = quick
    saved_model.export(model, preprocessing, tmp_path)
    rename = os.rename

    def rename_but_not_into_place(source, target):
        if os.path.basename(source).startswith(".portable.") and target.endswith("portable"):
            raise OSError(28, "No space left on device", target)
        rename(source, target)

    monkeypatch.setattr(os, "rename", rename_but_not_into_place)
    with pytest.raises(OSError, match="No space left"):
        saved_model.export(model, preprocessing, tmp_path, overwrite=True)
    assert os.listdir(tmp_path) == ["portable"]
    assert (tmp_path / "portable" / "saved_model.pb").read_text() == "export 1"


def test_output_that_is_something_else(tmp_path, quick):
    model, preprocessing, _ = quick
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match="file is not a directory"):
        saved_model.export(model, preprocessing, tmp_path / "file" / "below")
    (tmp_path / "portable").mkdir()
    saved_model.export(model, preprocessing, tmp_path)  # an empty directory may be used
    (tmp_path / "portable" / "saved_model.pb").rename(tmp_path / "portable" / "photo.jpg")
    with pytest.raises(UserError, match="is not a SavedModel"):
        saved_model.export(model, preprocessing, tmp_path, overwrite=True)
    assert sorted(os.listdir(tmp_path)) == ["file", "portable"]
    assert os.listdir(tmp_path / "portable") == ["photo.jpg"]


def test_failing_process_leaves_nothing(tmp_path, quick, monkeypatch):
    def call(directory, calls, loader=None):
        raise clean_process.CleanProcessError(
            "NotFoundError: Op type not registered 'VitAttention'"
        )

    monkeypatch.setattr(clean_process, "call_signatures", call)
    model, preprocessing, _ = quick
    with pytest.raises(RunError, match="TensorFlow alone.*VitAttention"):
        saved_model.export(model, preprocessing, tmp_path)
    assert os.listdir(tmp_path) == []


def test_weights_that_changed_on_the_way_fail(tmp_path, monkeypatch, no_process):
    model, preprocessing = make()
    save = tf.saved_model.save

    def save_and_change(*args, **kwargs):
        save(*args, **kwargs)
        model.head.bias.assign_add([0.0, 0.0, 0.0, 0.0, 0.1])

    monkeypatch.setattr(tf.saved_model, "save", save_and_change)
    with pytest.raises(RunError, match="logits of serving_default by 0.0"):
        saved_model.export(model, preprocessing, tmp_path)
    assert os.listdir(tmp_path) == []


def test_model_that_is_not_finite_fails(tmp_path, quick):
    model, preprocessing = make()
    model.head.bias.assign([np.nan] * 5)
    with pytest.raises(RunError, match="not finite"):
        saved_model.export(model, preprocessing, tmp_path)
    assert os.listdir(tmp_path) == []


# A service with TensorFlow and without this project. It lists the ops in the file, calls one
# signature from Python, and one through a session, as TensorFlow Serving does.
SERVICE = """
import importlib.machinery, json, sys

class Finder(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        missing = name.split(".")[0] in ("custom_ops", "keras", "orbit", "pipelines", "vit_tf")
        return None if missing else super().find_spec(name, path, target)
builtin, frozen = importlib.machinery.BuiltinImporter, importlib.machinery.FrozenImporter
sys.meta_path[:] = [builtin, frozen, Finder]

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.python.framework import op_def_registry

path, image = sys.argv[1:]
data = open(image, "rb").read()
proto = saved_model_pb2.SavedModel()
proto.ParseFromString(open(path + "/saved_model.pb", "rb").read())
graph = proto.meta_graphs[0].graph_def
functions = {function.signature.name for function in graph.library.function}
nodes = [node for function in graph.library.function for node in function.node_def]
ops = {node.op for node in [*graph.node, *nodes]} - functions
model = tf.saved_model.load(path)
eager = model.signatures["serving_bytes_lenient"](tf.constant([data, b"x"]))
with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    meta = tf.compat.v1.saved_model.load(session, ["serve"], path)
    signature = meta.signature_def["serving_bytes_lenient"]
    fed = {signature.inputs["image_bytes"].name: [data, b"x"]}
    names = {key: info.name for key, info in signature.outputs.items()}
    in_session = session.run(names, fed)
print(json.dumps({
    "ops": sorted(ops),
    "unknown": sorted(op for op in ops if op_def_registry.get(op) is None),
    "eager": eager["logits"].numpy()[0].tolist(),
    "session": in_session["logits"][0].tolist(),
    "valid": [eager["valid"].numpy().tolist(), in_session["valid"].tolist()],
    "ours": sorted({name.split(".")[0] for name in sys.modules} & {"keras", "vit_tf", "pipelines"}),
}))
"""


@pytest.mark.process
def test_command_and_service(tmp_path):
    """From a checkpoint to a process with TensorFlow only, without mocks."""
    model, preprocessing = make({}, {"labels": LABELS})
    vit_tf.save_npz(model, tmp_path / "model.npz", preprocessing)
    paths = ("--model", tmp_path / "model.npz", "--output", tmp_path / "new" / "out")
    done = run_command("export", *paths, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    path = tmp_path / "new" / "out" / "portable"
    for part in (str(path), "MB", ", ".join(CLASSIFIERS), "attend", "largest difference"):
        assert part in done.stdout
    assert f"tf.saved_model.load({str(path)!r})" in done.stdout
    assert os.listdir(path.parent) == ["portable"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o755

    data, image = encoded.every_format()[0]
    (tmp_path / "image").write_bytes(data)
    done = subprocess.run(
        [sys.executable, "-I", "-c", SERVICE, path, tmp_path / "image"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["unknown"] == []
    assert "MatMul" in seen["ops"] or "BatchMatMulV2" in seen["ops"]
    assert seen["ours"] == []
    assert seen["valid"] == [[True, False]] * 2
    logits = model(preprocessing(image)[None])[0]
    for way in ("eager", "session"):
        np.testing.assert_allclose(seen[way], logits, rtol=0, atol=2e-5 * np.abs(logits).max())


def test_clean_process_finds_only_tensorflow():
    find = clean_process_main._TensorFlowFinder.find_spec
    assert find("tensorflow") is not None
    assert find("keras") is None and find("vit_tf.layers") is None and find("pipelines") is None


@pytest.mark.process
def test_clean_process_reports_failure(tmp_path):
    with pytest.raises(clean_process.CleanProcessError, match="saved_model"):
        clean_process.call_signatures(tmp_path, [])


def test_command_keeps_the_dtype_unless_told_otherwise(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(clean_process, "call_signatures", call_here)
    context = {"monkeypatch": monkeypatch, "capsys": capsys, "cwd": tmp_path}
    for policy, other in (("float32", "bfloat16"), ("mixed_bfloat16", "float32")):
        model, preprocessing = make({"dtype": policy}, {"labels": LABELS})
        vit_tf.save_npz(model, tmp_path / f"{policy}.npz", preprocessing)
        for precision in (None, other):
            flags = [f"--precision={precision}"] if precision else ["--overwrite"]
            arguments = [f"--model={policy}.npz", f"--output={policy}/{precision}", *flags]
            result = run_here("export", *arguments, **context)
            assert result.returncode == 0, result.stderr
            loaded = tf.saved_model.load(tmp_path / policy / str(precision) / "portable")
            graph = loaded.signatures["serving_default"].graph.as_graph_def()
            nodes = [node for function in graph.library.function for node in function.node_def]
            products = {node.attr["T"].type for node in nodes if "MatMul" in node.op}
            computed_in = tf.bfloat16 if "bfloat16" in (precision or policy) else tf.float32
            assert computed_in.as_datatype_enum in products
            assert (tf.bfloat16.as_datatype_enum in products) == (computed_in == tf.bfloat16)
    result = run_here("export", "--precision=float8", **context)
    assert_user_error(result, "--precision", "float32|mixed_bfloat16|mixed_float16")


def test_command_errors(tmp_path, monkeypatch, capsys):
    context = {"monkeypatch": monkeypatch, "capsys": capsys, "cwd": tmp_path}

    def assert_refused(model, output, *texts):
        result = run_here("export", "--model", model, "--output", output, **context)
        assert_user_error(result, *texts)
        assert result.stdout == ""
        assert not (tmp_path / "out").exists()

    def built(*_):
        raise AssertionError("a model was built")

    for name, fields in {"good": {}, "unpooled": {"classifier": "unpooled"}}.items():
        model, preprocessing = make(fields)
        vit_tf.save_npz(model, tmp_path / f"{name}.npz", preprocessing)
    (tmp_path / "file").write_text("mine")
    assert_refused("unpooled.npz", "out", "unpooled", "'gap'")
    monkeypatch.setattr(vit_tf, "create_model", built)
    assert_refused("none.npz", "out", "no model at none.npz")
    assert_refused("good.npz", "file", "file is not a directory")

"""Exports are checked before they are written; a wrong export is never left on disk."""

import dataclasses
import os

import numpy as np
import pytest
import tensorflow as tf

import vit_tf
from pipelines.errors import RunError, UserError
from pipelines.serving import clean_process, saved_model, saved_model_comparison
from pipelines.serving.saved_model_comparison import Comparison
from tests.pipelines import encoded
from tests.pipelines.process import assert_user_error
from tests.pipelines.serving.exports import CLASSES, assert_close, call_here, make, only
from tests.vit_tf import tiny


def test_without_head(tmp_path, no_process):
    model, preprocessing = make({"num_classes": 0})
    classes = vit_tf.Classes(labels=("never", "read"))
    report = saved_model.export(model, preprocessing, tmp_path, classes=classes)
    assert report.signatures == ("embed", "attend")
    loaded = tf.saved_model.load(report.path)
    assert set(loaded.signatures) == {"embed", "attend"}
    images = encoded.pixels(30, 20)[None].astype(np.float32)
    outputs = loaded.signatures["embed"](images=images)
    assert_close(model, outputs["embedding"], model(preprocessing(images)))


@pytest.mark.parametrize(
    ("fields", "labels", "message"),
    [
        ({"classifier": "unpooled"}, (), "unpooled.*'token'"),
        ({}, ("a", "b"), "2 classes.* 5"),
        ({}, ("a", "b", "c", "d", "\ud800"), "not valid Unicode"),
    ],
)
def test_refused_models(tmp_path, fields, labels, message):
    with pytest.raises(UserError, match=message):
        classes = vit_tf.Classes(labels=labels)
        saved_model.export(*make(fields), tmp_path / "new", classes=classes)
    assert os.listdir(tmp_path) == []


def test_preprocessing_of_another_size_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"\(12, 14\).*\(11, 14\)"):
        saved_model.export(tiny.model(), vit_tf.Preprocessing(image_size=(12, 14)), tmp_path)


@pytest.fixture(scope="module")
def answers(exported):
    """The result of the check's process for the right export."""
    path, found = exported.folder / "portable", []

    def call(directory, calls, loader=None):
        found.extend(call_here(directory, calls)[0])
        return found, 0.0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clean_process, "call_signatures", call)
        names = list(tf.saved_model.load(path).signatures)
        saved_model_comparison.compare_saved_model(
            *exported[:2], path, names, 2e-5, classes=CLASSES
        )
    return found


@pytest.fixture(scope="module")
def expected_outputs(exported):
    """`saved_model_comparison._expected_outputs`, which runs the exported model once."""
    compute, found = saved_model_comparison._expected_outputs, {}

    def expected(name, model, preprocessing, classes, images):
        if model is not exported.model:
            return compute(name, model, preprocessing, classes, images)
        key = name, *(None if image is None else image.shape for image in images)
        if key not in found:
            found[key] = compute(name, model, preprocessing, classes, images)
        return found[key]

    return expected


@pytest.fixture
def quick(exported, answers, expected_outputs, monkeypatch):
    """Exports that only write a numbered `saved_model.pb`; `answer` sets their check results."""
    monkeypatch.setattr(saved_model_comparison, "_expected_outputs", expected_outputs)
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
    return exported.model, exported.preprocessing, answer


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
    with pytest.raises(RunError, match=f"differs.*: {name} of"):
        saved_model.export(model, preprocessing, tmp_path / "a" / "b", classes=CLASSES)
    assert os.listdir(tmp_path) == []


def test_existing_output(tmp_path, quick):
    model, preprocessing, answer = quick
    path = tmp_path / "portable" / "saved_model.pb"
    saved_model.export(model, preprocessing, tmp_path, classes=CLASSES)
    with pytest.raises(UserError, match="--overwrite"):
        saved_model.export(model, preprocessing, tmp_path, classes=CLASSES)
    answer("logits", lambda x: x + 1)
    with pytest.raises(RunError, match="differs.*: logits"):
        saved_model.export(model, preprocessing, tmp_path, overwrite=True, classes=CLASSES)
    assert os.listdir(tmp_path) == ["portable"]
    assert path.read_text() == "export 1"

    answer()
    saved_model.export(model, preprocessing, tmp_path, overwrite=True, classes=CLASSES)
    assert os.listdir(tmp_path) == ["portable"]
    assert path.read_text() == "export 3"


def test_failing_swap_keeps_the_old_export(tmp_path, quick, monkeypatch):
    model, preprocessing, _ = quick
    saved_model.export(model, preprocessing, tmp_path, classes=CLASSES)
    rename = os.rename

    def rename_but_not_into_place(source, target):
        if os.path.basename(source).startswith(".portable.") and target.endswith("portable"):
            raise OSError(28, "No space left on device", target)
        rename(source, target)

    monkeypatch.setattr(os, "rename", rename_but_not_into_place)
    with pytest.raises(OSError, match="No space left"):
        saved_model.export(model, preprocessing, tmp_path, overwrite=True, classes=CLASSES)
    assert os.listdir(tmp_path) == ["portable"]
    assert (tmp_path / "portable" / "saved_model.pb").read_text() == "export 1"


def test_output_that_is_something_else(tmp_path, quick):
    model, preprocessing, _ = quick
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match="file is not a directory"):
        saved_model.export(model, preprocessing, tmp_path / "file" / "below", classes=CLASSES)
    (tmp_path / "portable").mkdir()
    # An empty directory may be used.
    saved_model.export(model, preprocessing, tmp_path, classes=CLASSES)
    (tmp_path / "portable" / "saved_model.pb").rename(tmp_path / "portable" / "photo.jpg")
    with pytest.raises(UserError, match="is not a SavedModel"):
        saved_model.export(model, preprocessing, tmp_path, overwrite=True, classes=CLASSES)
    assert sorted(os.listdir(tmp_path)) == ["file", "portable"]
    assert sorted(os.listdir(tmp_path / "portable")) == ["assets.extra", "photo.jpg"]


def test_failing_process_leaves_nothing(tmp_path, quick, monkeypatch):
    def call(directory, calls, loader=None):
        raise clean_process.CleanProcessError(
            "NotFoundError: Op type not registered 'VitAttention'"
        )

    monkeypatch.setattr(clean_process, "call_signatures", call)
    model, preprocessing, _ = quick
    with pytest.raises(RunError, match="alone.*VitAttention"):
        saved_model.export(model, preprocessing, tmp_path, classes=CLASSES)
    assert os.listdir(tmp_path) == []


def test_weights_that_changed_on_the_way_fail(tmp_path, monkeypatch, no_process):
    model, preprocessing = make()
    save = tf.saved_model.save

    def save_and_change(*args, **kwargs):
        save(*args, **kwargs)
        model.head.bias.assign_add([0.0, 0.0, 0.0, 0.0, 0.1])

    monkeypatch.setattr(tf.saved_model, "save", save_and_change)
    monkeypatch.setattr(saved_model, "make_signatures", only("serving_default"))
    with pytest.raises(RunError, match="logits.* by 0.0"):
        saved_model.export(model, preprocessing, tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_head_of_zeros_hides_nothing(tmp_path, monkeypatch, no_process):
    """The features of each signature are compared, and the file has the head of the model."""
    model, preprocessing = make()
    model.head.kernel.assign(tf.zeros_like(model.head.kernel))
    other = dataclasses.replace(preprocessing, mean=(0.4, 0.5, 0.6))
    some = only("serving_default")
    monkeypatch.setattr(saved_model, "make_signatures", some)
    report = saved_model.export(model, preprocessing, tmp_path)
    assert report.max_difference > 0 and "with a random head too" in str(report)
    served = tf.saved_model.load(report.path).signatures["serving_default"]
    logits = served(tf.zeros([1, 9, 9, 3]))["logits"]
    np.testing.assert_allclose(logits, [model.head.bias.numpy()], rtol=1e-6)
    assert not [name for name in os.listdir(report.path) if name.startswith("tmp")]

    monkeypatch.setattr(
        saved_model, "make_signatures", lambda model, _, *rest: some(model, other, *rest)
    )
    with pytest.raises(RunError, match="logits of serving_default"):
        saved_model.export(model, preprocessing, tmp_path, overwrite=True)
    assert not model.head.kernel.numpy().any()


@pytest.mark.usefixtures("quick")
def test_model_that_is_not_finite_fails(tmp_path):
    model, preprocessing = make()
    model.head.bias.assign([np.nan] * 5)
    with pytest.raises(RunError, match="not finite"):
        saved_model.export(model, preprocessing, tmp_path)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("policy", "flags", "products"),
    [
        ("mixed_bfloat16", [], {tf.bfloat16, tf.float32}),  # The head computes in float32.
        ("float32", ["--precision=bfloat16"], {tf.bfloat16, tf.float32}),
        ("mixed_bfloat16", ["--precision=float32"], {tf.float32}),
    ],
)
def test_command_keeps_the_dtype_unless_told_otherwise(
    command, tmp_path, monkeypatch, policy, flags, products
):
    monkeypatch.setattr(saved_model, "compare_saved_model", lambda *_: Comparison(0.0, 0.0))
    monkeypatch.setattr(saved_model, "make_signatures", only("serving_default"))
    model, preprocessing = make({"dtype": policy})
    vit_tf.save_npz(model, tmp_path / "model.npz", preprocessing)
    result = command("export", "--model=model.npz", "--output=out", *flags)
    assert result.returncode == 0, result.stderr
    loaded = tf.saved_model.load(tmp_path / "out" / "portable")
    graph = loaded.signatures["serving_default"].graph.as_graph_def()
    nodes = [node for function in graph.library.function for node in function.node_def]
    found = {node.attr["T"].type for node in nodes if "MatMul" in node.op}
    assert found == {dtype.as_datatype_enum for dtype in products}


def test_command_limits_the_pixels_of_encoded_images(command, tmp_path, monkeypatch, no_process):
    """Also at the lowest limit, the model's own 11 x 14 pixels, the export passes its check."""
    names = ("serving_bytes", "serving_bytes_lenient", "labels")
    monkeypatch.setattr(saved_model, "make_signatures", only(*names))
    vit_tf.save_npz(make()[0], tmp_path / "model.npz", make()[1])
    paths = ("--model=model.npz", "--output=out")
    for value in ("0", "-5", "153", str(2**27 + 1)):
        result = command("export", *paths, f"--max_pixels={value}")
        assert_user_error(result, "--max_pixels must be from 154, ", f"11 x 14, to {2**27:,}. Rec")
        assert f"Received: {int(value):,}." in result.stderr
    assert_user_error(command("export", *paths, "--max_pixels=many"), "--max_pixels", "many")
    assert not (tmp_path / "out").exists()
    result = command("export", *paths, "--max_pixels=154")
    assert result.returncode == 0, result.stderr

    signatures = tf.saved_model.load(tmp_path / "out" / "portable").signatures
    formats = ("PNG", "JPEG", "GIF", "BMP", "WEBP")
    files = [encoded.encode(encoded.pixels(*size), x) for x in formats for size in SIZES]
    valid = signatures["serving_bytes_lenient"](image_bytes=tf.constant(files))["valid"]
    assert valid.numpy().tolist() == [True, False, True] * len(formats)
    with pytest.raises(tf.errors.InvalidArgumentError, match="images 1, 4, 7, .* 154 "):
        signatures["serving_bytes"](image_bytes=tf.constant(files))
    (tmp_path / "image.png").write_bytes(files[1])
    result = command("predict", "--model=out", "image.png")
    assert_user_error(result, "Cannot decode image.png", "with a smaller --max_pixels")


# At, above and below a limit of 154 pixels.
SIZES = ((14, 11), (5, 31), (1, 1))


def test_a_precision_that_does_not_exist(command):
    result = command("export", "--precision=float8")
    assert_user_error(result, "--precision", "float32|mixed_bfloat16|mixed_float16")


def test_command_errors(command, tmp_path, monkeypatch):
    def assert_refused(model, output, *texts):
        result = command("export", "--model", model, "--output", output)
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

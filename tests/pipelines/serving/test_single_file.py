"""LiteRT and ONNX files: the outputs of the model, without TensorFlow; errors leave no files."""

import dataclasses
import io
import json
import os

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import vit_tf
from pipelines.config.data import Data
from pipelines.errors import RunError, UserError
from pipelines.predictions.results import find_classifier
from pipelines.serving import clean_process, clean_process_main, probes, saved_model
from pipelines.serving.http.model import open_model
from pipelines.serving.single_file import comparison, conversion, export, samples
from pipelines.stored_models import model_source, runtimes
from pipelines.stored_models.parity import tolerance_of
from tests.pipelines import encoded, hostile
from tests.pipelines.process import assert_user_error
from tests.pipelines.serving import exports
from tests.pipelines.serving.http.running import as_base64, predict, running
from tests.vit_tf import tiny
from vit_tf.images.decoding import decode_image

DIGITS = vit_tf.Classes(labels=tuple("0123456789"))
FORMS = ("litert", "onnx")
FAMILIES = {
    "gap": tiny.config(classifier="gap", activation="gelu_erf"),
    "map": tiny.config(classifier="map"),
    "Axial-ViT": tiny.config(**tiny.AXIAL),
    "hybrid": tiny.config(stem={"stage_depths": (1,), "width": 0.5}, image_size=(33, 50)),
    "ResNet": vit_tf.ResNetConfig(
        stage_depths=(1, 1), width=0.5, image_size=(33, 50), num_classes=5
    ),
    "AxialResNet": vit_tf.AxialResNetConfig(
        stage_depths=(1,), width=0.125, heads=2, image_size=(33, 50), num_classes=5
    ),
}
CALL = clean_process.call_signatures  # As it is outside these tests.
every_form = pytest.mark.parametrize("form", FORMS)


def call_here(path, calls, loader=None):
    """`clean_process.call_signatures` without the seconds of a new process."""
    with open(path, "rb") as file:
        run = runtimes.open_runtime(runtimes.form_of(path), file.read())
    return [run(images) for _, images in calls], 0.0


@pytest.fixture(autouse=True, scope="module")
def in_this_process():
    """Files are checked in this process; one test starts another."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clean_process, "call_signatures", call_here)
        yield


def load(config=None, **preprocessing):
    config = config or tiny.config(num_classes=10)
    model = vit_tf.create_model(config)
    tiny.randomize(model)
    rule = vit_tf.Preprocessing(image_size=config.image_size, **preprocessing)
    return vit_tf.LoadedModel(model, rule, DIGITS if config.num_classes == 10 else vit_tf.Classes())


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A ViT of ten classes, a folder with both forms of it, and their reports."""
    loaded, folder = load(), tmp_path_factory.mktemp("files")
    vit_tf.save_npz(loaded.model, folder / "model.npz", *loaded[1:])
    return loaded, folder, {form: export.export_file(loaded, folder, form) for form in FORMS}


def images_of(loaded, count, size=None):
    size = size or loaded.preprocessing.image_size
    return np.random.default_rng(1).integers(0, 256, (count, *size, 3)).astype(np.float32)


def difference(loaded, path, images):
    """Largest difference of a logit from the model's, divided by the largest logit."""
    [answer], _ = call_here(path, [(None, images)])
    logits = loaded.model(loaded.preprocessing(images)).numpy()
    probabilities = loaded.classes.to_probabilities(logits)
    np.testing.assert_allclose(answer["probabilities"], probabilities, atol=1e-4)
    return np.abs(answer["logits"] - logits).max() / np.abs(logits).max()


@every_form
def test_logits_of_any_batch_and_size(exported, form):
    loaded, _, reports = exported
    for count, size in ((50, None), (1, (40, 9)), (3, (5, 60))):
        images = images_of(loaded, count, size)
        assert difference(loaded, reports[form].path, images) < 1e-5
    assert reports[form].comparison.difference < 1e-5 == reports[form].tolerance
    assert "without TensorFlow: largest difference" in str(reports[form])
    assert 0 < reports[form].levels < 1e-2


@every_form
def test_the_json_describes_the_file(exported, form):
    loaded, folder, reports = exported
    values = json.loads((folder / f"{os.path.basename(reports[form].path)}.json").read_text())
    assert values["format"] == form and values["labels"] == list("0123456789")
    assert values["activation"] == "softmax" and values["quantize"] == "none"
    assert values["input"]["shape"] == [None, None, None, 3]
    assert values["inside"] == ["resize", "normalize", "softmax"]
    assert values["outside"] == ["decode to RGB"]
    fields = values["preprocessing"]
    assert fields["mean"] == [0.5] * 3 and fields["interpolation"] == "bilinear"
    assert vit_tf.Preprocessing.from_dict(fields) == loaded.preprocessing
    assert values["bytes"] == os.path.getsize(reports[form].path)
    assert values["versions"]["tensorflow"] == tf.__version__


@every_form
@pytest.mark.parametrize("size", [224, 384])
def test_large_images(tmp_path, form, size):
    """The resize alone rounds more than the network, and what it does to logits is not its."""
    config = vit_tf.config.VARIANTS["ViT-Ti/16"].replace(
        num_classes=10, image_size=(size, size), activation="gelu_erf"
    )
    model, rule = vit_tf.create_model(config), vit_tf.Preprocessing(image_size=(size, size))
    with probes.random_head(model):
        report = export.export_file(vit_tf.LoadedModel(model, rule, DIGITS), tmp_path, form)
    assert report.comparison.difference < 1e-5 and 0 < report.comparison.resized < 1e-4
    assert 0 < report.levels < 0.02 and not report.comparison.has_random_head
    assert f"largest difference {report.levels:.1e} of 255 levels (allowed: 0.05)" in str(report)


def test_a_resize_of_another_rule_is_refused(tmp_path, monkeypatch):
    def shifted(preprocessing, batch):
        del batch
        height, width = preprocessing.image_size

        def resize(images):
            corners = tf.compat.v1.image.resize_bilinear(images, (height, width), True)
            return {"pixels": corners}

        images = tf.TensorSpec([None, None, None, 3], name="images")
        return tf.function(resize, [images], autograph=False)

    monkeypatch.setattr(conversion, "make_resize", shifted)
    with pytest.raises(RunError, match=r"resize .* \d.* 255 .* 0.05"):
        export.export_file(load(), tmp_path, "onnx")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("form", "quantize"),
    [("onnx", "none"), ("litert", "none"), ("litert", "dynamic_int8")],
)
def test_a_head_of_zeros_hides_nothing(tmp_path, monkeypatch, form, quantize):
    """The features are compared, and the file has the head of the model."""
    loaded = load()
    bias = np.linspace(-10, -9.99, 10).astype(np.float32)
    loaded.model.head.kernel.assign(tf.zeros_like(loaded.model.head.kernel))
    loaded.model.head.bias.assign(bias)
    report = export.export_file(loaded, tmp_path, form, quantize=quantize)
    assert 0 < report.comparison.difference < (1e-5 if quantize == "none" else 0.5)
    assert "the features were compared" in str(report)
    [answer], _ = call_here(report.path, [(None, images_of(loaded, 2))])
    np.testing.assert_allclose(answer["logits"], [bias, bias], rtol=1e-6)

    other = load(mean=(0.4, 0.5, 0.6)).preprocessing
    make = conversion.make_function
    monkeypatch.setattr(
        conversion, "make_function", lambda model, _, *rest: make(model, other, *rest)
    )
    with pytest.raises(RunError, match="differs from the model by"):
        export.export_file(loaded, tmp_path, form, quantize=quantize, overwrite=True)
    assert not loaded.model.head.kernel.numpy().any()


@pytest.mark.process
@every_form
def test_a_process_without_tensorflow_computes_the_same(exported, form):
    loaded, _, reports = exported
    images, path = images_of(loaded, 2), reports[form].path
    [answer], seconds = CALL(path, [(None, images)], loader=runtimes.__file__)
    expected = loaded.model(loaded.preprocessing(images)).numpy()
    np.testing.assert_allclose(answer["logits"], expected, atol=1e-5 * np.abs(expected).max())
    assert seconds > 0


def test_the_process_of_the_check_cannot_import_tensorflow(monkeypatch):
    names = clean_process_main.BLOCKED + clean_process_main.BLOCKED_FOR_FILES
    monkeypatch.setattr(clean_process_main._Finder, "blocked", names)
    find = clean_process_main._Finder.find_spec
    assert find("tensorflow") is None and find("keras") is None and find("numpy") is not None


@every_form
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_converts(tmp_path, name, form):
    config = FAMILIES[name]
    loaded = load(config)
    report = export.export_file(loaded, tmp_path, form)
    images = images_of(loaded, 50)
    allowed = 1e-4 if name in ("hybrid", "ResNet", "AxialResNet") else 1e-5
    assert difference(loaded, report.path, images) < allowed == tolerance_of(config.to_dict())


@every_form
def test_a_fixed_batch_and_an_image_of_the_models_size(tmp_path, form):
    """A rule with a crop is left to the caller. The exact GELU, which ONNX has no operator for."""
    config = tiny.config(num_classes=10, activation="gelu_erf")
    loaded = load(config, resize="resize_small", resize_to=20, mean=(0.4, 0.5, 0.6), exif="apply")
    report = export.export_file(loaded, tmp_path, form, batch=3)
    values = json.loads((tmp_path / f"{os.path.basename(report.path)}.json").read_text())
    assert values["input"]["shape"] == [3, 11, 14, 3] and values["inside"][0] == "normalize"
    assert values["outside"] == ["decode to RGB", "turn by EXIF orientation", "resize"]

    photos = images_of(loaded, 7, (50, 31)).astype(np.uint8)
    opened = model_source.find(report.path, exports=model_source.EXPORTS).open_model()
    expected = loaded.model(loaded.preprocessing(photos)).numpy()
    for count in (1, 3, 7):
        logits = opened.model(opened.preprocessing(photos[:count])).numpy()
        scale = np.abs(expected).max()
        np.testing.assert_allclose(logits, expected[:count], atol=1e-5 * scale)


@every_form
def test_predict_and_evaluate_take_files(exported, command, form, tmp_path, monkeypatch):
    _, folder, reports = exported
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photo.png").write_bytes(encoded.encode(encoded.pixels(30, 20), "PNG"))
    answers = []
    for path in (folder / "model.npz", reports[form].path):
        done = command("predict", "--model", path, "--json", "photo.png")
        [top] = [json.loads(done.stdout)["top"]]
        done = command("evaluate", "--model", path, "--json", "--max_batches=1")
        answers.append(([x["index"] for x in top], top, json.loads(done.stdout)))
    (indices, top, means), (found, found_top, found_means) = answers
    assert found == indices and found_means["accuracy"] == means["accuracy"]
    for one, other in zip(top, found_top, strict=True):
        assert one["probability"] == pytest.approx(other["probability"], abs=1e-5)
    assert found_means["loss"] == pytest.approx(means["loss"], rel=1e-4)


@every_form
def test_one_output_is_a_sigmoid(tmp_path, form, command):
    """In the file, in its description, and in what reads it: two names, two probabilities."""
    classes = vit_tf.Classes(labels=("dog", "cat"))
    loaded = load(tiny.config(num_classes=1))._replace(classes=classes)
    report = export.export_file(loaded, tmp_path, form)
    images = images_of(loaded, 3)
    [answer], _ = call_here(report.path, [(None, images)])
    logits = loaded.model(loaded.preprocessing(images)).numpy()
    positive = 1 / (1 + np.exp(-logits))
    both = np.concatenate([1 - positive, positive], axis=1)
    np.testing.assert_allclose(answer["probabilities"], both, atol=1e-5)
    values = json.loads((tmp_path / f"{os.path.basename(report.path)}.json").read_text())
    assert values["activation"] == "sigmoid" and values["inside"][-1] == "sigmoid"
    assert values["outputs"] == {"logits": [None, 1], "probabilities": [None, 2]}
    photo = encoded.pixels(*loaded.preprocessing.image_size)
    (tmp_path / "photo.png").write_bytes(encoded.encode(photo, "PNG"))
    done = command("predict", "--model", report.path, "--json", tmp_path / "photo.png")
    found = {x["label"]: x["probability"] for x in json.loads(done.stdout)["top"]}
    logit = float(loaded.model(loaded.preprocessing(photo[None]))[0, 0])
    assert found == pytest.approx({"cat": 1 / (1 + np.exp(-logit)), "dog": 1 / (1 + np.exp(logit))})


def test_other_commands_name_the_ones_that_take_files(exported, command):
    path = exported[2]["onnx"].path
    done = command("export", "--model", path)
    assert_user_error(done, "model.onnx is an export, which only pipelines.predict and")
    done = command("predict", "--model", path, "--fused")
    assert_user_error(done, "--fused is for models that are not exported")
    done = command("predict", "--model", path, "--adapter", "a.safetensors")
    assert_user_error(done, "--adapter is for models that are not exported")


def spoiled(exported, folder, name):
    """A copy of the ONNX file with a spoiled or missing part."""
    content = bytearray((exported[1] / "model.onnx").read_bytes())
    values = json.loads((exported[1] / "model.onnx.json").read_text())
    if name == "content":
        content[100] ^= 1
    if name == "labels":
        values["labels"] = 7
    (folder / "model.onnx").write_bytes(content)
    if name != "json":
        (folder / "model.onnx.json").write_text(json.dumps(values))
    return str(folder / "model.onnx")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("content", "not the file.*checksums"),
        ("json", "model.onnx.json.*missing"),
        ("labels", "labels=7"),
    ],
)
def test_spoiled_files(exported, tmp_path, name, message):
    with pytest.raises(UserError, match=message):
        model_source.find(
            spoiled(exported, tmp_path, name), exports=model_source.EXPORTS
        ).open_model()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--format=portable", "--batch=2"], "--batch belongs to --format=litert or onnx"),
        (["--format=onnx", "--max_pixels=9"], "--format=onnx takes no --max_pixels"),
        (["--format=onnx", "--quantize=int8"], "--quantize belongs to --format=litert"),
        (["--format=onnx", "--precision=bfloat16"], "--format=onnx takes no --precision"),
        (
            ["--format=litert", "--set", "data.name=shapes"],
            "--set belongs to --quantize=int8",
        ),
        (["--experiment=digits"], "--experiment belongs to --quantize=int8"),
        (["--format=onnx", "--batch=0"], "--batch"),
    ],
)
def test_flags_without_a_meaning(command, flags, message):
    assert_user_error(command("export", *flags), message)


def test_images_of_calibration():
    """As many as a call needs, from the training data."""
    rule = vit_tf.Preprocessing(image_size=(8, 8))
    data = Data(name="digits")
    for batch, count in ((None, 200), (7, 200), (230, 230)):
        images = samples.calibration_images(data, rule, batch)
        assert images.shape == (count, 8, 8, 3) and images.max() > 200 and images.min() >= 0
    with pytest.raises(UserError, match="--batch=9999 .*digits"):
        samples.calibration_images(data, rule, 9999)


def test_a_quantized_file_that_loses_too_much_is_not_written(tmp_path, monkeypatch):
    found = iter([comparison.FileComparison(0.0), comparison.FileComparison(0.5, 0.9, 0.92)])
    monkeypatch.setattr(export, "compare_file", lambda *_: next(found))
    loaded = load()
    with pytest.raises(RunError, match="float16, 90.00% .*92.00%"):
        export.export_file(
            loaded, tmp_path, "litert", quantize="float16", labeled=(images_of(loaded, 2), [0, 1])
        )
    assert not os.listdir(tmp_path)


def turned(orientation):
    """A JPEG with an EXIF orientation."""
    file, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = orientation
    pixels = np.random.default_rng(orientation).integers(0, 256, (4, 3, 3), np.uint8)
    Image.fromarray(pixels).resize((45, 30)).save(file, "JPEG", exif=exif)
    return file.getvalue()


@pytest.mark.parametrize("size", [None, (14, 11)])
def test_all_forms_answer_the_same_for_unusual_photos(tmp_path, monkeypatch, size):
    """Sizes, alpha, gray, CMYK, 16 bit and orientation: files, SavedModel, weights and REST."""
    loaded = load(tiny.config(num_classes=10, image_size=size or (8, 8)), exif="apply")
    vit_tf.save_npz(loaded.model, tmp_path / "model.npz", *loaded[1:])
    with monkeypatch.context() as patch:
        patch.setattr(clean_process, "call_signatures", exports.call_here)
        saved_model.export(*loaded[:2], tmp_path, classes=loaded.classes)
    paths = [export.export_file(loaded, tmp_path, form).path for form in FORMS]
    paths += [tmp_path / "portable"]
    photos = [
        content for name, (_, content, _, _) in hostile.readable().items() if " x " not in name
    ]
    photos += [turned(orientation) for orientation in (1, 2, 3, 4, 5, 7, 8)]
    classify, labels = find_classifier(str(tmp_path / "model.npz"))
    expected = classify(tf.constant(photos))
    assert len(photos) >= 20 and expected["valid"].numpy().all()
    sideways = hostile.readable()["EXIF"][1]
    ignored = vit_tf.LoadedModel(
        loaded.model, dataclasses.replace(loaded.preprocessing, exif="ignore"), loaded.classes
    )
    upright = ignored.preprocessing(decode_image(sideways))[None]
    answer = expected["probabilities"][photos.index(sideways)]
    stored = loaded.classes.to_probabilities(loaded.model(upright))[0]
    assert np.abs(answer - stored).max() > 1e-3  # The orientation changes the answer.
    for path in paths:
        found, names = find_classifier(str(path))
        assert names == labels
        answers = found(tf.constant(photos))["probabilities"]
        np.testing.assert_allclose(answers, expected["probabilities"], atol=1e-5)
    inputs = [as_base64(photo) for photo in photos]
    for path in [tmp_path / "model.npz"] if size else paths:
        with running(open_model(str(path)), images=len(photos)) as served:
            status, answer = predict(served, signature_name="serving_bytes", inputs=inputs)
        assert status == 200
        answers = answer["outputs"]["probabilities"]
        np.testing.assert_allclose(answers, expected["probabilities"], atol=1e-5)


def test_int8_needs_images(exported, command, tmp_path):
    path = exported[1] / "model.npz"
    flags = ["--format=litert", "--quantize=int8", "--output", tmp_path / "new"]
    done = command("export", "--model", path, *flags)
    assert_user_error(done, "needs images like those that", "--set data.name=...")
    assert os.listdir(tmp_path) == []


def test_missing_packages_and_existing_files(exported, tmp_path, monkeypatch):
    loaded, folder, _ = exported
    with pytest.raises(UserError, match=r"model.onnx exists.*--overwrite"):
        export.export_file(loaded, folder, "onnx")
    monkeypatch.setattr(export.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs tf2onnx, .*pip install '.\[onnx\]'"):
        export.export_file(loaded, tmp_path, "onnx")
    assert os.listdir(tmp_path) == []


def test_an_unpooled_model_is_refused(tmp_path):
    with pytest.raises(UserError, match="unpooled"):
        export.export_file(load(tiny.config(classifier="unpooled")), tmp_path, "onnx")
    assert os.listdir(tmp_path) == []


@every_form
@pytest.mark.parametrize("fields", [{"representation_size": 7}, {"classifier": "gap"}], ids=str)
def test_without_a_head_the_output_is_the_features(tmp_path, form, fields):
    loaded = load(tiny.config(num_classes=0, **fields))
    report = export.export_file(loaded, tmp_path, form)
    assert "of the largest feature (allowed: 1e-05)" in str(report)
    images = images_of(loaded, 3, (40, 9))
    [answer], _ = call_here(report.path, [(None, images)])
    wanted = loaded.model.features(loaded.preprocessing(images)).numpy()
    np.testing.assert_allclose(answer["embedding"], wanted, atol=1e-5 * np.abs(wanted).max())
    with open(f"{report.path}.json") as file:
        values = json.load(file)
    assert values["outputs"] == {"embedding": [None, wanted.shape[1]]}
    assert values["inside"] == ["resize", "normalize"] and answer.keys() == {"embedding"}
    with pytest.raises(UserError, match="no head"):
        find_classifier(report.path)
    with pytest.raises(UserError, match="no head .* exported from"):
        open_model(report.path)


def test_weights_beyond_the_formats_are_refused():
    with tiny.unallocated():
        model = vit_tf.create_model("ViT-H/14")
    with pytest.raises(UserError, match=r"2\.5 GB.* 2\.1"):
        conversion.check_size(model)


def test_a_file_with_other_outputs_is_not_written(exported, tmp_path, monkeypatch):
    content = (exported[1] / "model.onnx").read_bytes()
    monkeypatch.setattr(conversion, "to_onnx", lambda *_: content)
    other = load()
    other.model.head.kernel.assign(-other.model.head.kernel)
    with pytest.raises(RunError, match="differs .* 1e-05"):
        export.export_file(other, tmp_path, "onnx")
    assert os.listdir(tmp_path) == []


@pytest.mark.process
def test_a_damaged_file_is_reported(exported, tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes((exported[1] / "model.onnx").read_bytes()[:999])
    with pytest.raises(clean_process.CleanProcessError, match="(?i)protobuf"):
        CALL(str(path), [(None, images_of(exported[0], 1))], loader=runtimes.__file__)


def test_an_op_without_a_counterpart_is_named(tmp_path):
    fields = {"stage_depths": (1, 1), "width": 0.5, "image_size": 32, "num_classes": 5}
    model = vit_tf.create_model("SASA-R26", **fields)
    rule = vit_tf.Preprocessing(image_size=(32, 32))
    loaded = vit_tf.LoadedModel(model, rule, vit_tf.Classes())
    with pytest.raises(UserError, match="LiteRT.*MatMulV2, PadV2"):
        export.export_file(loaded, tmp_path, "litert")
    assert os.listdir(tmp_path) == []


def test_an_unknown_op_of_onnx_is_named(monkeypatch):
    """An op that tf2onnx copies."""
    loaded = load()
    cubic = tf.function(
        lambda images: tf.raw_ops.ScaleAndTranslate(
            images=images, size=[4, 4], scale=[1.0, 1.0], translation=[0.0, 0.0]
        ),
        [tf.TensorSpec([1, 8, 8, 3], name="images")],
        autograph=False,
    )
    with pytest.raises(UserError, match="ONNX.*ScaleAndTranslate"):
        conversion.to_onnx(loaded.model, cubic)


def test_tensors_have_short_names_and_are_aligned(exported):
    from ai_edge_litert import schema_py_generated as schema

    content = (exported[1] / "model.tflite").read_bytes()
    model = schema.ModelT.InitFromPackedBuf(content, 0)
    [graph] = model.subgraphs
    named = {*graph.inputs, *graph.outputs}
    assert all(len(x.name) < 6 for i, x in enumerate(graph.tensors) if i not in named)
    root, places = schema.Model.GetRootAs(content, 0), []
    for index in range(root.BuffersLength()):
        buffer = root.Buffers(index)
        if buffer.DataLength():
            places.append(buffer._tab.Vector(buffer._tab.Offset(4)) % 16)
    assert len(places) > 20 and set(places) == {0}


@pytest.mark.parametrize("quantize", ["float16", "dynamic_int8", "int8"])
def test_quantized_files_of_the_shipped_model(command, tmp_path, quantize):
    done = command("export", "--format=litert", "--quantize", quantize, "--output", tmp_path)
    share = float(done.stdout.split("size: ")[1].split("%")[0])
    assert share <= (60 if quantize == "float16" else 40)
    accuracy, of_model = (
        float(x.strip(" \n%.")) for x in done.stdout.split("digits: ")[1].split(", of the model")
    )
    assert of_model == 97.33 and accuracy >= of_model - 1
    values = json.loads((tmp_path / "model.tflite.json").read_text())
    assert values["quantize"] == quantize and 1e-5 < values["difference"] < 0.5
    path = tmp_path / "model.tflite"
    means = json.loads(command("evaluate", "--model", path, "--json").stdout)
    assert means["accuracy"] == pytest.approx(accuracy / 100, abs=1e-4)

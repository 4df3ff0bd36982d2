"""Predictions for files, with every kind of model, and error messages."""

import json
import os
import pathlib
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf
from sklearn import datasets

import custom_ops
import vit_tf
from custom_ops import dispatch, library_file, loader
from pipelines.runs import model_source
from pipelines.runs.workdir import Workdir
from pipelines.serving import clean_process, prediction, saved_model
from tests.pipelines import encoded
from tests.pipelines.process import assert_user_error, run_command, run_here
from tests.pipelines.serving.exports import LABELS, call_here, make
from tests.pipelines.tiny import tiny_experiment
from tests.vit_tf import tiny


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """One model in every form: the model, its preprocessing, form -> path."""
    model, preprocessing = make({}, {"labels": LABELS})
    root = tmp_path_factory.mktemp("models")
    paths = {"npz": root / "model.npz", "keras": root / "model.keras", "workdir": root / "run"}
    vit_tf.save_npz(model, paths["npz"], preprocessing)
    model.save(paths["keras"])
    sidecar = {"preprocessing": preprocessing.to_dict()}
    (root / "model.keras.json").write_text(json.dumps(sidecar))
    run = Workdir(paths["workdir"])
    run.create(tiny_experiment())
    vit_tf.save_npz(model, run.final, preprocessing)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clean_process, "call_signatures", call_here)
        report = saved_model.export(model, preprocessing, root / "export")
    return model, preprocessing, paths | {"saved_model": report.path, "export": root / "export"}


@pytest.fixture
def folder(tmp_path):
    """A folder with other files and images of each format in subfolders, in any letter case."""
    names = ("a.png", "b.PNG", "sub/c.PnG", "sub/deep/d.bmp", "e.gif", "sub/f.JPEG", "g.WebP")
    images = {}
    for name, (data, pixels) in zip(names, encoded.every_format(), strict=True):
        path = tmp_path / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        images[str(path)] = pixels
    (tmp_path / "images" / "notes.txt").write_text("not an image")
    return tmp_path / "images", images


@pytest.fixture
def predict(monkeypatch, capsys, tmp_path):
    """`predict(*arguments)`: exit code, stdout, stderr."""
    context = {"monkeypatch": monkeypatch, "capsys": capsys, "cwd": tmp_path}

    def run(*arguments):
        result = run_here("predict", *arguments, **context)
        return result.returncode, result.stdout, result.stderr

    return run


def expected(models, pixels, top):
    """Labels, indices and probabilities of the `top` classes, computed by the model itself."""
    model, preprocessing, _ = models
    row = tf.nn.softmax(model(preprocessing(pixels)[None]))[0].numpy()
    order = np.argsort(-row)[:top]
    return [LABELS[i] for i in order], order.tolist(), row[order]


def assert_predicted(models, line, images, top):
    """Checks that a line of JSON has the model's prediction for its image."""
    result = json.loads(line)
    labels, indices, probabilities = expected(models, images[result["path"]], top)
    assert [entry["label"] for entry in result["top"]] == labels
    assert [entry["index"] for entry in result["top"]] == indices
    actual = [entry["probability"] for entry in result["top"]]
    np.testing.assert_allclose(actual, probabilities, rtol=1e-4)


@pytest.mark.parametrize("form", ["npz", "keras", "workdir", "saved_model", "export"])
def test_every_form_of_model(models, folder, predict, form):
    root, images = folder
    code, out, err = predict("--model", models[2][form], "--json", "--top=3", root)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert [json.loads(line)["path"] for line in lines] == sorted(images)
    for line in lines:
        assert_predicted(models, line, images, top=3)


def test_fused(models, folder, predict):
    root, images = folder
    code, out, err = predict("--model", models[2]["npz"], "--fused", "--json", "--top=3", root)
    assert code == 0 and err.startswith("packed: 2 of 2 blocks in one op, float32")
    for line in out.splitlines():
        assert_predicted(models, line, images, top=3)
    arguments = ("--model", models[2]["npz"], "--fused", "--precision=bfloat16", "--json", root)
    code, out, err = predict(*arguments)
    assert code == 0 and "in one op, bfloat16" in err
    assert len(out.splitlines()) == len(images)
    model, preprocessing, _ = models
    for line in out.splitlines():
        result = json.loads(line)
        probabilities = tf.nn.softmax(model(preprocessing(images[result["path"]])[None]))[0].numpy()
        for entry in result["top"]:
            assert entry["probability"] == pytest.approx(probabilities[entry["index"]], abs=0.05)
            assert entry["probability"] != pytest.approx(probabilities[entry["index"]], rel=1e-6)


@pytest.mark.parametrize("fields", [tiny.AXIAL, None], ids=["axial", "resnet"])
def test_fused_runs_models_that_cannot_be_packed_as_they_are(tmp_path, folder, predict, fields):
    if fields is None:
        config = vit_tf.ResNetConfig(stage_depths=(1,), width=0.5, image_size=16, num_classes=5)
        model, reason = vit_tf.create_model(config), "its class is ResNet"
        tiny.randomize(model)
    else:
        model, reason = tiny.model(**fields, layers=1), "axial attention is not covered"
    rule = vit_tf.Preprocessing(image_size=model.config.image_size, labels=LABELS)
    vit_tf.save_npz(model, tmp_path / "model.npz", rule)
    image = folder[0] / "a.png"
    code, out, err = predict("--model=model.npz", "--fused", "--json", "--top=3", image)
    assert code == 0 and err.startswith(f"packed: no blocks: {reason}")
    assert_predicted((model, rule, None), out, folder[1], top=3)


def test_fused_is_refused(models, predict, monkeypatch, no_model):
    code, _, err = predict("--model", models[2]["npz"], "--precision=bfloat16")
    assert code == 2 and "--precision=bfloat16 needs --fused" in err
    code, _, err = predict("--model", models[2]["export"], "--fused")
    assert code == 2 and "is a SavedModel. Leave --fused out" in err
    code, _, err = predict("--model", models[2]["npz"], "--fused", "--precision=mixed_float16")
    assert code == 2 and "float32|mixed_bfloat16|bfloat16" in err

    def assert_needs(reason):
        code, _, err = predict("--model", models[2]["npz"], "--fused")
        assert code == 2
        assert f"error: --fused needs the compiled ops, but {reason}" in err.splitlines()[-1]

    with monkeypatch.context() as patch:
        patch.setenv("VIT_OPS", "reference")
        assert_needs("VIT_OPS=reference chooses TensorFlow's own. Leave --fused out")
    with monkeypatch.context() as patch:
        patch.setattr(dispatch, "_device_type", lambda: "GPU")
        assert_needs("they are for CPUs, and a GPU or TPU is in use. Leave --fused out")
    monkeypatch.setattr(library_file, "candidates", lambda: [])
    monkeypatch.setattr(loader, "_library", None)
    assert_needs("no compiled library has been built")


def test_text(models, folder, predict):
    """One block of lines for each image, in the given order; flags may come after paths."""
    root, images = folder
    paths = [str(root / "e.gif"), str(root / "a.png")]
    code, out, _ = predict(*paths, "--workdir", models[2]["workdir"])
    assert code == 0
    lines = out.splitlines()
    assert [lines[0], lines[6]] == paths
    for first, path in ((1, paths[0]), (7, paths[1])):
        labels, _, probabilities = expected(models, images[path], top=5)
        for rank, (label, probability) in enumerate(zip(labels, probabilities, strict=True)):
            assert lines[first + rank].split() == [str(rank + 1), label, f"{probability:.3%}"]


@pytest.mark.parametrize("names", [["a", "b", "c", "d", "e"], ["a", "b"]])
def test_a_file_names_the_classes(models, folder, predict, tmp_path, names):
    (tmp_path / "names.txt").write_text("\n".join(names))
    flags = ("--model", models[2]["saved_model"], "--labels=names.txt", "--json")
    code, out, err = predict(*flags, folder[0] / "a.png")
    if len(names) < 5:
        assert code == 2 and "--labels has 2 names, the model has 5 classes" in err
    else:
        top = json.loads(out)["top"]
        assert all(entry["label"] == names[entry["index"]] for entry in top)


def test_more_classes_wanted_than_there_are(models, folder, predict):
    root, _ = folder
    _, out, _ = predict("--model", models[2]["npz"], "--json", "--top=99", root / "a.png")
    top = json.loads(out)["top"]
    assert sorted(entry["index"] for entry in top) == list(range(5))
    assert abs(sum(entry["probability"] for entry in top) - 1) < 1e-5


def test_equal_probabilities_come_in_label_order(tmp_path, folder, predict):
    model, preprocessing = make()
    model.head.kernel.assign(tf.zeros_like(model.head.kernel))
    model.head.bias.assign([0.0, 1.0, 0.0, 1.0, 0.0])
    vit_tf.save_npz(model, tmp_path / "flat.npz", preprocessing)
    _, out, _ = predict("--model", tmp_path / "flat.npz", "--json", folder[0] / "a.png")
    top = json.loads(out)["top"]
    assert [entry["index"] for entry in top] == [1, 3, 0, 2, 4]
    assert [entry["label"] for entry in top] == ["1", "3", "0", "2", "4"]


def test_example_images(models, predict):
    """Without an image it predicts held-out digits, which are named after their label."""
    code, out, err = predict("--model", models[2]["npz"], "--json")
    assert code == 0
    assert "no image given" in err
    digits = datasets.load_digits()
    lines = out.splitlines()
    assert len(lines) == 5
    images = {}
    for line in lines:
        name = json.loads(line)["path"]
        index = int(name.split()[3].rstrip(","))
        assert name == f"digits test image {index}, a {digits.target[index]}"
        pixels = np.round(digits.images[index] * 255 / 16).astype(np.uint8)
        images[name] = pixels[..., None].repeat(3, axis=-1)
        assert_predicted(models, line, images, top=5)
    assert len(images) == 5


def test_many_images(models, tmp_path, predict):
    """More than one batch, the last one not full; progress is printed on stderr."""
    images = {}
    for i in range(101):
        path = tmp_path / "many" / f"{i:03}.png"
        path.parent.mkdir(exist_ok=True)
        images[str(path)] = encoded.pixels(6, 7, seed=i)
        path.write_bytes(encoded.encode(images[str(path)], "PNG"))
    code, out, err = predict("--model", models[2]["npz"], "--json", tmp_path / "many")
    assert code == 0
    lines = out.splitlines()
    assert [json.loads(line)["path"] for line in lines] == list(images)
    for line in lines[::20] + lines[-1:]:
        assert_predicted(models, line, images, top=5)
    assert err.splitlines() == [f"predicted {done} of 101 images" for done in (32, 64, 96, 101)]


def test_names_that_are_not_text(models, tmp_path, predict):
    path = os.fsencode(tmp_path) + b"/\xff.png"
    with open(path, "wb") as file:
        file.write(encoded.every_format()[0][0])
    assert predict("--model", models[2]["npz"], os.fsdecode(path))[0] == 0
    code, out, _ = predict("--model", models[2]["npz"], "--json", os.fsdecode(path))
    assert code == 0
    assert os.fsencode(json.loads(out)["path"]) == path


def assert_refused(result, *texts):
    """Checks for exit code 2, one sentence on stderr, no output, no traceback."""
    code, out, err = result
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("error: ")
    for text in texts:
        assert str(text) in line


@pytest.fixture
def no_model(monkeypatch):
    """Fails the test if a model is built: images must be checked first."""

    def built(*_):
        raise AssertionError("a model was built")

    monkeypatch.setattr(model_source, "open_model", built)


@pytest.mark.parametrize("name", encoded.broken())
def test_unreadable_image(models, tmp_path, folder, predict, no_model, name):
    path = tmp_path / "broken.png"
    path.write_bytes(encoded.broken()[name])
    result = predict("--model", models[2]["npz"], folder[0], path)
    assert_refused(result, f"Cannot decode {path}", "JPEG, PNG, WebP")


def test_image_that_claims_too_much(models, tmp_path, predict, no_model):
    path = tmp_path / "huge.gif"
    path.write_bytes(encoded.huge()["GIF"])
    assert_refused(predict("--model", models[2]["npz"], path), path, "megapixels")


def test_paths_without_images(models, tmp_path, predict, no_model):
    model = ("--model", models[2]["npz"])
    assert_refused(predict(*model, tmp_path / "none.png"), "no image or folder at", "none.png")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes.txt").write_text("not an image")
    assert_refused(predict(*model, tmp_path / "folder"), tmp_path / "folder", "no image")
    (tmp_path / "folder" / "gone.png").symlink_to(tmp_path / "none.png")
    assert_refused(predict(*model, tmp_path / "folder"), "gone.png", "not a file")
    os.mkfifo(tmp_path / "pipe.png")
    assert_refused(predict(*model, tmp_path / "pipe.png"), "pipe.png", "not a file")
    with open(tmp_path / "big.png", "wb") as file:
        file.truncate(2**28 + 1)
    assert_refused(predict(*model, tmp_path / "big.png"), "big.png", "256 MB")


def test_image_that_changes_after_the_check(models, folder, predict, monkeypatch):
    monkeypatch.setattr(prediction, "_check_image", lambda path: None)
    path = folder[0] / "a.png"
    path.write_bytes(b"garbage")
    assert_refused(predict("--model", models[2]["export"], path), f"Cannot decode {path}")


def test_models_that_are_no_classifiers(tmp_path, folder, predict):
    image = folder[0] / "a.png"
    assert_refused(predict("--model", tmp_path / "none.npz", image), "no model", "none.npz")
    (tmp_path / "empty").mkdir()
    assert_refused(predict("--model", tmp_path / "empty", image), tmp_path / "empty")
    for name, fields, text in (
        ("headless", {"num_classes": 0}, "no classes"),
        ("unpooled", {"classifier": "unpooled"}, "unpooled"),
    ):
        model, preprocessing = make(fields)
        vit_tf.save_npz(model, tmp_path / f"{name}.npz", preprocessing)
        assert_refused(predict("--model", tmp_path / f"{name}.npz", image), text)


def test_what_lies_beside_a_model_is_not_run(models, tmp_path, folder, monkeypatch, capsys):
    """Python files and libraries in the folder of a model; the library could be loaded."""
    model, preprocessing, paths = models
    context = {"monkeypatch": monkeypatch, "capsys": capsys, "cwd": tmp_path}
    image = folder[0] / "a.png"
    bad = f"open({str(tmp_path / 'ran')!r}, 'w').close()"
    shutil.copytree(paths["saved_model"], tmp_path / "saved")
    shutil.copytree(paths["workdir"], tmp_path / "run")
    vit_tf.save_safetensors(model, tmp_path / "hf", "huggingface", preprocessing)
    for name in ("saved", "run", "hf"):
        root = tmp_path / name
        for place in (root, root / "assets.extra"):
            place.mkdir(exist_ok=True)
            for file in ("load_ops.py", "__init__.py", "sitecustomize.py", "modeling_vit.py"):
                (place / file).write_text(bad)
            shutil.copy(custom_ops.describe()["path"], place / "_vit_ops.so")
        result = run_here("predict", f"--model={root}", image, **context)
        assert result.returncode == 0, result.stderr
        result = run_here("evaluate", f"--model={root}", **context)
        refused = "is a SavedModel, which is for serving only" if name == "saved" else "5 classes"
        assert_user_error(result, refused)
    assert not (tmp_path / "ran").exists()
    loaded = pathlib.Path("/proc/self/maps").read_text()
    assert "_vit_ops.so" in loaded and not re.search(rf"{tmp_path}.*\.so", loaded)


def test_saved_models_of_something_else(tmp_path, folder, predict):
    image = folder[0] / "a.png"
    module = tf.Module()
    module.double = tf.function(lambda x: 2 * x, [tf.TensorSpec([None])], autograph=False)
    tf.saved_model.save(module, str(tmp_path / "plain"))
    assert_refused(predict("--model", tmp_path / "plain", image), tmp_path / "plain", "KeyError")

    spec = tf.TensorSpec([None], tf.string, "image_bytes")
    module.same_name = tf.function(lambda image_bytes: {"text": image_bytes}, [spec])
    signatures = {"serving_bytes_lenient": module.same_name}
    tf.saved_model.save(module, str(tmp_path / "same"), signatures)
    refused = predict("--model", tmp_path / "same", image)
    assert_refused(refused, tmp_path / "same", "KeyError: 'labels'", "export the model again")

    module.labels = tf.function(lambda: {"classes": tf.constant(["a", "b"])}, [])
    signatures["labels"] = module.labels
    tf.saved_model.save(module, str(tmp_path / "text"), signatures)
    refused = predict("--model", tmp_path / "text", image)
    assert_refused(refused, tmp_path / "text", "['text']", "probabilities")

    def three(image_bytes):
        ones = tf.ones([tf.shape(image_bytes)[0], 3])
        return {"probabilities": ones, "valid": ones[:, 0] > 0}

    module.three = tf.function(three, [spec], autograph=False)
    signatures["serving_bytes_lenient"] = module.three
    tf.saved_model.save(module, str(tmp_path / "three"), signatures)
    refused = predict("--model", tmp_path / "three", image)
    assert_refused(refused, tmp_path / "three", "has 2 class names but 3 probabilities")

    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "saved_model.pb").write_bytes(b"\xff" * 99)
    assert_refused(predict("--model", tmp_path / "damaged", image), tmp_path / "damaged")


@pytest.mark.process
def test_as_a_command(models, folder, tmp_path):
    root, images = folder
    model = ("--model", models[2]["npz"])
    result = run_command("predict", *model, "--json", "--top=2", root, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert len(lines) == len(images)
    for line in lines:
        assert_predicted(models, line, images, top=2)
    (tmp_path / "bad.png").write_bytes(b"garbage")
    assert_user_error(run_command("predict", *model, "bad.png", cwd=tmp_path), "decode bad.png")
    assert_user_error(run_command("predict", "--top=0", cwd=tmp_path), "top")

"""Predictions for files, with every kind of model, and error messages."""

import json
import os

import numpy as np
import pytest
import tensorflow as tf
from sklearn import datasets

import vit_tf
from pipelines.inspection import images as inspected
from pipelines.predictions import results
from pipelines.predictions.images import find_images
from tests.pipelines import encoded
from tests.pipelines.process import assert_user_error, run_command
from tests.pipelines.serving.exports import CLASSES, LABELS, make
from tests.vit_tf import tiny


@pytest.fixture(scope="module")
def classifier(models):
    return results.find_classifier(models[2]["npz"])


@pytest.fixture
def read_before(monkeypatch, classifier):
    """The model of the .npz file is not read and traced again."""
    monkeypatch.setattr(results, "find_classifier", lambda *_: classifier)


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


def test_hidden_files_in_folders_are_left_out(tmp_path):
    """As in training; a file that is named itself is read."""
    for path in ("a/1.png", "a/._1.png", ".hidden.jpg", "__MACOSX/a/2.png", ".cache/3.png"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(encoded.encode(encoded.pixels(8, 9, seed=1), "PNG"))
    named = str(tmp_path / ".hidden.jpg")
    found = find_images([str(tmp_path), named])
    assert [image.path for image in found] == [str(tmp_path / "a" / "1.png"), named]
    images, errors = inspected.from_paths([str(tmp_path)])
    assert [image.path for image in images] == [str(tmp_path / "a" / "1.png")] and not errors


# `test_as_a_command` has a .npz file, `test_a_file_names_the_classes` a SavedModel.
@pytest.mark.parametrize(
    ("flag", "form"), [("--model", "keras"), ("--workdir", "workdir"), ("--model", "export")]
)
def test_every_form_of_model(models, folder, predict, flag, form):
    root, images = folder
    code, out, err = predict(flag, models[2][form], "--json", "--top=3", root)
    assert (code, err) == (0, "files that are not read: 1 .txt\n")
    lines = out.splitlines()
    assert [json.loads(line)["path"] for line in lines] == sorted(images)
    for line in lines:
        assert_predicted(models, line, images, top=3)


def test_as_from_python(models, folder, predict):
    root, images = folder
    loaded = vit_tf.load(models[2]["npz"])
    _, out, _ = predict("--model", models[2]["npz"], "--json", "--top=3", root)
    for line, found in zip(out.splitlines(), loaded.predict(sorted(images), top=3), strict=True):
        printed = [(entry["label"], entry["probability"]) for entry in json.loads(line)["top"]]
        assert [label for label, _ in found] == [label for label, _ in printed]
        np.testing.assert_allclose([p for _, p in found], [p for _, p in printed], rtol=1e-5)


def test_fused(models, folder, predict):
    root, images = folder
    code, out, err = predict("--model", models[2]["npz"], "--fused", "--json", "--top=3", root)
    assert code == 0 and "\npacked: 2 of 2 blocks in one op, float32" in err
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
    rule = vit_tf.Preprocessing(image_size=model.config.image_size)
    vit_tf.save_npz(model, tmp_path / "model.npz", rule, CLASSES)
    image = folder[0] / "a.png"
    code, out, err = predict("--model=model.npz", "--fused", "--json", "--top=3", image)
    assert code == 0 and err.startswith(f"packed: no blocks: {reason}")
    assert_predicted((model, rule, None), out, folder[1], top=3)


def test_text(models, folder, predict, read_before):
    """One block of lines for each image, in the given order; flags may come after paths."""
    root, images = folder
    paths = [str(root / "e.gif"), str(root / "a.png")]
    code, out, _ = predict(*paths, "--model", models[2]["npz"])
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


def test_more_classes_wanted_than_there_are(models, folder, predict, read_before):
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


def test_example_images(models, predict, read_before):
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


def test_many_images(models, tmp_path, predict, read_before):
    """More than one batch, the last one not full."""
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
    assert err == ""


def test_names_that_are_not_text(models, tmp_path, predict, read_before):
    path = os.fsencode(tmp_path) + b"/\xff.png"
    with open(path, "wb") as file:
        file.write(encoded.every_format()[0][0])
    assert predict("--model", models[2]["npz"], os.fsdecode(path))[0] == 0
    code, out, _ = predict("--model", models[2]["npz"], "--json", os.fsdecode(path))
    assert code == 0
    assert os.fsencode(json.loads(out)["path"]) == path


def test_json_keeps_names_in_any_script(models, tmp_path, predict, read_before):
    (tmp_path / "花.png").write_bytes(encoded.every_format()[0][0])
    code, out, _ = predict("--model", models[2]["npz"], "--json", tmp_path / "花.png")
    assert code == 0 and '/花.png", "top"' in out


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

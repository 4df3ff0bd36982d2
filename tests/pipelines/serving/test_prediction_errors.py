"""Refused by predictions: images before a model is built, models, and code beside a model."""

import json
import os
import pathlib
import re
import shutil

import pytest
import tensorflow as tf

import custom_ops
import vit_tf
from custom_ops import dispatch, library_file, loader
from tests.pipelines import encoded
from tests.pipelines.process import assert_user_error
from tests.pipelines.serving.exports import make


def assert_refused(result, *texts):
    """Checks for exit code 2, one sentence on stderr, no output, no traceback."""
    code, out, err = result
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("error: ")
    for text in texts:
        assert str(text) in line


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


# `tests/vit_tf/images/test_decoding.py` has all kinds of broken files.
@pytest.mark.parametrize("form", ["npz", "export"])
def test_unreadable_images_do_not_cost_the_other_answers(models, folder, predict, form):
    root, images = folder
    (root / "h_broken.png").write_bytes(encoded.broken()["cut JPEG"])
    (root / "i_gone.png").symlink_to(root / "none.png")
    model = ("--model", models[2][form])
    code, out, err = predict(*model, "--json", "--top=1", root, root / "none.jpg")
    assert code == 1
    results = [json.loads(line) for line in out.splitlines()]
    assert {x["path"] for x in results if "top" in x} == images.keys()
    errors = {x["path"]: x["error"] for x in results if "error" in x}
    assert [os.path.basename(path) for path in errors] == ["h_broken.png", "i_gone.png", "none.jpg"]
    assert f"Cannot decode {root / 'h_broken.png'}" in errors[str(root / "h_broken.png")]
    skipped, *named, last = err.splitlines()
    assert skipped == "files that are not read: 1 .txt"
    assert named == list(errors.values())
    assert last == f"error: 3 of {len(images) + 3} images have no result; they are named above."

    code, out, err = predict(*model, root / "none.jpg", root / "a.png")
    assert code == 1 and out.startswith(str(root / "a.png"))
    assert "There is no image or folder at" in err and "1 of 2 images" in err


@pytest.mark.parametrize("name", ["empty", "cut JPEG"])
def test_unreadable_image(models, tmp_path, predict, name):
    path = tmp_path / "broken.png"
    path.write_bytes(encoded.broken()[name])
    result = predict("--model", models[2]["npz"], path)
    assert_refused(result, f"Cannot decode {path}", "JPEG, PNG, WebP")
    result = predict("--model", models[2]["npz"], path, path)
    assert_refused(result, f"Cannot decode {path}", "None of the 2 images")


def test_image_that_claims_too_much(models, tmp_path, predict):
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
    assert_refused(predict(*model, tmp_path / "folder"), "gone.png", "no image or folder at")
    os.mkfifo(tmp_path / "pipe.png")
    assert_refused(predict(*model, tmp_path / "pipe.png"), "pipe.png", "not a file")
    with open(tmp_path / "big.png", "wb") as file:
        file.truncate(2**28 + 1)
    assert_refused(predict(*model, tmp_path / "big.png"), "big.png", "256 MB")


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


def test_what_lies_beside_a_model_is_not_run(models, tmp_path, folder, command):
    """Python files and libraries in the folder of a model; the library could be loaded."""
    model, preprocessing, paths = models
    image = folder[0] / "a.png"
    bad = f"open({str(tmp_path / 'ran')!r}, 'w').close()"
    shutil.copytree(paths["saved_model"], tmp_path / "saved")
    vit_tf.save_safetensors(model, tmp_path / "hf", "huggingface", preprocessing)
    for name in ("saved", "hf"):
        root = tmp_path / name
        for place in (root, root / "assets.extra"):
            place.mkdir(exist_ok=True)
            for file in ("load_ops.py", "__init__.py", "sitecustomize.py", "modeling_vit.py"):
                (place / file).write_text(bad)
            shutil.copy(custom_ops.describe()["path"], place / "_vit_ops.so")
        result = command("predict", f"--model={root}", image)
        assert result.returncode == 0, result.stderr
        result = command("evaluate", f"--model={root}")
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


def test_no_classes_wanted(predict):
    assert_refused(predict("--top=0"), "top")

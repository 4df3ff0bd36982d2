"""`vit_tf.load` reads every kind of file, and the result classifies images."""

import dataclasses
import json
import warnings
import zipfile

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import vit_tf
from tests.pipelines import encoded
from tests.vit_tf import tiny
from tests.vit_tf.checkpoints import npz_files, safetensors_models
from vit_tf.checkpoints.sidecar import write_sidecar
from vit_tf.images.decoding import decode_image

PREPROCESSING = vit_tf.Preprocessing(
    image_size=(11, 14), resize="resize_small", resize_to=16, mean=(0.4, 0.5, 0.6)
)
CLASSES = vit_tf.Classes(labels=tuple("abcde"), activation="sigmoid")


@pytest.fixture(scope="module")
def donor():
    return tiny.model(seed=3, dtype="mixed_bfloat16")


@pytest.fixture(scope="module")
def loaded():
    """A loaded model in float32, whose classes have names."""
    return vit_tf.LoadedModel(tiny.model(seed=3), PREPROCESSING, CLASSES)


def save_run(model, folder):
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "checkpoints" / "4").mkdir(parents=True)
    vit_tf.save_npz(model, folder / "final.npz", PREPROCESSING, CLASSES)
    return folder


def save(model, kind, folder):
    """Writes a model with its preprocessing and its classes."""
    if kind == "run":
        return save_run(model, folder / "run")
    path = folder / f"model.{kind}"
    if kind == "keras":
        model.save(path)
        write_sidecar(path, PREPROCESSING, CLASSES)
    else:
        vit_tf.save_npz(model, path, PREPROCESSING, CLASSES)
    return path


def assert_equal(model, other):
    for ours, theirs in zip(tiny.values(model), tiny.values(other), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("kind", ["npz", "keras", "run"])
def test_a_file_with_all_that_it_can_store(donor, tmp_path, kind):
    path = save(donor, kind, tmp_path)
    model, preprocessing, classes = vit_tf.load(path)
    assert model.config == donor.config and model.dtype_policy.name == "mixed_bfloat16"
    assert (preprocessing, classes) == (PREPROCESSING, CLASSES)
    assert_equal(model, donor)
    assert vit_tf.load(str(path), dtype="float32").model.dtype_policy.name == "float32"


@pytest.mark.parametrize("kind", ["npz", "keras"])
def test_a_file_without_preprocessing_gets_that_of_the_reference_code(donor, tmp_path, kind):
    path = tmp_path / f"model.{kind}"
    donor.save(path) if kind == "keras" else npz_files.saved(donor, path)
    model, preprocessing, classes = vit_tf.load(path)
    assert preprocessing == vit_tf.Preprocessing(image_size=(11, 14), exif="apply")
    assert classes == vit_tf.Classes()
    assert_equal(model, donor)


def test_a_bare_file_of_published_weights_turns_no_photo_and_is_of_squares(tmp_path, monkeypatch):
    donor = tiny.shared(seed=1, image_size=(16, 16))
    path = npz_files.saved(donor, tmp_path / "ViT-B_16.npz", sidecar=False)
    with pytest.warns(UserWarning, match="assumed a square of 4 x 4"):
        assert vit_tf.load(path).preprocessing.exif == "apply"
    monkeypatch.setattr("vit_tf.loaded.find_file_record", lambda path, count: object())
    assert vit_tf.load(path).preprocessing.exif == "ignore"  # A warning would be an error.


def test_a_folder_of_another_project_says_which_settings_are_assumed(tmp_path):
    donor = tiny.model(seed=1, heads=1, image_size=(12, 12), **safetensors_models.HUGGINGFACE)
    labels = vit_tf.Classes(labels=tuple("abcde"))
    safetensors_models.save(donor, tmp_path, "huggingface", classes=labels)
    model, _, classes = vit_tf.load(tmp_path)  # Without a warning, which would be an error here.
    assert_equal(model, donor)
    assert classes == labels
    (tmp_path / "config.json").unlink()
    with pytest.warns(UserWarning, match=f"{tmp_path}: .*config.json.*erf"):
        vit_tf.load(tmp_path)


@pytest.mark.parametrize("layout", ["huggingface", "timm"])
def test_a_model_of_pytorch_reads_the_pixels_of_pillow_from_a_jpeg(tmp_path, layout):
    fields = {"huggingface": safetensors_models.HUGGINGFACE, "timm": safetensors_models.TIMM}
    donor = tiny.model(seed=1, heads=1, image_size=(12, 12), **fields[layout])
    safetensors_models.save(donor, tmp_path, layout)
    photo = tmp_path / "photo.jpg"
    photo.write_bytes(encoded.encode(encoded.pixels(60, 40), "JPEG", subsampling=2))
    with Image.open(photo) as image:
        pillow = np.asarray(image)
    loaded = vit_tf.load(tmp_path)
    assert loaded.predict(photo) == loaded.predict(pillow)
    # A copy keeps it; a sidecar of an earlier version does not name it, and keeps the fast form.
    vit_tf.save_npz(loaded.model, tmp_path / "a.npz", loaded.preprocessing, loaded.classes)
    assert vit_tf.load(tmp_path / "a.npz").preprocessing == loaded.preprocessing
    sidecar = tmp_path / "a.npz.json"
    values = json.loads(sidecar.read_text())
    assert values["preprocessing"].pop("jpeg") == "accurate"
    sidecar.write_text(json.dumps(values))
    old = vit_tf.load(tmp_path / "a.npz")
    assert old.preprocessing == dataclasses.replace(loaded.preprocessing, jpeg="fast")
    assert old.predict(photo) == old.predict(decode_image(photo.read_bytes()).numpy())
    assert old.predict(photo) != old.predict(pillow)


def test_a_run_that_has_not_ended(donor, tmp_path):
    run = save_run(donor, tmp_path / "run")
    (run / "final.npz").unlink()
    with pytest.raises(ValueError, match=f"has not ended.* -m pipelines.convert {run} model.npz$"):
        vit_tf.load(run)
    (run / "checkpoints" / "4").rmdir()
    with pytest.raises(
        ValueError, match="holds no trained model: expected config.json with final.npz or"
    ):
        vit_tf.load(run)


@pytest.mark.parametrize(("kind", "said"), [("run", "the folder of a run"), ("keras", "Keras")])
def test_weights_for_a_new_model_name_the_function_that_loads_the_stored_one(
    donor, tmp_path, kind, said
):
    path = save(donor, kind, tmp_path)
    with pytest.raises(ValueError, match=rf"{path} is .*{said}.*vit_tf.load"):
        vit_tf.create_model(donor.config, weights=path)


@pytest.mark.parametrize("name", ["a.pth", "a.pt", "a.ckpt", "a.pkl", "pytorch_model.bin"])
def test_pickles_are_refused_with_their_conversion(donor, tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b"PK")
    new = tmp_path / ("model" if name.endswith("bin") else "a")
    said = (
        f"{path} is refused: pickles are not read, since they can run code. .* "
        rf"torch.load\('{path}', 'cpu', weights_only=True\).*, '{new}.safetensors'\)"
    )
    for given in (path, tmp_path) if name.endswith("bin") else (path,):
        with pytest.raises(ValueError, match=said):
            vit_tf.load(given)
        with pytest.raises(ValueError, match=said):
            vit_tf.create_model(donor.config, weights=given)


def test_a_pickle_beside_safetensors_is_not_read(tmp_path):
    donor = tiny.model(seed=1, heads=1, image_size=(12, 12), **safetensors_models.HUGGINGFACE)
    safetensors_models.save(donor, tmp_path, "huggingface")
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK")
    assert_equal(vit_tf.load(tmp_path).model, donor)
    assert_equal(vit_tf.create_model(donor.config, weights=tmp_path), donor)


def test_a_file_is_checked_before_the_model_is_built(donor, tmp_path):
    path = save(donor, "keras", tmp_path)
    with zipfile.ZipFile(path) as file:
        content = {name: file.read(name) for name in file.namelist()}
    top = json.loads(content["config.json"])
    top["config"]["config"]["mlp_size"] = 1 << 18
    with zipfile.ZipFile(path, "w") as file:
        for name, data in (content | {"config.json": json.dumps(top)}).items():
            file.writestr(name, data)
    with pytest.raises(ValueError, match="larger model"):
        vit_tf.load(path)
    write_sidecar(save(donor, "keras", tmp_path), vit_tf.Preprocessing(image_size=(8, 8)))
    with pytest.raises(ValueError, match=r"\(8, 8\), .*\(11, 14"):
        vit_tf.load(path)


def expected(loaded, pixels):
    logits = loaded.model(loaded.preprocessing(pixels)[None])
    return tf.sigmoid(logits)[0].numpy()


def assert_predicted(loaded, result, pixels, top):
    row = expected(loaded, pixels)
    order = np.argsort(-row)[:top]
    assert [label for label, _ in result] == ["abcde"[index] for index in order]
    np.testing.assert_allclose([value for _, value in result], row[order], rtol=1e-5)
    assert all(type(value) is float for _, value in result)


def test_predictions_of_files_and_arrays(loaded, tmp_path):
    pictures = [encoded.pixels(30, 20, seed=1), encoded.pixels(16, 40, seed=2)]
    paths = [tmp_path / "a.png", str(tmp_path / "b.png")]
    for path, pixels in zip(paths, pictures, strict=True):
        tf.io.write_file(str(path), encoded.encode(pixels, "PNG"))
    for images in (paths, tuple(pictures), [paths[0], pictures[1]]):
        results = loaded.predict(images, top=3)
        assert [len(result) for result in results] == [3, 3]
        for result, pixels in zip(results, pictures, strict=True):
            assert_predicted(loaded, result, pixels, top=3)
    for image in (paths[0], pictures[0], tf.constant(pictures[0])):
        (result,) = loaded.predict(image, top=10)
        assert_predicted(loaded, result, pictures[0], top=5)


def test_a_batch_is_larger_than_one_call_of_the_model(loaded):
    images = tiny.images(35, size=(18, 20), dtype="uint8")
    results = loaded.predict(images, top=1)
    assert len(results) == 35
    for result, pixels in zip(results, images, strict=True):
        assert_predicted(loaded, result, pixels, top=1)
    assert loaded.predict([]) == []


def test_classes_without_names_are_indices_and_equal_ones_keep_their_order():
    model = vit_tf.create_model(tiny.config(image_size=8))  # Its head is zero.
    preprocessing = vit_tf.Preprocessing(image_size=(8, 8))
    found = vit_tf.LoadedModel(model, preprocessing, vit_tf.Classes())
    (result,) = found.predict(np.zeros([9, 9, 3], np.uint8), top=2)
    assert [label for label, _ in result] == ["0", "1"]
    assert [value for _, value in result] == pytest.approx([0.2, 0.2])


LOGITS, SIGMOIDS = (-0.78, -0.44, -0.94, 3.0), (0.3143, 0.3917, 0.2809, 0.9526)


@pytest.mark.parametrize("form", ["npz", "keras", "huggingface", "timm"])
@pytest.mark.parametrize("labels", [(), ("cat",), ("dog", "cat")])
def test_one_output_is_a_sigmoid(tmp_path, labels, form):
    """In every format; of two names the second one belongs to the output."""
    fields = {"num_classes": 1, "image_size": (12, 12), **safetensors_models.TIMM}
    model, classes = tiny.shared(**fields), vit_tf.Classes(labels=labels)
    rule, path = vit_tf.Preprocessing(image_size=(12, 12)), tmp_path / f"model.{form}"
    model.head.kernel.assign(tf.zeros_like(model.head.kernel))
    # All of them in one format: writing takes time.
    count = len(LOGITS) if form == "npz" else 1
    for logit, probability in zip(LOGITS[:count], SIGMOIDS[:count], strict=True):
        model.head.bias.assign([logit])
        if form == "keras":
            model.save(path)
            write_sidecar(path, rule, classes)
        elif form == "npz":
            vit_tf.save_npz(model, path, rule, classes)
        else:
            vit_tf.save_safetensors(model, path, form, rule, classes)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            found = vit_tf.load(path)
        said = any("one output: the probability of" in str(x.message) for x in warned)
        assert said == (len(labels) < 2) and found.classes.labels == labels
        ((best, *others),) = found.predict(np.zeros([9, 9, 3], np.uint8))
        if len(labels) < 2:
            assert not others and best == (
                "".join(labels) or "0",
                pytest.approx(probability, abs=1e-4),
            )
        else:
            assert dict([best, *others]) == pytest.approx(
                {"cat": probability, "dog": 1 - probability}, abs=1e-4
            )
            assert best[0] == labels[int(probability > 0.5)]


def test_probabilities_of_one_output_far_from_zero():
    """They keep their digits at both ends, in any rank and dtype of logits."""
    classes = vit_tf.Classes(labels=("dog", "cat"))
    for logits in (np.float32([[40.0], [-40.0]]), tf.constant([[[40.0]], [[-40.0]]])):
        found = classes.to_probabilities(logits).numpy().reshape(2, 2)
        np.testing.assert_allclose(found, [[4.2484e-18, 1], [1, 4.2484e-18]], rtol=1e-4)


@pytest.mark.parametrize(
    ("images", "said"),
    [
        (np.zeros([9, 9, 3]), r"float64 \[9, 9, 3\]"),
        (np.zeros([9, 9], np.uint8), r"uint8 \[9, 9\]"),
        ([np.zeros([1, 9, 9, 3], np.uint8)], r"uint8 \[1, 9, 9, 3\]"),
        (np.zeros([9, 9, 4], np.uint8), r"uint8 \[9, 9, 4\]"),
        (np.zeros([0, 9, 3], np.uint8), r"uint8 \[0, 9, 3\]"),
        (["none.png"], "none.png is not a file"),
    ],
)
def test_what_is_no_image(loaded, images, said):
    with pytest.raises(ValueError, match=said):
        loaded.predict(images)


GRAY = encoded.pixels(30, 20, seed=1)[..., :1].repeat(3, axis=-1)
ARRAYS = {
    "fractions": (GRAY / 255, "0 to 1", "numpy.uint8((255 * image).round())"),
    "half": (np.float16(GRAY / 255), "0 to 1", "numpy.uint8((255 * image).round())"),
    "bits": (GRAY > 99, "0 to 1", "numpy.uint8((255 * image).round())"),
    "signed fractions": (GRAY / 127.5 - 1, "-1 to 1", "numpy.uint8((127.5 * (image + 1)).round())"),
    "float": (np.float32(GRAY), "0 to 255", "numpy.uint8(image.round())"),
    "int64": (np.int64(GRAY), "0 to 255", "numpy.uint8(image.round())"),
    "uint16": (np.uint16(GRAY) * 257, "16 bits", "numpy.uint8(image // 257)"),
    "no channels": (GRAY[..., 0], "no channels", "numpy.stack([image] * 3, axis=-1)"),
    "one channel": (GRAY[..., :1], "one channel", "numpy.repeat(image, 3, axis=-1)"),
    "gray, alpha": (GRAY[..., :2], "with alpha", "numpy.repeat(image[..., :1], 3, axis=-1)"),
    "alpha": (np.pad(GRAY, [(0, 0), (0, 0), (0, 1)]), "alpha channel", "image[..., :3]"),
    "channels first": (np.moveaxis(GRAY, -1, 0), "come first", "numpy.moveaxis(image, 0, -1)"),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_advice_on_arrays_leads_to_the_image(loaded, name):
    array, said, advice = ARRAYS[name]
    for images in (array, [array]):
        with pytest.raises(ValueError, match=said) as caught:
            loaded.predict(images)
        assert str(caught.value).endswith(f"{advice}.") and str(caught.value).count(". ") == 3
    image = eval(advice, {"numpy": np, "image": array})
    (result,) = loaded.predict(image, top=3)
    assert_predicted(loaded, result, np.uint8(255 * array) if name == "bits" else GRAY, top=3)


def test_advice_on_arrays_with_several_causes(loaded):
    for array, words in (
        (np.zeros([2, 9, 9, 4]), ["alpha channel", "0 to 1"]),
        (np.full([9, 9], np.nan), ["no channels", "nan to nan"]),
        (np.full([4, 9, 9], -500), ["9 channels", "-500 to -500"]),
        (np.zeros([9, 9, 3], object), ["are not numbers"]),
    ):
        with pytest.raises(ValueError) as caught:
            loaded.predict(array)
        assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize("name", ["empty", "cut JPEG"])
def test_a_file_that_cannot_be_decoded(loaded, tmp_path, name):
    path = tmp_path / "broken.jpg"
    path.write_bytes(encoded.broken()[name])
    with pytest.raises(ValueError, match=f"Cannot decode {path}. Expected a whole JPEG, PNG"):
        loaded.predict([path])
    path.write_bytes(b"\0\0\0\x18ftypheic" + bytes(99))
    with pytest.raises(ValueError, match=f"Cannot decode {path}: it is a HEIC file; convert it"):
        loaded.predict([path])


@pytest.mark.parametrize("top", [0, -1, 1.5, True, "5"])
def test_the_number_of_classes_in_a_result(loaded, top):
    with pytest.raises(ValueError, match="top .*integer"):
        loaded.predict([], top)


@pytest.mark.parametrize(
    ("fields", "labels", "said"),
    [
        ({"num_classes": 0}, (), "no head"),
        ({"classifier": "unpooled"}, (), "unpooled"),
        ({}, ("a", "b"), "2 classes.* 5"),
    ],
)
def test_models_that_do_not_classify_images(fields, labels, said):
    found = vit_tf.LoadedModel(tiny.shared(**fields), PREPROCESSING, vit_tf.Classes(labels=labels))
    with pytest.raises(ValueError, match=said):
        found.predict([])

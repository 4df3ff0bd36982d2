"""Commands take names of published weights, and `--labels` names classes."""

import json
import os
import shutil

import numpy as np
import pytest

import vit_tf
from pipelines.data.labels.label_file import read_label_file
from pipelines.evaluation.label_map import read_label_map
from pipelines.stored_models import model_source
from tests.pipelines import encoded
from tests.pipelines.process import assert_user_error
from tests.pipelines.tiny import tiny_experiment
from tests.vit_tf import tiny
from tests.vit_tf.checkpoints import npz_files
from vit_tf.config.variants import VARIANTS
from vit_tf.pretrained import cache, download
from vit_tf.pretrained.class_names import class_names
from vit_tf.pretrained.records import RECORDS, WeightsRecord

CLASSES = class_names(1000)


@pytest.fixture(scope="module")
def donor():
    """A model for 1000 classes, of the sizes of the tiny experiment."""
    model = vit_tf.create_model(tiny_experiment().model.config(1000))
    tiny.randomize(model)
    return model


@pytest.fixture
def published(donor, tmp_path, monkeypatch):
    """The file of the name "augreg/tiny" in a folder that is the mirror; it has no sidecar."""
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    monkeypatch.setenv(cache.MIRROR, str(tmp_path))
    (tmp_path / "augreg").mkdir()
    path = npz_files.saved(donor, tmp_path / "augreg" / "tiny.npz", sidecar=False)
    monkeypatch.setitem(VARIANTS, "tiny", donor.config)
    record = WeightsRecord(
        name="augreg/tiny",
        model="tiny",
        url="https://storage.googleapis.com/augreg/tiny.npz",
        listed_size=path.stat().st_size,
        num_classes=1000,
        preprocessing=vit_tf.Preprocessing(image_size=(12, 12)),
        top1=75.0,
    )
    monkeypatch.setitem(RECORDS, record.name, record)
    return path


@pytest.fixture
def photo(tmp_path):
    path = tmp_path / "photo.png"
    path.write_bytes(encoded.encode(encoded.pixels(40, 30), "PNG"))
    return path


def test_predict_prints_words(donor, published, photo, command):
    result = command("predict", "--model=augreg/tiny", "--json", photo)
    assert result.returncode == 0, result.stderr
    assert "downloading augreg/tiny" in result.stderr
    top = json.loads(result.stdout)["top"]
    preprocessing = vit_tf.Preprocessing(image_size=(12, 12))
    best = int(np.argmax(donor(preprocessing(encoded.pixels(40, 30))[None])))
    assert top[0]["index"] == best
    assert [entry["label"] for entry in top] == [CLASSES[entry["index"]] for entry in top]
    # From now on without the mirror.
    published.unlink()
    assert command("predict", "--model=augreg/tiny", "--json", photo).stdout == result.stdout


def test_weights_of_a_name_load_into_another_model(donor, published):
    """As `finetune --init_from` does it."""
    model = vit_tf.create_model(tiny_experiment().model.config(3))
    report = model_source.find("augreg/tiny").load_into(model)
    assert report.reset == ["head/kernel", "head/bias"]
    np.testing.assert_array_equal(model.norm.gamma, donor.norm.gamma)


def test_a_name_of_augreg_that_is_not_in_the_table(tmp_path, monkeypatch, command, photo):
    """Its head has the classes of another data set, which have no names here."""
    name = "augreg/Ti_16-i21k-30ep-lr_0.001-aug_light0-wd_0.1-do_0.0-sd_0.0"
    name += "--kitti-steps_2k-lr_0.01-res_224"
    small = tiny_experiment().model.config(4).replace(patch_size=16, image_size=224)
    monkeypatch.setitem(VARIANTS, "ViT-Ti/16", small)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    monkeypatch.setenv(cache.MIRROR, str(tmp_path / "mirror"))
    (tmp_path / "mirror" / "vit_models" / "augreg").mkdir(parents=True)
    model = vit_tf.create_model(small)
    path = tmp_path / "mirror" / "vit_models" / f"{name}.npz"
    npz_files.saved(model, path, sidecar=False)
    result = command("predict", f"--model={name}", "--json", photo)
    assert result.returncode == 0, result.stderr
    top = json.loads(result.stdout)["top"]
    assert sorted(entry["label"] for entry in top) == ["0", "1", "2", "3"]
    wrong = name.replace("light0", "light9")
    assert_user_error(command("predict", f"--model={wrong}"), "'aug_light9' is not the augment")
    finetune = command("finetune", f"--init_from={wrong}", "--set=data.name=digits")
    assert_user_error(finetune, "'aug_light9' is not the augment")
    loaded = vit_tf.create_model("ViT-Ti/16", weights=name)
    np.testing.assert_array_equal(loaded.norm.gamma, model.norm.gamma)
    assert loaded.config.num_classes == 4


def test_published_files_are_known_by_their_names(published, tmp_path):
    def labels(name):
        shutil.copy(published, tmp_path / name)
        return model_source.find(tmp_path / name).open_model().classes.labels

    assert labels("ViT-B_16.npz") == CLASSES
    assert labels("mine.npz") == ()


def test_folders_of_imagenet_have_the_same_classes(tmp_path, command):
    """The folders of ImageNet are WordNet ids, the model's labels are words."""
    ids = ("n01440764", "n01443537", "n01484850")
    for name in ids:
        (tmp_path / "data" / "test" / name).mkdir(parents=True)
        image = encoded.encode(encoded.pixels(20, 20), "PNG")
        (tmp_path / "data" / "test" / name / "a.png").write_bytes(image)
    model = vit_tf.create_model(tiny_experiment().model.config(3))
    for labels, code in ((CLASSES[:3], 0), (CLASSES[1:4], 2)):
        described = vit_tf.Preprocessing(image_size=(12, 12)), vit_tf.Classes(labels=labels)
        vit_tf.save_npz(model, tmp_path / "model.npz", *described)
        data = ("--set=data.name=folder:data", "--set=data.eval_split=test")
        result = command("evaluate", "--model=model.npz", *data)
        assert result.returncode == code, result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["predict", "--model=sam"], ["Choose one: sam/ViT-S_16, sam/ViT-B_16"]),
        (["evaluate", "--model=augreg/S"], ["augreg/S_16-i21k", "augreg/S_32-i21k"]),
        (["export", "--model=sam/ViT-B_61"], ["Did you mean sam/ViT-B_16"]),
        (["finetune", "--init_from=sam/ViT-S_61"], ["Did you mean sam/ViT-S_16"]),
        (
            ["finetune", "--init_from=google/vit-base-patch16-224"],
            ["Did you mean imagenet21k+imagenet2012/ViT-B_16-224,"],
        ),
        (["predict", "--model=vit_base_patch16_384"], ["Did you mean imagenet21k+imagenet2012/Vi"]),
        (["predict", "--model=augreg/tiny", "--weights=ema"], ["not a workdir"]),
        (["predict", "--model=sam/ViT-S_16"], ["Cannot read sam/ViT-S_16"]),
    ],
    ids=lambda value: value[-1].replace("/", "-"),
)
def test_names_without_weights(published, tmp_path, command, arguments, words):
    before = sorted(os.listdir(tmp_path))
    assert_user_error(command(*arguments), *words)
    assert sorted(set(os.listdir(tmp_path)) - {"keras"}) == before


def test_failed_downloads_are_one_sentence(published, command, monkeypatch):
    whole = published.read_bytes()
    published.write_bytes(whole[:-100])
    assert_user_error(command("predict", "--model=augreg/tiny"), "not a readable .npz")
    published.write_bytes(whole)
    free = shutil.disk_usage("/")._replace(free=10)
    with monkeypatch.context() as patch:
        patch.setattr(download.shutil, "disk_usage", lambda path: free)
        assert_user_error(command("predict", "--model=augreg/tiny"), "KERAS_HOME")
    folder = os.path.dirname(cache.cache_path(RECORDS["augreg/tiny"]))
    assert os.listdir(folder) == ["tiny.npz.lock"]


@pytest.mark.parametrize("put", [False, True])
def test_weights_of_another_model_are_refused(published, command, put):
    """A mirror, or the user, has another file under this name."""
    other = vit_tf.create_model(tiny_experiment("model.layers=1").model.config(1000))
    npz_files.saved(other, published, sidecar=False)
    path = cache.cache_path(RECORDS["augreg/tiny"])
    if put:
        os.makedirs(os.path.dirname(path))
        shutil.copy(published, path)
    result = command("predict", "--model=augreg/tiny")
    assert_user_error(result, f"{path} does not hold a tiny", RECORDS["augreg/tiny"].url)
    assert os.path.exists(path) == put and not os.path.exists(path + ".json")


NAMES = tuple(f"class number {index}é" for index in range(1000))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("names", "\n".join(NAMES) + "\n"),
        ("names.json", json.dumps(NAMES)),
        ("names", "\ufeff" + "\r\n".join(NAMES)),
    ],
    ids=["lines", "json", "windows"],
)
def test_files_of_labels(tmp_path, name, text):
    (tmp_path / name).write_bytes(text.encode())
    assert read_label_file(tmp_path / name) == NAMES


def test_only_newlines_end_a_name(tmp_path):
    """As in a label map, so that one file has one number of classes. A bracket is text."""
    names = ("[a]", "b\x0bc", "d\x0ce", "f\x85g", "h\u2028i")
    (tmp_path / "names").write_text("\n".join(names), encoding="utf-8")
    assert read_label_file(tmp_path / "names") == names
    assert read_label_map(str(tmp_path / "names"), names, names) == (0, 1, 2, 3, 4)


def test_labels_replace_the_names(published, photo, tmp_path, command):
    (tmp_path / "names").write_text("\n".join(NAMES))
    result = command("predict", "--model=augreg/tiny", "--labels=names", "--json", photo)
    for entry in json.loads(result.stdout)["top"]:
        assert entry["label"] == NAMES[entry["index"]]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("names", b"a\nb\n", ["2 names", "1,000 classes"]),
        ("names", b"a\n\nb", ["name 2", "empty"]),
        ("names.json", b'["a", 3]', ["name 2 is '3'"]),
        ("names.json", b'["a"', ["is not JSON"]),
        ("names.json", b'{"a": 3}', ["holds dict", "a JSON list"]),
        ("names.json", b"[]", ["is empty"]),
        ("names", b" \n", ["is empty"]),
        ("names", b"\xff\xfe", ["not UTF-8"]),
        ("names", None, ["is not a file"]),
    ],
)
def test_labels_that_do_not_fit(published, tmp_path, command, name, content, words):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    modules = ("predict", "evaluate", "export") if content == b"a\nb\n" else ("predict",)
    for module in modules:
        result = command(module, f"--model={published}", f"--labels={name}")
        assert_user_error(result, "--labels", *words)

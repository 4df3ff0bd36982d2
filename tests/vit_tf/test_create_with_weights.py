"""`create_model(weights=...)`: fields that are not given are the file's."""

import numpy as np
import pytest

import vit_tf
from tests.vit_tf import tiny
from tests.vit_tf.checkpoints import npz_files
from vit_tf.config.variants import VARIANTS
from vit_tf.pretrained import cache
from vit_tf.pretrained.download import DownloadError
from vit_tf.pretrained.records import RECORDS, WeightsRecord

# The names of a model of each family with the sizes of the tests.
CONFIGS = {
    "Tiny/4": tiny.config(image_size=8),
    "Tiny-R": vit_tf.ResNetConfig(stage_depths=(1,), width=0.5, image_size=32, num_classes=3),
}
TRAINED = {
    "Tiny/4": tiny.config(image_size=8, representation_size=6, head_bias=1.0),
    "Tiny-R": CONFIGS["Tiny-R"],
}


@pytest.fixture(autouse=True)
def known(monkeypatch):
    for name, config in CONFIGS.items():
        monkeypatch.setitem(VARIANTS, name, config)


@pytest.fixture(scope="module")
def donors():
    """A model of each family, far from its initial values."""
    models = {name: vit_tf.create_model(config) for name, config in TRAINED.items()}
    for seed, model in enumerate(models.values()):
        tiny.randomize(model, seed)
    return models


@pytest.fixture
def mirror(donors, tmp_path, monkeypatch):
    """A mirror with published files of the donors, without sidecars, in the collection "tiny"."""
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    monkeypatch.setenv(cache.MIRROR, str(tmp_path / "mirror"))
    (tmp_path / "mirror").mkdir()
    for stem, name, side in (("a", "Tiny/4", 8), ("b", "Tiny-R", 48), ("c", "Tiny-R", 32)):
        path = npz_files.saved(donors[name], tmp_path / "mirror" / f"{stem}.npz", sidecar=False)
        record = WeightsRecord(
            name=f"tiny/{stem}",
            model=name,
            url=f"https://storage.googleapis.com/{stem}.npz",
            listed_size=path.stat().st_size,
            num_classes=donors[name].config.num_classes,
            preprocessing=vit_tf.Preprocessing(image_size=(side, side)),
        )
        monkeypatch.setitem(RECORDS, record.name, record)
    # Names of classes exist for ImageNet only.
    monkeypatch.setattr("vit_tf.weights.names_if_imagenet", lambda count: tuple("abcde"[:count]))
    return tmp_path / "mirror"


def test_the_fields_of_the_file_are_the_default(donors, mirror):
    donor = donors["Tiny/4"]
    model = vit_tf.create_model("Tiny/4", weights=mirror / "a.npz")
    assert model.config.representation_size == 6 and model.config.num_classes == 5
    images = tiny.images(size=(8, 8))
    np.testing.assert_array_equal(model(images), donor(images))


def test_given_fields_replace_those_of_the_file(donors, mirror):
    donor = donors["Tiny/4"]
    given = {"num_classes": 7, "image_size": (8, 12), "dropout": 0.1, "layers": None}
    model = vit_tf.create_model("Tiny/4", weights=mirror / "a.npz", **given)
    config = donor.config.replace(num_classes=7, image_size=(8, 12), dropout=0.1, head_bias=0.0)
    assert model.config == config and model.grid == (2, 3)
    assert not np.any(model.head.kernel)
    for ours, theirs in zip(model.blocks, donor.blocks, strict=True):
        np.testing.assert_array_equal(ours.mlp.dense_0.kernel, theirs.mlp.dense_0.kernel)


def test_a_configuration_has_all_fields(donors, mirror):
    model = vit_tf.create_model(CONFIGS["Tiny/4"], weights=str(mirror / "a.npz"), dtype="float32")
    assert model.config == CONFIGS["Tiny/4"] and model.pre_logits is None
    np.testing.assert_array_equal(model.norm.gamma, donors["Tiny/4"].norm.gamma)


def test_published_names(donors, mirror, capsys):
    model = vit_tf.create_model("Tiny-R", weights="tiny/b")
    # No array shows the size of the images of a ResNet.
    assert model.config.image_size == (48, 48)
    for ours, theirs in zip(tiny.values(model), tiny.values(donors["Tiny-R"]), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert "downloading tiny/b" in capsys.readouterr().err
    with vit_tf.weights.open_checkpoint(cache.cache_path(RECORDS["tiny/b"])) as checkpoint:
        assert checkpoint.preprocessing == vit_tf.Preprocessing(image_size=(48, 48))
        assert checkpoint.classes == vit_tf.Classes(labels=("a", "b", "c"))
    loaded = vit_tf.load("tiny/b")
    assert loaded.preprocessing.image_size == (48, 48) and loaded.classes.labels == tuple("abc")
    assert vit_tf.create_model("Tiny/4", weights="tiny").config.representation_size == 6
    with pytest.raises(ValueError, match="one: tiny/b, tiny/c"):
        vit_tf.create_model("Tiny-R", weights="tiny")
    (mirror / "c.npz").unlink()
    with pytest.raises(DownloadError, match="Cannot read tiny/c"):
        vit_tf.create_model("Tiny-R", weights="tiny/c")


def test_an_existing_path_comes_first(donors, mirror, monkeypatch):
    (mirror / "tiny").mkdir()
    npz_files.saved(donors["Tiny/4"], mirror / "tiny" / "c")
    monkeypatch.chdir(mirror)
    assert vit_tf.create_model("Tiny/4", weights="tiny/c").config == TRAINED["Tiny/4"]


def test_a_file_of_a_far_larger_model_is_refused(donors, mirror):
    """Before the model is built: a head of 300,000 classes in a few kB, and images of 300 MB."""
    with np.load(mirror / "a.npz") as file:
        arrays = dict(file)
    arrays["head/kernel"] = np.zeros([6, 300_000], np.float32)
    arrays["head/bias"] = np.zeros(300_000, np.float32)
    np.savez_compressed(mirror / "many.npz", **arrays)
    with pytest.raises(ValueError, match="many.npz .*not fit"):
        vit_tf.create_model("Tiny/4", weights=mirror / "many.npz")
    path = npz_files.saved(donors["Tiny-R"], mirror / "large.npz")
    sidecar = mirror / "large.npz.json"
    sidecar.write_text(sidecar.read_text().replace("32", "16000"))
    with pytest.raises(ValueError, match=r"\(16000, 16000\)"):
        vit_tf.create_model("Tiny-R", weights=path)


@pytest.mark.parametrize(
    ("name", "file", "fields", "words"),
    [
        ("ViT-Ti/16", "a.npz", {}, ["patch_size is 4 in the file and 16", "Create a Tiny/4"]),
        ("BiT-R50x1", "a.npz", {}, ["another model than BiT-R50x1"]),
        ("Tiny/4", "a.npz", {"layers": 3}, ["layers is 2 in the file and 3"]),
        ("Tiny/4", "none.npz", {}, ["There is no model at", "none.npz"]),
        ("Tiny/4", "a.npz", {"position_embedding": "learned_2d"}, ["position_embedding"]),
    ],
)
def test_weights_that_do_not_fit(mirror, name, file, fields, words):
    with pytest.raises(ValueError) as caught:
        vit_tf.create_model(name, weights=str(mirror / file), **fields)
    for word in words:
        assert word in str(caught.value)

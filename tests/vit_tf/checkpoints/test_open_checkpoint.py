"""An open checkpoint has the same attributes in any format, and each file is read once."""

import json

import numpy as np
import pytest

import vit_tf
from tests.vit_tf import tiny
from tests.vit_tf.checkpoints.npz_files import params_of, saved
from vit_tf.weights import load_checkpoint, model_weights, open_checkpoint

BIT = vit_tf.ResNetConfig(stage_depths=(1,), width=0.5, image_size=32, num_classes=5)
CLASSES = vit_tf.Classes(labels=("a", "b", "c", "d", "e"))


def written(model, folder, layout):
    """The path of a saved model with preprocessing, and that preprocessing."""
    # The other layouts always mean antialiasing.
    preprocessing = vit_tf.Preprocessing(
        image_size=model.config.image_size, antialias=layout != "published"
    )
    if layout == "published":
        path = folder / "model.npz"
        vit_tf.save_npz(model, path, preprocessing, CLASSES)
    else:
        path = folder / "model"
        vit_tf.save_safetensors(model, path, layout, preprocessing, CLASSES)
    return path, preprocessing


@pytest.mark.parametrize("layout", ["published", "huggingface", "timm"])
def test_attributes_of_every_format(layout, tmp_path):
    model, other = tiny.shared(seed=1), tiny.shared(seed=2)
    path, preprocessing = written(model, tmp_path, layout)
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.path == str(path)
        assert checkpoint.layout == layout
        assert checkpoint.config == checkpoint.trained_config == model.config
        assert (checkpoint.preprocessing, checkpoint.classes) == (preprocessing, CLASSES)
        assert checkpoint.grid == model.grid == (2, 3)
        assert checkpoint.notes == []
        expected = params_of(model)
        assert checkpoint.shapes == {key: value.shape for key, value in expected.items()}
        for key, value in expected.items():
            checkpoint.check(key)
            np.testing.assert_array_equal(checkpoint.read(key), value, err_msg=key)
        report = load_checkpoint(other, checkpoint, "keep")
    assert report.path == str(path) and sorted(report.loaded) == sorted(expected)
    for now, value in zip(other.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(now, value)


@pytest.mark.parametrize("layout", ["published", "timm"])
def test_files_are_read_once(layout, tmp_path):
    """All attributes of an open checkpoint come from the files that were opened at first."""
    model, other = tiny.shared(seed=1), tiny.shared(seed=2)
    path, preprocessing = written(model, tmp_path, layout)
    with open_checkpoint(path) as checkpoint:
        for file in tmp_path.rglob("*.*"):
            file.unlink()
        assert checkpoint.config == model.config
        assert checkpoint.preprocessing == preprocessing
        load_checkpoint(other, checkpoint, "keep")
    for now, value in zip(other.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(now, value)


def test_a_published_file_without_sidecar(tmp_path):
    model = tiny.shared(image_size=12)
    with open_checkpoint(saved(model, tmp_path / "model.npz", sidecar=False)) as checkpoint:
        assert checkpoint.trained_config is checkpoint.preprocessing is checkpoint.grid is None
        assert checkpoint.config == model.config


def test_a_resnet_has_no_grid(tmp_path):
    model = vit_tf.create_model(BIT)
    path, _ = written(model, tmp_path, "published")
    assert "grid" not in json.loads((tmp_path / "model.npz.json").read_text())
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.grid is None and checkpoint.config == BIT


@pytest.mark.parametrize("config", [tiny.config(), BIT], ids=["vit", "resnet"])
def test_from_model_to_model(config):
    donor, model = vit_tf.create_model(config), vit_tf.create_model(config)
    tiny.randomize(donor, 1)
    tiny.randomize(model, 2)
    report = load_checkpoint(model, model_weights(donor, "the donor"), "keep")
    assert str(report) == f"loaded {len(model_weights(donor).shapes)} arrays from the donor"
    for now, value in zip(model.get_weights(), donor.get_weights(), strict=True):
        np.testing.assert_array_equal(now, value)


CONTRADICTIONS = {
    "width": ({"hidden_size": 24}, "hidden_size=24.* 12"),
    "depth": ({"layers": 3}, "layers=3"),
    "grid": ({"image_size": [100, 100]}, r"grid=\(25, 25\)"),
    "stem": ({"stem": [1], "patch_size": 1}, "patch_size=1"),
    "family": (BIT.to_dict(), "family 'resnet'"),
}


@pytest.mark.parametrize("kind", CONTRADICTIONS)
def test_a_sidecar_that_contradicts_the_arrays(kind, tmp_path):
    fields, words = CONTRADICTIONS[kind]
    path = saved(tiny.shared(), tmp_path / "model.npz")
    sidecar = json.loads((tmp_path / "model.npz.json").read_text())
    if kind != "family":
        fields = sidecar["config"] | fields
    (tmp_path / "model.npz.json").write_text(json.dumps(sidecar | {"config": fields}))
    with open_checkpoint(path) as checkpoint:
        with pytest.raises(ValueError, match=f"npz.json .*{words}.*delete"):
            checkpoint.config  # noqa: B018 - a property that raises


def test_old_names_in_a_sidecar_are_named(tmp_path):
    """The error is the message of the configuration, with the name of the file."""
    path = saved(vit_tf.create_model(BIT), tmp_path / "model.npz")
    file = tmp_path / "model.npz.json"
    file.write_text(file.read_text().replace("stage_depths", "units"))
    with open_checkpoint(path) as checkpoint:
        with pytest.raises(ValueError, match="units.*stage_depths"):
            checkpoint.config  # noqa: B018 - a property that raises


def test_preprocessing_for_another_model(tmp_path):
    path, _ = written(tiny.shared(), tmp_path, "published")
    file = tmp_path / "model.npz.json"
    sidecar = json.loads(file.read_text())
    sidecar["preprocessing"]["image_size"] = [8, 8]
    file.write_text(json.dumps(sidecar))
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.config == tiny.config()
        with pytest.raises(ValueError, match=r"json .*\(8, 8\), the model"):
            checkpoint.preprocessing  # noqa: B018 - a property that raises

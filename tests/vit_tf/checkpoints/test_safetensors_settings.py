"""Settings of safetensors models from the JSON files beside them, and their defaults."""

import json

import numpy as np
import pytest

import vit_tf
from tests.vit_tf import tiny
from tests.vit_tf.checkpoints import safetensors_models
from tests.vit_tf.checkpoints.safetensors_models import HUGGINGFACE, TIMM
from vit_tf.weights import open_checkpoint


@pytest.mark.parametrize(
    ("changes", "expected", "note"),
    [
        ({}, {"resize": "direct"}, "in the source bilinear"),
        ({"resample": 3}, {"resize": "direct"}, "in the source bicubic"),
        ({"size": 12}, {"resize": "direct"}, "the model reads (12, 12)"),
        ({"size": 20}, {"resize": "direct"}, "gives images of (20, 20)"),
        (
            {"size": {"shortest_edge": 16}, "do_center_crop": True, "crop_size": 12},
            {"resize": "resize_small", "resize_to": 16},
            "bilinear",
        ),
        ({"size": {"shortest_edge": 16}}, {"resize": "direct"}, "without a crop"),
        (
            {"size": {"shortest_edge": 8}, "do_center_crop": True, "crop_size": 12},
            {"resize": "direct"},
            "shorter side of 8",
        ),
    ],
)
def test_preprocessing_of_huggingface(tmp_path, changes, expected, note):
    safetensors_models.save(tiny.model(image_size=12), tmp_path, "huggingface")
    safetensors_models.change(tmp_path / "preprocessor_config.json", **changes)
    _, checkpoint = safetensors_models.load(tmp_path)
    assert checkpoint.preprocessing == vit_tf.Preprocessing(image_size=(12, 12), **expected)
    if changes != {"size": 12}:
        assert any(note in text for text in checkpoint.notes), checkpoint.notes
    else:
        assert not any(note in text for text in checkpoint.notes)


@pytest.mark.parametrize(
    ("changes", "expected", "note"),
    [
        ({}, {"resize": "direct"}, "in the source bilinear"),
        ({"interpolation": "bicubic"}, {"resize": "direct"}, "in the source bicubic"),
        (
            {"crop_pct": 0.9, "crop_mode": "center"},
            {"resize": "resize_small", "resize_to": 13},
            "bilinear",
        ),
        ({"crop_pct": 0.9, "crop_mode": "border"}, {"resize": "direct"}, "'border'"),
        ({"crop_pct": None, "mean": None}, {"resize": "direct"}, "crop_pct is not stated"),
    ],
)
def test_preprocessing_of_timm(tmp_path, changes, expected, note):
    safetensors_models.save(tiny.model(image_size=12), tmp_path, "timm")
    path = tmp_path / "config.json"
    pretrained = json.loads(path.read_text())["pretrained_cfg"] | changes
    safetensors_models.change(path, pretrained_cfg=pretrained)
    _, checkpoint = safetensors_models.load(tmp_path)
    assert checkpoint.preprocessing == vit_tf.Preprocessing(image_size=(12, 12), **expected)
    assert any(note in text for text in checkpoint.notes), checkpoint.notes


@pytest.mark.parametrize("layout", ["huggingface", "timm"])
@pytest.mark.parametrize("resize_to", [12, 13, 14, 37, 256])
def test_crops_come_back(tmp_path, layout, resize_to):
    preprocessing = vit_tf.Preprocessing(
        image_size=(12, 12), resize="resize_small", resize_to=resize_to
    )
    safetensors_models.save(tiny.model(image_size=12), tmp_path, layout, preprocessing)
    _, checkpoint = safetensors_models.load(tmp_path)
    assert checkpoint.preprocessing == preprocessing


def test_labels(tmp_path):
    path = tmp_path / "config.json"
    safetensors_models.save(tiny.model(), tmp_path, "huggingface")
    assert safetensors_models.load(tmp_path)[1].preprocessing.labels == ()  # placeholders
    safetensors_models.change(path, id2label={str(k): f"class {k}" for k in (4, 3, 2, 1, 0)})
    labels = tuple(f"class {k}" for k in range(5))
    assert safetensors_models.load(tmp_path)[1].preprocessing.labels == labels
    safetensors_models.change(
        path, id2label={"0": "one", "7": "two"}, problem_type="multi_label_classification"
    )
    checkpoint = safetensors_models.load(tmp_path)[1]
    assert checkpoint.preprocessing.labels == ()
    assert checkpoint.preprocessing.probabilities == "sigmoid"
    assert any("labels dropped" in note for note in checkpoint.notes)


def test_both_spellings_of_huggingface(tmp_path):
    """Parameter names as in memory since version 5, with and without the prefix."""
    model = tiny.model(**HUGGINGFACE)
    safetensors_models.save(model, tmp_path, "huggingface")
    spellings = [
        ("encoder.layer.", "layers."),
        ("attention.attention.query", "attention.q_proj"),
        ("attention.attention.key", "attention.k_proj"),
        ("attention.attention.value", "attention.v_proj"),
        ("attention.output.dense", "attention.o_proj"),
        ("intermediate.dense", "mlp.fc1"),
        ("output.dense", "mlp.fc2"),
    ]

    def renamed(name):
        for old, new in spellings:
            name = name.replace(old, new)
        return name

    safetensors_models.rewrite(
        tmp_path, lambda tensors: {renamed(k): v for k, v in tensors.items()}
    )
    again, _ = safetensors_models.load(tmp_path)
    for ours, theirs in zip(tiny.values(model), tiny.values(again), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_unused_parts_are_dropped_and_noted(tmp_path):
    safetensors_models.save(tiny.model(), tmp_path, "huggingface")
    extra = {
        "vit.pooler.dense.weight": np.ones([12, 12], "f4"),
        "vit.pooler.dense.bias": np.ones([12], "f4"),
        "vit.embeddings.mask_token": np.ones([1, 1, 12], "f4"),
    }
    safetensors_models.rewrite(tmp_path, lambda tensors: tensors | extra)
    _, checkpoint = safetensors_models.load(tmp_path)
    assert {"pooler dropped", "mask token dropped"} <= set(checkpoint.notes)
    assert checkpoint.config.representation_size is None


@pytest.mark.parametrize("layout", ["huggingface", "timm"])
def test_weights_alone(tmp_path, layout):
    """Settings that no file states get default values, which the notes report."""
    config = tiny.config(hidden_size=128, heads=2, image_size=12)
    safetensors_models.save(vit_tf.create_model(config), tmp_path, layout)
    for path in tmp_path.glob("*.json"):
        path.unlink()
    with open_checkpoint(tmp_path / "model.safetensors") as checkpoint:
        fields = HUGGINGFACE if layout == "huggingface" else TIMM
        assert checkpoint.config == config.replace(**fields)
        notes = " ".join(checkpoint.notes)
    for words in ("erf GELU", "number of heads", "image size", "12 x 12"):
        assert words in notes


def test_class_token_outside_the_positions(tmp_path):
    model = tiny.model(**TIMM)
    safetensors_models.save(model, tmp_path, "timm")

    def without_slot(tensors):
        table = tensors["pos_embed"]
        tensors["cls_token"] = tensors["cls_token"] + table[:, :1]
        return tensors | {"pos_embed": table[:, 1:]}

    safetensors_models.rewrite(tmp_path, without_slot)
    again, _ = safetensors_models.load(tmp_path)
    images = tiny.images()
    np.testing.assert_allclose(again(images), model(images), rtol=1e-5, atol=1e-6)
    assert not np.array(again.position_embedding.table)[0].any()


def test_arguments_that_change_nothing(tmp_path):
    safetensors_models.save(tiny.model(), tmp_path, "timm")
    path = tmp_path / "config.json"
    arguments = json.loads(path.read_text())["model_args"]
    harmless = {
        "norm_layer": None,
        "padding_same": True,
        "drop_path_rate": 0.1,
        "init_values": None,
    }
    safetensors_models.change(path, model_args=arguments | harmless)
    assert safetensors_models.load(tmp_path)[1].config == tiny.config()


def test_tanh_layer_of_old_timm_files(tmp_path):
    model = tiny.model(representation_size=7, **TIMM)
    safetensors_models.save(tiny.model(num_classes=0, **TIMM), tmp_path, "timm")
    safetensors_models.change(tmp_path / "config.json", num_classes=5)
    values = safetensors_models.arrays(model)
    extra = {
        "pre_logits.fc.weight": values["pre_logits/kernel"].T,
        "pre_logits.fc.bias": values["pre_logits/bias"],
        "head.weight": values["head/kernel"].T,
        "head.bias": values["head/bias"],
    }
    safetensors_models.rewrite(tmp_path, lambda tensors: tensors | extra)
    again, checkpoint = safetensors_models.load(tmp_path)
    assert checkpoint.config.representation_size == 7
    np.testing.assert_array_equal(again.pre_logits.kernel, model.pre_logits.kernel)

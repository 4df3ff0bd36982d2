"""Settings of safetensors models from the JSON files beside them, and their defaults."""

import itertools
import json

import numpy as np
import pytest

import vit_tf
from tests.vit_tf import tiny
from tests.vit_tf.checkpoints import safetensors_models
from tests.vit_tf.checkpoints.safetensors_models import BIT, HUGGINGFACE, TIMM
from vit_tf.checkpoints.safetensors.timm.config_json import pretrained_json
from vit_tf.weights import open_checkpoint

IMAGENET = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
# Both sources resize with antialiasing.
BILINEAR = {"interpolation": "bilinear", "antialias": True}
BICUBIC = {"interpolation": "bicubic", "antialias": True}


def crop(rule, side):
    return BILINEAR | {"resize": rule, "resize_to": side}


@pytest.mark.parametrize(
    ("changes", "expected", "note"),
    [
        ({}, BILINEAR, None),
        ({"resample": 3}, BICUBIC, None),
        ({"resample": 4}, {"interpolation": "area"}, "box filter"),
        ({"resample": 1}, BICUBIC, "filter is Lanczos"),
        ({"size": 12}, BILINEAR, None),
        ({"size": 20}, BILINEAR, "gives images of (20, 20)"),
        ({"do_resize": False}, {}, None),
        (
            {"size": {"shortest_edge": 16}, "do_center_crop": True, "crop_size": 12},
            crop("shortest_edge", 16),
            None,
        ),
        ({"size": 16, "do_center_crop": True, "crop_size": 12}, crop("squash", 16), None),
        ({"size": {"shortest_edge": 16}}, BILINEAR, "without a crop"),
        (
            {"size": {"shortest_edge": 8}, "do_center_crop": True, "crop_size": 12},
            BILINEAR,
            "shorter side of 8",
        ),
        (
            {"image_mean": IMAGENET[0], "image_std": IMAGENET[1]},
            BILINEAR | {"mean": IMAGENET[0], "std": IMAGENET[1]},
            None,
        ),
        ({"do_normalize": False}, BILINEAR | {"mean": (0, 0, 0), "std": (1, 1, 1)}, None),
        (
            {"do_rescale": False, "image_mean": [0, 51, 255]},
            BILINEAR | {"mean": (0, 0.2, 1), "std": (0.5 / 255,) * 3},
            None,
        ),
    ],
)
def test_preprocessing_of_huggingface(tmp_path, changes, expected, note):
    safetensors_models.save(tiny.shared(image_size=12), tmp_path, "huggingface")
    safetensors_models.change(tmp_path / "preprocessor_config.json", **changes)
    check_preprocessing(tmp_path, expected, note)


def check_preprocessing(path, expected, note):
    _, checkpoint = safetensors_models.load(path)
    expected = vit_tf.Preprocessing(image_size=(12, 12), jpeg="accurate", **expected)
    assert checkpoint.preprocessing == expected
    assert len(checkpoint.notes) == (note is not None), checkpoint.notes
    assert note is None or note in checkpoint.notes[0]


@pytest.mark.parametrize(
    ("changes", "expected", "note"),
    [
        ({}, BILINEAR, None),
        ({"interpolation": "bicubic"}, BICUBIC, None),
        ({"interpolation": None}, BICUBIC, "interpolation is not stated: assumed bicubic"),
        ({"interpolation": "lanczos"}, BICUBIC, "filter is lanczos"),
        ({"crop_pct": 0.9, "crop_mode": "center"}, crop("center", 13), None),
        ({"crop_pct": 0.9, "crop_mode": None}, crop("center", 13), None),
        ({"crop_pct": 0.9}, crop("squash", 13), None),
        ({"crop_pct": 0.9, "crop_mode": "border"}, BILINEAR, "'border'"),
        ({"crop_pct": None}, BILINEAR, "crop_pct is not stated"),
        ({"mean": None}, BILINEAR, "mean is not stated: assumed 0.5"),
        (
            {"mean": IMAGENET[0], "std": IMAGENET[1]},
            BILINEAR | {"mean": IMAGENET[0], "std": IMAGENET[1]},
            None,
        ),
    ],
)
def test_preprocessing_of_timm(tmp_path, changes, expected, note):
    safetensors_models.save(tiny.shared(image_size=12), tmp_path, "timm")
    path = tmp_path / "config.json"
    pretrained = json.loads(path.read_text())["pretrained_cfg"] | changes
    kept = {name: value for name, value in pretrained.items() if value is not None}
    safetensors_models.change(path, pretrained_cfg=kept)
    check_preprocessing(tmp_path, expected, note)


@pytest.mark.parametrize(
    ("layout", "rules"),
    [("huggingface", ("shortest_edge", "squash")), ("timm", ("center", "squash"))],
)
def test_preprocessing_comes_back(tmp_path, layout, rules):
    sides = (12, 13, 14, 37, 256)
    for rule, resize_to in itertools.product(rules, sides):
        preprocessing = vit_tf.Preprocessing(
            image_size=(12, 12),
            resize=rule,
            resize_to=resize_to,
            interpolation="bilinear" if rule == rules[0] else "bicubic",
            antialias=True,
            mean=IMAGENET[0],
            std=IMAGENET[1],
        )
        model = tiny.shared(image_size=12)
        assert safetensors_models.save(model, tmp_path, layout, preprocessing) == []
        _, checkpoint = safetensors_models.load(tmp_path)
        assert checkpoint.preprocessing == preprocessing
        assert checkpoint.notes == []


@pytest.mark.parametrize("layout", ["huggingface", "timm"])
def test_what_a_layout_does_not_store_is_noted(tmp_path, layout):
    model = tiny.shared(image_size=12)
    for fields, note in [
        ({}, "with antialiasing"),
        ({"interpolation": "area"}, "box filter"),
        ({"antialias": True, "jpeg": "fast"}, "decodes JPEGs as jpeg=accurate does"),
        ({"resize": "resize_small", "resize_to": 13, "antialias": True}, "'resize_small'"),
        ({"exif": "apply", "antialias": True}, "turned by their EXIF orientation"),
    ]:
        preprocessing = vit_tf.Preprocessing(image_size=(12, 12), **fields)
        (received,) = safetensors_models.save(model, tmp_path, layout, preprocessing)
        assert note in received


@pytest.mark.parametrize(("side", "resize_to", "stated"), [(224, 256, 0.875), (224, 248, 0.9)])
def test_crop_fraction_of_timm_is_the_shortest_decimal(tmp_path, side, resize_to, stated):
    preprocessing = vit_tf.Preprocessing(
        image_size=(side, side), resize="center", resize_to=resize_to
    )
    notes = []
    config = tiny.config(image_size=side, patch_size=32)
    written = pretrained_json(
        config,
        preprocessing,
        vit_tf.Classes(),
        notes,
        first_conv="first",
        classifier="head",
        fixed_size=True,
    )
    assert (written["crop_pct"], written["crop_mode"]) == (stated, "center")


def test_labels_are_the_names_of_all_classes_or_none(tmp_path):
    path = tmp_path / "config.json"
    safetensors_models.save(tiny.shared(), tmp_path, "huggingface")
    assert safetensors_models.load(tmp_path)[1].classes.labels == ()  # placeholders
    safetensors_models.change(path, id2label={str(k): f"class {k}" for k in (4, 3, 2, 1, 0)})
    labels = tuple(f"class {k}" for k in range(5))
    assert safetensors_models.load(tmp_path)[1].classes.labels == labels
    safetensors_models.change(
        path, id2label={"0": "one", "7": "two"}, problem_type="multi_label_classification"
    )
    checkpoint = safetensors_models.load(tmp_path)[1]
    assert checkpoint.classes.labels == ()
    assert checkpoint.classes.activation == "sigmoid"
    assert any("labels dropped" in note for note in checkpoint.notes)


def test_both_spellings_of_huggingface(tmp_path):
    """Parameter names as in memory since version 5, with and without the prefix."""
    model = tiny.shared(**HUGGINGFACE)
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


PREFIXES = ["module.", "_orig_mod.", "model.", "timm_model.", "backbone.", "model._orig_mod.net."]


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize(
    ("layout", "config"),
    [
        ("huggingface", tiny.config(**HUGGINGFACE)),
        ("huggingface", tiny.config(num_classes=0)),
        ("timm", tiny.config(**TIMM)),
        ("timm", BIT),
    ],
    ids=["hf", "hf features", "timm", "bit"],
)
def test_prefixes_of_wrappers_are_left_out_and_noted(layout, config, prefix, tmp_path):
    model = tiny.shared_of(config)
    safetensors_models.save(model, tmp_path, layout)
    safetensors_models.rewrite(
        tmp_path, lambda tensors: {prefix + name: value for name, value in tensors.items()}
    )
    again, checkpoint = safetensors_models.load(tmp_path)
    assert [note for note in checkpoint.notes if repr(prefix) in note]
    for ours, theirs in zip(tiny.values(model), tiny.values(again), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    if prefix == "module." and config.num_classes:
        fresh = tiny.shared_of(config, seed=3)
        assert f"note: {checkpoint.notes[-1]}" in str(vit_tf.load_safetensors(fresh, tmp_path))


@pytest.mark.parametrize(
    ("prefix", "of_head", "words"),
    [
        ("backbone.", "", None),
        ("model.backbone.", "model.", None),
        ("model.", "loss.", "'model.'.*loss.head"),
    ],
)
def test_a_head_beside_the_prefix(prefix, of_head, words, tmp_path):
    """The head of a wrapper is read if the model is complete with it."""

    def renamed(name):
        return (of_head if name.startswith("head.") else prefix) + name

    model = tiny.shared(**TIMM)
    safetensors_models.save(model, tmp_path, "timm")
    safetensors_models.rewrite(
        tmp_path, lambda tensors: {renamed(name): value for name, value in tensors.items()}
    )
    if words:
        with pytest.raises(ValueError, match="5.*none.*head.weight "):
            safetensors_models.load(tmp_path)
        safetensors_models.change(tmp_path / "config.json", num_classes=0)
        with pytest.raises(ValueError, match=words):
            safetensors_models.load(tmp_path)
        return
    again, _ = safetensors_models.load(tmp_path)
    for ours, theirs in zip(tiny.values(model), tiny.values(again), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_unused_parts_are_dropped_and_noted(tmp_path):
    safetensors_models.save(tiny.shared(), tmp_path, "huggingface")
    extra = {
        "vit.pooler.dense.weight": np.ones([12, 12], "f4"),
        "vit.pooler.dense.bias": np.ones([12], "f4"),
        "vit.embeddings.mask_token": np.ones([1, 1, 12], "f4"),
    }
    safetensors_models.rewrite(tmp_path, lambda tensors: tensors | extra)
    _, checkpoint = safetensors_models.load(tmp_path)
    assert {"pooler dropped", "mask token dropped"} <= set(checkpoint.notes)
    assert checkpoint.config.representation_size is None


def test_the_encoder_of_a_masked_autoencoder(tmp_path):
    """It has the tensors of a ViT, and a decoder with a mask token and positions of its own."""
    fields = HUGGINGFACE | {"num_classes": 0, "position_embedding": "sincos_2d"}
    model = tiny.shared(**fields)
    safetensors_models.save(model, tmp_path, "huggingface")
    safetensors_models.change(
        tmp_path / "config.json", model_type="vit_mae", architectures=["ViTMAEForPreTraining"]
    )
    decoder = {
        "decoder.mask_token": np.ones([1, 1, 8], "f4"),
        "decoder.decoder_pos_embed": np.ones([1, 7, 8], "f4"),
        "decoder.decoder_layers.0.attention.attention.query.weight": np.ones([8, 8], "f4"),
    }
    safetensors_models.rewrite(
        tmp_path, lambda tensors: {f"vit.{k}": v for k, v in tensors.items()} | decoder
    )
    again, checkpoint = safetensors_models.load(tmp_path)
    assert "decoder dropped" in checkpoint.notes
    assert checkpoint.config == model.config.replace(position_embedding="learned_1d")
    images = tiny.images()
    np.testing.assert_allclose(again(images), model(images), rtol=1e-5, atol=1e-6)


def test_the_distillation_token_of_deit_is_a_register(tmp_path):
    """It has a position, the second row of the table, which becomes part of the register."""
    model = tiny.shared(register_tokens=1, **HUGGINGFACE)
    plain = tiny.shared(seed=1, **HUGGINGFACE)
    safetensors_models.save(plain, tmp_path, "huggingface")
    safetensors_models.change(tmp_path / "config.json", model_type="deit")
    position = np.float32([1, 2, 3] * 4)

    def distilled(tensors):
        table = tensors["vit.embeddings.position_embeddings"]
        tensors["vit.embeddings.position_embeddings"] = np.insert(table, 1, position, axis=1)
        token = np.array(model.register_tokens.tokens)[None] - position
        tensors["vit.embeddings.distillation_token"] = token
        return {name.replace("vit.", "deit."): value for name, value in tensors.items()}

    safetensors_models.rewrite(tmp_path, distilled)
    again, checkpoint = safetensors_models.load(tmp_path)
    assert checkpoint.config == model.config
    values = safetensors_models.arrays(again)
    for key, value in safetensors_models.arrays(plain).items():
        np.testing.assert_array_equal(values[key], value, err_msg=key)
    np.testing.assert_allclose(
        again.register_tokens.tokens, model.register_tokens.tokens, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("layout", ["huggingface", "timm"])
def test_weights_alone(tmp_path, layout):
    """Settings that no file states get default values, which the notes report."""
    config = tiny.config(hidden_size=128, heads=2, image_size=12)
    safetensors_models.save(tiny.shared_of(config), tmp_path, layout)
    for path in tmp_path.glob("*.json"):
        path.unlink()
    with open_checkpoint(tmp_path / "model.safetensors") as checkpoint:
        fields = HUGGINGFACE if layout == "huggingface" else TIMM
        assert checkpoint.config == config.replace(**fields)
        notes = " ".join(checkpoint.notes)
    for words in ("erf GELU", "number of heads", "image size", "12 x 12"):
        assert words in notes


def test_class_token_outside_the_positions(tmp_path):
    model = tiny.shared(**TIMM)
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
    safetensors_models.save(tiny.shared(), tmp_path, "timm")
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
    model = tiny.shared(representation_size=7, **TIMM)
    safetensors_models.save(tiny.shared(num_classes=0, **TIMM), tmp_path, "timm")
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

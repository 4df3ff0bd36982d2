"""Hugging Face transformers, timm and this project compute the same logits from the same files."""

import json

import numpy as np
import pytest

import vit_tf
from tests.peers.environment import run
from tests.vit_tf import tiny
from tests.vit_tf.checkpoints import safetensors_models
from vit_tf.checkpoints.safetensors.timm.config_json import ConfigJson
from vit_tf.checkpoints.safetensors.timm.vit import heads_and_activation
from vit_tf.checkpoints.safetensors.timm.vit_rules import rules
from vit_tf.files.json_object import JsonObject
from vit_tf.loaded import open_file

# Relative to the largest logit.
TOLERANCE = 1e-5

pytestmark = [pytest.mark.peers, pytest.mark.process]

MADE = [
    "hf_classifier",
    "hf_bfloat16_imagenet",
    "hf_pooler",
    "hf_deit",
    "hf_deit_teacher",
    "hf_dinov2",
    "hf_dinov2_gated",
    "hf_dinov2_memory",
    "hf_dinov3",
    "hf_dinov3_gated",
    "hf_dinov3_no_bias",
    "hf_dinov3_memory",
    "hf_mae",
    "hf_registers",
    "hf_registers_memory",
    "hf_siglip",
    "hf_siglip_memory",
    "hf_siglip_resized",
    "hf_siglip_whole",
    "timm_shapes_alone",
    "timm_token",
    "timm_layer_scale",
    "timm_no_bias",
    "timm_gap",
    "timm_map",
    "timm_map_tanh",
    "timm_no_slot",
    "timm_deit",
    "timm_deit_distilled",
    "timm_dinov2",
    "timm_dinov2_resized",
    "timm_reg4_dinov2",
    "timm_reg4_dinov2_resized",
    "timm_registers",
    "timm_registers_gap",
    "timm_registers_map",
    "timm_hybrid_root",
    "timm_hybrid",
    "timm_bit",
]

VIT = dict(hidden_size=48, mlp_size=82, layers=2, heads=3, patch_size=8, image_size=(24, 41))
VIT |= {"num_classes": 5}
TIMM_STEM = {"group_norm_epsilon": 1e-5, "variance_epsilon": 0.0, "deviation_epsilon": 1e-5}
DINOV3 = vit_tf.ViTConfig(
    **VIT | {"num_classes": 0, "image_size": 27},
    layer_scale=0.5,
    position_embedding="rotary_2d",
    key_bias=False,
)
OURS = {
    "hf_token": ("huggingface", vit_tf.ViTConfig(**VIT, layer_norm_epsilon=1e-3)),
    "hf_erf_no_positions": (
        "huggingface",
        vit_tf.ViTConfig(**VIT, activation="gelu_erf", position_embedding="none"),
    ),
    "hf_sincos": ("huggingface", vit_tf.ViTConfig(**VIT, position_embedding="sincos_2d")),
    "hf_pooler": (
        "huggingface",
        vit_tf.ViTConfig(**VIT | {"num_classes": 0}, representation_size=20),
    ),
    "hf_deit": ("deit", vit_tf.ViTConfig(**VIT, register_tokens=1)),
    "hf_deit_teacher": ("deit", vit_tf.ViTConfig(**VIT, classifier="token_distilled")),
    "hf_deit_no_positions": (
        "deit",
        vit_tf.ViTConfig(**VIT, classifier="token_distilled", position_embedding="none"),
    ),
    "hf_dinov2": (
        "dinov2",
        vit_tf.ViTConfig(
            **VIT | {"num_classes": 0, "mlp_size": 96, "image_size": 27}, layer_scale=0.5
        ),
    ),
    "hf_registers": (
        "dinov2_with_registers",
        vit_tf.ViTConfig(
            **VIT | {"num_classes": 0, "mlp_size": 96, "image_size": 27},
            layer_scale=0.5,
            register_tokens=3,
        ),
    ),
    "hf_dinov2_gated": (
        "dinov2",
        vit_tf.ViTConfig(
            **VIT | {"num_classes": 0, "mlp_size": 128, "image_size": 27, "activation": "swiglu"},
            layer_scale=0.5,
        ),
    ),
    "hf_dinov3": ("dinov3", DINOV3.replace(register_tokens=2)),
    "hf_dinov3_gated": ("dinov3", DINOV3.replace(activation="swiglu", rotary_base=50.0)),
    "hf_dinov3_no_bias": ("dinov3", DINOV3.replace(activation="swiglu", qkv_bias=False)),
    "hf_siglip": (
        "siglip",
        vit_tf.ViTConfig(**VIT | {"num_classes": 0, "image_size": 27}, classifier="map"),
    ),
    "timm_registers": ("timm", vit_tf.ViTConfig(**VIT, register_tokens=3)),
    "timm_registers_gap": (
        "timm",
        vit_tf.ViTConfig(**VIT, register_tokens=3, classifier="gap"),
    ),
    "timm_token": ("timm", vit_tf.ViTConfig(**VIT)),
    "timm_deit": ("timm", vit_tf.ViTConfig(**VIT, classifier="token_distilled")),
    "timm_deit_sincos": (
        "timm",
        vit_tf.ViTConfig(
            **VIT | {"activation": "gelu_erf"},
            classifier="token_distilled",
            position_embedding="sincos_2d",
        ),
    ),
    "timm_layer_scale": ("timm", vit_tf.ViTConfig(**VIT, layer_scale=0.5)),
    "timm_no_bias": ("timm", vit_tf.ViTConfig(**VIT, key_bias=False, qkv_bias=False)),
    "timm_no_positions": ("timm", vit_tf.ViTConfig(**VIT, position_embedding="none")),
    "timm_gap": ("timm", vit_tf.ViTConfig(**VIT, classifier="gap", activation="gelu_erf")),
    "timm_map": ("timm", vit_tf.ViTConfig(**VIT, classifier="map")),
    "timm_unpooled": ("timm", vit_tf.ViTConfig(**VIT, classifier="unpooled")),
    "timm_hybrid_root": (
        "timm",
        vit_tf.ViTConfig(
            **VIT | {"image_size": (64, 96), "activation": "gelu_erf"},
            stem={"stage_depths": (), **TIMM_STEM},
        ),
    ),
    "timm_hybrid": (
        "timm",
        vit_tf.ViTConfig(
            **VIT | {"image_size": (50, 34), "patch_size": 1},
            stem={"stage_depths": (1, 2), **TIMM_STEM},
        ),
    ),
    "timm_bit": (
        "timm",
        vit_tf.ResNetConfig(stage_depths=(1, 2), width=2.0, image_size=(50, 34), num_classes=5),
    ),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder of random models that the peers have saved."""
    folder = tmp_path_factory.mktemp("made")
    run("make", folder)
    return folder


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """A folder of random models of this project, loaded by the peers."""
    folder = tmp_path_factory.mktemp("ours")
    for name, (layout, config) in OURS.items():
        model = vit_tf.create_model(config)
        tiny.randomize(model, seed=3)
        crop = {"resize": "resize_small", "resize_to": 60} if name == "hf_token" else {}
        preprocessing = vit_tf.Preprocessing(image_size=config.image_size, **crop)
        safetensors_models.save(model, folder / name, layout, preprocessing)
        images = tiny.images(size=config.image_size, dtype="uint8")
        np.save(folder / name / "images.npy", images)
        np.save(folder / name / "expected.npy", model(images))
        if residual := getattr(config, "stem", config):
            extra = {"stage_depths": getattr(residual, "stage_depths", None)}
            extra |= {"width": int(getattr(residual, "width", 1))}
            (folder / name / "peer.json").write_text(json.dumps(extra))
    run("load", folder)
    return folder


def check_close(received, expected):
    assert received.shape == expected.shape
    largest = np.abs(expected).max()
    assert largest > 0.1
    difference = np.abs(received - expected).max() / largest
    print(f"largest difference {difference:.1e} of the largest logit")
    assert difference <= TOLERANCE


def test_every_model_that_the_peers_make_is_tested(made):
    assert {path.name for path in made.iterdir()} == set(MADE)


@pytest.mark.parametrize("name", MADE)
def test_models_of_the_peers_give_the_same_logits_here(made, name):
    (model, preprocessing, _), _ = open_file(made / name)
    pixels = np.load(made / name / "images.npy")
    if (size := pixels.shape[1:3]) != model.config.image_size:
        assert name.endswith("_resized")
        model = vit_tf.create_model(model.config.replace(image_size=size))
        vit_tf.load_safetensors(model, made / name, "keep", preprocessing)
    images = preprocessing.normalized(pixels)
    check_close(model(images).numpy(), np.load(made / name / "expected.npy"))


@pytest.mark.parametrize("name", OURS)
def test_our_models_give_the_same_logits_there(loaded, name):
    path = loaded / name
    check_close(np.load(path / "received.npy"), np.load(path / "expected.npy"))
    # The other direction: the same arrays; standardized kernels by value.
    model, _ = safetensors_models.load(path)
    check_close(model(np.load(path / "images.npy")).numpy(), np.load(path / "expected.npy"))


def test_architectures_of_timm_are_rejected_or_read_right(tmp_path):
    """Every architecture of timm is rejected, or read with timm's heads, activation and epsilon.

    The files of timm state none of the three.
    """
    run("architectures", tmp_path)
    architectures = json.loads((tmp_path / "architectures.json").read_text())
    assert len(architectures) > 100
    activations = {"GELU": "gelu_erf", "GELUTanh": "gelu_tanh"}
    read, wrong = [], []
    for name, theirs in architectures.items():
        classifier = {"token": "token", "avg": "gap", "map": "map"}.get(theirs["pool"])
        is_distilled = "dist_token" in theirs["names"]
        known = {"head.weight", "head.bias"}
        if classifier:
            config = vit_tf.ViTConfig(
                **VIT | {"hidden_size": theirs["width"], "heads": 1, "layers": 1},
                classifier="token_distilled" if is_distilled else classifier,
                layer_scale=1.0,
                register_tokens=int(not is_distilled),
            )
            known |= {rule.name for rule in rules(config)}
        own = {name for name in theirs["names"] if not name.startswith("blocks.") or ".0." in name}
        if own - known:
            continue  # it has tensors that no model of ours has
        notes = []
        stated = ConfigJson(JsonObject("config.json", {"architecture": name}))
        try:
            received = heads_and_activation(stated, theirs["width"], False, notes)
        except ValueError:
            continue
        read.append(name)
        expected = theirs["heads"], activations.get(theirs["activation"])
        if received != expected or theirs["epsilon"] != 1e-6:
            wrong.append((name, received, theirs))
    print(f"{len(read)} of {len(architectures)} architectures are read: {', '.join(read)}")
    assert wrong == []
    assert {"vit_base_patch16_224", "vit_huge_patch14_224", "vit_base_patch16_gap_224"} <= set(read)
    assert {"deit_tiny_distilled_patch16_224", "deit_base_distilled_patch16_384"} <= set(read)
    assert {"vit_large_patch14_dinov2", "vit_small_patch14_reg4_dinov2"} <= set(read)

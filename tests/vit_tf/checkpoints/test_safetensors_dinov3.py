"""DINOv3 of Hugging Face: the features of its tensors, by the equations."""

import json

import numpy as np
import pytest

import vit_tf
from tests.vit_tf import numpy_vit, tiny
from tests.vit_tf.checkpoints import safetensors_models
from vit_tf.checkpoints.safetensors.safetensors_file import write_safetensors

LAYERS, WIDTH, HIDDEN, HEADS, PATCH, REGISTERS = 2, 12, 20, 3, 4, 2
CONFIG = {
    "model_type": "dinov3_vit",
    "hidden_size": WIDTH,
    "intermediate_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "layer_norm_eps": 1e-3,
    "rope_theta": 9.0,
    "image_size": 32,
    "patch_size": PATCH,
    "num_register_tokens": REGISTERS,
}
# 3 x 2 patches.
PROCESSOR = {"size": {"height": 13, "width": 8}, "resample": 2}


def random_tensors(is_gated):
    """Tensors with the names of published files."""
    tensor, layer = safetensors_models.random_parts()
    found = {
        "embeddings.cls_token": tensor(1, 1, WIDTH),
        "embeddings.register_tokens": tensor(1, REGISTERS, WIDTH),
        **layer("embeddings.patch_embeddings", WIDTH, 3, PATCH, PATCH),
        **layer("norm", WIDTH, center=1.0),
    }
    for index in range(LAYERS):
        block = f"layer.{index}"
        for letter in "qkvo":
            found |= layer(f"{block}.attention.{letter}_proj", WIDTH, WIDTH)
        del found[f"{block}.attention.k_proj.bias"]
        for i in (1, 2):
            found |= layer(f"{block}.norm{i}", WIDTH, center=1.0)
            found[f"{block}.layer_scale{i}.lambda1"] = tensor(WIDTH)
        for name in ("gate_proj", "up_proj")[not is_gated :]:
            found |= layer(f"{block}.mlp.{name}", HIDDEN, WIDTH)
        found |= layer(f"{block}.mlp.down_proj", WIDTH, HIDDEN)
    return found


def params_of(tensors):
    """The tensors in the published layout, converted by hand."""
    params = {
        "cls": tensors["embeddings.cls_token"],
        "registers": tensors["embeddings.register_tokens"],
        "embedding/kernel": tensors["embeddings.patch_embeddings.weight"].transpose(2, 3, 1, 0),
        "embedding/bias": tensors["embeddings.patch_embeddings.bias"],
        "Transformer/encoder_norm/scale": tensors["norm.weight"],
        "Transformer/encoder_norm/bias": tensors["norm.bias"],
    }
    size = WIDTH // HEADS
    for index in range(LAYERS):
        names, block = numpy_vit.block_names(index), f"layer.{index}"
        for ours, theirs in (("norm_attention", "norm1"), ("norm_mlp", "norm2")):
            params[f"{names[ours]}/scale"] = tensors[f"{block}.{theirs}.weight"]
            params[f"{names[ours]}/bias"] = tensors[f"{block}.{theirs}.bias"]
        for part, letter in (("query", "q"), ("key", "k"), ("value", "v"), ("out", "o")):
            shape = (HEADS, size, WIDTH) if part == "out" else (WIDTH, HEADS, size)
            name = f"{block}.attention.{letter}_proj"
            kernel = tensors[f"{name}.weight"].T
            params[f"{names['attention']}/{part}/kernel"] = kernel.reshape(shape)
            if part != "key":
                bias = tensors[f"{name}.bias"]
                bias = bias if part == "out" else bias.reshape(HEADS, size)
                params[f"{names['attention']}/{part}/bias"] = bias
        layers = {"gate_proj": "Gate_0", "up_proj": "Dense_0", "down_proj": "Dense_1"}
        for theirs, ours in layers.items():
            if f"{block}.mlp.{theirs}.bias" in tensors:
                params[f"{names['mlp']}/{ours}/kernel"] = tensors[f"{block}.mlp.{theirs}.weight"].T
                params[f"{names['mlp']}/{ours}/bias"] = tensors[f"{block}.mlp.{theirs}.bias"]
        params[names["attention_scale"]] = tensors[f"{block}.layer_scale1.lambda1"]
        params[names["mlp_scale"]] = tensors[f"{block}.layer_scale2.lambda1"]
    return {key: np.float64(value) for key, value in params.items()}


@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize("names", ["published", "in memory"])
def test_features_match_the_equations(names, is_gated, tmp_path):
    tensors = random_tensors(is_gated)
    start = "model.layer." if names == "in memory" else "layer."
    stored = {name.replace("layer.", start, 1): array for name, array in tensors.items()}
    shapes = {name: array.shape for name, array in stored.items()}
    write_safetensors(tmp_path / "model.safetensors", shapes, stored.get)
    gated = {"use_gated_mlp": True, "hidden_act": "silu"} if is_gated else {}
    for name, values in (("config", CONFIG | gated), ("preprocessor_config", PROCESSOR)):
        (tmp_path / f"{name}.json").write_text(json.dumps(values))
    model, preprocessing, _ = vit_tf.load(tmp_path)
    assert preprocessing.image_size == model.config.image_size == (13, 8)
    images = tiny.images(size=(13, 8))
    expected = numpy_vit.forward(
        params_of(tensors), images, HEADS, epsilon=1e-3, gelu=numpy_vit.gelu_erf, rotary_base=9.0
    )
    received = model(images).numpy()
    assert received.shape == expected.shape
    assert np.abs(received - expected).max() <= 1e-5 * np.abs(expected).max()

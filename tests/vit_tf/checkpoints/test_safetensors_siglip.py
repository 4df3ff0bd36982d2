"""SigLIP's image encoders of Hugging Face: values of the pooled result, names, assumed settings."""

import json

import numpy as np
import pytest

import vit_tf
from tests.vit_tf import numpy_vit, tiny
from tests.vit_tf.checkpoints import safetensors_models
from vit_tf.checkpoints.safetensors.safetensors_file import write_safetensors

LAYERS, WIDTH, HIDDEN, HEADS, PATCH, SIDE = 2, 12, 20, 3, 4, 3
CONFIG = {
    "model_type": "siglip_vision_model",
    "hidden_size": WIDTH,
    "intermediate_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "image_size": SIDE * PATCH,
    "patch_size": PATCH,
}
PROCESSOR = {
    "size": {"height": SIDE * PATCH, "width": SIDE * PATCH},
    "resample": 3,
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
}


def random_tensors():
    """Tensors with the names of published files, without `vision_model.`."""
    tensor, layer = safetensors_models.random_parts()
    found = {
        "embeddings.position_embedding.weight": tensor(SIDE**2, WIDTH),
        **layer("embeddings.patch_embedding", WIDTH, 3, PATCH, PATCH),
        **layer("post_layernorm", WIDTH, center=1.0),
        "head.probe": tensor(1, 1, WIDTH),
        "head.attention.in_proj_weight": tensor(3 * WIDTH, WIDTH),
        "head.attention.in_proj_bias": tensor(3 * WIDTH),
        **layer("head.attention.out_proj", WIDTH, WIDTH),
        **layer("head.layernorm", WIDTH, center=1.0),
        **layer("head.mlp.fc1", HIDDEN, WIDTH),
        **layer("head.mlp.fc2", WIDTH, HIDDEN),
    }
    for index in range(LAYERS):
        block = f"encoder.layers.{index}"
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            found |= layer(f"{block}.self_attn.{name}", WIDTH, WIDTH)
        found |= layer(f"{block}.layer_norm1", WIDTH, center=1.0)
        found |= layer(f"{block}.layer_norm2", WIDTH, center=1.0)
        found |= layer(f"{block}.mlp.fc1", HIDDEN, WIDTH) | layer(f"{block}.mlp.fc2", WIDTH, HIDDEN)
    return found


def write(folder, tensors, config=CONFIG, processor=PROCESSOR):
    shapes = {name: array.shape for name, array in tensors.items()}
    write_safetensors(folder / "model.safetensors", shapes, tensors.get)
    for name, values in (("config", config), ("preprocessor_config", processor)):
        if values is not None:
            (folder / f"{name}.json").write_text(json.dumps(values))
    return folder


def expected_features(tensors, images, epsilon=1e-6):
    """The pooled result in float64, from the equations and names of the layout."""
    tensors = {name: np.float64(value) for name, value in tensors.items()}

    def dense(name, x):
        return x @ tensors[f"{name}.weight"].T + tensors[f"{name}.bias"]

    def norm(name, x):
        x = x - x.mean(axis=-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + epsilon)
        return x * tensors[f"{name}.weight"] + tensors[f"{name}.bias"]

    def mlp(name, x):
        return dense(f"{name}.fc2", numpy_vit.gelu_tanh(dense(f"{name}.fc1", x)))

    def attend(query, key, value):
        found = []
        for head in np.split(np.arange(WIDTH), HEADS):
            q, k, v = (x[..., head] for x in (query, key, value))
            powers = np.exp(q @ k.transpose(0, 2, 1) / np.sqrt(WIDTH // HEADS))
            found.append(powers / powers.sum(axis=-1, keepdims=True) @ v)
        return np.concatenate(found, axis=-1)

    kernel = tensors["embeddings.patch_embedding.weight"].transpose(2, 3, 1, 0)
    patches = {"embedding/kernel": kernel, "embedding/bias": 0.0}
    x = numpy_vit.embed(patches, images) + tensors["embeddings.patch_embedding.bias"]
    x = x + tensors["embeddings.position_embedding.weight"]
    for index in range(LAYERS):
        block = f"encoder.layers.{index}"
        normed, attention = norm(f"{block}.layer_norm1", x), f"{block}.self_attn"
        parts = (dense(f"{attention}.{letter}_proj", normed) for letter in "qkv")
        x = x + dense(f"{attention}.out_proj", attend(*parts))
        x = x + mlp(f"{block}.mlp", norm(f"{block}.layer_norm2", x))
    x = norm("post_layernorm", x)
    weights = np.split(tensors["head.attention.in_proj_weight"], 3)
    biases = np.split(tensors["head.attention.in_proj_bias"], 3)
    probe = np.repeat(tensors["head.probe"], len(x), axis=0)
    parts = [y @ w.T + b for y, w, b in zip((probe, x, x), weights, biases, strict=True)]
    pooled = dense("head.attention.out_proj", attend(*parts))
    return (pooled + mlp("head.mlp", norm("head.layernorm", pooled)))[:, 0]


def check(model, tensors, **options):
    images = tiny.images(size=model.config.image_size)
    received, expected = model(images).numpy(), expected_features(tensors, images, **options)
    assert received.shape == expected.shape
    assert np.abs(received - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("prefix", ["", "vision_model."])
def test_features_match_the_equations(prefix, tmp_path):
    tensors = random_tensors()
    write(tmp_path, {prefix + name: array for name, array in tensors.items()})
    model, preprocessing, _ = vit_tf.load(tmp_path)
    assert (model.config.classifier, model.config.activation) == ("map", "gelu_tanh")
    assert preprocessing == vit_tf.Preprocessing(
        image_size=(12, 12), interpolation="bicubic", antialias=True, jpeg="accurate"
    )
    check(model, tensors)


def test_a_whole_model_is_read_without_its_text_encoder(tmp_path):
    """Its settings are a section, which states only what differs from the layout's defaults."""
    tensors = random_tensors()
    stored = {f"vision_model.{name}": array for name, array in tensors.items()}
    stored["text_model.encoder.layers.0.layer_norm1.weight"] = np.ones([3], np.float32)
    stored["logit_scale"] = stored["logit_bias"] = np.ones([1], np.float32)
    of_images = {key: value for key, value in CONFIG.items() if key != "model_type"}
    of_images["layer_norm_eps"] = 1e-3
    config = {"model_type": "siglip", "text_config": {}, "vision_config": of_images}
    with pytest.warns(UserWarning, match="text encoder dropped"):
        model = vit_tf.load(write(tmp_path, stored, config)).model
    check(model, tensors, epsilon=1e-3)


def test_a_folder_without_settings_is_read_as_published(tmp_path):
    write(tmp_path, random_tensors(), config=None, processor=None)
    with pytest.warns(UserWarning, match="direct bicubic resize") as caught:
        model, preprocessing, _ = vit_tf.load(tmp_path)
    assert "tanh GELU and epsilon 1e-06" in str(caught[0].message)
    assert "number of heads is assumed: 1" in str(caught[0].message)
    assert (model.config.heads, preprocessing.interpolation) == (1, "bicubic")


def test_positions_for_other_images_are_resized_bicubically(tmp_path):
    write(tmp_path, random_tensors())
    model = tiny.shared(classifier="map", num_classes=0, image_size=(16, 8), layers=LAYERS)
    report = vit_tf.load_safetensors(model, tmp_path)
    assert "resized positions from 3 x 3 to 4 x 2, bicubic" in str(report).splitlines()

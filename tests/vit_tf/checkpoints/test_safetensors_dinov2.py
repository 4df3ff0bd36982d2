"""DINOv2 of Hugging Face, also with registers: values, resized positions, what is refused."""

import json

import numpy as np
import pytest

import vit_tf
from tests.vit_tf import numpy_vit, tiny
from tests.vit_tf.checkpoints import safetensors_models
from vit_tf.checkpoints.safetensors.safetensors_file import write_safetensors
from vit_tf.layers import resize_position_table

LAYERS, WIDTH, HIDDEN, HEADS, PATCH, SIDE = 2, 12, 24, 3, 4, 5
CONFIG = {
    "model_type": "dinov2",
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "mlp_ratio": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-3,
    "layerscale_value": 0.25,
    "image_size": SIDE * PATCH,
    "patch_size": PATCH,
}
# A crop of 3 x 2 patches.
PROCESSOR = {
    "size": {"shortest_edge": 16},
    "do_center_crop": True,
    "crop_size": {"height": 13, "width": 8},
    "resample": 3,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}
REGISTERS = "embeddings.register_tokens"
WITH_REGISTERS = CONFIG | {"model_type": "dinov2_with_registers", "num_register_tokens": 3}
NEW_NAMES = {
    "attention.attention.query": "attention.q_proj",
    "attention.attention.key": "attention.k_proj",
    "attention.attention.value": "attention.v_proj",
    "attention.output.dense": "attention.o_proj",
}


def random_tensors(registers=0, is_gated=False):
    """Tensors with the names of published files."""
    tensor, layer = safetensors_models.random_parts()
    found = {
        "embeddings.cls_token": tensor(1, 1, WIDTH),
        "embeddings.mask_token": tensor(1, WIDTH),
        "embeddings.position_embeddings": tensor(1, 1 + SIDE**2, WIDTH),
        **layer("embeddings.patch_embeddings.projection", WIDTH, 3, PATCH, PATCH),
        **layer("layernorm", WIDTH, center=1.0),
    }
    for index in range(LAYERS):
        block = f"encoder.layer.{index}"
        for name in NEW_NAMES:
            found |= layer(f"{block}.{name}", WIDTH, WIDTH)
        for i in (1, 2):
            found |= layer(f"{block}.norm{i}", WIDTH, center=1.0)
            found[f"{block}.layer_scale{i}.lambda1"] = tensor(WIDTH)
        if is_gated:
            found |= layer(f"{block}.mlp.weights_in", 2 * HIDDEN, WIDTH)
            found |= layer(f"{block}.mlp.weights_out", WIDTH, HIDDEN)
            continue
        found |= layer(f"{block}.mlp.fc1", HIDDEN, WIDTH) | layer(f"{block}.mlp.fc2", WIDTH, HIDDEN)
    return found | ({REGISTERS: tensor(1, registers, WIDTH)} if registers else {})


def write(folder, tensors, config=CONFIG, processor=PROCESSOR):
    folder.mkdir(exist_ok=True)
    shapes = {name: array.shape for name, array in tensors.items()}
    write_safetensors(folder / "model.safetensors", shapes, tensors.get)
    for name, values in (("config", config), ("preprocessor_config", processor)):
        if values is not None:
            (folder / f"{name}.json").write_text(json.dumps(values))
    return folder


def params_of(tensors, grid):
    """The tensors in the published layout, converted by hand, with positions for a grid."""
    params = {"cls": tensors["embeddings.cls_token"]}
    # The values of the resizes are compared with others' in tests/vit_tf/layers/test_positions.py.
    table, method = tensors["embeddings.position_embeddings"][0], "bicubic"
    if REGISTERS in tensors:
        params["registers"], method = tensors[REGISTERS], "bicubic_antialias"
    resized = resize_position_table(table, (SIDE, SIDE), grid, 1, method)
    params[numpy_vit.POSITIONS] = resized[None]
    projection = "embeddings.patch_embeddings.projection"
    params["embedding/kernel"] = tensors[f"{projection}.weight"].transpose(2, 3, 1, 0)
    params["embedding/bias"] = tensors[f"{projection}.bias"]

    def norm(key, name):
        params[f"{key}/scale"] = tensors[f"{name}.weight"]
        params[f"{key}/bias"] = tensors[f"{name}.bias"]

    def dense(key, name, *shape):
        kernel, bias = tensors[f"{name}.weight"].T, tensors[f"{name}.bias"]
        params[f"{key}/kernel"] = kernel.reshape(shape or kernel.shape)
        params[f"{key}/bias"] = bias.reshape(shape[1:]) if len(shape) == 3 else bias

    norm("Transformer/encoder_norm", "layernorm")
    for index in range(LAYERS):
        block, names = f"encoder.layer.{index}", numpy_vit.block_names(index)
        norm(names["norm_attention"], f"{block}.norm1")
        norm(names["norm_mlp"], f"{block}.norm2")
        size = WIDTH // HEADS
        for part in ("query", "key", "value"):
            name = f"{block}.attention.attention.{part}"
            dense(f"{names['attention']}/{part}", name, WIDTH, HEADS, size)
        kernel = tensors[f"{block}.attention.output.dense.weight"].T
        params[f"{names['attention']}/out/kernel"] = kernel.reshape(HEADS, size, WIDTH)
        params[f"{names['attention']}/out/bias"] = tensors[f"{block}.attention.output.dense.bias"]
        if f"{block}.mlp.weights_in.bias" in tensors:
            dense(f"{names['mlp']}/Dense_1", f"{block}.mlp.weights_out")
            # The gate comes first.
            for name, part in (("Gate_0", slice(HIDDEN)), ("Dense_0", slice(HIDDEN, None))):
                kernel, bias = (tensors[f"{block}.mlp.weights_in.{x}"] for x in ("weight", "bias"))
                params[f"{names['mlp']}/{name}/kernel"] = kernel[part].T
                params[f"{names['mlp']}/{name}/bias"] = bias[part]
        else:
            dense(f"{names['mlp']}/Dense_0", f"{block}.mlp.fc1")
            dense(f"{names['mlp']}/Dense_1", f"{block}.mlp.fc2")
        params[names["attention_scale"]] = tensors[f"{block}.layer_scale1.lambda1"]
        params[names["mlp_scale"]] = tensors[f"{block}.layer_scale2.lambda1"]
    return {key: np.float64(value) for key, value in params.items()}


def expected_features(tensors, images):
    grid = (images.shape[1] // PATCH, images.shape[2] // PATCH)
    params = params_of(tensors, grid)
    return numpy_vit.forward(params, images, HEADS, epsilon=1e-3, gelu=numpy_vit.gelu_erf)


def check_close(received, expected):
    assert received.shape == expected.shape
    assert np.abs(received - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.filterwarnings("ignore:.*mask token dropped")
@pytest.mark.parametrize("registers", [0, 3])
@pytest.mark.parametrize("names", ["published", "in memory", "in a classifier", "gated"])
def test_features_match_the_equations(names, registers, tmp_path):
    is_gated, config = names == "gated", WITH_REGISTERS if registers else CONFIG
    tensors, config = random_tensors(registers, is_gated), config | {"use_swiglu_ffn": is_gated}
    stored = dict(tensors)
    if names == "in memory":
        for old, new in NEW_NAMES.items():
            stored = {name.replace(old, new): array for name, array in stored.items()}
    if names == "in a classifier":
        stored = {f"{config['model_type']}.{name}": array for name, array in stored.items()}
    model, preprocessing, _ = vit_tf.load(write(tmp_path, stored, config))
    assert (model.config.image_size, model.config.layer_scale) == ((13, 8), 0.25)
    assert model.config.register_tokens == registers
    assert preprocessing == vit_tf.Preprocessing(
        image_size=(13, 8),
        resize="shortest_edge",
        resize_to=16,
        interpolation="bicubic",
        antialias=True,
        jpeg="accurate",
        mean=PROCESSOR["image_mean"],
        std=PROCESSOR["image_std"],
    )
    images = tiny.images(size=(13, 8))
    check_close(model(images).numpy(), expected_features(tensors, images))


@pytest.mark.parametrize(("registers", "how"), [(0, "bicubic"), (3, "bicubic with antialiasing")])
def test_positions_for_other_images_come_from_the_whole_table(registers, how, tmp_path):
    """As fine-tuning with `--init_from` does; the table of the crop is no step between."""
    tensors = random_tensors(registers)
    write(tmp_path, tensors, WITH_REGISTERS if registers else CONFIG)
    fields = safetensors_models.DINOV2 | {"layer_norm_epsilon": 1e-3, "image_size": (24, 16)}
    fields["register_tokens"] = registers
    model = tiny.shared(seed=4, **fields)
    preprocessing = vit_tf.Preprocessing(
        image_size=(24, 16), mean=PROCESSOR["image_mean"], std=PROCESSOR["image_std"]
    )
    report = vit_tf.load_safetensors(model, tmp_path, preprocessing=preprocessing)
    assert report.resized == ((5, 5), (6, 4))
    assert f"resized positions from 5 x 5 to 6 x 4, {how}" in str(report).splitlines()
    images = tiny.images(size=(24, 16))
    check_close(model(images).numpy(), expected_features(tensors, images))


def test_a_folder_without_settings_is_read_as_published(tmp_path):
    tensors = random_tensors()
    del tensors["embeddings.mask_token"]
    write(tmp_path, tensors, config=None, processor=None)
    with pytest.warns(UserWarning, match="processor of the published models") as caught:
        model, preprocessing, _ = vit_tf.load(tmp_path)
    assert "number of heads is assumed: 1" in str(caught[0].message)
    assert (preprocessing.image_size, preprocessing.resize_to) == ((224, 224), 256)
    assert model.config.grid == (56, 56) and model.config.layer_norm_epsilon == 1e-6


@pytest.mark.parametrize(
    ("changes", "tensor", "reason"),
    [
        ({"model_type": "dinov2_with_registers"}, None, "model_type is 'dinov2_with_registers'"),
        ({"use_swiglu_ffn": True}, None, "use_swiglu_ffn is True. Expected false"),
        ({"image_size": [20, 28]}, None, "image_size is .20, 28.. Expected a square"),
        ({"image_size": 24}, None, "25 patch positions, and images of 24 x 24 have 6 x 6"),
        ({"layerscale_value": 0}, None, "layerscale_value is 0. Expected a number above 0"),
        ({"hidden_size": 24}, None, "hidden_size is 24. Expected 12"),
        ({}, REGISTERS, "model_type is 'dinov2'. Expected 'dinov2_with_registers'"),
        ({}, "encoder.layer.0.mlp.gate_proj.weight", "gated MLP has the names .* in memory"),
        ({}, "encoder.layer.0.mlp.weights_in.weight", "use_swiglu_ffn is None. Expected true"),
        ({}, "classifier.weight", "class token and the mean of the patches"),
    ],
)
def test_models_that_are_refused(changes, tensor, reason, tmp_path):
    tensors = random_tensors()
    if tensor:
        tensors[tensor] = np.zeros([3, WIDTH], np.float32)
    with pytest.raises(ValueError, match=reason):
        vit_tf.load(write(tmp_path, tensors, CONFIG | changes))

"""Logits, losses and gradients of the paper's own code (google-research/vision_transformer)."""

import json

import numpy as np
import pytest
import tensorflow as tf

import vit_tf
from tests.tolerances import assert_golden, golden_excess
from tests.vit_tf import numpy_vit
from vit_tf.checkpoints.published.vit_positions import POSITIONS
from vit_tf.families import FAMILIES
from vit_tf.weights import published_entries

NAMES = ("vit_token", "vit_gap", "vit_token_prelogits", "vit_token_resized")


def read_description(file):
    return json.loads(str(file["description"]))


def canonical(file, prefix):
    """Arrays of the file under `prefix` by canonical key."""
    arrays = {key[len(prefix) :]: file[key] for key in file if key.startswith(prefix)}
    found = (family.published.canonical_names(arrays) for family in FAMILIES)
    keys = next(keys for keys in found if keys is not None)
    return {key: arrays[name] for name, key in keys.items()}


@pytest.fixture
def load(golden, tmp_path):
    """`load(name, **fields)`: the arrays of a golden file, and the configured model with them."""

    def create(name, **fields):
        file = golden(name)
        described = read_description(file)
        model = vit_tf.create_model(
            vit_tf.ViTConfig(
                hidden_size=described["hidden_size"],
                mlp_size=described["mlp_dim"],
                heads=described["num_heads"],
                layers=described["num_layers"],
                patch_size=described["patch_size"],
                classifier=described["classifier"],
                representation_size=described["representation_size"],
                image_size=described["image_size"],
                num_classes=described["num_classes"],
                **fields,
            )
        )
        path = tmp_path / f"{name}.npz"
        # The reference's arrays unchanged: Linen names under the prefix "params/".
        np.savez(path, **{key: file[key] for key in file if key.startswith("params/")})
        pretrained = described.get("pretrained_image_size", described["image_size"])
        height, width = (pretrained,) * 2 if isinstance(pretrained, int) else pretrained
        grid = (height // described["patch_size"], width // described["patch_size"])
        vit_tf.load_npz(model, path, head="keep", source_grid=grid)
        return file, model

    return create


@pytest.mark.parametrize("name", NAMES)
def test_parameter_count(load, name):
    file, model = load(name)
    resized = (model.grid[0] * model.grid[1] - 16) * 48 if name == "vit_token_resized" else 0
    assert model.count_params() == read_description(file)["params"] + resized


@pytest.mark.parametrize("name", NAMES)
def test_logits_and_loss(load, name):
    file, model = load(name)
    logits = model(file["images"], training=False)
    assert_golden(logits, file["logits"])
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(file["labels"], logits)
    assert_golden(tf.reduce_mean(losses), file["loss"])


@pytest.mark.parametrize("name", NAMES)
def test_stages_give_the_same_logits(load, name):
    file, model = load(name)
    features, _ = model.encode(model.embed(file["images"]))
    assert_golden(model.classify(features), file["logits"])


@pytest.mark.parametrize("name", NAMES)
def test_gradients(load, name):
    file, model = load(name)
    entries = published_entries(model)
    with tf.GradientTape() as tape:
        logits = model(file["images"], training=True)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(file["labels"], logits)
        loss = tf.reduce_mean(losses)
    gradients = tape.gradient(loss, [entry.variable.value for entry in entries])
    expected = canonical(file, "grads/")
    largest = max(np.abs(array).max() for array in expected.values())
    compared = set()
    for entry, gradient in zip(entries, gradients, strict=True):
        parts = entry.unpack(tf.convert_to_tensor(gradient).numpy())
        for key, part in zip(entry.shapes, parts, strict=True):
            assert_golden(part, expected[key], largest, key)
            compared.add(key)
    assert compared == expected.keys()


def test_resized_position_table(load):
    file, model = load("vit_token_resized")
    assert model.grid == (6, 6)
    table = np.array(model.position_embedding.table.value)
    assert_golden(table[None], file["resized_pos_embedding"])
    class_row = canonical(file, "params/")[POSITIONS][0, 0]
    np.testing.assert_array_equal(table[0], class_row)


@pytest.mark.parametrize("name", NAMES)
def test_numpy_forward_agrees_with_the_reference(golden, name):
    """The oracle of the other tests also agrees with the paper's code."""
    file = golden(name)
    described = read_description(file)
    params = {key: value.astype(np.float64) for key, value in canonical(file, "params/").items()}
    if "resized_pos_embedding" in file:
        table = numpy_vit.resize_positions(params[POSITIONS][0], (4, 4), (6, 6), prefix=1)
        params[POSITIONS] = table[None]
        assert_golden(params[POSITIONS], file["resized_pos_embedding"])
    logits = numpy_vit.forward(
        params, file["images"], described["num_heads"], described["classifier"]
    )
    assert_golden(logits, file["logits"])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "field, mistake", [("activation", "gelu_erf"), ("layer_norm_epsilon", 1e-3)]
)
def test_known_mistakes_are_beyond_the_tolerance(load, name, field, mistake):
    """The erf form of GELU, and the default epsilon of Keras' LayerNorm."""
    file, model = load(name, **{field: mistake})
    assert golden_excess(model(file["images"]), file["logits"]) > 2


def test_half_pixel_resize_is_beyond_the_tolerance(load):
    file, model = load("vit_token_resized")
    table = canonical(file, "params/")[POSITIONS][0]
    grid = tf.image.resize(table[1:].reshape(4, 4, -1), (6, 6), "bilinear")
    wrong = np.concatenate([table[:1], grid.numpy().reshape(36, -1)])
    assert golden_excess(wrong[None], file["resized_pos_embedding"]) > 100
    model.position_embedding.table.assign(wrong)
    assert golden_excess(model(file["images"]), file["logits"]) > 10


@pytest.mark.parametrize("name", NAMES)
def test_column_major_tokens_are_beyond_the_tolerance(load, name):
    file, model = load(name)
    rows, columns = model.grid
    patches = tf.reshape(model.embed(file["images"]), [-1, rows, columns, 48])
    wrong = tf.reshape(tf.transpose(patches, [0, 2, 1, 3]), [-1, rows * columns, 48])
    assert golden_excess(model.classify(model.encode(wrong)[0]), file["logits"]) > 10


def test_packing_key_before_query_is_beyond_the_tolerance(load):
    """Swapping query and key transposes the attention weights."""
    file, model = load("vit_token")
    for block in model.blocks:
        for variable in (block.attention.qkv.kernel, block.attention.qkv.bias):
            query, key, value = np.split(np.array(variable.value), 3, axis=-1)
            variable.assign(np.concatenate([key, query, value], axis=-1))
    assert golden_excess(model(file["images"]), file["logits"]) > 10

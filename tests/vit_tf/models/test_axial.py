"""Axial models: gradients against the NumPy equations, transposed images, pooling, errors."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import vit_tf
from tests.tolerances import assert_close
from tests.vit_tf import numpy_vit, tiny

GRADIENTS = {
    "axial": tiny.AXIAL,
    "axial token": {"axial": True, "activation": "gelu_erf"},
    "2-D positions": {"position_embedding": "learned_2d"},
}


def oracle(model, images):
    config = model.config
    gelu = {"gelu_tanh": numpy_vit.gelu_tanh, "gelu_erf": numpy_vit.gelu_erf}[config.activation]
    params = numpy_vit.published(model)
    return numpy_vit.forward(params, images, config.heads, config.classifier, gelu=gelu)


@pytest.mark.parametrize("form", GRADIENTS)
def test_gradients_are_the_slopes_of_the_equations(form):
    """Along a random direction of every variable, against central differences of NumPy's output.

    Without a head, which computes in float32 under every policy.
    """
    model = tiny.model(dtype="float64", layers=1, num_classes=0, **GRADIENTS[form])
    images = tiny.images(2, dtype="float64")
    rng = np.random.default_rng(0)
    factors = rng.normal(size=(2, 12))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(images, training=True) * factors)
    variables = model.trainable_variables
    gradients = tape.gradient(loss, [variable.value for variable in variables])
    step = 1e-5
    for variable, gradient in zip(variables, gradients, strict=True):
        value, direction = np.array(variable), rng.normal(size=variable.shape)
        sums = []
        for side in (step, -step):
            variable.assign(value + side * direction)
            sums.append((oracle(model, images) * factors).sum())
        variable.assign(value)
        slope = (sums[0] - sums[1]) / (2 * step)
        assert np.sum(gradient * direction) == pytest.approx(slope, rel=1e-6, abs=1e-6), (
            variable.path
        )


def transposed(model):
    """A model for transposed images, with row and column blocks exchanged."""
    config = model.config
    other = vit_tf.create_model(config.replace(image_size=config.image_size[::-1]))
    for old, new in zip(
        model.blocks, [b for pair in pairs(other) for b in pair[::-1]], strict=True
    ):
        new.set_weights(old.get_weights())
    for name in ("norm", "head"):
        getattr(other, name).set_weights(getattr(model, name).get_weights())
    kernel, bias = model.patch_embedding.get_weights()
    other.patch_embedding.set_weights([kernel.transpose(1, 0, 2, 3), bias])
    if config.position_embedding == "learned_1d":
        table = np.array(model.position_embedding.table).reshape(*model.grid, -1)
        other.position_embedding.table.assign(table.transpose(1, 0, 2).reshape(6, -1))
    return other


def pairs(model):
    """The row and the column block of each layer."""
    return list(zip(model.blocks[::2], model.blocks[1::2], strict=True))


@pytest.mark.parametrize(
    "classifier, positions", [("gap", "none"), ("token", "none"), ("gap", "learned_1d")]
)
def test_rows_of_a_transposed_image_are_columns(classifier, positions):
    """With its column blocks before its row blocks, the transposed model gives the same logits."""
    model = tiny.shared(axial=True, classifier=classifier, position_embedding=positions)
    other, images = transposed(model), tiny.images()
    tokens = other.position_embedding(other.embed(images.transpose(0, 2, 1, 3)))
    tokens = tf.reshape(tokens, [3, 3, 2, 12])
    for row, column in pairs(other):
        tokens, _ = column(tokens)
        tokens, _ = row(tokens)
    logits = other.classify(other.norm(tf.reshape(tokens, [3, 6, 12])))
    expected = np.asarray(model(images), np.float64)
    assert_close(logits, expected, "float32", "model")
    # The order of the blocks matters.
    assert np.abs(other(images.transpose(0, 2, 1, 3)) - expected).max() > 1e-3


def test_vectors_of_rows_and_columns_are_exchanged_by_a_transposition():
    model = tiny.shared(position_embedding="learned_2d", classifier="gap")
    other = tiny.shared(position_embedding="learned_2d", classifier="gap", image_size=(14, 11))
    other.position_embedding.x.assign(model.position_embedding.y)
    other.position_embedding.y.assign(model.position_embedding.x)
    table = np.array(model.position_embedding.table).reshape(2, 3, 2, 6)
    again = np.array(other.position_embedding.table).reshape(3, 2, 2, 6)
    np.testing.assert_array_equal(again, table.transpose(1, 0, 2, 3)[:, :, ::-1])


def test_a_patch_reaches_its_row_first():
    """One row block and one column block: what a patch changes after each of them."""
    model = tiny.model(axial=True, classifier="gap", layers=1, position_embedding="none")
    patches = np.array(model.embed(tiny.images(1))).reshape(1, 2, 3, 12)
    changed = patches.copy()
    changed[0, 1, 2] += np.arange(12)
    row, column = model.blocks
    after_row = np.abs(row(patches)[0] - row(changed)[0]).max(axis=-1)[0] > 0
    np.testing.assert_array_equal(after_row, [[False] * 3, [True] * 3])
    after_column = np.abs(column(patches)[0] - column(changed)[0]).max(axis=-1)[0] > 0
    np.testing.assert_array_equal(after_column, [[False, False, True]] * 2)


def test_token_is_the_first_cell():
    model = tiny.shared(axial=True)
    assert model.class_token is None
    features, _ = model.encode(model.embed(tiny.images()))
    assert features.shape == (3, 6, 12)
    np.testing.assert_array_equal(model.pool(features), features[:, 0])


def test_names_of_blocks():
    model = tiny.shared(**tiny.AXIAL)
    names = ["block_0_row", "block_0_column", "block_1_row", "block_1_column"]
    assert [block.name for block in model.blocks] == names
    features = keras.Model(model.input, model.get_layer("block_0_column").output)
    assert features(tiny.images()).shape == (3, 2, 3, 12)
    assert "2 axial layers" in model.config.summary()


@pytest.mark.parametrize("taps", [("entropy",), ("class_row", "distance")])
def test_taps_are_refused(taps):
    model = tiny.shared(**tiny.AXIAL)
    with pytest.raises(ValueError, match="full .*attention_maps") as caught:
        model.encode(model.embed(tiny.images()), taps=taps)
    assert "\n" not in str(caught.value)


def test_axial_is_a_bool():
    for value in (1, "true", None):
        with pytest.raises(TypeError, match="axial .*true or false"):
            tiny.config(axial=value)


def test_any_vit_can_be_axial():
    sizes = {"hidden_size": 12, "mlp_size": 20, "layers": 1, "heads": 3, "num_classes": 5}
    model = vit_tf.create_model("ViT-B/16", axial=True, image_size=(32, 48), **sizes)
    assert model.config.classifier == "token"
    assert model.config.position_embedding == "learned_1d"
    hybrid = vit_tf.create_model("R+ViT-Ti/16", axial=True, image_size=(32, 96), **sizes)
    assert (hybrid.grid, len(hybrid.blocks)) == ((1, 3), 2)
    for created in (model, hybrid):
        assert created(tiny.images(2, created.config.image_size)).shape == (2, 5)

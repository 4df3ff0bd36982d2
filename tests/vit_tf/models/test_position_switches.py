"""Gradients of every kind and injection of positions against differences of the equations."""

import numpy as np
import pytest
import tensorflow as tf

from tests.vit_tf import numpy_vit, tiny

# Fields, and the number of position tables that a model of two blocks trains.
SWITCHES = {
    "relative": ({"position_embedding": "relative"}, 2),
    "every layer": ({"position_injection": "every_layer"}, 2),
    "every layer shared": ({"position_injection": "every_layer_shared"}, 1),
    "fixed in every layer": (
        {"position_embedding": "sincos_2d", "position_injection": "every_layer_shared"},
        0,
    ),
    "rotary": ({"position_embedding": "rotary_2d", "qk_norm": True, "activation": "swiglu"}, 0),
}
STEP = 1e-5


def loss_and_gradients(model, images, weights):
    """A weighted sum of the logits, and its gradients by path of the variable."""
    variables = {variable.path: variable.value for variable in model.trainable_variables}
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(images, training=True) * weights)
    return loss, tape.gradient(loss, variables)


def published_gradients(model, gradients):
    """The gradients of the positions and of the queries' biases, by published key."""
    found = {}
    for index, layer in enumerate(model.position_layers()):
        for variable in layer.trainable_variables:
            key = numpy_vit.block_positions(index) if index else numpy_vit.POSITIONS
            found[key] = gradients[variable.path][None]
    for index, block in enumerate(model.blocks):
        name = numpy_vit.block_names(index)["attention"]
        bias = gradients[block.attention.qkv.bias.path]
        heads, width = model.config.heads, model.config.hidden_size
        found[f"{name}/query/bias"] = tf.reshape(bias[:width], [heads, -1])
        if model.config.qk_norm:
            found[f"{name}/key_ln/bias"] = gradients[block.attention.norm_key.beta.path]
        if model.config.activation == "swiglu":
            mlp, size = numpy_vit.block_names(index)["mlp"], model.config.mlp_size
            found[f"{mlp}/Gate_0/bias"] = gradients[block.mlp.dense_0.bias.path][:size]
        if block.attention.relative_positions:
            table = block.attention.relative.table
            found[f"{name}/relative_embedding"] = gradients[table.path]
    return {key: np.asarray(value) for key, value in found.items()}


@pytest.mark.parametrize(
    ("switch", "implementation"),
    [("relative", "reference"), *((switch, "compiled") for switch in SWITCHES)],
)
def test_gradients_match_differences_of_the_equations(switch, implementation):
    """Each number of a position table, and of a query, which the relative logits read too."""
    fields, tables = SWITCHES[switch]
    model = tiny.model(dtype="float64", implementation=implementation, **fields)
    config, images = model.config, tiny.images(1, dtype="float64")
    weights = np.random.default_rng(1).normal(size=5)
    params = numpy_vit.published(model)
    patches = numpy_vit.embed(params, images)

    def loss():
        features, _ = numpy_vit.encode(
            params,
            patches,
            config.heads,
            config.classifier,
            grid=config.grid,
            **numpy_vit.options_of(config),
        )
        return (numpy_vit.classify(params, features, config.classifier) * weights).sum()

    found, gradients = loss_and_gradients(model, images, weights)
    assert float(found) == pytest.approx(loss(), abs=1e-5)  # the head is float32
    gradients = published_gradients(model, gradients)
    assert sum("bias" not in key for key in gradients) == tables
    for key, gradient in gradients.items():
        array, differences = params[key], np.zeros(params[key].shape)
        for place in np.ndindex(array.shape):
            value = array[place]
            array[place] = value + STEP
            above = loss()
            array[place] = value - STEP
            differences[place] = (above - loss()) / (2 * STEP)
            array[place] = value
        largest = np.abs(differences).max()
        assert largest > 1e-3, key
        np.testing.assert_allclose(gradient, differences, rtol=0, atol=1e-6 * largest, err_msg=key)

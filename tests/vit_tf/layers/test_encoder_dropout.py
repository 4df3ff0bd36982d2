"""Where the random layers of an encoder are, and at which rates."""

import numpy as np
import pytest
import tensorflow as tf

from tests.tolerances import assert_close
from tests.vit_tf import numpy_vit, tiny
from vit_tf.layers import Dropout, RandomContext, StochasticDepth

RANDOM = {"dropout": 0.3, "attention_dropout": 0.4, "stochastic_depth": 0.5}


def mask(layer, shape):
    """The factors that the layer applies to its input at step 0."""
    with RandomContext(0, 0, tf.range(shape[0])):
        return np.asarray(layer(tf.ones(shape), training=True))


def random_layers(model):
    """The Dropout and StochasticDepth layers by their positions in docs/paper.md A.7."""
    places = {"embedding": model.embedding_dropout}
    for index, block in enumerate(model.blocks):
        places |= {
            f"{index}/weights": block.attention.weights_dropout,
            f"{index}/attention": block.attention_output_dropout,
            f"{index}/attention branch": block.attention_branch,
            f"{index}/hidden": block.mlp.hidden_dropout,
            f"{index}/mlp": block.mlp.output_dropout,
            f"{index}/mlp branch": block.mlp_branch,
        }
    return places


def full_weights(weights, axis):
    """Attention along an axis of a 2 x 3 grid, `[B, lines, heads, n, n]`, as `[B, heads, 6, 6]`."""
    full = np.zeros((len(weights), 3, 2, 3, 2, 3))
    for line in range(weights.shape[1]):
        if axis == 2:
            full[:, :, line, :, line, :] = weights[:, line]
        else:
            full[:, :, :, line, :, line] = weights[:, line]
    return full.reshape(-1, 3, 6, 6)


@pytest.mark.parametrize(
    "fields",
    [
        {"representation_size": 7},
        tiny.AXIAL,
        {"position_embedding": "relative"},
        {"position_injection": "every_layer", "classifier": "gap"},
        {"position_injection": "every_layer_shared"},
    ],
    ids=str,
)
def test_dropout_is_where_the_paper_puts_it(fields):
    """Training equals the equations with the masks that the layers draw.

    Positions of a layer are added after the dropout of the embedding (docs/paper.md D.1).
    """
    model = tiny.shared(**RANDOM, **fields)
    images, tokens = tiny.images(4), model.num_prefix_tokens + 6
    shapes = {"weights": (4, 3, tokens, tokens), "hidden": (4, tokens, 20)}
    masks = {
        place: mask(layer, shapes.get(place.split("/")[-1], (4, tokens, 12)))
        for place, layer in random_layers(model).items()
    }
    if model.config.axial:
        for index, (axis, shape) in enumerate([(2, (4, 2, 3, 3, 3)), (1, (4, 3, 3, 2, 2))] * 2):
            drawn = mask(model.blocks[index].attention.weights_dropout, shape)
            masks[f"{index}/weights"] = full_weights(drawn, axis)
    # The first block always keeps its branches.
    assert (masks["0/attention branch"] == 1).all() and (masks["0/mlp branch"] == 1).all()
    last = f"{len(model.blocks) - 1}/"
    often = [name for name in masks if "branch" not in name or name.startswith(last)]
    assert all((masks[name] == 0).any() for name in often)
    with RandomContext(0, 0, tf.range(4)):
        outputs = model(images, training=True)
    params = numpy_vit.published(model)
    config = model.config
    expected = numpy_vit.forward(
        params, images, 3, config.classifier, masks=masks, injection=config.position_injection
    )
    assert_close(outputs, expected, "float32", "model")


@pytest.mark.parametrize("fields", [{"layers": 4}, {"layers": 2, "axial": True}])
def test_random_layers_share_no_stream(fields):
    model = tiny.shared(**RANDOM, **fields)
    layers = [x for x in tiny.all_layers(model) if isinstance(x, Dropout | StochasticDepth)]
    assert sorted(map(id, layers)) == sorted(map(id, random_layers(model).values()))
    assert len({layer.stream for layer in layers}) == len(layers) == 1 + 4 * 6


@pytest.mark.parametrize("fields, last", [({"layers": 5}, 4), ({"layers": 2, "axial": True}, 3)])
def test_rates_at_every_position(fields, last):
    """All positions have one dropout rate; the stochastic depth rate rises with the block."""
    places = random_layers(tiny.shared(**RANDOM, **fields))
    for place, layer in places.items():
        kind = place.split("/")[-1]
        if "branch" in kind:
            assert layer.rate == pytest.approx(0.5 * int(place[0]) / last)
        else:
            assert layer.rate == {"weights": 0.4}.get(kind, 0.3)
    single = random_layers(tiny.shared(stochastic_depth=0.5, layers=1))
    assert single["0/mlp branch"].rate == single["0/attention branch"].rate == 0


def test_without_rates_training_is_inference():
    model = tiny.shared()
    images = tiny.images()
    np.testing.assert_array_equal(model(images, training=True), model(images, training=False))
    assert len(model.variables) == len(model.trainable_variables)

"""Recomputed activations: every gradient is the same bit for bit, and files do not know of them."""

import numpy as np
import pytest
import tensorflow as tf

import vit_tf
from tests.vit_tf import tiny
from vit_tf.layers import RandomContext

DROPPED = {"dropout": 0.2, "attention_dropout": 0.1, "stochastic_depth": 0.3}
BLOCKS = {"recompute": "blocks"}


def gradients(model, call):
    """Gradients of a loss in a graph, with respect to the variables that are trained."""
    variables = [variable.value for variable in model.trainable_variables]

    @tf.function
    def step(images):
        with RandomContext(3, 5, tf.range(3)):
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(variables)
                loss = tf.reduce_sum(tf.square(tf.cast(call(model, images), tf.float32)))
        return tape.gradient(loss, variables)

    return [gradient.numpy() for gradient in step(tf.constant(tiny.images()))]


def logits(model, images):
    return model(images, training=True)


def stages(model, images):
    return model.encode(model.embed(images), training=True)[0][:, 1:]


@pytest.mark.parametrize(
    ("fields", "dtype", "call"),
    [
        (DROPPED | {"position_embedding": "relative"}, "mixed_bfloat16", logits),
        (tiny.AXIAL | {"layers": 1}, "float32", logits),
        (
            {"position_embedding": "rotary_2d", "qk_norm": True, "num_classes": 0},
            "float32",
            stages,
        ),
        (
            {"position_injection": "every_layer", "implementation": "reference", "num_classes": 0},
            "mixed_float16",
            stages,
        ),
    ],
    ids=["relative", "axial", "rotary", "stages"],
)
def test_gradients_are_the_same_bit_for_bit(fields, dtype, call):
    kept, again = (tiny.model(dtype=dtype, **fields | own) for own in ({}, BLOCKS))
    for model in (kept, again):
        model.blocks[1].mlp.trainable = False
    wanted, received = gradients(kept, call), gradients(again, call)
    assert len(wanted) == len(received) == len(kept.trainable_variables)
    for variable, one, other in zip(kept.trainable_variables, wanted, received, strict=True):
        np.testing.assert_array_equal(one, other, err_msg=variable.path)
    used = [np.abs(x).max() > 0 for x in wanted]
    assert sum(used) > len(used) - 6  # All but the head and the pooling, in `stages`.


def test_keras_fit_draws_each_mask_once():
    """Without a `RandomContext` the masks come from seed generators, whose states change."""
    models = [tiny.model(layers=1, **DROPPED, **own) for own in ({}, BLOCKS)]
    for model in models:
        seeds = [v for v in model.non_trainable_variables if v.name == "seed_generator_state"]
        assert len(seeds) == 5  # stochastic depth keeps the first block
        for index, seed in enumerate(seeds):
            seed.assign([index, 0])
        model.compile("sgd", "mse", jit_compile=False)
        model.fit(tiny.images(6), np.ones((6, 5), np.float32), batch_size=3, verbose=0)
        assert seeds[-1].numpy().tolist() != [len(seeds) - 1, 0]
    for one, other in zip(*map(tiny.values, models), strict=True):
        np.testing.assert_array_equal(one, other)


def test_files_do_not_know_of_it():
    config = tiny.config(**BLOCKS)
    assert config.to_dict() == tiny.config().to_dict()
    assert vit_tf.ViTConfig.from_dict(config.to_dict() | BLOCKS) == tiny.config()
    with pytest.raises(ValueError, match="recompute .*none, blocks"):
        tiny.config(recompute="all")

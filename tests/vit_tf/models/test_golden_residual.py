"""Hybrids and BiT ResNets against the code that trained the published weights."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import vit_tf
from tests.tolerances import assert_golden, golden_excess
from tests.vit_tf import tiny
from tests.vit_tf.checkpoints.npz_files import infer_config
from tests.vit_tf.models.test_golden import canonical, read_description
from vit_tf.layers import GroupNorm, StandardizedConv
from vit_tf.weights import published_entries

HYBRIDS = ("hybrid_root_only", "hybrid_two_stages")
BIT = "bit_tiny"


@pytest.fixture
def load(golden, tmp_path):
    """`load(name)`: the arrays of a golden file, and a model built from the arrays alone."""

    def create(name):
        file = golden(name)
        path = tmp_path / f"{name}.npz"
        np.savez(path, **{key: file[key] for key in file if key.startswith("params/")})
        model = vit_tf.create_model(infer_config(path).replace(image_size=64))
        vit_tf.load_npz(model, path, head="keep")
        return file, model

    return create


def loss_and_gradients(file, model):
    """The mean cross-entropy, and its gradient by published key."""
    entries = published_entries(model)
    with tf.GradientTape() as tape:
        logits = model(file["images"], training=True)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(file["labels"], logits)
        loss = tf.reduce_mean(losses)
    gradients = tape.gradient(loss, [entry.variable.value for entry in entries])
    by_key = {}
    for entry, gradient in zip(entries, gradients, strict=True):
        by_key |= dict(zip(entry.shapes, entry.unpack(gradient.numpy()), strict=True))
    return loss, by_key


@pytest.mark.parametrize("name", (*HYBRIDS, BIT))
def test_configuration_count_logits_and_loss(load, name):
    file, model = load(name)
    described = read_description(file)
    assert model.count_params() == described["params"]
    if name == BIT:
        assert list(model.config.stage_depths) == described["block_units"]
        assert model.config.width == described["width_factor"]
    else:
        assert list(model.config.stem.stage_depths) == described["resnet"]["num_layers"]
        assert model.config.stem.width == described["resnet"]["width_factor"]
    assert_golden(model(file["images"]), file["logits"])
    assert_golden(loss_and_gradients(file, model)[0], file["loss"])


@pytest.mark.parametrize("name", HYBRIDS)
def test_gradients_of_hybrids(load, name):
    file, model = load(name)
    _, gradients = loss_and_gradients(file, model)
    expected = canonical(file, "grads/")
    assert gradients.keys() == expected.keys()
    largest = max(np.abs(array).max() for array in expected.values())
    for key, gradient in gradients.items():
        assert_golden(gradient, expected[key].reshape(gradient.shape), largest, key)


def test_gradient_norms_of_bit(load):
    file, model = load(BIT)
    _, gradients = loss_and_gradients(file, model)
    prefix = "grad_norms/"
    expected = {key[len(prefix) :]: file[key] for key in file if key.startswith(prefix)}
    assert gradients.keys() == expected.keys()
    for key, gradient in gradients.items():
        assert_golden(np.linalg.norm(gradient), expected[key], name=key)


def layers(model, kind):
    return [layer for layer in tiny.all_layers(model) if isinstance(layer, kind)]


def change(kind, only=lambda layer: True, **fields):
    """A mistake: changes `fields` of the layers of a kind."""

    def make(model):
        changed = [layer for layer in layers(model, kind) if only(layer)]
        assert changed
        for layer in changed:
            for name, value in fields.items():
                setattr(layer, name, value)

    return make


def is_root(layer):
    return layer.kernel_size == 7


def is_strided(layer):
    return layer.kernel_size == 3 and layer.strides == 2


def no_norm_on_the_shortcut(model):
    for unit in model.stem.unit_layers:
        if unit.gn_proj is not None:
            unit.gn_proj.call = lambda inputs: inputs


def stride_on_the_first_convolution(model):
    for unit in model.stem.unit_layers:
        unit.conv1.strides, unit.conv2.strides = unit.conv2.strides, unit.conv1.strides


def shortcut_from_the_input(model):
    """A mistake: the shortcut takes the input instead of the output of the first norm and ReLU."""
    for unit in model.unit_layers:
        if unit.proj is not None:

            def call(inputs, unit=unit):
                x = unit.conv_a(tf.nn.relu(unit.gn_a(inputs)))
                x = unit.conv_b(tf.nn.relu(unit.gn_b(x)))
                return unit.conv_c(tf.nn.relu(unit.gn_c(x))) + unit.proj(inputs)

            unit.call = call


MISTAKES = {
    "hybrid: symmetric padding of the root": (
        HYBRIDS,
        change(StandardizedConv, is_root, padding=3),
    ),
    "hybrid: symmetric padding in stage 2": (
        HYBRIDS[1:],
        change(StandardizedConv, is_strided, padding=1),
    ),
    "hybrid: GroupNorm epsilon of Keras": (HYBRIDS, change(GroupNorm, epsilon=1e-3)),
    "hybrid: no norm on the shortcut": (HYBRIDS[1:], no_norm_on_the_shortcut),
    "hybrid: stride on the first convolution": (HYBRIDS[1:], stride_on_the_first_convolution),
    "BiT: SAME padding of the root": ((BIT,), change(StandardizedConv, is_root, padding="same")),
    "BiT: SAME padding in the stages": (
        (BIT,),
        change(StandardizedConv, is_strided, padding="same"),
    ),
    "BiT: GroupNorm epsilon of hybrids": ((BIT,), change(GroupNorm, epsilon=1e-6)),
    "BiT: standardisation of hybrids": (
        (BIT,),
        change(StandardizedConv, variance_epsilon=0.0, deviation_epsilon=1e-5),
    ),
    "BiT: shortcut from the input": ((BIT,), shortcut_from_the_input),
}


@pytest.mark.parametrize(
    "mistake, name", [(title, name) for title, (names, _) in MISTAKES.items() for name in names]
)
def test_known_mistakes_are_beyond_the_tolerance(load, mistake, name):
    """docs/paper.md C.1 and C.2; `test_residual.py` tests smaller epsilons."""
    file, model = load(name)
    MISTAKES[mistake][1](model)
    assert golden_excess(model(file["images"]), file["logits"]) > 1


def test_minus_infinity_around_the_pool_is_beyond_the_tolerance(load, monkeypatch):
    """The published code pads with zeros before the max-pool, as if they were pixels."""
    file, model = load(BIT)
    pad_infinite = functools.partial(keras.ops.pad, constant_values=-np.inf)
    monkeypatch.setattr(keras.ops, "pad", pad_infinite)
    assert golden_excess(model(file["images"]), file["logits"]) > 1

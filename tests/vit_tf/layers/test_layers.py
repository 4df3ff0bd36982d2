"""The requirements for every exported layer."""

import inspect
import itertools
import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.tolerances import assert_close
from tests.vit_tf import tiny
from vit_tf import layers
from vit_tf.config import StemConfig

TOKENS = (6, 12)
CELLS = (2, 3, 12)
IMAGES = (11, 14, 3)
MAPS = (7, 5, 8)
UNIT = {
    "filters": 32,
    "strides": 2,
    "group_norm_epsilon": 1e-4,
    "variance_epsilon": 1e-6,
    "deviation_epsilon": 1e-4,
}
PLACES = {"grid": (1, 5), "num_prefix_tokens": 1}
BLOCK = {
    "heads": 3,
    "mlp_size": 20,
    "activation": "gelu_erf",
    "dropout": 0.2,
    "attention_dropout": 0.3,
    "stochastic_depth": 0.4,
    "epsilon": 1e-3,
    "stream": 8,
    "implementation": "reference",
    "axis": None,
    "relative_positions": False,
    "layer_scale": 0.5,
    "qk_norm": True,
    "key_bias": False,
    "rotary": None,
    "qkv_bias": False,
}
ATTENTION = {"heads": 3, "dropout": 0.3, "stream": 2, "implementation": "reference", "axis": None}
ATTENTION |= {"relative_positions": False, "qk_norm": True, "epsilon": 1e-3, "key_bias": False}
ATTENTION |= {"rotary": None, "qkv_bias": False}
ROTARY = {"rotary": (1, 5, 9.0)}
AXIAL_UNIT = {"heads": 2, "strides": 2, "norm": "group", "epsilon": 1e-3, "momentum": 0.8}
# layer -> (for every constructor argument a value other than the default, input shape, number of
# trainable variables). An axis changes the shape of the input, so layers with one have two cases.
CASES = {
    "AugmentedConvolution": (
        {"filters": 12, "heads": 2, "key_fraction": 0.3, "value_fraction": 0.5}
        | {"variance_epsilon": 1e-6, "deviation_epsilon": 1e-4},
        MAPS,
        7,
    ),
    "AxialResidualUnit": (AXIAL_UNIT | {"filters": 8}, (4, 6, 8), 25),
    "BatchNorm": ({"epsilon": 1e-4, "momentum": 0.8, "axis": 2, "scale": 0.5}, (5, 8, 3), 2),
    "BottleneckUnit": (UNIT, (7, 5, 32), 12),
    "ClassToken": ({}, TOKENS, 1),
    "Dropout": ({"rate": 0.3, "stream": 5}, TOKENS, 0),
    "EncoderBlock": (BLOCK | ROTARY, TOKENS, 17),
    "EncoderBlock in columns": (BLOCK | {"axis": 1, "qkv_bias": True}, CELLS, 18),
    "EncoderBlock with relative positions": (BLOCK | {"relative_positions": True}, TOKENS, 18),
    "EncoderBlock without factors": (BLOCK | {"layer_scale": 0.0}, TOKENS, 15),
    "FactorizedPositions": (PLACES, TOKENS, 3),
    "FullAttention": ({"heads": 2}, MAPS, 6),
    "GroupNorm": ({"groups": 4, "epsilon": 1e-4, "scale": 0.5, "axis": 2}, (5, 8, 3), 2),
    "LayerScale": ({"initial": 0.5}, TOKENS, 1),
    "LocalAttention1D": ({"heads": 2, "block": 6}, MAPS, 4),
    "LocalAttention2D": ({"heads": 2, "block": (3, 4), "reach": (1, 2)}, MAPS, 4),
    "MapPooling": (
        {"heads": 3, "mlp_size": 20, "activation": "gelu_erf", "epsilon": 1e-3}
        | {"implementation": "reference"},
        TOKENS,
        11,
    ),
    "MlpBlock": (
        {"mlp_size": 20, "activation": "gelu_erf", "dropout": 0.2, "stream": 3},
        TOKENS,
        4,
    ),
    "MultiHeadAttention": (ATTENTION | ROTARY, TOKENS, 7),
    "MultiHeadAttention in rows": (ATTENTION | {"axis": 2, "qkv_bias": True}, CELLS, 8),
    "MultiHeadAttention with relative positions": (
        ATTENTION | {"relative_positions": True},
        TOKENS,
        8,
    ),
    "PatchEmbedding": (
        {"patch_size": 4, "hidden_size": 12, "form": "convolution", "implementation": "reference"},
        IMAGES,
        2,
    ),
    "NoPositions": (PLACES, TOKENS, 0),
    "PositionEmbedding": (PLACES, TOKENS, 1),
    "RegisterTokens": ({"count": 3, "first": 1}, TOKENS, 1),
    "RelativeLogits": ({"heads": 3}, TOKENS, 1),
    "RelativePositions": (PLACES, TOKENS, 0),
    "PositionSensitiveAttention": (AXIAL_UNIT | {"filters": 8, "axis": 2}, (4, 6, 5), 8),
    "PreActivationUnit": (
        UNIT | {"variance_epsilon": 1e-4, "spatial": "sparse", "squeeze_excite": True},
        (7, 5, 32),
        17,
    ),
    "ResNetStem": (
        {
            "config": StemConfig(
                stage_depths=(1, 1),
                width=0.5,
                **{key: value for key, value in UNIT.items() if "epsilon" in key},
            )
        },
        (33, 30, 3),
        27,
    ),
    "SinCosPositions": (PLACES, TOKENS, 0),
    "SparseAttention": ({"heads": 2, "block": 6}, MAPS, 4),
    "SqueezeExcite": ({"reduction": 2}, MAPS, 4),
    "StandAloneAttention": ({"heads": 2, "kernel_size": 3}, MAPS, 3),
    "StandardizedConv": (
        {"filters": 6, "kernel_size": 3, "strides": 2, "padding": 1}
        | {"variance_epsilon": 1e-6, "deviation_epsilon": 1e-4},
        (7, 5, 3),
        1,
    ),
    "StochasticDepth": ({"rate": 0.3, "stream": 5}, TOKENS, 0),
}
# The softmax cancels an offset of all logits of a head: its gradient is rounding.
CANCELED = "norm_logits/beta"
every_layer = pytest.mark.parametrize("name", CASES)
# One layer of each kind: with random numbers, moving averages, arguments that are tuples or a
# configuration; built from other layers or not.
KINDS = {
    "BatchNorm": "float32",
    "Dropout": "float32",
    "EncoderBlock": "mixed_bfloat16",
    "LocalAttention2D": "float32",
    "ResNetStem": "mixed_bfloat16",
}


def class_of(name):
    return getattr(layers, name.partition(" ")[0])


def make(case, **kwargs):
    return class_of(case)(**CASES[case][0], **kwargs)


def draw(name, count=2, seed=0):
    shape = (count, *CASES[name][1])
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def tokens_of(outputs):
    """The tokens of a layer that returns tokens, or tokens and taps."""
    return outputs[0] if isinstance(outputs, tuple) else outputs


def is_random(name):
    return any("drop" in key or key in ("rate", "stochastic_depth") for key in CASES[name][0])


def randomized(layer, inputs):
    """Builds the layer and gives its variables random values."""
    layer(inputs)
    tiny.randomize(layer)
    return layer


def in_model(name, **kwargs):
    inputs = keras.Input(CASES[name][1])
    tokens = tokens_of(make(name, **kwargs)(inputs))
    poolings = {3: keras.layers.GlobalAveragePooling1D, 4: keras.layers.GlobalAveragePooling2D}
    pooling = poolings.get(len(tokens.shape), keras.layers.Flatten)
    pooled = pooling(dtype="float32")(tokens)
    return keras.Model(inputs, keras.layers.Dense(3, dtype="float32")(pooled))


def test_no_exported_layer_is_missing():
    exported = {
        name
        for name in layers.__all__
        if inspect.isclass(getattr(layers, name))
        and issubclass(getattr(layers, name), keras.layers.Layer)
    }
    # PatchMasking has a second input; test_masking.py tests it.
    assert exported - {"PatchMasking"} == {class_of(name).__name__ for name in CASES}


@every_layer
def test_cases_leave_no_argument_at_its_default(name):
    # The signature of `__init__`: Python 3.11.2 reports Keras' `__new__` for the class.
    inherited = inspect.signature(keras.layers.Layer.__init__).parameters
    parameters = inspect.signature(class_of(name).__init__).parameters
    own = {key: value for key, value in parameters.items() if key not in inherited}
    assert CASES[name][0].keys() == own.keys()
    cases = [values for other, (values, *_) in CASES.items() if class_of(other) is class_of(name)]
    for key, parameter in own.items():
        assert any(values[key] != parameter.default for values in cases), key


@every_layer
def test_config_survives_json(name):
    layer = make(name, name="mine", dtype="mixed_bfloat16", trainable=False)
    config = layer.get_config()
    values = CASES[name][0]
    assert config.keys() - keras.layers.Layer().get_config().keys() == values.keys()
    assert config.keys() >= {"name", "trainable", "dtype"}
    # The implementation is a setting of the process; a saved layer does not store it.
    kept = values | ({"implementation": "auto"} if "implementation" in values else {})
    written = {key: x.to_dict() if key == "config" else x for key, x in kept.items()}
    assert {key: config[key] for key in written} == written

    again = type(layer).from_config(json.loads(json.dumps(config)))
    assert again.get_config() == config
    assert {key: getattr(again, key) for key in kept} == kept
    assert (again.name, again.trainable) == ("mine", False)
    assert again.dtype_policy.name == "mixed_bfloat16"


@every_layer
def test_layer_is_registered_for_saving(name):
    layer = make(name)
    written = keras.saving.serialize_keras_object(layer)
    assert written["registered_name"] == f"vit_tf>{class_of(name).__name__}"
    assert type(keras.saving.deserialize_keras_object(written)) is class_of(name)


@every_layer
def test_symbolic_call_with_unknown_batch(name):
    shape = CASES[name][1]
    layer = make(name)
    symbolic = tokens_of(layer(keras.Input(shape)))
    eager = tokens_of(layer(draw(name)))
    assert symbolic.shape == (None, *eager.shape[1:])
    assert symbolic.dtype == eager.dtype.name
    traced = tf.function(lambda x: tokens_of(layer(x)), autograph=False).get_concrete_function(
        tf.TensorSpec((None, *shape))
    )
    np.testing.assert_allclose(traced(tf.constant(draw(name))), eager, atol=1e-5)
    assert traced(tf.zeros((1, *shape))).shape == (1, *eager.shape[1:])


@pytest.mark.parametrize("name", [name for name in CASES if is_random(name)])
def test_random_layers_differ_in_training_only(name):
    inputs = draw(name, count=32)
    layer = randomized(make(name), inputs)
    inference = tokens_of(layer(inputs))
    np.testing.assert_array_equal(tokens_of(layer(inputs, training=False)), inference)
    training = tokens_of(layer(inputs, training=True))
    assert np.abs(training - inference).max() > 0.1
    assert np.isfinite(training).all()


@pytest.mark.parametrize("name, dtype", list(zip(CASES, itertools.cycle(["bfloat16", "float16"]))))
def test_mixed_precision(name, dtype):
    mixed, exact = make(name, dtype=f"mixed_{dtype}"), make(name)
    inputs = draw(name)
    randomized(exact, inputs)
    mixed(inputs)
    for variable, value in zip(mixed.trainable_variables, exact.trainable_variables, strict=True):
        assert variable.dtype == "float32"
        variable.assign(value)
    for part in tiny.all_layers(mixed):
        assert part.compute_dtype == dtype, part.name
    outputs = tokens_of(mixed(inputs))
    assert outputs.dtype == dtype
    expected = np.asarray(tokens_of(exact(inputs)), np.float64)
    assert_close(outputs, expected, dtype, "model")
    if is_random(name):
        assert tokens_of(mixed(inputs, training=True)).dtype == dtype


def test_one_fit_step_changes_every_variable():
    name = "EncoderBlock"
    model = in_model(name)
    tiny.randomize(model)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss)
    before = [np.array(variable) for variable in model.trainable_variables]
    history = model.fit(draw(name, 4), np.array([0, 1, 2, 0]), batch_size=4, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    for variable, value in zip(model.trainable_variables, before, strict=True):
        assert np.abs(np.array(variable) - value).max() > 0, variable.path


@pytest.mark.usefixtures("reference_ops")
@pytest.mark.parametrize("name, policy", list(KINDS.items()))
def test_keras_file_round_trip(name, policy, tmp_path):
    model = in_model(name, dtype=policy)
    tiny.randomize(model)
    path = tmp_path / "model.keras"
    model.save(path)
    again = keras.models.load_model(path)
    np.testing.assert_array_equal(again(draw(name)), model(draw(name)))
    assert again.layers[1].dtype_policy.name == policy
    assert again.layers[1].get_config() == model.layers[1].get_config()


@every_layer
def test_every_variable_gets_a_gradient(name):
    layer, inputs = make(name), draw(name, count=8)
    randomized(layer, inputs)
    weights = np.random.default_rng(1).normal(size=tokens_of(layer(inputs)).shape)
    with tf.GradientTape() as tape:
        outputs = tokens_of(layer(inputs, **({"training": True} if is_random(name) else {})))
        total = tf.reduce_sum(outputs * weights.astype(np.float32))
    for variable, gradient in zip(
        layer.trainable_variables,
        tape.gradient(total, [variable.value for variable in layer.trainable_variables]),
        strict=True,
    ):
        assert gradient is not None, variable.path
        assert np.abs(gradient).max() > 0 or variable.path.endswith(CANCELED), variable.path
    assert len(layer.trainable_variables) == CASES[name][2]


@pytest.mark.parametrize("name", [name for name in CASES if "implementation" in CASES[name][0]])
def test_implementation_reaches_the_op(name):
    """An unknown implementation raises an error, so the argument is not ignored."""
    values = CASES[name][0] | {"implementation": "sorcery"}
    values.pop("form", None)
    with pytest.raises(ValueError, match="sorcery"):
        class_of(name)(**values)(draw(name))

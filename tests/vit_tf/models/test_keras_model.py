"""The Vision Transformer as an ordinary Keras model: initial values, fit, gradients, saving."""

import math

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

import vit_tf
from tests.vit_tf import tiny

# Wide enough for statistics, and all fans differ.
WIDE = {"hidden_size": 96, "mlp_size": 160, "patch_size": 8, "image_size": (56, 72)}
FORMS = {
    "token": {},
    "gap": {"classifier": "gap"},
    "pre-logits": {"representation_size": 7},
    "unpooled": {"classifier": "unpooled", "position_embedding": "none"},
    "axial": tiny.AXIAL,
    "relative": {"position_embedding": "relative"},
    "every layer": {"position_injection": "every_layer"},
    "distilled": {"classifier": "token_distilled"},
    "every layer shared": {"position_injection": "every_layer_shared"},
}


def array(variable):
    return np.array(variable.value, np.float64)


def check_uniform(values, limit):
    assert 0.99 * limit < np.abs(values).max() <= limit * (1 + 1e-6)
    assert values.std() == pytest.approx(limit / math.sqrt(3), rel=0.03)
    assert abs(values.mean()) < 0.03 * limit


def check_lecun(values, fan_in):
    """Normal values truncated at two sigmas; sigma is corrected to a variance of 1 / fan_in."""
    cut = 2 / 0.87962566 / math.sqrt(fan_in)
    assert 0.98 * cut < np.abs(values).max() <= cut * (1 + 1e-6)
    assert values.std() == pytest.approx(1 / math.sqrt(fan_in), rel=0.03)
    # The kurtosis of a uniform distribution would be 1.8; of this distribution it is 2.37.
    assert (values**4).mean() / values.var() ** 2 == pytest.approx(2.37, abs=0.15)


def check_normal(values, deviation):
    assert values.std() == pytest.approx(deviation, rel=0.05)
    assert (values**4).mean() / values.var() ** 2 == pytest.approx(3, abs=0.7)


def test_initial_values_have_the_papers_distributions():
    model = vit_tf.create_model(tiny.config(**WIDE, representation_size=64, head_bias=-10.0))
    check_lecun(array(model.patch_embedding.kernel), 8 * 8 * 3)
    check_lecun(array(model.pre_logits.kernel), 96)
    check_normal(array(model.position_embedding.table), 0.02)
    assert array(model.position_embedding.table).shape == (1 + 7 * 9, 96)
    factorized = vit_tf.create_model(tiny.config(**WIDE, position_embedding="learned_2d"))
    for variable in factorized.position_embedding.variables:
        check_normal(array(variable), 0.02)
    drawn = []
    for block in model.blocks:
        parts = np.split(array(block.attention.qkv.kernel), 3, axis=1)
        for kernel in (*parts, array(block.attention.out.kernel)):
            check_uniform(kernel, math.sqrt(3 / 96))
            drawn.append(kernel)
        for dense in (block.mlp.dense_0, block.mlp.dense_1):
            check_uniform(array(dense.kernel), math.sqrt(6 / (96 + 160)))
            drawn.append(array(dense.kernel))
            assert 0.7e-6 < array(dense.bias).std() < 1.3e-6
        for zeros in (block.attention.qkv.bias, block.attention.out.bias):
            assert not array(zeros).any()
        for norm in (block.norm_attention, block.norm_mlp, model.norm):
            assert (array(norm.gamma) == 1).all() and not array(norm.beta).any()
            assert norm.epsilon == 1e-6
    assert len({kernel.tobytes() for kernel in drawn}) == len(drawn)
    for zeros in (model.patch_embedding.bias, model.class_token.token, model.pre_logits.bias):
        assert not array(zeros).any()
    assert not array(model.head.kernel).any()
    assert (array(model.head.bias) == -10).all()


@pytest.mark.parametrize("form, bias", [("token", -6.9), ("pre-logits", 0.0), ("unpooled", -6.9)])
def test_untrained_logits_are_the_head_bias(form, bias):
    model = vit_tf.create_model(tiny.config(**FORMS[form], head_bias=bias))
    assert (np.asarray(model(tiny.images())) == np.float32(bias)).all()


def test_seed_decides_the_initial_values():
    def create(seed):
        keras.utils.set_random_seed(seed)
        return vit_tf.create_model(tiny.config())

    first, again, other = (tiny.values(create(seed)) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    same = [np.array_equal(a, b) for a, b in zip(first, other, strict=True)]
    constant = [np.ptp(value) == 0 for value in first]
    assert same == constant


@pytest.mark.parametrize(
    "form, policy", [*((form, "float32") for form in FORMS), ("relative", "mixed_bfloat16")]
)
def test_every_variable_gets_a_gradient(form, policy):
    model = tiny.shared(dtype=policy, **FORMS[form])
    weights = np.random.default_rng(1).normal(size=model(tiny.images()).shape)
    with tf.GradientTape() as tape:
        logits = model(tiny.images(), training=True)
        loss = tf.reduce_sum(logits * weights.astype(np.float32))
    variables = model.trainable_variables
    gradients = tape.gradient(loss, [variable.value for variable in variables])
    for variable, gradient in zip(variables, gradients, strict=True):
        assert variable.dtype == "float32", variable.path
        assert gradient is not None, variable.path
        assert np.abs(gradient).max() > 0, variable.path


def test_gradient_with_zero_head_reaches_only_the_head():
    """In the first step after creation the zero kernel of the head blocks all other gradients."""
    model = vit_tf.create_model(tiny.config(layers=1))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(tiny.images())[:, 0])
    variables = model.trainable_variables
    gradients = tape.gradient(loss, [variable.value for variable in variables])
    moved = [v.path for v, g in zip(variables, gradients, strict=True) if np.abs(g).max() > 0]
    assert sorted(path.split("/")[-2:] for path in moved) == [["head", "bias"], ["head", "kernel"]]


def test_fit_trains_and_evaluates():
    """Keras' own training loop, without a RandomContext and without XLA."""
    model = tiny.model(dropout=0.1, attention_dropout=0.1, stochastic_depth=0.1)
    before = tiny.values(model)
    model.compile(
        keras.optimizers.SGD(0.05),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=False,
    )
    images, labels = tiny.images(8, dtype="uint8"), np.arange(8) % 5
    history = model.fit(images, labels, batch_size=4, epochs=2, verbose=0, shuffle=False)
    losses = history.history["loss"]
    assert np.isfinite(losses).all() and losses[1] < losses[0]
    trainable = [variable.trainable for variable in model.variables]
    for variable, old, trained in zip(model.variables, before, trainable, strict=True):
        assert not trained or np.abs(np.array(variable.value) - old).max() > 0, variable.path
    loss, accuracy = model.evaluate(images, labels, verbose=0)
    logits = np.asarray(model(images), np.float64)
    expected = -np.log(np.exp(logits)[np.arange(8), labels] / np.exp(logits).sum(axis=1)).mean()
    assert loss == pytest.approx(expected, rel=1e-5)
    assert accuracy == pytest.approx((logits.argmax(axis=1) == labels).mean())
    assert model.predict(images, verbose=0).shape == (8, 5)


def test_fit_compiles_with_xla():
    """Random layers are active without a RandomContext: XLA draws from Keras' seeds."""
    model = tiny.model(dtype="mixed_bfloat16", layers=1, dropout=0.2, attention_dropout=0.1)
    before = tiny.values(model)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.05), loss, jit_compile=True)
    history = model.fit(tiny.images(4), np.arange(4), batch_size=4, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    for variable, old in zip(model.variables, before, strict=True):
        # Seeds are not weights, but they must change too, so that the next step draws new values.
        assert np.any(np.array(variable.value) != old), variable.path


@pytest.mark.parametrize(
    "form, policy",
    [("pre-logits", "mixed_bfloat16"), ("axial", "float32"), ("every layer", "float32")],
)
@pytest.mark.usefixtures("reference_ops")
def test_keras_file_round_trip(form, policy, tmp_path):
    fields = FORMS[form] | {"dropout": 0.2, "layer_norm_epsilon": 1e-5, "head_bias": 2.0}
    model = tiny.model(dtype=policy, **fields, implementation="reference")
    path = tmp_path / "model.keras"
    model.save(path)
    again = keras.models.load_model(path)
    assert isinstance(again, vit_tf.models.VisionTransformer)
    assert again.config == model.config.replace(implementation="auto")
    assert (again.grid, again.dtype_policy) == (model.grid, model.dtype_policy)
    images = tiny.images(dtype="uint8")
    np.testing.assert_array_equal(again(images), model(images))
    for old, new in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(new, old)


def test_keras_file_keeps_the_optimizer(tmp_path):
    model = tiny.model(layers=1)
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse", run_eagerly=True)
    model.fit(tiny.images(4), np.eye(5, dtype=np.float32)[:4], verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    for old, new in zip(model.optimizer.variables, again.optimizer.variables, strict=True):
        np.testing.assert_array_equal(new, old)
    # The step, the rate, and a momentum for each of the variables.
    assert len(model.optimizer.variables) == 2 + len(model.trainable_variables)


def test_weights_file_round_trip(tmp_path):
    model, other = tiny.shared(seed=0), tiny.shared(seed=1)
    model.save_weights(tmp_path / "model.weights.h5")
    other.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(other(tiny.images()), model(tiny.images()))


# A `.keras` file identifies a variable by class names and by the names of attributes that hold
# layers. Renaming one of them, or adding a list of layers, makes old files unreadable.
VIT_PATHS = {
    "": "head",
    "layers/": "layer_normalization patch_embedding position_embedding",
    "blocks/encoder_block/": "norm_attention norm_mlp",
    "blocks/encoder_block/attention/": "qkv out",
    "blocks/encoder_block/mlp/": "dense_0 dense_1",
}
# form -> (configuration, prefix -> names of layers).
PATHS = {
    "map": (
        tiny.config(layers=1, classifier="map", representation_size=7),
        VIT_PATHS
        | {
            "layers/dense": "",
            "layers/map_pooling": "",
            "layers/map_pooling/": "qkv out norm",
            "layers/map_pooling/mlp/": "dense_0 dense_1",
        },
    ),
    "relative": (
        tiny.config(layers=1, position_embedding="relative", classifier="gap"),
        VIT_PATHS
        | {
            "layers/": "layer_normalization patch_embedding",
            "blocks/encoder_block/attention/": "qkv out relative",
        },
    ),
    "every layer": (
        tiny.config(layers=3, position_injection="every_layer", classifier="gap"),
        VIT_PATHS
        | {f"blocks/encoder_block_{n}/": "norm_attention norm_mlp" for n in (1, 2)}
        | {f"blocks/encoder_block_{n}/attention/": "qkv out" for n in (1, 2)}
        | {f"blocks/encoder_block_{n}/mlp/": "dense_0 dense_1" for n in (1, 2)}
        | {"later_positions/": "position_embedding position_embedding_1"},
    ),
    "hybrid": (
        tiny.config(layers=1, stem={"stage_depths": (1,), "width": 0.5}, image_size=(33, 50)),
        VIT_PATHS
        | {
            "class_token": "",
            "layers/res_net_stem/": "conv_root gn_root",
            "layers/res_net_stem/unit_layers/bottleneck_unit/": (
                "conv1 conv2 conv3 conv_proj gn1 gn2 gn3 gn_proj"
            ),
        },
    ),
    "BiT": (
        vit_tf.ResNetConfig(stage_depths=(1,), width=0.5, image_size=32, num_classes=5),
        {
            "": "head",
            "layers/": "group_norm standardized_conv",
            "layers/pre_activation_unit/": "conv_a conv_b conv_c gn_a gn_b gn_c proj",
        },
    ),
    "AxialResNet": (
        vit_tf.AxialResNetConfig(stage_depths=(1,), width=0.125, image_size=16, num_classes=5),
        {
            "": "head",
            "layers/": "batch_norm conv2d",
            "layers/axial_residual_unit/": (
                "conv_down conv_proj conv_up height norm_down norm_proj norm_up width"
            ),
            "layers/axial_residual_unit/height/": "norm_logits norm_qkv norm_values qkv",
            "layers/axial_residual_unit/width/": "norm_logits norm_qkv norm_values qkv",
        },
    ),
}


@pytest.mark.parametrize("name", PATHS)
def test_paths_in_weights_files(name, tmp_path):
    config, expected = PATHS[name]
    path, layers = tmp_path / "model.weights.h5", set()

    def visit(key, item):
        if isinstance(item, h5py.Dataset):
            layers.add(key.rsplit("/vars/", 1)[0])

    vit_tf.create_model(config).save_weights(path)
    with h5py.File(path) as file:
        file.visititems(visit)
    assert layers == {
        prefix + layer for prefix, names in expected.items() for layer in names.split() or [""]
    }


def test_config_round_trip():
    model = tiny.shared(**FORMS["pre-logits"], dtype="mixed_bfloat16")
    config = model.get_config()
    assert config["config"] == model.config.to_dict()
    again = vit_tf.models.VisionTransformer.from_config(config)
    assert (again.config, again.dtype_policy) == (model.config, model.dtype_policy)
    assert again.get_config() == config


def test_inside_a_functional_model():
    """A symbolic call, as a backbone inside another model."""
    backbone = tiny.model(num_classes=0, layers=1)
    inputs = keras.Input((11, 14, 3))
    model = keras.Model(inputs, keras.layers.Dense(2)(backbone(inputs)))
    assert model.output_shape == (None, 2)
    model.compile("sgd", "mse", run_eagerly=True)
    before = tiny.values(backbone)
    model.fit(tiny.images(4), np.ones((4, 2)), batch_size=4, verbose=0)
    assert all(
        np.abs(new - old).max() > 0 for new, old in zip(tiny.values(backbone), before, strict=True)
    )
    backbone.trainable = False
    assert len(model.trainable_variables) == 2

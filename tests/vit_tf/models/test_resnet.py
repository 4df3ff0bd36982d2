"""Hybrids and BiT ResNets against float64 NumPy, for every policy, size and way to call them."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

import vit_tf
from tests.tolerances import golden_excess
from tests.vit_tf import numpy_resnet, tiny
from vit_tf import layers
from vit_tf.weights import published_arrays

HYBRIDS = {
    "root only": {"stem": (), "patch_size": 3},
    "two stages": {"stem": {"stage_depths": (2, 1), "width": 0.5}, "patch_size": 1},
    "larger patches": {"stem": {"stage_depths": (1,), "width": 0.5}, "patch_size": 2},
}
# Odd and even sides, and each form of a hybrid.
SIZES = [("root only", (47, 31)), ("two stages", (33, 50)), ("two stages", (64, 64))]
SIZES += [("larger patches", (33, 50))]
STANDARDIZATION = {"variance_epsilon": 0.0, "deviation_epsilon": 1e-5}


def hybrid(form, size=(33, 50), dtype=None):
    return tiny.shared(dtype=dtype, image_size=size, **HYBRIDS[form])


def resnet(size=(33, 50), dtype=None):
    config = vit_tf.ResNetConfig(stage_depths=(2, 1), width=0.5, image_size=size, num_classes=5)
    return tiny.shared_of(config, dtype=dtype)


def faint(images):
    """Images with a thousandth of the contrast, for which epsilons matter."""
    return (images * 1e-3).astype(np.float32)


@pytest.mark.parametrize("form, size", SIZES)
def test_stem_equals_numpy(form, size):
    model, images = hybrid(form, size), tiny.images(2, size)
    arrays = dict(published_arrays(model))
    for inputs in (images, faint(images)):
        expected = numpy_resnet.stem(arrays, inputs, model.config.stem.stage_depths)
        assert expected.shape[1:3] == model.config.feature_size
        assert expected.shape[3] == model.config.stem.channels
        assert golden_excess(model.stem(inputs), expected) < 1


@pytest.mark.parametrize("size", [(64, 64), (47, 31)])
def test_bit_equals_numpy(size):
    model, images = resnet(size), tiny.images(2, size)
    arrays = dict(published_arrays(model))
    for inputs in (images, faint(images)):
        expected = numpy_resnet.bit(arrays, inputs, model.config.stage_depths)
        assert golden_excess(model(inputs), expected) < 1


@pytest.mark.parametrize("epsilons", [(1e-5, (0.0, 1e-5)), (1e-6, (1e-10, 0.0))])
def test_each_epsilon_of_a_hybrid_counts(epsilons):
    """The epsilons of the norms, and of the standardization of small kernels."""
    model, images = hybrid("two stages"), faint(tiny.images(2, (33, 50)))
    for unit in model.stem.unit_layers:
        scale = np.geomspace(1e-3, 1, unit.conv2.kernel.shape[-1]).astype(np.float32)
        unit.conv2.kernel.assign(unit.conv2.kernel * scale)
    model.stem.conv_root.kernel.assign(model.stem.conv_root.kernel * 1e-3)
    arrays = dict(published_arrays(model))
    features = model.stem(images)
    depths = model.config.stem.stage_depths
    assert golden_excess(features, numpy_resnet.stem(arrays, images, depths)) < 1
    assert golden_excess(features, numpy_resnet.stem(arrays, images, depths, *epsilons)) > 3


@pytest.mark.parametrize("form", HYBRIDS)
def test_stages_of_a_hybrid_give_its_logits(form):
    model, images = hybrid(form), tiny.images(2, (33, 50))
    patches = model.embed(images)
    assert patches.shape == (2, math.prod(model.grid), 12)
    features, taps = model.encode(patches, taps=("class_row", "entropy"))
    assert golden_excess(model.classify(features), model(images)) < 1
    assert taps[0]["class_row"].shape == (2, 3, 1 + math.prod(model.grid))
    np.testing.assert_allclose(model.features(images), model.head_inputs(features), rtol=1e-6)


def test_feature_maps_of_bit():
    model, images = resnet(), tiny.images(2, (33, 50))
    stages = model.stages(images)
    assert [tuple(x.shape) for x in stages] == [(2, 9, 13, 128), (2, 5, 7, 256)]
    features = model.features(images)
    assert features.shape == (2, 256) and model.config.channels == 256
    np.testing.assert_allclose(model.head(features), model(images), rtol=1e-6)
    headless = vit_tf.create_model(model.config.replace(num_classes=0))
    assert headless.head is None and headless(images).shape == (2, 256)


MODELS = {
    "hybrid": lambda dtype: hybrid("two stages", dtype=dtype),
    "BiT": lambda d: resnet(dtype=d),
}
every_model = pytest.mark.parametrize("kind", MODELS)


@pytest.mark.parametrize(
    "kind, dtype",
    [
        ("hybrid", "mixed_float16"),
        ("hybrid", "bfloat16"),
        ("BiT", "mixed_bfloat16"),
        ("BiT", "float64"),
    ],
)
def test_logits_and_gradients_under_other_policies(kind, dtype):
    exact, other = MODELS[kind]("float32"), MODELS[kind](dtype)
    other.set_weights(exact.get_weights())
    images = tiny.images(2, (33, 50))
    logits = other(images)
    assert logits.dtype == tf.float32
    tolerance = {"mixed_bfloat16": 0.05, "bfloat16": 0.05, "mixed_float16": 0.01}.get(dtype, 1e-5)
    largest = np.abs(exact(images)).max()
    assert np.abs(logits - exact(images)).max() <= tolerance * largest
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(other(images, training=True)))
    gradients = tape.gradient(loss, [v.value for v in other.trainable_variables])
    assert all(np.isfinite(tf.cast(g, tf.float32)).all() for g in gradients)


@every_model
def test_bytes_are_mapped_to_the_model_range(kind):
    model, images = MODELS[kind](None), tiny.images(2, (33, 50), "uint8")
    floats = (images / 127.5 - 1).astype(np.float32)
    np.testing.assert_allclose(model(images), model(floats), rtol=1e-4, atol=1e-5)


@every_model
def test_another_size_is_refused(kind):
    with pytest.raises(ValueError, match="reads images of 33 x 50"):
        MODELS[kind](None)(tiny.images(1, (50, 33)))


@every_model
def test_graphs_give_the_eager_result(kind):
    model, images = MODELS[kind](None), tiny.images(3, (33, 50))
    if kind == "BiT":
        graph = tf.function(lambda x: model(x), jit_compile=True, autograph=False)
        assert golden_excess(graph(tf.constant(images)), model(images)) < 1
    unknown = tf.function(lambda x: model(x), autograph=False).get_concrete_function(
        tf.TensorSpec([None, None, None, 3])
    )
    assert golden_excess(unknown(tf.constant(images)), model(images)) < 1


@pytest.mark.usefixtures("reference_ops")
def test_keras_fit_and_file_of_a_hybrid(tmp_path):
    model = tiny.model(layers=1, image_size=(33, 50), **HYBRIDS["larger patches"])
    images = tiny.images(4, (33, 50))
    before = tiny.values(model)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01), loss, run_eagerly=True)
    model.fit(images, np.arange(4), batch_size=4, verbose=0)
    for variable, old in zip(model.variables, before, strict=True):
        assert np.any(np.array(variable.value) != old), variable.path
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert again.config == model.config
    np.testing.assert_array_equal(again(images), model(images))


def test_a_new_unit_is_its_shortcut():
    """The last norm of a hybrid's unit and the head of BiT are initialized with 0."""
    unit = layers.BottleneckUnit(32, strides=1, group_norm_epsilon=1e-6, **STANDARDIZATION)
    inputs = np.random.default_rng(0).normal(size=(2, 5, 5, 128)).astype(np.float32)
    np.testing.assert_array_equal(unit(inputs), np.maximum(inputs, 0))
    model = vit_tf.create_model(
        vit_tf.ResNetConfig(stage_depths=(1,), width=0.5, image_size=32, head_bias=-10.0)
    )
    np.testing.assert_array_equal(model(tiny.images(1, (32, 32))), np.full((1, 1000), -10.0))


def test_kernels_are_standardized_once_for_many_calls(monkeypatch):
    model, images = resnet(), tiny.images(2, (33, 50))
    standardized, calls = layers.StandardizedConv.standardized, []

    def count(layer):
        calls.append(layer)
        return standardized(layer)

    monkeypatch.setattr(layers.StandardizedConv, "standardized", count)
    expected = model(images)
    assert len(calls) == len(set(map(id, calls))) == 12  # root, 3 units, 2 projections
    with tf.GradientTape(persistent=True) as outer:
        kernels = layers.StandardizedKernels(model)
    assert len(calls) == 24
    weights = kernels.substitute(model.trainable_variables)
    with kernels, tf.GradientTape() as tape:
        tape.watch(weights)
        logits = model(images)
        loss = tf.reduce_sum(tf.square(logits)) + tf.reduce_sum(tf.square(model(images)))
    gradients = kernels.raw_gradients(
        outer, model.trainable_variables, tape.gradient(loss, weights)
    )
    assert len(calls) == 24
    np.testing.assert_array_equal(logits, expected)
    with tf.GradientTape() as tape:
        loss = 2 * tf.reduce_sum(tf.square(model(images)))
    variables = [variable.value for variable in model.trainable_variables]
    for ours, plain in zip(gradients, tape.gradient(loss, variables), strict=True):
        assert golden_excess(ours, plain) < 1


@every_model
def test_no_standardized_convolution_is_left_out(kind):
    model = MODELS[kind](None)
    convs = [x for x in tiny.all_layers(model) if isinstance(x, layers.StandardizedConv)]
    assert len(convs) == 12
    assert sorted(map(id, convs)) == sorted(map(id, model.standardized_convs()))


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_small_weights_on_a_large_mean_keep_their_digits(dtype):
    """Kernels, standardized in the call or before, are read as float32; norms are too."""
    conv = layers.StandardizedConv(32, 3, strides=1, padding="same", dtype=dtype, **STANDARDIZATION)
    conv.build((None, None, None, 16))
    rng = np.random.default_rng(0)
    conv.kernel.assign(rng.normal(0.5, 0.002, conv.kernel.shape))
    inputs = rng.normal(size=(2, 8, 8, 16)).astype(np.float32)
    seen, standardized = [], layers.StandardizedConv.standardized

    def watch(layer):
        seen.append(standardized(layer))
        return seen[-1]

    conv.standardized = lambda: watch(conv)
    conv(inputs)
    np.testing.assert_array_equal(seen[0], standardized(conv))
    norm = layers.GroupNorm(1e-6, groups=4, dtype=dtype)
    norm.build((None, None, None, 16))
    norm.gamma.assign(np.full(16, 1.0004))  # 1 in both 16-bit types
    one, other = norm(inputs), layers.GroupNorm(1e-6, groups=4, dtype=dtype)(inputs)
    assert np.any(tf.cast(one, tf.float32) != tf.cast(other, tf.float32))


@every_model
def test_parts_equal_the_whole_under_mixed_precision(kind):
    """An export, and accumulated micro-batches, have the results of the model."""
    model, images = MODELS[kind]("mixed_bfloat16"), tiny.images(2, (33, 50))
    for layer in model.standardized_convs():
        layer.kernel.assign(layer.kernel * 0.01 + 0.05)
    expected = model(images)
    with layers.StandardizedKernels(model):
        np.testing.assert_array_equal(model(images), expected)


def test_a_model_without_such_kernels_is_left_alone():
    model = tiny.model()
    kernels = layers.StandardizedKernels(model)
    assert kernels.layers == []
    values = kernels.substitute(model.trainable_variables)
    assert all(a is b.value for a, b in zip(values, model.trainable_variables, strict=True))

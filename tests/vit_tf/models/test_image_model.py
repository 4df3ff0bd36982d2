"""Symbolic inputs and outputs of models and layers: summaries, intermediate features, saving."""

import io

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

import custom_ops
import vit_tf
from tests.tolerances import assert_close
from tests.vit_tf import tiny

SIZE = (33, 50)
STEM = {"stage_depths": (1,), "width": 0.5}
CONFIGS = {
    "ViT": tiny.config(representation_size=7, classifier="gap"),
    "hybrid": tiny.config(stem=STEM, image_size=SIZE, classifier="map"),
    "ResNet": vit_tf.ResNetConfig(stage_depths=(1, 1), width=0.5, image_size=SIZE, num_classes=5),
    "AxialResNet": vit_tf.AxialResNetConfig(
        stage_depths=(1,), width=0.125, heads=2, image_size=SIZE, num_classes=5
    ),
}
every_family = pytest.mark.parametrize("family", CONFIGS)
# A block of each family -> its name and its output shape for an image of the configured size.
BLOCKS = {"ViT": ("block_0", (6, 12)), "hybrid": ("block_1", (6, 12))}
BLOCKS |= {"ResNet": ("block2_unit1", (5, 7, 256)), "AxialResNet": ("block1_unit1", (9, 13, 32))}


def create(family, dtype=None):
    return tiny.shared_of(CONFIGS[family], dtype=dtype)


def images_of(model, **kwargs):
    return tf.constant(tiny.images(2, model.config.image_size, **kwargs))


def eager_outputs(model, images):
    """Name of a layer -> its output in an eager call of all stages."""
    found = {}

    def watch(layer, call):
        def run(*args, **kwargs):
            outputs = call(*args, **kwargs)
            found[layer.name] = outputs[0] if isinstance(outputs, tuple) else outputs
            return outputs

        return run

    calls = [(layer, layer.call) for layer in model.layers]
    for layer, call in calls:
        layer.call = watch(layer, call)
    features = model.features(images)
    model.head(features)
    for layer, call in calls:
        layer.call = call
    return found


@pytest.mark.parametrize(
    "family, policy", [*((family, "float32") for family in CONFIGS), ("hybrid", "mixed_bfloat16")]
)
def test_output_of_every_layer_is_what_it_computes(family, policy):
    model = create(family, policy)
    images = images_of(model)
    expected = eager_outputs(model, images)
    assert expected.keys() == {layer.name for layer in model.layers}
    symbolic = {name: model.get_layer(name).output for name in expected}
    for name, value in keras.Model(model.input, symbolic)(images).items():
        assert symbolic[name].shape == (None, *expected[name].shape[1:])
        assert symbolic[name].dtype == expected[name].dtype.name
        np.testing.assert_array_equal(value, expected[name], err_msg=name)
    name, shape = BLOCKS[family]
    assert symbolic[name].shape == (None, *shape)


@every_family
def test_input_and_output_are_those_of_the_model(family):
    model = create(family)
    images = images_of(model)
    expected = np.asarray(model(images), np.float64)
    model(keras.Input((*model.config.image_size, 3)))
    again = keras.Model(model.inputs, model.outputs)
    assert_close(again(images), expected, "float32", "model")
    assert model.input_shape == (None, *model.config.image_size, 3)
    assert model.output_shape == (None, 5)
    assert model.compute_output_shape((4, *model.config.image_size, 3)) == (4, 5)
    with pytest.raises(ValueError, match="reads images of"):
        model(keras.Input((8, 8, 3)))


# Names of each family -> the layers that compute them, the stem's units included.
FEATURES = {
    "ViT": {"block_0": "block_0", "norm": "norm"},
    "hybrid": {
        "stage1": "block1_unit1",
        "block_1": "block_1",
        "block1_unit1": "block1_unit1",
        "stem": "stem",
    },
    "ResNet": {"stage1": "block1_unit1", "root": "root", "stage2": "block2_unit1"},
    "AxialResNet": {"stage1": "block1_unit1", "root_norm": "root_norm"},
}


@every_family
def test_features_by_name(family):
    model = create(family)
    images, names = images_of(model), FEATURES[family]
    features = vit_tf.feature_model(model, list(names))
    expected = eager_outputs(model, images)
    if family == "hybrid":  # with one unit, which is the whole stem
        expected["block1_unit1"] = expected["stem"]
    found = features(images)
    assert list(found) == list(names)
    for name, layer in names.items():
        np.testing.assert_array_equal(found[name], expected[layer], err_msg=name)
    stems = [layer for layer in features.layers if layer is getattr(model, "stem", None)]
    assert not stems, "the stem would run twice"


def test_unknown_features_have_near_names():
    model = create("hybrid")
    with pytest.raises(ValueError, match="'stage_1'.*stage1"):
        vit_tf.feature_model(model, ["stage_1"])
    with pytest.raises(ValueError, match="'zzz'.*stem.*block1_unit1"):
        vit_tf.feature_model(model, ["block_0", "zzz"])


@pytest.mark.parametrize("family", ["ViT", "hybrid"])
def test_symbolic_stages_and_taps(family):
    model = create(family)
    images = images_of(model)
    features, taps = model.encode(model.embed(model.input), taps=("class_row", "entropy"))
    expected, expected_taps = model.encode(model.embed(images), taps=("class_row", "entropy"))
    outputs = keras.Model(model.input, (features, taps))(images)
    np.testing.assert_array_equal(outputs[0], expected)
    for block, values in zip(outputs[1], expected_taps, strict=True):
        assert block.keys() == {"class_row", "entropy"}
        for name in block:
            np.testing.assert_array_equal(block[name], values[name])
    plain = keras.Model(model.input, model.encode(model.embed(model.input))[0])
    np.testing.assert_array_equal(plain(images), expected)


@every_family
def test_features_from_uint8(family):
    model = create(family)
    inputs = keras.Input((*model.config.image_size, 3), dtype="uint8")
    images = images_of(model, dtype="uint8")
    extractor = keras.Model(inputs, model.features(inputs))
    np.testing.assert_array_equal(extractor(images), model.features(images))


@pytest.mark.usefixtures("reference_ops")
@pytest.mark.parametrize("family", ["hybrid", "AxialResNet"])
def test_a_model_of_features_is_saved_whole(family, tmp_path):
    model = vit_tf.create_model(CONFIGS[family])
    tiny.randomize(model)
    outputs = [model.output, model.get_layer(BLOCKS[family][0]).output]
    if family == "hybrid":
        outputs.append(model.encode(model.embed(model.input), taps=("entropy",))[1][0]["entropy"])
    extractor = keras.Model(model.input, outputs)
    extractor.save(tmp_path / "features.keras")
    again = keras.models.load_model(tmp_path / "features.keras")
    images = images_of(model)
    for ours, loaded in zip(extractor(images), again(images), strict=True):
        np.testing.assert_array_equal(loaded, ours)


def test_a_model_of_features_trains():
    model = tiny.model(layers=1, classifier="gap", dropout=0.5)
    features = keras.Model(model.input, model.get_layer("norm").output)
    images = images_of(model)
    np.testing.assert_array_equal(features(images), features(images))
    assert np.abs(features(images, training=True) - features(images)).max() > 0.1
    before = [np.array(variable.value) for variable in features.trainable_variables]
    features.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=True)
    features.fit(images, np.ones((2, 6, 12)), verbose=0)
    for variable, old in zip(features.trainable_variables, before, strict=True):
        assert np.abs(np.array(variable.value) - old).max() > 0, variable.path


@every_family
def test_summary_has_shapes_and_counts(family):
    model = create(family)
    stream = io.StringIO()
    model.summary(print_fn=lambda line: stream.write(line + "\n"))
    rows = [line.split("│") for line in stream.getvalue().splitlines() if "│" in line]
    rows = {row[1].split()[0]: row[2:4] for row in rows if row[2].strip()}
    assert rows.keys() == {layer.name for layer in model.layers}
    for layer in model.layers:
        shape, count = (text.strip() for text in rows[layer.name])
        assert shape == str(layer.output.shape)
        assert count == f"{layer.count_params():,}"
    assert f"Total params: {model.count_params():,}" in stream.getvalue()


@every_family
def test_repr_says_what_the_model_is(family):
    model = create(family)
    assert repr(model) == (
        f"<{type(model).__name__} name={model.name}, image_size={model.config.image_size}, "
        f"num_classes=5, parameters={model.count_params():,}>"
    )


def graph_ops(path):
    """The names of all ops in a SavedModel."""
    proto = saved_model_pb2.SavedModel()
    proto.ParseFromString((path / "saved_model.pb").read_bytes())
    graph = proto.meta_graphs[0].graph_def
    nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
    return {node.op for node in nodes}


@every_family
@pytest.mark.usefixtures("auto_ops")
def test_an_export_of_keras_has_only_ops_of_tensorflow(family, tmp_path):
    model = create(family)
    images = images_of(model)
    model.export(tmp_path / "model", verbose=False)
    ops = graph_ops(tmp_path / "model")
    assert "MatMul" in ops or "Conv2D" in ops
    assert [name for name in ops if name.startswith("Vit")] == []
    loaded = tf.saved_model.load(tmp_path / "model")
    np.testing.assert_allclose(loaded.serve(images), model(images), rtol=1e-4, atol=1e-5)


def test_an_export_with_compiled_ops_says_so(tmp_path):
    if not custom_ops.is_compiled():
        pytest.skip("needs the compiled ops")
    model = vit_tf.create_model(tiny.config(layers=1, implementation="compiled"))
    with pytest.warns(UserWarning, match="compiled'.*pipelines.export"):
        model.export(tmp_path / "model", verbose=False)
    assert "VitAttention" in graph_ops(tmp_path / "model")


@pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated")
def test_an_export_to_tflite_needs_no_ops_but_its_own(tmp_path):
    model = create("ViT")
    path = tmp_path / "model.tflite"
    model.export(path, format="litert", verbose=False)
    interpreter = tf.lite.Interpreter(str(path))
    images = images_of(model)
    (logits,) = interpreter.get_signature_runner()(images=images).values()
    np.testing.assert_allclose(logits, model(images), rtol=1e-4, atol=1e-5)

"""AxialResNet against float64 NumPy, from a state_dict of the public PyTorch implementation."""

import keras
import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf

import vit_tf
from tests.tolerances import golden_excess
from tests.vit_tf import numpy_axial_resnet, tiny
from tests.vit_tf.directional_derivative import check_derivative
from vit_tf import layers
from vit_tf.weights import load_checkpoint, open_checkpoint

# Offsets that the softmax, or the next BatchNorm in training, cancels: their gradient is rounding.
CANCELED = ("norm_logits/beta", "height/norm_values/beta")
# The feature maps of the stages are 4 x 8 and 2 x 4.
SIZE, DEPTHS, HEADS = (16, 32), (1, 2), 2
IMAGENET = {"pixel_mean": (0.485, 0.456, 0.406), "pixel_deviation": (0.229, 0.224, 0.225)}


def create(seed=0, dtype=None, **fields):
    """A tiny model in which every variable is far from its initial value."""
    fields = {"stage_depths": DEPTHS, "heads": HEADS, "image_size": SIZE} | fields
    config = vit_tf.AxialResNetConfig(width=0.125, num_classes=5, **fields)
    model = tiny.shared_of(config, seed, dtype)
    for variable in model.non_trainable_variables:
        rng = np.random.default_rng(seed)
        variable.assign(rng.uniform(0.5, 1.5, variable.shape))
    return model


@pytest.fixture(scope="module")
def state():
    shapes = numpy_axial_resnet.state_shapes(DEPTHS, 8, HEADS, (4, 8), classes=5)
    return numpy_axial_resnet.draw_state(shapes)


@pytest.fixture
def folder(state, tmp_path):
    safetensors.numpy.save_file(state, tmp_path / "model.safetensors")
    return tmp_path


def images_for(count=2, size=SIZE):
    """Images in [-1, 1], and as the root reads them after ImageNet's normalization."""
    images = tiny.images(count, size)
    mean, deviation = (np.float64(IMAGENET[name]) for name in ("pixel_mean", "pixel_deviation"))
    return images, ((images + 1.0) / 2 - mean) / deviation


@pytest.mark.parametrize("training", [False, True])
def test_a_state_dict_gives_the_logits_of_numpy(state, folder, training):
    with open_checkpoint(folder) as checkpoint:
        config, notes = checkpoint.config, checkpoint.notes
    assert config == vit_tf.AxialResNetConfig(
        stage_depths=DEPTHS, width=0.125, heads=HEADS, image_size=SIZE, num_classes=5, **IMAGENET
    )
    assert len(notes) == 2 and "ImageNet" in notes[0]
    model = vit_tf.create_model(config)
    report = vit_tf.load_safetensors(model, folder, head="keep")
    assert len(report.loaded) == len(model.weights) and not report.dropped
    images, normalized = images_for()
    expected = numpy_axial_resnet.network(state, normalized, DEPTHS, HEADS, training)
    assert golden_excess(model(images, training=training), expected) < 10
    pixels = tiny.images(2, SIZE, "uint8")
    floats = (pixels / 127.5 - 1).astype(np.float32)
    np.testing.assert_allclose(model(pixels), model(floats), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("training", [False, True])
def test_the_gradient_equals_differences_of_numpy(state, folder, tmp_path, training):
    """The derivative of the logits along a change of all trainable arrays."""
    rng = np.random.default_rng(1)
    changed = {
        name: value + 0.1 * rng.normal(size=value.shape).astype(np.float32)
        if value.dtype == np.float32 and "running" not in name
        else value
        for name, value in state.items()
    }
    (tmp_path / "changed").mkdir()
    safetensors.numpy.save_file(changed, tmp_path / "changed" / "model.safetensors")
    models = []
    for path in (folder, tmp_path / "changed"):
        with open_checkpoint(path) as checkpoint:
            models.append(vit_tf.create_model(checkpoint.config))
        vit_tf.load_safetensors(models[-1], path, head="keep")
    model, other = models
    images, normalized = images_for()

    def function(place):
        at = {name: x + place * (np.float64(changed[name]) - x) for name, x in state.items()}
        return numpy_axial_resnet.network(at, normalized, DEPTHS, HEADS, training)

    check_derivative(model, other, images, function, training)


def test_a_state_dict_survives_the_way_there_and_back(state, folder, tmp_path):
    """With the prefix of torch.nn.DataParallel; the buffers of PyTorch are not written."""
    safetensors.numpy.save_file(
        {f"module.{name}": value for name, value in state.items()}, folder / "model.safetensors"
    )
    with open_checkpoint(folder) as checkpoint:
        model = vit_tf.create_model(checkpoint.config)
    vit_tf.load_safetensors(model, folder, head="keep")
    described = vit_tf.Preprocessing(image_size=SIZE), vit_tf.Classes(labels=tuple("abcde"))
    notes = vit_tf.save_safetensors(model, tmp_path / "b", "axial_deeplab", *described)
    assert any("flatten_index" in note for note in notes)
    again = safetensors.numpy.load_file(tmp_path / "b" / "model.safetensors")
    floats = {name: value for name, value in state.items() if value.dtype == np.float32}
    assert again.keys() == floats.keys()
    for name, value in floats.items():
        np.testing.assert_array_equal(again[name], value)
    with open_checkpoint(tmp_path / "b") as checkpoint:
        assert checkpoint.config == model.config
        assert (checkpoint.preprocessing, checkpoint.classes) == described
        assert not checkpoint.notes


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda state: state.pop("layer2.1.bn1.running_mean"), "lacks .*bn1.running_mean"),
        (
            lambda state: state.update({"layer1.0.width_block.extra": np.zeros(1, np.float32)}),
            "width_block.extra",
        ),
        (
            lambda state: state.update({"fc.weight": np.zeros([5, 7], np.float32)}),
            "fc.weight has shape",
        ),
        (
            lambda state: state.update({"module.fc.bias": np.zeros(5, np.float32)}),
            "holds module.fc.bias",
        ),
    ],
)
def test_damaged_state_dicts_are_refused(state, tmp_path, change, words):
    state = dict(state)
    change(state)
    safetensors.numpy.save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=words):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"norm": "group"}, "its norms are BatchNorm"),
        ({"batch_norm_epsilon": 1e-3}, "epsilon 1e-05, here 0.001"),
    ],
)
def test_models_that_the_layout_cannot_store(fields, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        vit_tf.save_safetensors(create(**fields), tmp_path / "b", "axial_deeplab")
    assert not (tmp_path / "b").exists()


def test_pixels_of_another_range_are_refused(folder):
    model = create()
    with pytest.raises(ValueError, match="trained with pixel_mean="):
        vit_tf.load_safetensors(model, folder)


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_npz_round_trip_is_bitwise(norm, tmp_path):
    """Moving averages are weights of the file; its keys are the paths of the variables."""
    model, fresh = (create(seed, norm=norm, stage_depths=(1, 1)) for seed in (1, 2))
    vit_tf.save_npz(model, tmp_path / "a.npz")
    (tmp_path / "a.npz.json").unlink()
    with open_checkpoint(tmp_path / "a.npz") as checkpoint:
        assert checkpoint.config == model.config
        assert "block1_unit1/height/qkv/kernel" in checkpoint.shapes
    vit_tf.load_npz(fresh, tmp_path / "a.npz", head="keep")
    for old, new in zip(model.get_weights(), fresh.get_weights(), strict=True):
        assert old.tobytes() == new.tobytes()
    # Two for each norm: the root's, and of each unit two, a shortcut's and three per attention.
    assert len(model.non_trainable_weights) == (2 * (1 + 2 * 9) if norm == "batch" else 0)
    np.testing.assert_array_equal(fresh(images_for()[0]), model(images_for()[0]))


def test_another_image_size_resizes_the_tables(tmp_path):
    """Linearly over the offsets: a table that is linear in them stays so."""
    model = create(1)
    for unit in model.unit_layers:
        for attention in (unit.height, unit.width):
            table = np.linspace(-1, 1, 2 * attention.span - 1)
            attention.relative.assign(np.broadcast_to(table, attention.relative.shape))
    vit_tf.save_npz(model, tmp_path / "a.npz")
    larger = vit_tf.create_model(model.config, image_size=(48, 24))
    report = vit_tf.load_npz(larger, tmp_path / "a.npz", head="keep")
    assert len(report.resized_tables) == 6
    assert "resized 6 tables of relative positions" in str(report)
    spans = [(unit.height.span, unit.width.span) for unit in larger.unit_layers]
    assert spans == [(12, 6), (12, 6), (6, 3)]
    for unit in larger.unit_layers:
        for attention in (unit.height, unit.width):
            expected = np.linspace(-1, 1, 2 * attention.span - 1)
            np.testing.assert_allclose(attention.relative[0], expected, atol=1e-6)
    assert np.isfinite(larger(tiny.images(2, (48, 24)))).all()


TABLE = "block1_unit1/height/relative"
DAMAGE = {
    "no table": (lambda arrays: arrays.pop(TABLE), "not a Vision Transformer"),
    "an even table": (lambda arrays: arrays.update({TABLE: np.zeros([16, 6])}), "has shape"),
    "no other table": (lambda arrays: arrays.pop("block2_unit1/width/relative"), "has no array"),
    "an even other table": (
        lambda arrays: arrays.update({"block2_unit1/width/relative": np.zeros([32, 4])}),
        "has shape",
    ),
    "no moving mean": (
        lambda arrays: arrays.pop("block2_unit1/norm_up/moving_mean"),
        "block2_unit1.*moving_mean",
    ),
    "one more array": (lambda arrays: arrays.update({"root/bias": np.zeros(8)}), "no place for"),
}


@pytest.mark.parametrize("title", DAMAGE)
def test_damaged_npz_files_are_refused(title, tmp_path):
    damage, words = DAMAGE[title]
    vit_tf.save_npz(create(stage_depths=(1, 1)), tmp_path / "a.npz")
    (tmp_path / "a.npz.json").unlink()
    with np.load(tmp_path / "a.npz") as file:
        arrays = dict(file)
    damage(arrays)
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(ValueError, match=words), open_checkpoint(tmp_path / "a.npz") as checkpoint:
        load_checkpoint(vit_tf.create_model(checkpoint.config), checkpoint, head="keep")


def test_files_of_another_norm_are_refused(tmp_path):
    vit_tf.save_npz(create(), tmp_path / "a.npz")
    with pytest.raises(ValueError, match="trained with norm=batch"):
        vit_tf.load_npz(create(norm="group"), tmp_path / "a.npz")


def test_feature_maps_and_features():
    model, images = create(), images_for()[0]
    stages = model.stages(images)
    assert [tuple(x.shape) for x in stages] == [(2, 4, 8, 32), (2, 2, 4, 64)]
    features = model.features(images)
    np.testing.assert_allclose(model.head(features), model(images), rtol=1e-6)
    headless = vit_tf.create_model(model.config.replace(num_classes=0))
    assert headless.head is None and headless(images).shape == (2, 64)


def test_a_new_unit_is_its_shortcut():
    unit = layers.AxialResidualUnit(16, heads=2)
    inputs = np.random.default_rng(0).normal(size=(2, 4, 4, 32)).astype(np.float32)
    np.testing.assert_array_equal(unit(inputs), np.maximum(inputs, 0))


@pytest.mark.parametrize(
    "norm, dtype", [("group", "mixed_bfloat16"), ("batch", "mixed_bfloat16"), ("batch", "float64")]
)
def test_logits_and_gradients_under_other_policies(norm, dtype):
    fields = {"norm": norm, "stage_depths": (1,)}
    exact, other = create(**fields), create(dtype=dtype, **fields)
    other.set_weights(exact.get_weights())
    images = images_for(4)[0]
    tolerance = 0.1 if dtype == "mixed_bfloat16" else 1e-5
    for training in (False, True):
        logits, expected = other(images, training=training), exact(images, training=training)
        assert logits.dtype == tf.float32
        assert np.abs(logits - expected).max() <= tolerance * np.abs(expected).max()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(other(images, training=True)))
    variables = other.trainable_variables
    for variable, gradient in zip(
        variables, tape.gradient(loss, [v.value for v in variables]), strict=True
    ):
        if not variable.path.endswith(CANCELED):
            assert np.isfinite(gradient).all() and np.abs(gradient).max() > 0, variable.path


def test_xla_gives_the_eager_result():
    """In inference; `fit` below compiles a step of training."""
    model, images = create(stage_depths=(1,)), images_for(3)[0]
    expected = model(images)
    graph = tf.function(lambda x: model(x), jit_compile=True, autograph=False)
    assert golden_excess(graph(tf.constant(images)), expected) < 10


def test_keras_fit_and_file(tmp_path):
    """Keras' own loop updates the moving averages; the file holds them."""
    config = create(stage_depths=(1,)).config
    model, images = vit_tf.create_model(config), images_for(4)[0]
    tiny.randomize(model)
    before = tiny.values(model)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01), loss)
    model.fit(images, np.arange(4), batch_size=4, verbose=0)
    for variable, old in zip(model.variables, before, strict=True):
        if not variable.path.endswith(CANCELED):
            assert np.any(np.array(variable.value) != old), variable.path
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert again.config == model.config
    np.testing.assert_array_equal(again(images), model(images))

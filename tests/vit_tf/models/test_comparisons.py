"""ResNets with a layer of related work: against float64 NumPy, and their files."""

import functools

import keras
import numpy as np
import pytest

import vit_tf
from tests.tolerances import golden_excess
from tests.vit_tf import numpy_resnet, tiny
from tests.vit_tf.checkpoints.npz_files import infer_config, refused, saved
from tests.vit_tf.directional_derivative import check_derivative
from tests.vit_tf.layers.related_work import numpy_layers
from vit_tf import layers
from vit_tf.config.spatial import SPATIAL
from vit_tf.config.variants import VARIANTS
from vit_tf.weights import open_checkpoint, published_arrays

ORACLES = {
    "local_1d": numpy_layers.local_1d,
    "local_2d": numpy_layers.local_2d,
    "stand_alone": numpy_layers.stand_alone,
    "augmented": numpy_layers.augmented,
    "sparse": numpy_layers.sparse,
    "full": numpy_layers.full,
}
FIELDS = {spatial: {"spatial": spatial} for spatial in ORACLES}
FIELDS["squeeze_excite"] = {"squeeze_excite": True}
every_kind = pytest.mark.parametrize("kind", FIELDS)


def resnet(kind, seed=0, image_size=(38, 51)):
    """A model of two units; the sides of its first map are odd."""
    if kind == "full":
        image_size = (image_size[0] // 2, image_size[1] // 2)
    config = vit_tf.ResNetConfig(
        stage_depths=(1, 1), width=0.5, image_size=image_size, num_classes=5, **FIELDS[kind]
    )
    return tiny.shared_of(config, seed)


def oracle_layers(model, arrays):
    """Functions of the layers for `numpy_resnet.bit`, from the published arrays."""
    found = {}
    for unit in model.unit_layers:
        block, index = unit.name.split("_unit")
        place = f"{block}/unit{int(index):02}"
        for layer, key, oracle in (
            (unit.spatial_b, f"{place}/b", ORACLES.get(unit.spatial)),
            (unit.scale, f"{place}/squeeze_excite", numpy_layers.squeeze_excite),
        ):
            if layer is None:
                continue
            start = f"resnet/{key}/" + (f"{unit.spatial}/" if key.endswith("/b") else "")
            weights = {
                name.removeprefix(start): value.astype(np.float64)
                for name, value in arrays.items()
                if name.startswith(start)
            }
            found[key] = functools.partial(oracle, layer, weights)
            if key.endswith("/b"):
                found[key] = found[key], unit.spatial in ("augmented", "full")
    return found


def test_every_value_has_an_oracle():
    assert set(SPATIAL) == {"convolution", *ORACLES}


@every_kind
def test_model_equals_numpy(kind):
    model = resnet(kind)
    images = tiny.images(2, model.config.image_size)
    arrays = dict(published_arrays(model))
    functions = oracle_layers(model, arrays)
    assert len(functions) == (1 if kind == "augmented" else 2)
    expected = numpy_resnet.bit(arrays, images, model.config.stage_depths, layers=functions)
    assert golden_excess(model(images), expected) < 1


@every_kind
def test_gradient_of_the_model_equals_differences_of_numpy(kind):
    """The derivative of the logits along the way to another model's weights."""
    model, other = resnet(kind), resnet(kind, seed=1)
    images = tiny.images(2, model.config.image_size)
    begin, end = dict(published_arrays(model)), dict(published_arrays(other))

    def function(place):
        at = {key: begin[key] + place * (np.float64(end[key]) - begin[key]) for key in begin}
        layers = oracle_layers(model, at)
        return numpy_resnet.bit(at, images, model.config.stage_depths, layers=layers)

    check_derivative(model, other, images, function)


@pytest.mark.parametrize("kind", ["stand_alone", "augmented", "squeeze_excite"])
def test_keras_file(kind, tmp_path):
    model = resnet(kind)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    images = tiny.images(2, model.config.image_size)
    np.testing.assert_array_equal(loaded(images), model(images))


@every_kind
def test_file_round_trip_is_bitwise(kind, tmp_path):
    model, fresh = resnet(kind, 1), resnet(kind, 2)
    path = saved(model, tmp_path / "a.npz")
    assert infer_config(path) == model.config.replace(image_size=224)
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.config == model.config
    vit_tf.load_npz(fresh, path, head="keep")
    for old, new in zip(model.get_weights(), fresh.get_weights(), strict=True):
        assert old.tobytes() == new.tobytes()


@pytest.mark.parametrize("kind", ["stand_alone", "augmented"])
def test_files_at_another_image_size(kind, tmp_path):
    """Tables of one size of map are refused; the others fit."""
    model, larger = resnet(kind), resnet(kind, image_size=(64, 64))
    path = saved(model, tmp_path / "a.npz")
    if kind == "stand_alone":
        vit_tf.load_npz(larger, path, head="keep")
    else:
        with refused(larger, path, "b/augmented/rows has shape"):
            vit_tf.load_npz(larger, path, head="keep")


@pytest.mark.parametrize("kind", ["stand_alone", "squeeze_excite"])
@pytest.mark.parametrize("layout", ["timm", "huggingface"])
def test_other_layouts_refuse_them(kind, layout, tmp_path):
    with pytest.raises(ValueError, match="spatial=|not support"):
        vit_tf.save_safetensors(resnet(kind), tmp_path / "a", layout=layout)


def test_no_standardized_convolution_is_left_out():
    model = resnet("augmented")
    convs = [x for x in tiny.all_layers(model) if isinstance(x, layers.StandardizedConv)]
    assert sorted(map(id, convs)) == sorted(map(id, model.standardized_convs()))


def test_summaries_name_the_layer():
    assert ", sparse on 224 x 224" in VARIANTS["Sparse-R50"].summary()
    assert ", squeeze-and-excitation on" in VARIANTS["SE-R50"].summary()

"""Hybrids and BiT ResNets against the code that trained the published weights."""

import numpy as np
import pytest

import vit_tf
from tests.tolerances import assert_golden
from tests.vit_tf.checkpoints.npz_files import infer_config
from tests.vit_tf.models import golden_files
from tests.vit_tf.models.golden_files import canonical, described

HYBRIDS = ("hybrid_root_only", "hybrid_two_stages")
BIT = "bit_tiny"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A model for each file, built from its arrays alone."""
    created = {}
    for name in (*HYBRIDS, BIT):
        path = golden_files.write_weights(name, tmp_path_factory.mktemp(name))
        created[name] = vit_tf.create_model(infer_config(path).replace(image_size=64))
        vit_tf.load_npz(created[name], path, head="keep")
    return created


@pytest.mark.parametrize("name", (*HYBRIDS, BIT))
def test_configuration_count_and_logits(models, name):
    file, model, sizes = golden_files.read(name), models[name], described(name)
    assert model.count_params() == sizes["params"]
    if name == BIT:
        assert list(model.config.stage_depths) == sizes["block_units"]
        assert model.config.width == sizes["width_factor"]
    else:
        assert list(model.config.stem.stage_depths) == sizes["resnet"]["num_layers"]
        assert model.config.stem.width == sizes["resnet"]["width_factor"]
    assert_golden(model(file["images"]), file["logits"])


@pytest.mark.parametrize("name", HYBRIDS)
def test_loss_and_gradients_of_hybrids(models, name):
    file = golden_files.read(name)
    _, loss, gradients = golden_files.loss_and_gradients(models[name], file)
    assert_golden(loss, file["loss"])
    expected = canonical(file, "grads/")
    assert gradients.keys() == expected.keys()
    largest = max(np.abs(array).max() for array in expected.values())
    for key, gradient in gradients.items():
        assert_golden(gradient, expected[key].reshape(gradient.shape), largest, key)


def test_loss_and_gradient_norms_of_bit(models):
    file = golden_files.read(BIT)
    _, loss, gradients = golden_files.loss_and_gradients(models[BIT], file)
    assert_golden(loss, file["loss"])
    prefix = "grad_norms/"
    expected = {key[len(prefix) :]: file[key] for key in file if key.startswith(prefix)}
    assert gradients.keys() == expected.keys()
    for key, gradient in gradients.items():
        assert_golden(np.linalg.norm(gradient), expected[key], name=key)

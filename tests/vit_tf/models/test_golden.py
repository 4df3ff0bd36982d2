"""Logits, losses and gradients of the paper's own code (google-research/vision_transformer)."""

import numpy as np
import pytest

import vit_tf
from tests.tolerances import assert_golden
from tests.vit_tf import numpy_vit
from tests.vit_tf.models import golden_files
from tests.vit_tf.models.golden_files import canonical, described
from vit_tf.checkpoints.published.vit_positions import POSITIONS

NAMES = ("vit_token", "vit_gap", "vit_token_prelogits", "vit_token_resized")


def create(name, folder):
    """The configured model of a golden file with its weights."""
    sizes = described(name)
    model = vit_tf.create_model(
        vit_tf.ViTConfig(
            hidden_size=sizes["hidden_size"],
            mlp_size=sizes["mlp_dim"],
            heads=sizes["num_heads"],
            layers=sizes["num_layers"],
            patch_size=sizes["patch_size"],
            classifier=sizes["classifier"],
            representation_size=sizes["representation_size"],
            image_size=sizes["image_size"],
            num_classes=sizes["num_classes"],
        )
    )
    pretrained = sizes.get("pretrained_image_size", sizes["image_size"])
    height, width = (pretrained,) * 2 if isinstance(pretrained, int) else pretrained
    grid = (height // sizes["patch_size"], width // sizes["patch_size"])
    path = golden_files.write_weights(name, folder)
    vit_tf.load_npz(model, path, head="keep", source_grid=grid)
    return model


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A model for each file."""
    folder = tmp_path_factory.mktemp("golden")
    return {name: create(name, folder) for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_count_and_logits_of_model_and_stages(models, name):
    file, model = golden_files.read(name), models[name]
    # The file counts the 4 x 4 positions from which the 6 x 6 of the model are resized.
    resized = 20 * 48 if name == "vit_token_resized" else 0
    assert model.count_params() == described(name)["params"] + resized
    assert_golden(model(file["images"], training=False), file["logits"])
    features, _ = model.encode(model.embed(file["images"]))
    assert_golden(model.classify(features), file["logits"])


@pytest.mark.parametrize("name", NAMES)
def test_loss_and_gradients(models, name):
    file = golden_files.read(name)
    logits, loss, gradients = golden_files.loss_and_gradients(models[name], file)
    assert_golden(logits, file["logits"])
    assert_golden(loss, file["loss"])
    expected = canonical(file, "grads/")
    assert gradients.keys() == expected.keys()
    largest = max(np.abs(array).max() for array in expected.values())
    for key, gradient in gradients.items():
        assert_golden(gradient, expected[key], largest, key)


def test_resized_position_table(models):
    file, model = golden_files.read("vit_token_resized"), models["vit_token_resized"]
    assert model.grid == (6, 6)
    table = np.array(model.position_embedding.table.value)
    assert_golden(table[None], file["resized_pos_embedding"])
    class_row = canonical(file, "params/")[POSITIONS][0, 0]
    np.testing.assert_array_equal(table[0], class_row)


@pytest.mark.parametrize("name", NAMES)
def test_numpy_forward_agrees_with_the_reference(name):
    """The oracle of the other tests also agrees with the paper's code."""
    file, sizes = golden_files.read(name), described(name)
    params = {key: value.astype(np.float64) for key, value in canonical(file, "params/").items()}
    if "resized_pos_embedding" in file:
        table = numpy_vit.resize_positions(params[POSITIONS][0], (4, 4), (6, 6), prefix=1)
        params[POSITIONS] = table[None]
        assert_golden(params[POSITIONS], file["resized_pos_embedding"])
    logits = numpy_vit.forward(params, file["images"], sizes["num_heads"], sizes["classifier"])
    assert_golden(logits, file["logits"])

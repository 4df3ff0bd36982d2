"""Lazy imports: configurations, names and costs load no framework."""

import subprocess
import sys

import pytest

import vit_tf
from tests.checkout import ROOT
from tests.vit_tf import tiny

LIGHT = {
    "package": "import vit_tf; vit_tf.ViTConfig, vit_tf.ResNetConfig, vit_tf.StemConfig",
    "configurations": "import vit_tf.config, vit_tf.config.variants",
    "families": "import vit_tf.families",
    "names": "import vit_tf; assert 'ViT-B/16' in vit_tf.list_models() and vit_tf.list_weights()",
    "costs": (
        "import vit_tf; from vit_tf.config.variants import VARIANTS\n"
        "assert all(vit_tf.cost.macs(config) for config in VARIANTS.values())"
    ),
    "modules": (
        "import vit_tf; assert vit_tf.analysis.__all__\n"
        "assert 'ViT-B/16' in vit_tf.config.VARIANTS and vit_tf.config.variants.get_variant"
    ),
    "preprocessing": (
        "import vit_tf; rule = vit_tf.Preprocessing(image_size=(8, 8), labels=('a', 'b'))\n"
        "assert vit_tf.Preprocessing.from_dict(rule.to_dict()) == rule"
    ),
}


def run(code):
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.process
@pytest.mark.parametrize("name", LIGHT)
def test_no_framework_is_loaded(name):
    loaded = "\nimport sys; print({'tensorflow', 'keras'} & set(sys.modules))"
    assert run(LIGHT[name] + loaded).strip() == "set()"


@pytest.mark.process
def test_configurations_load_no_numpy():
    loaded = "\nimport sys; print('numpy' in sys.modules)"
    assert run(LIGHT["configurations"] + loaded).strip() == "False"


@pytest.mark.process
def test_every_public_name_is_found_after_the_import_alone():
    code = (
        "import vit_tf; print(all(getattr(vit_tf, name) for name in vit_tf.__all__))\n"
        "print(all(getattr(vit_tf.analysis, name) for name in vit_tf.analysis.__all__))"
    )
    assert run(code).split() == ["True", "True"]
    assert run("from vit_tf import *; print(create_model.__name__)").strip() == "create_model"


@pytest.mark.process
@pytest.mark.parametrize("first", ["import keras, vit_tf", "import vit_tf.models, keras"])
def test_keras_loads_models_after_the_import_alone(tmp_path, first):
    path = tmp_path / "model.keras"
    tiny.model().save(path)
    print_name = f"print(type(keras.models.load_model({str(path)!r})).__name__)"
    assert run(f"{first}\n{print_name}").strip() == "VisionTransformer"


def test_only_public_names_are_listed():
    assert dir(vit_tf) == sorted([*vit_tf.__all__, "__version__"])
    with pytest.raises(AttributeError, match="module 'vit_tf' has no attribute 'create_modell'"):
        vit_tf.create_modell  # noqa: B018
    with pytest.raises(AttributeError, match="module 'vit_tf.analysis' has no attribute 'costs'"):
        vit_tf.analysis.costs  # noqa: B018


def test_public_names_are_the_documented_ones():
    """A public name cannot be renamed silently, so adding or removing one must change this test."""
    modules = {"analysis", "config", "cost", "layers", "models", "weights"}
    functions = {"create_model", "list_models", "load_npz", "save_npz"}
    functions |= {"load_safetensors", "save_safetensors", "feature_model", "list_weights"}
    functions |= {"pack_model"}
    classes = {"AxialResNetConfig", "Preprocessing", "ResNetConfig", "StemConfig", "ViTConfig"}
    assert set(vit_tf.__all__) == modules | functions | classes

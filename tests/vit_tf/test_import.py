"""Lazy imports: configurations, names and costs load no framework."""

import importlib.metadata
import subprocess
import sys

import pytest

import vit_tf
from tests.checkout import ROOT
from tests.custom_ops.process import run_python
from tests.vit_tf import tiny

_ALWAYS = ("WARNING: All log messages before absl::InitializeLog() is called", "I0000 ")


def run(program, *arguments):
    """The printed lines of a program in a new interpreter: what it imports is tested."""
    command = [sys.executable, "-m", f"tests.vit_tf.programs.{program}", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.process
def test_no_framework_is_loaded():
    loaded = {name: modules for name, *modules in map(str.split, run("light_imports"))}
    assert loaded["configurations"] == []
    frameworks = {name for name, modules in loaded.items() if set(modules) - {"numpy"}}
    assert len(loaded) == 8 and frameworks == set()


@pytest.mark.process
def test_all_public_names_are_found_and_models_load_after_the_import_alone(tmp_path):
    tiny.shared().save(tmp_path / "model.keras")
    found = run("all_names", tmp_path / "model.keras")
    assert found == ["create_model", "VisionTransformer"]


@pytest.mark.process
def test_models_load_after_keras_and_the_import_alone(tmp_path):
    """In an interpreter that has loaded TensorFlow, but nothing of this project."""
    tiny.shared().save(tmp_path / "model.keras")
    program = ROOT / "tests" / "vit_tf" / "programs" / "keras_first.py"
    assert run_python(program, tmp_path / "model.keras").split() == ["VisionTransformer"]


@pytest.mark.process
def test_the_import_makes_tensorflow_quiet(monkeypatch):
    """As the commands do; a level that the user has set holds."""
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    code = "import vit_tf, os; vit_tf.create_model('ViT-Ti/16', image_size=32, layers=1)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    said = done.stderr.splitlines()
    if not importlib.metadata.version("tensorflow").startswith("2.20."):
        # TensorFlow 2.21 writes these whatever the level is.
        said = [line for line in said if not line.startswith(_ALWAYS)]
    assert (done.returncode, done.stdout, said) == (0, "", [])
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "1")
    code = "import vit_tf, os; print(os.environ['TF_CPP_MIN_LOG_LEVEL'])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "1\n"


def test_only_public_names_are_listed():
    assert dir(vit_tf) == sorted([*vit_tf.__all__, "__version__"])
    with pytest.raises(AttributeError, match="module 'vit_tf' has no attribute 'create_modell'"):
        vit_tf.create_modell  # noqa: B018
    with pytest.raises(AttributeError, match="vit_tf.analysis.*'costs'"):
        vit_tf.analysis.costs  # noqa: B018


def test_public_names_are_the_documented_ones():
    """A public name cannot be renamed silently, so adding or removing one must change this test."""
    modules = {"analysis", "config", "cost", "layers", "models", "weights"}
    functions = {"create_model", "list_models", "load_npz", "save_npz"}
    functions |= {"load_safetensors", "save_safetensors", "feature_model", "list_weights"}
    functions |= {"pack_model", "load", "load_adapters"}
    classes = {"AxialResNetConfig", "ResNetConfig", "StemConfig", "ViTConfig"}
    classes |= {"Classes", "LoadedModel", "Preprocessing"}
    assert set(vit_tf.__all__) == modules | functions | classes

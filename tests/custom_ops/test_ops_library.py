"""Which implementation runs, and what the package says about it."""

import subprocess
import sys
import threading

import pytest
import tensorflow as tf

import custom_ops
from custom_ops import library


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch):
    monkeypatch.delenv("VIT_OPS", raising=False)


def test_there_is_no_compiled_library_and_describe_says_why():
    assert custom_ops.is_compiled() is False
    report = custom_ops.describe()
    assert report["compiled"] is False and report["path"] is None
    assert report["implementation"] == "auto"
    assert "no compiled library" in report["reason"]
    assert library.resolve() == "reference"


def test_contexts_nest_and_are_restored():
    def asked():
        return custom_ops.describe()["implementation"]

    with custom_ops.implementation("reference"):
        assert asked() == "reference"
        with custom_ops.implementation("auto"):
            assert asked() == "auto"
        assert asked() == "reference"
        with pytest.raises(RuntimeError, match="inside"), custom_ops.implementation("auto"):
            raise RuntimeError("inside")
        assert asked() == "reference"
    assert asked() == "auto"


def test_a_context_belongs_to_its_thread():
    seen = []
    with custom_ops.implementation("reference"):
        thread = threading.Thread(
            target=lambda: seen.append(custom_ops.describe()["implementation"])
        )
        thread.start()
        thread.join()
    assert seen == ["auto"]


@pytest.mark.parametrize("name", ["fast", "", None, "Compiled"])
def test_unknown_names_are_refused(name):
    with pytest.raises(ValueError, match="is unknown. Use one of 'auto'"):
        custom_ops.implementation(name).__enter__()
    assert custom_ops.describe()["implementation"] == "auto"


def test_asking_for_the_compiled_library_is_refused_on_entry():
    expected = r"implementation\('compiled'\) asks .* no compiled library.* Use 'auto'"
    with pytest.raises(ValueError, match=expected):
        custom_ops.implementation("compiled").__enter__()
    assert custom_ops.describe()["implementation"] == "auto"


def shapes_of_every_op(**arguments):
    images = tf.zeros([1, 4, 4, 3])
    return [
        custom_ops.attention(tf.zeros([1, 2, 6]), 2, **arguments).shape,
        custom_ops.patch_embed(images, tf.zeros([2, 2, 3, 5]), tf.zeros([5]), **arguments).shape,
        custom_ops.extract_patches(images, 2).shape,
    ]


@pytest.mark.parametrize("name", [None, "auto", "reference"])
def test_an_argument_chooses_for_one_call(name):
    assert shapes_of_every_op(implementation=name) == [[1, 2, 2], [1, 4, 5], [1, 4, 12]]


def test_the_argument_decides_before_the_context_and_that_before_the_environment(monkeypatch):
    monkeypatch.setenv("VIT_OPS", "compiled")
    with pytest.raises(ValueError, match="VIT_OPS=compiled asks for"):
        library.resolve()
    with pytest.raises(ValueError, match="VIT_OPS=compiled asks for"):
        library.resolve("auto")
    assert library.resolve("reference") == "reference"
    with custom_ops.implementation("auto"):
        assert library.resolve() == "reference"
        with pytest.raises(ValueError, match="implementation='compiled' asks for"):
            library.resolve("compiled")
    assert custom_ops.describe()["implementation"] == "compiled"


@pytest.mark.parametrize(
    ("value", "message"),
    [("compiled", "VIT_OPS=compiled asks for"), ("quick", "VIT_OPS=quick is unknown")],
)
def test_every_op_reads_the_environment(monkeypatch, value, message):
    monkeypatch.setenv("VIT_OPS", value)
    images = tf.zeros([1, 4, 4, 3])
    for call in (
        lambda: custom_ops.attention(tf.zeros([1, 2, 6]), 2),
        lambda: custom_ops.patch_embed(images, tf.zeros([2, 2, 3, 5]), tf.zeros([5])),
        lambda: custom_ops.extract_patches(images, 2),
    ):
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize("value", ["", "auto", "reference"])
def test_environment_values_that_run(monkeypatch, value):
    monkeypatch.setenv("VIT_OPS", value)
    assert shapes_of_every_op() == [[1, 2, 2], [1, 4, 5], [1, 4, 12]]


@pytest.mark.process
def test_import_is_light_even_with_an_illegal_environment():
    program = (
        "import os, sys; os.environ['VIT_OPS'] = 'quick'; import custom_ops; "
        "assert callable(custom_ops.attention) and callable(custom_ops.patch_embed); "
        "heavy = {'tensorflow', 'keras', 'numpy', 'vit_tf', 'pipelines'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr

"""Writes and reads published files, and asserts that a failed load leaves the model unchanged."""

import contextlib
import json

import numpy as np
import pytest

import vit_tf
from tests.vit_tf import numpy_vit, tiny
from vit_tf.weights import open_checkpoint


def read(path):
    """The arrays of a file, in their order."""
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def write(path, arrays, sidecar=None):
    np.savez(path, **arrays)
    if sidecar is not None:
        path.with_name(path.name + ".json").write_text(json.dumps(sidecar))
    return path


def saved(model, path, sidecar=True):
    """Saves a model; without `sidecar` the file looks like a published one."""
    vit_tf.save_npz(model, path)
    if not sidecar:
        path.with_name(path.name + ".json").unlink()
    return path


def infer_config(path):
    """The configuration that the arrays of a file show, without its sidecar."""
    with open_checkpoint(path) as checkpoint:
        return checkpoint.inferred_config


def params_of(model):
    return {key: value.astype(np.float32) for key, value in numpy_vit.published(model).items()}


def assert_same_values(model, expected):
    for (key, value), array in zip(params_of(model).items(), expected.values(), strict=True):
        np.testing.assert_array_equal(value, array, err_msg=key)


def linen(key):
    """The block-relative names in newer flax files, which are numbered per class."""
    key = key.replace("/LayerNorm_2/", "/LayerNorm_1/").replace("/MlpBlock_3/", "/MlpBlock_0/")
    return key.replace("/MultiHeadDotProductAttention_1/", "/MultiHeadDotProductAttention_0/")


@contextlib.contextmanager
def refused(model, *words, error=ValueError):
    """Asserts that the block raises, the message has all words, and the model is unchanged."""
    before = tiny.values(model)
    with pytest.raises(error) as caught:
        yield
    assert type(caught.value) is error
    for word in words:
        assert str(word) in str(caught.value)
    for variable, old in zip(model.variables, before, strict=True):
        assert np.array(variable.value).tobytes() == old.tobytes(), variable.path

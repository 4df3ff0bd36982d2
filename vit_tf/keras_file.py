"""The reader of untrusted `.keras` files: runs no code in them, and checks sizes first.

Such a file is a zip archive of `config.json` and `model.weights.h5`. Keras would build any object
that the configuration names, of any size. This module only builds models of `vit_tf`, and only if
the file holds all weights of the configured model.
"""

import json
import math
import os
import shutil
import tempfile
import zipfile
import zlib

import h5py
import keras

from vit_tf.checkpoints.loading import not_finite, warn_not_finite
from vit_tf.config import ModelConfig
from vit_tf.config.checks import POLICIES
from vit_tf.create import MAX_COMPRESSION, check_size, create_model
from vit_tf.families import FAMILIES, config_from_dict, family_of
from vit_tf.files import storage
from vit_tf.weights import published_arrays

_CONFIG, _WEIGHTS = "config.json", "model.weights.h5"
# The configuration of a `vit_tf` model has about 1 kB.
_MAX_CONFIG_BYTES = 2**20
_ZIP_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    KeyError,
    NotImplementedError,
    RuntimeError,  # Encrypted.
    ValueError,
)


def read_config(path) -> tuple[ModelConfig, str]:
    """The configuration of the model in a `.keras` file, and its dtype policy.

    Raises:
        ValueError: if the file is damaged, holds no model of `vit_tf` or not all of its weights.
    """
    with tempfile.TemporaryDirectory() as folder:
        return _unpack_checked(path, os.path.join(folder, _WEIGHTS))


def open_model(path, dtype=None) -> keras.Model:
    """Builds the model in a `.keras` file, with its weights.

    Args:
        path: the file.
        dtype: Keras dtype policy; None takes the policy of the file.

    Raises:
        ValueError: see `read_config`.
    """
    with tempfile.TemporaryDirectory() as folder:
        weights = os.path.join(folder, _WEIGHTS)
        config, policy = _unpack_checked(path, weights)
        model = create_model(config, dtype=dtype or policy)
        try:
            model.load_weights(weights)
        except Exception as error:  # Keras raises many unrelated types for damaged weights.
            raise _unreadable(path, error) from None
    warn_not_finite(path, not_finite(published_arrays(model)))
    return model


def _unpack_checked(path, weights):
    """Writes the weights to a file; returns configuration and policy, which fit the weights."""
    limit = MAX_COMPRESSION * storage.size_and_time(path)[0]
    with storage.open_local(path) as file:
        text = _unpack(file, path, weights, limit)
    config, policy = _read_config(text, path)
    check_size(config, _read_shapes(weights, path, limit), path)
    return config, policy


def _unpack(file, path, weights, limit):
    """Writes the weights in an open archive to a file; returns the text of the configuration."""
    try:
        archive = zipfile.ZipFile(file)
    except (*_ZIP_ERRORS, OSError) as error:
        raise _unreadable(path, error) from None
    with archive:
        try:
            members = [archive.getinfo(name) for name in (_CONFIG, _WEIGHTS)]
            for member in members:
                # Other compression methods can allocate gigabytes before they read data.
                if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise ValueError(f"{member.filename} is compressed in an unusual way")
            claimed = sum(member.file_size for member in members)
            if claimed > limit or members[0].file_size > _MAX_CONFIG_BYTES:
                raise ValueError(
                    f"it claims {members[0].file_size:,} bytes of {_CONFIG} and "
                    f"{members[1].file_size:,} of {_WEIGHTS}"
                )
            text = archive.read(_CONFIG)
            with archive.open(_WEIGHTS) as stream, open(weights, "wb") as unpacked:
                shutil.copyfileobj(stream, unpacked)
        except _ZIP_ERRORS as error:
            raise _unreadable(path, error) from None
    return text


def _read_config(text, path):
    """Returns the configuration and the name of the dtype policy in a `config.json` text."""
    try:
        top = json.loads(text)
        if not isinstance(top, dict) or not isinstance(top.get("config"), dict):
            raise ValueError(f"{_CONFIG} does not describe a model")
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, error) from None
    expected = [family.model.__name__ for family in FAMILIES]
    if top.get("registered_name") not in [_registered_name(family) for family in FAMILIES]:
        found = repr(top.get("class_name"))[:40]
        raise ValueError(f"{path} holds a {found}. Expected a {' or '.join(expected)}.")
    fields = top["config"]
    policy = fields.get("dtype", "float32")
    if isinstance(policy, dict):
        policy = policy["config"].get("name") if isinstance(policy.get("config"), dict) else None
    if policy not in POLICIES:
        raise ValueError(
            f"{path} has the dtype policy {str(policy)[:40]!r}. Expected one of "
            f"{', '.join(POLICIES)}."
        )
    try:
        config = config_from_dict(fields.get("config"))
        if top["registered_name"] != _registered_name(family_of(config)):
            raise ValueError(f"{_CONFIG} describes another kind of model than its configuration")
        return config, policy
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None


def _registered_name(family):
    """Returns the name under which Keras saves the model class of a family."""
    return keras.saving.get_registered_name(family.model)


def _read_shapes(weights, path, limit):
    """Returns the shapes of all arrays in an HDF5 file, without reading the arrays."""
    shapes, claimed = [], 0

    def visit(name, item):
        nonlocal claimed
        if not isinstance(item, h5py.Dataset):
            return
        shapes.append(item.shape or ())
        claimed += math.prod(shapes[-1]) * item.dtype.itemsize
        # An array in the file can claim any shape: missing data are read as zeros.
        if claimed > limit:
            raise ValueError(f"{name!r} claims the shape {shapes[-1]}")

    try:
        with h5py.File(weights, "r") as file:
            file.visititems(visit)
    except Exception as error:  # h5py raises many unrelated types for a damaged file.
        raise _unreadable(path, error) from None
    return shapes


def _unreadable(path, error):
    reason = (str(error) or type(error).__name__).splitlines()[0][:200].rstrip(".:")
    return ValueError(f"{path} is not a model Keras can read: {reason}.")

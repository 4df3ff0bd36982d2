"""Opens `.keras` files from strangers: nothing in them runs, and sizes are checked first.

Such a file is a zip archive of `config.json` and `model.weights.h5`. Keras would build whatever
objects the configuration names, as large as it says. Here only models of ours are built, and only
when the file is found to hold as many weights as the configuration asks for.
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

import vit_tf
from vit_tf import cost
from vit_tf.families import config_from_dict

_CONFIG, _WEIGHTS = "config.json", "model.weights.h5"
_REGISTERED_NAMES = ("vit_tf>VisionTransformer", "vit_tf>ResNet")
_DTYPES = ("float16", "bfloat16", "float32", "float64", "mixed_float16", "mixed_bfloat16")
# Ours have 1 kB.
_MOST_CONFIG = 2**20
# How much larger than the file its content may be. Neither Keras nor `save_npz` compresses, and
# trained weights cannot be compressed by much.
_MOST_RATIO = 10
# The largest input that a file may ask for: an image of 800 MB, or 8 x 8 patches of 4096 x 4096.
_MOST_PIXELS, _MOST_PATCHES = 8192**2, 512**2
_ZIP_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    KeyError,
    NotImplementedError,
    RuntimeError,  # Encrypted.
    ValueError,
)


def open_keras(path, dtype=None) -> keras.Model:
    """Builds the model in a `.keras` file, with its weights.

    Args:
        path: file name.
        dtype: Keras dtype policy; None is the file's own.

    Raises:
        ValueError: if the file is damaged, foreign, or larger inside than outside.
    """
    limit = _MOST_RATIO * os.path.getsize(path)
    with tempfile.TemporaryDirectory() as folder:
        weights = os.path.join(folder, _WEIGHTS)
        text = _unpack(path, weights, limit)
        config, policy = _read_config(text, path)
        check_size(config, _read_shapes(weights, path, limit), path)
        model = vit_tf.create_model(config, dtype=dtype or policy)
        try:
            model.load_weights(weights)
        except Exception as error:  # Keras raises many unrelated types for damaged weights.
            raise _unreadable(path, error) from None
    return model


def check_size(config, shapes, path):
    """Refuses a model that a file describes and does not hold, before one is built.

    Args:
        config: the configuration that the file claims.
        shapes: shapes of the arrays that are really there.
        path: the file, for messages.

    Raises:
        ValueError: if the model needs more arrays or numbers, or reads images of absurd size.
    """
    numbers = sum(math.prod(shape) for shape in shapes)
    if cost.arrays(config) > len(shapes) or cost.parameters(config) > numbers:
        raise ValueError(
            f"{path} describes a larger model than it holds weights for: {len(shapes)} arrays of "
            f"{numbers:,} numbers. Download or copy it again."
        )
    check_input(config, path)


def check_input(config, path):
    """Refuses a model that reads images of absurd size, which no array shows.

    Raises:
        ValueError: then.
    """
    patches = math.prod(config.grid) if isinstance(config, vit_tf.ViTConfig) else 0
    if math.prod(config.image_size) > _MOST_PIXELS or patches > _MOST_PATCHES:
        raise ValueError(
            f"{path} describes a model that reads images of {config.image_size}. Expected at most "
            f"{_MOST_PIXELS:,} pixels and {_MOST_PATCHES:,} patches."
        )


def check_compression(config, path):
    """Refuses a file that is far too small for the model that its arrays make, even in float16.

    Raises:
        ValueError: then.
    """
    parameters, size = cost.parameters(config), os.path.getsize(path)
    if 2 * parameters > _MOST_RATIO * size:
        raise ValueError(
            f"{path} has {size:,} bytes and claims {parameters:,} weights, which do not fit into "
            "them. Download or copy it again."
        )


def _unpack(path, weights, limit):
    """Writes the weights to a file; returns the text of the configuration."""
    try:
        archive = zipfile.ZipFile(path)
    except (*_ZIP_ERRORS, OSError) as error:
        raise _unreadable(path, error) from None
    with archive:
        try:
            members = [archive.getinfo(name) for name in (_CONFIG, _WEIGHTS)]
            for member in members:
                # Others can take gigabytes to set up.
                if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise ValueError(f"{member.filename} is compressed in an unusual way")
            claimed = sum(member.file_size for member in members)
            if claimed > limit or members[0].file_size > _MOST_CONFIG:
                raise ValueError(
                    f"it claims {members[0].file_size:,} bytes of {_CONFIG} and "
                    f"{members[1].file_size:,} of {_WEIGHTS}"
                )
            text = archive.read(_CONFIG)
            with archive.open(_WEIGHTS) as stream, open(weights, "wb") as file:
                shutil.copyfileobj(stream, file)
        except _ZIP_ERRORS as error:
            raise _unreadable(path, error) from None
    return text


def _read_config(text, path):
    """`(configuration, name of the dtype policy)` in the text of a `config.json`."""
    try:
        top = json.loads(text)
        if not isinstance(top, dict) or not isinstance(top.get("config"), dict):
            raise ValueError(f"{_CONFIG} describes no model")
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, error) from None
    if top.get("registered_name") not in _REGISTERED_NAMES:
        found = repr(top.get("class_name"))[:40]
        raise ValueError(f"{path} holds a {found}. Expected a VisionTransformer or ResNet.")
    fields = top["config"]
    policy = fields.get("dtype", "float32")
    if isinstance(policy, dict):
        policy = policy["config"].get("name") if isinstance(policy.get("config"), dict) else None
    if policy not in _DTYPES:
        raise ValueError(
            f"{path} has the dtype policy {str(policy)[:40]!r}. Expected one of "
            f"{', '.join(_DTYPES)}."
        )
    try:
        config = config_from_dict(fields.get("config"))
        own = "vit_tf>ResNet" if isinstance(config, vit_tf.ResNetConfig) else _REGISTERED_NAMES[0]
        if top["registered_name"] != own:
            raise ValueError(f"{_CONFIG} describes another kind of model than its configuration")
        return config, policy
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None


def _read_shapes(weights, path, limit):
    """Shapes of all arrays in a HDF5 file; none is read."""
    shapes, claimed = [], 0

    def visit(name, item):
        nonlocal claimed
        if not isinstance(item, h5py.Dataset):
            return
        shapes.append(item.shape or ())
        claimed += math.prod(shapes[-1]) * item.dtype.itemsize
        # An array can claim any shape: what was never written is read as zeros.
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

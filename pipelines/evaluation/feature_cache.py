"""A cache of features in files, so that a second evaluation of a model computes them only once."""

import hashlib
import json
import logging
import os
import zipfile
import zlib
from collections.abc import Callable

import numpy as np

from pipelines.distribution.group import current_group
from pipelines.evaluation.features import Features
from vit_tf.checkpoints.published.npz_archive import NpzArchive
from vit_tf.files import storage
from vit_tf.files.atomic_file import write_atomically

_log = logging.getLogger(__name__)

_FINGERPRINT = "fingerprint"


def model_digest(model, preprocessing) -> str:
    """SHA-256 of all that features depend on besides the images, in hexadecimal digits.

    These are the weights with their names and shapes, the configuration, the dtype policy and the
    preprocessing.
    """
    described = [model.config.to_dict(), model.dtype_policy.name, preprocessing.to_dict()]
    digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode())
    for variable in model.weights:
        value = np.ascontiguousarray(variable.numpy())
        # The first part of a path is the name of the model, which may be numbered.
        name = variable.path.partition("/")[2]
        digest.update(f"{name} {value.dtype} {value.shape}\n".encode())
        digest.update(value.tobytes())
    return digest.hexdigest()


def fingerprint(digest, source, bad_images) -> str:
    """SHA-256 of a `model_digest`, the content of a `DataSource` and the rule for bad images."""
    described = [digest, source.manifest(), source.content_stamp(), bad_images]
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()


def cached_features(folder, key, source, extract: Callable) -> Features:
    """The features in `<folder>/features-<key>.npz`; without a good file, computes and writes it.

    Of several workers, the chief reads and writes the file.

    Args:
        folder: an existing directory, or its URL.
        key: the `fingerprint`.
        source: the `DataSource` of the features.
        extract: computes the `Features`; all workers call it together.

    Returns:
        The `Features`; None in a worker other than the chief if they are in the file.
    """
    path, found = os.path.join(folder, f"features-{key}.npz"), []

    def is_stored():
        found.append(_stored(path, key, source))
        return found[0] is not None

    if current_group().from_chief(is_stored):
        return found[0] if found else None
    features = extract()
    if current_group().is_chief:
        arrays = {"values": features.values, "labels": features.labels, "ids": features.ids}
        write_atomically(path, lambda file: np.savez(file, fingerprint=np.array(key), **arrays))
    return features


def _stored(path, key, source):
    """The features of a good file, else None."""
    if storage.exists(path):
        try:
            features = _read(path, key, source)
            _log.info(f"features of {source}: from {path}")
            return features
        except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            _log.info(f"{path} is damaged and computed again: {_first_sentence(error)}")
    return None


def _read(path, key, source):
    """The features of a file, whose sizes are known before anything is read."""
    archive = NpzArchive(path)
    archive.close()
    shapes, dtypes = archive.shapes, archive.dtypes
    expected = {"values": "float32", "labels": "int32", "ids": "int64", _FINGERPRINT: "<U64"}
    if {name: np.dtype(kind) for name, kind in expected.items()} != dtypes:
        raise ValueError(f"it holds {', '.join(f'{n} {d}' for n, d in dtypes.items())}")
    rows = shapes["ids"][:1]
    if (
        len(shapes["values"]) != 2
        or not rows == shapes["values"][:1] == shapes["labels"] == shapes["ids"]
        or not 0 < rows[0] <= source.num_examples
        or shapes[_FINGERPRINT] != ()
    ):
        raise ValueError(f"it holds arrays of the shapes {list(shapes.values())}")
    # `np.load` prefers a member `values` to `values.npy`, and the header was read from the latter.
    with storage.open_local(path) as file:
        with zipfile.ZipFile(file) as archive:
            if sorted(archive.namelist()) != sorted(f"{name}.npy" for name in expected):
                raise ValueError("it holds files besides its four arrays")
        # Arrays are stored, not compressed, so a small file cannot claim a large array.
        if 4 * int(np.prod(shapes["values"], dtype=object)) > file.seek(0, os.SEEK_END):
            raise ValueError("its arrays are larger than the file")
        file.seek(0)
        with np.load(file, allow_pickle=False) as loaded:
            arrays = {name: loaded[name] for name in expected}
    for name, array in arrays.items():
        if (array.dtype, array.shape) != (dtypes[name], shapes[name]):
            raise ValueError(f"its {name} changed while it was read")
    if str(arrays.pop(_FINGERPRINT)) != key:
        raise ValueError("its fingerprint is another one")
    features = Features(**arrays)
    _check_examples(features, source)
    return features


def _check_examples(features, source):
    """Raises `ValueError` if ids or labels differ from a `DataSource`."""
    everything = range(source.num_examples)
    ids = source.ids(everything)
    if np.any(np.diff(features.ids) < 0) or not np.isin(features.ids, ids).all():
        raise ValueError(f"its ids are not those of {source}")
    good = (features.labels >= 0) & (features.labels < source.num_classes)
    if source.labels_in_memory:
        order = np.argsort(ids)
        indices = order[np.searchsorted(ids, features.ids, sorter=order)]
        good = features.labels == source.read_labels(everything)[indices]
    if not good.all():
        raise ValueError(f"its labels are not those of {source}")


def _first_sentence(error):
    return (str(error) or type(error).__name__).partition("\n")[0].rstrip(".")

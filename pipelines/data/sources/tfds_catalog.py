"""Finds TFDS data sets by name, with messages for missing ones. Never downloads."""

import atexit
import functools
import importlib
import logging
import os
import re
import shutil
import tempfile
from typing import Any

import tensorflow_datasets as tfds

from pipelines.errors import DataError, MissingDataError
from vit_tf.config.near_names import as_question, near_names
from vit_tf.files import storage

_log = logging.getLogger(__name__)

# Data sets that this project generates -> the module that registers them with TFDS.
BUILTIN = {"digits": "pipelines.data.builtin.digits", "shapes": "pipelines.data.builtin.shapes"}
# Kinds of data on disk, `data.name=<kind>:<path>`, and other names that users try.
_KINDS = ("folder", "list", "tfrecord")
_KIND_SYNONYMS = {
    **dict.fromkeys(("dir", "directory", "imagefolder", "image_folder", "images"), "folder"),
    **dict.fromkeys(("csv", "file", "jsonl"), "list"),
    **dict.fromkeys(("records", "tfrecords"), "tfrecord"),
}

_NAME = re.compile(
    r"(?P<name>[A-Za-z_]\w*)(/(?P<config>[\w.\-]+))?(:(?P<version>[\d*]+\.[\d*]+\.[\d*]+))?"
)


def find_builder(name, data_dir=None):
    """Returns the TFDS builder of a name; prepares a built-in data set if its files are missing.

    Args:
        name: `name[/config][:version]`.
        data_dir: folder of prepared data sets; None is the default of TFDS.

    Raises:
        DataError: if the data set does not exist, or a built-in one cannot be written.
    """
    if not (parsed := _NAME.fullmatch(name)):
        expected = (
            "Expected folder:<path>, list:<path>, tfrecord:<path>, or name[/config][:version] of "
            "TFDS, for example cifar10, digits/low or imagenet2012:5.1.0."
        )
        hint = as_question(_as_files(name, data_dir)) or f" {expected}"
        raise DataError(f"{name!r} is not a data set name.{hint}")
    builtin = parsed["name"] in BUILTIN
    if builtin:
        importlib.import_module(BUILTIN[parsed["name"]])
        if parsed["config"]:
            builder_class: Any = tfds.builder_cls(parsed["name"])
            builder_class.make_config(parsed["config"])
    if data_dir is not None:
        data_dir = os.path.expanduser(data_dir)
        _check_readable(data_dir)

    try:
        if builtin:
            return _prepared(name, data_dir)
        return tfds.builder(name, data_dir=data_dir)
    except tfds.core.DatasetNotFoundError:
        known = sorted({*tfds.list_builders(with_community_datasets=False), *BUILTIN})
        near = [*_as_files(name, data_dir), *near_names(parsed["name"], known)]
        hint = as_question(near) or " tfds.list_builders() lists them."
        raise DataError(f"There is no data set named {parsed['name']!r}.{hint}") from None
    except (ValueError, AssertionError):  # The name exists, the configuration or version not.
        code = tfds.builder_cls(parsed["name"])
        configs = ", ".join(code.builder_configs) or "none"
        raise DataError(
            f"There is no {name!r}. {parsed['name']} has the configurations: {configs}; TFDS "
            f"{tfds.__version__} has its version {code.VERSION or 'of each configuration'}."
        ) from None
    except OSError as error:
        raise DataError(
            f"The data set {name!r} cannot be opened: {error}. With data.data_dir choose a folder "
            f"that can be read and written."
        ) from None


def _prepared(name, data_dir):
    """The builder of a built-in data set, whose files are written if they are missing."""
    try:
        builder = tfds.builder(name, data_dir=data_dir)
        builder.download_and_prepare()
    except OSError:
        if data_dir is not None:
            raise
        builder = tfds.builder(name, data_dir=_temporary_folder())
        builder.download_and_prepare()
    return builder


@functools.cache
def _temporary_folder():
    """A folder for built-in data sets where that of TFDS cannot be written, as without a HOME."""
    folder = tempfile.mkdtemp(prefix="vit_tf-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    _log.info(
        f"the folder of TFDS cannot be written: preparing built-in data in {folder} for this "
        "process; TFDS_DATA_DIR or data.data_dir names a folder that keeps them"
    )
    return folder


def _check_readable(data_dir):
    """Raises `DataError` if a URL cannot be read: TFDS raises many types then."""
    try:
        storage.exists(data_dir)
    except OSError as error:
        raise DataError(f"data.data_dir={data_dir} cannot be read: {error.strerror}.") from None


def _as_files(name, data_dir):
    """Suggests a name for a path or a misspelled kind of data: a list of one or zero names."""
    kind, separator, path = name.partition(":")
    if separator:
        near = near_names(kind, _KINDS, synonyms=_KIND_SYNONYMS)
        return [f"{near[0]}:{path}"] if near else []
    if name.lower().endswith((".csv", ".jsonl")):
        return [f"list:{name}"]
    if name.startswith(("/", ".", "~")) or name.endswith("/") or _is_folder(name, data_dir):
        written = _is_folder(name, data_dir, "dataset.json")
        return [f"{'tfrecord' if written else 'folder'}:{name}"]
    return []


def _is_folder(name, data_dir, file=""):
    """Whether `name` is a folder on disk that contains `file`."""
    folder = os.path.join(os.path.expanduser(data_dir or ""), os.path.expanduser(name))
    return bool(name) and os.path.isdir(folder) and os.path.exists(os.path.join(folder, file))


def not_prepared_error(name, builder):
    """Returns the `MissingDataError` for a data set without prepared files, with the fix."""
    bare = name.partition(":")[0]
    message = (
        f"The data set {name!r} is not prepared: there is no {builder.data_dir}/dataset_info.json. "
        f"Copy its prepared files into that folder (dataset_info.json, features.json, the record "
        f"files), set data.data_dir to the folder that has {bare}, or prepare it where there is a "
        f"network: tfds build {bare} --data_dir={builder.data_dir_root}"
    )
    if builder.MANUAL_DOWNLOAD_INSTRUCTIONS:
        message += f" (after the manual download of tensorflow.org/datasets/catalog/{builder.name})"
    if builder.data_path.parent.exists():
        versions = sorted(path.name for path in builder.data_path.parent.iterdir())
        if versions := [version for version in versions if _NAME.fullmatch(f"x:{version}")]:
            message += f". Prepared there: {', '.join(versions)}; use {bare}:{versions[-1]}"
    return MissingDataError(message)

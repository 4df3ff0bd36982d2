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
from tensorflow_datasets.core.utils.file_utils import list_data_dirs

from pipelines.config.names import BUILTIN
from pipelines.errors import DataError, MissingDataError
from vit_tf.config.near_names import as_question, near_names
from vit_tf.files import storage

_log = logging.getLogger(__name__)

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

    A named version that is prepared is read without TFDS's code for the data set, so also one that
    this TFDS no longer prepares. Of a pattern such as 3.*.*, the latest prepared one is taken.

    Args:
        name: `name[/config][:version]`; parts of the version can be *.
        data_dir: folder of prepared data sets; None is the default of TFDS.

    Raises:
        DataError: if the data set does not exist, a built-in one cannot be written, or its version
            is neither prepared nor one that this TFDS can prepare.
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
        importlib.import_module(f"pipelines.data.builtin.{parsed['name']}")
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
        raise _not_built_error(name, parsed, data_dir) from None
    except OSError as error:
        raise DataError(
            f"The data set {name!r} cannot be opened: {error}. With data.data_dir choose a folder "
            f"that can be read and written."
        ) from None


def prepared_versions(name, data_dir=None) -> list[str]:
    """Returns the versions of a TFDS data set that are prepared on this machine, latest last.

    Args:
        name: `name[/config]`.
        data_dir: see `find_builder`; None stands for all folders in which TFDS searches.
    """
    folders = list_data_dirs(os.path.expanduser(data_dir) if data_dir else None)
    paths = [tfds.core.Path(folder) / name for folder in folders]
    return _sorted_versions(version for path in paths for version in _versions_in(path))


def _versions_in(folder):
    """The names of the folders of prepared versions in a folder."""
    try:
        paths = [path for path in folder.iterdir() if tfds.core.Version.is_valid(path.name)]
        return [path.name for path in paths if (path / "dataset_info.json").exists()]
    except OSError:
        return []


def _sorted_versions(versions):
    return [*map(str, sorted({*map(tfds.core.Version, versions)}))]


def _not_built_error(name, parsed, data_dir):
    """The error for a configuration or version that this TFDS does not have.

    Args:
        name, data_dir: see `find_builder`.
        parsed: the match of `_NAME`.
    """
    code: Any = tfds.builder_cls(parsed["name"])
    config, version = parsed["config"], parsed["version"]
    is_known = config is None or config in code.builder_configs
    if parsed["name"] in BUILTIN or not (is_known and version):
        configs = ", ".join(code.builder_configs) or "none"
        return DataError(
            f"There is no {name!r}. {parsed['name']} has the configurations: {configs}; TFDS "
            f"{tfds.__version__} has its version {code.VERSION or 'of each configuration'}."
        )
    bare = name.partition(":")[0]
    own = config and code.builder_configs[config].version
    folder = os.path.join(list_data_dirs(data_dir)[0], bare)
    return MissingDataError(
        f"The data set {name!r} is not prepared, and TFDS {tfds.__version__} cannot prepare this "
        f"version: it has {own or code.VERSION or 'one of each configuration'}. Copy the folder of "
        f"{version} (dataset_info.json, features.json, the record files) into {folder}"
        + _use_other(name, prepared_versions(bare, data_dir))
    )


def _use_other(name, versions):
    """The end of a message about missing files: the versions that are prepared, if any."""
    if not versions:
        return ""
    bare, pinned, _ = name.partition(":")
    order = ", whose examples can be others or in another order" if pinned else ""
    return f". Prepared there: {', '.join(versions)}; use {bare}:{versions[-1]}{order}"


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
    """A folder for built-in data sets if TFDS's folder cannot be written, as without a HOME."""
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
        f"network: "
    )
    if builder.version == builder.canonical_version:
        message += f"tfds build {bare} --data_dir={builder.data_dir_root}"
    else:
        message += (
            f"an older TFDS does, where TFDS {tfds.__version__} prepares only version "
            f"{builder.canonical_version}"
        )
    if builder.MANUAL_DOWNLOAD_INSTRUCTIONS:
        message += f" (after the manual download of tensorflow.org/datasets/catalog/{builder.name})"
    versions = _sorted_versions(_versions_in(builder.data_path.parent))
    return MissingDataError(message + _use_other(name, versions))

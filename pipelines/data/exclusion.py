"""Lists of training examples to leave out (`data.exclude`), as `pipelines.dedup` writes them.

A list is a JSON file with the name and version of the data set, the stored ranges that were
searched, and the examples by split: their ids, counted from 0 in each whole split. So it fits every
range of these splits that was searched, on any number of hosts.

    {"data_set": "cifar10", "version": "3.0.2", "searched": {"train": [[0, 50000]]},
     "excluded": {"train": [17, 4711]}}

A list for ranges of each class has "split_by": "class" too, as `DataSource.manifest`: the same
range of all files has other examples.
"""

import hashlib

import numpy as np

from pipelines.errors import DataError
from vit_tf.files import storage
from vit_tf.files.json_object import read_json_object

_ADVICE = "Write it again with `python -m pipelines.dedup`, or leave data.exclude out."


def exclusion(source, ids) -> dict:
    """The list of some examples of a `DataSource`, as a dict that JSON can hold.

    Args:
        source: the `DataSource` that was searched.
        ids: ids of the examples to leave out, integers `[n]`.
    """
    searched, excluded = {}, {}
    ids = np.unique(np.asarray(ids, np.int64))
    manifest = source.manifest()
    parts = manifest["parts"]
    firsts = {part["first_id"]: part["split"] for part in parts}
    # An id belongs to the split that begins last at or before it.
    begins = np.array(sorted(firsts), np.int64)
    owners = begins[np.searchsorted(begins, ids, side="right") - 1]
    for part in parts:
        searched.setdefault(part["split"], []).append([part["start"], part["stop"]])
    for first, split in firsts.items():
        excluded[split] = (ids[owners == first] - first).tolist()
    return {
        "data_set": source.name,
        "version": source.version,
        "searched": searched,
        "excluded": excluded,
        **{key: manifest[key] for key in ("split_by",) if key in manifest},
    }


def read_exclusion(path, source) -> tuple[np.ndarray, str]:
    """The examples that a list leaves out of a `DataSource`.

    Args:
        path: the file or its URL.
        source: the `DataSource` of training.

    Returns:
        Their ids, int64, sorted; those outside the range of `source` too. And a hash of the
        content of the list, 16 hexadecimal digits.

    Raises:
        DataError: if the file cannot be read or is damaged, or is a list of another data set or
            for other splits.
    """
    excluded, searched, name, version, split_by = _read(path)
    if (name, version) != (source.name, source.version):
        raise DataError(
            f"data.exclude={path} is a list for {name}:{version}, but training reads "
            f"{source.name}:{source.version}. {_ADVICE}"
        )
    digest = hashlib.blake2b(digest_size=8)
    found = [np.zeros(0, np.int64)]
    manifest = source.manifest()
    for part in manifest["parts"]:
        split, start, stop = part["split"], part["start"], part["stop"]
        if split_by != manifest.get("split_by") and not source.is_all(
            split, searched.get(split, [])
        ):
            raise DataError(
                f"data.exclude={path} was made for ranges of {split_by or 'all files'} of {name}, "
                f"but training reads ranges of {manifest.get('split_by', 'all files')} "
                f"(data.split_by). {_ADVICE}"
            )
        if not any(first <= start and stop <= last for first, last in searched.get(split, [])):
            ranges = ", ".join(f"{x}[{a}:{b}]" for x in searched for a, b in searched[x])
            raise DataError(
                f"data.exclude={path} was made for {ranges} of {name}, but training reads "
                f"{split}[{start}:{stop}]. {_ADVICE}"
            )
        rows = np.unique(np.array(excluded.get(split, []), np.int64))
        digest.update(f"{split} {len(rows)} ".encode() + rows.tobytes())
        found.append(rows + part["first_id"])
    return np.unique(np.concatenate(found)), digest.hexdigest()


def _read(path):
    """The values of a list, checked: excluded, searched, data_set, version, split_by."""
    path = storage.normal(path)
    try:
        record = read_json_object(path, _ADVICE)
        if record is None:
            raise DataError(f"data.exclude={path}: there is no such file. {_ADVICE}")
        excluded, searched = record.raw("excluded"), record.raw("searched")
        name, version = record.text("data_set"), record.text("version")
        split_by = record.text("split_by")
    except DataError:
        raise
    except (ValueError, OSError) as error:
        raise DataError(f"data.exclude: {error}") from None
    is_right = (
        name is not None
        and version is not None
        and _are_lists(excluded, _is_place)
        and _are_lists(searched, _is_range)
    )
    if not is_right:
        raise DataError(f"data.exclude={path} is not a list of examples to leave out. {_ADVICE}")
    return excluded, searched, name, version, split_by


def _are_lists(value, is_right):
    return isinstance(value, dict) and all(
        isinstance(items, list) and all(map(is_right, items)) for items in value.values()
    )


def _is_place(value):
    return type(value) is int and 0 <= value < 2**62


def _is_range(value):
    return isinstance(value, list) and len(value) == 2 and all(map(_is_place, value))

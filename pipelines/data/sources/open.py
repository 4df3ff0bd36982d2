"""Opens a source of examples by name: an image folder, a list, TFRecord files, or a TFDS data set.

No code here uses the network.
"""

from pipelines.data.sources.files import USUAL, FileRules
from pipelines.data.sources.folders import folder_splits, open_folder
from pipelines.data.sources.lists import list_splits, open_list
from pipelines.data.sources.records import open_records, record_splits
from pipelines.data.sources.tfds_source import open_tfds, tfds_splits
from pipelines.errors import DataError

# `data.name=<kind>:<path>`: kind -> (function that opens a split, function that lists the splits).
# All other names are TFDS data sets.
_KINDS = {
    "folder": (open_folder, folder_splits),
    "list": (open_list, list_splits),
    "tfrecord": (open_records, record_splits),
}


def open_split(data, split, fault=USUAL.fault, known=None):
    """Opens a split of the data set that `config.data.Data` describes; errors of `open_source`.

    Args:
        data: the section.
        split: see `open_source`.
        fault: see `FileRules`.
        known: a `DataSource` of another split of this data set, or None. Files that it has listed
            are not listed again.
    """
    if known is not None and known.beside is not None:
        return known.beside(split)
    rules = FileRules(data.split_by, data.class_order, fault)
    return open_source(data.name, split, data.data_dir, data.label, rules)


def open_source(name, split, data_dir=None, label=None, rules=USUAL):
    """Opens a split of a data set.

    | name | |
    | --- | --- |
    | `folder:<path>` | images in a folder per class, see `folders.py` |
    | `list:<path>` | a .csv or .jsonl file with the path and the label of each image, `lists.py` |
    | `tfrecord:<path>` | a folder of TFRecord files, see `records.py` |
    | `name[/config][:version]` | TFDS; a built-in data set is prepared on first use, all others \
must be prepared before |

    Args:
        name: see above.
        split: split in TFDS notation: "train", "train[:90%]", "train[100:]", "train+validation";
            or a range of a range: "train[90%:][:200]".
        data_dir: folder of prepared TFDS data sets; None is the default of TFDS. Relative paths of
            the other kinds start from this folder; None is the current directory.
        label: the label feature of a TFDS data set, or a rule, see `tfds_features.py`; None takes
            its usual one. The other kinds have one label only.
        rules: `FileRules` of a folder or list.

    Returns:
        A `DataSource`.

    Raises:
        DataError: if the data set or split does not exist, its files are missing, or it has no
            labeled images or no such label.
    """
    (open_kind, _), path = _find_kind(name)
    if open_kind not in (open_folder, open_list) and rules.class_order != "auto":
        raise DataError(
            f"data.class_order={rules.class_order} numbers the classes of folders and lists, but "
            f"{name} has numbers of its own. Leave it out."
        )
    if open_kind is open_tfds:
        return open_tfds(path, split, data_dir, label)
    if label is not None:
        raise DataError(
            f"data.label={label} chooses a label of a TFDS data set, but {name} has one label "
            "only. Leave it out."
        )
    if open_kind is open_records:
        return open_records(path, split, data_dir)
    return open_kind(path, split, data_dir, rules)


def split_names(name, data_dir=None, rules=USUAL):
    """Returns the names of all whole splits of a data set, a tuple of strings.

    The tuple is empty for a TFDS data set that is not prepared.

    Args and errors are as for `open_source`.
    """
    (_, list_names), path = _find_kind(name)
    if list_names is list_splits:
        return list_splits(path, data_dir, rules)
    return list_names(path, data_dir)


def _find_kind(name):
    """Returns the functions for this kind of data set, and the name or path to pass to them."""
    kind, separator, path = name.partition(":")
    if separator and kind in _KINDS:
        return _KINDS[kind], path
    return (open_tfds, tfds_splits), name

"""Opens a source of examples by name, and chooses its splits for `auto`.

A name stands for an image folder, a list, TFRecord files, or a TFDS data set. No code here uses
the network. `auto` in `data.train_split` and `data.eval_split` stands for:

| the data set has | training takes | evaluation takes |
| --- | --- | --- |
| one split, such as train | train[:90%] | train[90%:] |
| several | train or training | the first of test, testing, validation, valid, val, dev, eval, ... |

The letter case of names does not matter, and for folders a name may have other words beside these,
such as seg_train (`layouts.py`). The only split is divided if both fields are `auto` and its name
is not one of those for evaluation.
"""

import dataclasses
import logging

from pipelines.config.names import AUTO_SPLIT
from pipelines.data.sources.files import USUAL, FileRules
from pipelines.data.sources.folders import folder_splits, open_folder
from pipelines.data.sources.listing.layouts import EVAL_NAMES, TRAIN_NAMES, split_word
from pipelines.data.sources.lists import list_splits, open_list
from pipelines.data.sources.records import open_records, record_splits
from pipelines.data.sources.tfds_source import open_tfds, tfds_splits
from pipelines.errors import DataError

_log = logging.getLogger(__name__)

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
    if list_names is folder_splits:
        return folder_splits(path, data_dir, rules)
    if list_names is list_splits:
        return list_splits(path, data_dir, rules)
    return list_names(path, data_dir)


def _find_kind(name):
    """Returns the functions for this kind of data set, and the name or path to pass to them."""
    kind, separator, path = name.partition(":")
    if separator and kind in _KINDS:
        return _KINDS[kind], path
    return (open_tfds, tfds_splits), name


def choose_splits(data, training=True, evaluation=True, names=()):
    """The same as `with_splits`, but logs the notes."""
    chosen, notes = with_splits(data, training, evaluation, names)
    for note in notes:
        _log.info(note)
    return chosen


def with_splits(data, training=True, evaluation=True, names=()):
    """Replaces `auto` in the data section of an experiment with splits of the data set.

    Args:
        data: `config.data.Data`.
        training: False leaves `train_split` unchanged, for a data set that is only evaluated.
        evaluation: False takes none where there is no split for evaluation, for a command that
            reads training data only.
        names: result of `split_names`, if it is known.

    Returns:
        `config.data.Data`, and a list with a sentence about the chosen splits, which is empty if
        they are train and test.

    Raises:
        DataError: if the data set does not exist, or has no split for training or evaluation.
    """
    fields = ["train_split", "eval_split"] if training else ["eval_split"]
    fields = [field for field in fields if getattr(data, field) == AUTO_SPLIT]
    if not fields:
        return data, []
    # If the data set does not exist, the error comes when it is opened.
    names = names or split_names(data.name, data.data_dir) or ("train", "test")
    words = {name: name.lower() for name in names}
    if data.name.startswith("folder:"):
        words = {name: split_word(name) or word for name, word in words.items()}
    chosen = _divided(data, words) or {
        "train_split": _find(words, TRAIN_NAMES),
        "eval_split": _find(words, EVAL_NAMES),
    }
    chosen = {field: chosen[field] for field in fields}
    for field, split in chosen.items():
        if split is None and (evaluation or field == "train_split"):
            raise _no_split_error(data.name, names, field)
    notes, found = [], {field: split for field, split in chosen.items() if split is not None}
    if not {"train", "test"}.issuperset(found.values()):
        uses = {"train_split": "training", "eval_split": "evaluation"}
        taken = ", ".join(f"{uses[field]} takes {split}" for field, split in found.items())
        splits = "split" if len(names) == 1 else "splits"
        notes.append(f"{data.name} has the {splits} {', '.join(names)}: {taken}")
    return dataclasses.replace(data, **chosen), notes


def _divided(data, words):
    """Returns both ranges of the only split; None if the split is not divided."""
    name, *others = words
    if others or words[name] in EVAL_NAMES:
        return None
    if not data.train_split == data.eval_split == AUTO_SPLIT:
        return None
    return {"train_split": f"{name}[:90%]", "eval_split": f"{name}[90%:]"}


def _find(words, wanted):
    """Returns the shortest split with the word that comes first in `wanted`; None without one."""
    for word in wanted:
        if found := [name for name in words if words[name] == word]:
            return min(found, key=len)
    return None


def _no_split_error(name, names, field):
    wanted = TRAIN_NAMES if field == "train_split" else EVAL_NAMES
    suffix, otherwise = ("[:90%]", "") if field == "train_split" else ("[90%:]", ", or to none")
    return DataError(
        f"{name} has no split called {' or '.join(wanted)}. It has: {', '.join(names)}. Set "
        f"data.{field} to one of these or to a range such as {names[0]}{suffix}{otherwise}."
    )

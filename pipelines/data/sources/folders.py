"""Image folders: `data.name=folder:/data/pets`, a folder per class, with or without splits.

    /data/pets/cat/1.jpg               one split, with the name "train"
    /data/pets/dog/tabby/2.PNG

    /data/pets/train/cat/1.jpg         a folder per split: every folder directly in /data/pets is
    /data/pets/val/cat/7.jpg           called train, training, val, valid, validation, dev, test or
    /data/pets/val/dog/8.webp          testing, in any letter case

Without split folders, all images are in the split "train". Training then takes "train[:90%]" and
evaluation "train[90%:]" (`splits.py`), parts of each class (`stored_order.py`).
Each folder directly in a split folder is a class, and its name is the label. Labels are numbered in
the order of these names (by code point) over all splits. A class without images, a class in only
one of several splits, and names that differ only in letter case are refused. Images are the files
with one of the `SUFFIXES` of `vit_tf/images/decoding.py`, in any letter case and at any depth below
the class. Ids follow the sorted relative paths of a split.
Symbolic links are followed, except links to a folder that contains them: its images would get a
wrong class. Below a class, every directory is visited once. Names that begin with a dot, and
__MACOSX, are ignored.
"""

import collections
import logging
import os

import numpy as np

from pipelines.data.labels.encoding import is_unicode
from pipelines.data.skipped_files import count_by_suffix
from pipelines.data.sources.files import (
    USUAL,
    FileSource,
    LazyMapping,
    absolute_path,
    make_files,
)
from pipelines.errors import DataError, MissingDataError, counted
from vit_tf.files import storage
from vit_tf.images.decoding import SUFFIXES

_log = logging.getLogger(__name__)

TRAIN_NAMES = ("train", "training")
# Evaluation takes the first of these splits that a data set has; see `splits.py`.
EVAL_NAMES = ("test", "testing", "validation", "valid", "val", "dev")

_EXPECTED = "Expected <class>/<image>, or train/<class>/<image> and others in place of train"


def open_folder(path, split, data_dir=None, rules=USUAL):
    """Opens a split of an image folder; see the head of this module.

    Args:
        path: the folder.
        split: the split, in TFDS notation.
        data_dir: folder that a relative path starts from.
        rules: `FileRules`.

    Raises:
        DataError: if the folder or split does not exist or cannot be read, there are fewer than
            two classes, or the folders of the classes are refused.
    """
    root, folders = _find_splits(path, data_dir)
    classes = {split: _list_directory(folder)[0] for split, folder in folders.items()}
    labels = sorted(set().union(*classes.values()))
    if len(labels) < 2:
        found = f"one class, {labels[0]!r}" if labels else "no folder of a class"
        raise DataError(f"{root} has {found}. {_EXPECTED}, with at least two classes.")
    for label in labels:
        if not is_unicode(label):
            raise DataError(f"The name of the class folder {label!r} in {root} is not UTF-8.")
    _check_classes(root, classes, labels)
    # Paths are relative to the folder of all splits; ids start at 0 in each split.
    splits = LazyMapping(folders, lambda key: _list_split(root, folders[key], labels))
    return FileSource(f"folder:{root}", root, splits, split, labels, rules=rules)


def _check_classes(root, classes, labels):
    """Refuses classes that are a mistake in most cases.

    Args:
        root: the folder, for messages.
        classes: the names of the class folders by split.
        labels: the names of all classes.
    """
    spellings = {}
    for label in labels:
        other = spellings.setdefault(label.casefold(), label)
        if other != label:
            raise DataError(
                f"{root} has the class folders {other!r} and {label!r}, which differ only in the "
                "letter case. Give one class one name."
            )
    for label in labels:
        having = [split for split, names in classes.items() if label in names]
        if len(having) == 1 and len(classes) > 1:
            without = ", ".join(split for split in classes if split not in having)
            raise DataError(
                f"The class {label!r} of {root} is in {having[0]} and in no other split. Add "
                f"images of it to {without}, or move {having[0]}/{label} away."
            )


def folder_splits(path, data_dir=None):
    """Returns the split names of an image folder; arguments and errors as for `open_folder`."""
    return tuple(_find_splits(path, data_dir)[1])


def _find_splits(path, data_dir):
    """Returns the absolute path of the folder, and a mapping from each split to its folder."""
    root = absolute_path(path, data_dir, "folder")
    try:
        is_folder, is_file = storage.is_folder(root), storage.is_file(root)
    except OSError as error:
        raise _directory_error(root, error) from None
    if not is_folder:
        hint = "; for a .csv or .jsonl file write list:<path>" if is_file else ""
        raise MissingDataError(
            f"There is no folder {root}. Set data.name=folder:<path> to one{hint}."
        )
    folders, _ = _list_directory(root)
    in_splits = [name for name in folders if name.lower() in TRAIN_NAMES + EVAL_NAMES]
    if len(in_splits) > 1 and len(in_splits) < len(folders):
        others = [name for name in folders if name not in in_splits]
        raise DataError(
            f"{root} mixes folders of splits ({', '.join(in_splits)}) with others "
            f"({', '.join(others[:3])}). Move the others away, or name the folder of one split."
        )
    if folders and len(in_splits) == len(folders):
        return root, {name: os.path.join(root, name) for name in folders}
    return root, {"train": root}


def _list_split(root, folder, labels):
    """Returns the `Files` of a split.

    Args:
        root: folder of all splits; paths are relative to it.
        folder: folder of the split, with a folder per class.
        labels: class names in label order.
    """
    listed, prefix, skipped = [], len(os.path.join(root, "")), collections.Counter()
    upwards = []
    for label, name in enumerate(labels):
        class_folder = os.path.join(folder, name)
        if not storage.is_folder(class_folder):
            continue  # this split has no images of the class
        images, others, links = _find_images(class_folder)
        upwards += links
        if not images:
            held = f", but files such as {others[0]}" if others else ""
            raise DataError(
                f"The class folder {class_folder} has no image{held}. Expected "
                f"{', '.join(SUFFIXES)}. {'Convert them' if others else 'Add images'}, or remove "
                "the folder."
            )
        skipped.update(count_by_suffix(others))
        listed += [(image[prefix:], label) for image in images]
    if not listed:
        raise DataError(
            f"There are no images ({', '.join(SUFFIXES)}) in the class folders of {folder}. "
            f"{_EXPECTED}."
        )
    if upwards:
        _log.info(
            f"{folder}: {counted(len(upwards), 'link')} to a folder that contains it not followed, "
            f"such as {upwards[0]}"
        )
    listed.sort()
    paths, numbers = zip(*listed, strict=True)
    return make_files(list(paths), np.array(numbers, np.int32), skipped=skipped)


def _find_images(folder):
    """Returns the paths of the images below a folder, of other files, and of links upwards."""
    images, others, upwards = [], [], []
    waiting, seen = [folder], set()
    while waiting:
        directory = waiting.pop()
        if _leads_upwards(directory):
            upwards.append(directory)
            continue
        if (identity := _identity(directory)) in seen:
            continue
        seen.add(identity)
        folders, files = _list_directory(directory)
        # Reversed, because the last entry is visited next: folders are visited in the order of
        # their names. The order matters if two links lead to the same folder.
        waiting += [os.path.join(directory, name) for name in reversed(folders)]
        for name in files:
            path = os.path.join(directory, name)
            is_image = os.path.splitext(name)[1].lower() in SUFFIXES
            (images if is_image else others).append(path)
    return images, others, upwards


def _leads_upwards(path):
    """Whether a path is a link to a folder that contains it, directly or through other links."""
    if storage.is_url(path) or not os.path.islink(path):
        return False
    target, parent = os.path.realpath(path), os.path.dirname(path)
    if os.path.join(os.path.realpath(parent), "").startswith(os.path.join(target, "")):
        return True
    while parent != os.path.dirname(parent):
        if os.path.realpath(parent) == target:
            return True
        parent = os.path.dirname(parent)
    return False


def _identity(directory):
    """Returns the identity of a directory, the same for every link that leads to it."""
    if storage.is_url(directory):
        return directory
    try:
        status = os.stat(directory)
    except OSError as error:
        raise _directory_error(directory, error) from None
    return status.st_dev, status.st_ino


def _list_directory(directory):
    """Returns the sorted names of the folders, and of all other entries, in a directory."""
    folders, others = [], []
    try:
        if storage.is_url(directory):
            listed = storage.list_folder(directory, SUFFIXES)
            return tuple([name for name in names if not _is_hidden(name)] for names in listed)
        with os.scandir(directory) as entries:
            for entry in entries:
                if _is_hidden(entry.name):
                    continue
                (folders if _is_folder(entry) else others).append(entry.name)
    except OSError as error:
        raise _directory_error(directory, error) from None
    return sorted(folders), sorted(others)


def _is_hidden(name):
    return name.startswith(".") or name == "__MACOSX"


def _directory_error(directory, error):
    """Returns the `DataError` for a folder that cannot be listed."""
    return DataError(
        f"The folder {directory[:500]} cannot be read: {error.strerror}. Change its permissions, "
        f"or remove it."
    )


def _is_folder(entry):
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False

"""Image folders: `data.name=folder:/data/pets`, a folder per class, with or without splits.

    /data/pets/cat/1.jpg               one split, with the name "train"
    /data/pets/dog/tabby/2.PNG

    /data/pets/train/cat/1.jpg         a folder per split, called train, val, test_set and so on:
    /data/pets/val/cat/7.jpg           see `layouts.py`
    /data/pets/val/dog/8.webp

Without split folders, all images are in the split "train". Training then takes "train[:90%]" and
evaluation "train[90%:]" (`open.py`), parts of each class (`stored_order.py`).
Each folder directly in a split folder is a class, and its name is the label. Labels are numbered in
the order of these names (by code point, or as data.class_order says) over all splits. A class
without images, a class in only one of several splits, names that differ only in letter case, and a
class whose images are all in folders that other classes have too are refused. Images are the files
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

from pipelines.data.labels.class_order import in_order
from pipelines.data.labels.encoding import is_unicode
from pipelines.data.skipped_files import count_by_suffix
from pipelines.data.sources.files import (
    USUAL,
    FileSource,
    LazyMapping,
    absolute_path,
    make_files,
)
from pipelines.data.sources.listing.directories import directory_error, find_images, list_directory
from pipelines.data.sources.listing.layouts import find_splits, levels_problem
from pipelines.errors import DataError, MissingDataError, counted
from vit_tf.files import storage
from vit_tf.images.decoding import SUFFIXES

_log = logging.getLogger(__name__)

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
    root, folders = _find_splits(path, data_dir, rules.fault)
    classes = {split: list_directory(folder)[0] for split, folder in folders.items()}
    labels = in_order(set().union(*classes.values()), rules.class_order)
    if len(labels) < 2:
        found = f"one class, {labels[0]!r}" if labels else "no folder of a class"
        deeper = f", or name data.name=folder:{storage.join(root, labels[0])}" if labels else ""
        problem = f"{root} has {found}. {_EXPECTED}, with at least two classes{deeper}."
        if not labels:
            raise DataError(problem)
        rules.fault(problem)
    for label in labels:
        if not is_unicode(label):
            rules.fault(f"The name of the class folder {label!r} in {root} is not UTF-8.")
    _check_classes(root, folders, classes, labels, rules.fault)
    # Paths are relative to the folder of all splits; ids start at 0 in each split.
    splits = LazyMapping(folders, lambda key: _list_split(root, folders[key], labels, rules))

    def open_one(split):
        source = FileSource(f"folder:{root}", root, splits, split, labels, rules=rules)
        source.beside = open_one
        return source

    return open_one(split)


def _check_classes(root, folders, classes, labels, fault):
    """Reports classes that are a mistake in most cases.

    Args:
        root: the folder, for messages.
        folders: the folder of each split.
        classes: the names of the class folders by split.
        labels: the names of all classes.
        fault: see `FileRules`.
    """
    spellings = {}
    for label in labels:
        other = spellings.setdefault(label.casefold(), label)
        if other != label:
            fault(
                f"{root} has the class folders {other!r} and {label!r}, which differ only in the "
                "letter case. Give one class one name."
            )
    first = max(classes, key=lambda split: len(classes[split]))
    for split, names in classes.items():
        if split != first and not {*names} & {*classes[first]}:
            fault(
                f"{folders[split]} has none of the classes of {first}, but "
                f"{', '.join(names[:3]) or 'no folder'}. "
                f"If its images have no labels, leave it out: data.name=folder:{folders[first]}. "
                "Else give a class the same name in each split."
            )
            return
    for label in labels:
        having = [split for split, names in classes.items() if label in names]
        if len(having) == 1 and len(classes) > 1:
            without = ", ".join(split for split in classes if split not in having)
            fault(
                f"The class {label!r} of {root} is in {having[0]} and in no other split. Add "
                f"images of it to {without}, or move {having[0]}/{label} away."
            )


def folder_splits(path, data_dir=None, rules=USUAL):
    """Returns the split names of an image folder; arguments and errors as for `open_folder`."""
    return tuple(_find_splits(path, data_dir, rules.fault)[1])


def _find_splits(path, data_dir, fault):
    """Returns the absolute path of the folder, and a mapping from each split to its folder."""
    root = absolute_path(path, data_dir, "folder")
    try:
        is_folder, is_file = storage.is_folder(root), storage.is_file(root)
    except OSError as error:
        raise directory_error(root, error) from None
    if not is_folder:
        hint = "; for a .csv or .jsonl file write list:<path>" if is_file else ""
        raise MissingDataError(
            f"There is no folder {root}. Set data.name=folder:<path> to one{hint}."
        )
    return root, find_splits(root, fault)


def _list_split(root, folder, labels, rules):
    """Returns the `Files` of a split.

    Args:
        root: folder of all splits; paths are relative to it.
        folder: folder of the split, with a folder per class.
        labels: class names in label order.
        rules: `FileRules`.
    """
    listed, prefix, skipped = [], len(os.path.join(root, "")), collections.Counter()
    upwards, holders = [], {}
    for label, name in enumerate(labels):
        class_folder = os.path.join(folder, name)
        if not storage.is_folder(class_folder):
            continue  # this split has no images of the class
        images, others, links = find_images(class_folder)
        upwards += links
        if not images:
            held = f", but files such as {others[0]}" if others else ""
            rules.fault(
                f"The class folder {class_folder} has no image{held}. Expected "
                f"{', '.join(SUFFIXES)}. {'Convert them' if others else 'Add images'}, or remove "
                "the folder."
            )
        holders[name] = {_holder(image[len(class_folder) + 1 :], name) for image in images}
        skipped.update(count_by_suffix(others))
        listed += [(image[prefix:], label) for image in images]
    if not listed:
        raise DataError(
            f"There are no images ({', '.join(SUFFIXES)}) in the class folders of {folder}. "
            f"{_EXPECTED}."
        )
    if problem := levels_problem(folder, holders):
        # Runs of earlier versions, which have ranges of files, go on with the classes they have.
        (rules.fault if rules.split_by == "class" else _log.warning)(problem)
    if upwards:
        _log.info(
            f"{folder}: {counted(len(upwards), 'link')} to a folder that contains it not followed, "
            f"such as {upwards[0]}"
        )
    listed.sort()
    paths, numbers = zip(*listed, strict=True)
    return make_files(list(paths), np.array(numbers, np.int32), skipped=skipped)


def _holder(path, label):
    """The first folder of a path below a class that is not called like the class; "" without."""
    names = path.split(os.sep)[:-1]
    return next((name for name in names if name.casefold() != label.casefold()), "")

"""Image folders: `data.name=folder:/data/pets`, a folder per class, with or without splits.

    /data/pets/cat/1.jpg               one split, which is called "train"
    /data/pets/dog/tabby/2.PNG

    /data/pets/train/cat/1.jpg         a folder per split: the folders right in /data/pets are all
    /data/pets/val/cat/7.jpg           called train, training, val, valid, validation, dev, test or
    /data/pets/val/dog/8.webp          testing, in any letter case

Without split folders all of it is the split "train", of which training takes "train[:90%]" and
evaluation "train[90%:]" (`splits.py`); both hold all classes (`files.py`).
A class is a folder right below, its name is the label, and labels are numbered in the order of
these names (by code point) over all splits. Images are the files with one of the `SUFFIXES` of
`vit_tf/images/decoding.py`, in any letter case and at any depth below the class. Their ids follow
the sorted relative paths of a split.
Symbolic links are followed; below a class every directory counts once, so that links in a circle
end. Names that begin with a dot, and __MACOSX, are ignored.
"""

import os

from pipelines.data.sources.files import (
    FileSource,
    LazyMapping,
    absolute_path,
    is_unicode,
    make_files,
)
from pipelines.errors import DataError
from vit_tf.images.decoding import SUFFIXES

TRAIN_NAMES = ("train", "training")
# The first one that a data set has is evaluated on; see `splits.py`.
EVAL_NAMES = ("test", "testing", "validation", "valid", "val", "dev")

_EXPECTED = "Expected <class>/<image>, or train/<class>/<image> and others in place of train"


def open_folder(path, split, data_dir=None):
    """Opens a split of an image folder; see the head of this module.

    Args:
        path: the folder.
        split: in TFDS notation.
        data_dir: where a relative path begins.

    Raises:
        DataError: if there is no such folder or split, it cannot be read, or has too few classes.
    """
    root, places = _find_splits(path, data_dir)
    labels = sorted({name for place in places.values() for name in _list_directory(place)[0]})
    if len(labels) < 2:
        found = f"one class, {labels[0]!r}" if labels else "no folder of a class"
        raise DataError(f"{root} has {found}. {_EXPECTED}, with at least two classes.")
    for label in labels:
        if not is_unicode(label):
            raise DataError(f"The name of the class folder {label!r} in {root} is not UTF-8.")
    # Paths start from the folder of all splits, ids from each split.
    splits = LazyMapping(places, lambda key: _list_split(root, places[key], labels))
    return FileSource(f"folder:{root}", root, splits, split, labels)


def folder_splits(path, data_dir=None):
    """Returns the names of the splits of an image folder; arguments and errors: `open_folder`."""
    return tuple(_find_splits(path, data_dir)[1])


def _find_splits(path, data_dir):
    """Returns the folder, absolute, and a mapping from each split to its own folder."""
    root = absolute_path(path, data_dir, "folder")
    if not os.path.isdir(root):
        hint = "; for a .csv or .jsonl file write list:<path>" if os.path.isfile(root) else ""
        raise DataError(f"There is no folder {root}. Set data.name=folder:<path> to one{hint}.")
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
        root: folder of all splits, where the paths start from.
        folder: folder of the split, with a folder per class.
        labels: class names in label order.
    """
    listed, prefix = [], len(os.path.join(root, ""))
    for label, name in enumerate(labels):
        class_folder = os.path.join(folder, name)
        if not os.path.isdir(class_folder):
            continue  # a class that this split does not have
        images, other = _find_images(class_folder)
        if other and not images:
            raise DataError(
                f"The class folder {class_folder} has no image, but files such as {other}. "
                f"Expected {', '.join(SUFFIXES)}. Convert them, or remove the folder."
            )
        listed += [(image[prefix:], label) for image in images]
    if not listed:
        raise DataError(
            f"There are no images ({', '.join(SUFFIXES)}) in the class folders of {folder}. "
            f"{_EXPECTED}."
        )
    listed.sort()
    paths, numbers = zip(*listed, strict=True)
    return make_files(list(paths), numbers)


def _find_images(folder):
    """Returns the paths of all images below a folder, and the path of one other file or None."""
    images, other = [], None
    waiting, seen = [folder], set()
    while waiting:
        directory = waiting.pop()
        try:
            status = os.stat(directory)
        except OSError as error:
            raise _directory_error(directory, error) from None
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        folders, files = _list_directory(directory)
        # The last one is visited next: in the order of names, which decides among links.
        waiting += [os.path.join(directory, name) for name in reversed(folders)]
        for name in files:
            path = os.path.join(directory, name)
            if os.path.splitext(name)[1].lower() in SUFFIXES:
                images.append(path)
            else:
                other = path
    return images, other


def _list_directory(directory):
    """Returns the sorted names of the folders, and of everything else, in a directory."""
    folders, others = [], []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.name.startswith(".") or entry.name == "__MACOSX":
                    continue
                (folders if _is_folder(entry) else others).append(entry.name)
    except OSError as error:
        raise _directory_error(directory, error) from None
    return sorted(folders), sorted(others)


def _directory_error(directory, error):
    """Returns the `DataError` for a folder that the system does not list."""
    return DataError(
        f"The folder {directory[:500]} cannot be read: {error.strerror}. Change its permissions, "
        f"or remove it."
    )


def _is_folder(entry):
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False

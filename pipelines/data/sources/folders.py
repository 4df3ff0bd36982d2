"""Image folders: `data.name=folder:/data/pets`, a folder per class, with or without splits.

    /data/pets/cat/1.jpg               one split, which is called "train"
    /data/pets/dog/tabby/2.PNG

    /data/pets/train/cat/1.jpg         a folder per split: the folders right in /data/pets are all
    /data/pets/val/cat/7.jpg           called train, training, val, valid, validation, dev, test or
    /data/pets/val/dog/8.webp          testing, in any letter case

Without split folders take "train[:90%]" and "train[90%:]"; both hold all classes (`files.py`).
A class is a folder right below, its name is the label, and labels are numbered in the order of
these names (by code point) over all splits. Images are the files with one of `SUFFIXES`, in any
letter case and at any depth below the class. Their ids follow the sorted relative paths of a split.
Symbolic links are followed; below a class every directory counts once, so that links in a circle
end. Names that begin with a dot, and __MACOSX, are ignored.
"""

import os

from pipelines.data.sources.files import FileSource, absolute_path, make_files
from pipelines.errors import DataError

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif")
SPLIT_NAMES = ("train", "training", "val", "valid", "validation", "dev", "test", "testing")

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
    root = absolute_path(path, data_dir, "folder")
    if not os.path.isdir(root):
        hint = "; for a .csv or .jsonl file write list:<path>" if os.path.isfile(root) else ""
        raise DataError(f"There is no folder {root}. Set data.name=folder:<path> to one{hint}.")
    folders, _ = _entries(root)
    in_splits = [name for name in folders if name.lower() in SPLIT_NAMES]
    if len(in_splits) > 1 and len(in_splits) < len(folders):
        others = [name for name in folders if name not in in_splits]
        raise DataError(
            f"{root} mixes folders of splits ({', '.join(in_splits)}) with others "
            f"({', '.join(others[:3])}). Move the others away, or name the folder of one split."
        )
    if folders and len(in_splits) == len(folders):
        places = {name: os.path.join(root, name) for name in folders}
    else:
        places = {"train": root}

    labels = sorted({name for place in places.values() for name in _entries(place)[0]})
    if len(labels) < 2:
        found = f"one class, {labels[0]!r}" if labels else "no folder of a class"
        raise DataError(f"{root} has {found}. {_EXPECTED}, with at least two classes.")
    for label in labels:
        if not _is_text(label):
            raise DataError(f"The name of the class folder {label!r} in {root} is not UTF-8.")
    # Paths start from the folder of all splits, ids from each split.
    splits = _Splits(root, places, labels)
    return FileSource(f"folder:{root}", root, splits, split, labels)


class _Splits(dict):
    """The `Files` of each split, listed when asked for: a split may have a million files."""

    def __init__(self, root, places, labels):
        super().__init__(dict.fromkeys(places))
        self._root, self._places, self._labels = root, places, labels

    def __getitem__(self, split):
        if super().__getitem__(split) is None:
            self[split] = self._list(self._places[split])
        return super().__getitem__(split)

    def _list(self, place):
        listed, prefix = [], len(os.path.join(self._root, ""))
        for label, name in enumerate(self._labels):
            folder = os.path.join(place, name)
            if not os.path.isdir(folder):
                continue  # a class that this split does not have
            images, other = _find_images(folder)
            if other and not images:
                raise DataError(
                    f"The class folder {folder} has no image, but files such as {other}. Expected "
                    f"{', '.join(SUFFIXES)}. Convert them, or remove the folder."
                )
            listed += [(image[prefix:], label) for image in images]
        if not listed:
            raise DataError(
                f"There are no images ({', '.join(SUFFIXES)}) in the class folders of {place}. "
                f"{_EXPECTED}."
            )
        listed.sort()
        paths, labels = zip(*listed, strict=True)
        return make_files(list(paths), labels)


def _find_images(folder):
    """Returns the paths of all images below a folder, and the path of one other file or None."""
    images, other = [], None
    waiting, seen = [folder], set()
    while waiting:
        directory = waiting.pop()
        try:
            status = os.stat(directory)
        except OSError as error:
            raise _unreadable(directory, error) from None
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        folders, files = _entries(directory)
        # The last one is visited next: in the order of names, which decides among links.
        waiting += [os.path.join(directory, name) for name in reversed(folders)]
        for name in files:
            path = os.path.join(directory, name)
            if os.path.splitext(name)[1].lower() in SUFFIXES:
                images.append(path)
            else:
                other = path
    return images, other


def _entries(directory):
    """Returns the sorted names of the folders, and of everything else, in a directory."""
    folders, others = [], []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.name.startswith(".") or entry.name == "__MACOSX":
                    continue
                (folders if _is_folder(entry) else others).append(entry.name)
    except OSError as error:
        raise _unreadable(directory, error) from None
    return sorted(folders), sorted(others)


def _unreadable(directory, error):
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


def _is_text(name):
    try:
        return bool(name.encode())
    except UnicodeEncodeError:
        return False

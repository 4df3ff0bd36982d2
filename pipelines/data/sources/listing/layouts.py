"""Which folders of an image folder are splits, and which are classes.

| folder X | splits |
| --- | --- |
| `X/cat/1.jpg` | one, "train" |
| `X/train/cat/1.jpg`, `X/val/cat/2.jpg` | `train`, `val` |
| `X/seg_train/sea/1.jpg`, `X/seg_test/sea/2.jpg` | `seg_train`, `seg_test`: words in their names |

A folder that is alone in a folder of its own name stands for that: archives are unpacked so. A
folder called like a split that has images itself is a class, unless it has folders that another
one has too, or there are splits beside it.
"""

import os
import re
from typing import NamedTuple

from pipelines.data.sources.listing.directories import is_image, list_directory
from pipelines.errors import DataError
from vit_tf.files import storage

TRAIN_NAMES = ("train", "training")
# Evaluation takes the first of these splits that a data set has; see `open.py`.
EVAL_NAMES = ("test", "testing", "validation", "valid", "val", "dev", "eval", "evaluation")

_WORD = re.compile(
    rf"(?:^|[^a-z])({'|'.join(TRAIN_NAMES + EVAL_NAMES)})(?:set|split|data|images|imgs)?(?![a-z])"
)


def split_word(name) -> str | None:
    """The word of `TRAIN_NAMES` or `EVAL_NAMES` in a name such as "seg_train" or "TestSet"."""
    found = _WORD.search(name.lower())
    return found[1] if found else None


class _Folder(NamedTuple):
    path: str
    folders: list
    has_images: bool


def find_splits(root, fault) -> dict[str, str]:
    """The folder of each split of an image folder, by the name of the split.

    Args:
        root: the folder, absolute, or its URL.
        fault: called with a sentence about each fault, such as other folders beside the
            splits; see `FileRules` of `files.py`.

    Raises:
        DataError: if a folder cannot be read, or two splits have the same name.
    """
    whole = _unpacked(root)
    named = {name: split_word(name) for name in whole.folders}
    called = {
        name: _unpacked(storage.join(whole.path, name)) for name, word in named.items() if word
    }
    exact = [name for name in called if name.lower() in TRAIN_NAMES + EVAL_NAMES]
    splits = {name: called[name] for name in called if _has_classes(name, called)}
    if len(exact) == len(whole.folders):  # Images beside their classes count for nothing.
        splits |= {name: called[name] for name in exact if called[name].folders}
    kinds = {named[name] in TRAIN_NAMES for name in called}
    if not splits and len(kinds) == 2 and len(called) == len(whole.folders):
        return {name: folder.path for name, folder in called.items()}  # Without classes.
    if not splits and len(exact) > 1:
        fault(_without_classes(whole, exact))
    if not splits or not ({*exact} & {*splits} or len(kinds) == 2):
        return {"train": whole.path}
    others = [name for name in whole.folders if name not in splits]
    if others:
        fault(_mixture(whole.path, splits, others, [x for x in others if x in called]))
    found = {re.sub(r"\W", "_", name): folder.path for name, folder in splits.items()}
    if len(found) < len(splits):
        raise DataError(
            f"The names of the folders {', '.join(splits)} in {root} are too similar for splits. "
            "Rename one of them."
        )
    return found


def _has_classes(name, called):
    """Whether one of the folders called like splits holds classes: folders, and no images but them.

    Images count for nothing beside folders that another one has too.
    """
    folders, has_images = {*called[name].folders}, called[name].has_images
    others = [{*folder.folders} for other, folder in called.items() if other != name]
    return bool(folders) and (not has_images or any(folders & other for other in others))


def _unpacked(path):
    """The `_Folder` of a path, or the one of its own name that it holds alone."""
    name = os.path.basename(path).lower()
    while True:
        folders, files = list_directory(path)
        found = _Folder(path, folders, any(map(is_image, files)))
        if [x.lower() for x in folders] != [name] or found.has_images or _is_link(path, folders):
            return found
        path = storage.join(path, folders[0])


def _is_link(path, folders):
    return not storage.is_url(path) and os.path.islink(os.path.join(path, folders[0]))


def _without_classes(whole, exact):
    others = [name for name in whole.folders if name not in exact]
    return (
        f"{whole.path} has folders called like splits ({', '.join(exact)}) without folders of "
        f"classes, beside others ({', '.join(others[:3])}). If they are splits, move their images "
        "to <split>/<class>/, or write a list: data.name=list:<path>. If they are classes, rename "
        "them."
    )


def _mixture(root, splits, others, called):
    """A sentence about folders beside the folders of splits; `called` like splits are some."""
    names = sorted(splits, key=lambda name: split_word(name) not in TRAIN_NAMES)
    way = f"data.name=folder:{splits[names[0]].path}"
    if called:
        first = storage.join(root, called[0])
        return (
            f"{root} has folders of splits ({', '.join(splits)}), but {first} has no folder of a "
            f"class, so its images have no labels. Move it away, or take one split: {way}."
        )
    return (
        f"{root} mixes folders of splits ({', '.join(splits)}) with others "
        f"({', '.join(others[:3])}). Move the others away, or take one split: {way}. "
        f"If {names[0]} is a class, rename it."
    )


def levels_problem(folder, holders) -> str | None:
    """The problem with classes whose images are all in folders that other classes have too.

    Args:
        folder: the folder of the classes.
        holders: for each class the names of the folders directly in it that have its images, and
            "" if images are directly in it.

    Returns:
        A sentence; None without a problem. One name in all classes, such as `images`, is none.
    """
    owners = {}
    for label, names in holders.items():
        for name in names:
            owners.setdefault(name.casefold(), set()).add(label)
    shared = {name for name, labels in owners.items() if name and len(labels) > 1}
    found = [x for x, names in holders.items() if names and {*map(str.casefold, names)} <= shared]
    inner = sorted({name for label in found for name in holders[label]})
    if len({*map(str.casefold, inner)}) < 2:
        return None
    shown = ", ".join(inner[:5]) + ", ..." * (len(inner) > 5)
    begin = f"The images of {found[0]!r} in {folder} are in folders that others have too ({shown})"
    if all(map(split_word, inner)):
        return (
            f"{begin}: splits inside of classes. Move them to {folder}/<split>/<class>, or write a "
            "list with a split for each image: data.name=list:<path>."
        )
    return (
        f"{begin}, so {found[0]!r} is no class. If these are the classes, take "
        f"data.name=folder:{storage.join(folder, found[0])}. Else move the images up, or write a "
        "list: data.name=list:<path>."
    )

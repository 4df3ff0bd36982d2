"""Which classes of a model the classes of a data set are: `evaluate --label_map`."""

from pipelines.data.labels.files import read_class_file
from pipelines.errors import UserError
from pipelines.tasks.classification import NO_CLASS
from vit_tf.pretrained.class_names import (
    IMAGENET_1K,
    IMAGENET_21K,
    class_names,
    same_names,
    synsets,
)

# In place of a file: the classes of ImageNet by their WordNet ids.
WORDNET = "wordnet"
_FORMS = (
    "Expected one class of the model per line, or JSON: a list of them, or an object from classes "
    "of the data to classes of the model; - or null where the model has none."
)


def read_label_map(path, data_names, model_names) -> tuple[int, ...]:
    """Reads the class of the model for each class of a data set.

    The file is text with one class of the model per line, in label order of the data; or, if its
    name ends in .json, the same as a list, or an object from a class of the data to a class of the
    model. A class is a name or an index from 0; a number that is also a name is the name. `-` and
    null in JSON mean that the model has no such class; a class that is called `-` is given by its
    index.

    Args:
        path: the file (one that is called as `WORDNET` needs its folder, `./wordnet`); or
            `WORDNET`, for data whose class names are WordNet ids, as in
            ImageNet, and a published head of ImageNet-1k or ImageNet-21k (docs/paper.md B.9).
        data_names: names of the classes of the data, in label order.
        model_names: names of the classes of the model, in label order.

    Returns:
        For each class of the data, in label order, the index of its class in the model, or
        `NO_CLASS`.

    Raises:
        UserError: if the file cannot be read, does not name exactly one class of the model for each
            class of the data, names a class of the model twice, or none at all; or for `WORDNET`
            if the model has other classes than the published heads.
    """
    if path == WORDNET:
        return _by_wordnet(data_names, model_names)
    entries = read_class_file(path, "--label_map", list | dict, _FORMS)
    if isinstance(entries, dict):
        entries = _in_label_order(entries, data_names, path)
    if len(entries) != len(data_names):
        raise UserError(
            f"{path} has {len(entries)} classes, the data have {len(data_names)}. Name one class "
            "of the model for each class of the data, in label order."
        )
    find = _finder(model_names, "the model", path)
    columns = [NO_CLASS if entry in (None, "-") else find(entry) for entry in entries]
    if set(columns) == {NO_CLASS}:
        raise UserError(f"{path} names no class of the model. {_FORMS}")
    first = {}
    for place, column in enumerate(columns):
        if column in first and column != NO_CLASS:
            raise UserError(
                f"{path} gives the classes {data_names[first[column]]!r} and {data_names[place]!r} "
                f"of the data one class of the model, {model_names[column]!r}. Expected different "
                "ones."
            )
        first[column] = place
    return tuple(columns)


def _by_wordnet(data_names, model_names):
    classes = len(model_names)
    if classes not in (IMAGENET_1K, IMAGENET_21K) or not (
        model_names in (synsets(classes), tuple(map(str, range(classes))))
        or same_names(model_names, class_names(classes))
    ):
        raise UserError(
            f"--label_map {WORDNET} is for published heads of {IMAGENET_1K:,} or {IMAGENET_21K:,} "
            f"classes. The model has {classes:,}, the first are {', '.join(model_names[:3]):.80}: "
            "name a file."
        )
    places = {synset: place for place, synset in enumerate(synsets(classes))}
    columns = tuple(places.get(name, NO_CLASS) for name in data_names)
    if set(columns) == {NO_CLASS}:
        raise UserError(
            f"--label_map {WORDNET} needs class names that are WordNet ids, such as n01440764. The "
            f"data have {', '.join(data_names[:3])}: name a file."
        )
    return columns


def _in_label_order(entries, data_names, path):
    """The values of an object in label order of its keys, the classes of the data."""
    find, values = _finder(data_names, "the data", path), {}
    for name, entry in entries.items():
        if (label := find(name)) in values:
            raise UserError(f"{path} has the class {data_names[label]!r} of the data twice.")
        values[label] = entry
    missing = [name for label, name in enumerate(data_names) if label not in values]
    if missing:
        raise UserError(
            f"{path} lacks {len(missing)} classes of the data, such as {missing[0]!r}. Name one "
            "class of the model for each."
        )
    return [values[label] for label in range(len(data_names))]


def _finder(names, whose, path):
    """A function from a name or index to the index."""
    places = {}
    for place, name in enumerate(names):
        places.setdefault(name, []).append(place)

    def find(entry):
        found = places.get(entry, []) if isinstance(entry, str) else []
        if len(found) > 1:
            raise UserError(
                f"{path} names {entry!r:.80}, which {len(found)} classes of {whose} are called. "
                f"Write the index, such as {found[0]}."
            )
        if found:
            return found[0]
        if isinstance(entry, str) and entry.isascii() and entry.isdecimal() and len(entry) < 10:
            entry = int(entry)
        if type(entry) is int and 0 <= entry < len(names):
            return entry
        raise UserError(
            f"{path} names {entry!r:.80}, which is no class of {whose}. Expected one of its "
            f"{len(names)} names, such as {names[0]!r}, or an index from 0 to {len(names) - 1}."
        )

    return find

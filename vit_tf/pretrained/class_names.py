"""Names of the classes of ImageNet, in the order of published heads (docs/paper.md B.9).

Loads no framework. The file in `assets` is made of files of timm; see `assets/NOTICE`.
"""

import collections
import functools
import gzip
import pathlib
import re
from collections.abc import Sequence

_PATH = pathlib.Path(__file__).parent.parent / "assets" / "imagenet_classes.tsv.gz"

# Numbers of classes of the heads, which also name them.
IMAGENET_1K, IMAGENET_21K = 1000, 21843

# The end of a name that several classes would have.
_ID = re.compile(r" \(n\d{8}\)$")


def class_names(num_classes) -> tuple[str, ...]:
    """The words for each class of a head, such as "tench, Tinca tinca"; all are different.

    Words of several classes are followed by the WordNet id: classes 134 and 517 of 1000 are
    "crane (n02012849)" and "crane (n03126707)".

    Args:
        num_classes: 1000 or 21,843.

    Raises:
        ValueError: for another number.
    """
    return _different(_rows(num_classes))


def same_names(names: Sequence[str], others: Sequence[str]) -> bool:
    """Whether class names are equal, with or without what makes them different.

    Files of earlier versions have no ids in their names.
    """
    return _words(names) == _words(others)


def _words(names):
    """Class names in label order without what `class_names` and `different_names` append."""
    return [_ID.sub("", name).removesuffix(f" (class {index})") for index, name in enumerate(names)]


def different_names(names: Sequence[str]) -> tuple[str, ...]:
    """Class names in label order; several may be equal, such as Hugging Face's "crane".

    Equal names are followed by the WordNet id if all names equal `class_names`, else by the index
    of the class: "crane (class 134)".
    """
    if len({*names}) == len(names):
        return tuple(names)
    imagenet = names_if_imagenet(len(names))
    if imagenet and same_names(names, imagenet):
        return imagenet
    found = _different([(f"class {index}", name) for index, name in enumerate(names)])
    if len({*found}) == len(found):
        return found
    return tuple(f"{name} (class {index})" for index, name in enumerate(names))


def names_if_imagenet(num_classes) -> tuple[str, ...]:
    """As `class_names`, but () for another number of classes."""
    return class_names(num_classes) if num_classes in (IMAGENET_1K, IMAGENET_21K) else ()


def synsets(num_classes) -> tuple[str, ...]:
    """The WordNet id of each class of a head, such as "n01440764"; arguments as `class_names`."""
    return tuple(synset for synset, _ in _rows(num_classes))


def words_of(names: Sequence[str]) -> tuple[str, ...]:
    """Class names in which the WordNet ids of ImageNet are replaced by their words.

    As in `class_names`, the words of several classes keep the id.

    The class folders of ImageNet, and the labels of TFDS, are WordNet ids.
    """
    if not any(_is_synset(name) for name in names):
        return tuple(names)
    words = {synset: text for synset, _, text in _table()}
    return _different([(name, words.get(name, name)) for name in names])


def _different(rows):
    """The words of pairs (id, words); words that several pairs have are followed by the id."""
    count = collections.Counter(words for _, words in rows)
    return tuple(words if count[words] == 1 else f"{words} ({synset})" for synset, words in rows)


def _is_synset(name):
    return len(name) == 9 and name[0] == "n" and name[1:].isdecimal()


def _rows(num_classes):
    if num_classes not in (IMAGENET_1K, IMAGENET_21K):
        raise ValueError(
            f"There are class names for {IMAGENET_1K} and {IMAGENET_21K} classes. Received: "
            f"{num_classes}."
        )
    return [(synset, words) for synset, heads, words in _table() if str(num_classes) in heads]


@functools.cache
def _table():
    """(WordNet id, numbers of classes of the heads that have the class, words) of each class."""
    text = gzip.decompress(_PATH.read_bytes()).decode("utf-8")
    rows = (line.split("\t") for line in text.splitlines())
    return [(synset, tuple(heads.split()), words) for synset, heads, words in rows]

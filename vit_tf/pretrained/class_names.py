"""Names of the classes of ImageNet, in the order of published heads (docs/paper.md B.9).

Loads no framework. The file in `assets` is made of files of timm; see `assets/NOTICE`.
"""

import functools
import gzip
import pathlib
from collections.abc import Sequence

_PATH = pathlib.Path(__file__).parent.parent / "assets" / "imagenet_classes.tsv.gz"

# Numbers of classes of the heads, which also name them.
IMAGENET_1K, IMAGENET_21K = 1000, 21843


def class_names(num_classes) -> tuple[str, ...]:
    """The words for each class of a head, such as "tench, Tinca tinca".

    Different classes can have the same words: classes 134 and 517 of 1000 are "crane".

    Args:
        num_classes: 1000 or 21,843.

    Raises:
        ValueError: for another number.
    """
    return tuple(words for _, words in _rows(num_classes))


def names_if_imagenet(num_classes) -> tuple[str, ...]:
    """As `class_names`, but () for another number of classes."""
    return class_names(num_classes) if num_classes in (IMAGENET_1K, IMAGENET_21K) else ()


def synsets(num_classes) -> tuple[str, ...]:
    """The WordNet id of each class of a head, such as "n01440764"; arguments as `class_names`."""
    return tuple(synset for synset, _ in _rows(num_classes))


def words_of(names: Sequence[str]) -> tuple[str, ...]:
    """Class names in which the WordNet ids of ImageNet are replaced by their words.

    The class folders of ImageNet, and the labels of TFDS, are WordNet ids.
    """
    if not any(_is_synset(name) for name in names):
        return tuple(names)
    words = {synset: text for synset, _, text in _table()}
    return tuple(words.get(name, name) for name in names)


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

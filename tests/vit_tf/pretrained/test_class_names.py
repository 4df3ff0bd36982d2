"""The names of ImageNet's classes are in the order of the published heads."""

import pytest

from vit_tf.pretrained.class_names import class_names, synsets, words_of


def test_the_order_of_imagenet_1k():
    """Class indices that papers and tutorials name."""
    names, ids = class_names(1000), synsets(1000)
    assert len(names) == len(set(ids)) == 1000
    assert (ids[0], names[0]) == ("n01440764", "tench, Tinca tinca")
    known = {
        1: "goldfish",
        207: "golden retriever",
        281: "tabby",
        285: "Egyptian cat",
        980: "volcano",
    }
    for index, name in known.items():
        assert names[index].startswith(name)
    assert names[999].startswith("toilet tissue")
    assert [names[134], names[517]] == ["crane", "crane"] and ids[134] != ids[517]


def test_the_order_of_imagenet_21k():
    """docs/paper.md B.9: sorted ids, two of which the data set of 21,841 classes does not have."""
    names, ids = class_names(21843), synsets(21843)
    assert len(names) == len(set(ids)) == 21843
    assert list(ids) == sorted(ids)
    # Lines of the list that BiT's authors published with their weights.
    assert (ids[0], names[0]) == ("n00004475", "organism, being")
    assert names[2037] == "sea swallow, Sterna hirundo"
    assert ids[9205] == "n03931044" and ids[15027] == "n09859684"
    assert len(set(synsets(1000)) - set(ids)) == 1  # "teddy", n04399382


def test_words_replace_ids():
    assert words_of(("n01440764", "n00004475", "cat")) == (
        "tench, Tinca tinca",
        "organism, being",
        "cat",
    )
    assert words_of(synsets(1000)) == class_names(1000)
    assert words_of(("a", "n01")) == ("a", "n01")


def test_other_numbers_have_no_names():
    with pytest.raises(ValueError, match="1000 and 21843 classes. Received: 10"):
        class_names(10)

"""The names of ImageNet's classes are in the order of the published heads."""

import pytest

from vit_tf.pretrained.class_names import (
    class_names,
    different_names,
    same_names,
    synsets,
    words_of,
)


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
    assert [names[134], names[517]] == ["crane (n02012849)", "crane (n03126707)"]


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


@pytest.mark.parametrize(("count", "repeated"), [(1000, 2), (21843, 525 + 603)])
def test_all_names_are_different(count, repeated):
    """Words of several classes are followed by the id, and only these."""
    names, ids = class_names(count), synsets(count)
    assert len(set(names)) == len(set(words_of(ids))) == count
    with_id = [name for name, own in zip(names, ids, strict=True) if name.endswith(f" ({own})")]
    assert len(with_id) == repeated == sum("(n" in name for name in names)


def test_names_of_earlier_files_are_the_same_ones():
    names = class_names(1000)
    earlier = tuple("crane" if name.startswith("crane (") else name for name in names)
    assert earlier != names and same_names(earlier, names) and same_names(names, earlier)
    assert not same_names(names[1:], names) and not same_names(("a", *names[1:]), names)


def test_equal_names_of_other_models_become_different():
    names = class_names(1000)
    words = [name.partition(" (n")[0] for name in names]
    assert words.count("crane") == 2 and different_names(words) == names
    assert different_names(["a", "b"]) == ("a", "b")
    found = different_names(["a", "b", "a"])
    assert found == ("a (class 0)", "b", "a (class 2)")
    assert same_names(found, ["a", "b", "a"])
    assert not same_names(["a (class 1)", "a (class 2)"], ["a (class 2)", "a (class 3)"])
    names = ["a", "a", "a (class 0)"]
    assert len({*different_names(names)}) == 3 and same_names(different_names(names), names)


def test_words_replace_ids():
    assert words_of(("n01440764", "n00004475", "cat")) == (
        "tench, Tinca tinca",
        "organism, being",
        "cat",
    )
    assert words_of(synsets(1000)) == class_names(1000)
    assert words_of(("a", "n01")) == ("a", "n01")


def test_other_numbers_have_no_names():
    with pytest.raises(ValueError, match="1000 and 21843.*: 10"):
        class_names(10)

"""Label maps: from a file to the model's classes, and what does not fit."""

import json
import re

import pytest

from pipelines.errors import UserError
from pipelines.evaluation.label_map import NO_CLASS, WORDNET, read_label_map
from vit_tf.pretrained.class_names import class_names, synsets

DATA = ("tabby", "pug", "crane")
# Two classes have one name, as in ImageNet; one name is a number.
MODEL = ("entity", "crane", "pug", "crane", "1", "tabby")


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("map.txt", "tabby\npug\n3\n", (5, 2, 3)),
        ("map.txt", "\ufefftabby\r\n 1 \r\n0", (5, 4, 0)),
        ("map.txt", "-\npug\n-\n", (NO_CLASS, 2, NO_CLASS)),
        ("wordnet", "tabby\npug\n3\n", (5, 2, 3)),
        ("map.json", '["tabby", 1, "3"]', (5, 1, 3)),
        ("map.json", '{"crane": null, "0": "tabby", "pug": "pug"}', (5, 2, NO_CLASS)),
        ("map.json", '{"crane": 3, "0": "tabby", "pug": "pug"}', (5, 2, 3)),
    ],
)
def test_reading(tmp_path, name, content, expected):
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    assert read_label_map(str(path), DATA, MODEL) == expected


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("map.txt", "", "1 classes.* 3"),
        ("map.txt", "tabby\npug\n", "2 classes.* 3"),
        ("map.txt", "tabby\n\n3\n", "'', .*no class"),
        ("map.txt", "tabby\npug\ncrane\n", "2 classes .*index.* 1"),
        ("map.txt", "tabby\npug\n6\n", "names 6.*'entity'"),
        ("map.txt", "tabby\npug\n-1\n", "names '-1'"),
        ("map.txt", "tabby\npug\n" + "x" * 1000, "'x{79}, .*no class"),
        ("map.json", json.dumps([0, 1, ["x"] * 1000]), r"\['x'.{76}, .*no class"),
        ("map.txt", "tabby\npug\n2\n", "'pug' and 'crane'"),
        ("map.txt", "-\n-\n-\n", "names no class"),
        ("map.txt", b"\xff\xfe", "is not UTF-8 text"),
        ("map.json", "[1, 2", "is not JSON"),
        ("map.json", "[" * 100_000, "is not JSON"),
        ("map.json", "3", "holds int"),
        ("map.json", "[0, 1, true]", "names True"),
        ("map.json", "[0, 1, [2]]", r"names \[2\]"),
        ("map.json", json.dumps([0, 1, 10**30]), "names 10{30}, "),
        ("map.json", '{"tabby": 0, "pug": 1}', "1 classes.*'crane'"),
        ("map.json", '{"tabby": 0, "pug": 1, "cat": 2}', "'cat'.*no class"),
        ("map.json", '{"tabby": 0, "pug": 1, "0": 2}', "'tabby' of the data twice"),
    ],
)
def test_what_does_not_fit(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=message) as error:
        read_label_map(str(path), DATA, MODEL)
    assert re.escape(str(path)) in re.escape(str(error.value))


def test_a_class_that_is_called_minus(tmp_path):
    path = tmp_path / "map.txt"
    path.write_text("-\n1")
    assert read_label_map(str(path), ("a", "b"), ("b", "-")) == (NO_CLASS, 1)


def test_a_missing_file(tmp_path):
    with pytest.raises(UserError, match="--label_map .*not a file"):
        read_label_map(str(tmp_path / "map.txt"), DATA, MODEL)


def test_wordnet():
    """ImageNet's classes in the head of ImageNet-21k, which has no teddy bear."""
    names = synsets(1000)
    columns = read_label_map(WORDNET, names, class_names(21843))
    assert [names[i] for i, x in enumerate(columns) if x == NO_CLASS] == ["n04399382"]
    words = class_names(21843)
    assert all(
        words[column] in (word, f"{word} ({name})")
        for column, word, name in zip(columns, class_names(1000), names, strict=True)
        if column != NO_CLASS and "crane" not in word
    )
    earlier = tuple(word.partition(" (n")[0] for word in class_names(1000))
    for same in (class_names(1000), earlier):
        assert read_label_map(WORDNET, names[5:8], same) == (5, 6, 7)
    indices = tuple(str(index) for index in range(21843))
    for same in (synsets(21843), indices):  # A head without class names has indices.
        assert read_label_map(WORDNET, names, same) == columns
    with pytest.raises(UserError, match="has 6.*entity, crane, pug"):
        read_label_map(WORDNET, names, MODEL)
    own = tuple(f"species {index}" for index in range(1000))
    with pytest.raises(UserError, match="1,000.*species 0"):
        read_label_map(WORDNET, names, own)
    with pytest.raises(UserError, match="data .*tabby, pug, crane"):
        read_label_map(WORDNET, DATA, words)

"""Accuracies on lists of labels and on ObjectNet: hand-made cases, slow versions, its mappings."""

import json
import re

import numpy as np
import pytest

from pipelines.errors import UserError
from pipelines.evaluation.objectnet import objectnet_accuracy, read_classes
from pipelines.evaluation.real import real_accuracy
from vit_tf.pretrained.class_names import class_names

# The most probable classes of four images, in this order: 2 0 1 3; 0 3 2 1; 1 2 0 3 (a tie of 1
# and 2); 3 2 1 0.
LOGITS = np.array([[2, 1, 9, 0], [8, 1, 2, 3], [0, 5, 5, -1], [-4, -3, -2, -1]], np.float32)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([[2], [0], [1], [3]], 1),
        ([[2, 0], {1, 3}, np.array([1]), (0, 1)], 0.5),
        ([[], [1], [], [3]], 0.5),  # Two images do not count.
        ([[], [], [2], []], 0),  # Of equal logits the first is the prediction.
    ],
)
def test_real_accuracy_of_hand_made_cases(labels, expected):
    assert real_accuracy(LOGITS, labels) == expected


@pytest.mark.parametrize(
    ("labels", "classes", "expected"),
    [
        ([0, 0, 1, 1], [[2, 0], [3]], (0.75, 1.0)),  # Two classes count as the first.
        ([0, 1, 2, 2], [[2], [1], [0, 3]], (0.5, 1.0)),
        ([0, 1, 1, 0], [[], [0]], (0.25, 0.5)),  # Nothing counts as the first class.
        ([0, 1, 0, 1], [{2, 1}, {2, 1}], (0.5, 1.0)),  # One class counts as both.
    ],
)
def test_objectnet_accuracy_of_hand_made_cases(labels, classes, expected):
    assert objectnet_accuracy(LOGITS, labels, classes) == expected


def test_a_sixth_prediction_does_not_count():
    logits = -np.arange(7.0)[None]
    for place in range(7):
        assert objectnet_accuracy(logits, [0], [[place]]) == (place == 0, place < 5)


def _ranked(row):
    """Classes by logit, the largest first, then by index; without NumPy's sorts."""
    return sorted(range(len(row)), key=lambda place: (-row[place], place))


def test_slow_versions_agree():
    """Random logits with many ties; about a third of the lists and of the classes is empty."""
    draw = np.random.default_rng(0)
    for count, width in ((1, 6), (7, 12), (200, 1000)):
        logits = draw.integers(-5, 5 if width < 100 else 300, [count, width])
        lists = [
            draw.choice(width, draw.integers(0, 3), replace=False).tolist() for _ in range(count)
        ]
        lists[0] = [_ranked(logits[0].tolist())[0]]
        right = counted = 0
        for row, own in zip(logits.tolist(), lists, strict=True):
            if own:
                counted += 1
                right += _ranked(row)[0] in own
        assert real_accuracy(logits, lists) == right / counted

        classes = [draw.choice(width, n, replace=False) for n in (0, 1, 3, width // 2)]
        labels = draw.integers(0, 4, count)
        first = fifth = 0
        for row, label in zip(logits.tolist(), labels, strict=True):
            hits = [place in set(classes[label].tolist()) for place in _ranked(row)[:5]]
            first += hits[0]
            fifth += any(hits)
        assert objectnet_accuracy(logits, labels, classes) == (first / count, fifth / count)


@pytest.mark.parametrize(
    ("logits", "labels", "message"),
    [
        (LOGITS[0], [[1]], r"finite logits \[n, K\]"),
        (np.where(LOGITS == 9, np.nan, LOGITS), [[1]] * 4, "NaN"),
        (LOGITS, [[1]] * 3, "3 collections for 4 rows"),
        (LOGITS, [[1], [4], [], []], "from 0 to 3. Received: 4"),
        (LOGITS, [[1], [-1], [], []], "Received: -1"),
        (LOGITS, [[]] * 4, "an image with a label"),
    ],
)
def test_real_accuracy_refuses(logits, labels, message):
    with pytest.raises(ValueError, match=message):
        real_accuracy(logits, labels)


@pytest.mark.parametrize(
    ("labels", "classes", "message"),
    [
        ([0, 1], [[0], [1]], "each of 4 rows"),
        ([0.0, 0, 0, 0], [[0]], "integer label"),
        ([0, 1, 2, 0], [[0], [1]], "labels.* 0 to 1.*: 2"),
        ([0, 0, -1, 0], [[0]], "labels.* 0 to 0.*: -1"),
        ([0, 0, 0, 0], [[0, 4]], "classes.* 0 to 3.*: 4"),
    ],
)
def test_objectnet_accuracy_refuses(labels, classes, message):
    with pytest.raises(ValueError, match=message):
        objectnet_accuracy(LOGITS, labels, classes)


# The files of ObjectNet's folder `mappings`.


def _write(folder, changes=None, without=None):
    """Files of three classes; ImageNet's names are reversed, so lines and outputs differ."""
    names = class_names(1000)
    clocks = f"{names[409]}; {names[530]}"
    files = {
        "folder_to_objectnet_label.json": {
            "alarm_clock": "Alarm clock",
            "backpack": "Backpack",
            "air_freshener": "Air freshener",
        },
        "objectnet_to_imagenet_1k.json": {"Alarm clock": clocks, "Backpack": names[414]},
        "pytorch_to_imagenet_2012_id.json": {str(x): 999 - x for x in range(1000)},
    }
    for name, value in (changes or {}).items():
        files[name] = value if isinstance(value, str) else files[name] | value
    folder.mkdir()
    for name, value in files.items():
        (folder / name).write_text(value if isinstance(value, str) else json.dumps(value))
    lines = [name.partition(" (n")[0] for name in reversed(names)]
    (folder / "imagenet_to_label_2012_v2").write_text("\n".join(lines) + "\n")
    if without:
        (folder / without).unlink()


def test_the_mapping_of_the_data_set(tmp_path):
    _write(tmp_path / "mappings")
    classes = read_classes(tmp_path / "mappings", ["air_freshener", "alarm_clock", "backpack"])
    assert classes == ((), (409, 530), (414,))


def test_names_of_several_classes_of_imagenet(tmp_path):
    """Two of its classes are called "crane"; a prediction of either counts."""
    crane = {"objectnet_to_imagenet_1k.json": {"Backpack": "crane"}}
    _write(tmp_path / "mappings", crane)
    assert read_classes(tmp_path / "mappings", ["backpack"]) == ((134, 517),)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("folder_to_objectnet_label.json", None, "is not a file"),
        ("objectnet_to_imagenet_1k.json", None, "is not a file"),
        ("pytorch_to_imagenet_2012_id.json", None, "is not a file"),
        ("imagenet_to_label_2012_v2", None, "is not a file"),
        ("folder_to_objectnet_label.json", "{", "is not JSON"),
        ("folder_to_objectnet_label.json", "[1]", "holds list"),
        ("folder_to_objectnet_label.json", {"alarm_clock": 3}, "no class 'alarm_clock'"),
        ("folder_to_objectnet_label.json", "{}", "class 'air_freshener'"),
        ("objectnet_to_imagenet_1k.json", {"Backpack": 3}, "no names.*'Backpack'"),
        ("objectnet_to_imagenet_1k.json", {"Backpack": "bag; x"}, "names 'bag', not in"),
        ("pytorch_to_imagenet_2012_id.json", {"1000": 3}, "maps '1000' to 3"),
        ("pytorch_to_imagenet_2012_id.json", {"3": 1000}, "maps '3' to 1000"),
        ("pytorch_to_imagenet_2012_id.json", {"3": None}, "maps '3' to None"),
    ],
)
def test_mappings_that_are_missing_or_damaged(tmp_path, file, content, message):
    folder = tmp_path / "mappings"
    _write(folder, {} if content is None else {file: content}, file if content is None else None)
    with pytest.raises(UserError, match=message) as error:
        read_classes(folder, ["air_freshener", "alarm_clock", "backpack"])
    assert re.escape(str(folder / file)) in re.escape(str(error.value))
    assert "Expected the folder mappings/ of ObjectNet" in str(error.value)

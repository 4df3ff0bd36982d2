"""Lists of images in CSV and JSONL: their examples, and one clear error for each mistake."""

import json

import pytest

from pipelines.config import Experiment, override
from pipelines.data.sources.files import FileRules
from pipelines.data.sources.open import open_source
from pipelines.errors import DataError

_IMAGES = ["cats/1.jpg", "cats/2.jpg", "dogs/a, b.jpg", "dogs/Ω.jpg"]


@pytest.fixture
def folder(tmp_path):
    for path in _IMAGES:
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(path.encode())
    return tmp_path


def _open(folder, text, split="train", name="list.csv"):
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return open_source(f"list:{folder}/{name}", split)


def _rows(source):
    """(path, label name) by id."""
    examples = source.read(range(source.num_examples))
    return {
        int(i): (image.decode(), source.labels[label])
        for image, label, i in zip(*examples, strict=True)
    }


CSV = 'path,label\ncats/1.jpg,cat\n"dogs/a, b.jpg",dog\ncats/2.jpg,cat\n'
# Additional columns, another order, an empty line.
WIDE = 'size,label , path\n3,cat,cats/1.jpg\n,dog,"dogs/a, b.jpg"\n\n,cat,cats/2.jpg\n'
JSONL = """
{"path": "cats/1.jpg", "label": "cat", "box": [1, 2]}
{"label": "dog", "path": "dogs/a, b.jpg"}

{"path": "cats/2.jpg", "label": "cat"}
"""


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (CSV, "list.csv"),
        (CSV.replace("\n", "\r\n"), "LIST.CSV"),
        (b"\xef\xbb\xbf" + CSV.encode(), "list.csv"),
        (WIDE, "list.csv"),
        (JSONL, "list.jsonl"),
    ],
)
def test_rows_labels_and_ids(folder, text, name):
    source = _open(folder, text, name=name)
    assert source.labels == ("cat", "dog")
    assert _rows(source) == {
        0: ("cats/1.jpg", "cat"),
        1: ("dogs/a, b.jpg", "dog"),
        2: ("cats/2.jpg", "cat"),
    }
    line = text.split(b"\n" if isinstance(text, bytes) else "\n")
    assert source.describe(1).startswith(f"dogs/a, b.jpg of list:{folder}/{name} (line ")
    number = int(source.describe(1).rpartition("line ")[2].rstrip(")"))
    assert "dogs/a" in str(line[number - 1])


def test_splits(folder):
    text = (
        "path,label,split\ncats/1.jpg,1,test\ncats/2.jpg,10,train\ndogs/Ω.jpg,2,train\n"
        "cats/1.jpg,2,train\n"
    )
    train, test = _open(folder, text, "train"), _open(folder, text, "test")
    # Numeric names are sorted as numbers; the classes come from all splits.
    assert train.labels == test.labels == ("1", "2", "10")
    assert _rows(train) == {0: ("cats/2.jpg", "10"), 1: ("dogs/Ω.jpg", "2"), 2: ("cats/1.jpg", "2")}
    assert _rows(test) == {0: ("cats/1.jpg", "1")}
    assert _rows(_open(folder, text, "test+train[:100%]"))[3] == ("cats/1.jpg", "2")
    assert json.dumps(train.manifest())


def test_absolute_paths_and_numbers_in_json(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("other") / "list.jsonl"
    rows = [{"path": str(folder / path), "label": 7 - i} for i, path in enumerate(_IMAGES)]
    other.write_text("\n".join(map(json.dumps, rows)))
    source = open_source(f"list:{other}", "train")
    assert source.labels == ("4", "5", "6", "7")
    assert _rows(source)[3] == ("dogs/Ω.jpg", "4")


HEADER = "path,label\n"
GOOD = HEADER + "cats/1.jpg,cat\n"


@pytest.mark.parametrize(
    ("text", "texts"),
    [
        ("", ["line 1 is not the header", "path,label"]),
        (HEADER, ["lists no images"]),
        (GOOD, ["one class, 'cat'"]),
        ("cats/1.jpg,cat\n", ["line 1 is not the header", "'cats/1.jpg,cat'"]),
        ("path;label\ncats/1.jpg;cat", ["line 1 is not the header", "separated by commas"]),
        ("path,label,label\n", ["line 1 is not the header"]),
        (GOOD + "dogs/a, b.jpg,dog\n", ["line 3 has 3 fields", "has 2", "Quote"]),
        (GOOD + "cats/2.jpg\n", ["line 3 has 1 fields"]),
        (GOOD + "cats/2.jpg,\n", ["line 3 has the label ''"]),
        (GOOD + ",dog\n", ["line 3 has the path ''"]),
        (GOOD + "cats/9.jpg,dog\nx,dog\n", ["line 3", "not there: cats/9.jpg (2 such lines)"]),
        (GOOD + "nowhere/1.jpg,dog\n", ["line 3 names a file that is not there"]),
        (GOOD + "cats,dog\ncats/,dog\n", ["line 4 names a file that is not there"]),
        (GOOD + '"cats/1.jpg,dog\n', ["is not CSV"]),
        (GOOD + 'a"b"c,"x"y\n', ["line 3 is not CSV"]),
        (GOOD.encode() + b"\xff\xfe,dog\n", ["line 3 is not UTF-8: byte 0xff at 1", "Save"]),
        (GOOD.encode("utf-16"), ["line 1 is not UTF-8"]),
        (GOOD + "a\0b,dog\n", ["line 3", "path"]),
        (GOOD + "x" * 70_000, ["line 3 is longer than 65,536 bytes"]),
        (
            "path,label,split\ncats/1.jpg,a,train\ncats/2.jpg,b,\n",
            ["line 3 has no split", "Give every row a split"],
        ),
        ("path,label,split\ncats/1.jpg,a,train[:5]\n", ["line 2 has the split 'train[:5]'"]),
    ],
)
def test_wrong_csv(folder, text, texts):
    with pytest.raises(DataError) as error:
        _open(folder, text)
    for expected in [str(folder / "list.csv"), *texts]:
        assert expected in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 600


@pytest.mark.parametrize(
    ("line", "texts"),
    [
        ("nonsense", ["line 2 is not a JSON object", '{"path"']),
        ("[1, 2]", ["line 2 is not a JSON object"]),
        ("[" * 30_000, ["line 2 is not a JSON object"]),
        ('{"path": "cats/2.jpg"}', ["line 2 has the label ''"]),
        ('{"path": 3, "label": "dog"}', ["line 2 has the path '3'"]),
        ('{"path": "cats/2.jpg", "label": true}', ["line 2 has the label 'True'"]),
        ('{"path": "cats/2.jpg", "label": 1.5}', ["line 2 has the label '1.5'"]),
        ('{"path": "cats/2.jpg", "label": null}', ["line 2 has the label 'None'"]),
        ('{"path": "a\\u0000b", "label": "dog"}', ["line 2 has the path"]),
        ('{"path": "\\ud800", "label": "dog"}', ["line 2 has an invalid character"]),
        ('{"path": "cats/9.jpg", "label": "dog"}', ["line 2 names a file that is not there"]),
    ],
)
def test_wrong_jsonl(folder, line, texts):
    text = '{"path": "cats/1.jpg", "label": "cat"}\n' + line
    with pytest.raises(DataError) as error:
        _open(folder, text, name="list.jsonl")
    for expected in texts:
        assert expected in str(error.value)
    assert "\n" not in str(error.value)


SEVERAL = "path,labels\ncats/1.jpg,cat|outdoor\n"
SEVERAL_JSON = '{"path": "cats/1.jpg", "labels": ["cat", 7]}\n'


@pytest.mark.parametrize(
    ("text", "texts"),
    [
        (SEVERAL + "cats/2.jpg,cat| cat\n", ["line 3 has the label 'cat' twice", "List it once"]),
        (SEVERAL + "cats/2.jpg,cat||dog\n", ["line 3 has the label ''"]),
        ("path,label,labels\n", ["line 1 has both label and labels", "Keep label"]),
        ("path,labels\ncats/1.jpg,\n", ["has no labels in any of its rows"]),
        (
            SEVERAL_JSON + '{"path": "x", "label": "cat"}',
            ["line 2 has label, but", "in every line"],
        ),
        (
            SEVERAL_JSON + '{"path": "x", "labels": "cat"}',
            ["line 2 has the labels 'cat'", '["cat"'],
        ),
        (SEVERAL_JSON + '{"path": "x"}', ["line 2 has the labels ''", "[] without a label"]),
        (SEVERAL_JSON + '{"path": "x", "labels": [1.5]}', ["line 2 has the label '1.5'"]),
        (SEVERAL_JSON + '{"path": "x", "labels": [["a"]]}', ["line 2 has the label"]),
        (SEVERAL_JSON + '{"path": "x", "labels": ["7", 7]}', ["line 2 has the label '7' twice"]),
        ('{"path": "x", "label": ["cat"]}', ["line 1 has a list as its label", '"labels"']),
        ('{"path": "x", "label": "a"}\n{"path": "x", "labels": ["b"]}', ["line 2 has labels, but"]),
    ],
)
def test_wrong_lists_of_labels(folder, text, texts):
    with pytest.raises(DataError) as error:
        _open(folder, text, name="list.csv" if text.startswith("path") else "list.jsonl")
    for expected in texts:
        assert expected in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("names", "order", "expected"),
    [
        (["10", "9", "-1"], "auto", ("-1", "9", "10")),
        (["10", "9", "-1"], "text", ("-1", "10", "9")),
        (["b10", "b9", "B1"], "auto", ("B1", "b10", "b9")),
        (["b10", "b9", "B1", "a"], "natural", ("a", "B1", "b9", "b10")),
        (["1e99", "01", "1", "x²"], "natural", ("01", "1", "1e99", "x²")),
    ],
)
def test_order_of_classes(folder, names, order, expected):
    rows = "".join(f"{_IMAGES[0]},{name}\n" for name in names)
    (folder / "list.csv").write_text(f"path,label\n{rows}")
    rules = FileRules(class_order=order)
    assert open_source(f"list:{folder}/list.csv", "train", rules=rules).labels == expected


def test_the_order_of_classes_belongs_to_folders_and_lists():
    with pytest.raises(DataError, match="class_order=natural"):
        open_source("digits", "train", rules=FileRules(class_order="natural"))
    data = override(Experiment(), ["data.name=folder:a", "data.class_order=natural"])
    assert override(data, ["data.name=list:b.csv"]).data.class_order == "natural"
    assert override(data, ["data.name=digits"]).data.class_order == "auto"


def test_ranges_divide_lists_of_labels_by_the_rarest(folder):
    names = ["common"] * 40 + ["common|rare"] * 3 + [""] * 7
    for i in range(len(names)):
        (folder / f"{i}.jpg").write_bytes(b"x")
    rows = "".join(f"{i}.jpg,{name}\n" for i, name in enumerate(names))
    for split, images, rare in (("train[:90%]", 45, 2), ("train[90%:]", 5, 1)):
        source = _open(folder, f"path,labels\n{rows}", split)
        labels = source.read_labels(range(source.num_examples))
        assert (len(labels), sum(1 in own for own in labels)) == (images, rare), split


def test_one_class_is_enough_for_lists_of_labels(folder):
    """It tells images with the label from those without."""
    source = _open(folder, "path,labels\ncats/1.jpg,cat\ncats/2.jpg,\n")
    assert (source.labels, source.multi_label) == (("cat",), True)
    assert not _open(folder, CSV).multi_label


def test_wrong_files(folder):
    with pytest.raises(DataError, match=r"list.txt.*\.csv.*\.jsonl"):
        _open(folder, CSV, name="list.txt")
    with pytest.raises(DataError, match="none.csv.*No such file"):
        open_source(f"list:{folder}/none.csv", "train")
    (folder / "dir.csv").mkdir()
    with pytest.raises(DataError, match="dir.csv cannot be read"):
        open_source(f"list:{folder}/dir.csv", "train")
    with pytest.raises(DataError, match=r"'val'.*train \(3\)"):
        _open(folder, CSV, "val")


def test_only_the_files_of_the_split_must_be_there(folder):
    text = "path,label,split\ncats/1.jpg,a,test\ncats/7.jpg,b,train\n"
    assert _open(folder, text, "test").num_examples == 1
    with pytest.raises(DataError, match="line 3"):
        _open(folder, text, "train")

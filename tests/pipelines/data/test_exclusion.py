"""Lists of training examples to leave out: what is read is what was written."""

import json

import numpy as np
import pytest

from pipelines.data.exclusion import exclusion, read_exclusion
from pipelines.data.sources.files import FileRules
from pipelines.data.sources.open import open_source
from pipelines.errors import DataError
from pipelines.runs.json_file import write_json


def written(path, source, ids):
    write_json(path, exclusion(source, ids))
    return str(path)


def test_ids_by_split_fit_every_range_and_union(tmp_path):
    """The ids of a split depend on the other splits of a union; the list does not."""
    union = open_source("digits", "test+train[:500]")
    own = union.ids(range(union.num_examples))
    chosen = np.array([own[2], own[-1], own[2], own[310]])
    path = written(tmp_path / "list.json", union, chosen)
    record = json.loads((tmp_path / "list.json").read_text())
    assert record["searched"] == {"test": [[0, 300]], "train": [[0, 500]]}
    assert record["excluded"] == {"test": [2], "train": [10, 499]}
    assert read_exclusion(path, union)[0].tolist() == np.unique(chosen).tolist()
    train = open_source("digits", "train[:450]")
    assert read_exclusion(path, train)[0].tolist() == [10, 499]
    other = open_source("digits", "train[:20]+test")
    ids, _ = read_exclusion(path, other)
    firsts = {part["split"]: part["first_id"] for part in other.manifest()["parts"]}
    assert ids.tolist() == sorted([firsts["train"] + 10, firsts["train"] + 499, firsts["test"] + 2])


def test_the_hash_is_that_of_what_matters(tmp_path):
    train = open_source("digits", "train")
    first = read_exclusion(written(tmp_path / "a", train, [5, 7]), train)
    again = read_exclusion(written(tmp_path / "b", train, [7, 5, 5]), train)
    other = read_exclusion(written(tmp_path / "c", train, [5, 8]), train)
    assert first[1] == again[1] != other[1] and first[0].tolist() == again[0].tolist() == [5, 7]


def test_a_list_for_ranges_of_another_order_is_refused(tmp_path):
    """The same range of all files, or of each class, has other images."""
    for label in "ab":
        (tmp_path / "data" / label).mkdir(parents=True)
        for number in range(10):
            (tmp_path / "data" / label / f"{number}.png").write_bytes(b"")
    name, rules = f"folder:{tmp_path}/data", FileRules(split_by="file")
    by_class, whole = (open_source(name, split) for split in ("train[:50%]", "train"))
    by_file = open_source(name, "train[:50%]", rules=rules)
    for made, read in ((by_class, by_file), (by_file, by_class)):
        path = written(tmp_path / "list.json", made, made.ids([0]))
        assert read_exclusion(path, made)[0].tolist() == made.ids([0]).tolist()
        with pytest.raises(DataError, match="ranges.*data.split_by"):
            read_exclusion(path, read)
    path = written(tmp_path / "list.json", whole, [3])
    assert all(read_exclusion(path, read)[0].tolist() == [3] for read in (by_class, by_file, whole))


GOOD = {"searched": {"train": [[0, 1297]]}, "excluded": {"train": [3]}}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"data_set": "cifar10"}, "cifar10:.*digits"),
        ({"version": "9.9.9"}, "digits.*:9.9.9"),
        ({"searched": {"train": [[0, 9]]}}, r"train\[0:9\].*\[0:1297\]"),
        ({"searched": {"test": [[0, 300]]}}, r"made for test\[0:300\]"),
        ({"searched": {}}, "was made for"),
        *(
            ({name: value}, "list of examples|a string")
            for name, value in (
                ("excluded", None),
                ("excluded", [3]),
                ("excluded", {"train": 3}),
                ("excluded", {"train": [-1]}),
                ("excluded", {"train": [True]}),
                ("excluded", {"train": [1.5]}),
                ("excluded", {"train": [2**70]}),
                ("searched", {"train": [[0]]}),
                ("searched", {"train": [0, 1297]}),
                ("data_set", 3),
                ("version", None),
            )
        ),
    ],
)
def test_another_list_is_refused_in_one_sentence(tmp_path, change, text):
    source = open_source("digits", "train")
    record = GOOD | {"data_set": source.name, "version": source.version} | change
    path = tmp_path / "list.json"
    path.write_text(json.dumps(record))
    with pytest.raises(DataError, match=text) as caught:
        read_exclusion(str(path), source)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path):
    source = open_source("digits", "train")
    with pytest.raises(DataError, match="no such file"):
        read_exclusion(str(tmp_path / "none"), source)
    for content in (b"", b"[1]", b"\xff\xfe", b"{"):
        (tmp_path / "list").write_bytes(content)
        with pytest.raises(DataError, match="data.exclude"):
            read_exclusion(str(tmp_path / "list"), source)
    with pytest.raises(DataError, match="not a file"):
        read_exclusion(str(tmp_path), source)

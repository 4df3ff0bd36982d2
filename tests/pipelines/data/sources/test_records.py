"""TFRecord files: the written records, ranges of records, and damaged or hostile files."""

import itertools
import json
import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

from pipelines.data.sources import record_writer, records
from pipelines.data.sources.open import open_source
from pipelines.errors import DataError
from tests.pipelines.process import assert_user_error
from tests.pipelines.tiny import as_flags

PNG = tf.io.encode_png(tf.zeros([4, 4, 3], tf.uint8)).numpy()


@pytest.fixture(scope="module")
def digits():
    return open_source("digits", "train[:205]"), open_source("digits", "test[:50]")


@pytest.fixture(scope="module")
def written(digits, tmp_path_factory):
    path = tmp_path_factory.mktemp("records") / "digits"
    record_writer.write_records(
        {"train": digits[0], "test": digits[1]}, path, shards=4, bad_images="stop"
    )
    return path


@pytest.fixture
def copy(written, tmp_path):
    """A copy of the folder to damage: three records in two files."""
    source = open_source(f"tfrecord:{written}", "train[:3]")
    record_writer.write_records({"train": source}, tmp_path / "copy", shards=2, bad_images="stop")
    return tmp_path / "copy"


def _assert_equal(examples, expected):
    for column, other in zip(examples, expected, strict=True):
        np.testing.assert_array_equal(column, other)
        assert column.dtype == other.dtype


def test_records_are_what_the_schema_says(written, digits):
    """Checks the records with TensorFlow's own reader."""
    files = sorted(written.glob("train-*"))
    assert [file.name for file in files] == [f"train-0000{i}-of-00004.tfrecord" for i in range(4)]
    records = [
        tf.train.Example.FromString(record).features.feature
        for record in tf.data.TFRecordDataset(files).as_numpy_iterator()
    ]
    images, labels, _ = digits[0].read(range(205))
    assert [record["image/encoded"].bytes_list.value[0] for record in records] == images.tolist()
    found = [record["image/class/label"].int64_list.value[0] for record in records]
    assert found == labels.tolist()
    texts = [record["image/class/text"].bytes_list.value[0].decode() for record in records]
    assert texts == [digits[0].labels[label] for label in labels]

    info = json.loads((written / "dataset.json").read_bytes())
    assert info["labels"] == list(digits[0].labels)
    assert list(info["splits"]["train"].values()) == [51, 51, 52, 51]
    assert info["source"]["train"]["split"] == "train[:205]"


@pytest.mark.parametrize(
    ("split", "ids"),
    [
        ("train", range(205)),
        ("train[:90%]", range(184)),
        ("train[100:]+train[:7]", [*range(100, 205), *range(7)]),
        ("test[-3:]+train[50:53]", [47, 48, 49, 100, 101, 102]),
        ("train[1shard:2shard]", range(51, 102)),
    ],
)
def test_splits_and_ids(written, digits, split, ids):
    source = open_source(f"tfrecord:{written}", split)
    expected = open_source("digits", "train[:205]").read(range(205))
    everything = source.read(range(source.num_examples))
    assert everything.ids.tolist() == list(ids)
    if "test" not in split:
        _assert_equal(everything, [column[list(ids)] for column in expected])
        assert sum(source.shard_lengths) == len(ids)


def test_ranges(written, digits):
    source = open_source(f"tfrecord:{written}", "train")
    assert source.shard_lengths == (51, 51, 52, 51)
    rows = [*range(100, 160), 3, 50, 51, 204, 3]
    _assert_equal(source.read(rows), digits[0].read(rows))
    assert len(source.read([]).ids) == 0
    assert source.describe(102) == f"record 0 of {written}/train-00002-of-00004.tfrecord"
    manifest = source.manifest()
    assert json.loads(json.dumps(manifest))["data_set"] == f"tfrecord:{written}"


def test_a_location_has_the_runs_of_records_in_each_file(tmp_path):
    """Whatever their number, and also between files without records."""
    lengths = [0, 3, 0, 0, 2, 1, 0]
    for number, length in enumerate(lengths):
        with tf.io.TFRecordWriter(str(tmp_path / str(number))) as writer:
            for _ in range(length):
                writer.write(b"record")
    files = {str(number): length for number, length in enumerate(lengths)}
    source = records.RecordSource(str(tmp_path), ["a", "b"], {"train": files}, "train[1:]")
    stored = [(number, row) for number, length in enumerate(lengths) for row in range(length)][1:]
    for count in range(len(stored) + 1):
        for indices in itertools.combinations(range(len(stored)), count):
            location = source.locate(np.array(indices, np.int64))
            runs = [
                (int(os.path.basename(path)), start // 22 + row)
                for path, start, length in zip(
                    location["path"], location["start"], location["count"], strict=True
                )
                for row in range(length)
            ]
            assert runs == [stored[index] for index in indices]
            # Nothing behind a run is read.
            assert location["buffer"].tolist() == (22 * location["count"]).tolist()
            ends = location["start"] + location["buffer"]
            same_file = location["path"][1:] == location["path"][:-1]
            assert (location["start"][1:][same_file] > ends[:-1][same_file]).all()


def test_a_range_is_read_without_the_rest(written, copy):
    """Damage elsewhere in the file is not noticed."""
    file = copy / "train-00000-of-00002.tfrecord"
    contents = bytearray(file.read_bytes())
    contents[40] ^= 1  # in the data of the first of two records
    file.write_bytes(contents)
    source = open_source(f"tfrecord:{copy}", "train")
    expected = open_source(f"tfrecord:{written}", "train").read(range(1, 3))
    _assert_equal(source.read(range(1, 3)), expected)
    with pytest.raises(DataError, match="'train'.*orrupted record") as error:
        source.read(range(3))
    assert "train-00000-of-00002" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda data: data[:-1], "record 1 of 2 ends beyond"),
        (lambda data: data[:40], "record 0 of 2.*40 bytes"),
        (lambda data: data[:31], "31 bytes.* 2 records"),
        (lambda data: b"", " 0 bytes.* 2 records"),
        (lambda data: data * 2, "more than the 2 records"),
        (lambda data: b"\xff" * 8 + data[8:], "record 0 of 2 ends beyond"),
        (lambda data: bytes(8) + data[8:], "ends beyond"),
        (lambda data: b"\x1f\x8b" + data, "compressed"),
        (lambda data: data[:8] + bytes(4) + data[12:], "orrupted record"),
    ],
)
def test_damaged_files(copy, damage, text):
    file = copy / "train-00000-of-00002.tfrecord"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(DataError, match=text) as error:
        open_source(f"tfrecord:{copy}", "train").read(range(3))
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 600


def test_a_count_takes_no_memory_before_the_file_has_confirmed_it(tmp_path):
    """Only the files of the splits that are opened are checked."""
    (tmp_path / "a.tfrecord").write_bytes(bytes(100))
    splits = {"train": {"a.tfrecord": 5 * 10**11}, "test": {"a.tfrecord": 6}}
    (tmp_path / "dataset.json").write_text(json.dumps({"labels": ["x"], "splits": splits}))
    for split in ("train", "test+train[:5]"):
        with pytest.raises(DataError, match="100 bytes.*500,000,000,000"):
            open_source(f"tfrecord:{tmp_path}", split)
    assert open_source(f"tfrecord:{tmp_path}", "test").num_examples == 6


def test_lost_file(copy):
    source = open_source(f"tfrecord:{copy}", "train")
    (copy / "train-00001-of-00002.tfrecord").unlink()
    assert len(source.read(range(2)).ids) == 2
    with pytest.raises(DataError, match="00001-of-00002.*No such"):
        source.read(range(1, 3))
    with pytest.raises(DataError, match="00001-of-00002.*No such"):
        open_source(f"tfrecord:{copy}", "train")


@pytest.mark.parametrize(("module", "bad_images"), [("pretrain", "stop"), ("evaluate", "skip")])
def test_a_damaged_record_ends_a_command_wherever_it_is_in_a_window(
    command, written, tmp_path, module, bad_images
):
    """None of the images of the first step is in that file."""
    shutil.copytree(written, tmp_path / "copy")
    file = tmp_path / "copy" / "train-00003-of-00004.tfrecord"
    contents = bytearray(file.read_bytes())
    contents[-60] ^= 1
    file.write_bytes(contents)
    assignments = [f"data.name=tfrecord:{tmp_path / 'copy'}", "train.batch_size=2"]
    assignments.append(f"data.bad_images={bad_images}")
    if module == "pretrain":
        assignments += ["data.eval_split=none", "train.steps=4", "data.shuffle_window=8192"]
        flags = ["--workdir", tmp_path / "run", *as_flags(*assignments)]
    else:
        flags = [f"--set={assignment}" for assignment in [*assignments, "data.eval_split=train"]]
    result = command(module, *flags)
    assert_user_error(result, "split 'train' cannot be read", f". {file} is damaged")


@pytest.mark.parametrize(
    ("features", "text"),
    [
        ({"image/encoded": b"x"}, "0 values.*class/label"),
        ({"image/class/label": 3}, "lack image/encoded"),
        ({"image/encoded": b"x", "image/class/label": b"3"}, "Data types don't match"),
        ({"image/encoded": b"x", "image/class/label": 10}, "record 0 .*label 10"),
        ({"image/encoded": b"x", "image/class/label": -1}, "label -1.* 0 .. 9"),
        ({"image/encoded": b"x", "image/class/label": [1, 2]}, "2 values.*lists"),
        # In a folder with lists of labels:
        ({"image/encoded": b"x", "image/class/label": [3, 1, 3]}, "record 0 .*label 3 twice"),
        ({"image/encoded": b"x", "image/class/label": [3, 2**40]}, "0 .. 9, .*dataset"),
    ],
)
def test_records_of_another_schema(copy, features, text):
    if np.size(features.get("image/class/label", 0)) > 1 and "values" not in text:
        info = json.loads((copy / "dataset.json").read_bytes())
        (copy / "dataset.json").write_text(json.dumps(info | {"multi_label": True}))
    message = tf.train.Example()
    for name, value in features.items():
        if isinstance(value, bytes):
            message.features.feature[name].bytes_list.value.append(value)
        else:
            message.features.feature[name].int64_list.value.extend(np.atleast_1d(value))
    with tf.io.TFRecordWriter(str(copy / "train-00001-of-00002.tfrecord")) as writer:
        writer.write(message.SerializeToString())
    with pytest.raises(DataError, match=text) as error:
        open_source(f"tfrecord:{copy}", "train").read(range(2, 3))
    assert "\n" not in str(error.value)


GOOD = {"labels": ["a", "b"], "splits": {"train": {"x.tfrecord": 3}}}


@pytest.mark.parametrize(
    ("info", "text"),
    [
        (b"\xff\xfe", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[]", 'needs "labels"'),
        ({**GOOD, "labels": "ab"}, 'needs "labels"'),
        ({**GOOD, "labels": ["a", 3]}, 'needs "labels"'),
        ({**GOOD, "multi_label": 1}, '"multi_label"'),
        ({**GOOD, "splits": {}}, 'needs "splits"'),
        ({**GOOD, "splits": {"train": ["x"]}}, 'needs "splits"'),
        ({**GOOD, "splits": {"train": {"x": "3"}}}, 'needs "splits"'),
        ({**GOOD, "splits": {"train": {"x": True}}}, 'needs "splits"'),
        ({**GOOD, "splits": {"train": {"x": -1}}}, 'needs "splits"'),
        ({**GOOD, "splits": {"train": {"../x": 1}}}, 'needs "splits"'),
        ({**GOOD, "splits": {"train": {"x": 0}}}, "empty"),
        ({**GOOD, "splits": {"test": {"x": 1}}}, r"'train'.*test \(1\)"),
    ],
)
def test_wrong_information(tmp_path, info, text):
    content = info if isinstance(info, bytes) else json.dumps(info).encode()
    (tmp_path / "dataset.json").write_bytes(content)
    with pytest.raises(DataError, match=text):
        open_source(f"tfrecord:{tmp_path}", "train")


def test_folder_without_information(tmp_path):
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(DataError, match=f"There is no {path}/dataset.json.*make_tfrecords"):
            open_source(f"tfrecord:{path}", "train")

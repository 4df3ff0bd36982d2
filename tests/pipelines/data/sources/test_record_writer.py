"""Writing TFRecord files: what is left out, what failures leave, and the command."""

import numpy as np
import pytest
import tensorflow as tf

from pipelines.data.sources import record_writer, tfds_source
from pipelines.data.sources.open import open_source, split_names
from pipelines.data.sources.source import DataSource
from pipelines.errors import DataError, MissingLabelError

PNG = tf.io.encode_png(tf.zeros([4, 4, 3], tf.uint8)).numpy()


def test_images_left_out_are_named_in_the_final_folder(tmp_path, logged):
    for index in range(13):
        folder = tmp_path / "images" / "ab"[index % 2]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{index}.png").write_bytes(PNG if index < 2 else b"text")
    source = open_source(f"folder:{tmp_path / 'images'}", "train")
    written = record_writer.write_records({"train": source}, tmp_path / "out", 1, bad_images="skip")
    assert written.left_out == 11
    file = tmp_path / "out" / record_writer.BAD_FILE
    assert logged[-1] == f"left out more than 10 images; all are named in {file}"
    assert len(file.read_text().splitlines()) == 11


class _Unreadable(DataSource):
    """Three images; one has no bytes, or its last read fails."""

    def __init__(self, source, failure=None):
        self._source, self._failure = source, failure
        self.num_examples, self.labels, self.multi_label = 3, source.labels, False
        self.split, self.name, self.version = "train", "broken", "1"

    def read(self, ranges):
        if self._failure:
            raise self._failure
        images, labels, ids = self._source.read(ranges)
        return [b"", *images[1:]], labels, ids

    def describe(self, example_id):
        return f"number {example_id}"


@pytest.mark.parametrize(
    ("failure", "expected"),
    [(None, DataError), (KeyboardInterrupt(), KeyboardInterrupt), (OSError(28, "full"), OSError)],
)
def test_nothing_is_left_of_what_fails(digits, tmp_path, failure, expected):
    source = _Unreadable(digits, failure)
    with pytest.raises(expected) as error:
        record_writer.write_records(
            {"train": digits, "b": source}, tmp_path / "out", shards=2, bad_images="stop"
        )
    assert list(tmp_path.iterdir()) == []
    if failure is None:
        assert "number 0 (id 0) cannot be decoded: it is empty" in str(error.value)


@pytest.fixture
def make_tfrecords(command):
    """`make_tfrecords(*arguments)`: exit code, stdout, stderr."""

    def run(*arguments):
        result = command("make_tfrecords", *arguments)
        return result.returncode, result.stdout, result.stderr

    return run


def test_command(make_tfrecords, tmp_path, digits):
    output = tmp_path / "new" / "records"
    arguments = ["--output", output, "--set", "data.name=digits", "--shards", 3]
    splits = ["--split", "a=train[:200]", "--split", "b=test[:2]"]
    code, out, err = make_tfrecords(*arguments, *splits)
    assert (code, err) == (0, "")
    assert f"wrote {output} (a 200, b 2 examples" in out
    stored = open_source(f"tfrecord:{output}", "a").read(range(200))
    for column, expected in zip(stored, digits.read(range(200)), strict=True):
        np.testing.assert_array_equal(column, expected)
    # There are as many files as records.
    assert open_source(f"tfrecord:{output}", "b").shard_lengths == (1, 1)

    code, out, err = make_tfrecords(*arguments, *splits)
    assert (code, out) == (2, "")
    assert "is already there" in err


def test_command_writes_the_splits_that_there_are(make_tfrecords, tmp_path):
    for name in ("train/a/1", "train/b/1", "train/b/2", "val/a/1", "val/b/1"):
        path = tmp_path / "images" / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(PNG)
    arguments = ["--set", "data.name=folder:images"]
    code, out, err = make_tfrecords("--output", "both", *arguments)
    assert (code, err) == (0, "")
    assert "wrote both (train 3, val 2 examples" in out
    assert split_names(f"tfrecord:{tmp_path}/both") == ("train", "val")
    # Also for a folder without split folders; with eval_split=none only the training split is
    # written.
    arguments = ["--set", "data.name=folder:images/train"]
    code, out, err = make_tfrecords("--output", "one", *arguments)
    assert (code, err) == (0, "")
    assert "wrote one (train 3 examples" in out
    arguments += ["--set", "data.eval_split=none"]
    assert "wrote none (train 3 examples" in make_tfrecords("--output", "none", *arguments)[1]


def test_command_leaves_out_splits_without_labels(make_tfrecords, monkeypatch):
    """Unless they are named, as the test split of ImageNet in TFDS."""

    def check(source, ids, labels):
        if source.split == "test":
            raise MissingLabelError(f"{source} has examples without a label.")

    monkeypatch.setattr(tfds_source.TfdsSource, "_check_labels", check)
    arguments = ["--set", "data.name=digits"]
    code, out, err = make_tfrecords("--output", "some", *arguments)
    assert (code, err) == (0, "")
    assert "left out the split test: its examples have no labels" in out
    assert "wrote some (train 1,297, validation 200 examples" in out
    code, out, err = make_tfrecords("--output", "all", *arguments, "--split", "test=test")
    assert code == 2 and "without a label" in err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "--output is missing"),
        (["--output", "x", "--split", "train"], "--split needs <name>=<split>"),
        (["--output", "x", "--split", "a/b=train"], "--split needs <name>=<split>"),
        (["--output", "x", "--split", "a=train", "--split", "a=test"], "Two splits"),
        (["--output", "x", "--set", "data.eval_split=train[90%:]"], "Two splits"),
        (["--output", "x", "--set", "data.name=folder:none"], "There is no folder"),
        (["--output", "/dev/null/x"], "/dev/null/x cannot be written: File exists (/dev/null)"),
        (["--output", "x", "--shards", "0"], "shards"),
    ],
)
def test_command_rejects(make_tfrecords, tmp_path, arguments, text):
    code, out, err = make_tfrecords(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and err.count("\n") == 1
    assert text in err
    assert list(tmp_path.iterdir()) == []

"""The files of results: whole, in order, the same bytes after any interruption, and not mixed."""

import csv
import functools
import hashlib
import importlib.util
import itertools
import json
import os
import pathlib
import threading

import numpy as np
import pyarrow.parquet
import pytest
import tensorflow as tf

import vit_tf
from pipelines.data import pipeline
from pipelines.data.sources.arrays import EncodedSource
from pipelines.errors import DataError, InUseError, NonFiniteError, UserError
from pipelines.predictions import files, images, job, parquet, results
from pipelines.predictions.files import Output
from pipelines.predictions.results import Classifier, Embedder
from pipelines.runs import lease
from pipelines.runs.lock import only_writer
from pipelines.serving.signatures import make_signatures
from pipelines.stored_models.exported import SIGNATURE
from tests.vit_tf import tiny
from vit_tf.files import storage

NAMES = ["cat", 'a "dog"', "fish, red"]


def source(count=100, version="1"):
    """Images whose bytes are texts; every seventh is none."""
    contents = [b"" if i % 7 == 3 else b"image %d" % i for i in range(count)]
    labels = np.arange(count, dtype=np.int32) % 2
    return images.from_source(
        EncodedSource(
            np.array(contents, object), labels, ["a", "b"], name="d", version=version, split="s"
        )
    )


class Classify:
    """Probabilities from a hash of the bytes, and of the other images of the batch."""

    def __init__(self, fails_at=-1, salt=b""):
        self.sizes, self._fails_at, self._salt = [], fails_at, salt

    def __call__(self, contents):
        contents = contents.numpy().tolist()
        self.sizes.append(len(contents))
        if b"image %d" % self._fails_at in contents:
            raise KeyboardInterrupt
        batch = hashlib.sha256(self._salt + b"|".join(contents)).digest()
        hashed = [hashlib.sha256(batch + each).digest() for each in contents]
        rows = np.array([np.frombuffer(each, np.uint8)[:3] + 1.0 for each in hashed], np.float32)
        return {
            "probabilities": tf.constant(rows / rows.sum(axis=1, keepdims=True)),
            "valid": tf.constant([bool(each) for each in contents]),
        }


def write(path, classify=None, shards=1, overwrite=False, data=None, **options):
    output = Output(str(path), shards, overwrite)
    options = {"top": 2, "batch_size": 8} | options
    model = Classifier(classify or Classify(), NAMES, options.pop("top"))
    return files.write(output, data or source(), model, **options)


@pytest.fixture(autouse=True)
def every_batch_is_a_part(monkeypatch):
    monkeypatch.setattr(files, "_PART_SECONDS", 0.0)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """`whole(suffix, shards)`: the bytes of each file of a call of one part for each file."""

    @functools.cache
    def run(suffix, shards):
        output = Output(str(tmp_path_factory.mktemp("whole") / f"f{suffix}"), shards)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(files, "_PART_SECONDS", 1e9)
            files.write(output, source(), Classifier(Classify(), NAMES, 2), batch_size=8)
        return [pathlib.Path(path).read_bytes() for path in output.paths]

    return run


def test_both_formats_have_the_same_rows(whole):
    (table,), (lines,) = whole(".csv", 1), whole(".jsonl", 1)
    found = [json.loads(line) for line in lines.decode().splitlines()]
    assert [one["id"] for one in found] == list(range(100))
    assert [one["label"] for one in found] == ["a", "b"] * 50
    header, *rows = csv.reader(table.decode().splitlines(keepends=True), strict=True)
    assert header == [
        *("id", "path", "label", "class_1", "probability_1", "class_2", "probability_2", "error")
    ]
    for one, row in zip(found, rows, strict=True):
        assert row[:3] == [str(one["id"]), "", one["label"]]
        if one["id"] % 7 == 3:
            assert one["error"] == row[-1] and "Cannot decode s example" in row[-1]
            assert row[3:-1] == [""] * 4 and "top" not in one
            continue
        best = [text for each in one["top"] for text in (each["label"], str(each["probability"]))]
        assert row[3:] == [*best, ""]
        assert [NAMES[each["index"]] for each in one["top"]] == row[3::2][:2]
    # RFC 4180: lines end in CR LF, quotes are doubled.
    assert table.count(b"\r\n") == table.count(b"\n") == 101
    assert b'"a ""dog"""' in table and b'"fish, red"' in table
    # All digits of float32.
    batch = Classify()(tf.constant([b"image %d" % i if i % 7 != 3 else b"" for i in range(8)]))
    assert np.float32(rows[0][4]) == batch["probabilities"][0].numpy().max()


def test_more_classes_than_there_are(tmp_path):
    """All are taken; unfinished files keep the number that was asked for, as they always did."""
    calls = itertools.count()

    def fail(contents):
        if next(calls) > 3:
            raise RuntimeError
        return Classify()(contents)

    with pytest.raises(RuntimeError):
        write(tmp_path / "more.csv", fail, top=99)
    state = json.loads((tmp_path / "more.csv.partial" / "state.json").read_text())
    assert state["request"]["--top"] == 99
    for name, top in (("more.csv", 99), ("all.csv", len(NAMES))):
        write(tmp_path / name, top=top)
    assert (tmp_path / "more.csv").read_bytes() == (tmp_path / "all.csv").read_bytes()


@pytest.mark.parametrize(("suffix", "shards"), [(".csv", 3), (".jsonl", 101)])
def test_shards_have_all_rows(tmp_path, suffix, shards):
    output = Output(str(tmp_path / f"f{suffix}"), shards)
    written = write(output.path, shards=shards)
    assert (written.count, written.failed) == (100, 14)
    assert sorted(os.listdir(tmp_path)) == [os.path.basename(path) for path in output.paths]
    assert output.paths[1].endswith(f"f-00001-of-{shards:05}{suffix}")
    ids = []
    for path in output.paths:
        with open(path, encoding="utf-8", newline="") as file:
            rows = map(json.loads, file) if suffix == ".jsonl" else csv.DictReader(file)
            ids.append([int(row["id"]) for row in rows])
    assert list(itertools.chain(*ids)) == list(range(100))
    assert max(map(len, ids)) - min(map(len, ids)) <= 1


@pytest.mark.parametrize(
    ("shards", "fails_at", "done"), [(1, 5, 0), (1, 60, 56), (3, 40, 33), (3, 44, 41)]
)
def test_an_interrupted_call_goes_on(tmp_path, whole, shards, fails_at, done):
    """The first call of the model is for the fingerprint; whole batches are not computed again."""
    output = Output(str(tmp_path / "f.csv"), shards)
    second = Classify()
    with pytest.raises(KeyboardInterrupt):
        write(output.path, Classify(fails_at), shards)
    assert os.listdir(tmp_path) == ["f.csv.partial"]
    # A part that the state does not count, as after a crash between the two.
    state = files._read_state(output.partial)
    assert sum(part["count"] for part in state["parts"]) == done
    (tmp_path / "f.csv.partial" / f"part-{done:012}").write_bytes(b"torn")
    written = write(output.path, second, shards)
    assert (written.count, written.failed) == (100, 14)
    assert written.first_error.startswith("Cannot decode s example 3 of d:1: it is empty")
    assert sum(second.sizes[1:]) == 100 - done
    assert [pathlib.Path(path).read_bytes() for path in output.paths] == whole(".csv", shards)
    assert len(os.listdir(tmp_path)) == shards


def test_a_crash_while_files_are_joined(tmp_path, whole, monkeypatch):
    output, replace, moved = Output(str(tmp_path / "f.csv"), 3), os.replace, []

    def crash(old, new):
        if os.path.basename(old) == "whole":
            moved.append(new)
            if len(moved) == 2:
                raise KeyboardInterrupt
        replace(old, new)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", crash)
        with pytest.raises(KeyboardInterrupt):
            write(output.path, shards=3)
    assert os.path.exists(output.paths[0]) and not os.path.exists(output.paths[1])
    again = Classify()
    write(output.path, again, 3)
    assert len(again.sizes) == 1  # Nothing is classified.
    assert [pathlib.Path(path).read_bytes() for path in output.paths] == whole(".csv", 3)
    assert len(os.listdir(tmp_path)) == 3


@pytest.mark.parametrize(
    ("other", "name"),
    [
        ({"classify": Classify(fails_at=60, salt=b"x")}, "--model"),
        ({"data": source(version="2")}, "images"),
        ({"data": source(99)}, "images"),
        ({"top": 1}, "--top"),
        ({"shards": 2}, "--shards"),
        ({"batch_size": 16}, "--batch_size"),
    ],
    ids=["model", "version of the data", "fewer images", "top", "shards", "batch size"],
)
def test_parts_of_another_call_are_not_mixed_in(tmp_path, whole, monkeypatch, other, name):
    path = tmp_path / "f.csv"
    with pytest.raises(KeyboardInterrupt):
        write(path, **{"classify": Classify(fails_at=60)} | other)
    with pytest.raises(UserError, match=f"other {name}.*--overwrite"):
        write(path)
    assert not path.exists()
    with pytest.raises(KeyboardInterrupt):
        write(path, Classify(fails_at=20), overwrite=True)
    monkeypatch.setattr(files, "_PART_SECONDS", 1e9)  # No part replaces one of the first call.
    write(path, overwrite=True)
    assert path.read_bytes() == whole(".csv", 1)[0] and os.listdir(tmp_path) == ["f.csv"]


def test_urls(whole, monkeypatch):
    times = lease.Times(renew=9.0, stale=0.2, settle=0.01, poll=0.01)
    monkeypatch.setattr(lease, "TIMES", times)
    url = "ram://predictions/new/f.csv"
    with pytest.raises(KeyboardInterrupt):
        write(url, Classify(fails_at=40), 3)
    write(url, shards=3)
    paths = Output(url, 3).paths
    assert [b"".join(storage.chunks(path)) for path in paths] == whole(".csv", 3)
    assert storage.list_names("ram://predictions/new") == [os.path.basename(x) for x in paths]
    with pytest.raises(UserError, match="already there"):
        write(url, shards=3)


def test_what_is_there_is_kept(tmp_path, whole):
    path = tmp_path / "new" / "f.csv"
    write(path)
    path.write_text("mine")
    with pytest.raises(UserError, match="f.csv is already there. .* --overwrite"):
        write(path)
    assert path.read_text() == "mine"
    write(path, overwrite=True)
    assert path.read_bytes() == whole(".csv", 1)[0]

    with pytest.raises(UserError, match=r"\.csv or \.jsonl"):
        write(tmp_path / "f.txt")
    (tmp_path / "g.csv").mkdir()
    with pytest.raises(UserError, match="g.csv is a folder"):
        write(tmp_path / "g.csv")
    (tmp_path / "h.csv.partial").mkdir()
    (tmp_path / "h.csv.partial" / "photo.jpg").touch()
    with pytest.raises(UserError, match="h.csv.partial"):
        write(tmp_path / "h.csv")
    (tmp_path / "i.csv.partial").touch()
    with pytest.raises(UserError, match="i.csv.partial"):
        Output(str(tmp_path / "i.csv")).check()
    parts = '{"request": {}, "joining": false, "parts": '
    for text in ("{}", "[", parts + "7}", parts + '[{"count": "x", "failed": 0, "error": ""}]}'):
        (tmp_path / "k.csv.partial").mkdir()
        (tmp_path / "k.csv.partial" / "state.json").write_text(text)
        with pytest.raises(UserError, match="state.json"):
            write(tmp_path / "k.csv")
        write(tmp_path / "k.csv", overwrite=True)
        (tmp_path / "k.csv").unlink()


def test_a_part_that_is_gone_is_written_again(tmp_path, whole):
    path, again = tmp_path / "f.csv", Classify()
    with pytest.raises(KeyboardInterrupt):
        write(path, Classify(60))
    (tmp_path / "f.csv.partial" / f"part-{16:012}").unlink()
    assert write(path, again).count == 100
    assert sum(again.sizes[1:]) == 100 - 16
    assert [path.read_bytes()] == whole(".csv", 1)


def test_an_object_that_is_gone_has_a_reason():
    """It was there when the images were named; the others get their results."""
    urls = [f"ram://predictions/{name}.png" for name in "abc"]
    for url in urls:
        with tf.io.gfile.GFile(url, "wb") as file:
            file.write(b"an image")
    named = images.from_paths(urls)
    tf.io.gfile.remove(urls[1])
    ((a, b, c),) = results.in_batches(named, Classifier(Classify(), NAMES, 1))
    assert "top" in a and "top" in c and [x["path"] for x in (a, b, c)] == urls
    assert f"Cannot decode {urls[1]}" in b["error"]


@pytest.mark.parametrize("calls", [1, 2])
def test_calls_of_the_model_at_a_time(calls):
    """As many as are asked for, and no more: two calls on one core only take turns."""
    both, lock, running, most = threading.Event(), threading.Lock(), 0, 0

    def classify(contents):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            if running == 2:
                both.set()
        both.wait(0.2)
        with lock:
            running -= 1
        return Classify()(contents)

    urls = [f"ram://calls/{index}.png" for index in range(4)]
    for url in urls:
        with tf.io.gfile.GFile(url, "wb") as file:
            file.write(b"an image")
    model = Classifier(classify, NAMES, 1)
    found = results.in_batches(images.from_paths(urls), model, batch_size=1, calls=calls)
    assert [entry["path"] for batch in found for entry in batch] == urls
    assert most == calls


def test_one_process_writes(tmp_path):
    with only_writer(tmp_path / "f.csv.partial"):
        with pytest.raises(InUseError, match="in use by .*--output"):
            write(tmp_path / "f.csv")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="Cannot write to --output"):
        write(tmp_path / "file" / "f.csv")


def test_probabilities_that_are_not_numbers(tmp_path):
    class Broken(Classify):
        def __call__(self, contents):
            outputs = super().__call__(contents)
            if b"image 16" in contents.numpy():
                outputs["probabilities"] *= np.nan
            return outputs

    with pytest.raises(NonFiniteError, match="s example 16 of d:1.*NaN"):
        write(tmp_path / "f.csv", Broken())
    assert os.listdir(tmp_path) == ["f.csv.partial"]


def test_named_files_go_on_beside_the_new_files(tmp_path, monkeypatch):
    """The folder changes when FILE.partial is made; missing files are told apart by their names."""
    monkeypatch.chdir(tmp_path)
    for i in (1, 2, 4):
        (tmp_path / f"{i}.png").write_bytes(b"image %d" % i)
    names = ["1.png", "2.png", "none.png", "4.png"]

    def go_on(classify=None, last="other.png"):
        return write("f.csv", classify, data=images.from_paths([*names, last]), batch_size=2)

    with pytest.raises(KeyboardInterrupt):
        go_on(Classify(fails_at=4))
    with pytest.raises(UserError, match="with other images"):
        go_on(last="another.png")
    assert go_on().failed == 2
    rows = list(csv.DictReader((tmp_path / "f.csv").read_text().splitlines()))
    assert [row["path"] for row in rows] == [*names, "other.png"]
    assert [row["error"] for row in rows if row["error"]] == [
        f"There is no image or folder at {name}." for name in ("none.png", "other.png")
    ]


def test_data_that_cannot_be_read_end_the_call(tmp_path, whole, monkeypatch):
    data, locate = source(), EncodedSource.locate

    def fail(self, indices):
        if self is data.source and max(indices) >= 48:
            raise DataError("The file 7 is damaged.")
        return locate(self, indices)

    monkeypatch.setattr(EncodedSource, "locate", fail)
    monkeypatch.setattr(pipeline, "_ENCODED_WINDOW", 16)
    with pytest.raises(DataError, match="The file 7 is damaged"):
        write(tmp_path / "f.csv", data=data)
    assert os.listdir(tmp_path) == ["f.csv.partial"]
    monkeypatch.undo()
    write(tmp_path / "f.csv")
    assert (tmp_path / "f.csv").read_bytes() == whole(".csv", 1)[0]


class Embed(Classify):
    """The same values as embeddings."""

    def __call__(self, contents):
        outputs = super().__call__(contents)
        return {"embedding": outputs["probabilities"], "valid": outputs["valid"]}


def write_table(path, embed=None, shards=1):
    model = Embedder(embed or Embed(), 3)
    output = Output(str(path), shards, flag="--embed")
    return files.write(output, source(), model, batch_size=8)


def test_a_parquet_file_has_the_rows_of_an_array(tmp_path):
    """An image without an embedding has null and an error, in place of NaN."""
    write_table(tmp_path / "e.npy")
    written = write_table(tmp_path / "e.parquet")
    assert (written.count, written.failed) == (100, 14)
    assert sorted(os.listdir(tmp_path)) == ["e.csv", "e.npy", "e.parquet"]
    table = pyarrow.parquet.read_table(tmp_path / "e.parquet")
    kinds = dict(zip(table.schema.names, map(str, table.schema.types), strict=True))
    assert kinds == {
        "id": "int64",
        "path": "string",
        "label": "string",
        "embedding": "list<element: float>",
        "error": "string",
    }
    array = np.load(tmp_path / "e.npy")
    with open(tmp_path / "e.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for i, (one, row) in enumerate(zip(table.to_pylist(), rows, strict=True)):
        assert (one["id"], one["path"], one["label"]) == (i, None, row["label"])
        assert one["error"] == (row["error"] or None)
        assert one["embedding"] == (None if i % 7 == 3 else array[i].tolist())


@pytest.mark.parametrize("shards", [1, 3, 101])
def test_an_interrupted_parquet_file_has_the_same_bytes(tmp_path, monkeypatch, shards):
    """Its row groups have a fixed size, whatever the parts are."""
    monkeypatch.setattr(parquet, "_GROUP", 24)
    (tmp_path / "a").mkdir()
    one, other = Output(str(tmp_path / "e.parquet"), shards), tmp_path / "a" / "e.parquet"
    with pytest.raises(KeyboardInterrupt):
        write_table(one.path, Embed(fails_at=60), shards)
    second = Embed()
    write_table(one.path, second, shards)
    assert 100 > sum(second.sizes[1:]) > 0
    monkeypatch.setattr(files, "_PART_SECONDS", 1e9)
    write_table(other, shards=shards)
    ids = []
    for path in one.paths:
        assert (tmp_path / "a" / os.path.basename(path)).read_bytes() == (
            pathlib.Path(path).read_bytes()
        )
        file = pyarrow.parquet.ParquetFile(path)
        groups = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        assert all(rows == 24 for rows in groups[:-1])
        ids += file.read()["id"].to_pylist()
    assert ids == list(range(100))


def test_a_parquet_file_at_a_url_and_without_its_package(tmp_path, monkeypatch):
    # Shards, since ram:// takes e.parquet for a folder as long as there is e.parquet.partial.
    url = "ram://predictions/table/e.parquet"
    write_table(url, shards=2)
    write_table(tmp_path / "e.parquet", shards=2)
    for path in Output(url, 2).paths:
        local = tmp_path / os.path.basename(path)
        assert b"".join(storage.chunks(path)) == local.read_bytes()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"new.parquet needs pyarrow.*pip install.*\.npy"):
        Output(str(tmp_path / "new.parquet"), flag="--embed").check()
    with pytest.raises(UserError, match=r"ends in \.npy or \.parquet"):
        Output(str(tmp_path / "new.csv"), flag="--embed").check()


def test_models_are_told_apart():
    model = tiny.model(layers=1)

    def fingerprint(labels=NAMES, **fields):
        rule = vit_tf.Preprocessing(image_size=model.config.image_size, **fields)
        return job.fingerprint(Classifier(make_signatures(model, rule)[SIGNATURE], labels, 1))

    before = fingerprint()
    others = [fingerprint(NAMES[::-1]), fingerprint(exif="apply"), fingerprint(antialias=True)]
    assert before == fingerprint() and before not in others
    model.head.bias.assign_add([0.001, *[0.0] * (model.config.num_classes - 1)])
    assert before != fingerprint()


def test_batches_begin_where_ranges_begin():
    found = results._encoded_batches(source().source, [(3, 20), (20, 20), (40, 100)], 16)
    ids = [batch["id"].numpy().tolist() for batch in found]
    limits = [(3, 19), (19, 20), (40, 56), (56, 72), (72, 88), (88, 100)]
    assert ids == [list(range(*pair)) for pair in limits]

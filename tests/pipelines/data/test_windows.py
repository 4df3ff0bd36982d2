"""Reading windows inside tf.data: order, padding, errors, and what passes through Python."""

import time
import tracemalloc

import numpy as np
import pytest
import tensorflow as tf

from pipelines.config.augmentation import Augmentation
from pipelines.config.data import Sampling
from pipelines.data import pipeline, stateless_random
from pipelines.data.order import TrainBatches, TrainOrder, Window
from pipelines.data.pipeline import read_windows
from pipelines.data.sources import record_files, record_starts, records
from pipelines.data.sources.arrays import ArraySource
from pipelines.data.sources.open import open_source
from pipelines.errors import DataError
from vit_tf.preprocessing import Preprocessing

COUNT, SIZE = 300, 2000
FILES = {"0": 130, "1": 70, "2": 100}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """TFRecord files of `COUNT` images: bytes that begin with the number of the example."""
    folder, number = tmp_path_factory.mktemp("records"), 0
    for name, count in FILES.items():
        with tf.io.TFRecordWriter(str(folder / name)) as writer:
            for _ in range(count):
                image = tf.train.Feature(bytes_list=tf.train.BytesList(value=[image_of(number)]))
                label = tf.train.Feature(int64_list=tf.train.Int64List(value=[number % 7]))
                features = {records.IMAGE: image, records.LABEL: label}
                example = tf.train.Example(features=tf.train.Features(feature=features))
                writer.write(example.SerializeToString())
                number += 1
    return folder


def image_of(number):
    return number.to_bytes(4, "big") + bytes(SIZE)


@pytest.fixture
def source(folder):
    return records.RecordSource(str(folder), [*"abcdefg"], {"train": FILES}, "train")


def chunks_of(source, windows):
    """The dataset of all rows of some windows."""

    def columns(window, ids):
        return {"id": ids, "offset": window.offsets}

    spec = tf.TensorSpec([None], tf.int64)
    return read_windows(source, lambda: iter(windows), columns, {"id": spec, "offset": spec})


def rows_of(source, windows):
    """All rows of some windows."""
    chunks = [*chunks_of(source, windows)]
    return {key: np.concatenate([chunk[key] for chunk in chunks]) for key in chunks[0]}


def test_rows_leave_in_order_with_padding(source):
    rng = np.random.default_rng(0)
    indices = [rng.permutation(COUNT), np.array([17, -1, 299, -1, 0]), np.array([-1])]
    offsets = np.split(np.arange(COUNT + 6), [COUNT, COUNT + 5])
    rows = rows_of(source, [*map(Window, indices, offsets)])
    expected = np.concatenate(indices)
    stored = expected >= 0
    np.testing.assert_array_equal(rows["id"], expected)
    np.testing.assert_array_equal(rows["label"], np.where(stored, expected % 7, 0))
    np.testing.assert_array_equal(rows["offset"], np.arange(COUNT + 6))
    assert rows["image"][stored].tolist() == [image_of(int(i)) for i in expected[stored]]
    assert set(rows["image"][~stored]) == {tf.io.encode_png(np.zeros([1, 1, 3], np.uint8)).numpy()}


def test_a_window_reads_only_its_records(source):
    """Counted in bytes that the process reads: half of the records are every second one."""
    source.locate(np.arange(COUNT))  # Finds where the records start.
    indices = np.arange(0, COUNT, 2)

    def bytes_read():
        with open("/proc/self/io") as file:
            return int(file.readline().split()[1])

    rows_of(source, [Window(indices[:1], indices[:1])])  # Loads what TensorFlow loads once.
    before = bytes_read()
    rows_of(source, [Window(indices, indices)])
    used = len(indices) * SIZE
    assert used <= bytes_read() - before < 1.2 * used


def test_two_windows_are_read_ahead(source):
    """While the first one is used, the second is read and the third is located; no more."""
    begun = []

    def windows():
        for number in range(9):
            begun.append(number)
            yield Window(np.arange(COUNT), np.arange(COUNT))

    chunks = iter(chunks_of(source, windows()))
    for first in (0, 1):
        for _ in range(-(-COUNT // pipeline._ROWS_PER_CHUNK)):
            next(chunks)
            deadline = time.monotonic() + 60
            while len(begun) < first + 3 and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(0.1)  # Time for one window too many.
            assert begun == [*range(first + 3)]


def test_little_passes_through_python(source):
    """At most 52 bytes for an example, and 24 bytes and the path for a run of records."""
    sampling = Sampling(batch_size=16, shuffle_window=COUNT, seed=0, sharding="global")
    window = next(TrainBatches(source, sampling).windows())
    columns = pipeline._columns(window.offsets, window.indices, 16, 0, None)
    assert sum(column.nbytes for column in columns.values()) <= 52 * COUNT
    location = source.locate(np.sort(window.indices))
    assert set(location) == {"path", "start", "count", "buffer"}
    assert len(location["path"]) <= COUNT // record_files._RECORDS_PER_RUN + len(FILES)


def op_types(dataset):
    """The types of all ops of a dataset behind its generator, also in the functions it calls."""
    definition = tf.compat.v1.GraphDef.FromString(dataset._as_serialized_graph().numpy())
    library = {function.signature.name: function for function in definition.library.function}
    types, called, generators = set(), set(), 0

    def walk(nodes):
        nonlocal generators
        for node in nodes:
            if node.op == "GeneratorDataset":
                generators += 1
                continue
            types.add(node.op)
            attributes = node.attr.values()
            names = {x.func.name for x in attributes} | {
                f.name for x in attributes for f in x.list.func
            }
            for name in (names & library.keys()) - called:
                called.add(name)
                walk(library[name].node_def)

    walk(definition.node)
    assert generators == 1
    return types


@pytest.mark.parametrize("skips", [False, True])
@pytest.mark.parametrize("kind", ["records", "tfds", "folder", "arrays"])
def test_no_python_behind_the_generator(kind, skips, source, tmp_path):
    if kind == "tfds":
        source = open_source("digits", "train[:200]")
    elif kind == "arrays":
        source = ArraySource(np.zeros([8, 4, 4, 3], np.uint8), [0, 1] * 4)
    elif kind == "folder":
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "1.png").write_bytes(b"")
        source = open_source(f"folder:{tmp_path}", "train")
    sampling = Sampling(batch_size=2, shuffle_window=9, seed=0, sharding="global")
    dataset = pipeline.train_dataset(
        source,
        sampling,
        Augmentation(mixup=0.2, randaugment_layers=1),
        Preprocessing(image_size=(8, 8)),
        skips_bad_images=skips,
    )
    types = op_types(dataset)
    assert "StatelessRandomUniformV2" in types or "StatelessRandomUniformFullIntV2" in types
    assert not [name for name in types if "PyFunc" in name]


def test_a_file_that_shrank_after_its_records_were_found(folder, tmp_path, source):
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in FILES:
        (copy / name).write_bytes((folder / name).read_bytes())
    own = records.RecordSource(str(copy), source.labels, {"train": FILES}, "train")
    own.locate(np.arange(COUNT))
    contents = (copy / "1").read_bytes()
    (copy / "1").write_bytes(contents[: len(contents) // 2])
    window = Window(np.arange(COUNT), np.arange(COUNT))
    with pytest.raises(tf.errors.OpError, match="is not in"):
        rows_of(own, [window])
    with pytest.raises(DataError, match="265 records.*300"):
        own.read(range(COUNT))


class TestRecordStarts:
    """The cache of the bytes at which records start."""

    @pytest.fixture(autouse=True)
    def cache(self, tmp_path, monkeypatch):
        monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
        monkeypatch.setattr(record_starts, "_MIN_CACHED", 2)

        def searched(path, count, size):
            self.searches += 1
            return find(path, count, size)

        find = record_starts._find_starts
        monkeypatch.setattr(record_starts, "_find_starts", searched)
        self.searches = 0

    @pytest.fixture
    def file(self, folder, tmp_path):
        path = tmp_path / "file"
        path.write_bytes((folder / "0").read_bytes())
        return path

    def starts(self, path, count=FILES["0"]):
        return record_starts.record_starts(str(path), count)

    def test_they_are_found_once(self, file):
        first = self.starts(file)
        np.testing.assert_array_equal(self.starts(file), first)
        assert self.searches == 1 and first[-1] == file.stat().st_size

    def test_a_changed_file_is_searched_again(self, file, folder):
        self.starts(file)
        file.write_bytes((folder / "0").read_bytes())  # Another time of change.
        self.starts(file)
        assert self.searches == 2
        contents = file.read_bytes()
        file.write_bytes(contents[:-5])
        with pytest.raises(DataError, match="record 129 of 130"):
            self.starts(file)

    @pytest.mark.parametrize(
        "damage",
        [
            lambda x: x[:-1],
            lambda x: x[:16],
            lambda x: np.zeros_like(x),
            lambda x: np.full_like(x, -1),
            lambda x: np.where(np.arange(len(x)) == 9, 2**62, x),
            lambda x: x + (np.arange(len(x)) == 7),
            lambda x: np.where(np.arange(len(x)) == 2, 3, x),
            lambda x: np.where((np.arange(len(x)) > 2) & (np.arange(len(x)) < 132), x + 20, x),
        ],
    )
    def test_a_damaged_cache_is_not_used(self, file, damage, tmp_path):
        expected = self.starts(file)
        (cached,) = (tmp_path / "keras").rglob("record_offsets/*")
        cached.write_bytes(damage(np.fromfile(cached, "<i8")).tobytes())
        np.testing.assert_array_equal(self.starts(file), expected)
        assert self.searches == 2

    def test_without_a_cache(self, file, tmp_path):
        (tmp_path / "keras").write_text("no folder")
        np.testing.assert_array_equal(self.starts(file), self.starts(file))
        assert self.searches == 2


def test_order_of_300_million_examples_takes_little_memory():
    """Blocks only: 600,000 of them, not an array of the examples."""
    tracemalloc.start()
    order = TrainOrder((300_000,) * 1000, 8192, seed=1)
    first = order.indices(0, 0)
    assert len(np.unique(first)) == 8192
    np.testing.assert_array_equal(
        order.stream(8190, 8194), [*first[8190:], *order.indices(0, 1)[:2]]
    )
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 150e6  # An array of the examples would take 2.4 GB.


@pytest.mark.parametrize("labels", [[[3, 5], []], [[3], [7]], [[3], [-1]]])
def test_wrong_labels_end_training(labels, tmp_path):
    """Also if the records of a run have one label each on average."""
    with tf.io.TFRecordWriter(str(tmp_path / "a")) as writer:
        for values in labels:
            image = tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"x"]))
            label = tf.train.Feature(int64_list=tf.train.Int64List(value=values))
            features = {records.IMAGE: image, records.LABEL: label}
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())
    source = records.RecordSource(str(tmp_path), [*"abcdefg"], {"train": {"a": 2}}, "train")
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"= -?\d .*\[0, [17]\)"):
        rows_of(source, [Window(np.arange(2), np.arange(2))])
    with pytest.raises(DataError, match="record . of .*/a has"):
        source.read(range(2))


def test_the_order_of_an_epoch_is_drawn_once(monkeypatch):
    drawn, original = [], stateless_random.permutation

    def note(length, *counter):
        drawn.append(length)
        return original(length, *counter)

    monkeypatch.setattr(stateless_random, "permutation", note)
    order = TrainOrder((100,) * 8, 40, seed=1)
    for epoch in (0, 1):
        for window in range(5):
            order.indices(epoch, window)
    blocks = len(order._blocks[0])
    assert drawn.count(blocks) == 2 and drawn.count(40) == 10

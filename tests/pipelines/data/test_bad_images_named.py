"""`data.bad_images=skip`: every bad image is named once, on the screen and in a file."""

import dataclasses
import json
import os

import numpy as np
import pytest
import tensorflow as tf

from pipelines.config.augmentation import Augmentation
from pipelines.config.data import Sampling
from pipelines.data import bad_images, pipeline
from pipelines.data.bad_images import BadImages
from pipelines.data.decoding import decode_error
from pipelines.data.order import EvalBatches, TrainBatches
from pipelines.data.sources.open import open_source
from pipelines.errors import DataError, RunError
from pipelines.evaluation.evaluation_step import EvaluationData, Evaluator
from pipelines.tasks.classification import Classification
from pipelines.training.step_state import BadRows
from pipelines.training.train_data import TrainData
from tests.pipelines import hostile
from tests.pipelines.data.spoiled import BAD, PREPROCESSING, Spoiled, train
from tests.pipelines.tiny import one_device, two_replicas

EVALUATION = {"preprocessing": PREPROCESSING, "batch_size": 50}


def _evaluator(data, strategy=None):
    def model(images, training):
        return tf.zeros([tf.shape(images)[0], 10])

    strategy = strategy or tf.distribute.get_strategy()
    return Evaluator(model, strategy, data, Classification(loss="softmax"))


def test_a_capped_evaluation_names_an_image_that_it_reads(examples):
    """Two batches of the twenty are evaluated: 0 .. 9 and 100 .. 109."""
    source = Spoiled(examples, (15, 105))
    data = EvaluationData(source=source, preprocessing=PREPROCESSING, batch_size=10, max_batches=2)
    with pytest.raises(DataError, match="digit 105 "):
        _evaluator(data).run()
    batches = EvalBatches(source, 10, 2)
    assert [batches.indices(k).tolist() for k in range(2)] == [[*range(10)], [*range(100, 110)]]
    dataset = pipeline.eval_dataset(
        Spoiled(examples, ()), batch_size=30, preprocessing=PREPROCESSING, max_batches=7
    )
    batches = EvalBatches(source, 30, 7)
    assert len(batches) == 7 and batches.num_examples == 200
    for k, batch in enumerate(dataset):  # Here an id is an index; padding has -1 as both.
        assert batches.indices(k).tolist() == batch["id"].numpy().tolist()


def _records(path):
    return [json.loads(line) for line in path.read_text().splitlines() if line.startswith("{")]


def _name_all(source, bad, steps, **options):
    """Trains without a model: the rows of each batch go through `BadRows` to the file."""
    sampling = Sampling(batch_size=32, seed=5, shuffle_window=70, sharding="global")
    data = TrainData(
        source=source,
        sampling=sampling,
        augmentation=Augmentation(),
        preprocessing=PREPROCESSING,
        bad_images=bad,
    )
    rows = BadRows(tf.distribute.get_strategy())
    for index, batch in enumerate(data.dataset(0).take(steps)):
        rows.add(batch, tf.constant(index, tf.int64), tf.constant(True))
        if index % 3 == 2:
            _take(rows, data)
    _take(rows, data)
    return rows


def _take(rows, data):
    slots, lost = rows.take()
    data.bad_images.record_slots(data.batches(hosts=1), slots)
    data.bad_images.lose(lost)


def test_each_is_named_once(spoiled, tmp_path, logged):
    """Over any number of epochs and with evaluations between; in the order of their first use."""
    path = tmp_path / "bad_images.jsonl"
    bad = BadImages(path)
    _name_all(spoiled, bad, 20)
    _evaluator(EvaluationData(source=spoiled, **EVALUATION, bad_images=bad)).run()
    met = [i for batch in train(spoiled, 20) for i in batch["id"] if i in BAD]
    records = _records(path)
    assert [record["id"] for record in records] == list(dict.fromkeys(met))
    contents = list(hostile.unreadable().values())
    for record in records:
        data = contents[BAD.index(record["id"])][1]
        assert record["name"] == f"digit {record['id']}"
        assert record["reason"] == decode_error(data)
    assert logged == [f"left out {r['name']} (id {r['id']}): {r['reason']}" for r in records]
    line = f"images left out because they cannot be read: 6, named in {path}"
    assert bad.summary() == line


def test_an_evaluation_names_them(spoiled, examples, logged):
    """Also if it reads only some of the batches, on two replicas."""
    data = EvaluationData(source=spoiled, **EVALUATION, bad_images=BadImages())
    strategy = two_replicas()
    with strategy.scope():
        means = _evaluator(data, strategy).run()
    assert means["examples"] == 200 - len(BAD)
    assert [int(line.split()[3]) for line in logged] == list(BAD)
    logged.clear()
    capped = dataclasses.replace(data, batch_size=10, max_batches=2, bad_images=BadImages())
    _evaluator(dataclasses.replace(capped, source=Spoiled(examples, (8, 15, 105)))).run()
    assert [line.split()[3] for line in logged] == ["8", "105"]


def test_ten_are_told_and_all_are_written(examples, tmp_path, logged):
    path = tmp_path / "bad_images.jsonl"
    _name_all(Spoiled(examples, range(5, 35)), BadImages(path), 7)
    assert len(logged) == 11
    assert [line.split()[0:2] for line in logged] == [["left", "out"]] * 11
    assert logged[-1] == f"left out more than 10 images; all are named in {path}"
    assert sorted(record["id"] for record in _records(path)) == list(range(5, 35))


def test_rows_beyond_the_buffer_are_counted(examples, monkeypatch, logged):
    monkeypatch.setattr(BadRows, "_CAPACITY", 5)
    bad = BadImages()
    _name_all(Spoiled(examples, range(5, 35)), bad, 3)
    met = [i for batch in train(Spoiled(examples, range(5, 35)), 3) for i in batch["id"]]
    met = [i for i in met if 5 <= i < 35]
    assert [int(line.split()[3]) for line in logged[:-1]] == met[-5:]
    assert logged[-1] == "left out more images at a time than can be named"
    assert bad.summary().endswith(f": 5; {len(met) - 5} times one that is not named")


def test_a_resumed_run_goes_on_with_its_file(spoiled, tmp_path, logged):
    path = tmp_path / "bad_images.jsonl"
    first = BadImages(path)
    first.record(spoiled, [3, 77])
    path.write_bytes(path.read_bytes() + b'{"id": 40, "na')  # a crash leaves an incomplete line
    second = BadImages(path)
    assert second.count == 2
    second.record(spoiled, [77, 40])
    assert [record["id"] for record in map(_json, path.read_text().splitlines()) if record] == [
        3,
        77,
        40,
    ]
    assert len(logged) == 3
    assert BadImages(path).count == 3


def _json(line):
    try:
        return json.loads(line)
    except ValueError:
        return None


def test_nothing_bad_leaves_no_file(digits, tmp_path):
    bad = BadImages(tmp_path / "bad_images.jsonl")
    assert _name_all(digits, bad, 1).empty_batch() is None
    assert bad.summary() is None
    assert list(tmp_path.iterdir()) == []


def test_a_batch_without_a_single_image_is_noted(examples):
    """A batch with at least one good image is not."""
    sampling = Sampling(batch_size=32, seed=5, shuffle_window=70, sharding="global")
    order = TrainBatches(Spoiled(examples), sampling).indices(2).tolist()
    batches = train(Spoiled(examples, order[1:]), 4)
    assert [batch["weight"].sum() for batch in batches] == [32, 32, 1, 32]
    bad = BadImages()
    assert _name_all(Spoiled(examples, order[1:]), bad, 4).empty_batch() is None
    assert _name_all(Spoiled(examples, order), bad, 4).empty_batch() == 2


@pytest.mark.parametrize("make", [two_replicas, one_device])
def test_the_rows_of_all_replicas_are_taken_once(make):
    """In order; a batch is empty if it is on all replicas. XLA compiles it for one device."""
    weights = np.ones([6, 8], np.float32)
    weights[0, [6, 1]] = weights[1, ::2] = weights[2, 4:] = weights[3:] = 0
    ids = np.arange(8)
    ids[1] = -1  # A row that fills up the batch.
    expected = [(i, j) for i, j in np.argwhere(weights == 0) if j != 1]
    strategy = make()
    with strategy.scope():
        rows = BadRows(strategy)
    replicas = strategy.num_replicas_in_sync
    add = tf.function(rows.add, jit_compile=True) if replicas == 1 else rows.add
    step = tf.function(lambda *args: strategy.run(add, args=args))

    def note(index, condition=True):
        batch = {"weight": weights[index], "id": ids, "slot": np.arange(8, dtype=np.int32)}

        def own(context):  # Every second row of a global batch for one of two replicas.
            first = context.replica_id_in_sync_group
            return {key: tf.constant(value[first::replicas]) for key, value in batch.items()}

        slices = strategy.experimental_distribute_values_from_function(own)
        step(slices, tf.constant(index, tf.int64), tf.constant(condition))

    for index in range(3):
        note(index)
    assert rows.take() == (expected[:9], 0) and rows.empty_batch() is None
    note(5, condition=False)
    assert rows.take() == ([], 0) and rows.empty_batch() is None
    note(3)
    note(4)
    assert rows.take() == (expected[9:23], 0) and rows.empty_batch() == 3
    assert rows.take() == ([], 0)


def test_a_file_that_cannot_be_written_stops(spoiled, tmp_path):
    bad = BadImages(tmp_path / "missing" / "bad_images.jsonl")
    with pytest.raises(RunError, match="bad_images.jsonl.*No such"):
        _name_all(spoiled, bad, 7)


def test_a_disk_that_fills_up_stops(spoiled, tmp_path, monkeypatch):
    """A partially written line raises an error; the next start begins a new line."""
    path, write = tmp_path / "bad_images.jsonl", os.write
    bad = BadImages(path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda file, data: write(file, data[: len(data) // 2]))
        with pytest.raises(RunError, match="written.*No space"):
            bad.record(spoiled, [3])
    again = BadImages(path)
    assert again.count == 0
    again.record(spoiled, [3])
    assert BadImages(path).count == 1


def test_files_that_cannot_be_read_still_stop(tmp_path):
    """A damaged file of records is not a bad image, and the error does not mention bad images."""
    source = open_source("digits", "train", tmp_path)
    bad = BadImages()
    (file,) = tmp_path.rglob("digits-train*")
    file.unlink()
    with pytest.raises(bad_images.INPUT_ERRORS):
        train(source, 1)
    with pytest.raises(DataError, match="cannot be read"):
        bad.record(source, [5])
    for skips in (True, False):
        error = tf.errors.InvalidArgumentError(None, None, "no image")
        failure = bad_images.explain_input_error(error, Batches(source, [5]), [0], skips)
        assert isinstance(failure, DataError) and "cannot be read" in str(failure)
    error = tf.errors.InvalidArgumentError(None, None, "no image")
    along = Batches(source, [], [[5]])
    assert "cannot be read" in str(bad_images.explain_input_error(error, along, [0]))


class Batches:
    """Batches with the same indices in each."""

    def __init__(self, source, indices, read_along=()):
        self.source, self._indices, self._read_along = source, indices, read_along

    def indices(self, batch):
        return np.array(self._indices, np.int64)

    def read_along(self, batches):
        return self._read_along


def test_only_without_skip_a_bad_image_is_a_reason_to_stop(spoiled):
    error = tf.errors.InvalidArgumentError(None, None, "no image")
    batches = Batches(spoiled, [*range(200)])
    problem = str(bad_images.explain_input_error(error, batches, [0]))
    assert "The image digit 3 (id 3) cannot be decoded: it is empty" in problem
    assert "data.bad_images=skip" in problem
    assert bad_images.explain_input_error(error, batches, [0], skips_bad_images=True) is error


def test_a_failure_of_the_input_becomes_the_name_of_the_image(spoiled):
    """The error names the first bad image in the order of the slots, or stays unchanged."""
    error = tf.errors.InvalidArgumentError(None, None, "no image")
    for indices, bad in (([199, 78, 77], 78), ([-1, *range(41)], 3)):
        with pytest.raises(DataError, match=f"image digit {bad} "):
            raise bad_images.explain_input_error(error, Batches(spoiled, indices), [0])
    # A bad image that is only read along did not fail.
    good = Batches(spoiled, [0, 199, 5, -1], [[3, 4], [40]])
    assert bad_images.explain_input_error(error, good, range(2)) is error


def test_a_found_image_says_where_it_is_and_why(spoiled):
    found = [*bad_images.find_bad_images(spoiled, range(70, 80))]
    assert [(bad.index, bad.id, bad.name) for bad in found] == [
        (77, 77, "digit 77"),
        (78, 78, "digit 78"),
    ]
    (known,) = bad_images.find_bad_images(spoiled, [5], are_known=True)
    assert known.reason == "some of it cannot be decoded"

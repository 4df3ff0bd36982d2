"""Checkpoints: atomic writes, checks, and which ones are deleted."""

import contextlib
import errno
import json
import os

import pytest
import tensorflow as tf

from pipelines.errors import RunError
from pipelines.runs import checkpoints
from pipelines.runs.checkpoints import CheckpointStore


@pytest.fixture
def state():
    """A variable and the `tf.train.Checkpoint` that holds it."""
    variable = tf.Variable(0.0)
    return variable, tf.train.Checkpoint(variable=variable)


def open_store(directory, state, keep_last=3, keep_every=0):
    return CheckpointStore(directory, state, keep_last=keep_last, keep_every=keep_every)


def save(store, variable, step, score=None):
    variable.assign(float(step))
    store.save(step, score)


def test_the_newest_is_restored(tmp_path, state):
    variable, checkpoint = state
    store = open_store(tmp_path / "c", checkpoint)
    assert store.restore_newest() is None
    for step in (5, 10):
        save(store, variable, step)
    variable.assign(-1.0)
    assert store.restore_newest() == 10
    assert variable.numpy() == 10


def test_rules_of_keeping(tmp_path, state):
    variable, checkpoint = state
    store = open_store(tmp_path, checkpoint, keep_last=2, keep_every=30)
    scores = {10: 0.5, 20: 0.9, 30: 0.7, 40: 0.9, 50: 0.1}
    for step in range(10, 101, 10):
        save(store, variable, step, scores.get(step))
    # 20 is the first of the best, 30, 60 and 90 are multiples, 90 and 100 are the last two.
    assert checkpoints.steps(tmp_path) == [20, 30, 60, 90, 100]


def test_a_later_score_is_added_without_writing_the_state_again(tmp_path, state):
    variable, checkpoint = state
    store = open_store(tmp_path, checkpoint, keep_last=1)
    save(store, variable, 1)
    before = os.stat(checkpoints.prefix(tmp_path, 1) + ".index").st_mtime_ns
    store.save(1, score=0.9)
    assert os.stat(checkpoints.prefix(tmp_path, 1) + ".index").st_mtime_ns == before
    save(store, variable, 2, score=0.1)
    assert checkpoints.steps(tmp_path) == [1, 2]


def test_a_score_alone_does_not_gather_the_state(tmp_path, state):
    variable, checkpoint = state
    gathered = []

    @contextlib.contextmanager
    def whole_state():
        gathered.append(variable.numpy())
        yield

    store = CheckpointStore(
        tmp_path, checkpoint, keep_last=3, keep_every=0, whole_state=whole_state
    )
    for step in (1, 2):
        save(store, variable, step)
        store.save(step, score=0.9)
    assert gathered == [1, 2] and checkpoints.best(tmp_path) == 1
    # What was written last may be damaged, so the run goes on from another one and comes back.
    DAMAGE["truncated"](tmp_path / "step-2")
    assert store.restore_newest() == 1
    save(store, variable, 2)
    assert gathered == [1, 2, 2] and checkpoints.newest(tmp_path) == 2


def _flip_a_byte(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


DAMAGE = {
    "flipped byte": lambda folder: _flip_a_byte(folder / "state.data-00000-of-00001"),
    "truncated": lambda folder: os.truncate(folder / "state.data-00000-of-00001", 3),
    "missing": lambda folder: (folder / "state.index").unlink(),
    "no checksums": lambda folder: (folder / "checksums.json").unlink(),
    "checksums of another kind": lambda folder: (folder / "checksums.json").write_text("[1]"),
    "empty checksums": lambda folder: (folder / "checksums.json").write_text("{}"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_one_is_named_and_skipped(tmp_path, state, logged, kind):
    variable, checkpoint = state
    store = open_store(tmp_path, checkpoint)
    for step in (1, 2):
        save(store, variable, step)
    DAMAGE[kind](tmp_path / "step-2")
    assert checkpoints.newest(tmp_path) == 1
    assert store.restore_newest() == 1
    assert variable.numpy() == 1
    assert "skipping the checkpoint of step 2" in logged.take()
    # Training reaches step 2 again and replaces the damaged checkpoint.
    save(store, variable, 2)
    assert checkpoints.newest(tmp_path) == 2


def test_a_damaged_newer_one_does_not_push_out_what_is_saved(tmp_path, state, monkeypatch):
    """It does not count as one of the last or as the best, until it is replaced."""
    variable, checkpoint = state
    store = open_store(tmp_path, checkpoint)
    for step, score in ((10, 0.2), (20, 0.1), (30, 0.9)):
        save(store, variable, step, score)
    DAMAGE["flipped byte"](tmp_path / "step-30")
    store = open_store(tmp_path, checkpoint, keep_last=1)
    assert store.restore_newest() == 20
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints.os, "rename", full)
        with pytest.raises(RunError, match="checkpoint.* step 20"):
            save(store, variable, 25)
    save(store, variable, 25)
    assert checkpoints.steps(tmp_path) == [10, 25, 30]
    assert store.restore_newest() == 25
    save(store, variable, 30)
    assert checkpoints.steps(tmp_path) == [10, 30]
    assert store.restore_newest() == 30


def test_the_best_is_whole_and_the_first_of_equals(tmp_path, state):
    variable, checkpoint = state
    assert checkpoints.best(tmp_path) is None
    store = open_store(tmp_path, checkpoint, keep_last=9)
    save(store, variable, 1)
    assert checkpoints.best(tmp_path) is None
    for step, score in ((2, 0.5), (3, 0.9), (4, 0.9), (5, 0.7)):
        save(store, variable, step, score)
    for step, score in ((1, "1"), (2, float("nan"))):
        path = tmp_path / f"step-{step}" / "checksums.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"score": score}))
    for damaged, left in ((None, 3), (3, 4), (4, 5), (5, None)):
        if damaged:
            DAMAGE["flipped byte"](tmp_path / f"step-{damaged}")
        assert checkpoints.best(tmp_path) == left


def full(*arguments, **keywords):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_while_a_score_is_added(tmp_path, state, monkeypatch):
    variable, checkpoint = state
    store = open_store(tmp_path, checkpoint)
    save(store, variable, 1)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "write_json", full)
        with pytest.raises(RunError, match="step 1 .*full.* step 1;"):
            store.save(1, score=0.5)
    store.save(1, score=0.5)
    assert checkpoints.best(tmp_path) == 1


def test_only_damaged_ones_are_an_error_not_a_fresh_start(tmp_path, state):
    variable, checkpoint = state
    store = open_store(tmp_path, checkpoint)
    save(store, variable, 1)
    DAMAGE["truncated"](tmp_path / "step-1")
    with pytest.raises(RunError, match="All checkpoints in"):
        store.restore_newest()


def test_what_a_crash_left_is_ignored_and_swept(tmp_path, state):
    variable, checkpoint = state
    store = open_store(tmp_path, checkpoint)
    (tmp_path / "unfinished-7").mkdir()
    (tmp_path / "unfinished-7" / "state.index").write_text("half")
    assert store.restore_newest() is None
    save(store, variable, 1)
    assert sorted(os.listdir(tmp_path)) == ["step-1"]


@pytest.mark.parametrize("place", ["tensorflow", "checksums", "rename"])
def test_a_full_disk_is_one_sentence_and_the_previous_one_stays(
    tmp_path, state, monkeypatch, place
):
    variable, checkpoint = state
    store = open_store(tmp_path, checkpoint)
    save(store, variable, 1)

    def full_in_tensorflow(*arguments, **keywords):
        raise tf.errors.ResourceExhaustedError(None, None, "x.tempstate; No space left on device")

    with monkeypatch.context() as patch:
        if place == "tensorflow":
            patch.setattr(checkpoint, "write", full_in_tensorflow)
        else:
            owner, name = {
                "checksums": (checkpoints, "write_json"),
                "rename": (checkpoints.os, "rename"),
            }[place]
            patch.setattr(owner, name, full)
        variable.assign(2.0)
        with pytest.raises(RunError, match="step 2.*full.*step 1"):
            store.save(2)
    assert sorted(os.listdir(tmp_path)) == ["step-1"]
    assert store.restore_newest() == 1
    assert variable.numpy() == 1


def test_an_older_damaged_one_does_not_stop_a_run(tmp_path, state):
    variable, checkpoint = state
    store = open_store(tmp_path, checkpoint, keep_last=2)
    for step in (1, 2):
        save(store, variable, step)
    DAMAGE["no checksums"](tmp_path / "step-1")
    for step in (3, 4):
        save(store, variable, step)
    # It is not deleted, and does not count among the checkpoints to keep.
    assert checkpoints.steps(tmp_path) == [1, 3, 4]


def test_a_checkpoint_of_another_program_is_one_sentence(tmp_path, state):
    variable, checkpoint = state
    save(open_store(tmp_path, checkpoint), variable, 1)
    other = tf.train.Checkpoint(variable=tf.Variable(0.0), more=tf.Variable([1.0]))
    with pytest.raises(RunError, match="step 1 .*not match"):
        open_store(tmp_path, other).restore_newest()

"""The splits that `auto` selects; `test_source_kinds.py` tests the division of real sources."""

import pytest

from pipelines.config import Data
from pipelines.data.sources import open as splits
from pipelines.data.sources.open import split_names
from pipelines.errors import DataError


def _choose(monkeypatch, logged, names, **chosen):
    """(train split, evaluation split, log lines) for a data set with splits of these names."""
    monkeypatch.setattr(splits, "split_names", lambda name, data_dir: names)
    data = splits.choose_splits(Data(name="pets", **chosen))
    assert len(logged) <= 1
    return data.train_split, data.eval_split, logged


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("test", "train", "validation"), ("train", "test")),
        ((), ("train", "test")),  # a TFDS data set that is not prepared
        (("val", "dev", "Train"), ("Train", "val")),
        (("testing", "training"), ("training", "testing")),
        (("all",), ("all[:90%]", "all[90%:]")),
    ],
)
def test_by_name(monkeypatch, logged, names, expected):
    *found, lines = _choose(monkeypatch, logged, names)
    assert tuple(found) == expected
    takes = "training takes {}, evaluation takes {}".format(*expected)
    assert [line.endswith(takes) for line in lines] == [True] * (expected != ("train", "test"))


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({"train_split": "train[:5]", "eval_split": None}, ("train[:5]", None)),
        ({"eval_split": "train[:5]"}, ("train", "train[:5]")),
        ({"eval_split": None}, ("train", None)),
    ],
)
def test_chosen_splits_are_kept(monkeypatch, logged, chosen, expected):
    assert _choose(monkeypatch, logged, ("train",), **chosen) == (*expected, [])


@pytest.mark.parametrize(
    ("names", "chosen", "text"),
    [
        (("a", "test"), {}, "no split called train or training. It has: a, test. Set data.train_"),
        (("train", "b"), {}, "data.eval_split.*train[90%"),
        (("train",), {"train_split": "train"}, "test or .*: train"),
        (("test",), {}, "train or training.*: test"),
    ],
)
def test_no_such_split(monkeypatch, logged, names, chosen, text):
    with pytest.raises(DataError, match=text.replace("[", r"\[")):
        _choose(monkeypatch, logged, names, **chosen)


def test_evaluation_alone_needs_no_split_for_training(monkeypatch, logged):
    monkeypatch.setattr(splits, "split_names", lambda name, data_dir: ("test",))
    data = splits.choose_splits(Data(name="pets"), training=False)
    assert (data.train_split, data.eval_split) == ("auto", "test") and logged == []


def test_training_alone_needs_no_split_for_evaluation(monkeypatch, logged):
    """`batch` reads training data only; a folder may hold nothing else."""
    monkeypatch.setattr(splits, "split_names", lambda name, data_dir: ("train", "extra"))
    data = splits.choose_splits(Data(name="pets"), evaluation=False)
    assert (data.train_split, data.eval_split) == ("train", None) and logged == []
    with pytest.raises(DataError, match="no split called test"):
        splits.choose_splits(Data(name="pets"))


def test_names_of_a_tfds_data_set():
    assert set(split_names("digits")) == {"train", "validation", "test"}

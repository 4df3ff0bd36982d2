"""How rates of the input are computed, with a clock that the test sets."""

import dataclasses
import itertools

import pytest

from pipelines.config.data import Sampling
from pipelines.config.recipes import get_recipe
from pipelines.data import pipeline, throughput
from pipelines.data.order import TrainBatches
from pipelines.data.sources.open import open_source
from vit_tf.config.variants import get_variant


class Input:
    """An endless iterator of batches.

    Every window is read in `reading` seconds, at its first example; then a batch takes `each`
    seconds. The first batch takes `start` seconds more.
    """

    def __init__(self, monkeypatch, windows, batch_size, reading, each, start=100.0):
        self.now, self._end, self._received = 0.0, 0, 0
        self._windows, self._batch_size = iter(windows), batch_size
        self._reading, self._each, self._start = reading, each, start
        monkeypatch.setattr(throughput, "perf_counter", lambda: self.now)

    def __iter__(self):
        return self

    def __next__(self):
        self.now += self._each + (0 if self._received else self._start)
        self._received += self._batch_size
        while self._end < self._received:
            self._end += next(self._windows)
            self.now += self._reading


# Windows longer and shorter than a batch, and not a multiple of it.
@pytest.mark.parametrize(("window", "batch"), [(1000, 10), (1000, 64), (10, 64)])
@pytest.mark.parametrize("seconds", [0.1, 60.0])
def test_reading_rate(monkeypatch, window, batch, seconds):
    """A window of 2 s: batches that come from memory do not make it faster."""
    batches = Input(monkeypatch, itertools.repeat(window), batch, reading=2.0, each=0.0)
    ends = itertools.count(window, window)
    rate = throughput.reading_rate(batches, batch, ends, seconds)
    assert rate == pytest.approx(window / 2.0)
    assert batches.now >= 100 + seconds


def test_reading_rate_of_unequal_windows(monkeypatch):
    """The windows that arrive within 3 s of the first one: 30, 10 and 40 examples."""
    batches = Input(monkeypatch, itertools.cycle([20, 30, 10, 40]), 10, reading=1.0, each=0.0)
    ends = itertools.accumulate(itertools.cycle([20, 30, 10, 40]))
    assert throughput.reading_rate(batches, 10, ends, 3.0) == pytest.approx(80 / 3)


@pytest.mark.parametrize("seconds", [0.1, 7.0])
def test_decoding_rate(monkeypatch, seconds):
    """The first batch, with all that is slow at the start, does not count."""
    batches = Input(monkeypatch, [10**9], 16, reading=5.0, each=0.5)
    assert throughput.decoding_rate(batches, 16, seconds) == pytest.approx(32)
    assert batches.now >= 105.5 + seconds


def test_decoding_is_not_faster_than_reading(monkeypatch):
    monkeypatch.setattr(throughput, "reading_rate", lambda *arguments: 40.0)
    for decoding, expected in ((70.0, 40.0), (30.0, 30.0)):
        monkeypatch.setattr(throughput, "decoding_rate", lambda *_, rate=decoding: rate)
        rates = throughput.measure(open_source("digits", "train"), get_recipe("digits"), 1.0)
        assert rates == (expected, 40.0)


def test_encoded_batches_are_those_of_training():
    source = open_source("digits", "train[:100]")
    sampling = Sampling(batch_size=16, shuffle_window=32, seed=3, sharding="global")
    encoded = pipeline.encoded_dataset(source, sampling).take(8).as_numpy_iterator()
    for step, batch in enumerate(encoded):
        stored = source.read(TrainBatches(source, sampling).indices(step))
        assert batch["image"].tolist() == stored.images.tolist()
        assert batch["label"].tolist() == stored.labels.tolist()
        assert batch["id"].tolist() == stored.ids.tolist()


def test_needed_rate():
    """ViT-B/16 at 224 has 17.6 billion MACs per image, and 3 times as many in training."""
    config = dataclasses.replace(get_variant("ViT-B/16"), num_classes=1000, image_size=(224, 224))
    assert throughput.needed_rate(config, 492) == pytest.approx(492e12 * 0.45 / 105.5e9, rel=5e-3)

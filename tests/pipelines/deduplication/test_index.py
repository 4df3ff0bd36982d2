"""The index on disk: its numbers, and that an interrupted call goes on."""

import errno
import json
import os

import numpy as np
import pytest
import tensorflow as tf

from pipelines.data.sources.arrays import ArraySource, EncodedSource
from pipelines.data.sources.open import open_source
from pipelines.deduplication import embeddings, index
from pipelines.deduplication.embeddings import Embedder
from pipelines.deduplication.index import HASHED, PLAIN, UNREADABLE, Index
from pipelines.deduplication.pairs import NO_DISTANCE, Searcher, sign_distance
from pipelines.deduplication.perceptual_hash import hamming, hashes_of_files
from pipelines.errors import Interrupted, RunError, UserError
from pipelines.stored_models import model_source
from tests.pipelines import encoded
from vit_tf.images.decoding import decode_image

COUNT = 70


def stored(count=COUNT, seed=0):
    """A source of PNG files; numbers 3 and 5 are no image and of one color."""
    images = [encoded.encode(encoded.pixels(8, 8, seed + i), "PNG") for i in range(count)]
    images[3], images[5] = b"broken", encoded.encode(np.zeros([8, 8, 3], np.uint8), "PNG")
    contents = np.array([*images, None], object)[:-1]
    labels = np.zeros(count, np.int32)
    return EncodedSource(contents, labels, ["a"], name="stored", version="1", split="train")


@pytest.fixture(scope="module")
def embedder():
    return Embedder(model_source.find(model_source.SHIPPED))


@pytest.fixture(scope="module")
def digits():
    return open_source("digits", "train[:200]")


@pytest.fixture(autouse=True)
def small_groups(monkeypatch):
    monkeypatch.setattr(index, "_ROWS", 16)


def interrupting(after):
    """A check that interrupts at the call with this number."""
    calls = []

    def check():
        calls.append(None)
        if len(calls) == after:
            raise Interrupted("SIGTERM")

    return check


def test_hashes_and_states_are_those_of_the_files(tmp_path):
    source = stored()
    filled = Index(source, tmp_path).fill()
    hashes, is_readable, is_hashed = hashes_of_files(source.read(range(COUNT)).images)
    np.testing.assert_array_equal(filled.hashes, hashes)
    expected = np.where(is_readable, np.where(is_hashed, HASHED, PLAIN), UNREADABLE)
    np.testing.assert_array_equal(filled.states, expected)
    assert filled.states[3] == UNREADABLE and filled.states[5] == PLAIN
    assert filled.embeddings is None
    again = Index(source, tmp_path)
    source.read = None  # Nothing is read again.
    np.testing.assert_array_equal(again.fill().hashes, hashes)


@pytest.mark.parametrize("after", [1, 3, 5])
def test_an_interrupted_call_goes_on(tmp_path, embedder, after):
    source, reads = stored(), []
    whole = Index(source, tmp_path / "whole", embedder).fill()
    with pytest.raises(Interrupted):
        Index(source, tmp_path / "part", embedder).fill(interrupting(after))
    read = source.read
    source.read = lambda rows: reads.extend(rows) or read(rows)
    resumed = Index(source, tmp_path / "part", embedder).fill()
    assert reads == list(range(min(16 * after, COUNT), COUNT))
    for name in ("states", "hashes", "embeddings"):
        np.testing.assert_array_equal(getattr(resumed, name), getattr(whole, name))


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "hashes.npy").write_bytes(b"x"),
        lambda folder: os.unlink(folder / "states.npy"),
        lambda folder: (folder / "index.json").write_text("{"),
        lambda folder: (folder / "index.json").write_text(json.dumps({"done": 70})),
        lambda folder: np.save(folder / "hashes.npy", np.zeros([20, 3], np.uint64)),
        lambda folder: np.save(folder / "states.npy", np.zeros([70], np.float32)),
    ],
)
def test_a_damaged_index_is_computed_again(tmp_path, damage):
    source = stored()
    expected = np.array(Index(source, tmp_path).fill().hashes)
    (folder,) = tmp_path.iterdir()
    damage(folder)
    again = Index(source, tmp_path).fill()
    np.testing.assert_array_equal(again.hashes, expected)
    assert (again.states == HASHED).sum() == COUNT - 2


def test_other_data_and_models_have_an_index_of_their_own(tmp_path, embedder):
    for arguments in (
        (stored(), tmp_path),
        (stored(seed=100), tmp_path),
        (stored(COUNT - 1), tmp_path),
        (stored(), tmp_path, embedder),
        (stored(), tmp_path, embedder, True),
    ):
        Index(*arguments).fill()
    assert len(list(tmp_path.iterdir())) == 5


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="Cannot write to .*file"):
        Index(stored(), tmp_path / "file").fill()

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(RunError, match="write to .*No space"):
        Index(stored(), tmp_path / "new").fill()


def test_embeddings_are_features_of_length_one(tmp_path, embedder):
    source = stored()
    filled = Index(source, tmp_path, embedder, is_query=True).fill()
    model, preprocessing, _ = model_source.find(model_source.SHIPPED).open_model()
    for row in (0, 4, 69):
        image = decode_image(source.read([row]).images[0])
        for view in (0, 1):
            inputs = preprocessing(image)[None][:, :, :: 1 - 2 * view]
            expected = model.features(inputs).numpy()[0]
            expected /= np.linalg.norm(expected)
            np.testing.assert_allclose(filled.embeddings[row, view], expected, atol=2e-3)
    assert not filled.embeddings[3].any()


def test_a_feature_that_is_not_finite_is_an_error(monkeypatch, embedder):
    monkeypatch.setattr(embedder, "_features", lambda images: tf.fill([32, 4], np.nan))
    with pytest.raises(RunError, match="not finite.*--model"):
        embedder(stored().read([0, 1]).images)


def slow_pairs(reference, query, most_bits, least_cosine):
    """All pairs, one after the other, in float64: (query, reference) -> (distance, cosine)."""
    if reference.embeddings is not None:
        rows = np.flatnonzero(reference.states != UNREADABLE)
        mean = np.array(reference.embeddings[rows, 0], np.float64).mean(axis=0)
        if len(rows) < embeddings._FEWEST_FOR_MEAN:
            mean[:] = 0
    found = {}
    for i in range(len(query.states)):
        for j in range(len(reference.states)):
            distance, cosine = NO_DISTANCE, -1.0
            if query.states[i] == reference.states[j] == HASHED:
                left, right = query.hashes[:, i].tolist(), reference.hashes[:, j].tolist()
                distance = min(
                    *((view ^ right[0]).bit_count() for view in left),
                    *((view ^ left[0]).bit_count() for view in right),
                )
            if reference.embeddings is not None and UNREADABLE not in (
                query.states[i],
                reference.states[j],
            ):
                other = np.array(reference.embeddings[j, 0], np.float64) - mean
                for view in (0, 1):
                    own = np.array(query.embeddings[i, view], np.float64) - mean
                    both = np.linalg.norm(own) * np.linalg.norm(other)
                    cosine = max(cosine, own @ other / both)
            if distance <= most_bits or cosine >= least_cosine:
                found[i, j] = distance, cosine
    return found


@pytest.mark.parametrize("with_model", [False, True])
def test_pairs_are_those_of_the_slow_search(tmp_path, digits, embedder, with_model):
    """Digits are alike, so that there are many pairs; some of the query are mirrored."""
    embedder = embedder if with_model else None
    images = [decode_image(x).numpy() for x in digits.read(range(200)).images]
    reference = Index(digits, tmp_path, embedder).fill()
    mirrored = ArraySource(np.stack(images[:40])[:, :, ::-1], np.zeros(40, np.int32))
    query = Index(mirrored, tmp_path, embedder, is_query=True).fill()
    pairs = Searcher(reference, 10, 0.97).pairs(query)
    expected = slow_pairs(reference, query, 10, 0.97)
    found = list(zip(pairs.query.tolist(), pairs.reference.tolist(), strict=True))
    assert len(found) == len(set(found)) and len(found) >= 40
    missed = set(expected) - set(found)
    assert set(found) <= set(expected) and len(missed) <= 0.01 * len(expected)
    # Only the search by signs misses a pair.
    assert all(expected[pair][0] > 10 for pair in missed) and (with_model or not missed)
    for pair, distance, cosine in zip(found, pairs.distance, pairs.cosine, strict=True):
        assert distance == expected[pair][0]
        if with_model:
            assert cosine == pytest.approx(expected[pair][1], abs=1e-3)
    ids = mirrored.ids(pairs.query)
    own = digits.ids(pairs.reference) == digits.ids(np.arange(200))[ids]
    assert len(set(ids[own])) == 40 and pairs.is_mirrored[own].mean() > 0.8
    order = list(zip(pairs.query.tolist(), pairs.distance.tolist(), strict=True))
    assert order == sorted(order)
    assert np.isnan(pairs.cosine).all() != with_model


def test_signs_of_near_rows_are_within_the_distance():
    """Measured over random directions: at least 97 % of the pairs with just that cosine."""
    random = np.random.default_rng(0)
    for cosine, expected in ((0.95, 12), (0.9, 15), (0.8, 20), (0.7, 24), (1.0, 0)):
        assert sign_distance(cosine) == expected
        first, other = random.standard_normal([2, 2000, 300])
        first /= np.linalg.norm(first, axis=1, keepdims=True)
        other -= np.sum(first * other, axis=1, keepdims=True) * first
        other /= np.linalg.norm(other, axis=1, keepdims=True)
        near = cosine * first + np.sqrt(1 - cosine**2) * other
        keys = [
            embeddings.sign_keys(rows[:, None], np.arange(2000), 0, np.zeros(300, np.float32))
            for rows in (first, near)
        ]
        assert np.mean(hamming(*keys) <= expected) >= 0.97


def test_equal_signs_of_unequal_rows_are_not_a_pair(tmp_path, monkeypatch, digits, embedder):
    """The cosine decides: with equal keys for all, every pair is compared exactly."""
    monkeypatch.setattr(
        embeddings, "sign_keys", lambda stored, rows, *_: np.zeros(len(rows), np.uint64)
    )
    reference = Index(digits, tmp_path, embedder).fill()
    query = Index(digits, tmp_path, embedder, is_query=True).fill()
    pairs = Searcher(reference, 0, 0.9999).pairs(query)
    assert set(range(200)) == set(pairs.query.tolist()) and len(pairs.query) < 400

"""What people do with a trained backbone, beside the same model with random weights."""

import numpy as np
import pytest

import vit_tf
from benchmarks import planted_duplicates as planted
from pipelines.data.sources.arrays import EncodedSource
from pipelines.data.sources.open import open_source
from pipelines.deduplication.embeddings import Embedder
from pipelines.deduplication.index import Index
from pipelines.deduplication.pairs import Searcher
from pipelines.evaluation.evaluation_step import EvaluationData
from pipelines.evaluation.features import FeatureExtractor
from pipelines.evaluation.few_shot import few_shot_grid
from pipelines.stored_models import model_source
from tests.pipelines.tiny import one_device

pytestmark = [pytest.mark.heavy("trained")]

DRAWS = 10
# Student's t for 9 degrees of freedom: 95 % are between -t and t.
T = 2.262


def interval(values):
    """The 95 % interval of the mean of `DRAWS` values."""
    half = T * np.std(values, ddof=1) / np.sqrt(DRAWS)
    return np.mean(values) - half, np.mean(values) + half


def features(loaded, name, split):
    source = open_source(name, split)
    data = EvaluationData(source=source, preprocessing=loaded.preprocessing, batch_size=25)
    return FeatureExtractor(vit_tf.pack_model(loaded.model).features, one_device(), data).run()


@pytest.mark.parametrize(("name", "least"), [("digits", 0.1), ("shapes/class", 0.4)])
def test_few_shot_accuracy(loaded, untrained, name, least):
    """Five images of each class, ten draws of them; both models get the same images."""
    found = []
    for model in (loaded, untrained):
        train, test = (features(model, name, split) for split in ("train[:100]", "test[:80]"))
        classes = open_source(name, "train").num_classes
        strengths = few_shot_grid(train, test, classes, [5], [1.0, 32.0, 1024.0], range(DRAWS))[0]
        found.append(strengths[strengths.mean(axis=1).argmax()])
    low, high = interval(found[0] - found[1])
    means = [f"{100 * np.mean(x):.1f} % ({100 * np.std(x, ddof=1):.1f})" for x in found]
    print(f"{name}: {means[0]}, random weights {means[1]}, gain {low:.3f} to {high:.3f}")
    assert low >= least


def encoded(name, contents):
    contents = np.array([*contents, None], object)[:-1]
    labels = np.zeros(len(contents), np.int32)
    return EncodedSource(contents, labels, ["-"], name=name, version="1", split="all")


def test_near_duplicates(folder, untrained, tmp_path):
    """Planted copies of all kinds among other pictures, found by embeddings alone.

    Random weights find a little more of them, and with them many pairs of other pictures.
    """
    random, copies, originals = np.random.default_rng(0), [], []
    for number, (kind, change) in enumerate(planted.KINDS.items()):
        for seed in (2 * number, 2 * number + 1):
            picture = planted.picture(seed)
            pair = planted.encoded(picture), change(picture, random)
            test, copy = pair[::-1] if kind == planted.CROPPED_TEST else pair
            originals.append(test)
            copies.append(copy)
    others = [planted.encoded(planted.picture(1000 + seed)) for seed in range(84)]
    vit_tf.save_npz(untrained.model, tmp_path / "untrained.npz", untrained.preprocessing)
    found = []
    for path in (folder, tmp_path / "untrained.npz"):
        embedder = Embedder(model_source.find(str(path)))
        reference, query = (
            Index(encoded(name, contents), str(tmp_path), embedder, is_query=name == "query").fill()
            for name, contents in (("reference", copies + others), ("query", originals))
        )
        pairs = Searcher(reference, 0, 0.8).pairs(query)
        right = pairs.query == pairs.reference
        found.append((right.sum(), (~right).sum()))
        print(f"{path}: {found[-1][0]} of {len(copies)} copies, {found[-1][1]} other pairs")
    (copies_found, others_found), (_, of_untrained) = found
    assert copies_found >= 0.75 * len(copies) and 4 * others_found <= of_untrained

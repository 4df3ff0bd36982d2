"""How many near-duplicates `pipelines.dedup` finds, and what a search costs.

    python -m benchmarks.bench_dedup [--images 10000] [--model MODEL ...] [--costs]

Recall: originals are test images; their changed copies hide among synthetic training images
(`planted_duplicates.py`), 10,000 together. For each kind of change, the share of copies that are
found, and the pairs with other training images. --model adds embeddings; by default those of one
stage of a ResNet with random weights.

Costs: time and memory of index and search for 10,000, 30,000 and 100,000 images with synthetic
hashes and features, of 14 million hashes, and what 14 million images need altogether.
"""

import argparse
import os
import resource
import tempfile
import time

import keras
import numpy as np

import vit_tf
from benchmarks import planted_duplicates as planted
from pipelines.data.sources.arrays import EncodedSource
from pipelines.data.sources.source import DataSource, SplitRange
from pipelines.deduplication.buckets import Buckets, sorted_rows
from pipelines.deduplication.embeddings import Embedder
from pipelines.deduplication.index import HASHED, Index
from pipelines.deduplication.pairs import Searcher
from pipelines.deduplication.perceptual_hash import VIEWS, hamming
from pipelines.stored_models import model_source

PER_KIND = 100
UNRELATED = 400  # Test images without a copy.
MOST_BITS = 10
COSINES = (0.7, 0.8, 0.9)
FEATURES = 768
QUERIES = 10_000
LARGE, LARGE_QUERIES = 14_000_000, 1000
TEST_IMAGES = 80_000  # of the five data sets that BiT compared with


def sources(images):
    """The training images, the test images, and the row of each original's copy."""
    random, originals, copies = np.random.default_rng(0), [], []
    for number, (kind, change) in enumerate(planted.KINDS.items()):
        for seed in range(PER_KIND):
            picture = planted.picture(number * PER_KIND + seed)
            pair = planted.encoded(picture), change(picture, random)
            test, copy = pair[::-1] if kind == planted.CROPPED_TEST else pair
            originals.append(test)
            copies.append(copy)
    own = [planted.encoded(planted.picture(10**6 + seed)) for seed in range(UNRELATED)]
    others = images - len(copies)
    others = [planted.encoded(planted.picture(2 * 10**6 + seed)) for seed in range(others)]
    order = random.permutation(images)
    training = np.array([*copies, *others, None], object)[:-1][order]
    place = np.argsort(order)[: len(copies)]
    return source("training", training), source("test", [*originals, *own]), place


def source(name, contents):
    contents = np.array([*contents, None], object)[:-1]
    labels = np.zeros(len(contents), np.int32)
    return EncodedSource(contents, labels, ["-"], name=name, version="1", split="all")


def small_resnet(folder):
    """One stage of a ResNet with random weights: what a model that never learned anything finds."""
    keras.utils.set_random_seed(0)
    path = os.path.join(folder, "random.npz")
    model = vit_tf.create_model(
        "BiT-R50x1", num_classes=2, image_size=64, width=0.5, stage_depths=(1,)
    )
    vit_tf.save_npz(model, path)
    return path


def recall(images, models):
    begin = time.perf_counter()
    training, test, place = sources(images)
    count = len(place)
    print(
        f"{count:,} copies among {images:,} training images, {test.num_examples:,} test images, "
        f"{test.num_examples * images / 1e6:,.0f} million pairs (made in "
        f"{time.perf_counter() - begin:.0f} s)",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        columns = {}
        for model in [None, *(models or [small_resnet(folder)])]:
            embedder = Embedder(model_source.find(model)) if model else None
            indices = []
            for each in (training, test):
                begin = time.perf_counter()
                indices.append(Index(each, folder, embedder, is_query=each is test).fill())
                rate = each.num_examples / (time.perf_counter() - begin)
                print(f"index of {each.name} with {model}: {rate:,.0f} images/s", flush=True)
            if embedder is None:
                columns["hash"] = found(indices, place, MOST_BITS, 2.0)
                continue
            name = os.path.basename(model)
            for cosine in COSINES:
                columns[f"{name} {cosine}"] = found(indices, place, -1, cosine)
                columns[f"either, {cosine}"] = found(indices, place, MOST_BITS, cosine)
    table(columns)


def found(indices, place, most_bits, least_cosine):
    """Of each kind and at last of unrelated images: copies found, and other pairs."""
    begin = time.perf_counter()
    reference, query = indices
    pairs = Searcher(reference, max(most_bits, 0), least_cosine).pairs(query)
    near = (pairs.distance <= most_bits) | (pairs.cosine >= least_cosine)
    own, rows = pairs.query[near], pairs.reference[near]
    has_copy = own < len(place)
    is_copy = np.zeros(len(own), bool)
    is_copy[has_copy] = rows[has_copy] == place[own[has_copy]]
    kinds = np.minimum(own // PER_KIND, len(planted.KINDS))
    size = len(planted.KINDS) + 1
    seconds = time.perf_counter() - begin
    return (
        np.bincount(kinds[is_copy], minlength=size),
        np.bincount(kinds[~is_copy], minlength=size),
        seconds,
    )


def table(columns):
    names = list(columns)
    print(f"\n{'recall in %, false pairs':26}" + "".join(f"{name:>22}" for name in names))
    for number, kind in enumerate([*planted.KINDS, "test images without copy"]):
        cells = ""
        for right, wrong, _ in columns.values():
            share = f"{100 * right[number] / PER_KIND:.0f}" if number < len(planted.KINDS) else "-"
            cells += f"{share:>13}{wrong[number]:>9,}"
        print(f"{kind:26}{cells}")
    print(f"{'seconds of the search':26}" + "".join(f"{x[2]:>22.2f}" for x in columns.values()))


class Counted(DataSource):
    """A source without images."""

    def __init__(self, name, count):
        ranges = (SplitRange("all", 0, count, 0),)
        super().__init__(
            name=name,
            version="1",
            split="all",
            split_ranges=ranges,
            labels=("-",),
            shard_lengths=(count,),
        )


class Synthetic(Index):
    """An index with random hashes and features; of a query, a tenth are near another index's.

    Args:
        like: the other index, or None.
    """

    def __init__(self, name, count, folder, like=None):
        class Described:
            size, digest = FEATURES, "synthetic"

        super().__init__(Counted(name, count), folder, Described, is_query=like is not None)
        self._open()
        random = np.random.default_rng(count + (like is not None))
        self.states[:] = HASHED
        self.hashes[:] = random.integers(0, 2**64, self.hashes.shape, np.uint64, endpoint=False)
        for start in range(0, count, 8192):
            part = self.embeddings[start : start + 8192]
            rows = random.standard_normal(part.shape, np.float32)
            part[:] = rows / np.linalg.norm(rows, axis=-1, keepdims=True)
        if like is not None:
            near = slice(0, count // 10)
            self.hashes[:, near] = like.hashes[:, near] ^ np.uint64(0b10110)
            noise = random.standard_normal(self.embeddings[near].shape, np.float32)
            rows = like.embeddings[near, :1] + 0.2 / np.sqrt(FEATURES) * noise
            self.embeddings[near] = rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def costs():
    for count in (10_000, 30_000, 100_000):
        with tempfile.TemporaryDirectory() as folder:
            reference = Synthetic("reference", count, folder)
            query = Synthetic("query", QUERIES, folder, reference)
            before, begin = peak(), time.perf_counter()
            searcher = Searcher(reference, MOST_BITS, 0.9)
            built = time.perf_counter() - begin
            pairs = searcher.pairs(query)
            searched = time.perf_counter() - begin - built
            size = sum(
                os.path.getsize(os.path.join(root, name))
                for root, _, names in os.walk(reference._folder)
                for name in names
            )
            print(
                f"{count:>10,} images, {FEATURES} features, {QUERIES:,} queries: buckets "
                f"{built:.2f} s, search {searched:.2f} s, {len(pairs.query):,} pairs; index "
                f"{size / 1e6:,.0f} MB on disk, memory + {peak() - before:,.0f} MB "
                f"(all of the process {peak():,.0f} MB)",
                flush=True,
            )
    large()


def large():
    """14 million hashes, and the sizes and times of 14 million images."""
    random = np.random.default_rng(0)
    keys = random.integers(0, 2**64, LARGE, np.uint64, endpoint=False)
    queries = random.integers(0, 2**64, [VIEWS, LARGE_QUERIES], np.uint64, endpoint=False)
    queries[0, :100] = keys[:100] ^ np.uint64(0b10110)
    begin = time.perf_counter()
    buckets = Buckets(keys, sorted_rows(keys))
    built = time.perf_counter() - begin
    pairs = sum(len(own) for view in queries for own, _ in buckets.near(view, MOST_BITS))
    searched = time.perf_counter() - begin - built
    print(
        f"{LARGE:>10,} hashes, {LARGE_QUERIES:,} queries: buckets {built:.1f} s, search "
        f"{searched:.1f} s ({pairs:,} pairs, some repeatedly), memory of the process {peak():,.0f} "
        "MB"
    )
    begin = time.perf_counter()
    for query in queries[0, :100]:
        np.count_nonzero(hamming(keys, query) <= MOST_BITS)
    naive = (time.perf_counter() - begin) / 100 * VIEWS * LARGE_QUERIES
    print(f"  comparing all pairs would take {naive:,.0f} s")
    tests = Buckets(queries := keys[:TEST_IMAGES], sorted_rows(queries))
    begin, count = time.perf_counter(), 100_000
    sum(len(own) for own, _ in tests.near(keys[-count:], MOST_BITS))
    seconds = (time.perf_counter() - begin) / count * LARGE * (VIEWS - 1)
    print(
        f"  the other views of the {LARGE:,} images among those of {TEST_IMAGES:,} test images "
        f"would take {seconds / 3600:.1f} hours"
    )
    for features in (0, FEATURES):
        each = 161 + 16 + (2 * features + 24 if features else 0)
        print(f"  index with {features} features: {LARGE * each / 1e9:,.2f} GB on disk")


def peak():
    """The largest memory of the process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=10_000, help="training images")
    parser.add_argument("--model", action="append", help="a model of the embeddings; repeat it")
    parser.add_argument("--costs", action="store_true", help="only the costs")
    arguments = parser.parse_args()
    if not arguments.costs:
        recall(arguments.images, arguments.model)
    costs()


if __name__ == "__main__":
    main()

"""Parts of the training data, compared with plain lists: the choice, the reads, the batches."""

import itertools
from typing import ClassVar

import numpy as np
import pytest
import tensorflow as tf

from pipelines.config import Data
from pipelines.config.data import Sampling
from pipelines.data import progress_lines, stateless_random
from pipelines.data.batch_listing import list_batch
from pipelines.data.exclusion import exclusion, read_exclusion
from pipelines.data.sources import subset
from pipelines.data.sources.source import DataSource, SplitRange
from pipelines.errors import DataError
from pipelines.runs.json_file import write_json
from tests.pipelines.data.batches import assert_equal, join, to_numpy, train_dataset
from vit_tf.preprocessing import Preprocessing

LENGTHS = (40, 1, 70, 2, 87)
COUNT = sum(LENGTHS)


class Stored(DataSource):
    """Examples in memory; notes the indices that are read.

    Args:
        ids: id of each example in stored order; also its color.
        shard_lengths: as the attribute.
        num_classes: labels are `id * id % num_classes`.
    """

    location_signature: ClassVar = {
        "id": tf.TensorSpec([None], tf.int64),
        "label": tf.TensorSpec([None], tf.int32),
    }

    def __init__(self, ids, shard_lengths, num_classes=4):
        self._ids, self.reads = np.asarray(ids, np.int64), []
        super().__init__(
            name="stored",
            version="1",
            split="train",
            split_ranges=(SplitRange("train", 0, len(self._ids), 0),),
            labels=[f"class {i}" for i in range(num_classes)],
            shard_lengths=tuple(shard_lengths),
        )

    def locate(self, indices):
        self.reads.append(list(indices))
        return {"id": self.ids(indices), "label": self.read_labels(indices)}

    def load(self, location):
        def image(example_id, label):
            color = tf.cast(example_id % 256, tf.uint8)
            return tf.io.encode_png(tf.fill([4, 4, 3], color)), label

        dataset = tf.data.Dataset.from_tensor_slices((location["id"], location["label"]))
        return dataset.map(image).batch(5)

    def ids(self, indices):
        return self._ids[indices]

    def read_labels(self, indices):
        return (self.ids(indices) ** 2 % self.num_classes).astype(np.int32)


def stored(seed=0, shard_lengths=LENGTHS, **options):
    """A `Stored` with the ids 0, 3, 6, ... in the order of a seed."""
    ids = np.random.default_rng(seed).permutation(3 * np.arange(sum(shard_lengths)))
    return Stored(ids, shard_lengths, **options)


def uneven():
    """A `Stored` with different numbers of examples of the classes 0, 1 and 2, and none of 3."""
    source = Stored(np.random.default_rng(0).permutation(COUNT), LENGTHS)
    source.read_labels = lambda indices: (source.ids(indices) % 11 // 4).astype(np.int32)
    return source


def choose(source, **fields):
    return subset.choose_subset(Data(**fields), source)


def ids_of(source):
    return source.ids(range(source.num_examples))


def rank(seed, example_id):
    """The definition: word `id` of the stream of (seed, 7), and the id to break ties."""
    key, counter = np.array([seed, 7], np.uint64), np.array([example_id // 4, 0, 0, 0], np.uint64)
    words = np.random.Philox(key=key, counter=counter).random_raw(4)
    return int(words[example_id % 4]), example_id


# 0.0125 of 200 is 2.5: halves are rounded up. 0.0725 of 200 is 14.5, and less in floating point.
@pytest.mark.parametrize(
    ("fraction", "count"),
    [(0.0025, 1), (0.0124, 2), (0.0125, 3), (0.0725, 15), (0.5, 100), (0.999, 200), (1.0, 200)],
)
def test_the_choice_is_the_definition(fraction, count, monkeypatch):
    """In one piece, and in many with few bits each, as of a large data set."""
    source = stored()
    for seed in (0, 5):
        by_rank = sorted(ids_of(source).tolist(), key=lambda i, seed=seed: rank(seed, i))
        part = choose(source, fraction=fraction, subset_seed=seed)
        assert part.num_examples == count
        assert sorted(ids_of(part)) == sorted(by_rank[:count])
    monkeypatch.setattr(subset, "_RANKS_AT_ONCE", 7)
    monkeypatch.setattr(subset, "_FIRST_BITS", 2)
    again = choose(source, fraction=fraction, subset_seed=5)
    np.testing.assert_array_equal(ids_of(again), ids_of(part))


def test_the_choice_of_each_class_is_the_definition():
    source = stored()  # Squares modulo 4 are 0 or 1.
    with pytest.raises(DataError, match="'class 2'.* 0 images"):
        choose(source, per_class=1)
    source = stored(num_classes=2)
    for seed, count in itertools.product((0, 5), (1, 30, 100)):
        part = choose(source, per_class=count, subset_seed=seed)
        by_rank = sorted(ids_of(source).tolist(), key=lambda i, seed=seed: rank(seed, i))
        for label in (0, 1):
            expected = [i for i in by_rank if i**2 % 2 == label][:count]
            assert sorted(i for i in ids_of(part) if i**2 % 2 == label) == sorted(expected)
    with pytest.raises(DataError, match="100 images.*per_class.*100"):
        choose(source, per_class=101)


@pytest.mark.parametrize("rule", [{"fraction": 0.3}, {"per_class": 20}])
def test_order_and_shards_do_not_matter(rule):
    """The examples keep the stored order of their source."""
    chosen = []
    for seed, lengths in ((0, LENGTHS), (1, (COUNT,)), (2, (COUNT // 2,) * 2)):
        source = stored(seed, lengths, num_classes=2)
        part = choose(source, **rule)
        whole = ids_of(source)
        kept = np.isin(whole, ids_of(part))
        np.testing.assert_array_equal(whole[kept], ids_of(part))
        ends = np.cumsum([0, *lengths])
        in_shards = [kept[start:stop].sum() for start, stop in itertools.pairwise(ends)]
        assert part.shard_lengths == tuple(n for n in in_shards if n)
        chosen.append(set(ids_of(part).tolist()))
    assert chosen[0] == chosen[1] == chosen[2]


def test_smaller_parts_are_contained_in_larger_ones():
    source = stored(num_classes=2)
    for name, values in (("fraction", (0.01, 0.1, 0.11, 0.5, 1.0)), ("per_class", (1, 5, 99))):
        parts = [set(ids_of(choose(source, **{name: value})).tolist()) for value in values]
        assert all(a < b for a, b in itertools.pairwise(parts))
    other = set(ids_of(choose(source, fraction=0.1, subset_seed=1)).tolist())
    assert other != parts[0] and not other <= set(ids_of(choose(source, fraction=0.1)).tolist())


def test_a_part_is_chosen_after_examples_are_left_out(tmp_path, monkeypatch, logged):
    """The part has the lowest ranks of the others: smaller parts are contained in larger ones."""
    source = stored(num_classes=2)
    monkeypatch.setattr(subset, "open_split", lambda *_, **known: source)
    left_out = [0, 3, 30, 33, 36, 300, 597, 7000]
    write_json(tmp_path / "list", exclusion(source, left_out))
    others = sorted(set(ids_of(source).tolist()) - set(left_out))

    def chosen(**fields):
        part = subset.open_train_source(Data(exclude=str(tmp_path / "list"), **fields))
        assert len(ids_of(part)) == part.num_examples == sum(part.shard_lengths)
        return part, set(ids_of(part).tolist())

    whole, ids = chosen()
    assert ids == set(others) and whole.num_examples == 193
    np.testing.assert_array_equal(ids_of(whole), [i for i in ids_of(source) if i in ids])
    list_ = {"list": read_exclusion(str(tmp_path / "list"), source)[1], "num_examples": 193}
    assert whole.manifest() == source.manifest() | {"exclude": list_}
    by_rank = sorted(others, key=lambda i: rank(4, i))
    larger = ids
    for fraction in (0.5, 0.1):
        part, ids = chosen(fraction=fraction, subset_seed=4)
        assert ids == set(by_rank[: int(fraction * 193 + 0.5)]) and ids < larger
        larger = ids
    assert part.manifest()["exclude"] == list_ and part.manifest()["subset"]["num_examples"] == 19
    _, ids = chosen(per_class=5, subset_seed=4)
    assert ids == {i for label in (0, 1) for i in [j for j in by_rank if j % 2 == label][:5]}
    balanced, ids = chosen(balance="sample")
    assert ids == set(others) and balanced.num_examples >= 193
    setting = f"data.exclude={tmp_path / 'list'}"
    assert logged[0] == f"data: 7 of 200 examples are left out ({setting})"
    assert str(whole).endswith(f"with {setting}")

    write_json(tmp_path / "list", exclusion(source, ids_of(source)))
    with pytest.raises(DataError, match="no examples.*list"):
        chosen()


def test_equal_ranks_are_ordered_by_id(monkeypatch):
    monkeypatch.setattr(
        stateless_random, "words_at", lambda seed, domain, ids: np.zeros(len(ids), np.uint64)
    )
    assert sorted(ids_of(choose(stored(), fraction=0.025))) == [0, 3, 6, 9, 12]
    part = choose(stored(num_classes=2), per_class=2)
    assert sorted(ids_of(part)) == [0, 3, 6, 9]


def _chi_square(counts):
    expected = counts.sum() / len(counts)
    return ((counts - expected) ** 2).sum() / expected


def test_the_choice_is_uniform():
    """Over the ids for one seed, over the seeds for each id, and independent between seeds.

    The bounds are the 0.05 % and 99.95 % quantiles of chi-square with 39 degrees of freedom.
    """

    class Counted(DataSource):
        def __init__(self, count):
            ranges = (SplitRange("train", 0, count, 0),)
            options = {"split_ranges": ranges, "labels": ("a",), "shard_lengths": (count,)}
            super().__init__(name="counted", version="1", split="train", **options)

    large = Counted(10**6)
    chosen = ids_of(choose(large, fraction=0.03))
    assert len(np.unique(chosen)) == len(chosen) == 30_000
    counts = np.bincount(chosen * 40 // large.num_examples, minlength=40)
    assert 16 < _chi_square(counts) < 75

    small = Counted(40)
    counts = sum(
        np.bincount(ids_of(choose(small, fraction=0.25, subset_seed=seed)), minlength=40)
        for seed in range(400)
    )
    # Ten of 40 are drawn without repetition, which lowers the variance.
    assert counts.sum() == 4000 and 16 < _chi_square(counts) / (0.75 * 40 / 39) < 75

    both = np.isin(chosen, ids_of(choose(large, fraction=0.03, subset_seed=1))).mean()
    assert abs(both - 0.03) < 0.004


def test_reads_return_the_chosen_rows():
    source = stored()
    part = choose(source, fraction=0.4)
    expected = [column[np.isin(ids_of(source), ids_of(part))] for column in source.read(range(200))]
    rows = [*range(70, 80), 3, 4, 0, 1, 79]
    for column, whole in zip(part.read(rows), expected, strict=True):
        np.testing.assert_array_equal(column, whole[rows])
        assert column.dtype == whole.dtype
    np.testing.assert_array_equal(part.ids(rows), expected[2][rows])
    np.testing.assert_array_equal(part.read_labels(rows), expected[1][rows])
    assert part.describe(9) == source.describe(9)


def test_only_chosen_rows_are_read():
    source = Stored(np.arange(100), (100,))
    positions = np.array([3, 4, 9, 40, 57, 58, 99])
    part = subset.SubsetSource(source, positions, {})
    np.testing.assert_array_equal(part.read([5, 6, *range(5)]).ids, np.roll(positions, 2))
    assert source.reads == [positions.tolist()]


@pytest.fixture(scope="module")
def part_and_list():
    """A part of a source, and a source that stores only these examples."""
    source = stored()
    part = choose(source, fraction=0.2, subset_seed=2)
    kept = np.sort([list(ids_of(source)).index(i) for i in ids_of(part)])
    shards = np.searchsorted(np.cumsum(LENGTHS), kept, side="right")
    return part, Stored(ids_of(source)[kept], np.unique(shards, return_counts=True)[1])


@pytest.mark.parametrize(("sharding", "hosts"), [("global", 1), ("files", 1), ("files", 2)])
def test_the_order_is_that_of_a_filtered_list(sharding, hosts, part_and_list):
    """Every step of two epochs is read on its own, as after a restart."""
    sampling = Sampling(batch_size=8, shuffle_window=9, seed=3, sharding=sharding)
    ids = []
    for step in range(10):
        batches = [list_batch(source, sampling, step, hosts) for source in part_and_list]
        examples, expected = (
            [{**example, "name": None} for example in batch["examples"]] for batch in batches
        )
        assert examples == expected
        ids += [example["id"] for example in examples]
    if hosts == 1:
        assert sorted(ids[:40]) == sorted(ids[40:]) == sorted(ids_of(part_and_list[0]))


@pytest.mark.parametrize("sharding", ["global", "files"])
def test_two_hosts_train_on_the_batches_of_a_filtered_list(sharding, part_and_list):
    def batches(source):
        contexts = [tf.distribute.InputContext(2, host, 2) for host in (0, 1)]
        datasets = [
            train_dataset(
                source,
                batch_size=8,
                seed=3,
                shuffle_window=30,
                sharding=sharding,
                preprocessing=Preprocessing(image_size=(4, 4)),
                start_step=3,
                input_context=context,
            )
            for context in contexts
        ]
        return join([to_numpy(dataset.take(4)) for dataset in datasets])

    part, filtered = part_and_list
    assert_equal(batches(part), batches(filtered))


def test_log_lines_and_manifest_of_subsets(logged):
    """Without a subset, source and manifest are as before; the whole split as a part is not."""
    source = stored()
    assert subset.choose_subset(Data(subset_seed=3), source) is source and not logged
    assert "subset" not in source.manifest()
    part = subset.choose_subset(Data(fraction=0.3), source)
    assert part.manifest() == source.manifest() | {"subset": {"fraction": 0.3, "num_examples": 60}}
    assert str(part) == "stored:1 split 'train' with data.fraction=0.3"
    part = subset.choose_subset(Data(fraction=1, subset_seed=3), source)
    assert part.shard_lengths == LENGTHS
    rule = {"per_class": 7, "subset_seed": 3}
    part = subset.choose_subset(Data(**rule), stored(num_classes=2))
    assert part.manifest()["subset"] == rule | {"num_examples": 14}
    assert logged == [
        "data: 60 of 200 examples (data.fraction=0.3)",
        "data: 200 of 200 examples (data.fraction=1, data.subset_seed=3)",
        "data: 14 of 200 examples (data.per_class=7, data.subset_seed=3)",
    ]


@pytest.mark.parametrize("fields", [{}, {"fraction": 0.7}])
def test_balanced_epochs_have_every_class_as_often(fields, logged):
    """Each example is there as often as the others of its class, or once more by lowest rank."""
    source = uneven()
    part = choose(source, subset_seed=5, **fields)
    balanced = choose(source, subset_seed=5, balance="sample", **fields)
    counts = np.bincount(part.read_labels(range(part.num_examples)), minlength=4)
    assert len(set(counts)) == 4 and counts[3] == 0
    labels = balanced.read_labels(range(balanced.num_examples))
    np.testing.assert_array_equal(np.bincount(labels, minlength=4), [*[counts.max()] * 3, 0])
    ids, times = np.unique(ids_of(balanced), return_counts=True)
    np.testing.assert_array_equal(ids, np.sort(ids_of(part)))
    times = dict(zip(ids.tolist(), times.tolist(), strict=True))
    for label in range(3):
        own = sorted((i for i in times if i % 11 // 4 == label), key=lambda i: rank(5, i))
        least, more = divmod(int(counts.max()), len(own))
        assert [times[i] for i in own] == [least + (n < more) for n in range(len(own))]
    # Repeats follow each other in stored order, in the shard of their example.
    repeated = np.repeat(ids_of(part), [times[i] for i in ids_of(part).tolist()])
    np.testing.assert_array_equal(ids_of(balanced), repeated)
    assert sum(balanced.shard_lengths) == balanced.num_examples == 3 * counts.max()
    rule = {**fields, "subset_seed": 5, "balance": "sample"}
    assert balanced.manifest()["subset"] == rule | {"num_examples": balanced.num_examples}
    order = np.argsort(counts)[1:]
    said = ", ".join(f"class {i} ({counts[i]}) x {counts.max() / counts[i]:.3g}" for i in order)
    assert logged[-2] == f"data.balance=sample: {said}; none of class 3"


def test_weights_of_the_loss_have_the_mean_one():
    """They are n / (K n_c), with K classes that have examples."""
    weights, note = subset.balanced_loss(stored())
    assert np.mean(np.array(weights)[subset.read_labels(stored())]) == pytest.approx(1)
    assert weights[2:] == (0.0, 0.0) and note.endswith("; none of class 2, class 3")
    source = uneven()
    weights, note = subset.balanced_loss(source)
    counts = np.bincount(subset.read_labels(source))
    np.testing.assert_allclose(weights[:3], COUNT / (3 * counts), rtol=1e-12)
    rarest = int(counts.argmin())
    assert f"class {rarest} ({counts[rarest]}) x {weights[rarest]:.3g}" in note


def test_sizes_need_no_labels():
    source = stored()
    for fields, expected in (
        ({}, (200, 150)),
        ({"fraction": 0.1}, (20, 15)),
        ({"per_class": 60}, (240, 240)),
    ):
        data = Data(**fields)
        sizes = subset.subset_size(data, source), subset.subset_size(data, source, 150)
        assert sizes == expected
    assert not source.reads


def test_empty_parts_and_lists_of_labels_are_refused():
    source = stored()
    with pytest.raises(DataError, match="fraction=0.002 .*200 "):
        choose(source, fraction=0.002)
    source.multi_label = True
    with pytest.raises(DataError, match="per_class=2.*fraction"):
        choose(source, per_class=2)
    with pytest.raises(DataError, match="balance=sample.*=none"):
        choose(source, balance="sample")
    with pytest.raises(DataError, match="balance=loss.*=none"):
        subset.balanced_loss(source)


@pytest.mark.parametrize(
    ("constant", "value", "settings", "expected"),
    [
        (
            "ROWS_PER_READ",
            25,
            {"per_class": 5},
            ["reading the labels", "100 of 200, 6 a second, ETA 0:00:16"]
            + ["175 of 200, 6 a second, ETA 0:00:04", "10 of 200 examples (data.per_class=5)"],
        ),
        (
            "_RANKS_AT_ONCE",
            50,
            {"fraction": 0.1},
            ["ranking the examples", "200 of 400, 12 a second, ETA 0:00:16"]
            + ["350 of 400, 12 a second, ETA 0:00:04", "20 of 200 examples (data.fraction=0.1)"],
        ),
    ],
)
def test_long_choices_are_reported(monkeypatch, constant, value, settings, expected, logged):
    """At most every 10 s, and not at the end; the first piece does not count for the rate."""
    monkeypatch.setattr(subset, constant, value)
    clock = itertools.count(100, 4)
    monkeypatch.setattr(progress_lines.time, "perf_counter", lambda: float(next(clock)))
    subset.choose_subset(Data(**settings), stored(num_classes=2))
    what, first, second, end = expected
    of = f"{what} of stored:1 split 'train'" + " twice" * ("fraction" in settings)
    assert logged == [f"{of}: {first}", f"{of}: {second}", f"data: {end}"]

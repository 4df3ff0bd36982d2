"""`data.sharding=files`: hosts read independently, and results are exact."""

import dataclasses
import itertools
import json
import os

import numpy as np
import pytest
import tensorflow as tf

from pipelines.config import Data, Request
from pipelines.config.augmentation import Augmentation
from pipelines.config.data import Sampling
from pipelines.data import stateless_random
from pipelines.data.order import TrainBatches, TrainOrder, Window, slice_of_host
from pipelines.data.sources import record_writer
from pipelines.data.sources.open import open_source
from pipelines.data.sources.records import RecordSource
from pipelines.data.sources.subset import choose_subset
from pipelines.data.transforms.augmentation import augment
from pipelines.data.transforms.mixing import Mixing
from pipelines.errors import DataError
from pipelines.training.train import train
from pipelines.training.train_data import TrainData
from tests.pipelines.data.batches import assert_equal, join, to_numpy, train_dataset
from tests.pipelines.tiny import one_device, tiny_experiment
from vit_tf.preprocessing import Preprocessing

COUNT, SHARDS = 210, 7
PREPROCESSING = Preprocessing(image_size=(8, 8))
SAMPLING = Sampling(batch_size=12, shuffle_window=25, seed=5, sharding="files")
# Shards 0, 3 and 6; 1 and 4; 2 and 5. They hold 30 examples each.
OWN = {0: [*range(0, 30), *range(90, 120), *range(180, 210)], 1: [*range(30, 60), *range(120, 150)]}
OWN[2] = [*range(60, 90), *range(150, 180)]


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """A folder of TFRecord files; ids are positions in the split."""
    path = tmp_path_factory.mktemp("sharding") / "records"
    record_writer.write_records(
        {"train": open_source("digits", f"train[:{COUNT}]")}, path, SHARDS, "stop"
    )
    return path


@pytest.fixture
def source(records):
    return open_source(f"tfrecord:{records}", "train")


def _host(source, host, count, *, hosts=3, replicas=3, batch_size=12, **options):
    """The batches of one host: a list of batches for each of its replicas."""
    each = replicas // hosts
    dataset = train_dataset(
        source,
        **{
            "seed": 5,
            "shuffle_window": 25,
            "preprocessing": PREPROCESSING,
            "sharding": "files",
            **options,
        },
        batch_size=batch_size,
        input_context=tf.distribute.InputContext(hosts, host, replicas),
    )
    batches = to_numpy(dataset.take(count * each))
    return [batches[replica::each] for replica in range(each)]


def _global(source, count, *, hosts=3, replicas=3, **options):
    """Global batches, joined from all replicas of all hosts."""
    parts = itertools.chain(
        *(_host(source, h, count, hosts=hosts, replicas=replicas, **options) for h in range(hosts))
    )
    return join(parts)


@pytest.mark.parametrize("host", OWN)
def test_every_own_example_once_per_epoch_and_no_other(source, host):
    epoch = len(OWN[host])
    (batches,) = _host(source, host, 2 * epoch // 4)
    ids = np.concatenate([batch["id"] for batch in batches])
    for first in (0, epoch):
        assert sorted(ids[first : first + epoch]) == OWN[host]
    assert (ids[:epoch] != ids[epoch:]).any()


def test_a_host_reads_its_own_files_alone(records, monkeypatch):
    opened = []
    original = RecordSource.locate

    def note(self, indices):
        location = original(self, indices)
        opened.extend(location["path"])
        return location

    monkeypatch.setattr(RecordSource, "locate", note)
    _host(open_source(f"tfrecord:{records}", "train"), 1, 20)
    names = {os.fsdecode(path).split("train-")[1][:5] for path in opened}
    assert names == {"00001", "00004"}


def test_batches_follow_their_definition(source):
    """Joins the orders of the hosts, with the seeds of the slots of the global batch."""
    orders = [TrainOrder((30,) * SHARDS, 25, 5, host, 3) for host in range(3)]
    examples = source.read(range(COUNT))
    for step, batch in enumerate(_global(source, 6)):
        indices = np.concatenate([order.stream(4 * step, 4 * step + 4) for order in orders])
        np.testing.assert_array_equal(batch["id"], indices)
        np.testing.assert_array_equal(batch["label"], examples.labels[indices])
        np.testing.assert_array_equal(batch["slot"], np.arange(12))
        for slot, seed in enumerate(stateless_random.example_seeds(5, step, np.arange(12))):
            image = augment(examples.images[indices[slot]], seed, PREPROCESSING, Augmentation())
            np.testing.assert_array_equal(batch["image"][slot], image)
        listed = TrainBatches(source, SAMPLING, hosts=3).indices(step)
        np.testing.assert_array_equal(listed, indices)


def test_replicas_of_a_host_do_not_matter(source):
    mixing = {"mixup": 0.5, "cutmix": 1.0}
    assert_equal(_global(source, 6, replicas=6, **mixing), _global(source, 6, **mixing))


def test_one_host_sees_what_global_sharding_shows(source):
    expected = _global(source, 8, hosts=1, replicas=1, sharding="global", mixup=0.5)
    assert_equal(_global(source, 8, hosts=1, replicas=2, mixup=0.5), expected)


def test_partners_are_of_the_same_host(source):
    mixing = Mixing(mixup=0.5, cutmix=1.0, seed=5, image_size=(8, 8), num_classes=10)
    plain = _global(source, 4)
    for step, batch in enumerate(_global(source, 4, mixup=0.5, cutmix=1.0)):
        images, labels = (plain[step][key] for key in ("image", "label"))
        partner = np.concatenate([np.roll(np.arange(4), 1) + 4 * host for host in range(3)])
        image, label = mixing.mix(
            tf.constant(mixing.draw(step)), images, labels, images[partner], labels[partner]
        )
        np.testing.assert_array_equal(batch["image"], image)
        np.testing.assert_array_equal(batch["label"], label)
        np.testing.assert_array_equal(batch["id"], plain[step]["id"])


@pytest.mark.parametrize("host", range(3))
def test_partners_of_a_shared_order_may_be_of_the_host_before(host):
    rows = slice_of_host(12, tf.distribute.InputContext(3, host, 3), with_partners=True)
    read = rows.select(Window(np.arange(12), np.arange(12))).indices
    own = np.arange(4 * host, 4 * host + 4)
    assert len(read) == rows.num_rows == 5
    np.testing.assert_array_equal(rows.own(read), own)
    np.testing.assert_array_equal(rows.own(np.roll(read, 1)), (own - 1) % 12)


def test_resume_continues_bitwise(source):
    """At steps in the first window, and in different epochs of the hosts."""
    whole = _global(source, 33, mixup=0.5)
    for start in (1, 31):
        assert_equal(_global(source, 2, start_step=start, mixup=0.5), whole[start : start + 2])


def test_resume_reads_only_what_it_uses(source, monkeypatch):
    host, read = 1, []
    original = RecordSource.locate
    monkeypatch.setattr(
        RecordSource,
        "locate",
        lambda self, indices: read.append(set(indices.tolist())) or original(self, indices),
    )
    (batches,) = _host(source, host, 1, start_step=1000)
    order = TrainOrder((30,) * SHARDS, 25, 5, host, 3)
    window = order.window_at(4000)
    row = 4000 - order.offsets(*window)[0]
    assert row > 0
    assert read[0] == set(order.indices(*window)[row:].tolist())
    # Batches are prefetched, so later windows may be read too: the next ones of the order.
    windows = itertools.islice(order.windows_from(4000), 1, None)
    for indices, window in zip(read[1:], windows, strict=False):
        assert indices == set(order.indices(*window).tolist())
    assert batches[0]["id"].tolist() == order.stream(4000, 4004).tolist()


def test_orders_differ():
    """Orders depend on seed, epoch, host and window; one host has the order of global sharding."""

    def first(host=0, hosts=2, seed=5, epoch=0, window=0):
        return TrainOrder((40, 40), 20, seed, host, hosts).indices(epoch, window).tolist()

    base = first()
    assert (
        len({tuple(first(**other)) for other in ({}, {"seed": 6}, {"epoch": 1}, {"window": 1})})
        == 4
    )
    assert [index + 40 for index in base] != first(host=1)
    np.testing.assert_array_equal(first(hosts=1), TrainOrder((40, 40), 20, 5).indices(0, 0))


@pytest.mark.parametrize(("lengths", "hosts"), [((3, 0, 5, 1, 7), 2), ((10, 1, 1, 9), 4)])
def test_hosts_share_out_shards_of_any_length(lengths, hosts):
    ends = np.cumsum(lengths)
    everything = []
    for host in range(hosts):
        own = [
            i
            for s in range(host, len(lengths), hosts)
            for i in range(ends[s] - lengths[s], ends[s])
        ]
        order = TrainOrder(lengths, 4, 3, host, hosts)
        assert order.num_examples == len(own)
        for epoch in range(2):
            stream = order.stream(epoch * len(own), (epoch + 1) * len(own))
            assert sorted(stream) == own
        everything += own
    assert sorted(everything) == list(range(sum(lengths)))


def test_each_host_fills_its_slots(source):
    batches = TrainBatches(source, SAMPLING, hosts=3)
    assert [order.host for order in batches.orders] == [0, 1, 2]
    # 90 and 60 examples: the first host is still in epoch 0 when the second host starts epoch 1.
    assert [order.window_at(16 * 4)[0] for order in batches.orders] == [0, 1, 1]
    assert batches.epoch(16) == 0
    # The epoch of the second host ends between batches 14 and 15; a window never spans two epochs.
    last, first = batches.windows(14, 16, host=1)
    assert last.offsets.tolist() == [14 * 12 + slot for slot in range(4, 8)]
    assert first.offsets.tolist() == [15 * 12 + slot for slot in range(4, 8)]
    for host in range(3):
        rows = np.concatenate([window.indices for window in batches.windows(15, 16, host)])
        np.testing.assert_array_equal(batches.indices(15)[4 * host : 4 * host + 4], rows)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"hosts": 8, "replicas": 8, "batch_size": 8}, DataError, "each of 8 hosts, .* has 7"),
        ({"hosts": 8, "replicas": 8, "batch_size": 8}, DataError, "--shards 8 or more"),
        ({"batch_size": 10}, ValueError, "batch_size=10.*3 replicas"),
    ],
)
def test_rejects(source, options, error, text):
    with pytest.raises(error, match=text):
        _host(source, 0, 1, **options)


def test_a_part_with_too_few_files_is_not_written_again(source):
    part = choose_subset(Data(fraction=0.02), source)
    text = "7 hosts.*=0.02 has [1-6]"
    with pytest.raises(DataError, match=text) as raised:
        TrainBatches(part, dataclasses.replace(SAMPLING, batch_size=7), hosts=7)
    assert "data.sharding=global" in str(raised.value)
    assert "make_tfrecords" not in str(raised.value)


def test_batch_that_hosts_cannot_share():
    class Many:
        shard_lengths = (5,) * 9

    with pytest.raises(ValueError, match="batch of 10 .*3 hosts"):
        sampling = Sampling(batch_size=10, shuffle_window=2, seed=0, sharding="files")
        TrainBatches(Many, sampling, hosts=3)
    with pytest.raises(ValueError, match="host=3 is not in 0 .. 2"):
        TrainOrder((5,) * 9, 2, 0, 3, 3)


def test_a_run_says_what_its_order_depends_on(tmp_path, logged, records):
    """Also that it has changed since an earlier start."""
    data = (f"data.name=tfrecord:{records}", "data.eval_split=none", "schedule.decay=constant")
    data += ("data.sharding=files", "model.layers=1", "schedule.warmup_steps=0")
    train(tiny_experiment(*data, "train.steps=1"), tmp_path / "run", one_device())
    line = "data.sharding=files: the order of the examples is reproducible for 1 host\n"
    assert line in logged.take()

    manifest = tmp_path / "run" / "manifest.json"
    content = json.loads(manifest.read_text())
    assert [start["hosts"] for start in content["starts"]] == [1]
    content["starts"][0]["hosts"] = 4
    manifest.write_text(json.dumps(content))
    longer = tiny_experiment(*data, "train.steps=2")
    train(longer, tmp_path / "run", one_device(), Request(extend=True))
    line = "is reproducible for 1 host; earlier steps had the order for 4\n"
    assert line in logged.take()


def test_a_bad_image_is_looked_for_in_the_order_of_the_hosts(source, monkeypatch):
    """At the index where the first host has it, the global order has another image."""
    sampling = dataclasses.replace(SAMPLING, seed=0)
    in_global_order = TrainBatches(source, dataclasses.replace(sampling, sharding="global"))
    own = TrainBatches(source, sampling, hosts=3).indices(1)
    bad = next(index for index in own if index not in in_global_order.indices(1))
    read = source.read

    def spoiled(indices):
        examples = read(indices)
        examples.images[examples.ids == bad] = b"text"
        return examples

    monkeypatch.setattr(source, "read", spoiled)
    data = TrainData(
        source=source, sampling=sampling, augmentation=Augmentation(), preprocessing=None
    )
    error = tf.errors.InvalidArgumentError(None, None, "no image")
    with pytest.raises(DataError, match=rf"record {bad % 30} of .*\(id {bad}\)"):
        raise data.explain_input_error(error, [1], hosts=3)
    with pytest.raises(tf.errors.InvalidArgumentError, match="no image"):
        raise data.explain_input_error(error, [2], hosts=3)

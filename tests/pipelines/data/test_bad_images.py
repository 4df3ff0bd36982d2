"""`data.bad_images=skip`: bad images are black without weight, and others are unchanged."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from pipelines.config.augmentation import Augmentation
from pipelines.data import pipeline
from pipelines.data.transforms.mixing import Mixing
from tests.pipelines.data.batches import KEYS, assert_equal, join, to_numpy
from tests.pipelines.data.spoiled import BAD, PREPROCESSING, Spoiled, train
from vit_tf.preprocessing import Preprocessing


def test_without_bad_images_nothing_changes(digits):
    assert_equal(train(digits, 7, mixup=0.5), train(digits, 7, skip=False, mixup=0.5))


@pytest.mark.parametrize("batch_size", [8, 40])
def test_bad_images_are_black_without_weight_in_their_slots(digits, spoiled, batch_size):
    """Over an epoch, with batches smaller and larger than the groups of decoded images."""
    options = {"batch_size": batch_size, "seed": 6}
    expected = train(digits, 200 // batch_size, skip=False, **options)
    seen = []
    for batch, other in zip(train(spoiled, len(expected), **options), expected, strict=True):
        bad = np.isin(other["id"], BAD)
        for key in ("id", "slot", "label"):
            np.testing.assert_array_equal(batch[key], other[key])
        np.testing.assert_array_equal(batch["weight"], ~bad)
        np.testing.assert_array_equal(batch["image"][~bad], other["image"][~bad])
        assert (batch["image"][bad] == -1).all()
        seen += other["id"][bad].tolist()
    assert sorted(seen) == sorted(BAD)


@pytest.mark.parametrize(
    ("hosts", "replicas", "mixing"), [(1, 2, {}), (2, 4, {"mixup": 0.5, "cutmix": 1.0})]
)
def test_replicas_and_hosts_do_not_matter(spoiled, hosts, replicas, mixing):
    each = replicas // hosts
    parts = []
    for host in range(hosts):
        batches = train(spoiled, 6, host=host, hosts=hosts, replicas=replicas, **mixing)
        parts += [batches[replica::each] for replica in range(each)]
    assert_equal(join(parts), train(spoiled, 6, **mixing))


def test_resume_continues_bitwise(spoiled):
    before = train(spoiled, 13, mixup=0.5)
    assert_equal(train(spoiled, 3, start_step=10, mixup=0.5), before[10:])


def test_bad_images_do_not_bleed_into_others(spoiled):
    """Neither an example with a bad partner nor a bad example is mixed."""
    options = {"mixup": 0.5, "cutmix": 1.0}
    mixing = Mixing(**options, seed=5, image_size=(8, 8), num_classes=10)
    lonely = 0
    batches = zip(range(7), train(spoiled, 7, **options), train(spoiled, 7), strict=True)
    for step, batch, plain in batches:
        image, weight = plain["image"], plain["weight"]
        whole = weight * np.roll(weight, 1) == 1
        label = np.eye(10, dtype=np.float32)[plain["label"]]
        mixed = mixing.mix(
            tf.constant(mixing.draw(step)),
            *(tf.constant(plain[key]) for key in ("image", "label")),
            *(tf.constant(np.roll(plain[key], 1, axis=0)) for key in ("image", "label")),
        )
        for key, own, other in zip(("image", "label"), (image, label), mixed, strict=True):
            np.testing.assert_array_equal(batch[key][whole], other.numpy()[whole])
            np.testing.assert_array_equal(batch[key][~whole], own[~whole])
        np.testing.assert_array_equal(batch["weight"], weight)
        assert (batch["image"][weight == 0] == -1).all()
        lonely += (~whole & (weight == 1)).sum()
    assert lonely >= len(set(BAD) - {4, 78})  # 4 and 78 come right after another bad image


def test_evaluation_leaves_them_out(spoiled, examples):
    batch_size, hosts, replicas = 64, 2, 4
    rows = {key: [] for key in KEYS}
    for host in range(hosts):
        dataset = pipeline.eval_dataset(
            spoiled,
            batch_size=batch_size,
            preprocessing=PREPROCESSING,
            skips_bad_images=True,
            input_context=tf.distribute.InputContext(hosts, host, replicas),
        )
        for batch in dataset:
            for key in KEYS:
                rows[key].append(batch[key].numpy())
    rows = {key: np.concatenate(parts) for key, parts in rows.items()}
    counted = rows["id"][rows["weight"] == 1]
    assert sorted(counted) == sorted(set(range(200)) - set(BAD))
    assert sorted(rows["id"][rows["id"] >= 0]) == list(range(200))
    assert (rows["image"][rows["weight"] == 0] == -1).all()
    labels = dict(zip(rows["id"], rows["label"], strict=True))
    assert all(labels[i] == label for i, label in enumerate(examples.labels))


def test_black_is_that_of_the_preprocessing(spoiled):
    preprocessing = Preprocessing(image_size=(8, 8), mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))
    options = {"batch_size": 100, "skips_bad_images": True}
    batch = next(iter(pipeline.eval_dataset(spoiled, preprocessing=preprocessing, **options)))
    black = preprocessing(np.zeros([1, 1, 3], np.uint8))
    np.testing.assert_array_equal(
        batch["image"].numpy()[[3, 4]], np.broadcast_to(black, [2, 8, 8, 3])
    )


@pytest.mark.parametrize("rows", [20, 50])  # Below and above a group of `decode_batches`.
def test_black_of_uint8_is_0(spoiled, rows):
    levels, floats = (
        to_numpy(
            pipeline.eval_dataset(
                spoiled,
                batch_size=rows,
                preprocessing=dataclasses.replace(PREPROCESSING, dtype=dtype),
                skips_bad_images=True,
            )
        )
        for dtype in ("uint8", "float32")
    )
    assert np.concatenate([batch["image"][batch["weight"] == 0] for batch in levels]).max() == 0
    for batch, other in zip(levels, floats, strict=True):
        assert batch["image"].dtype == np.uint8
        batch["image"] = PREPROCESSING.normalized(batch["image"]).numpy()
        assert_equal([batch], [other])


def test_images_to_show_leave_out_bad_ones(spoiled, examples):
    images = pipeline.sample_images(spoiled, PREPROCESSING, 5, Augmentation(), count=12)
    assert images.shape == (10, 8, 8, 3)
    nothing = pipeline.sample_images(Spoiled(examples, range(20)), PREPROCESSING, 5, Augmentation())
    assert nothing.shape == (0, 8, 8, 3)

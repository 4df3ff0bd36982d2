"""Batches: the same on any number of replicas and hosts and after a restart; exact evaluation."""

import io
import itertools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from PIL import Image

from pipelines.config.augmentation import AUGREG_LEVELS, Augmentation
from pipelines.config.data import Sampling
from pipelines.data import bad_images, pipeline, stateless_random
from pipelines.data.order import EvalBatches, TrainBatches, TrainOrder
from pipelines.data.sources import tfds_source
from pipelines.data.sources.arrays import EncodedSource
from pipelines.data.sources.open import open_source
from pipelines.data.transforms.augmentation import augment
from pipelines.data.transforms.mixing import Mixing
from pipelines.errors import DataError
from tests.pipelines import encoded
from tests.pipelines.data.batches import KEYS, assert_equal, join, to_numpy, train_dataset
from vit_tf.images.decoding import decode_image
from vit_tf.preprocessing import Preprocessing

PREPROCESSING = Preprocessing(image_size=(12, 10))
EVERYTHING = {
    "crop": "random",
    "crop_resize_to": 16,
    "vertical_flip": True,
    "color_jitter": (0.4, 0.4, 0.4, 0.1),
    "randaugment_layers": 2,
    "randaugment_magnitude": 15.0,
    "random_erasing": 0.3,
    "mixup": 0.5,
    "cutmix": 1.0,
    "mixing_steps": 4,
}


def _train(source, count, *, step_size=32, shuffle_window=70, seed=5, **options):
    dataset = train_dataset(
        source,
        batch_size=step_size,
        preprocessing=PREPROCESSING,
        seed=seed,
        shuffle_window=shuffle_window,
        **options,
    )
    return to_numpy(dataset.take(count))


def test_the_autotuner_is_off(digits, monkeypatch):
    """Its end can block for a minute: of batches, and of what Python reads from a source."""
    read, numpy_iterator = [], tf.data.Dataset.as_numpy_iterator

    def note(dataset):
        read.append(dataset)
        return numpy_iterator(dataset)

    monkeypatch.setattr(tf.data.Dataset, "as_numpy_iterator", note)
    digits.read([0])
    assert len(read) == 1
    options = {"batch_size": 16, "preprocessing": PREPROCESSING}
    train = train_dataset(digits, seed=0, shuffle_window=50, **options)
    for dataset in (train, pipeline.eval_dataset(digits, **options), *read):
        assert dataset.options().autotune.enabled is False


@pytest.mark.heavy("data")
def test_elements_have_static_shapes(digits):
    context = tf.distribute.InputContext(1, 0, 2)
    expected = {
        "image": tf.TensorSpec([8, 12, 10, 3], tf.float32),
        "label": tf.TensorSpec([8], tf.int32),
        "id": tf.TensorSpec([8], tf.int64),
        "slot": tf.TensorSpec([8], tf.int32),
        "weight": tf.TensorSpec([8], tf.float32),
    }
    options = {"batch_size": 16, "preprocessing": PREPROCESSING, "input_context": context}
    train = train_dataset(digits, seed=0, shuffle_window=50, **options)
    assert train.element_spec == expected
    mixed = train_dataset(digits, seed=0, shuffle_window=50, mixup=0.2, **options)
    assert mixed.element_spec == {**expected, "label": tf.TensorSpec([8, 10], tf.float32)}
    assert pipeline.eval_dataset(digits, **options).element_spec == expected


def test_train_batches_follow_their_definition(digits):
    """Combines order, seeds and augmentation by hand, across the end of an epoch."""
    everything = digits.read(range(200))
    order = TrainOrder((200,), 70, 5)
    sampling = Sampling(batch_size=32, shuffle_window=70, seed=5, sharding="global")
    for step, batch in enumerate(_train(digits, 8)):
        indices = order.stream(step * 32, step * 32 + 32)
        np.testing.assert_array_equal(batch["id"], everything.ids[indices])
        np.testing.assert_array_equal(batch["label"], everything.labels[indices])
        np.testing.assert_array_equal(batch["slot"], np.arange(32))
        np.testing.assert_array_equal(batch["weight"], np.ones(32))
        for slot, seed in enumerate(stateless_random.example_seeds(5, step, np.arange(32))):
            image = augment(everything.images[indices[slot]], seed, PREPROCESSING, Augmentation())
            np.testing.assert_array_equal(batch["image"][slot], image)
        listed = TrainBatches(digits, sampling).indices(step)
        np.testing.assert_array_equal(listed, indices)


def test_every_example_once_per_epoch(digits):
    ids = np.concatenate([batch["id"] for batch in _train(digits, 25, step_size=16)])
    for epoch in (ids[:200], ids[200:]):
        np.testing.assert_array_equal(np.sort(epoch), np.arange(200))
    assert (ids[:200] != ids[200:]).any()


def _replicated(source, count, hosts, replicas, **options):
    """Global batches, joined from the batches of all replicas on all hosts."""
    each = replicas // hosts
    parts = []
    for host in range(hosts):
        context = tf.distribute.InputContext(hosts, host, replicas)
        batches = _train(source, count * each, input_context=context, **options)
        parts += [batches[replica::each] for replica in range(each)]
    return join(parts)


@pytest.mark.parametrize(("hosts", "replicas", "shuffle_window"), [(1, 2, 1000), (2, 4, 7)])
def test_replicas_and_hosts_see_the_same_batches(digits, hosts, replicas, shuffle_window):
    batches = _replicated(digits, 9, hosts, replicas, shuffle_window=shuffle_window)
    assert_equal(batches, _train(digits, 9, shuffle_window=shuffle_window))


def test_replicas_and_hosts_see_the_same_mixed_batches(digits):
    """With one image for each replica: its partner is of the other host."""
    options = {"step_size": 2, "shuffle_window": 37, "mixup": 0.5, "cutmix": 1.0}
    batches = _replicated(digits, 7, 2, 2, **options)
    assert_equal(batches, _train(digits, 7, **options))


@pytest.mark.heavy("data")
def test_replicas_and_hosts_see_the_same_batches_with_everything_on(digits):
    options = EVERYTHING | {"step_size": 8}
    assert_equal(_replicated(digits, 3, 2, 2, **options), _train(digits, 3, **options))


def test_a_host_decodes_one_neighbor_more(digits, monkeypatch):
    """For partners a host decodes one more image per batch, not a second slice."""
    rows, original = [], pipeline.read_windows

    def note(source, windows, columns, signature):
        rows.append(next(windows()).offsets)
        return original(source, windows, columns, signature)

    monkeypatch.setattr(pipeline, "read_windows", note)
    for host, expected in ((0, [0, 1, 2, 3, 15]), (2, [7, 8, 9, 10, 11])):
        train_dataset(
            digits,
            batch_size=16,
            preprocessing=PREPROCESSING,
            seed=5,
            shuffle_window=16,
            mixup=0.2,
            input_context=tf.distribute.InputContext(4, host, 4),
        )
        np.testing.assert_array_equal(rows.pop()[:5], expected)


def test_mixed_batches_follow_their_definition(digits):
    """Takes batches without mixing, and mixes each example with the one before in NumPy."""
    mixing = Mixing(mixup=0.5, cutmix=1.0, seed=5, image_size=(12, 10), num_classes=10)
    batches = zip(
        range(2, 8),
        _train(digits, 6, start_step=2, mixup=0.5, cutmix=1.0),
        _train(digits, 6, start_step=2),
        strict=True,
    )
    drawn = set()
    for step, batch, before in batches:
        label, image, top, left, bottom, right = mixing.draw(step)
        drawn.add("CutMix" if image == 1 else "MixUp")
        kept = np.full((12, 10, 1), image)
        kept[int(top) : int(bottom), int(left) : int(right)] = 0
        images, labels = before["image"], np.eye(10, dtype=np.float32)[before["label"]]
        images = kept * images + (1 - kept) * np.roll(images, 1, axis=0)
        np.testing.assert_array_equal(batch["image"], images)
        labels = label * labels + (1 - label) * np.roll(labels, 1, axis=0)
        np.testing.assert_array_equal(batch["label"], labels)
        for key in ("id", "slot", "weight"):
            np.testing.assert_array_equal(batch[key], before[key])
    assert drawn == {"CutMix", "MixUp"}


@pytest.mark.heavy("data")
@pytest.mark.parametrize("sharding", ["global", "files"])
def test_mixing_ends(digits, sharding):
    """Later batches are those without mixing, with labels of the same kind; also after a resume."""
    mixed = {"mixup": 0.5, "cutmix": 1.0, "sharding": sharding}
    batches = _train(digits, 5, mixing_steps=3, **mixed)
    assert_equal(batches[:3], _train(digits, 3, **mixed))
    for batch, plain in zip(
        batches[3:], _train(digits, 2, start_step=3, sharding=sharding), strict=True
    ):
        one_hot = np.eye(10, dtype=np.float32)[plain["label"]]
        assert batch["label"].dtype == np.float32
        assert_equal([batch], [plain | {"label": one_hot}])
    assert_equal(_train(digits, 3, start_step=2, mixing_steps=3, **mixed), batches[2:])
    none = _train(digits, 1, mixing_steps=0, **mixed)
    np.testing.assert_array_equal(none[0]["label"].max(axis=1), 1)


@pytest.mark.heavy("data")
@pytest.mark.parametrize(("name", "label_shape"), [("light1", (4,)), ("strong2", (4, 10))])
def test_levels_of_augreg_are_options(digits, name, label_shape):
    (batch,) = _train(digits, 1, step_size=4, **AUGREG_LEVELS[name])
    assert -1 <= batch["image"].min() < batch["image"].max() <= 1
    assert batch["label"].shape == label_shape


@pytest.mark.heavy("data")
def test_mirrored_strategy_gets_the_same_batches(digits):
    options = {"mixup": 0.5, "cutmix": 1.0}
    strategy = tf.distribute.MirroredStrategy(["cpu:0", "cpu:1"])
    distributed = strategy.distribute_datasets_from_function(
        lambda context: train_dataset(
            digits,
            batch_size=32,
            preprocessing=PREPROCESSING,
            seed=5,
            shuffle_window=70,
            input_context=context,
            **options,
        )
    )
    parts = [
        [
            {key: strategy.experimental_local_results(batch[key])[replica].numpy() for key in KEYS}
            for batch in itertools.islice(distributed, 4)
        ]
        for replica in range(2)
    ]
    assert_equal(join(parts), _train(digits, 4, **options))


def test_resume_continues_bitwise(digits):
    """In the first epoch and in the third."""
    whole = _train(digits, 16)
    for start in (1, 13):
        assert_equal(_train(digits, 3, start_step=start), whole[start : start + 3])


@pytest.mark.heavy("data")
def test_resume_continues_bitwise_with_everything_on(digits):
    options = EVERYTHING | {"step_size": 8, "shuffle_window": 16}
    whole = _train(digits, 5, **options)
    assert_equal(_train(digits, 2, start_step=3, **options), whole[3:])


def test_resume_reads_only_what_it_uses(digits, monkeypatch):
    read = []
    original = tfds_source.TfdsSource.locate

    def note(self, indices):
        read.append(set(indices.tolist()))
        return original(self, indices)

    monkeypatch.setattr(tfds_source.TfdsSource, "locate", note)
    dataset = train_dataset(
        digits,
        batch_size=4,
        preprocessing=PREPROCESSING,
        seed=5,
        shuffle_window=50,
        start_step=1005,
    )
    batch = next(iter(dataset))
    # The epoch and its window begin at step 1000.
    order = TrainOrder((200,), 50, 5)
    first, *others = [order.indices(20, window) for window in range(4)]
    assert read[0] == set(first[20:].tolist())
    assert batch["id"].numpy().tolist() == first[20:24].tolist()
    # Batches are prefetched, so later windows may be read too: the next ones of the order.
    for indices, expected in zip(read[1:], others, strict=False):
        assert indices == set(expected.tolist())


@pytest.mark.heavy("data")
def test_seeds_and_options_matter(digits):
    base = _train(digits, 1)[0]
    assert (_train(digits, 1, seed=6)[0]["id"] != base["id"]).any()
    for options in (
        {"crop": "none"},
        {"flip": False},
        {"crop_area": (0.9, 1.0)},
        {"randaugment_layers": 1},
        {"random_erasing": 1.0},
        {"color_jitter": (0.4, 0.0, 0.0, 0.0)},
        {"mixup": 1.0},
        {"cutmix": 1.0},
    ):
        other = _train(digits, 1, **options)[0]
        np.testing.assert_array_equal(other["id"], base["id"])
        assert (other["image"] != base["image"]).any()


@pytest.mark.parametrize(("batch_size", "hosts", "replicas"), [(32, 1, 1), (256, 1, 4), (8, 2, 4)])
def test_evaluation_counts_every_example_once(batch_size, hosts, replicas):
    source = open_source("digits", "validation")
    steps = len(EvalBatches(source, batch_size))
    parts = []
    for host in range(hosts):
        dataset = pipeline.eval_dataset(
            source,
            batch_size=batch_size,
            preprocessing=PREPROCESSING,
            input_context=tf.distribute.InputContext(hosts, host, replicas),
        )
        batches = [{key: batch[key].numpy() for key in KEYS} for batch in dataset]
        assert len(batches) == dataset.cardinality() == steps * replicas // hosts
        parts += [batches[i :: replicas // hosts] for i in range(replicas // hosts)]

    joined = join(parts)
    for batch in joined:
        np.testing.assert_array_equal(batch["slot"], np.arange(batch_size))
    rows = {key: np.concatenate([batch[key] for batch in joined]) for key in KEYS}
    examples = source.read(range(200))
    np.testing.assert_array_equal(rows["weight"], [1] * 200 + [0] * (steps * batch_size - 200))
    np.testing.assert_array_equal(rows["id"][:200], examples.ids)
    np.testing.assert_array_equal(rows["label"][:200], examples.labels)
    for row in (0, 77, 199):
        expected = PREPROCESSING(decode_image(examples.images[row]))
        np.testing.assert_array_equal(rows["image"][row], expected)
    assert (rows["id"][200:] == -1).all()
    assert (rows["label"][200:] == 0).all()
    assert (rows["image"][200:] == -1).all()  # black


def test_evaluation_decodes_jpegs_as_the_preprocessing_says(tmp_path):
    data = encoded.encode(encoded.pixels(40, 30), "JPEG", subsampling=2)
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "photo.jpg").write_bytes(data)
    source = open_source(f"folder:{tmp_path}", "train")
    preprocessing = Preprocessing(image_size=(12, 10), antialias=True)
    [batch] = pipeline.eval_dataset(source, batch_size=2, preprocessing=preprocessing)
    pillow = np.asarray(Image.open(io.BytesIO(data)))
    np.testing.assert_array_equal(batch["image"][0], preprocessing(pillow))
    assert np.any(preprocessing(decode_image(data)) != preprocessing(pillow))


@pytest.mark.heavy("data")
def test_photographs_of_tfds_are_cropped():
    """With TFDS' mocked images, which have many sizes."""
    preprocessing = Preprocessing(image_size=(16, 16), resize="resize_small", resize_to=20)
    with tfds.testing.mock_data(num_examples=10):
        source = open_source("imagenet2012", "train")
    options = {"batch_size": 4, "preprocessing": preprocessing}
    train = [*train_dataset(source, seed=0, shuffle_window=6, **options).take(5)]
    ids = np.concatenate([batch["id"] for batch in train])
    np.testing.assert_array_equal(np.sort(ids[:10]), np.arange(10))
    images = np.concatenate([batch["image"] for batch in train])
    assert images.shape == (20, 16, 16, 3)
    assert images.std() > 0.1
    evaluated = [*pipeline.eval_dataset(source, **options)]
    assert sum(batch["weight"].numpy().sum() for batch in evaluated) == 10


def _damaged(source, damaged):
    """The first twelve digits in memory, one of them damaged."""
    images, labels, ids = source.read(range(12))
    images[ids == damaged] = b"no image"
    names = {"name": source.name, "version": source.version, "split": "train"}
    return EncodedSource(images, labels, source.labels, **names)


def test_unreadable_image_stops_and_is_named(digits):
    source = _damaged(digits, damaged=9)
    options = {"batch_size": 4, "preprocessing": PREPROCESSING}
    train = iter(train_dataset(source, **options, seed=0, shuffle_window=12))
    sampling = Sampling(batch_size=4, seed=0, shuffle_window=12, sharding="global")
    steps = [TrainBatches(source, sampling).indices(step) for step in range(3)]
    (bad_step,) = [k for k in range(3) if 9 in steps[k]]
    for step in range(3):
        found = [*bad_images.find_bad_images(source, steps[step])]
        if step < bad_step:
            next(train)
            assert found == []
        elif step == bad_step:
            with pytest.raises(tf.errors.InvalidArgumentError, match="It is not a JPEG"):
                next(train)
            problem = found[0].error()
            assert isinstance(problem, DataError) and found[0].index == 9
            assert "train example 9 of digits/all:1.0.0 (id 9) cannot be decoded" in str(problem)
            assert "\n" not in str(problem)

    with pytest.raises(tf.errors.InvalidArgumentError, match="It is not a JPEG"):
        list(pipeline.eval_dataset(source, **options))
    assert [bad.id for bad in bad_images.find_bad_images(source, range(12))] == [9]
    assert not [*bad_images.find_bad_images(source, range(9))]


def test_damaged_files_stop_training(tmp_path):
    source = open_source("digits", "train", tmp_path)
    dataset = train_dataset(
        source, batch_size=8, preprocessing=PREPROCESSING, seed=0, shuffle_window=100
    )
    (file,) = tmp_path.rglob("digits-train*")
    file.unlink()
    with pytest.raises(tf.errors.OpError, match="TFRecord file .*cannot"):
        next(iter(dataset))
    with pytest.raises(DataError, match="cannot be read"):
        next(bad_images.find_bad_images(source, [5]))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        (
            {"batch_size": 10, "input_context": tf.distribute.InputContext(1, 0, 4)},
            "batch_size=10.*4 replicas",
        ),
        (
            {"batch_size": 6, "input_context": tf.distribute.InputContext(2, 0, 3)},
            "3 replicas.*2 hosts",
        ),
        ({"crop_area": (0.5, 0.2)}, r"crop_area=\(0.5, 0.2\)"),
        ({"crop_area": (0.0, 1.0)}, r"crop_area=\(0.0, 1.0\)"),
        ({"random_erasing": -1.0}, "random_erasing=-1.0"),
        ({"mixup": -0.2}, "mixup=-0.2"),
        ({"start_step": -1}, "start_step=-1"),
        ({"shuffle_window": 0}, "window=0"),
        ({"seed": -3}, "seed=-3"),
    ],
)
def test_rejects(digits, options, text):
    defaults = {"batch_size": 8, "seed": 0, "shuffle_window": 50}
    with pytest.raises(ValueError, match=text):
        train_dataset(digits, preprocessing=PREPROCESSING, **{**defaults, **options})

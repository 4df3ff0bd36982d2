"""Features of a data set: every family, every strategy and batch size, sorted by id; the cache."""

import os
import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf

import vit_tf
from pipelines.data import progress_lines
from pipelines.data.bad_images import BadImages
from pipelines.data.sources.arrays import ArraySource, EncodedSource
from pipelines.data.sources.open import open_source
from pipelines.errors import DataError, Interrupted, UserError
from pipelines.evaluation import feature_cache
from pipelines.evaluation.evaluation_step import EvaluationData
from pipelines.evaluation.feature_cache import cached_features, fingerprint, model_digest
from pipelines.evaluation.features import FeatureExtractor, Features
from pipelines.evaluation.few_shot import few_shot_grid
from pipelines.stored_models import model_source
from tests.pipelines.tiny import one_device, two_replicas
from tests.vit_tf import tiny
from vit_tf.images.decoding import decode_image

SIZE = (16, 16)


def data(source, batch_size=16, image_size=SIZE, bad_images=None):
    preprocessing = vit_tf.Preprocessing(image_size=image_size)
    return EvaluationData(
        source=source,
        preprocessing=preprocessing,
        batch_size=batch_size,
        bad_images=bad_images,
    )


def means(images):
    return tf.reduce_mean(images, axis=[1, 2])


def part(features, rows):
    return Features(*(getattr(features, name)[rows] for name in ("values", "labels", "ids")))


@pytest.fixture(scope="module")
def expected():
    """The features of the first 50 digits, in a plain loop."""
    model, preprocessing, _ = model_source.find("shipped").open_model()
    rows = open_source("digits", "train[:50]").read(range(50))
    images = tf.stack([preprocessing(decode_image(image)) for image in rows.images])
    return Features(model.features(images).numpy(), rows.labels, rows.ids)


@pytest.mark.parametrize(("make", "batch_size"), [(one_device, 64), (two_replicas, 7)])
def test_strategies_and_batch_sizes_give_the_same(expected, make, batch_size):
    """Also the accuracies that follow from the features."""
    strategy, source = make(), open_source("digits", "train[30:50]+train[:30]")
    with strategy.scope():
        model = model_source.find("shipped").open_model().model
    images = data(source, batch_size)
    received = FeatureExtractor(model.features, strategy, images).run()
    np.testing.assert_array_equal(received.ids, np.arange(50))
    np.testing.assert_array_equal(received.labels, expected.labels)
    np.testing.assert_allclose(received.values, expected.values, rtol=0, atol=1e-5)
    accuracies, wanted = (
        few_shot_grid(part(x, slice(30)), part(x, slice(30, 50)), 10, [1, 4], [1, 1024], [0, 1])
        for x in (received, expected)
    )
    np.testing.assert_array_equal(accuracies, wanted)


def test_rows_are_sorted_by_id_whatever_the_stored_order():
    images = np.random.default_rng(0).integers(0, 256, (9, 16, 16, 3), np.uint8)
    source = ArraySource(images, np.arange(9) % 3)
    assert not np.array_equal(source.read(range(9)).ids, np.arange(9))
    received = FeatureExtractor(means, one_device(), data(source)).run()
    wanted = images.mean(axis=(1, 2)) / 127.5 - 1
    np.testing.assert_allclose(received.values, wanted, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(received.labels, np.arange(9) % 3)


def test_features_are_traced_once_and_see_new_weights():
    """float16 values become float32."""
    strategy, traced = two_replicas(), []
    with strategy.scope():
        factor = keras.Variable(1.0)

    def mean(images):
        traced.append(images.shape)
        return tf.cast(factor * tf.reduce_mean(images, axis=[1, 2]), tf.float16)

    extractor = FeatureExtractor(mean, strategy, data(open_source("digits", "test[:20]"), 8))
    first = extractor.run()
    assert len(traced) == strategy.num_replicas_in_sync == 2
    with strategy.scope():
        factor.assign(2.0)
    second = extractor.run()
    assert len(traced) == 2
    assert second.values.dtype == np.float32 and np.abs(first.values).max() > 0.1
    np.testing.assert_allclose(second.values, 2 * first.values, rtol=2e-3)


FAMILIES = {
    "ViT": tiny.config(),
    "axial hybrid": tiny.config(
        stem={"stage_depths": (1,), "width": 0.5},
        image_size=(16, 24),
        patch_size=1,
        layers=1,
        **tiny.AXIAL,
    ),
    "BiT": vit_tf.ResNetConfig(stage_depths=(1,), width=0.5, image_size=16),
    "AxialResNet": vit_tf.AxialResNetConfig(stage_depths=(1,), width=0.125, heads=2, image_size=16),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_features(family):
    config = FAMILIES[family].replace(num_classes=0)
    model = vit_tf.create_model(config, dtype="mixed_bfloat16")
    tiny.randomize(model)
    source = data(open_source("digits", "test[:9]"), 4, config.image_size)
    received = FeatureExtractor(model.features, one_device(), source).run()
    assert received.values.dtype == np.float32 and received.values.shape[0] == 9
    assert np.ptp(received.values, axis=0).max() > 1e-3
    images = tf.stack(
        [source.preprocessing(decode_image(image)) for image in source.source.read(range(9)).images]
    )
    # Without a head, the model returns what the head would read.
    wanted = tf.cast(model(images), tf.float32).numpy()
    error = 0.05 * np.abs(wanted).max()
    np.testing.assert_allclose(received.values, wanted, rtol=0, atol=error)


def damaged():
    """Nine black images, of which the image 3 cannot be decoded."""
    black = ArraySource(np.zeros((9, 16, 16, 3), np.uint8), np.arange(9) % 3)
    images, labels, ids = black.read(np.argsort(black.ids(range(9))))
    images[ids == 3] = b"no image"
    names = {"name": "black", "version": "1", "split": "train"}
    return EncodedSource(images, labels, black.labels, **names)


def test_images_that_cannot_be_read(logged):
    skipping = data(damaged(), bad_images=BadImages())
    received = FeatureExtractor(means, one_device(), skipping).run()
    np.testing.assert_array_equal(received.ids, [0, 1, 2, 4, 5, 6, 7, 8])
    np.testing.assert_array_equal(received.values, np.full((8, 3), -1.0))
    assert len(logged) == 1 and "left out train example 3" in logged[0]
    with pytest.raises(DataError, match="train example 3 .*decoded"):
        FeatureExtractor(means, one_device(), data(damaged())).run()


def test_models_without_features_are_refused():
    images = np.zeros((3, 16, 16, 3), np.uint8)
    lists = data(ArraySource(images, [[0], [0, 1], []]))
    with pytest.raises(UserError, match="lists of labels"):
        FeatureExtractor(means, one_device(), lists)
    source = data(ArraySource(images, [0, 1, 0]))
    with pytest.raises(UserError, match=r"\[b, F\].*unpooled"):
        FeatureExtractor(lambda x: x[:, 0], one_device(), source).run()


def test_progress_and_signals(monkeypatch, logged):
    monkeypatch.setattr(progress_lines, "_LINE_EVERY", 0.0)
    checks = []

    class Signals:
        def check(self):
            checks.append(len(logged))
            if len(checks) == 5:
                raise Interrupted("SIGTERM")

    source = data(open_source("digits", "test[:100]"), 32)
    extractor = FeatureExtractor(means, one_device(), source, Signals())
    extractor.run()
    assert len(checks) == 4
    start = f"computing the features of {source.source}: "
    assert len(logged) == 2 and logged[0].startswith(f"{start}64 of 100, ")
    assert "96 of 100, " in logged[1] and logged[1].endswith(" a second, ETA 0:00:00")
    with pytest.raises(Interrupted):
        extractor.run()


def test_the_digest_depends_on_all_that_features_depend_on():
    prepare = vit_tf.Preprocessing(image_size=tiny.FIELDS["image_size"])
    model = tiny.model()
    digest = model_digest(model, prepare)
    same = [
        model_digest(tiny.model(), prepare),
        model_digest(model, vit_tf.Preprocessing(image_size=prepare.image_size)),
    ]
    assert set(same) == {digest}
    changed = vit_tf.Preprocessing(image_size=prepare.image_size, antialias=True)
    others = [
        model_digest(model, changed),
        model_digest(tiny.model(dtype="mixed_bfloat16"), prepare),
        model_digest(tiny.model(activation="gelu_erf"), prepare),
        model_digest(tiny.model(seed=1), prepare),
    ]
    variable = model.weights[-1]
    variable.assign(np.nextafter(variable.numpy(), np.float32(9)))
    others.append(model_digest(model, prepare))
    source, part = (open_source("digits", split) for split in ("test", "test[:9]"))
    keys = [fingerprint(digest, source, "stop"), fingerprint(digest, source, "skip")]
    keys += [fingerprint(digest, part, "stop"), fingerprint(others[0], source, "stop")]
    assert len({digest, *others, *keys}) == 1 + len(others) + len(keys)
    assert fingerprint(digest, open_source("digits", "test"), "stop") == keys[0]
    # Only the pixels of these sources differ.
    black, white = (ArraySource(np.full((2, 4, 4, 3), x, np.uint8), [0, 1]) for x in (0, 255))
    assert black.manifest() == white.manifest()
    assert fingerprint(digest, black, "stop") != fingerprint(digest, white, "stop")


class Cache:
    """A cache of random features of the first nine digits, and what it logs."""

    def __init__(self, folder, lines, source=None):
        self.folder, self.lines = folder, lines
        self.source = source or open_source("digits", "test[:9]")
        rows, rng = self.source.read(range(9)), np.random.default_rng(0)
        order = np.argsort(rows.ids)
        self.good = Features(
            rng.normal(size=(9, 4)).astype(np.float32), rows.labels[order], rows.ids[order]
        )
        self.key = fingerprint("0" * 64, self.source, "stop")
        self.path = folder / f"features-{self.key}.npz"
        self.computed = 0

    def extract(self):
        self.computed += 1
        return self.good

    def get(self):
        arguments = (self.key, self.source, self.extract)
        received = cached_features(self.folder, *arguments)
        for name in ("values", "labels", "ids"):
            wanted, value = getattr(self.good, name), getattr(received, name)
            assert value.dtype == wanted.dtype
            np.testing.assert_array_equal(value, wanted)

    def arrays(self, **changes):
        names = ("values", "labels", "ids")
        stored = {name: getattr(self.good, name) for name in names}
        return stored | {"fingerprint": np.array(self.key)} | changes


def test_the_cache_is_used(tmp_path, logged):
    cache = Cache(tmp_path, logged)
    cache.get()
    assert cache.computed == 1 and cache.lines == []
    cache.get()
    assert cache.computed == 1 and os.listdir(tmp_path) == [cache.path.name]
    assert cache.lines == [f"features of {cache.source}: from {cache.path}"]


def with_member(cache, name, array):
    """The bytes of the good file with one more member; NumPy prefers `values` to `values.npy`."""
    with zipfile.ZipFile(cache.path, "a") as file, file.open(name, "w") as member:
        np.save(member, array)
    return cache.path.read_bytes()


def test_arrays_are_checked_again_after_they_are_read(tmp_path, monkeypatch, logged):
    cache = Cache(tmp_path, logged)
    cache.get()
    archive = feature_cache.NpzArchive(cache.path)
    archive.close()
    np.savez(cache.path, **cache.arrays(values=cache.good.values.astype(np.float64)))
    monkeypatch.setattr(feature_cache, "NpzArchive", lambda path: archive)
    cache.get()
    assert cache.computed == 2 and "its values changed while it was read" in cache.lines[0]


def test_a_part_of_a_list_of_files(tmp_path, logged):
    """Its ids are not consecutive, and labels in memory are compared one by one."""
    rows = [f"{i}.png,{'ab'[i % 2]}" for i in range(18)]
    for i in range(18):
        (tmp_path / f"{i}.png").touch()
    (tmp_path / "list.csv").write_text("\n".join(["path,label", *rows]))
    source = open_source("list:list.csv", "train[:50%]", tmp_path)
    cache = Cache(tmp_path, logged, source)
    assert np.ptp(cache.good.ids) > 9
    cache.get()
    cache.get()
    assert cache.computed == 1
    np.savez(cache.path, **cache.arrays(labels=1 - cache.good.labels))
    cache.get()
    assert cache.computed == 2 and "its labels are not those of list:" in cache.lines[-1]


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda c: b"", "not a readable .npz"),
        (lambda c: c.path.read_bytes()[:300], "not a readable .npz"),
        (lambda c: c.path.read_bytes().replace(c.good.values.tobytes(), bytes(144)), "CRC"),
        (lambda c: c.arrays(fingerprint=np.array("0" * 64)), "its fingerprint is another one"),
        (lambda c: c.arrays(values=c.good.values.astype(np.float64)), "values float64"),
        (lambda c: c.arrays(more=np.zeros(3)), "more float64"),
        (lambda c: with_member(c, "values", np.zeros((9, 4))), "files besides its four arrays"),
        (lambda c: with_member(c, "note.txt", np.zeros(1)), "files besides its four arrays"),
        (lambda c: c.arrays(ids=c.good.ids[:8]), "arrays of the shapes"),
        (lambda c: c.arrays(values=c.good.values[0]), "arrays of the shapes"),
        (lambda c: c.arrays(ids=c.good.ids[::-1]), "its ids are not those of"),
        (lambda c: c.arrays(ids=c.good.ids + 1), "its ids are not those of"),
        (lambda c: c.arrays(labels=c.good.labels + 9), "its labels are not those of"),
        (lambda c: c.arrays(values=np.array([None] * 9)), "values object"),
        (lambda c: c.arrays(**{n: np.repeat(a, 2, 0) for n, a in c.columns()}), "of the shapes"),
        ("bomb", "its arrays are larger than the file"),
    ],
)
def test_a_damaged_cache_is_computed_again(tmp_path, damage, text, logged):
    cache = Cache(tmp_path, logged)
    cache.columns = lambda: [(n, a) for n, a in cache.arrays().items() if n != "fingerprint"]
    cache.get()
    content = cache.arrays(values=np.zeros((9, 10_000), np.float32))
    if damage == "bomb":
        np.savez_compressed(cache.path, allow_pickle=False, **content)
        with zipfile.ZipFile(cache.path) as file:
            assert file.getinfo("values.npy").file_size > 10 * os.path.getsize(cache.path)
    else:
        content = damage(cache)
        if isinstance(content, bytes):
            cache.path.write_bytes(content)
        else:
            np.savez(cache.path, **content)
    cache.get()
    assert cache.computed == 2 and len(cache.lines) == 1
    assert "\n" not in cache.lines[0] and "is damaged and computed again" in cache.lines[0]
    assert text in cache.lines[0]
    cache.get()
    assert cache.computed == 2


def test_a_full_disk_leaves_no_file(tmp_path, monkeypatch, logged):
    cache = Cache(tmp_path, logged)

    def fail(file, **arrays):
        file.write(b"PK")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(feature_cache.np, "savez", fail)
    with pytest.raises(OSError, match="No space"):
        cache.get()
    assert os.listdir(tmp_path) == []

"""Every kind of source gives the same batches on any number of hosts and after a restart."""

import csv
import json
import os
import shutil

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from pipelines.config import Data
from pipelines.data import bad_images, pipeline
from pipelines.data.sources import record_writer
from pipelines.data.sources.arrays import ArraySource
from pipelines.data.sources.open import choose_splits, open_source, split_names
from pipelines.data.sources.subset import choose_subset
from tests.pipelines.data.batches import assert_equal, join, to_numpy, train_dataset
from tests.pipelines.encoded import encode, pixels
from vit_tf.images.decoding import decode_image
from vit_tf.preprocessing import Preprocessing

COUNT = 150
PREPROCESSING = Preprocessing(image_size=(8, 8))
KINDS = ("folder", "list", "tfrecord", "arrays")


# Labels of the images of multi-label sources.
LISTS = [[0], [2, 1], [], [0, 1, 3], [3], [], [1]]
NAMES = ("cat", "dog", "eel", "outdoor")


class Tagged(tfds.core.GeneratorBasedBuilder):
    """Image `i` has the color `10 i` and the labels `LISTS[i]`."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(shape=(8, 8, 3), encoding_format="png"),
                    "other": tfds.features.Sequence(tfds.features.ClassLabel(num_classes=2)),
                    "labels": tfds.features.Sequence(tfds.features.ClassLabel(names=NAMES)),
                }
            ),
        )

    def _split_generators(self, dl_manager):
        del dl_manager
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        for i, labels in enumerate(LISTS):
            image = np.full([8, 8, 3], 10 * i, np.uint8)
            yield i, {"image": image, "other": [1], "labels": labels}


@pytest.fixture(scope="module")
def tagged(tmp_path_factory):
    """Kind -> a multi-label source with these images."""
    root = tmp_path_factory.mktemp("tagged")
    rows = []
    for i, labels in enumerate(LISTS):
        (root / f"{i}.png").write_bytes(encode(np.full([8, 8, 3], 10 * i, np.uint8), "PNG"))
        rows.append({"path": f"{i}.png", "labels": [NAMES[label] for label in labels]})
    (root / "list.jsonl").write_text("\n".join(map(json.dumps, rows)))
    fields = [f"{row['path']},{' | '.join(row['labels'])}" for row in rows]
    (root / "list.csv").write_text("\n".join(["path,labels", *fields]))
    tfds.builder("tagged", data_dir=root).download_and_prepare()
    names = {"csv": "list:list.csv", "jsonl": "list:list.jsonl", "tfds": "tagged"}
    found = {kind: open_source(name, "train", root) for kind, name in names.items()}
    record_writer.write_records(
        {"train": found["jsonl"]}, root / "records", shards=2, bad_images="stop"
    )
    images = np.stack([np.full([8, 8, 3], 10 * i, np.uint8) for i in range(len(LISTS))])
    found["tfrecord"] = open_source("tfrecord:records", "train", root)
    return {**found, "arrays": ArraySource(images, LISTS, NAMES)}


def multi_hot(batch):
    """The labels of each image of a batch of tagged images, from the color of the image."""
    numbers = np.round((batch["image"][:, 0, 0, 0] * 127.5 + 127.5) / 10).astype(int)
    return np.stack([np.isin(np.arange(4), LISTS[number]) for number in numbers])


@pytest.mark.parametrize("kind", ["csv", "jsonl", "tfds", "tfrecord", "arrays"])
def test_lists_of_labels(kind, tagged):
    source = tagged[kind]
    assert (source.multi_label, source.labels, source.num_examples) == (True, NAMES, len(LISTS))
    assert source.manifest()["multi_label"] is True
    examples = source.read([5, 6, *range(5)])
    found = {
        int(decode_image(image)[0, 0, 0]) // 10: labels.tolist()
        for image, labels in zip(examples.images, examples.labels, strict=True)
    }
    assert {i: sorted(labels) for i, labels in found.items()} == dict(enumerate(map(sorted, LISTS)))
    assert {labels.dtype for labels in examples.labels} == {np.dtype(np.int32)}

    first, last = to_numpy(pipeline.eval_dataset(source, batch_size=4, preprocessing=PREPROCESSING))
    assert last["weight"].tolist() == [1, 1, 1, 0] and not last["label"][3].any()
    for batch in (first, {key: column[:3] for key, column in last.items()}):
        assert batch["label"].dtype == np.float32
        np.testing.assert_array_equal(batch["label"], multi_hot(batch))


def test_lists_of_labels_are_mixed_on_any_number_of_replicas(tagged):
    options = {"batch_size": 4, "preprocessing": PREPROCESSING, "seed": 3, "shuffle_window": 5}
    options |= {"crop": "none", "skips_bad_images": True}
    for batch in to_numpy(train_dataset(tagged["tfrecord"], **options).take(3)):
        np.testing.assert_array_equal(batch["label"], multi_hot(batch))
    options["mixup"] = 0.5
    whole = to_numpy(train_dataset(tagged["csv"], **options).take(3))
    context = tf.distribute.InputContext(1, 0, 2)
    parts = to_numpy(train_dataset(tagged["csv"], input_context=context, **options).take(6))
    assert_equal(join([parts[::2], parts[1::2]]), whole)
    assert any(((batch["label"] > 0) & (batch["label"] < 1)).any() for batch in whole)


@pytest.fixture(scope="module")
def originals():
    """The examples of every source, as encoded images, labels and ids."""
    return open_source("digits", "train").read(range(COUNT))


@pytest.fixture(scope="module")
def sources(originals, tmp_path_factory):
    """Kind -> a source of this kind with the same images, opened at `COUNT` examples."""
    root = tmp_path_factory.mktemp("kinds")
    rows = [("path", "label")]
    for i, (image, label) in enumerate(zip(originals.images, originals.labels, strict=True)):
        path = f"folder/{label}/{i:03}.png"
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(image)
        rows.append((path, label))
    with open(root / "list.csv", "w", newline="") as file:
        csv.writer(file).writerows(rows)
    record_writer.write_records(
        {"train": open_source("digits", f"train[:{COUNT}]")},
        root / "tfrecord",
        shards=3,
        bad_images="stop",
    )
    pixels = [decode_image(image) for image in originals.images]
    names = {"folder": "folder:folder", "list": "list:list.csv", "tfrecord": "tfrecord:tfrecord"}
    found = {kind: open_source(name, "train", root) for kind, name in names.items()}
    digits = open_source("digits", "train").labels
    return {**found, "arrays": ArraySource(np.stack(pixels), originals.labels, digits)}


@pytest.fixture(scope="module", params=KINDS)
def source(request, sources):
    return sources[request.param]


def _train(source, count, **options):
    dataset = train_dataset(
        source, batch_size=16, preprocessing=PREPROCESSING, seed=3, shuffle_window=40, **options
    )
    return to_numpy(dataset.take(count))


@pytest.fixture(scope="module")
def whole(source):
    """The batches of more than an epoch."""
    return _train(source, 13)


def test_all_kinds_hold_the_same_examples(source, originals):
    assert (source.num_examples, source.num_classes) == (COUNT, 10)
    assert source.labels == tuple("0123456789")
    assert sum(source.shard_lengths) == COUNT
    examples = source.read(range(COUNT))
    np.testing.assert_array_equal(np.sort(examples.ids), np.arange(COUNT))
    held = {
        (decode_image(image).numpy().tobytes(), int(label))
        for image, label in zip(examples.images, examples.labels, strict=True)
    }
    assert held == {
        (decode_image(image).numpy().tobytes(), int(label))
        for image, label in zip(originals.images, originals.labels, strict=True)
    }
    rows = [*range(140, 150), 3, 4, 60]
    for column, whole in zip(source.read(rows), examples, strict=True):
        np.testing.assert_array_equal(column, whole[rows])
        assert column.dtype == whole.dtype


def test_the_content_stamp_changes_with_the_content(sources, tmp_path):
    """Also if no name, label or number of examples changes."""
    root = os.path.dirname(sources["folder"].name.partition(":")[2])
    shutil.copytree(root, tmp_path / "data")
    files = {"folder": "folder/3/*", "list": "folder/3/*", "tfrecord": "tfrecord/train-*"}
    for kind, pattern in files.items():

        def stamps(name=f"{kind}:{kind}" + (".csv" if kind == "list" else "")):
            source = open_source(name, "train", tmp_path / "data")
            return json.dumps(source.manifest()), source.content_stamp()

        manifest, stamp = stamps()
        assert stamps() == (manifest, stamp)
        file = next((tmp_path / "data").glob(pattern))
        time = file.stat().st_mtime_ns
        os.utime(file, ns=(time, time + 1))
        later = stamps()
        assert later[0] == manifest and later[1] != stamp
        with open(file, "ab") as end:
            end.write(b" ")
        os.utime(file, ns=(time, time))
        longer = stamps()
        assert longer[0] == manifest and longer[1] not in (stamp, later[1])
    images, labels = np.zeros((3, 2, 2, 3), np.uint8), [0, 1, 0]
    changed = images.copy()
    changed[2, 1, 1, 0] = 1
    pairs = [(images, labels), (images.copy(), labels), (changed, labels)]
    pairs += [(images, [1, 0, 1]), (images, [[0], [1], [0]])]
    stamps = [ArraySource(*pair).content_stamp() for pair in pairs]
    assert stamps[0] == stamps[1] and len(set(stamps)) == 4


def test_hosts_see_the_same_batches(source, whole):
    parts = []
    for host in range(2):
        context = tf.distribute.InputContext(2, host, 2)
        parts.append(_train(source, 4, input_context=context))
    assert_equal(join(parts), whole[:4])


def test_resume_continues_bitwise(source, whole):
    for start in (1, 10):  # in the first and in the second epoch
        assert_equal(_train(source, 2, start_step=start), whole[start : start + 2])


def test_evaluation_counts_every_example_once(source):
    dataset = pipeline.eval_dataset(source, batch_size=32, preprocessing=PREPROCESSING)
    batches = to_numpy(dataset)
    ids = np.concatenate([batch["id"] for batch in batches])
    weights = np.concatenate([batch["weight"] for batch in batches])
    np.testing.assert_array_equal(np.sort(ids[weights == 1]), np.arange(COUNT))
    assert (ids[weights == 0] == -1).all()


@pytest.mark.parametrize("kind", [*KINDS, "tfds"])
def test_a_part_has_the_same_ids_and_examples(kind, sources, originals):
    """The ids of a folder are in the order of its classes; elsewhere an id is one image."""
    tfds_source = open_source("digits", f"train[:{COUNT}]")
    source = tfds_source if kind == "tfds" else sources[kind]
    whole = source.read(range(COUNT))
    np.testing.assert_array_equal(source.ids(range(COUNT)), whole.ids)
    np.testing.assert_array_equal(
        source.read_labels([*range(9, 20), 3]), whole.labels[[*range(9, 20), 3]]
    )
    for rule in ({"fraction": 0.2}, {"per_class": 3, "subset_seed": 4}):
        data = Data(name=source.name, **rule)
        part = choose_subset(data, source)
        assert part.num_examples == 30 == sum(part.shard_lengths)
        images, labels, ids = part.read(range(30))
        rows = np.isin(whole.ids, ids)
        for column, expected in zip((images, labels, ids), whole, strict=True):
            np.testing.assert_array_equal(column, expected[rows])
        if "per_class" in rule:
            assert np.bincount(labels).tolist() == [3] * 10
        if kind != "folder" or "fraction" in rule:
            expected = choose_subset(data, tfds_source)
            np.testing.assert_array_equal(np.sort(ids), expected.ids(range(30)))
        if kind != "folder":
            np.testing.assert_array_equal(labels, originals.labels[ids])


@pytest.mark.parametrize("kind", ["folder", "list", "tfrecord"])
def test_opened_again_it_is_the_same(kind, sources):
    source = sources[kind]
    again = open_source(source.name, source.split)
    assert again.manifest() == source.manifest()
    for column, other in zip(again.read(range(20)), source.read(range(20)), strict=True):
        np.testing.assert_array_equal(column, other)


@pytest.mark.parametrize("kind", ["folder", "list", "tfrecord"])
def test_a_split_that_is_there_alone_is_divided(kind, sources, logged):
    """The two splits are disjoint and both have all classes; one log line reports the division."""
    source = sources[kind]
    assert split_names(source.name) == ("train",)
    data = choose_splits(Data(name=source.name))
    assert (data.train_split, data.eval_split) == ("train[:90%]", "train[90%:]")
    takes = "training takes train[:90%], evaluation takes train[90%:]"
    assert logged == [f"{source.name} has the split train: {takes}"]
    counts, ids = (135, 15), []
    for split, count in zip((data.train_split, data.eval_split), counts, strict=True):
        part = open_source(source.name, split)
        ids += part.read(range(count)).ids.tolist()
        assert part.num_examples == count and part.num_classes == 10
    assert sorted(ids) == list(range(COUNT))


@pytest.mark.parametrize("kind", ["folder", "list", "tfrecord"])
def test_bad_image_is_named(kind, sources, originals, tmp_path, monkeypatch):
    """A text file with the suffix of an image stops training with an error that names it."""
    # Records of other programs may hold any bytes; our writer checks images.
    monkeypatch.setattr(
        record_writer, "decoded_sizes", lambda images: (None, tf.fill([len(images)], True))
    )
    records = [
        b"not an image" if i == 7 else image for i, image in enumerate(originals.images[:12])
    ]
    rows = ["path,label"]
    (tmp_path / "root").mkdir()
    for i, image in enumerate(records):
        path = tmp_path / "root" / f"c{i % 2}" / f"{i:02}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(image)
        rows.append(f"{path},{i % 2}")
    (tmp_path / "list.csv").write_text("\n".join(rows))
    source = open_source(f"folder:{tmp_path}/root", "train")
    record_writer.write_records(
        {"train": source}, tmp_path / "records", shards=1, bad_images="stop"
    )
    names = {
        "folder": (f"folder:{tmp_path}/root", "c1/07.jpg of folder"),
        "list": (f"list:{tmp_path}/list.csv", "(line 9)"),
        "tfrecord": (f"tfrecord:{tmp_path}/records", "records/train-00000-of-00001.tfrecord"),
    }
    name, text = names[kind]
    source = open_source(name, "train")
    with pytest.raises(tf.errors.InvalidArgumentError, match="It is not a JPEG"):
        list(pipeline.eval_dataset(source, batch_size=4, preprocessing=PREPROCESSING))
    problem = str(next(bad_images.find_bad_images(source, range(12))).error())
    assert text in problem
    assert "cannot be decoded" in problem


def test_file_that_is_gone_is_named(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.png").write_bytes(encode(pixels(5, 6), "PNG"))
    source = open_source(f"folder:{tmp_path}", "train")
    assert not [*bad_images.find_bad_images(source, range(2))]
    (tmp_path / "b" / "1.png").unlink()
    problem = str(next(bad_images.find_bad_images(source, range(2))).error())
    assert f"b/1.png of folder:{tmp_path} (id 1) cannot be decoded: it is empty" in problem


def test_every_format_is_decoded(tmp_path):
    """Files written by Pillow, with each suffix in some letter case."""
    formats = {
        "jpg": ("JPEG", {"quality": 95}),
        "JPEG": ("JPEG", {"quality": 95}),
        "Png": ("PNG", {}),
        "webp": ("WEBP", {"lossless": True}),
        "BMP": ("BMP", {}),
        "gif": ("GIF", {}),
    }
    colors = {}
    for i, (suffix, (file_format, options)) in enumerate(formats.items()):
        image = np.full((20 + i, 30, 3), [40 * i, 200, 255 - 40 * i], np.uint8)
        path = tmp_path / f"class {i % 2}" / f"{i}.{suffix}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(encode(image, file_format, **options))
        colors[f"class {i % 2}/{i}.{suffix}"] = image[0, 0]
    source = open_source(f"folder:{tmp_path}", "train")
    dataset = pipeline.eval_dataset(source, batch_size=6, preprocessing=PREPROCESSING)
    (batch,) = to_numpy(dataset)
    found = {
        source.describe(int(example_id)).partition(" of ")[0]: image[0, 0] * 127.5 + 127.5
        for image, example_id in zip(batch["image"], batch["id"], strict=True)
    }
    assert found.keys() == colors.keys()
    for path, color in colors.items():
        np.testing.assert_allclose(found[path], color, atol=4, err_msg=path)

"""TFDS sources: ranges and stable ids of splits, mocks of TFDS, memory, and clear errors."""

import io
import json

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from PIL import Image

from pipelines.data.builtin import digits
from pipelines.data.sources import open as open_module
from pipelines.data.sources import tfds_catalog, tfds_features
from pipelines.data.sources.open import open_source
from pipelines.errors import DataError
from pipelines.training.train_data import open_few_shot_data
from tests.pipelines.data import true_features
from tests.pipelines.process import assert_user_error
from tests.pipelines.tiny import as_flags, tiny_experiment


class Shards(tfds.core.GeneratorBasedBuilder):
    """120 gray images whose first pixel is the example's key, shuffled into files of 40."""

    VERSION = tfds.core.Version("2.0.0")
    url_infos = None

    def _info(self):
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict(
                {
                    "photo": tfds.features.Image(shape=(4, 4, 1), encoding_format="png"),
                    "class": tfds.features.ClassLabel(num_classes=3),
                    "note": tfds.features.Text(),
                }
            ),
        )

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(0), "unlabeled": self._generate_examples(-1)}

    def _generate_examples(self, sign):
        for key in range(120):
            image = np.full((4, 4, 1), key, np.uint8)
            yield key, {"photo": image, "class": -1 if sign else key % 3, "note": "not read"}


@pytest.fixture(scope="module")
def sharded_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("sharded")
    tfds.disable_progress_bar()
    config = tfds.download.DownloadConfig(num_shards=3)
    tfds.builder("shards", data_dir=path).download_and_prepare(download_config=config)
    return path


class ManyLabels(tfds.core.GeneratorBasedBuilder):
    """60 images whose first pixel is the key, with two class labels and a list of class labels."""

    VERSION = tfds.core.Version("1.0.0")
    url_infos = None

    def _info(self):
        names = tfds.features.ClassLabel
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(shape=(4, 4, 1), encoding_format="png"),
                    "fine": names(names=["a", "b", "c", "d"]),
                    "coarse": names(names=["x", "y"]),
                    "tags": tfds.features.Sequence(names(names=["p", "q", "r"])),
                    "note": tfds.features.Text(),
                }
            ),
            supervised_keys=("image", "fine"),
        )

    def _split_generators(self, dl_manager):
        return {name: self._generate_examples() for name in ("train", "test")}

    def _generate_examples(self):
        for key in range(60):
            labels = {"fine": key % 4, "coarse": key % 2, "tags": [key % 3]}
            yield key, {"image": np.full((4, 4, 1), key, np.uint8), "note": "no label", **labels}


@pytest.fixture(scope="module")
def labels_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("labels")
    tfds.disable_progress_bar()
    tfds.builder("many_labels", data_dir=path).download_and_prepare()
    return path


@pytest.fixture(scope="module")
def stored_keys(sharded_dir):
    """The key of each stored example, read file by file without TFDS."""
    files = sorted(sharded_dir.rglob("shards-train.tfrecord*"))
    records = tf.data.TFRecordDataset(files).as_numpy_iterator()
    features = [tf.train.Example.FromString(record).features.feature for record in records]
    return np.array([_key(feature["photo"].bytes_list.value[0]) for feature in features])


def _key(image):
    return int(np.asarray(Image.open(io.BytesIO(image))).flat[0])


def _keys(examples):
    return [_key(image) for image in examples.images]


@pytest.mark.parametrize(
    ("split", "expected_ids", "shard_lengths"),
    [
        ("train", range(120), (40, 40, 40)),
        ("train[:90%]", range(108), (40, 40, 28)),
        ("train[35:45]", range(35, 45), (5, 5)),
        ("train[-3:]", range(117, 120), (3,)),
        ("train[100:]+train[:10]", [*range(100, 120), *range(10)], (20, 10)),
        ("train[1shard:2shard]", range(40, 80), (40,)),
        # A range of a range, which TFDS does not have.
        ("train[90%:][:5]", range(108, 113), (5,)),
        ("train[30:90][-20:][50%:]", range(80, 90), (10,)),
        ("train[:2] + train[90%:][:1]+train[-1:]", [0, 1, 108, 119], (2, 1, 1)),
    ],
)
def test_splits_and_ids(sharded_dir, stored_keys, split, expected_ids, shard_lengths):
    source = open_source("shards", split, sharded_dir)
    expected_ids = list(expected_ids)
    assert source.num_examples == len(expected_ids)
    assert source.shard_lengths == shard_lengths
    everything = source.read(range(source.num_examples))
    assert everything.ids.tolist() == expected_ids
    assert everything.ids.dtype == np.int64
    assert _keys(everything) == stored_keys[expected_ids].tolist()
    assert everything.labels.tolist() == (stored_keys[expected_ids] % 3).tolist()
    assert everything.labels.dtype == np.int32


def test_read_keeps_the_order_of_ranges(sharded_dir, stored_keys):
    source = open_source("shards", "train[10:]", sharded_dir)
    examples = source.read([*range(100, 110), 3, 4, *range(25, 72)])
    assert examples.ids.tolist() == [*range(110, 120), 13, 14, *range(35, 82)]
    assert _keys(examples) == stored_keys[examples.ids].tolist()


def test_other_files_than_tfrecord_are_refused(sharded_dir, monkeypatch):
    formats = tfds.core.FileFormat
    monkeypatch.setattr(tfds.core.DatasetInfo, "file_format", formats.ARRAY_RECORD)
    with pytest.raises(DataError, match="stored as array_record.*--file_format=tfrecord"):
        open_source("shards", "train", sharded_dir)


def test_union_counts_ids_on():
    source = open_source("digits", "test[290:]+validation+test[:1]")
    examples = source.read(range(source.num_examples))
    assert examples.ids.tolist() == [*range(290, 300), *range(300, 500), 0]
    assert source.describe(295) == "test example 295 of digits/all:1.0.0"
    assert source.describe(303) == "validation example 3 of digits/all:1.0.0"


def test_digits_source():
    source = open_source("digits/low", "validation")
    assert (source.name, source.version, source.split) == ("digits/low", "1.0.0", "validation")
    assert (source.num_examples, source.num_classes) == (100, 5)
    assert source.labels == ("0", "1", "2", "3", "4")
    images = [tf.io.decode_png(image)[..., 0] for image in source.read(range(100)).images]
    pixels, _ = digits._load()
    np.testing.assert_array_equal(images, pixels[digits.split_indices("validation", range(5))])


def test_manifest_is_json():
    manifest = open_source("digits", "train[:50%]").manifest()
    assert json.loads(json.dumps(manifest)) == manifest
    assert manifest["data_set"] == "digits/all"
    assert manifest["num_examples"] == 648
    assert manifest["labels"][9] == "9"
    assert manifest["parts"] == [{"split": "train", "start": 0, "stop": 648, "first_id": 0}]


@pytest.mark.parametrize(
    ("name", "split", "classes", "magic"),
    [
        ("cifar10", "train", 10, b"\x89PNG"),
        ("cifar10", "test[:50%]", 10, b"\x89PNG"),
        ("imagenet2012", "validation", 1000, b"\xff\xd8\xff"),
        ("imagenet_v2", "test", 1000, b"\xff\xd8\xff"),
        ("oxford_iiit_pet", "train", 37, b"\xff\xd8\xff"),
        ("mnist", "train", 10, b"\x89PNG"),
    ],
)
def test_any_tfds_name(name, split, classes, magic):
    with tfds.testing.mock_data(num_examples=7):
        source = open_source(name, split)
        assert (source.num_examples, source.num_classes) == (7, classes)
        assert len(source.labels) == classes
        examples = source.read(range(2, 5))
        assert examples.ids.tolist() == [2, 3, 4]
        assert all(image.startswith(magic) for image in examples.images)


@pytest.fixture
def said_anew():
    tfds_features._log_once.cache_clear()


def test_the_usual_label_is_the_supervised_one_and_is_logged_once(labels_dir, logged, said_anew):
    for split in ("train[:30]", "train[30:]"):
        source = open_source("many_labels", split, labels_dir)
        assert source.labels == ("a", "b", "c", "d")
    line = "many_labels: the label is fine. Others for data.label: coarse, tags"
    assert logged == [line]
    open_source("digits", "test")
    assert logged == [line]


@pytest.mark.parametrize(
    ("label", "names", "expected"),
    [
        ("fine", ("a", "b", "c", "d"), lambda keys: keys % 4),
        ("coarse", ("x", "y"), lambda keys: keys % 2),
    ],
)
def test_a_chosen_label(labels_dir, logged, said_anew, label, names, expected):
    source = open_source("many_labels", "train", labels_dir, label)
    examples = source.read(range(60))
    assert (source.labels, source.multi_label) == (names, False)
    keys = np.array(_keys(examples))
    assert sorted(keys) == list(range(60))
    assert examples.labels.tolist() == expected(keys).tolist()
    assert logged == []  # The user knows.


def test_a_chosen_list_of_labels(labels_dir):
    source = open_source("many_labels", "train", labels_dir, "tags")
    examples = source.read(range(60))
    assert (source.labels, source.multi_label) == (("p", "q", "r"), True)
    assert [list(tags) for tags in examples.labels] == [[key % 3] for key in _keys(examples)]


def test_features_of_one_label_are_not_kept_for_another(labels_dir):
    """Their files are the same, and with equal names of classes the manifests would be too."""
    stamps = {
        open_source("many_labels", "train", labels_dir, label).content_stamp()
        for label in (None, "fine", "coarse")
    }
    assert len(stamps) == 2


def test_every_command_reads_the_chosen_label(labels_dir, command, tmp_path):
    """The label has the classes x and y, the usual one four others."""
    data = ["--set=data.name=many_labels", f"--set=data.data_dir={labels_dir}"]
    chosen = [*data, "--set=data.label=coarse"]
    # Training, its evaluations and its few-shot evaluations, which may have another label.
    tiny = [*as_flags("train.few_shot_every=6", "few_shot.shots=1"), *chosen, "--dry_run"]
    result = command("pretrain", *tiny)
    assert "60 examples of 2 classes)" in result.stdout, result.stderr
    assert "few-shot evaluations: 60 images of many_labels" in result.stdout
    result = command("sweep", *as_flags(), *chosen, "--grid=seed=1,2", "--seeds=0", "--dry_run")
    assert "--grid seed" in result.stderr  # Not a grid of labels either:
    result = command("sweep", *as_flags(), *data, "--grid=data.label=coarse,fine", "--dry_run")
    assert_user_error(result, "--grid data.label: all trials of a sweep have the same")

    result = command("fewshot", *chosen, "--shots=1", "--noknn", "--noprobe", "--json")
    assert json.loads(result.stdout)["classes"] == 2, result.stderr
    # The features of one label are not taken for another.
    result = command("fewshot", *data, "--shots=1", "--noknn", "--noprobe", "--json")
    assert json.loads(result.stdout)["classes"] == 4, result.stderr
    (tmp_path / "map.txt").write_text("3\n7\n")
    result = command("evaluate", *chosen, "--label_map=map.txt", "--json")
    assert json.loads(result.stdout)["examples"] == 60, result.stderr

    result = command("make_tfrecords", *chosen, "--output=records")
    assert json.loads((tmp_path / "records/dataset.json").read_text())["labels"] == ["x", "y"]
    assert_user_error(command("pretrain", *tiny, "--set=data.label=y"), "one of: fine, coarse")


def test_the_label_of_few_shot_evaluations(labels_dir):
    """Another data set has its own usual label, the run's data set the run's label."""
    settings = ("train.few_shot_every=1", "few_shot.shots=1", f"data.data_dir={labels_dir}")

    def classes(*assignments):
        data = open_few_shot_data(tiny_experiment(*settings, *assignments))
        return data.train.source.num_classes, data.test.source.num_classes

    run, other = ["data.name=many_labels", "data.label=coarse"], ["few_shot.name=many_labels"]
    assert classes(*run) == (2, 2)
    assert classes(*run, "few_shot.label=fine") == (4, 4)
    assert classes(*run, *other) == (4, 4)
    assert classes(*other, "few_shot.label=coarse") == (2, 2)


@pytest.mark.parametrize(
    ("name", "label", "texts"),
    [
        (
            "many_labels",
            "coarze",
            ["data.label=coarze is no class label of many_labels", "one of: fine, coarse, tags"],
        ),
        ("many_labels", "coarze", ["Did you mean coarse?"]),
        ("many_labels", "note", ["data.label=note", "one of: fine, coarse, tags"]),
        ("many_labels", "image", ["data.label=image"]),
        # Their own label is a list, beside which a class label stands for something else.
        ("imagenet2012_multilabel", None, ["is correct_multi_labels, which", ": original_label"]),
        ("chexpert", None, ["its label is label, which is not one class", "image_view, label"]),
        ("folder:photos", "coarse", ["data.label=coarse", "folder:photos has one label only"]),
        ("tfrecord:photos", "coarse", ["data.label=coarse", "tfrecord:photos has one label only"]),
    ],
)
def test_labels_that_are_refused(labels_dir, name, label, texts):
    message = _message(name, "train", labels_dir, label)
    for text in texts:
        assert text in message


@pytest.mark.parametrize(
    ("name", "label", "classes"),
    [
        ("imagenet2012_real", "original_label", 1000),
        ("smallnorb", "label_category", 5),
        ("smallnorb", "label_azimuth", 18),
        ("smallnorb", "smallnorb_azimuth", 18),
        ("smallnorb", "smallnorb_elevation", 9),
        ("dsprites", "dsprites_location", 16),
        ("dsprites", "dsprites_orientation", 16),
        ("cifar100", None, 100),
        ("cifar100", "coarse_label", 20),
        ("oxford_iiit_pet", "species", 2),
    ],
)
def test_labels_of_published_data_sets(name, label, classes):
    with tfds.testing.mock_data(num_examples=2):
        split = "validation" if name == "imagenet2012_real" else "train"
        source = open_source(name, split, None, label)
        assert (source.num_classes, source.multi_label) == (classes, False)
        assert source.read(range(2)).labels.max() < classes


def _message(*arguments, **options):
    with pytest.raises(DataError) as error:
        open_source(*arguments, **options)
    assert isinstance(error.value, ValueError)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_missing_files(tmp_path):
    message = _message("cifar10", "train", tmp_path)
    assert f"no {tmp_path}/cifar10/3.0.2/dataset_info.json" in message
    assert f"tfds build cifar10 --data_dir={tmp_path}" in message
    assert "data.data_dir" in message
    assert list(tmp_path.iterdir()) == []


def test_missing_files_of_a_manual_download(tmp_path):
    assert "tensorflow.org/datasets/catalog/imagenet2012" in _message(
        "imagenet2012", "train", tmp_path
    )


def test_folder_without_information(tmp_path):
    (tmp_path / "cifar10" / "3.0.2").mkdir(parents=True)
    message = _message("cifar10", "train", tmp_path)
    assert f"no {tmp_path}/cifar10/3.0.2/dataset_info.json" in message


def test_missing_version(tmp_path):
    for version in ("3.0.0", "3.0.1", "incomplete"):
        (tmp_path / "cifar10" / version).mkdir(parents=True)
        (tmp_path / "cifar10" / version / "dataset_info.json").touch()
    (tmp_path / "cifar10" / "3.0.3").mkdir()  # without its files
    message = _message("cifar10", "train", tmp_path)
    assert message.endswith("Prepared there: 3.0.0, 3.0.1; use cifar10:3.0.1")
    message = _message("cifar10:3.0.2", "train", tmp_path)
    assert f"tfds build cifar10 --data_dir={tmp_path}" in message
    assert message.endswith("use cifar10:3.0.1, whose examples can be others or in another order")


def test_a_version_that_this_tfds_only_reads(tmp_path):
    message = _message("kitti:3.1.0", "train", tmp_path)
    assert f"no {tmp_path}/kitti/3.1.0/dataset_info.json" in message
    assert (
        f"an older TFDS does, where TFDS {tfds.__version__} prepares only version 3.3.0" in message
    )


def _pet(key):
    return {
        "image": np.full((4, 4, 3), 20 * key, np.uint8),
        "label": key,
        "species": key % 2,
        "file_name": f"{key}.jpg",
        "segmentation_mask": np.zeros((4, 4, 1), np.uint8),
        "head_bbox": tfds.features.BBox(0.0, 0.0, 1.0, 1.0),
    }


def test_a_version_that_this_tfds_does_not_prepare(tmp_path):
    """Its prepared files are read without the code, and never another version in its place."""
    name = "oxford_iiit_pet:3.*.*"
    message = _message(name, "train", tmp_path)
    assert f"{name!r} is not prepared, and TFDS" in message
    assert "it has 4.0.0. Copy the folder of 3.*.* (dataset_info.json," in message
    assert message.endswith(f"into {tmp_path}/oxford_iiit_pet")
    true_features.prepare("oxford_iiit_pet", tmp_path, _pet)
    message = _message(name, "train", tmp_path)
    assert "Prepared there: 4.0.0; use oxford_iiit_pet:4.0.0, whose examples can be" in message

    for version in ("3.1.0", "3.2.0"):
        true_features.prepare("oxford_iiit_pet", tmp_path, _pet, version)
    assert tfds_catalog.prepared_versions("oxford_iiit_pet", tmp_path) == [
        *("3.1.0", "3.2.0", "4.0.0")
    ]
    assert open_source("oxford_iiit_pet", "train", tmp_path).version == "4.0.0"
    source = open_source(name, "train[:5]", tmp_path)
    assert (source.version, source.num_classes, source.num_examples) == ("3.2.0", 37, 5)
    examples = source.read(range(5))
    assert [round(_key(image) / 20) for image in examples.images] == examples.labels.tolist()
    assert "no split 'trian'" in _message(name, "trian", tmp_path)


@pytest.mark.parametrize(
    ("name", "split", "texts"),
    [
        ("cifr10", "train", ["'cifr10'", "cifar10"]),
        ("CIFAR10", "train", ["'CIFAR10'", "cifar10"]),
        ("diggits", "train", ["Did you mean digits"]),
        ("zzzzzzzz", "train", ["no data set named 'zzzzzzzz'"]),
        ("digits/lows", "train", ["'digits/lows'", "all, low"]),
        ("digits:7.0.0", "train", ["'digits:7.0.0'", "1.0.0"]),
        ("digits-low", "train", ["'digits-low'", "name[/config][:version]"]),
        ("gs://bucket/pets", "train", ["'gs://bucket/pets'", "name[/config][:version]"]),
        ("../digits", "train", ["'../digits'", "Did you mean folder:../digits?"]),
        ("/data/pets", "train", ["'/data/pets'", "Did you mean folder:/data/pets?"]),
        ("pets/", "train", ["'pets/'", "Did you mean folder:pets/?"]),
        ("labels.csv", "train", ["'labels.csv'", "Did you mean list:labels.csv?"]),
        ("~/a/labels.JSONL", "train", ["Did you mean list:~/a/labels.JSONL?"]),
        ("Folder:/data/pets", "train", ["Did you mean folder:/data/pets?"]),
        ("imagefolder:pets", "train", ["Did you mean folder:pets?"]),
        ("tfrecords:pets", "train", ["Did you mean tfrecord:pets?"]),
        ("huggingface:mnist", "train", ["name[/config][:version]"]),
        ("digits", "trian", ["'trian'", "train (1,297), validation (200), test (300)"]),
        ("digits", "train[", ["'train['"]),
        ("digits", "train[90%:][:200]", ["'train[90%:][:200]'", "train (1,297)"]),
        ("digits", "train[:9][x]", ["'train[:9][x]'"]),
        ("digits", "train[:9] [:2]", ["'train[:9] [:2]'"]),
        ("digits", "[:9][:2]", ["'[:9][:2]'"]),
        ("digits", "train[:9][3:3]", ["'train[:9][3:3]'", "empty"]),
        ("digits", "train[5000:]", ["'train[5000:]'", "train (1,297)"]),
        ("digits", "train[7:7]", ["'train[7:7]'", "empty"]),
        ("imdb_reviews", "train", ["image classification", "text (Text)"]),
        ("coco", "train", ["image classification", "objects"]),
    ],
)
def test_clear_errors(name, split, texts):
    message = _message(name, split)
    for text in texts:
        assert text in message


def test_the_kinds_in_messages_are_those_there_are():
    assert list(tfds_catalog._KINDS) == list(open_module._KINDS)
    assert set(tfds_catalog._KIND_SYNONYMS.values()) == set(tfds_catalog._KINDS)


def test_folders_on_disk(tmp_path):
    (tmp_path / "pets" / "small").mkdir(parents=True)
    (tmp_path / "pets" / "dataset.json").touch()
    assert "Did you mean tfrecord:pets or" in _message("pets", "train", tmp_path)
    assert "Did you mean folder:pets/small or" in _message("pets/small", "train", tmp_path)
    assert "folder:" not in _message("pets/large", "train", tmp_path)
    (tmp_path / "cifar10").mkdir()
    assert "is not prepared" in _message("cifar10", "train", tmp_path)


def test_unlabeled_split(sharded_dir):
    source = open_source("shards", "unlabeled", sharded_dir)
    with pytest.raises(DataError, match="'unlabeled'.*label"):
        source.read(range(1))


def test_folder_that_cannot_be_written(tmp_path):
    file = tmp_path / "file"
    file.touch()
    assert "data.data_dir" in _message("digits", "train", file / "below")


def test_built_in_data_need_no_home(tmp_path, monkeypatch, logged):
    """They are prepared in a temporary folder, once in a process."""
    (tmp_path / "file").touch()
    builder, opened = tfds.builder, []

    def without_home(name, data_dir=None):
        opened.append(data_dir)
        return builder(name, data_dir=data_dir or str(tmp_path / "file" / "home"))

    monkeypatch.setattr(tfds_catalog.tfds, "builder", without_home)
    tfds_catalog._temporary_folder.cache_clear()
    for _ in range(2):
        assert open_source("digits", "test").num_examples == 300
    folder = tfds_catalog._temporary_folder()
    tfds_catalog._temporary_folder.cache_clear()
    assert [x for x in opened if x is not None] == [folder, folder]
    assert len(logged) == 1 and f"preparing built-in data in {folder} for this process" in logged[0]


def test_damaged_and_lost_files(tmp_path):
    config = tfds.download.DownloadConfig(num_shards=3)
    tfds.builder("shards", data_dir=tmp_path).download_and_prepare(download_config=config)
    source = open_source("shards", "train", tmp_path)
    file = tmp_path / "shards" / "2.0.0" / "shards-train.tfrecord-00001-of-00003"
    contents = bytearray(file.read_bytes())

    contents[500] ^= 1
    file.write_bytes(contents)
    with pytest.raises(DataError, match="'train'.*corrupted record"):
        source.read(range(120))
    file.unlink()
    with pytest.raises(DataError, match="shards:2.0.0.*No such"):
        source.read(range(120))

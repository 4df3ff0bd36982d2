"""Rules of labels: their definition, and data sets of TFDS that are prepared or mocked."""

import numpy as np
import pytest
import tensorflow as tf

from pipelines.data import pipeline
from pipelines.data.labels import rules
from pipelines.data.sources import tfds_features
from pipelines.data.sources.open import open_source
from pipelines.errors import DataError
from tests.pipelines.data import true_features
from tests.pipelines.data.batches import to_numpy
from tests.pipelines.process import assert_user_error
from vit_tf.images.decoding import decode_image
from vit_tf.preprocessing import Preprocessing

# Rule -> data set. The lists of ReaL are the default of theirs, as is the only rule of KITTI.
NAMES = [(data_set, name) for data_set, own in rules.RULES.items() for name in own]
DEFAULTS = ["imagenet2012_real", "kitti"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("true")
    for name in true_features.EXAMPLES:
        true_features.prepare(name, path)
    return path


def by_key(images, labels):
    """Key of each image -> its label, or sorted list of labels."""
    keys = [true_features.key_of(decode_image(image)) for image in images]
    return dict(zip(keys, map(plain, labels), strict=True))


def plain(label):
    """A label as an integer, or a list of labels as sorted integers."""
    return sorted(map(int, label)) if np.ndim(label) else int(label)


def expected(rule):
    keys = range(true_features.COUNT)
    return {key: plain(true_features.expected(rule, key)) for key in keys}


@pytest.mark.parametrize(("data_set", "rule"), NAMES)
def test_prepared_data_have_the_label_of_the_rule(data_set, rule, folder):
    source = open_source(data_set, "train", folder, rule)
    examples = source.read(range(true_features.COUNT))
    assert by_key(examples.images, examples.labels) == expected(rule)
    assert source.multi_label == (rule == "imagenet2012_real")
    assert source.num_classes == len(set(source.labels))
    assert source.manifest()["label_rule"] == rule

    preprocessing = Preprocessing(image_size=(64, 64))
    batches = to_numpy(pipeline.eval_dataset(source, batch_size=5, preprocessing=preprocessing))
    levels = np.concatenate([batch["image"] for batch in batches]) * 127.5 + 127.5
    found = np.concatenate([batch["label"] for batch in batches])
    keys = [true_features.key_of(image) for image in levels[: true_features.COUNT]]
    for key, label in zip(keys, found, strict=False):
        own = np.flatnonzero(label).tolist() if source.multi_label else label
        assert own == expected(rule)[key]


@pytest.mark.parametrize(("data_set", "rule"), NAMES)
def test_mocks_have_the_label_of_the_rule(data_set, rule):
    with true_features.mocked(data_set):
        source = open_source(data_set, "train[90%:][:200]", None, rule)
    examples = source.read(range(true_features.COUNT))
    assert by_key(examples.images, examples.labels) == expected(rule)
    assert source.manifest()["label_rule"] == rule


def test_the_only_rule_of_a_data_set_is_its_default(folder, logged):
    tfds_features._log_once.cache_clear()  # A test before may have logged the label.
    for name in DEFAULTS:
        assert open_source(name, "train", folder).label_rule in rules.RULES[name]
    assert (
        "imagenet2012_real: the label is imagenet2012_real. Others for data.label: "
        "original_label, real_label"
    ) in logged
    ordinary = open_source("imagenet2012_real", "train", folder, "original_label")
    assert "label_rule" not in ordinary.manifest()
    assert sorted(ordinary.read(range(12)).labels) == [*range(500, 512)]


def test_several_rules_have_no_default(folder, command):
    for name in sorted({*rules.RULES} - {*DEFAULTS}):
        with pytest.raises(DataError) as error:
            open_source(name, "train", folder)
        assert f"{name} has several labels. Choose one with data.label: " in str(error.value)
        assert all(rule in str(error.value) for rule in rules.RULES[name])
    data = ["--set=data.name=clevr", f"--set=data.data_dir={folder}"]
    message = "one of: clevr_count, clevr_distance. Did you mean clevr_count?"
    assert_user_error(command("batch", *data, "--set=data.label=clevr_counts"), message)


def test_binary_images_are_black_and_white(folder):
    """The levels 0 and 1 are stored; whatever the label, nobody can see them."""
    source = open_source("dsprites", "train", folder, "label_shape")
    pixels = [decode_image(image).numpy() for image in source.read(range(12)).images]
    assert {level for image in pixels for level in np.unique(image)} == {0, 255}
    assert {image.shape for image in pixels} == {(64, 64, 3)}
    assert "spread" in source.content_stamp()
    assert "spread" not in open_source("kitti", "train", folder).content_stamp()


def lists(rows, dtype):
    return tf.ragged.constant(rows, dtype, ragged_rank=1, row_splits_dtype=tf.int64)


def computed(name, **values):
    rule = next(own[name] for own in rules.RULES.values() if name in own)
    dtypes = {key.rpartition("/")[2]: (key, dtype) for key, dtype in rule.reads.items()}
    named = {dtypes[key][0]: lists(rows, dtypes[key][1]) for key, rows in values.items()}
    return rule.compute(named).to_list(), len(rule.classes)


def test_every_distance_has_one_bin():
    """Against the definition of VTAB for many values; the last edge below a value is its bin."""
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.uniform(0.01, 100, 200), [8, 8.5, 9, 9.5, 10, 100], [1e-6]])
    distances = values.astype(np.float32).tolist()
    for name, field, edges, others in (
        ("clevr_distance", "pixel_coords", [0.0, 8.0, 8.5, 9.0, 9.5, 10.0, 100.0], {}),
        ("kitti_distance", "location", [-100.0, 8.0, 20.0, 999.0], {"type": [[1]] * len(values)}),
    ):
        rows = {field: [[-5.0, 0.0, distance] for distance in distances]}
        labels, count = computed(name, **rows, **others)
        assert labels == [
            [int(np.flatnonzero(np.array(edges) - distance < 0).max())] for distance in distances
        ]
        assert {label for [label] in labels} == set(range(count - (name == "kitti_distance")))


def test_groups_are_those_of_a_division_in_floating_point():
    for name, field, count in (
        ("dsprites_location", "label_x_position", 32),
        ("dsprites_orientation", "label_orientation", 40),
    ):
        labels, classes = computed(name, **{field: [[value] for value in range(count)]})
        assert labels == [[int(value / (count / 16))] for value in range(count)]
        assert classes == 16
    names = rules.RULES["dsprites"]["dsprites_orientation"].classes
    assert names[:4] == ("0-2", "3-4", "5-7", "8-9") and names[-1] == "38-39"


def test_examples_without_a_label():
    """As in Clevr's test split, which has no objects; all counts are Clevr's counts."""
    counts = [0, 2, 3, 10, 11]
    assert computed("clevr_count", size=[[1] * count for count in counts])[0] == [
        *([-1], [-1], [0], [7], [-1])
    ]
    far = [[], [1.0, 1.0, 0.0], [1.0, 1.0, 100.5], [0.0, 0.0, float("nan")], [0.0, 0.0, 9.2]]
    assert computed("clevr_distance", pixel_coords=far)[0] == [[-1], [-1], [-1], [-1], [3]]


def test_a_split_without_labels_is_refused(tmp_path):
    def unlabeled(key):
        return true_features.EXAMPLES["clevr"](key) | {"objects": []}

    true_features.prepare("clevr", tmp_path, unlabeled, splits=("test",))
    for rule in ("clevr_count", "clevr_distance"):
        with pytest.raises(DataError, match="'test'.*without a label"):
            open_source("clevr", "test", tmp_path, rule).read(range(3))

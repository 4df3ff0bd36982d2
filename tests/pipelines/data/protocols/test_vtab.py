"""VTAB-1k: all 19 tasks against TFDS's own features, and their settings."""

import pytest
import tensorflow_datasets as tfds

from pipelines.config.experiment import Assignments
from pipelines.data.protocols import vtab
from pipelines.data.sources.open import open_source
from pipelines.data.sources.source import resolve_split, split_info
from pipelines.data.sources.tfds_features import image_and_label
from pipelines.errors import UserError
from tests.paper_tables import tables
from tests.pipelines.data import true_features
from tests.pipelines.tiny import tiny_experiment

# The sizes of the published splits that VTAB divides, and the first example for choices and for
# testing: floor(0.9 n) and so on (docs/paper.md H.4).
_CLEVR = {"train": 70_000, "validation": 15_000, "test": 15_000}
_NORB = {"train": 24_300, "test": 24_300}
DIVIDED = {
    "caltech101": ({"train": 3057, "test": 6084}, ("train", 2751), ("test", 0)),
    "cifar100": ({"train": 50_000, "test": 10_000}, ("train", 45_000), ("test", 0)),
    "pets": ({"train": 3680, "test": 3669}, ("train", 2944), ("test", 0)),
    "svhn": ({"train": 73_257, "test": 26_032}, ("train", 65_931), ("test", 0)),
    "eurosat": ({"train": 27_000}, ("train", 16_200), ("train", 21_600)),
    "resisc45": ({"train": 31_500}, ("train", 18_900), ("train", 25_200)),
    "clevr_count": (_CLEVR, ("train", 63_000), ("validation", 0)),
    "clevr_distance": (_CLEVR, ("train", 63_000), ("validation", 0)),
    "dsprites_location": ({"train": 737_280}, ("train", 589_824), ("train", 663_552)),
    "dsprites_orientation": ({"train": 737_280}, ("train", 589_824), ("train", 663_552)),
    "smallnorb_azimuth": (_NORB, ("test", 0), ("test", 12_150)),
    "smallnorb_elevation": (_NORB, ("test", 0), ("test", 12_150)),
}
USUAL = {"train": 1020, "validation": 1020, "test": 6149}, ("validation", 0), ("test", 0)


def test_there_are_19_tasks():
    assert len(vtab.TASKS) == 19 and len({task.title for task in vtab.TASKS.values()}) == 19
    assert all(name == task.name for name, task in vtab.TASKS.items())
    groups = [task.group for task in vtab.TASKS.values()]
    assert groups == ["natural"] * 7 + ["specialized"] * 4 + ["structured"] * 8
    # BiT, appendix F.
    assert {name for name, task in vtab.TASKS.items() if not task.flip} == {
        *("dsprites_orientation", "dsprites_location", "smallnorb_azimuth")
    }
    assert {name for name, task in vtab.TASKS.items() if not task.crop} == {
        *("clevr_count", "clevr_distance", "dmlab", "kitti_distance", "dsprites_location")
    }


@pytest.mark.parametrize("name", vtab.TASKS)
def test_tasks_have_the_classes_of_the_features(name):
    """With TFDS's own code, which still prepares all but Pets in VTAB's version."""
    task = vtab.TASKS[name]
    builder = tfds.builder(task.data_name.replace("oxford_iiit_pet:3.*.*", "oxford_iiit_pet"))
    image, rule = image_and_label(builder, task.label)
    assert (image, len(rule.classes), rule.multi_label) == ("image", task.num_classes, False)
    assert builder.version.match(task.version) or name == "pets"


@pytest.mark.parametrize("name", vtab.TASKS)
def test_splits_are_the_first_examples_of_vtabs_parts(name):
    task = vtab.TASKS[name]
    sizes, (chosen, start), (tested, first) = DIVIDED.get(name, USUAL)
    infos = {split: split_info(split, [size]) for split, size in sizes.items()}

    def parts(split):
        return [part[:3] for part in resolve_split(infos, task.splits[split], name)]

    assert parts("train800") == [("train", 0, 800)]
    assert parts("val200") == [(chosen, start, start + 200)]
    assert parts("train800val200") == parts("train800") + parts("val200")
    assert parts("test") == [(tested, first, sizes[tested])]


@pytest.mark.parametrize("name", vtab.TASKS)
def test_settings_are_those_of_an_experiment(name):
    values = vtab.settings(name, "train800", "val200")
    texts = [f"{path}={value}" for path, value in values.items()]
    data = Assignments.parse(texts).apply(tiny_experiment())[0].data
    task = vtab.TASKS[name]
    assert (data.name, data.label) == (task.data_name, task.label)
    assert (data.train_split, data.eval_split) == (task.splits["train800"], task.splits["val200"])
    assert (data.flip, data.resize) == (task.flip, "direct")
    crop = ("random", 448) if task.crop else ("none", None)
    assert (data.crop, data.crop_resize_to) == crop
    final = vtab.settings(name, "train800val200", "test", image_size=48)
    assert final["data.crop_resize_to"] == ("56" if task.crop else "none")
    assert final["data.eval_split"] == task.splits["test"]


def test_unknown_names_are_refused():
    for arguments, text in (
        (("clevr_counts", "train800", "test"), "'clevr_counts'.*count?"),
        (("pets", "train1000", "test"), "'train1000'.*train800"),
        (("pets", "train800", "validation"), "split.*'validation'"),
    ):
        with pytest.raises(UserError, match=text):
            vtab.settings(*arguments)


def test_another_version_than_vtabs_is_said(tmp_path, logged):
    vtab._log_once.cache_clear()

    def name(task):
        return vtab.settings(task, "train800", "test", data_dir=tmp_path)["data.name"]

    assert name("dsprites_location") == "dsprites:2.*.*"  # Nothing is prepared.
    true_features.prepare("kitti", tmp_path)
    true_features.prepare("dsprites", tmp_path)
    for _ in range(2):
        assert name("kitti_distance") == "kitti:3.3.0"
    line = "VTAB's KITTI-Dist reads kitti:3.1.0, but only 3.3.0 is prepared and read instead. "
    assert len(logged) == 1 and logged[0].startswith(line)
    true_features.prepare("kitti", tmp_path, version="3.1.0")
    assert name("kitti_distance") == "kitti:3.1.0"
    assert name("dsprites_location") == "dsprites:2.*.*"
    assert open_source(name("dsprites_location"), "train", tmp_path, "label_shape").version == (
        "2.0.0"
    )
    assert len(logged) == 1


def test_the_page_about_the_paper_has_the_same_tasks():
    yes = {True: "yes", False: "no"}
    rows = [
        (
            *(f"`{name}`", task.group, f"`{task.data_name}`", str(task.num_classes)),
            *(f"`{task.splits['val200']}`", f"`{task.splits['test']}`"),
            *(yes[task.flip], yes[task.crop]),
        )
        for name, task in vtab.TASKS.items()
    ]
    assert tables("H.4") == [rows]

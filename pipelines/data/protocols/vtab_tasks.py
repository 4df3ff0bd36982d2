"""The 19 tasks of VTAB-1k: data sets, labels, splits, and what training may do to the images.

See docs/paper.md H.4.
"""

import dataclasses
from collections.abc import Mapping
from typing import Literal


@dataclasses.dataclass(frozen=True)
class Task:
    """A task of VTAB-1k.

    Attributes:
        name: such as "clevr_count".
        title: its name in table 9 of the paper.
        group: the part of the benchmark, whose mean is reported too.
        data_name: value of `data.name`, with the versions that VTAB reads, such as "clevr:3.*.*".
        label: value of `data.label`: a feature, or a rule of `labels/rules.py`.
        num_classes: number of classes.
        splits: "train800", "val200", "train800val200" and "test", the whole test part -> value of
            `data.train_split` or `data.eval_split`.
        flip, crop: whether training may mirror images, and take random windows of them.
    """

    name: str
    title: str
    group: Literal["natural", "specialized", "structured"]
    data_name: str
    label: str
    num_classes: int
    splits: Mapping[str, str]
    flip: bool
    crop: bool

    @property
    def version(self) -> str:
        """The versions of the TFDS data set that VTAB reads, such as "3.*.*"."""
        return self.data_name.rpartition(":")[2]


def _splits(validation, test="test"):
    """The splits of a task; all take the first 800 of `train`, and 200 of `validation`."""
    own = {"train800": "train[:800]", "val200": validation}
    return own | {"train800val200": "+".join(own.values()), "test": test}


# Where TFDS has no validation split, VTAB divides the training split, of SmallNORB the test split.
_STORED = _splits("validation[:200]")
_LAST_TENTH = _splits("train[90%:][:200]")
_LAST_FIFTH = _splits("train[80%:][:200]")
_FIFTHS = _splits("train[60%:][:200]", "train[80%:]")
_TENTHS = _splits("train[80%:][:200]", "train[90%:]")
_HALVES = _splits("test[:200]", "test[50%:]")
_CLEVR = _splits("train[90%:][:200]", "validation")

_RETINOPATHY = "diabetic_retinopathy_detection/btgraham-300:3.*.*"
_RULE = None  # The label is the rule that has the name of the task.

# name, title, data set, label, classes, splits, flip, crop; in the order of table 9.
_ROWS = {
    "natural": (
        ("caltech101", "Caltech101", "caltech101:3.*.*", "label", 102, _LAST_TENTH, True, True),
        ("cifar100", "CIFAR-100", "cifar100:3.*.*", "label", 100, _LAST_TENTH, True, True),
        ("dtd", "DTD", "dtd:3.*.*", "label", 47, _STORED, True, True),
        ("flowers102", "Flowers102", "oxford_flowers102:2.*.*", "label", 102, _STORED, True, True),
        ("pets", "Pets", "oxford_iiit_pet:3.*.*", "label", 37, _LAST_FIFTH, True, True),
        ("sun397", "Sun397", "sun397/tfds:4.*.*", "label", 397, _STORED, True, True),
        ("svhn", "SVHN", "svhn_cropped:3.*.*", "label", 10, _LAST_TENTH, True, True),
    ),
    "specialized": (
        ("camelyon", "Camelyon", "patch_camelyon:2.*.*", "label", 2, _STORED, True, True),
        ("eurosat", "EuroSAT", "eurosat/rgb:2.*.*", "label", 10, _FIFTHS, True, True),
        ("resisc45", "Resisc45", "resisc45:3.*.*", "label", 45, _FIFTHS, True, True),
        ("retinopathy", "Retinopathy", _RETINOPATHY, "label", 5, _STORED, True, True),
    ),
    "structured": (
        ("clevr_count", "Clevr-Count", "clevr:3.*.*", _RULE, 8, _CLEVR, True, False),
        ("clevr_distance", "Clevr-Dist", "clevr:3.*.*", _RULE, 6, _CLEVR, True, False),
        ("dmlab", "DMLab", "dmlab:2.0.1", "label", 6, _STORED, True, False),
        ("dsprites_location", "dSpr-Loc", "dsprites:2.*.*", _RULE, 16, _TENTHS, False, False),
        ("dsprites_orientation", "dSpr-Ori", "dsprites:2.*.*", _RULE, 16, _TENTHS, False, True),
        ("kitti_distance", "KITTI-Dist", "kitti:3.1.0", _RULE, 4, _STORED, True, False),
        ("smallnorb_azimuth", "sNORB-Azim", "smallnorb:2.*.*", _RULE, 18, _HALVES, False, True),
        ("smallnorb_elevation", "sNORB-Elev", "smallnorb:2.*.*", _RULE, 9, _HALVES, True, True),
    ),
}

TASKS: Mapping[str, Task] = {
    name: Task(name, title, group, data_name, label or name, num_classes, splits, flip, crop)
    for group, rows in _ROWS.items()
    for name, title, data_name, label, num_classes, splits, flip, crop in rows
}

"""The score of VTAB: means by hand, of all tasks and of a part of them."""

import pytest

from pipelines.evaluation.vtab import GROUPS, vtab_score

# Written out as in the interface, not taken from the code.
_TASKS = (
    "caltech101 cifar100 dtd flowers102 pets sun397 svhn | camelyon eurosat resisc45 retinopathy | "
    "clevr_count clevr_distance dmlab dsprites_location dsprites_orientation kitti_distance "
    "smallnorb_azimuth smallnorb_elevation"
)
_ALL = {name: float(number) for number, name in enumerate(_TASKS.replace("|", "").split())}


def test_groups_are_those_of_the_protocol():
    assert [" ".join(tasks) for tasks in GROUPS.values()] == _TASKS.split(" | ")
    assert [*GROUPS] == ["natural", "specialized", "structured"]


def test_means_by_hand():
    # 0 .. 6, 7 .. 10 and 11 .. 18: the mean is over the 19 tasks, not over the groups.
    expected = {"natural": 3.0, "specialized": 8.5, "structured": 14.5, "mean": 9.0}
    assert vtab_score(_ALL) == expected
    assert vtab_score(dict(reversed(_ALL.items()))) == expected


def test_a_gap_leaves_no_mean_over_it():
    results = {name: value for name, value in _ALL.items() if name != "eurosat"}
    expected = {"natural": 3.0, "specialized": None, "structured": 14.5, "mean": None}
    assert vtab_score(results) == expected
    assert set(vtab_score({}).values()) == {None}


def test_other_tasks_are_refused():
    with pytest.raises(ValueError, match="'imagenet'.*caltech101"):
        vtab_score(_ALL | {"imagenet": 1.0})

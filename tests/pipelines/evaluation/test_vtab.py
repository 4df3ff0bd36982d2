"""The score of VTAB: means by hand, of all tasks and of a part of them."""

import pytest

from pipelines.data.protocols.vtab import TASKS
from pipelines.evaluation.vtab import GROUPS, vtab_score

_ALL = {name: float(number) for number, name in enumerate(x for g in GROUPS.values() for x in g)}


def test_means_by_hand():
    # 0 .. 6, 7 .. 10 and 11 .. 18: the mean is over the 19 tasks, not over the groups.
    expected = {"natural": 3.0, "specialized": 8.5, "structured": 14.5, "mean": 9.0}
    assert vtab_score(_ALL) == expected
    assert vtab_score(dict(reversed(_ALL.items()))) == expected


def test_a_gap_leaves_no_mean_over_it():
    del (results := dict(_ALL))["eurosat"]
    expected = {"natural": 3.0, "specialized": None, "structured": 14.5, "mean": None}
    assert vtab_score(results) == expected
    assert set(vtab_score({}).values()) == {None}


def test_other_tasks_are_refused():
    with pytest.raises(ValueError, match="no task 'imagenet'. Its tasks are caltech101, cifar100"):
        vtab_score(_ALL | {"imagenet": 1.0})


def test_groups_are_those_of_the_protocol():
    assert {name: task.group for name, task in TASKS.items()} == {
        name: group for group, names in GROUPS.items() for name in names
    }
    assert [*TASKS] == [*_ALL]

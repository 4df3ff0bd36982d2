"""`make test` leaves out the heavy groups that no change switches on."""

import argparse
import types

import pytest

from tests import heavy


@pytest.mark.parametrize(
    ("path", "groups"),
    [
        ("custom_ops/cpu/tile.h", ["native", "builds", "models"]),
        ("tests/cc/simd_test.cc", ["native"]),
        ("tests/custom_ops/test_ops_install.py", ["native", "builds"]),
        ("requirements.lock", ["builds", "doctor", "models"]),
        ("docs/data.md", ["docs"]),
        ("pipelines/research/demo/stages.py", ["demo", "research"]),
        ("pipelines/training/train.py", ["training", "research"]),
        ("pipelines/training/loop.py", ["training"]),
        ("pipelines/serving/saved_model.py", ["research", "http", "single_file", "serving"]),
        ("pipelines/inspection/page.py", ["research", "inspection"]),
        ("tests/pipelines/predictions/test_files.py", ["predictions"]),
        ("pipelines/dedup.py", ["deduplication"]),
        ("tests/test_docs.py", ["docs"]),
        ("vit_tf/cost.py", ["research", "data", "models"]),
        ("vit_tf/layers/encoder.py", ["models"]),
        ("vit_tf/checkpoints/kinds.py", ["serving", "checkpoints"]),
        (
            "vit_tf/preprocessing.py",
            ["deduplication", "http", "serving", "data", "checkpoints", "models"],
        ),
        ("tests/pipelines/data/sources/test_lists.py", ["data"]),
        ("tests/pipelines/evaluation/test_report.py", ["evaluation"]),
        ("pipelines/runs/lease.py", ["training", "urls"]),
        ("tests/pipelines/reports/test_pictures.py", ["reports"]),
        ("vit_tf/families.py", ["models"]),
        ("vit_tf/loaded.py", []),
    ],
)
def test_a_change_switches_its_groups_on(path, groups):
    assert heavy.groups_of(["CHANGELOG.md", path]) == groups


def test_choices(monkeypatch):
    monkeypatch.setattr(heavy.changed, "merge_base", lambda: "abc")
    monkeypatch.setattr(heavy.changed, "changed_files", {"abc": ["docs/data.md"]}.get)
    assert heavy.switched_on("changed") == ["docs"]
    assert heavy.switched_on("none") == []
    assert heavy.switched_on("all") == heavy.switched_on("only") == list(heavy.GROUPS)
    assert heavy.switched_on(heavy.choice("models,data")) == ["models", "data"]
    unknown = "'modles'.*'models'"
    with pytest.raises(argparse.ArgumentTypeError, match=unknown):
        heavy.choice("data,modles")
    # Outside a git checkout nothing is known to have changed.
    monkeypatch.setattr(heavy.changed, "changed_files", lambda base: None)
    assert heavy.switched_on("changed") == []


def _item(name, *groups):
    marks = [types.SimpleNamespace(args=(group,)) for group in groups]
    return types.SimpleNamespace(nodeid=name, iter_markers=lambda name: iter(marks))


def test_a_test_runs_with_all_its_groups():
    light, docs, both = _item("light"), _item("docs", "docs"), _item("both", "docs", "demo")
    items = [light, docs, both]
    assert heavy.split(items, []) == ([light], [docs, both])
    assert heavy.split(items, ["docs"]) == ([light, docs], [both])
    assert heavy.split(items, ["demo", "docs"]) == (items, [])
    paper = _item("tests/pipelines/research/lab/test_lab.py::test_a")
    assert heavy.split([paper], ["docs"]) == ([], [paper])
    assert heavy.split([paper], ["research"]) == ([paper], [])
    assert heavy.split([*items, paper], [*heavy.GROUPS], only=True)[1] == [light]
    with pytest.raises(ValueError, match="typo .*heavy.py.*'doc'"):
        heavy.split([_item("typo", "doc")], [])


def test_files_of_other_rooms_are_not_imported():
    for path, groups, left_out in (
        ("tests/pipelines/research/", [], True),
        ("tests/pipelines/research/lab/test_lab.py", ["docs"], True),
        ("tests/pipelines/research/lab/test_lab.py", ["docs", "research"], False),
        ("tests/pipelines/serving/test_prediction_errors.py", [], True),
        ("tests/pipelines/serving/test_signatures.py", [], False),
        ("tests/pipelines/", [], False),
    ):
        assert heavy.is_left_out(path, groups) == left_out, path


def test_after_a_time_no_heavy_test_begins(monkeypatch):
    monkeypatch.delenv("VIT_HEAVY_UNTIL", raising=False)
    heavy_one, light = _item("docs", "docs"), _item("light")
    for until, late in ((None, False), ("1e18", False), ("1", True)):
        if until:
            monkeypatch.setenv("VIT_HEAVY_UNTIL", until)
        assert heavy.is_too_late(heavy_one) == late and not heavy.is_too_late(light)

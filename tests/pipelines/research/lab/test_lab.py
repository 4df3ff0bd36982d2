"""The lab: each unit runs once, in any number of starts and processes, after what it needs."""

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import threading
from typing import Any

import keras
import pytest

from pipelines.errors import InUseError, RunError, UserError
from pipelines.research.lab import lab as lab_module
from pipelines.research.lab import unit as unit_module
from pipelines.research.lab.lab import Stage
from pipelines.research.paper import session
from pipelines.research.paper.findings import Claim, Findings, Table, cell
from pipelines.research.paper.session import Listing, StudyLab
from pipelines.research.paper.study import Study, seeded, settings
from pipelines.research.paper.units import Training
from pipelines.research.sweeps import suite, sweep
from pipelines.runs.lock import written_by_chief
from pipelines.runs.workdir import Workdir
from tests.pipelines.process import ROOT
from tests.pipelines.research.sweeps import suites, sweeps
from tests.pipelines.tiny import one_device

OLD = os.path.join(ROOT, "tests", "golden", "old_research")


@dataclasses.dataclass(frozen=True)
class Fake:
    """A unit that notes when it runs."""

    name: str
    log: list = dataclasses.field(compare=False)
    accuracy: float = 0.5
    loss: float = 1.0
    needs: tuple = ()
    failed: str = ""
    calls: Any = dataclasses.field(default=None, compare=False)  # A function.

    folder = property(lambda self: f"fakes/{self.name}")
    settings = property(lambda self: {"name": self.name})
    cost = seed = None

    def stand_in(self):
        return {"accuracy": 0.0, "loss": 0.0}

    def run(self, root, strategy):
        folder = os.path.join(root, self.folder)
        os.makedirs(folder, exist_ok=True)
        assert not os.path.exists(os.path.join(folder, "result.json")), "it ran before"
        self.log.append(self.name)
        if self.calls:
            self.calls()
        if self.failed:
            return {"failed": self.failed}
        return {"accuracy": self.accuracy, "loss": self.loss}


@pytest.fixture
def log():
    return []


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """A function that makes a lab in one folder."""
    monkeypatch.setattr(lab_module, "_POLL", 0.01)

    def make(expected=None):
        return StudyLab(tmp_path, None, expected or {"E": Stage(4, 40.0)}, pace=1.0)

    return make


def test_a_unit_runs_once_after_what_it_needs(lab, log):
    first = Fake("first", log, 0.25)
    second, third = (Fake(x, log, 0.5, needs=(first,)) for x in ("second", "third"))
    made = lab()
    assert [x["accuracy"] for x in made.results([second, third, first])] == [0.5, 0.5, 0.25]
    assert log == ["first", "second", "third"]
    assert lab().results([third]) == [{"accuracy": 0.5, "loss": 1.0}]  # Another start.
    assert log == ["first", "second", "third"] and made.seconds() > 0


def test_the_time_of_an_experiment_is_that_of_its_own_units(lab, log, tmp_path):
    """Not of those that it shares and that ran for another one, in this start or before."""
    shared, own = Fake("shared", log), Fake("own", log, needs=(Fake("first", log),))
    lab().results([shared])
    for name, seconds in (("first", 2.0), ("own", 30.0), ("shared", 400.0)):
        made = lab({"E": Stage(4, None), "F": Stage(4, None)})
        made.begin("F")
        made.results([own, shared])
        path = tmp_path / "fakes" / name / "unit.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"seconds": seconds}))
    assert made.seconds() == 32.0
    made.begin("E")
    assert made.seconds() == 0.0  # It has asked for nothing in this start.
    made.results([own, shared])
    assert made.seconds() == 400.0 and sorted(log) == ["first", "own", "shared"]


def test_progress_counts_and_estimates(lab, log, logged):
    made = lab({"E": Stage(4, 40.0), "F": Stage(2, 20.0)})
    made.results([Fake("a", log), Fake("b", log)])
    text = logged.take()
    assert "E, run 1 of 4: fakes/a  ETA of all runs 0:01:00\n" in text
    assert "E, run 2 of 4: fakes/b  ETA of all runs 0:00:0" in text  # These take no time.


def test_units_of_another_process_are_waited_for(lab, log, logged, tmp_path):
    held = contextlib.ExitStack()
    held.enter_context(written_by_chief(tmp_path / "locks" / "fakes" / "busy"))

    def finish():
        os.makedirs(tmp_path / "fakes" / "busy", exist_ok=True)
        content = json.dumps({"accuracy": 1.0, "loss": 0.0})
        (tmp_path / "fakes" / "busy" / "result.json").write_text(content)
        held.close()

    units = [Fake("busy", log), Fake("free", log, calls=finish)]
    found = lab().results(units)
    assert [x["accuracy"] for x in found] == [1.0, 0.5] and log == ["free"]
    text = logged.take()
    assert "run 1 of 4: fakes/busy" in text and "run 2 of 4: fakes/free" in text
    assert "another process runs it: " in text


def test_a_folder_of_another_command_is_not_waited_for(lab, log):
    def train():
        raise InUseError("worker 3 trains there")

    with pytest.raises(InUseError, match="worker 3 trains there"):
        lab().results([Fake("a", log, calls=train)])


def test_two_labs_share_a_folder(lab, log):
    """They run units at the same time, and each unit once."""
    both = threading.Barrier(2, timeout=60)
    units = [Fake(str(index), log, calls=both.wait if index < 2 else None) for index in range(40)]
    labs, found = [lab(), lab()], []
    threads = [threading.Thread(target=lambda x=x: found.append(x.results(units))) for x in labs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found[0] == found[1] and sorted(log) == sorted(x.name for x in units)


def test_failures_and_damaged_results_are_named(lab, log, tmp_path):
    with pytest.raises(RunError, match="fakes/bad: The loss is not finite"):
        lab().results([Fake("bad", log, failed="The loss is not finite")])
    lab().results([Fake("good", log)])
    for content in ("[]", '{"accuracy": "high"}', "{"):
        (tmp_path / "fakes" / "good" / "result.json").write_text(content)
        with pytest.raises(UserError, match=r"good.result\.json"):
            lab().results([Fake("good", log)])
    assert log == ["bad", "good"]


def test_a_listing_runs_nothing(log):
    first = Fake("first", log)
    listing = Listing()
    units = [Fake("second", log, needs=(first,)), Fake("third", log)]
    assert len(listing.results(units)) == 2
    assert [*listing.units] == ["fakes/first", "fakes/second", "fakes/third"] and log == []


def test_folders_follow_from_the_settings():
    """A changed setting, also one of the start, is another folder; a place is none."""
    base = settings("train.steps=3")
    (first,) = seeded("a", base, (0,))
    (same,) = seeded("a", settings("train.steps=3"), (0,))
    (other,) = seeded("a", settings("train.steps=4"), (0,))
    assert first.folder == same.folder != other.folder
    assert first.folder.startswith("a,seed=0-")
    started = [Training(name="b", experiment=base, start=x) for x in (None, first, other)]
    assert len({x.folder for x in started}) == 3
    assert started[1].needs == (first,)


def old_study(lab):
    """The study whose folder an earlier version has begun."""
    units = seeded("old/digits", settings("train.steps=3", "train.checkpoint_every=3"), (0, 1))
    found = cell(units, lab.results(units))
    table = Table(title="test accuracy", columns=["accuracy"], rows={"digits": [found]})
    return Findings([table], [Claim("it is reported", None, f"{found.mean:.1%}")], ["a note"])


def go_on_with_sweep(path):
    unit_module.train = trainings = sweeps.Trainings(path, sweeps.GOOD)
    sweep.run(sweeps.plan_of(sweeps.RATES, seeds=2), path, one_device())
    return trainings.calls


def go_on_with_suite(path):
    unit_module.train = trainings = suites.Trainings(path, lambda *_: 0.875)
    plan = suites.plan_of("cifar10", seeds=1, grid=[f"{suites.RATE}=0.003,0.01"])
    suite.run(plan, path, one_device())
    return trainings.calls


def go_on_with_study(path):
    calls = []

    def train(experiment, workdir, strategy, reuse=None):
        del strategy, reuse
        calls.append(Workdir(workdir).create(experiment))
        return {"step": 3, "eval_loss": 1.0, "eval_accuracy": 0.75}

    unit_module.train = train
    fields = {"title": "old", "paper": (), "question": "Does it go on?", "setup": "two seeds"}
    session.run([Study(name="E1", run=old_study, **fields)], path, one_device())
    return calls


@pytest.mark.parametrize(
    ("name", "go_on", "left", "files"),
    [
        ("sweep", go_on_with_sweep, 3, ("sweep.json", "sweep.csv")),
        ("suite", go_on_with_suite, 1, ("suite.json", "suite.csv")),
        ("study", go_on_with_study, 1, ("E1.json",)),
    ],
)
def test_a_folder_of_an_earlier_version_goes_on(tmp_path, monkeypatch, name, go_on, left, files):
    """What is finished is kept, the rest runs, and the tables have the values of that version."""
    monkeypatch.setattr(unit_module, "train", None)  # Restored afterwards.
    monkeypatch.setattr(keras.utils, "clear_session", lambda: None)
    if name == "suite":
        suites.replace_data(monkeypatch)
    path = tmp_path / name
    shutil.copytree(os.path.join(OLD, name), path)
    assert len(go_on(path)) == left and go_on(path) == []
    for file in files:
        found, expected = ((x / file).read_text() for x in (path, pathlib.Path(OLD, "whole")))
        if file.endswith(".csv"):
            assert found == expected
        else:
            assert _older(json.loads(found)) == json.loads(expected), file


def _older(value):
    """A JSON value without the fields that versions after that of the files have added."""
    if isinstance(value, dict):
        return {key: _older(x) for key, x in value.items() if key not in _NEW}
    return [*map(_older, value)] if isinstance(value, list) else value


_NEW = ("shard_optimizer", "registration", "choices")
_NEW += ("lora_rank", "lora_alpha", "lora_targets", "lora_blocks")

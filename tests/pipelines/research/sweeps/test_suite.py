"""Suites: what is trained, picked and reported, how several processes share them, and restarts."""

import csv
import functools
import json
import os
import re
import statistics

import keras
import pytest

from pipelines.data.protocols.vtab_tasks import TASKS
from pipelines.errors import Interrupted, RunError, UserError
from pipelines.evaluation.vtab import GROUPS
from pipelines.research.lab import lab, unit
from pipelines.research.sweeps import suite
from tests.pipelines.research.sweeps import suites
from tests.pipelines.research.sweeps.suites import L16, RATE, plan_of
from tests.pipelines.tiny import one_device

NAN = float("nan")
# The best rate of CIFAR-10 is 0.01.
TRIALS = {0.001: 0.5, 0.003: 0.75, 0.01: 0.875, 0.03: 0.625}


def of_cifar(stage, task, seed, rate):
    del task
    return TRIALS[rate] if stage == "trials" else 0.25 * (seed + 1)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "suite"


@pytest.fixture
def train(monkeypatch, path):
    """`train(accuracy, **options)`: the `Trainings` of suites in `path`."""
    suites.replace_data(monkeypatch)

    def replace(accuracy, **options):
        trainings = suites.Trainings(path, accuracy, **options)
        monkeypatch.setattr(unit, "train", trainings)
        monkeypatch.setattr(keras.utils, "clear_session", lambda: None)
        monkeypatch.setattr(lab, "_POLL", 0.01)
        return trainings

    return replace


@functools.cache
def vtab_plan(seeds=3):
    return plan_of("vtab", init_from=L16, seeds=seeds)


def squeezed(text):
    """The text with one space in place of several."""
    return re.sub(" +", " ", text)


def run(plan, path):
    return suite.run(plan, path, one_device())


def test_vtab_is_every_task_with_every_seed(path, train, logged):
    trainings = train(suites.of_vtab)
    record = run(vtab_plan(), path)
    folder = f"final/{RATE}=0.01"
    assert trainings.calls == [
        f"{folder}/{task},seed={seed}" for task in TASKS for seed in range(3)
    ]
    assert json.loads((path / "suite.json").read_text()) == record
    # By hand: seeds differ by 1 / 128 around the middle one, which is also the mean.
    for number, task in enumerate(TASKS):
        known = record["tasks"][task]
        assert known["mean"] == pytest.approx((33 + 2 * number) / 128, abs=1e-15)
        assert known["standard_deviation"] == pytest.approx(1 / 128, abs=1e-15)
    # Tasks 0 .. 6, 7 .. 10, 11 .. 18; 0 .. 18.
    for name, middle in zip([*GROUPS, "mean"], (3, 8.5, 14.5, 9), strict=True):
        known = record["score"][name]
        assert known["mean"] == pytest.approx((33 + 2 * middle) / 128, abs=1e-15)
        assert known["standard_deviation"] == pytest.approx(1 / 128, abs=1e-15)
    assert record["missing"] == {} and record["picked"] == {RATE: 0.01}

    out = logged.take()
    assert "\nfinal run 57 of 57: " in out and "ETA of all runs 0:00:0" in out
    # Beside both rows of table 9 about this model.
    table = squeezed(out)
    assert "here: ViT-L/16 ViT-L/16, JFT-300M ViT-L/16, ImageNet-21k\n" in table
    assert "\nCaltech101 25.78 +- 0.78 95.4 90.8\n" in table
    assert "\nmean of structured 48.44 +- 0.78 62.96 57.50\n" in table
    assert "\nmean of 19 tasks 39.84 +- 0.78 76.29 72.71\n" in table
    # Its weights are from ImageNet-21k, so the numbers of JFT-300M are not its own.
    assert [line for line in out.splitlines() if line.startswith("paper: ")] == [
        "paper: 72.72 +- 0.21 % (ViT-L/16 from ImageNet-21k; table 2)",
        "paper: 72.7 % (ViT-L/16 from ImageNet-21k; table 9)",
    ]
    assert "differs from the paper: nothing that is known here\n" in out
    assert "pass" not in out and "fail" not in out

    with open(path / "suite.csv", encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    assert header[:8] == ["", *(task.title for task in [*TASKS.values()][:7])]
    assert header[8] == "mean of natural" and header[-1] == "mean of 19 tasks"
    names = ["seed 0", "seed 1", "seed 2", "mean", "standard deviation"]
    assert [row[0] for row in rows][:5] == names
    assert [row[1] for row in rows] == ["25.0000", "25.7812", "26.5625", "25.7812", "0.7812"] + [
        "95.4",
        "90.8",
    ]
    assert float(rows[3][-1]) == pytest.approx(100 * (33 + 18) / 128, abs=1e-4)


def test_settings_are_compared_and_the_best_is_trained_again(path, train, logged):
    trainings, plan = train(of_cifar), plan_of("cifar10")
    record = run(plan, path)
    trials = [f"trials/{RATE}={rate:g}/cifar10" for rate in TRIALS]
    finals = [f"final/{RATE}=0.01/cifar10,seed={seed}" for seed in range(3)]
    assert trainings.calls == [*trials, *finals] and record["picked"] == {RATE: 0.01}
    assert [setting["mean"] for setting in record["settings"]] == [*TRIALS.values()]
    assert record["score"]["mean"] == record["tasks"]["cifar10"]
    assert record["score"]["mean"] == {"mean": 0.5, "standard_deviation": 0.25}
    out = logged.take()
    assert "\npicked: optimizer.learning_rate=0.01\n" in out
    assert "\n*  0.01                     87.50%\n" in out
    assert "\nCIFAR-10 50.00 +- 25.00\n" in squeezed(out)
    assert "\npaper: 98.95 % (ViT-B/16 from ImageNet-21k; table 5)\n" in out


def test_vtab_picks_one_setting_by_the_mean_of_its_tasks(path, train):
    """0.02 is better on 18 tasks, 0.01 on the mean."""

    def accuracy(stage, task, seed, rate):
        del stage, seed
        return {0.01: 1.0 if task == "dtd" else 0.5, 0.02: 0.0 if task == "dtd" else 0.5625}[rate]

    trainings, plan = train(accuracy), plan_of("vtab", grid=[f"{RATE}=0.01,0.02"], seeds=1)
    means = [(18 * 0.5 + 1) / 19, 18 * 0.5625 / 19]
    assert means[1] > means[0]
    record = run(plan, path)
    assert record["picked"] == {RATE: 0.02} and len(trainings.calls) == 19 * 3
    assert [x["mean"] for x in record["settings"]] == [pytest.approx(mean) for mean in means]
    assert record["score"]["mean"]["standard_deviation"] is None
    assert record["differences"][:1] == [f"{RATE}: 0.01 -> 0.02"]


def test_what_is_not_there_is_a_gap(path, train, monkeypatch, logged):
    """The rest runs; once the data are there, the same command trains what was left out."""
    suites.replace_data(monkeypatch, missing=["svhn"])
    trainings = train(suites.of_vtab)
    suites.replace_data(monkeypatch, missing=["svhn"])
    record = run(plan_of("vtab", init_from=L16), path)
    assert len(trainings.calls) == 18 * 3 and list(record["missing"]) == ["svhn"]
    assert record["score"]["natural"]["mean"] is None and record["score"]["mean"]["mean"] is None
    assert record["score"]["structured"]["mean"] is not None
    assert record["differences"] == ["tasks: 18 of 19, without svhn"]
    out = squeezed(logged.take())
    assert "\nno data of svhn, which is left out: svhn_cropped:3.*.* is not prepared.\n" in out
    assert "\nSVHN - 87.4 80.9\n" in out and "\nmean of 19 tasks - 76.29 72.71\n" in out
    trainings.calls.clear()
    record = run(vtab_plan(), path)
    assert trainings.calls == [f"final/{RATE}=0.01/svhn,seed={seed}" for seed in range(3)]
    assert record["score"]["mean"]["mean"] == pytest.approx((33 + 18) / 128)


def test_runs_whose_loss_is_not_finite(path, train, logged):
    train(lambda stage, task, seed, rate: NAN if (task, seed) == ("dtd", 1) else 0.5)
    with pytest.raises(RunError, match=f"loss of 1 of 57 final runs.*{RATE}=0.01/dtd,seed=1"):
        run(vtab_plan(), path)
    record = json.loads((path / "suite.json").read_text())
    assert record["tasks"]["dtd"]["mean"] is None and record["tasks"]["pets"]["mean"] == 0.5
    assert "\nDTD not finite 74.3 74.1\n" in squeezed(logged.take())
    trainings = train(lambda stage, task, seed, rate: NAN)
    trainings.path = path.with_name("other")
    with pytest.raises(RunError, match="None of the settings ended with a finite loss"):
        run(plan_of("cifar10"), trainings.path)
    assert len(trainings.calls) == 4


def test_an_interrupted_suite_goes_on(path, train):
    def stopped(stage, task, seed, rate):
        if (task, seed) == ("dtd", 1):
            raise Interrupted("SIGTERM: saved step 3.")
        return suites.of_vtab(stage, task, seed, rate)

    trainings = train(stopped)
    with pytest.raises(Interrupted, match="saved step 3"):
        run(vtab_plan(), path)
    done, trainings = trainings.calls, train(suites.of_vtab)
    record = run(vtab_plan(), path)
    assert trainings.calls[0] == done[-1] and len(done) + len(trainings.calls) == 58
    fresh = path.with_name("fresh")
    trainings.path = fresh
    assert run(vtab_plan(), fresh) == record
    for name in ("suite.json", "suite.csv"):
        assert (fresh / name).read_bytes() == (path / name).read_bytes()


def test_another_suite_is_refused_untouched(path, train):
    trainings, content = train(suites.of_vtab), '{"command": "pipelines.sweep --suite", "suite": 1}'
    path.mkdir()
    (path / "suite.json").write_text(content)
    with pytest.raises(UserError, match="holds the suite 1, not vtab"):
        run(vtab_plan(), path)
    assert os.listdir(path) == ["suite.json"] and (path / "suite.json").read_text() == content
    assert trainings.calls == []


def test_other_settings_and_damaged_results_are_refused(path, train):
    trainings = train(suites.of_vtab)
    run(vtab_plan(seeds=1), path)
    count = len(trainings.calls)
    for setting, text in (
        ("train.steps=100", "caltech101,seed=0: .*train.steps: 2500 -> 100"),
        ("train.eval_batches=3", "train.eval_batches: 0 -> 3"),
    ):
        with pytest.raises(UserError, match=f"another configuration.*{text}"):
            run(plan_of("vtab", setting, init_from=L16), path)
    # Seeds may be added, and settings that change no result.
    record = run(plan_of("vtab", "train.log_every=7", init_from=L16, seeds=2), path)
    assert len(trainings.calls) == 2 * count
    accuracies = [(32 + 36 + seed) / 128 for seed in range(2)]
    assert record["tasks"]["smallnorb_elevation"]["mean"] == statistics.fmean(accuracies)
    file = path / f"final/{RATE}=0.01/pets,seed=1/result.json"
    file.write_text('{"loss": "low"}')
    with pytest.raises(UserError, match=r"result.json is damaged. Restore it, or delete"):
        run(vtab_plan(seeds=2), path)


def test_the_command(path, train, command):
    """--json prints the record and nothing else; without --workdir it is named after the suite."""
    trainings, flags = train(of_cifar), ["--suite=cifar10", f"--init_from={suites.B16}"]
    result = command("sweep", "--json", "--workdir=suite", *flags)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == json.loads((path / "suite.json").read_text())
    assert "trial 1 of 4: trials/optimizer.learning_rate=0.001/cifar10\n" in result.stderr
    # A suite of before these fields goes on with what was done then.
    for file in path.rglob("config.json"):
        config = json.loads(file.read_text())
        config["data"]["exif"] = "apply"
        del config["data"]["split_by"]
        file.write_text(json.dumps(config))
    count = len(trainings.calls)
    result = command("sweep", "--workdir=suite", "--seeds=4", *flags)
    assert result.returncode == 0 and len(trainings.calls) == count + 1, result.stderr
    [file] = path.glob("final/*/cifar10,seed=3/config.json")
    data = json.loads(file.read_text())["data"]
    assert (data["exif"], data["split_by"]) == ("apply", "file")
    trainings.path = path.with_name("runs") / "sweep-cifar10"
    result = command("sweep", *flags)
    assert result.returncode == 0 and "wrote runs/sweep-cifar10/suite.json" in result.stdout
    assert os.listdir(path.with_name("runs")) == ["sweep-cifar10"]
    trainings.accuracy = lambda *_: NAN
    trainings.path = path.with_name("other")
    result = command("sweep", "--workdir=other", *flags)
    assert result.returncode == 1 and "None of the settings ended with a finite" in result.stderr

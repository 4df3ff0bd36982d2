"""Sweeps: the protocol, what is picked and reported, and how they go on."""

import contextlib
import csv
import gc
import json
import os
import shutil
import signal

import keras
import pytest

import vit_tf
from pipelines.errors import Interrupted, RunError, UserError
from pipelines.research.lab import unit
from pipelines.research.lab.lab import Lab
from pipelines.research.sweeps import sweep
from pipelines.runs.workdir import Workdir
from tests.pipelines.process import assert_user_error, run_module
from tests.pipelines.research.sweeps import sweeps
from tests.pipelines.research.sweeps.sweeps import GOOD, RATE, RATES, TRIALS, plan_of
from tests.pipelines.tiny import as_flags, assert_same_weights, one_device, tiny_experiment
from tests.pipelines.training_runs import without_compiling

SHORT = ("model.layers=1", "train.steps=2", "schedule.warmup_steps=0")


@pytest.fixture(scope="module")
def initial(tmp_path_factory):
    return sweeps.write_initial(tmp_path_factory.mktemp("initial"))


@pytest.fixture
def train(monkeypatch, tmp_path):
    """`train(accuracies, losses)`: the `Trainings` of sweeps in `tmp_path / "sweep"`."""

    def replace(accuracies, losses=None):
        trainings = sweeps.Trainings(tmp_path / "sweep", accuracies, losses)
        monkeypatch.setattr(unit, "train", trainings)
        # There is no model to free, and a garbage collection takes half a second.
        monkeypatch.setattr(keras.utils, "clear_session", lambda: None)
        return trainings

    return replace


def test_the_protocol(tmp_path, train, logged):
    """Trials on a part of the data; the best again on all of it, with three seeds."""
    trainings, plan = train(GOOD), plan_of(RATES)
    record = sweep.run(plan, tmp_path / "sweep", one_device())
    finals = [f"final/{RATE}=0.02,seed={seed}" for seed in range(3)]
    assert trainings.calls == [*TRIALS, *finals]
    for experiment, rate in zip(trainings.experiments, (0.01, 0.02, 0.03), strict=False):
        # 10 % of 1,297 images is 130.
        splits = ("data.train_split=train[0:1167]", "data.eval_split=train[1167:1297]")
        assert experiment == tiny_experiment(f"{RATE}={rate}", *splits)
    for seed, experiment in enumerate(trainings.experiments[3:]):
        assert experiment == tiny_experiment(f"{RATE}=0.02", f"seed={seed}")

    assert record["picked"] == {RATE: 0.02} and record["metric"] == "accuracy"
    # By hand: the mean is 2.125 / 3; deviations -5/24, 1/24, 4/24, squares (25 + 1 + 16) / 576,
    # divided by 2.
    assert record["mean"] == pytest.approx(17 / 24, abs=1e-15)
    assert record["standard_deviation"] == pytest.approx((21 / 576) ** 0.5, abs=1e-15)
    assert json.loads((tmp_path / "sweep/sweep.json").read_text()) == record
    out = logged.take()
    assert f"\ntrial 1 of 3: trials/{RATE}=0.01\n" in out
    assert f"\ntrial 2 of 3: trials/{RATE}=0.02  ETA of all runs 0:00:0" in out
    assert f"\nfinal run 3 of 3: final/{RATE}=0.02,seed=2  ETA of all runs " in out
    assert (
        "   optimizer.learning_rate  accuracy on train[1167:1297]  loss\n"
        "   0.01                     50.00%                        1.0000\n"
        "*  0.02                     75.00%                        1.0000\n"
        "   0.03                     62.50%                        1.0000\n"
    ) in out
    assert (
        "accuracy on test after training on the whole split: 70.83% +- 19.09%, mean and sample "
        "standard deviation of 50.00% (seed 0), 75.00% (seed 1), 87.50% (seed 2)\n"
    ) in out
    with open(tmp_path / "sweep/sweep.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["stage"] for row in rows] == ["trial"] * 3 + ["final"] * 3
    assert [row["workdir"] for row in rows] == trainings.calls
    assert [float(row["accuracy"]) for row in rows] == list(GOOD.values())
    assert {(row["stage"], row["split"]) for row in rows} == {
        ("trial", "train[1167:1297]"),
        ("final", "test"),
    }


def test_failed_trials_are_listed_and_not_picked(tmp_path, train, logged):
    nan = float("nan")
    trainings = train({0.01: 0.5, 0.02: nan, 0.03: 0.25, (0.01, 0): 0.5})
    record = sweep.run(plan_of(RATES, seeds=1), tmp_path / "sweep", one_device())
    assert record["picked"] == {RATE: 0.01} and record["standard_deviation"] is None
    assert record["trials"][1]["result"] == {"failed": "The loss is not finite at step 1."}
    out = logged.take()
    assert "\n   0.02                     not finite\n" in out
    assert "after training on the whole split: 50.00% (seed 0)\n" in out
    # It is not tried again; the rest is finished.
    assert len(trainings.calls) == 4
    sweep.run(plan_of(RATES, seeds=1), tmp_path / "sweep", one_device())
    assert len(trainings.calls) == 4


def test_without_a_result_the_sweep_fails(tmp_path, train, logged):
    nan = float("nan")
    train({0.01: nan, 0.02: nan, 0.03: nan})
    with pytest.raises(RunError, match="None of the settings ended with a finite loss"):
        sweep.run(plan_of(RATES), tmp_path / "sweep", one_device())
    assert logged.take().count("not finite\n") == 3
    train(GOOD | {(0.02, 1): nan})
    with pytest.raises(RunError, match="1 of 3 final runs is not finite.*seed=1"):
        sweep.run(plan_of(RATES), tmp_path / "other", one_device())
    record = json.loads((tmp_path / "other/sweep.json").read_text())
    assert record["mean"] is None and record["picked"] == {RATE: 0.02}


@pytest.mark.parametrize("seeds", [0, 1])
def test_number_of_seeds(tmp_path, train, seeds):
    trainings = train(GOOD)
    record = sweep.run(plan_of(RATES, seeds=seeds), tmp_path / "sweep", one_device())
    assert len(trainings.calls) == 3 + seeds == 3 + len(record["final"])


@pytest.mark.parametrize(
    "stop", [Interrupted("SIGTERM: saved step 3."), KeyboardInterrupt(), signal.SIGTERM]
)
def test_an_interrupted_sweep_goes_on(tmp_path, train, monkeypatch, stop):
    """Finished trials are not run again; also after a signal between two runs."""
    trainings = train(GOOD)
    handler = signal.getsignal(signal.SIGTERM)
    if isinstance(stop, signal.Signals):
        time_left = Lab._time_left

        def interrupted(lab):
            if len(trainings.calls) == 1:
                os.kill(os.getpid(), stop)
            return time_left(lab)

        monkeypatch.setattr(Lab, "_time_left", interrupted)
    else:
        trainings.accuracies = GOOD | {0.02: stop}
    with pytest.raises(Interrupted, match="saved step 3|Start the same command again to go on"):
        sweep.run(plan_of(RATES), tmp_path / "sweep", one_device())
    assert signal.getsignal(signal.SIGTERM) is handler
    assert trainings.calls[0] == TRIALS[0] and TRIALS[2] not in trainings.calls
    monkeypatch.undo()
    again = train(GOOD)
    record = sweep.run(plan_of(RATES), tmp_path / "sweep", one_device())
    assert again.calls[:2] == TRIALS[1:] and len(again.calls) == 5
    assert record["mean"] == pytest.approx(17 / 24)


def test_a_sweep_that_lost_its_lease_writes_nothing_more(tmp_path, train, monkeypatch):
    """The lease is lost during the second trial, or before the table is written."""
    path = tmp_path / "sweep"
    for allowed in (2, 7):
        checks = []

        def check(checks=checks, allowed=allowed):
            checks.append(path.exists() and sorted(os.listdir(path)))
            if len(checks) > allowed:
                raise RunError("taken over")

        @contextlib.contextmanager
        def leased(workdir, check=check):
            workdir.mkdir(exist_ok=True)
            yield check

        monkeypatch.setattr(sweep, "written_by_chief", leased)
        train(GOOD)
        with pytest.raises(RunError, match="taken over"):
            sweep.run(plan_of(RATES, seeds=2), path, one_device())
        record = json.loads((path / "sweep.json").read_text())
        done = [row for row in [*record["trials"], *record["final"]] if row["result"]]
        assert not (path / "sweep.csv").exists()
        assert (len(done), "mean" in record) == {2: (1, False), 7: (5, True)}[allowed]
        shutil.rmtree(path)


def test_trials_may_be_added(tmp_path, train):
    """With a new best, its own final runs follow; settings without an effect may change."""
    train(GOOD)
    sweep.run(plan_of(RATES), tmp_path / "sweep", one_device())
    more = {0.04: 0.9, **{(0.04, seed): 0.25 for seed in range(3)}}
    trainings = train(more)
    plan = plan_of(f"{RATE}=0.04,0.01,0.02,0.03", settings=("train.log_every=5",))
    record = sweep.run(plan, tmp_path / "sweep", one_device())
    assert len(trainings.calls) == 4 and record["picked"] == {RATE: 0.04}
    assert (record["mean"], record["standard_deviation"]) == (0.25, 0.0)
    assert [row["result"]["accuracy"] for row in record["trials"]] == [0.9, 0.5, 0.75, 0.625]


@pytest.mark.parametrize(
    ("grid", "changed", "text"),
    [
        (f"{RATE}=0.01,0.02", {}, f"--grid no longer has: {RATE}=0.03"),
        ("train.steps=5", {}, f"--grid no longer has: {RATE}=0.01"),
        (RATES, {"hold_out": 0.2}, "hold_out: 0.1 -> 0.2"),
        (RATES, {"settings": ("train.batch_size=8",)}, "train.batch_size: 16 -> 8"),
        (RATES, {"settings": ("train.eval_batches=2",)}, "train.eval_batches: 0 -> 2"),
        (RATES, {"settings": ("data.train_split=train[:50%]",)}, "data.train_split"),
    ],
)
def test_another_sweep_is_refused(tmp_path, train, grid, changed, text):
    trainings = train(GOOD)
    sweep.run(plan_of(RATES), tmp_path / "sweep", one_device())
    before = (tmp_path / "sweep/sweep.json").read_bytes()
    with pytest.raises(UserError, match="Choose another --workdir") as caught:
        sweep.run(plan_of(grid, **changed), tmp_path / "sweep", one_device())
    assert text in str(caught.value) and len(trainings.calls) == 6
    assert (tmp_path / "sweep/sweep.json").read_bytes() == before


def test_changed_data_are_refused(tmp_path, train):
    train(GOOD)
    sweep.run(plan_of(RATES), tmp_path / "sweep", one_device())
    file = tmp_path / "sweep/sweep.json"
    file.write_text(file.read_text().replace("train[1167:1297]", "train[1171:1301]"))
    with pytest.raises(UserError, match=r"data of .* have changed: train\[1171:1301\] was held"):
        sweep.run(plan_of(RATES), tmp_path / "sweep", one_device())


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("notes.txt", "mine", "holds no sweep"),
        ("sweep.json", "{}", "was not written by pipelines.sweep"),
        ("sweep.json", "[]", "sweep.json"),
        ("sweep.json", '{"command": "pipelines.sweep"}', "is damaged"),
        ("sweep.json", '{"command": "pipelines.sweep", "trials": [3], "final": []}', "is damaged"),
    ],
)
def test_other_directories_are_refused_untouched(tmp_path, train, name, content, text):
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=text):
        sweep.run(plan_of(RATES), tmp_path, one_device())
    assert os.listdir(tmp_path) == [name] and (tmp_path / name).read_text() == content


def test_damaged_results_are_refused(tmp_path, train):
    train(GOOD)
    record = sweep.run(plan_of(RATES), tmp_path / "sweep", one_device())
    for result in ({"loss": "low"}, [1], {"accuracy": 1}, "good"):
        record["trials"][0]["result"] = result
        (tmp_path / "sweep/sweep.json").write_text(json.dumps(record))
        with pytest.raises(UserError, match="is damaged"):
            sweep.run(plan_of(RATES), tmp_path / "sweep", one_device())


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        ([], ["--grid is missing", f"--grid {RATE}="]),
        ([f"--grid={RATE}"], ["--grid needs path=value", repr(RATE)]),
        (["--grid=optimizer.lr=1,2"], ["'optimizer.lr' in --grid optimizer.lr=1", RATE]),
        (["--grid=model.layer=1,2"], ["Unknown model field 'layer'", "layers"]),
        ([f"--grid={RATE}=0.1,high"], [RATE, "'high'"]),
        ([f"--grid={RATE}=0.1,1e-1"], ["twice", f"{RATE}=0.1"]),
        ([f"--grid={RATE}=1", f"--grid={RATE}=2"], ["given twice"]),
        (["--grid=train.epochs=1,2"], ["train.steps and train.epochs are two lengths"]),
        (["--grid=train.steps=2,20"], ["schedule.warmup_steps=3 must be below train.steps=2"]),
        (["--grid=train.steps=500,,2000"], ["--grid needs path=value", "500,,2000"]),
        (["--grid=train.eval_batches=1,0"], ["the same train.eval_batches"]),
        (["--grid=train.accumulate_steps=1,3"], ["train.batch_size=16 is not a multiple of 3"]),
        (["--grid=seed=1,2"], ["the same seed", "--set"]),
        (["--grid=data.name=digits,digits/low"], ["the same data.name"]),
        ([f"--grid={RATES}", "--hold_out=1"], ["--hold_out must be above 0 and below 1"]),
        ([f"--grid={RATES}", "--set=data.train_split=train[:1]"], ["leaves no examples of digits"]),
        ([f"--grid={RATES}", "--set=data.eval_split=none"], ["data.eval_split is none"]),
        ([f"--grid={RATES}", "--set=seed=2147483646"], ["seed must be in [0, 2^31)"]),
        ([f"--grid={RATES}", "--seeds=-1"], ["--seeds"]),
        ([f"--grid={RATES}", "--init_from=nowhere"], ["nowhere"]),
        (["--grid=init_from=nowhere,shipped"], ["nowhere"]),
    ],
    ids=str,
)
def test_wrong_input_is_one_sentence_before_any_training(
    tmp_path, train, command, arguments, texts
):
    trainings = train(GOOD)
    result = command("sweep", "--workdir=sweep", *as_flags(), *arguments)
    assert_user_error(result, *texts)
    assert os.listdir(tmp_path) == [] and trainings.calls == []


def test_the_command(tmp_path, train, initial, command):
    """--dry_run writes nothing; --json prints one object, and everything else on stderr."""
    trainings = train(GOOD)
    flags = [*as_flags(), "--workdir=sweep"]
    own = ["--dry_run", "--hold_out=0.2", f"--grid={RATES}", "--set=init_from=none"]
    result = command("sweep", *own, *flags)
    assert result.returncode == 0, result.stderr
    origin, model, optimizer, first, *_, on, final, total = result.stdout.splitlines()
    assert origin.startswith("recipe digits: A small ViT on the 8 x 8")
    assert model.startswith("ViT-Ti/16 at 12 x 12 on digits: 12 steps of 16 images")
    assert optimizer.startswith("adamw with a rate of 0.002, warm-up of 3 steps")
    step = 6 * 16 * vit_tf.cost.macs(tiny_experiment().model.config(10))
    assert first == f"trial 1 of 3: {RATE}=0.01: 12 steps, {step * 12 / 1e6:.3g} MFLOPs"
    assert "train on train[0:1038] and are compared on train[1038:1297]" in on
    assert "final runs of the best: 3, on train, tested on test" in final
    assert f"all runs: at most {6 * step * 12 / 1e6:.3g} MFLOPs" in total
    assert os.listdir(tmp_path) == [] and trainings.calls == []

    flags.append(f"--init_from={initial}")
    result = command("sweep", "--json", f"--grid={RATES}", *flags)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["picked"] == {RATE: 0.02}
    assert "trial 1 of 3" in result.stderr
    assert {experiment.init_from for experiment in trainings.experiments} == {str(initial)}
    trainings.accuracies = GOOD | {0.04: Interrupted("SIGTERM: saved step 1.")}
    result = command("sweep", f"--grid={RATES},0.04", *flags)
    assert result.returncode == 75, result.stderr

    # A sweep of before these fields goes on with what was done then.
    file = tmp_path / "sweep" / "sweep.json"
    record = json.loads(file.read_text())
    assert trainings.experiments[-1].data.exif == "apply"
    for field in ("exif", "split_by"):
        del record["experiment"]["data"][field]
    file.write_text(json.dumps(record))
    result = command("sweep", f"--grid={RATES},0.04", *flags)
    assert result.returncode == 75, result.stderr
    data = trainings.experiments[-1].data
    assert (data.exif, data.split_by) == ("ignore", "file")
    result = command("sweep", f"--grid={RATES}", "--set=data.exif=apply", *flags)
    assert_user_error(result, "another configuration", "data.exif")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A real sweep of two trials and one final run, and the live models before each training."""
    path, live = tmp_path_factory.mktemp("finished") / "sweep", []
    plan = plan_of(f"{RATE}=0.01,0.02", seeds=1, settings=SHORT)
    original = unit.train
    keras.utils.clear_session()  # Frees what earlier tests have left.

    def train(*arguments, **options):
        live.append(sum(isinstance(thing, keras.Model) for thing in gc.get_objects()))
        return original(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unit, "train", train)
        with without_compiling():
            record = sweep.run(plan, path, one_device())
    return path, record, live


def test_a_real_sweep(finished):
    path, record, _ = finished
    rows = [*record["trials"], *record["final"]]
    assert len(rows) == 3
    for row, rate in zip(rows, (0.01, 0.02, record["picked"][RATE]), strict=True):
        run = Workdir(path / row["workdir"])
        last = run.read_metrics()[-1]
        assert row["result"] == {k[5:]: v for k, v in last.items() if k.startswith("eval_")}
        assert run.read_experiment().optimizer.learning_rate == rate
    assert [row["result"]["examples"] for row in rows] == [130, 130, 300]
    best = max(record["trials"], key=lambda row: row["result"]["accuracy"])
    assert record["picked"] == best["values"]
    assert record["mean"] == rows[-1]["result"]["accuracy"]


def test_one_model_is_kept_for_all_runs(finished):
    """What a run draws its initial weights with is freed."""
    first, *others = finished[2]
    assert others == [first + 1] * 2


@pytest.mark.process
def test_a_trial_is_the_run_of_pretrain(finished, tmp_path):
    """The second trial in a process has the bits of the same run in a process of its own."""
    path, record, _ = finished
    trial = path / record["trials"][1]["workdir"]
    arguments = [f"--config={trial}/config.json", "--workdir=run", "--strategy=one_device"]
    program = "tests.pipelines.programs.uncompiled"
    result = run_module(program, "pretrain", *arguments, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert_same_weights(tmp_path / "run", trial, ["final.npz"])
    last = Workdir(tmp_path / "run").read_metrics()[-1]
    assert last["eval_loss"] == record["trials"][1]["result"]["loss"]

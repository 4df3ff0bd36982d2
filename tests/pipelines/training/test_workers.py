"""Workers, as processes of this machine, train the model that one device trains."""

import json
import os
import shutil
import signal
import time

import numpy as np
import pytest
import tensorflow as tf

from pipelines.runs import checkpoints
from pipelines.runs.workdir import Workdir
from pipelines.training.train import train
from tests.pipelines.distribution.local_workers import PROGRAM, run, started
from tests.pipelines.equal_runs import assert_equal_runs, assert_equal_weights, everything
from tests.pipelines.tiny import as_flags, cut_short, losses, one_device, tiny_experiment
from tests.pipelines.training_runs import without_compiling

pytestmark = pytest.mark.process

# What draws and what is restored, with evaluations, checkpoints and a profile.
MUCH = (
    "model.layers=1",
    "optimizer.name=sgd",
    "optimizer.learning_rate=0.05",
    "data.eval_split=test[:50]",
    "data.mixup=0.5",
    "data.randaugment_layers=2",
    "train.accumulate_steps=2",
    "train.checkpoint_every=4",
    "train.ema_decay=0.9",
    "train.eval_every=5",
    "train.keep_best=true",
    "train.profile=6:8",
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The workdir of a run on one device."""
    folder = tmp_path_factory.mktemp("whole")
    train(tiny_experiment(*MUCH), folder, one_device())
    return folder


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """A run of two workers after SIGTERM to worker 1: its workdir and its workers."""
    folder = tmp_path_factory.mktemp("workers")
    command = ["-m", PROGRAM, "terminated", 1, "pretrain", "--workdir=run", *as_flags(*MUCH)]
    return folder / "run", run(folder, *command, code=75)


def test_a_signal_to_one_worker_saves_and_ends_all(interrupted):
    workdir, workers = interrupted
    step = checkpoints.newest(workdir / "checkpoints")
    assert 5 <= step < 12
    for index, worker in enumerate(workers):
        assert f"SIGTERM: saved step {step}. Start the same command again" in worker.output
        # All train; worker 0 tells the steps.
        assert (f"worker {index}: step 5/12  loss" in worker.output) == (index == 0)
    assert not (workdir / "final.npz").exists()


@pytest.mark.heavy("training")
def test_resumed_workers_equal_one_device(interrupted, whole, tmp_path):
    shutil.copytree(interrupted[0], tmp_path / "run")
    first = checkpoints.newest(tmp_path / "run" / "checkpoints")
    command = ["-m", PROGRAM, "slow_clock", 1, "pretrain", "--workdir=run", *as_flags(*MUCH)]
    workers = run(tmp_path, *command)
    assert f"resuming from step {first}" in workers[0].output
    assert_equal_runs(tmp_path / "run", whole, "sgd")
    assert _files(tmp_path / "run") == _files(whole)
    lines, expected = (Workdir(path).read_metrics() for path in (tmp_path / "run", whole))
    assert [line["step"] for line in lines] == [line["step"] for line in expected]
    for line, one in zip(lines, expected, strict=True):
        if "eval_loss" in one:
            assert line["eval_examples"] == one["eval_examples"] == 50
            assert line["eval_loss"] == pytest.approx(one["eval_loss"], rel=1e-5)
    starts = json.loads((tmp_path / "run" / "manifest.json").read_text())["starts"]
    assert [start["hosts"] for start in starts] == [2, 2]
    assert starts[0]["strategy"] == "2 replicas on CPU of 2 workers"


@pytest.mark.heavy("training")
def test_a_run_of_two_workers_resumes_on_one_device(interrupted, whole, tmp_path):
    shutil.copytree(interrupted[0], tmp_path / "run")
    train(tiny_experiment(*MUCH), tmp_path / "run", one_device())
    assert_equal_runs(tmp_path / "run", whole, "sgd")


@pytest.mark.heavy("training")
def test_workers_that_share_the_optimizer_equal_one_device(interrupted, whole, tmp_path):
    """They go on from whole slots and an average of others, and one device from theirs."""
    shutil.copytree(interrupted[0], tmp_path / "run")
    shared = ["train.shard_optimizer=true", "train.inspect_every=6"]
    run(tmp_path, "-m", "pipelines.pretrain", "--workdir=run", *as_flags(*MUCH, *shared))
    assert_equal_runs(tmp_path / "run", whole, "sgd")
    received, expected = (
        tf.train.load_checkpoint(checkpoints.prefix(path / "checkpoints", 12))
        for path in (tmp_path / "run", whole)
    )
    shapes = expected.get_variable_to_shape_map()
    assert received.get_variable_to_shape_map() == shapes
    for name in shapes:
        if name.startswith(("optimizer/", "ema/")) and "key/bias" not in name:
            slot = expected.get_tensor(name)
            np.testing.assert_allclose(
                received.get_tensor(name), slot, rtol=0, atol=1e-5 * np.abs(slot).max()
            )
    again = cut_short(tmp_path / "run", tmp_path / "again", 8)
    with without_compiling():
        train(tiny_experiment(*MUCH), again, one_device())
    assert_equal_runs(again, whole, "sgd")


def _files(workdir):
    """The files of a run, without what is in a name by chance."""
    found = set()
    for folder, _, names in os.walk(workdir):
        kinds = {name.partition(".tfevents")[0].partition(".xplane")[0] for name in names}
        found |= {os.path.relpath(os.path.join(folder, kind), workdir) for kind in kinds}
    return {path for path in found if "plugins" not in path and not path.startswith("checkpoints")}


@pytest.mark.heavy("training")
def test_two_workers_equal_one_device_with_everything(tmp_path):
    settings = [
        *everything("adamw"),
        "train.accumulate_steps=2",
        "train.few_shot_every=6",
        "few_shot.shots=1",
        "data.eval_split=test[:50]",
    ]
    run(tmp_path, "-m", "pipelines.pretrain", "--workdir=run", *as_flags(*settings))
    train(tiny_experiment(*settings), tmp_path / "whole", one_device())
    assert_equal_runs(tmp_path / "run", tmp_path / "whole", "adamw")
    found, expected = (
        [line for line in Workdir(tmp_path / name).read_metrics() if "few_shot_1_accuracy" in line]
        for name in ("run", "whole")
    )
    assert [line["step"] for line in found] == [line["step"] for line in expected] == [0, 6, 12]
    assert found[0]["few_shot_1_accuracy"] == expected[0]["few_shot_1_accuracy"]


@pytest.mark.release
def test_three_workers_with_two_devices_each_equal_one_device(tmp_path):
    settings = [*everything("sgd"), "train.batch_size=24"]
    command = [
        "-m",
        "pipelines.pretrain",
        "--workdir=run",
        "--logical_cpus=2",
        *as_flags(*settings),
    ]
    run(tmp_path, *command, count=3)
    train(tiny_experiment(*settings), tmp_path / "whole", one_device())
    assert_equal_runs(tmp_path / "run", tmp_path / "whole", "sgd")


@pytest.mark.release
def test_two_workers_equal_one_device_with_a_loss_scale(tmp_path):
    """Activations are rounded to float16, so its 11 bits set the tolerances."""
    settings = [*MUCH, "model.dtype=mixed_float16"]
    run(tmp_path, "-m", "pipelines.pretrain", "--workdir=run", *as_flags(*settings))
    train(tiny_experiment(*settings), tmp_path / "whole", one_device())
    np.testing.assert_allclose(losses(tmp_path / "run"), losses(tmp_path / "whole"), rtol=2e-3)
    lines = Workdir(tmp_path / "run").read_metrics()
    assert {line["loss_scale"] for line in lines if "loss" in line} == {2.0**15}
    assert_equal_weights(tmp_path / "run", tmp_path / "whole", 2.0**-11)


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Digits in two TFRecord files."""
    from tests.pipelines.process import run_command

    folder = tmp_path_factory.mktemp("records")
    result = run_command(
        "make_tfrecords", "--set=data.name=digits/all", "--output=records", "--shards=2", cwd=folder
    )
    assert result.returncode == 0, result.stderr
    return folder / "records"


@pytest.mark.release
def test_files_equal_one_process_that_is_fed_the_slices_of_both_hosts(records, tmp_path):
    """The batches of two hosts, in one process: the slices of their pipelines, side by side."""
    from pipelines.training.train_data import TrainData

    settings = [*everything("sgd"), f"data.name=tfrecord:{records}", "data.sharding=files"]
    run(tmp_path, "-m", "pipelines.pretrain", "--workdir=run", *as_flags(*settings))

    def of_both_hosts(self, start, context=None):
        hosts = [
            TrainData._dataset(self, start, None, tf.distribute.InputContext(2, host, 2))
            for host in range(2)
        ]
        return tf.data.Dataset.zip(tuple(hosts)).map(
            lambda *parts: {key: tf.concat([x[key] for x in parts], 0) for key in parts[0]}
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainData, "dataset", of_both_hosts)
        train(tiny_experiment(*settings), tmp_path / "whole", one_device())
    assert_equal_runs(tmp_path / "run", tmp_path / "whole", "sgd")


FAST = as_flags("model.layers=1", "train.steps=20000", "train.checkpoint_every=0")


@pytest.mark.parametrize(
    "command",
    [["pretrain", "--workdir=run", *FAST], ["evaluate", "--model=shipped"]],
    ids=lambda x: x[0],
)
def test_a_signal_while_workers_prepare_ends_them(tmp_path, command):
    """TensorFlow's coordination service has a handler of its own, which drops SIGTERM."""
    run(tmp_path, "-m", PROGRAM, "terminated_early", "all", *command, code=-signal.SIGTERM)


@pytest.mark.heavy("training")
@pytest.mark.parametrize(
    ("event", "worker"),
    [
        ("killed", 1),
        pytest.param("killed", 0, marks=pytest.mark.release),
        pytest.param("stopped", 1, marks=pytest.mark.release),
        ("sleeping", 1),
    ],
)
def test_a_lost_worker_ends_the_others(tmp_path, event, worker):
    arguments = ["-m", PROGRAM, event, worker, "pretrain", "--workdir=run", *FAST]
    with started(tmp_path, arguments) as workers:
        other = workers[1 - worker]
        if event == "killed":
            assert workers[worker].code == -signal.SIGKILL
            begin = time.monotonic()
        assert other.code == 76, other.output
        if event == "killed":  # What hangs does not say since when.
            assert time.monotonic() - begin < 60
        text = other.error
    assert text.startswith(f"Worker {worker} (127.0.0.1:")
    assert ("was lost: its process" if event == "killed" else "hangs: no step, ") in text


@pytest.mark.heavy("training")
@pytest.mark.parametrize(
    ("event", "text"),
    [
        ("other_code", "Workers 0 and 1 differ (worker 0 -> worker 1): code.pipelines/config/data"),
        ("other_ops", "differ (worker 0 -> worker 1): compiled ops.library: "),
        ("other_weights", "Workers 0 and 1 have different weights before the first step"),
    ],
)
def test_workers_with_other_programs_or_weights_end(tmp_path, event, text):
    command = ["-m", PROGRAM, event, 1, "pretrain", "--workdir=run", *as_flags()]
    for worker in run(tmp_path, *command, code=2):
        assert text in worker.error
    assert not (tmp_path / "run" / "checkpoints").exists() or not os.listdir(
        tmp_path / "run" / "checkpoints"
    )


@pytest.mark.heavy("training")
@pytest.mark.parametrize(
    ("command", "own", "text"),
    [
        (
            ["pretrain", "--workdir=run", *as_flags()],
            "--set=train.steps=13",
            "--set train.steps: '12' -> '13'",
        ),
        (["evaluate", "--model=shipped"], "--max_batches=2", "--max_batches: 0 -> 2"),
    ],
    ids=["pretrain", "evaluate"],
)
def test_workers_with_other_flags_end(tmp_path, command, own, text):
    name, *flags = command
    for worker in run(tmp_path, "-m", f"pipelines.{name}", *flags, own={1: [own]}, code=2):
        assert f"have different flags (worker 0 -> worker 1): {text}. Start" in worker.error
    assert not (tmp_path / "run").exists()


@pytest.mark.heavy("training")
def test_workers_with_other_settings_end(tmp_path):
    """The machines have different files of the same name."""
    (tmp_path / "elsewhere").mkdir()
    for folder, steps in ((tmp_path, 12), (tmp_path / "elsewhere", 13)):
        settings = tiny_experiment(f"train.steps={steps}").to_dict()
        (folder / "config.json").write_text(json.dumps(settings))
    flags = ["--config=config.json", f"--workdir={tmp_path}/run"]
    for worker in run(tmp_path, "-m", PROGRAM, "elsewhere", 1, "pretrain", *flags, code=2):
        assert "different configurations (worker 0 -> worker 1): " in worker.error
        assert "train.steps: 12 -> 13" in worker.error
    assert not (tmp_path / "run").exists()

"""What docs/cluster.md says that workers agree on, with faults that only one of them sees."""

import json

import numpy as np
import pytest
import tensorflow as tf

from pipelines.data.exclusion import exclusion
from pipelines.data.sources.open import open_source
from pipelines.runs.json_file import write_json
from pipelines.runs.workdir import Workdir
from pipelines.training.train import train
from tests.pipelines.distribution.local_workers import PROGRAM, run
from tests.pipelines.process import run_command
from tests.pipelines.tiny import as_flags, losses, one_device, tiny_experiment
from tests.pipelines.training.faults import (
    BAD,
    COMMON,
    experiment_with,
    ids_of,
    records,
    spoil,
)

pytestmark = [pytest.mark.process, pytest.mark.heavy("training")]


def _write_images(folder, count=64, bad=()):
    """Images of two classes, dark and bright; those in `bad` are no images."""
    draw = np.random.default_rng(0)
    for number in range(count):
        pixels = draw.integers(0, 100, [12, 12, 3]) + 100 * (number % 2)
        data = tf.io.encode_png(pixels.astype(np.uint8)).numpy()
        path = folder / ("dark", "bright")[number % 2] / f"{number:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data[:40] if number in bad else data)
    return folder


def _assert_close(workdir, expected):
    assert len(losses(expected)) > 1
    np.testing.assert_allclose(losses(workdir), losses(expected), rtol=1e-5)


def _settings(folder, *more):
    return (
        "model.layers=1",
        "optimizer.name=sgd",
        "optimizer.learning_rate=0.05",
        f"data.name=folder:{folder}",
        "data.eval_split=train[:50%]",
        "data.scan=none",
        *more,
    )


def test_images_that_one_worker_cannot_read_are_named_by_the_chief(tmp_path):
    """Every batch has all images, so both workers meet bad ones; the evaluation ends the run."""
    data = _write_images(tmp_path / "data", bad=(3, 20, 41))
    settings = _settings(
        data,
        "train.batch_size=32",
        "data.bad_images=skip",
        "train.eval_every=3",
        "train.early_stop_after=2",
        "train.best_metric=evaluation",
    )
    run(tmp_path, "-m", "pipelines.pretrain", "--workdir=run", *as_flags(*settings))
    train(tiny_experiment(*settings), tmp_path / "one", one_device())
    _assert_close(tmp_path / "run", tmp_path / "one")
    lines, expected = (Workdir(tmp_path / name).read_metrics() for name in ("run", "one"))
    assert lines[-1]["step"] == expected[-1]["step"] < 12
    assert lines[-1]["eval_examples"] == expected[-1]["eval_examples"]
    bad, wanted = (_bad_images(tmp_path / name) for name in ("run", "one"))
    assert bad == wanted
    assert len(bad) == 3


def _bad_images(workdir):
    lines = (workdir / "bad_images.jsonl").read_text().splitlines()
    names = [json.loads(line)["name"] for line in lines]
    assert len(set(names)) == len(names)
    return set(names)


@pytest.mark.release
def test_an_image_that_one_worker_cannot_read_ends_all(tmp_path):
    data = _write_images(tmp_path / "data", bad=(20,))
    for worker in run(
        tmp_path, "-m", "pipelines.pretrain", "--workdir=run", *as_flags(*_settings(data)), code=2
    ):
        assert "dark/20.png" in worker.error
        assert "cannot be decoded" in worker.error


@pytest.mark.parametrize(
    "action",
    ["stop", "skip", pytest.param("rewind", marks=pytest.mark.release)],
)
def test_a_step_that_is_not_finite(tmp_path, monkeypatch, action):
    settings = [*COMMON, f"train.non_finite={action}"]
    command = [
        "-m",
        PROGRAM,
        "not_finite",
        "all",
        "pretrain",
        "--workdir=run",
        *as_flags(*settings),
    ]
    workers = run(tmp_path, *command, code=1 if action == "stop" else 0)
    if action == "stop":
        for worker in workers:
            assert f"The loss is not finite at step {BAD}, " in worker.error
    else:
        spoil(monkeypatch, ids_of(experiment_with(), BAD)[-1:])
        train(experiment_with(f"train.non_finite={action}"), tmp_path / "one", one_device())
        _assert_close(tmp_path / "run", tmp_path / "one")
        (found,), (expected,) = records(tmp_path / "run"), records(tmp_path / "one")
        for key in ("step", "batch", "what", "action", "ids", "shown_by"):
            assert found[key] == expected[key], key
    assert len(records(tmp_path / "run")) == 1


def test_different_data(tmp_path):
    """The machines have different folders of the same name."""
    _write_images(tmp_path / "data")
    _write_images(tmp_path / "elsewhere" / "data", count=66)
    settings = as_flags(*_settings("data"))
    command = ["-m", PROGRAM, "elsewhere", 1, "pretrain", f"--workdir={tmp_path}/run", *settings]
    for worker in run(tmp_path, *command, code=2):
        assert "have different data (worker 0 -> worker 1): " in worker.error
    assert not (tmp_path / "run").exists()


@pytest.mark.release
def test_different_parts_of_the_data(tmp_path):
    """The machines have different lists of the same name; the evaluation reads the whole split."""
    (tmp_path / "elsewhere").mkdir()
    split = open_source("digits", "train")
    for folder, left_out in ((tmp_path, 5), (tmp_path / "elsewhere", 6)):
        write_json(folder / "list.json", exclusion(split, np.array([left_out])))
    settings = as_flags("data.train_split=train", "data.eval_split=train", "data.exclude=list.json")
    command = ["-m", PROGRAM, "elsewhere", 1, "pretrain", f"--workdir={tmp_path}/run", *settings]
    for worker in run(tmp_path, *command, code=2):
        text = "have different data (worker 0 -> worker 1): train.exclude.list: "
        assert text in worker.error
    assert not (tmp_path / "run").exists()


def test_a_workdir_that_is_not_shared(tmp_path):
    """Worker 1 has a folder of the same name, with the files of another run that was killed."""
    other = tmp_path / "elsewhere" / "run"
    other.mkdir(parents=True)
    write_json(other / "config.json", tiny_experiment().to_dict())
    write_json(other / "lock", {"pid": 1, "host": "host", "since": "2026-01-01 00:00:00 +0000"})
    command = ["-m", PROGRAM, "elsewhere", 1, "pretrain", "--workdir=run", *as_flags()]
    for worker in run(tmp_path, *command, code=2):
        assert "Worker 1 does not see the workdir of worker 0, run." in worker.error
    assert not (tmp_path / "run").exists()


def test_evaluation_and_features_equal_one_process(tmp_path):
    flags = ["--set=data.eval_split=test[:50]", "--set=train.batch_size=16", "--json"]
    command = ["evaluate", "--model=shipped", *flags, "--report=report"]
    chief, other = run(tmp_path, "-m", f"pipelines.{command[0]}", *command[1:])
    one = run_command(*command[:-1], "--report=one", cwd=tmp_path)
    found, expected = json.loads(chief.stdout.read_text()), json.loads(one.stdout)
    assert found["examples"] == expected["examples"] == 50
    assert found["accuracy"] == expected["accuracy"]
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    assert other.stdout.read_text() == ""
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == names

    flags = ["--shots=1,2", "--seeds=1", "--l2=1", "--noprobe", "--set=train.batch_size=64"]
    command = ["fewshot", "--model=shipped", *flags, "--json", "--output=few"]
    for _ in range(2):  # The second time from the file.
        chief, other = run(tmp_path, "-m", f"pipelines.{command[0]}", *command[1:])
        assert other.stdout.read_text() == ""
    one = run_command(*command[:-1], "--output=one-few", cwd=tmp_path)
    found, expected = json.loads(chief.stdout.read_text()), json.loads(one.stdout)
    assert found == expected


@pytest.mark.release
def test_a_sweep_equals_that_of_one_process(tmp_path):
    grid = "--grid=optimizer.learning_rate=0.01,0.05"
    settings = as_flags("model.layers=1", "train.steps=4", "data.eval_split=test[:50]")
    command = ["sweep", grid, "--seeds=1", *settings]
    run(tmp_path, "-m", f"pipelines.{command[0]}", *command[1:], "--workdir=run")
    one = run_command(*command, "--workdir=one", "--strategy=one_device", cwd=tmp_path)
    assert one.returncode == 0, one.stderr
    found, expected = (
        json.loads((tmp_path / name / "sweep.json").read_text()) for name in ("run", "one")
    )
    assert found["picked"] == expected["picked"]
    for row, wanted in zip(
        found["trials"] + found["final"], expected["trials"] + expected["final"], strict=True
    ):
        assert row["values"] == wanted["values"]
        assert row["result"]["loss"] == pytest.approx(wanted["result"]["loss"], rel=1e-4)

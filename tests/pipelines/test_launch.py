"""The command `launch`: what it starts, and wrong input."""

import os
import sys

import pytest

from pipelines.distribution import launcher
from tests.pipelines.process import assert_user_error


@pytest.mark.parametrize("dashes", [["--"], []])
def test_the_rest_of_the_line_belongs_to_the_command(command, monkeypatch, dashes):
    started = []
    monkeypatch.setattr(launcher, "launch", lambda *args, **kwargs: started.append((args, kwargs)))
    flags = ["--local_workers=3", "--restarts=4", "--restart_seconds=2", "--grace_seconds=5"]
    given = ["pretrain", "--set=train.steps=3", "--workdir", "a"]
    result = command("launch", *flags, *dashes, *given)
    assert result.returncode == 0, result.stderr
    expected = [sys.executable, "-m", "pipelines.pretrain", *given[1:], "--strategy=multi_worker"]
    assert started == [((expected, 3), {"restarts": 4, "pause": 2.0, "grace": 5.0})]


def test_help_behind_the_command_is_that_of_the_command(command, monkeypatch):
    started = []
    monkeypatch.setattr(launcher, "launch", lambda command, *_, **__: started.append(command))
    assert "--local_workers" in command("launch", "--help").stdout and not started
    assert command("launch", "--", "pretrain", "--help").stdout == ""
    assert started[0][3:] == ["--help", "--strategy=multi_worker"]


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        ([], ["no command to start", "-- pretrain"]),
        (["--"], ["no command to start"]),
        (["--", "pretrian"], ["'pretrian' is no command", "Did you mean pretrain?"]),
        (["--", "predict"], ["'predict' is no command", "pretrain, finetune, evaluate"]),
        (["--", "sweep", "--strategy=tpu"], ["--strategy is chosen by launch", "Leave it out"]),
        (["--", "pretrain", "-workers", "a:1"], ["--workers is chosen by launch"]),
        (["--", "evaluate", "--worker_index=1"], ["--worker_index is chosen by launch"]),
        (["--local_workers=0", "--", "pretrain"], ["local_workers"]),
        (["--restarts=-1", "--", "pretrain"], ["restarts"]),
        (["--grace_seconds=-1", "--", "pretrain"], ["grace_seconds"]),
        (["--local_worker=2", "--", "pretrain"], ["--local_worker", "Did you mean"]),
    ],
    ids=lambda value: " ".join(value[-2:]),
)
def test_wrong_input_is_one_sentence(command, tmp_path, arguments, texts):
    assert_user_error(command("launch", *arguments), *texts)
    assert os.listdir(tmp_path) == []

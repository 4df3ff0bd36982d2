"""The commands as processes: exit codes, signals, and what other packages print."""

import io
import json
import os
import subprocess
import sys

import pytest

from pipelines.cli.command_names import commands
from pipelines.distribution.log_lines import LineHandler, attached
from pipelines.runs.workdir import Workdir
from pipelines.training.train import train
from tests.pipelines.process import ROOT, assert_user_error, run_command, run_module
from tests.pipelines.tiny import as_flags, assert_same_weights, one_device, tiny_experiment

LONG = (
    "model.layers=1",
    "train.steps=60",
    "train.deterministic=true",
    "train.log_every=5",
    "train.checkpoint_every=50",
)

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """`(folder, output)` of an undisturbed run `whole`."""
    folder, output = tmp_path_factory.mktemp("commands"), io.StringIO()
    with attached(LineHandler(output)):
        train(tiny_experiment(*LONG), folder / "whole", one_device())
    return folder, output.getvalue()


def test_progress_says_what_a_user_waits_for(trained):
    _, output = trained
    assert "compiling" in output
    for text in ("step 60/60", "loss", "lr", "img/s", "ETA", "evaluation at step 60"):
        assert text in output


def test_signals_save_and_the_restarts_are_bitwise_the_same(trained):
    folder, _ = trained
    arguments = ["pretrain", *as_flags(*LONG), "--workdir", "signals"]
    program = "tests.pipelines.programs.signaled"
    for number in ("SIGTERM", "SIGINT"):
        result = run_module(program, number, 12, *arguments, cwd=folder)
        assert result.returncode == 75, result.stderr
        assert "Traceback" not in result.stdout + result.stderr
        assert "Start the same command again" in result.stdout + result.stderr
    assert "resuming from step" in result.stdout
    result = run_command(*arguments, cwd=folder)
    assert result.returncode == 0, result.stderr
    # Once: absl's handler of the root logger does not print it too.
    assert (result.stdout + result.stderr).count("resuming from step") == 1
    assert_same_weights(folder / "signals", folder / "whole", ["final.npz"])


def test_evaluate_on_two_logical_cpus_prints_what_training_measured(trained):
    folder, _ = trained
    devices = ("--strategy=mirrored", "--logical_cpus=2")
    result = run_command("evaluate", "--model=whole", *devices, "--json", cwd=folder)
    assert result.returncode == 0, result.stderr
    means = json.loads(result.stdout)
    assert means["examples"] == 300
    assert means["accuracy"] == Workdir(folder / "whole").read_metrics()[-1]["eval_accuracy"]


def test_a_package_that_cannot_be_imported_is_one_sentence(tmp_path):
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow/__init__.py").write_text("raise ImportError('no such library')")
    result = run_command("pretrain", cwd=tmp_path, cold=True)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == (
        "error: no such library. Run `python -m pipelines.doctor` to see what to install.\n"
    )


@pytest.mark.parametrize("arguments", [[], ["--tpu=local"]])
def test_without_a_tpu_none_is_waited_for(tmp_path, arguments):
    result = run_command("pretrain", "--strategy=tpu", *arguments, cwd=tmp_path)
    assert_user_error(result, "found no TPU", "--strategy=auto")
    assert os.listdir(tmp_path) == []


def test_help_may_be_read_in_part(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)  # as `head` does after its last line
    try:
        result = run_module("pipelines.batch", "--help", cwd=tmp_path, stdout=writer)
    finally:
        os.close(writer)
    assert (result.returncode, result.stderr) == (0, "")


def test_commands_start_as_files_too(tmp_path):
    """Their folder is then first on the path, where `inspect` would hide Python's own."""
    for name in commands():
        done = subprocess.run(
            [sys.executable, os.path.join(ROOT, "pipelines", f"{name}.py"), "--help"],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": ROOT},
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stderr) == (0, ""), name
        assert "usage:" in done.stdout, name

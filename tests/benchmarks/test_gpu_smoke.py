"""The host side of `benchmarks.gpu.smoke`: its commands, comparisons, failures and exit codes."""

import importlib
import json
import pathlib

import numpy as np
import pytest

from benchmarks.gpu import smoke, smoke_ops
from pipelines.cli import request, shared_flags
from tests.pipelines.process import run_module

ANSWER = {"path": "a.png", "top": [{"label": "cat", "probability": 0.75}]}


@pytest.mark.parametrize(
    ("ours", "expected", "problem"),
    [
        ([1.0, 2.0], [1.01, 2.03], ""),
        ([1.0, 2.0], [1.0, 2.1], "loss 2.0000 on the GPU, 2.1000 on the CPU"),
        ([float("nan")], [1.0], "loss nan on the GPU, 1.0000 on the CPU"),
        ([1.0], [1.0, 2.0], "1 losses on the GPU, 2 on the CPU"),
        ([], [], "0 losses on the GPU, 0 on the CPU"),
    ],
)
def test_losses_may_differ_by_the_rounding_of_the_gpu(ours, expected, problem):
    assert smoke.compare_losses("pretrain", ours, expected) == problem


def test_a_mixed_precision_may_differ_by_more():
    assert smoke.compare_losses("pretrain", [1.04], [1.0])
    assert not smoke.compare_losses("mixed", [1.04], [1.0])


@pytest.mark.parametrize(
    ("answers", "problem"),
    [
        ([ANSWER], ""),
        ([ANSWER | {"top": [{"label": "cat", "probability": 0.755}]}], ""),
        (
            [ANSWER | {"top": [{"label": "cat", "probability": 0.7}]}],
            "a.png: cat has 0.7000 on the GPU, 0.7500 on the CPU",
        ),
        (
            [ANSWER | {"top": [{"label": "dog", "probability": 0.7}]}],
            "a.png: other classes on the GPU than on the CPU",
        ),
        ([], "0 answers on the GPU, 1 on the CPU"),
    ],
)
def test_answers_of_both_devices_are_compared(answers, problem):
    texts = ("".join(f"{json.dumps(x)}\n" for x in found) for found in (answers, [ANSWER]))
    assert smoke.compare_answers(*texts) == problem


class Commands:
    """Stands for the processes: trainings write losses, and what `fails` names fails."""

    def __init__(self, fails=(), gpus=1, loss=1.0):
        self.fails, self.gpus, self.loss, self.done = fails, gpus, loss, []

    def __call__(self, arguments, device):
        if arguments[0] == "-c":
            if self.gpus is None:
                raise RuntimeError("exit code 1: no module named tensorflow")
            return f'a line of TensorFlow\n[{self.gpus}, "2.20.1"]\n'
        what = arguments[1].rpartition(".")[2]
        self.done.append((device, what))
        if (device, what) in self.fails:
            raise RuntimeError("exit code 1: no memory")
        if what in ("pretrain", "finetune"):
            folder = pathlib.Path(arguments[arguments.index("--workdir") + 1])
            folder.mkdir(parents=True)
            loss = self.loss if device == "GPU" else 1.0
            lines = [{"step": 1, "loss": loss}, {"step": 2, "eval_loss": loss}, {"step": 3}]
            text = "".join(f"{json.dumps(line)}\n" for line in lines)
            (folder / "metrics.jsonl").write_text(text)
        if what == "predict":
            return f"{json.dumps(ANSWER)}\n"
        return '[["ops attention float32", ""]]'


def run(tmp_path, capsys, **options):
    commands = Commands(**options)
    code = smoke.main(["--workdir", str(tmp_path)], commands)
    told = capsys.readouterr()
    lines = [line for line in told.out.splitlines() if line.startswith(("PASS", "FAIL"))]
    return code, lines, told.err, commands.done


def test_each_command_runs_on_both_devices(tmp_path, capsys):
    (tmp_path / "gpu" / "pretrain").mkdir(parents=True)  # of an earlier run
    code, lines, _, done = run(tmp_path, capsys)
    assert code == 0
    names = ["pretrain", "finetune", "mixed", "export", "serve", "ops attention float32"]
    assert lines == [f"PASS  {name}" for name in names]
    for device in ("GPU", "CPU"):
        expected = ["pretrain", "finetune", "pretrain", "export", "predict"]
        expected += ["smoke_ops"] * (device == "GPU")
        assert [what for where, what in done if where == device] == expected


def test_what_fails_is_named_and_the_rest_goes_on(tmp_path, capsys):
    code, lines, _, done = run(tmp_path, capsys, fails=[("GPU", "finetune"), ("GPU", "smoke_ops")])
    assert code == 1 and ("CPU", "export") in done and ("GPU", "export") not in done
    assert lines == [
        "PASS  pretrain",
        "FAIL  finetune: GPU: exit code 1: no memory",
        "PASS  mixed",
        "FAIL  export: GPU: not run: finetune failed",
        "FAIL  serve: not run: export failed",
        "FAIL  ops: exit code 1: no memory",
    ]


def test_another_loss_on_the_gpu_is_a_failure(tmp_path, capsys):
    code, lines, _, _ = run(tmp_path, capsys, loss=1.03)
    assert code == 1
    assert lines[0] == "FAIL  pretrain: loss 1.0300 on the GPU, 1.0000 on the CPU"
    assert lines[2] == "PASS  mixed"


@pytest.mark.parametrize(("gpus", "message"), [(0, "finds no GPU"), (None, "does not run here")])
def test_a_machine_without_a_gpu_gets_one_message(tmp_path, capsys, gpus, message):
    code, lines, error, done = run(tmp_path, capsys, gpus=gpus)
    assert (code, lines, done) == (2, [], [])
    assert error.startswith("error: TensorFlow") and message in error and error.count("\n") == 1
    assert ("-m pip install 'tensorflow[and-cuda]==2.20.*'; " in error) == (gpus == 0)


@pytest.mark.process
def test_commands_of_the_real_program_fail_with_their_last_line():
    assert smoke.call(["-c", "print(5)"], "GPU") == "5\n"
    with pytest.raises(RuntimeError, match="exit code 1: ValueError: no"):
        smoke.call(["-c", "raise ValueError('no')"], "CPU")
    code = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"
    assert smoke.call(["-c", code], "CPU") == "-1\n"


@pytest.mark.process
def test_the_ops_are_compared_with_the_reference(monkeypatch):
    """The ops of the CPU stand for those of the GPU."""
    monkeypatch.setenv("VIT_SMOKE_DEVICE", "CPU:0")
    text = smoke.call(["-m", "benchmarks.gpu.smoke_ops"], "CPU")
    found = dict(json.loads(text.splitlines()[-1]))
    assert len(found) == 6 * 3 * 3 and not any(found.values())


def test_an_op_that_ran_on_another_device_is_a_failure():
    import tensorflow as tf

    inputs, expected = [tf.ones(3)], [np.ones(3)]
    arguments = lambda x: x, inputs, "float32"
    assert smoke_ops.check(*arguments, "CPU:0", expected) == ""
    assert smoke_ops.check(*arguments, "CPU:0", [np.zeros(3)]) == "result 0 differs by 1 of 0"
    assert "result 0 is on /job:localhost" in smoke_ops.check(*arguments, "GPU:7", expected)


def test_the_commands_have_these_flags_and_fields(tmp_path):
    for name, arguments in smoke.commands(tmp_path).items():
        module, *flags = arguments[1:]
        command = importlib.import_module(module)
        values = shared_flags.define_shared(
            getattr(command, "SHARED_FLAGS", shared_flags.SHARED_FLAGS)
        )
        if name != "export":
            shared_flags.define_config(values)
        command.define(values)
        assert values([name, *flags]) == [name]
        if name != "export":
            begin, asked = request.read(values)
            experiment = asked.assignments.apply(begin)[0]
            assert experiment.train.steps == 30


@pytest.mark.process
@pytest.mark.heavy("training")
def test_the_commands_run_on_the_cpu(tmp_path, monkeypatch):
    """The commands of a device with fewer steps, and the answers of its export."""
    steps = [x.partition("=")[0] for x in smoke._STEPS[1:]]
    monkeypatch.setattr(smoke, "_STEPS", (smoke._STEPS[0], *(f"{name}=1" for name in steps)))
    said = []

    def call(arguments, device):
        done = run_module(*arguments[1:], cwd=smoke.ROOT)
        if done.returncode:
            raise RuntimeError(done.stderr)
        return done.stdout

    assert smoke.run_device("CPU", tmp_path, said.append, call) == {}
    for name in smoke.CLOSE:
        assert len(smoke.losses(tmp_path / name)) == 2, name
    assert smoke._serve(tmp_path / "export" / "portable", {}, call) == ""

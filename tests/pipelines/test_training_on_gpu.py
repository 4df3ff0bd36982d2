"""A small model is trained, exported and served on the GPU and on the CPU, with the same results.

It was not run on a GPU yet. The commands of the GPU's tests run in processes of their own, since
this one has started TensorFlow, and two devices.
"""

import json
import math

import pytest

from tests.pipelines.process import run_module

# Largest difference of a loss on the two devices, as a part of it. On a GPU TensorFlow multiplies
# float32 as TF32, with 11 bits; bfloat16 has 8.
CLOSE = {"pretrain": 0.02, "finetune": 0.02, "mixed": 0.05}
# Largest difference of a probability.
CLOSE_PROBABILITY = 0.01
# Several processes share the memory of the GPU; the CPU's see none.
ENVIRONMENTS = {"gpu": {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}, "cpu": {"CUDA_VISIBLE_DEVICES": "-1"}}


def call(device, module, *arguments, cwd):
    """Runs a command on a device; returns what it printed."""
    name = f"pipelines.{module}"
    done = run_module(name, *arguments, cwd=cwd, cold=True, **ENVIRONMENTS[device])
    assert done.returncode == 0, f"{device} {module}: {done.stderr}"
    return done.stdout


def run_device(device, folder, steps=30):
    """Pre-trains, fine-tunes, trains in mixed precision and exports; a folder has all of it."""
    # No random numbers but the seed's; few steps, but enough to change the loss.
    fixed = ["model.dropout=0", f"train.steps={steps}", f"train.eval_every={steps}"]
    fixed += [f"train.log_every={max(1, steps // 3)}", f"data.data_dir={folder / 'data'}"]

    def train(command, name, *assignments, flags=()):
        flags = ["--experiment", "digits", "--strategy", "one_device", *flags]
        for assignment in (*fixed, *assignments):
            flags += ["--set", assignment]
        call(device, command, *flags, "--workdir", folder / name, cwd=folder)

    train("pretrain", "pretrain", "data.name=digits/low")
    init = ["--init_from", folder / "pretrain"]
    train("finetune", "finetune", "model.image_size=24", flags=init)
    train("pretrain", "mixed", "data.name=digits/low", "model.dtype=mixed_bfloat16")
    output = folder / "export"
    call(device, "export", "--model", folder / "finetune", "--output", output, cwd=folder)


def losses(workdir):
    """The losses of a run, of training and evaluation, in their order."""
    found = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [line[key] for line in found for key in ("loss", "eval_loss") if key in line]


def assert_close_losses(name, ours, expected):
    assert len(ours) == len(expected) > 0
    for one, other in zip(ours, expected, strict=True):
        assert math.isfinite(one) and abs(one - other) <= CLOSE[name] * abs(other), name


def assert_close_answers(ours, expected):
    """For what `pipelines.predict --json` printed on the two devices."""
    pairs = [[json.loads(line) for line in text.splitlines()] for text in (ours, expected)]
    assert len(pairs[0]) == len(pairs[1]) > 0
    for one, other in zip(*pairs, strict=True):
        found, usual = ({x["label"]: x["probability"] for x in y["top"]} for y in (one, other))
        assert found.keys() & usual.keys(), one["path"]
        for label in found.keys() & usual.keys():
            assert abs(found[label] - usual[label]) <= CLOSE_PROBABILITY, one["path"]


def compare(folders, answering):
    """Compares the losses of two folders, and the answers of the first one's export."""
    for name in CLOSE:
        assert_close_losses(name, *(losses(folder / name) for folder in folders))
    flags = "--model", folders[0] / "export" / "portable", "--json"
    assert_close_answers(*(call(x, "predict", *flags, cwd=folders[0]) for x in answering))


@pytest.mark.gpu
@pytest.mark.process
def test_training_export_and_answers_are_those_of_the_cpu(tmp_path):
    folders = [tmp_path / device for device in ENVIRONMENTS]
    for folder in folders:
        folder.mkdir()
        run_device(folder.name, folder)
    compare(folders, ENVIRONMENTS)


@pytest.mark.process
@pytest.mark.heavy("training")
def test_the_commands_run_on_the_cpu(tmp_path):
    """The commands of a device with fewer steps, and the answers of its export."""
    run_device("cpu", tmp_path, steps=1)
    assert all(len(losses(tmp_path / name)) == 2 for name in CLOSE)


def test_other_losses_and_answers_are_failures():
    answer = {"path": "a.png", "top": [{"label": "cat", "probability": 0.75}]}
    near, far, dog = (
        answer | {"top": [{"label": label, "probability": x}]}
        for label, x in (("cat", 0.755), ("cat", 0.7), ("dog", 0.75))
    )
    assert_close_answers(json.dumps(near), json.dumps(answer))
    for wrong in (json.dumps(far), json.dumps(dog), ""):
        with pytest.raises(AssertionError):
            assert_close_answers(wrong, json.dumps(answer))
    assert_close_losses("pretrain", [1.0, 2.0], [1.01, 2.03])
    assert_close_losses("mixed", [1.04], [1.0])
    for wrong in ([1.0, 2.1], [math.nan, 2.0], [1.0], [1.04, 2.0]):
        with pytest.raises(AssertionError):
            assert_close_losses("pretrain", wrong, [1.0, 2.0])

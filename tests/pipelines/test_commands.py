"""Refusals and messages of commands: one clear error line, exit code 2, no incomplete files."""

import contextlib
import dataclasses
import importlib
import json
import os
import re
import shutil
import sys

import numpy as np
import pytest

import vit_tf
from custom_ops import loader
from pipelines.cli import command_names, console, request
from pipelines.config import Experiment, recipes
from tests import architecture
from tests.pipelines import encoded
from tests.pipelines.process import assert_user_error, described, run_module
from tests.pipelines.tiny import as_flags, tiny_experiment
from vit_tf.config.variants import VARIANTS

COMMANDS = sorted(name.removeprefix("pipelines.") for name in architecture.COMMANDS)


# One case for each kind of error; `config/test_experiment_errors.py` has those about `--set`.
@pytest.mark.parametrize(
    ("module", "arguments", "texts"),
    [
        ("pretrain", ["--experimnt=digits"], ["--experimnt", "Did you mean --experiment=digits?"]),
        ("pretrain", ["--lr=0.1"], ["--lr", "--set optimizer.learning_rate=0.1"]),
        ("finetune", ["--steps", "5"], ["--steps", "--set train.steps="]),
        ("evaluate", ["train.steps=3"], ["'train.steps=3'", "--set"]),
        ("pretrain", ["--config=config.json", "--workdir=a"], ["config.json: there is no such"]),
        ("finetune", ["--config=.", "--workdir=a"], ["--config . is a directory"]),
        ("pretrain", ["--config=a", "--experiment=digits"], ["--config and --experiment"]),
        ("pretrain", ["--logical_cpus=many"], ["logical_cpus"]),
        ("pretrain", ["--logical_cpus=0"], ["logical_cpus"]),
        ("pretrain", ["--experiment=digit"], ["Unknown experiment 'digit'", "digits"]),
        ("finetune", ["--experiment=digit"], ["Unknown experiment 'digit'", "digits"]),
        ("evaluate", ["--experiment=digit"], ["Unknown experiment 'digit'", "digits"]),
        ("pretrain", ["--set=train.step=3"], ["'train.step'", "train.steps"]),
        ("finetune", ["--set=model.dtype=bf16"], ["'bf16'", "mixed_bfloat16"]),
        ("evaluate", ["--set=modle.nmae=3"], ["modle.nmae"]),
        ("pretrain", ["--strategy=tpus"], ["--strategy", "tpus"]),
        ("finetune", ["--strategy=tpus"], ["--strategy", "tpus"]),
        ("evaluate", ["--strategy=tpus"], ["--strategy", "tpus"]),
        ("fewshot", ["--strategy=tpus"], ["--strategy", "tpus"]),
        ("fewshot", ["--shots=1,x"], ["--shots=1,x is not readable", "whole numbers"]),
        ("fewshot", ["--data.name=a"], ["--data.name", "--set data.name=a"]),
        (
            "pretrain",
            ["--set=data.name=digitz"],
            ["no data set named 'digitz'", "mean digits?"],
        ),
        ("pretrain", ["--set", "data.name=/data/pets"], ["'/data/pets'", "folder:/data/pets"]),
        ("pretrain", ["--set", "data.train_split=trian"], ["trian", "train"]),
        (
            "pretrain",
            ["--set=data.name=cifar10", "--set=data.data_dir=empty", "--set=model.image_size=32"],
            ["cifar10", "empty"],
        ),
        ("pretrain", ["--set", "init_from=nowhere"], ["nowhere"]),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_wrong_input_is_one_sentence_and_leaves_nothing(
    tmp_path, command, module, arguments, texts
):
    result = command(module, *arguments)
    assert_user_error(result, *texts)
    assert os.listdir(tmp_path) == []


# The commands without some of the shared flags, and the flags that they accept.
TAKEN = {
    "predict": {"experiment", "workdir", "set"},
    "serve": {"workdir"},
    "export": {"experiment", "workdir", "set"},
    "inspect": {"experiment", "workdir", "set"},
    "doctor": {"workdir"},
    "convert": set(),
    "dedup": set(),
    "batch": {"experiment", "workdir", "set"},
    "make_tfrecords": {"experiment", "set"},
    "plan": {"experiment", "set"},
    "launch": set(),
    "verify_weights": set(),
    "demo": {"workdir", "set", "strategy", "logical_cpus", "tpu", "zone", "project"},
}


@pytest.mark.parametrize("module", TAKEN)
def test_flags_that_a_command_cannot_use_are_refused(tmp_path, command, module):
    reasons = {
        "experiment": ("digits", "no recipe to choose"),
        "workdir": ("run", "no run of its own"),
        "set": ("train.steps=3", "a model keeps its training settings"),
        "strategy": ("one_device", "it computes on one device"),
        "logical_cpus": ("2", "it computes on one device"),
        "tpu": ("local", "it computes on one device"),
        "zone": ("a", "it computes on one device"),
        "project": ("b", "it computes on one device"),
    }
    listed = re.findall("^  --([a-z_]+)", command(module, "--help").stdout, re.MULTILINE)
    for flag, (value, reason) in reasons.items():
        assert (flag in listed) == (flag in TAKEN[module])
        if flag not in TAKEN[module]:
            result = command(module, f"--{flag}", value)
            assert_user_error(result, f"This command does not take --{flag}: ", reason)
    assert os.listdir(tmp_path) == []


def test_fields_without_an_effect_are_refused(tmp_path, command):
    flags = ["--set=model.layers=2", "--set=data.name=digits", "--set=train.batch_size=3"]
    result = command("make_tfrecords", "--output=x", *flags)
    assert_user_error(result, "--set model.layers, train.batch_size has no effect", "data.name")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("module", "flag"),
    [
        ("finetune", "--init_from="),
        ("evaluate", "--model="),
        ("fewshot", "--model="),
        ("predict", "--model="),
    ],
)
def test_an_empty_name_is_not_a_default(tmp_path, command, module, flag):
    result = command(module, flag)
    assert_user_error(result, "is empty")


URL = "s3://bucket/data"


@pytest.mark.parametrize("module", COMMANDS)
def test_urls_that_cannot_be_read_are_named(tmp_path, command, module):
    """TensorFlow has no file system for S3 without a plugin."""
    own = importlib.import_module(f"pipelines.{module}")
    values = request.define_shared(getattr(own, "SHARED_FLAGS", request.SHARED_FLAGS))
    if "experiment" in values:
        request.define_config(values)
    getattr(own, "define", lambda values: None)(values)
    paths = {"workdir", "config", "model", "init_from", "output"} & set(values)
    cases = [[f"--{name}={URL}"] for name in sorted(paths)]
    if hasattr(own, "POSITIONAL"):
        cases += [[URL, "b.npz"], ["a.npz", URL]]
    if module in ("pretrain", "evaluate", "batch"):
        cases += [[f"--set=data.name={kind}:{URL}"] for kind in ("folder", "tfrecord")]
        cases += [[f"--set=data.name=list:{URL}.csv"]]
        cases += [["--set=data.name=cifar10", f"--set=data.data_dir={URL}"]]
    if module == "finetune":
        cases += [[f"--set=init_from={URL}"]]
    assert len(cases) >= 1
    for arguments in cases:
        assert_user_error(command(module, *arguments), URL, "file system")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("make_tfrecords", ["--output=ram://a/b"]),
        ("convert", ["a.npz", "ram://a/b.npz"]),
        ("dedup", ["--reference=digits", "--query=digits", "--output=ram://a/b"]),
        ("demo", ["--workdir=ram://a/b"]),
    ],
)
def test_some_commands_write_to_local_disks_only(tmp_path, command, module, arguments):
    result = command(module, *arguments)
    assert_user_error(result, "must be on a local disk", "ram://a/b")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("choice", ["compiled", "bogus"])
def test_an_implementation_that_is_not_there(tmp_path, command, monkeypatch, choice):
    monkeypatch.setattr(loader, "_library", loader.Library(reason="it was never built"))
    monkeypatch.setenv("VIT_OPS", choice)
    result = command("pretrain")
    assert_user_error(result, f"VIT_OPS={choice}")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("module", "own"),
    [
        ("finetune", ["--dry_run", "--init_from", "--weights"]),
        ("sweep", ["--grid", "--init_from", "--weights"]),
        ("batch", ["--hosts", "--step"]),
    ],
)
def test_help_shows_own_flags_first_and_what_can_be_chosen(tmp_path, command, module, own):
    result = command(module, "--help")
    assert result.returncode == 0
    assert max(map(len, result.stdout.splitlines())) <= 100
    _, first, then = re.split("flags of this command|flags of several commands", result.stdout)
    assert set(own) <= set(re.findall("^  (--[a-z_]+)", first, re.MULTILINE))
    if "--init_from" in own:
        assert ".safetensors file" in first and "name of published weights" in " ".join(
            first.split()
        )
    assert {"--experiment", "--config", "--list", "--workdir", "--set"} <= set(
        re.findall("^  (--[a-z_]+)", then, re.MULTILINE)
    )
    assert "model names: --list prints them" in then and "docs/configuration.md" in then


def test_list_prints_the_recipes(tmp_path, command):
    result = command("evaluate", "--list")
    assert (result.returncode, result.stderr) == (0, "")
    assert re.findall(r"^  (\w+) +\w", result.stdout, re.MULTILINE) == list(recipes.RECIPES)
    *groups, names = re.findall(r"^(\S.*):$", result.stdout, re.MULTILINE)
    assert groups == list(recipes.GROUPS)
    assert result.stdout.partition(names)[2].split()[1:] == list(VARIANTS)


@pytest.mark.parametrize("module", ["pretrain", "sweep"])
def test_photos_are_not_trained_at_the_size_of_digits(tmp_path, command, module):
    """The settings that the message names fit; a grid of sizes is an assignment too."""
    photos = ["--workdir=run", "--dry_run", "--set=data.name=folder:pets"]
    grid = {"pretrain": [], "sweep": ["--grid=seed=1,2"]}[module]
    fitting = "--set model.image_size=224 --set model.name=ViT-Ti/16"
    result = command(module, *photos, *grid)
    assert_user_error(result, "folder:pets would be trained at 16 x 16", fitting)
    for name in ("pets/a", "pets/b"):
        (tmp_path / name).mkdir(parents=True)
        for number in range(20):
            (tmp_path / name / f"{number}.png").write_bytes(encoded.every_format()[0][0])
    assert_user_error(command(module, *photos, *grid), fitting)
    if module == "sweep":
        result = command(module, *photos, "--grid=model.image_size=32,64")
        assert result.returncode == 0, result.stderr
        assert "ViT-Ti/16 at 16 x 16" in result.stdout
    else:
        result = command(module, *photos, *fitting.split())
        _, config = described(result.stdout)
        assert (config["model"]["image_size"], config["model"]["patch_size"]) == ([224, 224], 16)


@pytest.fixture
def broken_images(tmp_path_factory):
    """A folder of images that cannot be decoded, a config.json and an initial model."""
    root = tmp_path_factory.mktemp("broken")
    for name in ("a", "b"):
        (root / name).mkdir()
        for index in range(20):
            (root / name / f"{index}.png").write_bytes(b"no image")
    (root / "config.json").write_text(json.dumps(tiny_experiment().to_dict()))
    model = vit_tf.create_model(tiny_experiment().model.config(10))
    vit_tf.save_npz(model, root / "initial.npz")
    return root


@pytest.mark.parametrize("module", ["pretrain", "finetune"])
def test_a_dry_run_describes_the_run_and_writes_nothing(tmp_path, broken_images, command, module):
    initial = None if module == "pretrain" else str(broken_images / "initial.npz")
    start = ["--dry_run"] if initial is None else ["--dry_run", f"--init_from={initial}"]
    result = command(module, *start, *as_flags("train.accumulate_steps=2"))
    assert result.returncode == 0, result.stderr
    lines, config = described(result.stdout)
    text = "\n".join(lines)
    expected = tiny_experiment("train.accumulate_steps=2")
    # Every field of the model is printed, also those that are the variant's own.
    assert config["model"].keys() > expected.to_dict()["model"].keys()
    assert config["model"]["classifier"] == "token"
    resolved = Experiment.from_dict(config)
    assert resolved.model.config(10) == expected.model.config(10)
    assert dataclasses.replace(resolved, model=expected.model) == dataclasses.replace(
        expected, init_from=initial
    )
    count = vit_tf.cost.parameters(tiny_experiment().model.config(10))
    assert f"{count:,} parameters" in text and "activations of 8 images" in text
    assert "image float32 [16, 12, 12, 3]" in text and "label int32 [16]" in text
    assert "1,297 examples of 10 classes" in text
    assert os.listdir(tmp_path) == []

    result = command(module, *start, *as_flags("data.name=folder:pets"))
    assert result.returncode == 0
    assert "without a head" in result.stdout
    lines, config = described(result.stdout)
    assert "the data are not here. There is no folder" in lines[-1]
    assert config["data"]["name"] == "folder:pets"
    for flags, text in (
        (as_flags("train.accumulate_steps=3"), "train.batch_size=16 is not a multiple of 3"),
        ([*as_flags(), "--extend"], "--extend continues a run"),
        (
            [*as_flags(f"data.name=folder:{broken_images}", "data.eval_split=none")],
            "files cannot be decoded",
        ),
        (
            as_flags(f"data.name=folder:{broken_images}", "data.eval_split=none", "data.scan=none"),
            "It is not a JPEG, PNG",
        ),
    ):
        assert_user_error(command(module, *start, *flags), text)
    if module == "finetune":
        (tmp_path / "run").mkdir()
        shutil.copy(broken_images / "config.json", tmp_path / "run")
        shutil.copy(broken_images / "initial.npz", tmp_path / "run" / "final.npz")
        best = ["--init_from=run", "--weights=best"]
        assert_user_error(command(module, "--dry_run", *best), "no best checkpoint")


@pytest.mark.parametrize(
    ("settings", "folder"),
    [
        ([], "pretrain-digits"),
        (["data.name=digits/low"], "pretrain-digits-low"),
        (["data.name=folder:{data}/"], "pretrain-digits-my_pets"),
        (["data.name=list:{data}/labels v2.csv"], "pretrain-digits-labels_v2"),
        (["data.name=tfrecord:gs://bucket/pets"], "pretrain-digits-pets"),
        (["data.name=cifar10:3.0.2"], "pretrain-digits-cifar10"),
    ],
)
def test_a_directory_is_named_after_the_data(tmp_path, monkeypatch, settings, folder):
    """A dry run does not look at it: what is there belongs to another run."""
    data = tmp_path / "my pets"
    values = request.define_shared(request.SHARED_FLAGS)
    request.define_config(values)
    request.define_training(values)
    flags = [f"--set={text.format(data=data)}" for text in settings]
    values(["pretrain", *flags])
    assert request.workdir(values, "pretrain", *request.read(values)) == f"runs/{folder}"
    values.dry_run = True
    assert not os.path.exists(request.workdir(values, "pretrain", *request.read(values)))


def test_a_dry_run_ignores_the_run_in_a_directory_that_was_not_named(tmp_path, command):
    (tmp_path / "runs" / "pretrain-digits" / "checkpoints").mkdir(parents=True)
    (tmp_path / "runs" / "pretrain-digits" / "config.json").write_text("damaged")
    assert command("pretrain", "--dry_run", *as_flags()).returncode == 0
    named = ["--workdir=runs/pretrain-digits"]
    assert_user_error(command("pretrain", "--dry_run", *named, *as_flags()), "config.json")


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("pipelines.eval", "There is no command 'eval'. Did you mean evaluate?"),
        ("pipelines.pretrian", "There is no command 'pretrian'. Did you mean pretrain?"),
        ("pipelines", "Name a command, as in python -m pipelines.predict: batch, convert, dedup"),
        ("pipelines.predict", None),
        ("pipelines.data.faults", None),
        ("pytest", None),
    ],
)
def test_names_that_are_no_commands(module, text):
    message = command_names.wrong_command(module)
    assert text is message is None or message.startswith(text)


@pytest.mark.process
def test_a_name_that_is_no_command_is_one_sentence(tmp_path):
    result = run_module("pipelines.eval", "--model=a", cwd=tmp_path, cold=True)
    assert_user_error(result, "There is no command 'eval'. Did you mean evaluate?")
    assert command_names.commands() == COMMANDS


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ([], 2, "error: Name a command"),
        (["eval", "--model=a"], 2, "error: There is no command 'eval'. Did you mean evaluate?"),
        (["data.faults"], 2, "error: There is no command 'data_faults'."),
        (["--help"], None, "usage: vit-tf COMMAND [flags]"),
        (["plan", "--help"], 0, "python -m pipelines.plan [flags]"),
        (["plan", "--no_such_flag"], 2, "error: Unknown flag --no_such_flag"),
    ],
)
def test_the_program(monkeypatch, capsys, arguments, code, text):
    """`vit-tf COMMAND` is `python -m pipelines.COMMAND`."""
    monkeypatch.setattr(sys, "argv", ["vit-tf", *arguments])
    monkeypatch.delitem(sys.modules, "pipelines.plan", raising=False)  # As in a new process.
    with contextlib.ExitStack() as stack:
        if code is not None:
            ended = stack.enter_context(pytest.raises(SystemExit))
        console.main()
    assert code is None or ended.value.code == code
    assert text in "".join(capsys.readouterr())


def test_two_models_or_none(tmp_path, command):
    for module in ("predict", "evaluate", "export", "fewshot"):
        result = command(module, "--model=a", "--workdir=b")
        assert_user_error(result, "--model=a and --workdir=b both name a model. Leave one")
    result = command("predict", "--top=1")
    assert result.returncode == 0
    assert "no model is named: taking the small model of digits" in result.stderr


def test_a_run_starts_from_a_config(tmp_path, command):
    config = tiny_experiment("seed=7").to_dict()
    (tmp_path / "config.json").write_text(json.dumps(config))
    arguments = ["--config=config.json", "--workdir=run", "--dry_run"]
    result = command("pretrain", *arguments, "--set=train.log_every=9")
    assert result.returncode == 0, result.stderr
    config["train"]["log_every"] = 9
    _, printed = described(result.stdout)
    assert Experiment.from_dict(printed | {"model": config["model"]}).to_dict() == config
    result = command("pretrain", "--config=config.json")
    assert_user_error(result, "--workdir is missing. With --config it has no default")
    (tmp_path / "config.json").write_text(json.dumps({"sed": 1}))
    assert_user_error(command("pretrain", *arguments), "sed", "Did you mean seed?")
    result = command("batch", "--config=config.json", "--workdir=run")
    assert_user_error(result, "Leave out --config config.json")


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04 broken"])
def test_a_damaged_checkpoint_is_refused(tmp_path, command, content):
    (tmp_path / "bad.npz").write_bytes(content)
    result = command("finetune", "--init_from=bad.npz", "--workdir=run")
    assert_user_error(result, "bad.npz")
    assert os.listdir(tmp_path) == ["bad.npz"]


def test_a_file_of_other_arrays_is_refused(tmp_path, command):
    np.savez(tmp_path / "other.npz", weights=np.zeros([3, 3], np.float32))
    for module, flag in (("finetune", "--init_from"), ("evaluate", "--model")):
        result = command(module, f"{flag}=other.npz")
        assert_user_error(result, "other.npz", "embedding/kernel")
    assert os.listdir(tmp_path) == ["other.npz"]

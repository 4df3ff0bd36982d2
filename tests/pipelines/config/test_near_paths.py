"""Errors for option names of other projects suggest the flag or assignment with the same effect."""

import pytest

from pipelines.config import config_paths, near_paths
from pipelines.config.near_paths import flag_hint, path_hint

PATHS = config_paths()
# The flags of `finetune` and `evaluate`.
FLAGS = ("experiment", "workdir", "set", "config", "init_from", "weights")


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("lr", "0.1", "--set optimizer.learning_rate=0.1"),
        ("lr", "", "--set optimizer.learning_rate=..."),
        ("steps", "5", "--set train.steps=5"),
        ("epochs", "90", "--set train.epochs=90"),
        ("num_train_epochs", "90", "--set train.epochs=90"),
        ("batch_size", "8", "--set train.batch_size=8"),
        ("batch-size", "8", "--set train.batch_size=8"),
        ("seed", "3", "--set seed=3"),
        ("data", "digits", "--set data.name=digits"),
        ("dataset", "folder:my pets", "--set data.name='folder:my pets'"),
        ("model.name", "ViT-B/16", "--set model.name=ViT-B/16"),
        ("img_size", "384", "--set model.image_size=384"),
        ("label_smothing", "0.1", "--set train.label_smoothing=0.1"),
        ("amp", "", "--set model.dtype=..."),
        ("output_dir", "runs/a", "--workdir=runs/a"),
        ("experimnt", "digits", "--experiment=digits"),
        ("pretrained", "true", "--init_from"),
    ],
)
def test_flags(name, value, hint):
    assert flag_hint(name, value, FLAGS, PATHS) == f" Did you mean {hint}?"


def test_a_command_without_set_offers_its_flags_only():
    assert flag_hint("lr", "0.1", ("model", "top"), ()) == " --help lists the flags."
    assert flag_hint("topk", "3", ("model", "top"), ()) == " Did you mean --top=3?"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("lr", "optimizer.learning_rate"),
        ("steps", "train.steps"),
        ("optimizer.lr", "optimizer.learning_rate"),
        ("train.learning_rate", "optimizer.learning_rate"),
        ("name", "model.name, data.name or optimizer.name"),
        ("optimiser.momentum", "optimizer.momentum"),
        ("model", "model.name"),
        ("model.num_heads", "model.heads"),
    ],
)
def test_paths(name, hint):
    assert path_hint(name, PATHS) == f" Did you mean {hint}?"


def test_a_name_like_no_other_gets_no_hint():
    assert path_hint("zzz", PATHS) == ""


def test_offered_paths_exist():
    assert set(near_paths._PATHS.values()) <= PATHS.keys()
    assert not near_paths._PATHS.keys() & PATHS.keys()
    assert set(near_paths._SWITCHES) <= near_paths._PATHS.keys()

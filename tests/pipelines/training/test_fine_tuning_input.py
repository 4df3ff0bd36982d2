"""Fine-tuning refuses wrong models and settings with one sentence that names the right ones."""

import json

import pytest

import vit_tf
from pipelines.config import Request
from pipelines.errors import UserError
from pipelines.training import fine_tuning
from tests.pipelines.process import assert_user_error, described
from tests.pipelines.tiny import tiny_experiment
from tests.pipelines.training.initial_models import SQUARE, choose
from tests.vit_tf import tiny

TINY = "--set model.hidden_size=12 --set model.mlp_size=20 --set model.layers=2"


@pytest.mark.parametrize(
    ("kind", "assignments", "texts"),
    [
        ("AugReg", ["model.name=ViT-B/16"], ["--set model.name=ViT-B/16 does not fit", TINY]),
        ("AugReg", ["model.name=BiT-R50x1"], ["BiT-R50x1 does not fit", "--set model.name=ViT-"]),
        (
            "AugReg",
            ["model.layers=3", "model.dropout=0.1"],
            ["--set model.layers=3 does not", "Leave it out, or use --set model.layers=2."],
        ),
        ("hybrid", ["model.stem.width=1"], ["or use --set model.stem.width=0.5."]),
        ("Hugging Face", ["model.activation=gelu_tanh"], ["--set model.activation=gelu_erf."]),
        ("BiT", ["model.stage_depths=1,2"], ["--set model.stage_depths=1,1."]),
        ("BiT", ["model.heads=3"], ["Unknown model field 'heads' of BiT"]),
        ("AugReg", ["train.step=3"], ["Did you mean train.steps"]),
    ],
)
def test_another_architecture_is_answered_with_the_right_one(initial, kind, assignments, texts):
    _, path = initial(kind)
    with pytest.raises(UserError) as error:
        choose(f"init_from={path}", *assignments)
    for text in texts:
        assert text in str(error.value)
    assert "\n" not in str(error.value)


def test_wrong_sources_are_one_sentence(initial, photos, finetune, tmp_path):
    data = f"--set=data.name=folder:{photos}"
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    (unfinished / "config.json").write_text(json.dumps(tiny_experiment().to_dict()))
    result = finetune(data, f"--init_from={unfinished}")
    assert_user_error(result, "unfinished holds no trained model: expected config.json with final")

    damaged = tmp_path / "damaged.npz"
    damaged.write_bytes(initial("AugReg")[1].read_bytes()[:-100])
    assert_user_error(finetune(data, f"--init_from={damaged}"), "damaged.npz")

    unpooled = tiny.model(classifier="unpooled", **SQUARE)
    vit_tf.save_npz(unpooled, tmp_path / "unpooled.npz")
    flags = [data, "--init_from=unpooled.npz", "--dry_run"]
    assert_user_error(finetune(*flags), "Use --set model.classifier=gap.")
    result = finetune(*flags, "--set=model.classifier=gap", "--set=train.epochs=1e2")
    assert result.returncode == 0, result.stderr
    _, printed = described(result.stdout)
    assert (printed["train"]["steps"], printed["train"]["epochs"]) == (112, None)
    assert printed["schedule"]["warmup_steps"] == 50
    both = ["--set=train.epochs=3", "--set=train.steps=3"]
    assert_user_error(finetune(*flags, *both), "train.steps and train.epochs are two lengths")
    assert not (tmp_path / "run").exists()


def test_an_initial_model_that_cannot_be_read_is_named(tmp_path):
    """A configuration that names it itself, as an earlier run's configuration does."""
    start = tiny_experiment("init_from=s3://bucket/a")
    with pytest.raises(UserError, match="s3://bucket/a: .* for s3"):
        fine_tuning.choose(start, Request(), str(tmp_path / "run"))

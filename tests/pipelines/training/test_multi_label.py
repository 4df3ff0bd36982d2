"""Images with lists of labels through the commands: training, evaluation, prediction."""

import functools
import json

import numpy as np
import pytest
import tensorflow as tf
from sklearn.metrics import average_precision_score

from pipelines.data.sources.open import open_source
from pipelines.evaluation import evaluation_step
from pipelines.evaluation.evaluate import evaluate
from pipelines.runs.workdir import Workdir
from pipelines.stored_models import model_source
from pipelines.stored_models.stored_model import StoredModel
from tests.pipelines.encoded import encode
from tests.pipelines.process import assert_user_error
from tests.pipelines.tiny import as_flags, two_replicas
from vit_tf.images.decoding import decode_image

NAMES = ("blue", "bright", "green", "red")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A list of 24 images for training and 10 for tests: labels are colors, "bright", or none."""
    folder = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    rows = ["path,labels,split"]
    for number in range(34):
        color = rng.integers(0, 2, 3) * 180
        image = (color + rng.integers(0, 60, [9, 9, 3])).astype(np.uint8)
        (folder / f"{number}.png").write_bytes(encode(image, "PNG"))
        found = {"red": color[0], "green": color[1], "blue": color[2], "bright": color.all()}
        names = [name for name, there in found.items() if there]
        rows.append(f"{number}.png,{'|'.join(names)},{'train' if number < 24 else 'test'}")
    (folder / "list.csv").write_text("\n".join(rows))
    return folder


@pytest.fixture
def command(command, pictures):
    """The working directory of commands has the pictures."""
    return functools.partial(command, cwd=pictures)


def flags(*assignments):
    small = ("model.layers=1", "model.dropout=0", "model.stochastic_depth=0")
    return as_flags("data.name=list:list.csv", "train.batch_size=8", *small, *assignments)


def test_train_evaluate_and_predict(pictures, command, uncompiled):
    result = command(
        "pretrain",
        "--workdir=run",
        *flags("train.loss=sigmoid", "data.mixup=0.2", "train.steps=4", "train.keep_best=true"),
    )
    assert result.returncode == 0, result.stderr
    assert "mean average precision " in result.stdout
    last = Workdir(pictures / "run").read_metrics()[-1]

    result = command("evaluate", "--model=run", "--weights=best", "--json")
    assert result.returncode == 0, result.stderr
    means = json.loads(result.stdout)
    assert means.pop("images_per_second") > 0
    assert means.keys() == {"examples", "loss", "precision_at_1", "mean_average_precision"}
    for name, value in means.items():
        assert value == pytest.approx(last[f"eval_{name}"], rel=1e-5)

    # Against a plain loop; and again on two replicas, with padding.
    source = model_source.find(pictures / "run")
    model, prepare, classes = source.open_model()
    test = open_source(f"list:{pictures}/list.csv", "test")
    examples = test.read(range(10))
    logits = model(tf.stack([prepare(decode_image(image)) for image in examples.images])).numpy()
    targets = np.stack([np.isin(range(4), labels) for labels in examples.labels]).astype(float)
    assert classes.labels == NAMES
    logits = logits.astype(np.float64)
    loss = (np.log1p(np.exp(logits)) - logits * targets).sum(axis=1).mean()
    labeled = targets.any(axis=1)
    precision = targets[range(10), logits.argmax(axis=1)][labeled].mean()
    there = targets.any(axis=0)
    average = average_precision_score(targets[:, there], logits[:, there], average="macro")
    mirrored = evaluate(source, test, two_replicas(), batch_size=4, bad_images="stop")
    for received in (means, mirrored):
        assert received["examples"] == 10
        assert received["loss"] == pytest.approx(loss, rel=1e-5)
        assert received["precision_at_1"] == pytest.approx(precision)
        assert received["mean_average_precision"] == pytest.approx(average)

    result = command("predict", "--model=run", "--top=4", "--json", pictures / "0.png")
    assert result.returncode == 0, result.stderr
    top = json.loads(result.stdout)["top"]
    assert {entry["label"] for entry in top} == set(NAMES)
    image = prepare(decode_image(tf.constant((pictures / "0.png").read_bytes())))[None]
    expected = tf.sigmoid(model(image))[0].numpy()
    for entry in top:
        assert entry["probability"] == pytest.approx(expected[entry["index"]], rel=1e-4)


def test_softmax_is_refused_when_the_data_are_opened(command, pictures):
    texts = ["list.csv has lists of labels per image", "Set train.loss=sigmoid"]
    for extra in ([], ["--dry_run"]):
        result = command("pretrain", "--workdir=refused", *flags(), *extra)
        assert_user_error(result, *texts)
    assert not (pictures / "refused" / "config.json").exists()


def test_softmax_is_refused_before_a_model_is_opened(command, monkeypatch):
    monkeypatch.setattr(StoredModel, "open_model", lambda *_, **__: pytest.fail("too late"))
    result = command("evaluate", "--model=shipped", "--set=data.name=list:list.csv")
    assert_user_error(result, "list.csv has lists of labels per image")


def test_dry_run_and_batch(command):
    result = command("pretrain", "--dry_run", *flags("train.loss=sigmoid"))
    assert result.returncode == 0, result.stderr
    assert "label float32 [8, 4]" in result.stdout
    assert "(24 examples of 4 classes, any number of labels each)" in result.stdout
    text, listed = (command("batch", *flags(), *more).stdout for more in ([], ["--json"]))
    for example in json.loads(listed)["examples"]:
        assert [NAMES[label] for label in example["label"]] == example["class"]
        classes = zip(example["class"], example["label"], strict=True)
        row = ", ".join(f"{name} ({label})" for name, label in classes) or "no label"
        assert f" {example['id']}  {row}  {example['name']}" in text


def test_scores_that_need_too_much_memory_are_refused(command, monkeypatch, uncompiled):
    monkeypatch.setattr(evaluation_step, "MAX_SCORE_BYTES", 100)
    result = command("pretrain", "--workdir=large", *flags("train.loss=sigmoid"))
    assert_user_error(result, "10 images of 4 classes", "set data.eval_split", "test[:10%]")
    limits = ("train.eval_batches=1", "train.batch_size=6", "train.steps=4")
    result = command("pretrain", "--workdir=capped", *flags("train.loss=sigmoid", *limits))
    assert result.returncode == 0, result.stderr
    assert "eval" in result.stdout

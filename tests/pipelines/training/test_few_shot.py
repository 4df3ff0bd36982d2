"""Few-shot evaluations during training: what is logged, which checkpoint is best, restarts."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from pipelines.config import FewShot, override
from pipelines.config.experiment import lasting_differences
from pipelines.config.recipes.pretraining import IMAGENET_FEW_SHOT
from pipelines.data.sources.open import open_source
from pipelines.errors import UserError
from pipelines.evaluation.evaluation_step import EvaluationData
from pipelines.evaluation.features import FeatureExtractor
from pipelines.evaluation.few_shot import few_shot_accuracy
from pipelines.runs import checkpoints
from pipelines.runs.json_file import read_json
from pipelines.runs.workdir import Workdir
from pipelines.stored_models import model_source
from pipelines.training.train import train
from pipelines.training.train_data import open_few_shot_data
from tests.pipelines.tiny import cut_short, one_device, tiny_experiment, two_replicas
from tests.pipelines.training_runs import without_compiling

SETTINGS = (
    "model.layers=1",
    "data.train_split=train[:100]",
    "data.eval_split=test[:40]",
    "data.fraction=0.2",
    "train.steps=4",
    "train.checkpoint_every=2",
    "train.keep_last=100",
    "train.keep_best=true",
    "train.best_metric=few_shot",
    "train.few_shot_every=2",
    "train.ema_decay=0.5",
    "few_shot.shots=3,1",
    "few_shot.l2=32",
    "few_shot.seeds=2",
    "optimizer.learning_rate=0.01",
)
KEYS = ("few_shot_1_accuracy", "few_shot_3_accuracy")


def lines(workdir):
    """Step -> accuracies."""
    found = Workdir(workdir).read_metrics()
    return {x["step"]: [x[key] for key in KEYS] for x in found if KEYS[0] in x}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("few_shot") / "run"
    with without_compiling():
        train(tiny_experiment(*SETTINGS), workdir, one_device())
    return workdir


def test_accuracies_are_those_of_the_averaged_weights(run):
    logged = lines(run)
    assert list(logged) == [0, 2, 4]
    model, preprocessing, _ = model_source.find(run, "ema").open_model()
    # The whole split, although the run trains on a fifth of it.
    features = []
    for split in ("train[:100]", "test[:40]"):
        source = open_source("digits", split, None)
        data = EvaluationData(source=source, preprocessing=preprocessing, batch_size=32)
        features.append(FeatureExtractor(model.features, one_device(), data).run())
    train, test = features
    for shots, received in zip((1, 3), logged[4], strict=True):
        given = (train.values, train.labels, test.values, test.labels, 10, shots)
        expected = np.mean([few_shot_accuracy(*given, seed, 32) for seed in range(2)])
        assert received == pytest.approx(expected, abs=1e-9)


def test_the_best_checkpoint_has_the_highest_accuracy_with_most_shots(run):
    later = {step: values for step, values in lines(run).items() if step}
    best = max(later, key=lambda step: (later[step][1], -step))
    assert checkpoints.best(run / "checkpoints") == best
    for step, (_, accuracy) in later.items():  # Neither the evaluation's accuracy nor one shot's.
        checksums = read_json(run / "checkpoints" / f"step-{step}" / "checksums.json")
        assert checksums["score"] == accuracy


def test_a_restart_repeats_no_evaluation(run, tmp_path, uncompiled):
    workdir = cut_short(run, tmp_path / "run", 2)
    train(tiny_experiment(*SETTINGS), workdir, one_device())
    assert lines(workdir) == lines(run)
    assert len([x for x in Workdir(workdir).read_metrics() if KEYS[0] in x]) == 3


@pytest.mark.parametrize("metric", ["few_shot", "evaluation"])
def test_other_evaluations_are_the_same_run_unless_they_choose_the_best(metric):
    """A run of an earlier recipe, without the protocol in `few_shot`, goes on."""
    before = tiny_experiment(*SETTINGS, f"train.best_metric={metric}")
    protocol = dataclasses.asdict(IMAGENET_FEW_SHOT) | {"l2": 32.0}
    now = dataclasses.replace(before, few_shot=FewShot(**protocol))
    found = lasting_differences(before, now)
    assert [line.split(":")[0] for line in found] == (metric == "few_shot") * [
        *("few_shot.eval_split", "few_shot.name", "few_shot.preprocessing"),
        *("few_shot.seeds", "few_shot.shots", "few_shot.train_split"),
    ]


@pytest.mark.heavy("training")
def test_two_replicas_and_another_data_set(tmp_path, uncompiled):
    other = ("few_shot.name=digits", "few_shot.train_split=train[:200]")
    other += (
        "few_shot.eval_split=test[:99]",
        "train.steps=1",
        "schedule.warmup_steps=0",
        "train.ema_decay=none",
    )
    for name, strategy in (("one", one_device()), ("two", two_replicas())):
        experiment = tiny_experiment(*SETTINGS, *other, "data.eval_split=none")
        train(experiment, tmp_path / name, strategy)
    assert lines(tmp_path / "one")[0] == lines(tmp_path / "two")[0]
    after = [lines(tmp_path / name)[1] for name in ("one", "two")]
    # The weights differ by rounding, so an image with nearly equal scores may change sides.
    np.testing.assert_allclose(*after, atol=1.01 / 99)


def _few_shot_preprocessing(*assignments):
    data = open_few_shot_data(tiny_experiment(*SETTINGS, *assignments))
    assert data.train.preprocessing == data.test.preprocessing
    return data.test.preprocessing


def test_the_protocol_resizes_to_256_without_aspect_and_crops_224():
    """The run's own rule keeps the aspect ratio; a wide image shows the difference."""
    own = ("model.image_size=224", "model.patch_size=32", "data.resize=resize_small")
    own += ("data.resize_to=256", "data.interpolation=area")
    preprocessing = _few_shot_preprocessing(*own, "few_shot.preprocessing=protocol")
    image = np.random.default_rng(0).integers(0, 256, [300, 500, 3], np.uint8)
    resized = tf.image.resize(image, [256, 256]).numpy()[16:240, 16:240]
    received = preprocessing(image).numpy()
    np.testing.assert_allclose(received, resized / 127.5 - 1, rtol=0, atol=1e-6)
    usual = _few_shot_preprocessing(*own)
    assert usual == tiny_experiment(*SETTINGS, *own).preprocessing()
    assert np.abs(usual(image).numpy() - received).mean() > 0.1


@pytest.mark.parametrize(("size", "resized"), [("384", 438), ("224,160", 256), ("16", 18)])
def test_the_protocol_keeps_its_fraction_at_other_sizes(size, resized):
    own = (f"model.image_size={size}", "few_shot.preprocessing=protocol")
    preprocessing = _few_shot_preprocessing(*own, "data.antialias=true", "data.image_dtype=uint8")
    assert (preprocessing.resize, preprocessing.resize_to) == ("squash", resized)
    assert (preprocessing.antialias, preprocessing.dtype) == (False, "float32")


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (["few_shot.shots=50"], "50 of few_shot.shots"),
        (["data.eval_split=none"], "few_shot_every.*test on"),
        (["few_shot.name=nothing_like_it"], "nothing_like_it"),
    ],
)
def test_wrong_data(assignments, message, tmp_path):
    with pytest.raises(UserError, match=message):
        train(tiny_experiment(*SETTINGS, *assignments), tmp_path / "run", one_device())


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (["train.few_shot_every=0"], "Set train.few_shot_every"),
        (["train.few_shot_every=-1"], "train.few_shot_every"),
        (["train.best_metric=loss"], "train.best_metric"),
        (
            ["train.best_metric=few_shot", "train.few_shot_every=1", "train.keep_best=false"],
            "train.keep_best=true",
        ),
        (["few_shot.shots=0,1"], "few_shot.shots.* 1"),
        (["few_shot.l2=0"], "few_shot.l2.* 0"),
        (["few_shot.seeds=0"], "few_shot.seeds"),
        (["few_shot.preprocessing=own"], "preprocessing.*'own'"),
    ],
)
def test_wrong_settings(assignments, message):
    with pytest.raises(UserError, match=message):
        override(tiny_experiment(*SETTINGS), assignments)

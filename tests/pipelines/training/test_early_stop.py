"""Runs that end when their evaluations no longer get better."""

import os

import pytest

from pipelines.config import Train
from pipelines.errors import UserError
from pipelines.runs import checkpoints
from pipelines.runs.workdir import Workdir
from pipelines.training.early_stop import stop_reason
from pipelines.training.train import train
from tests.pipelines.tiny import arrays, one_device, tiny_experiment


def _lines(values, metric):
    """Lines of metrics.jsonl with these values at steps 10, 20 and so on, among others."""
    lines = [{"step": 0, "few_shot_1_accuracy": 1.0, "few_shot_5_accuracy": 1.0}]
    for index, value in enumerate(values):
        step = 10 * (index + 1)
        lines.append({"step": step, "learning_rate": 0.1, "loss": 9.0 - index})
        # The number of shots that does not count gets better all the time.
        lines.append({"step": step, "few_shot_1_accuracy": index / 100, metric: value})
        if metric.startswith("eval"):
            lines[-1]["eval_loss"] = 1.0
    return lines


@pytest.mark.parametrize(
    "metric",
    [
        "eval_accuracy",
        "eval_mean_average_precision",
        "eval_patch_accuracy",
        "eval_psnr",
        "few_shot_5_accuracy",
    ],
)
@pytest.mark.parametrize(
    ("values", "after", "best"),
    [
        ([], 1, None),
        ([0.5], 1, None),
        ([0.5, 0.6, 0.7], 1, None),
        ([0.5, 0.5], 1, 10),  # The same value is not better.
        ([0.5, 0.4, 0.6], 2, None),
        ([0.5, 0.4, 0.45], 2, 10),
        ([0.5, 0.7, 0.6, 0.7], 2, 20),
        ([0.5, 0.7, 0.6, 0.7], 3, None),
        ([0.5, 0.4, 0.3, 0.2], 0, None),
    ],
)
def test_a_run_ends_after_so_many_evaluations_without_a_better_one(metric, values, after, best):
    kind = "few_shot" if metric.startswith("few") else "evaluation"
    settings = Train(
        early_stop_after=after, eval_every=10, few_shot_every=10, best_metric=kind, keep_best=True
    )
    reason = stop_reason(_lines(values, metric), settings)
    if best is None:
        assert reason is None
    else:
        assert f"stopped early at step {10 * len(values)}: " in reason
        assert f"is that of step {best}, before the last {after} evaluations" in reason


# Nothing is learned, so the first evaluation stays the best.
STILL = ["optimizer.learning_rate=1e-30", "train.eval_every=2", "train.log_every=3"]
STILL += ["model.layers=1", "data.eval_split=test[:40]"]


def test_a_run_that_stopped_is_finished_until_it_may_go_on(tmp_path, logged, uncompiled):
    stops = tiny_experiment(*STILL, "train.early_stop_after=2", "train.ema_decay=0.9")
    result = train(stops, tmp_path, one_device())
    run = Workdir(tmp_path)
    lines = run.read_metrics()
    assert result["step"] == 6 and lines[-1] == result
    assert checkpoints.steps(run.checkpoints) == [6]
    assert sum("stopped early at step 6" in line for line in logged) == 1
    assert arrays(tmp_path).keys() == arrays(tmp_path, "ema.npz").keys()

    train(stops, tmp_path, one_device())
    assert run.read_metrics() == lines
    assert sum("stopped early at step 6" in line for line in logged) == 2
    assert checkpoints.steps(run.checkpoints) == [6] and os.path.exists(run.final)

    whole = tiny_experiment(*STILL, "train.ema_decay=0.9")
    assert train(whole, tmp_path, one_device())["step"] == 12
    logs = [line["step"] for line in run.read_metrics() if "learning_rate" in line]
    assert logs == [3, 6, 9, 12]


def test_few_shot_accuracies_can_end_a_run(tmp_path, uncompiled):
    stops = tiny_experiment(
        *STILL,
        "train.few_shot_every=3",
        "few_shot.train_split=train[:100]",
        "few_shot.eval_split=test[:100]",
        "few_shot.shots=1",
        "few_shot.seeds=1",
        "train.best_metric=few_shot",
        "train.early_stop_after=1",
    )
    assert train(stops, tmp_path, one_device())["step"] == 6
    kinds = {
        ("few_shot_1_accuracy" in line, line["step"]) for line in Workdir(tmp_path).read_metrics()
    }
    assert {(True, 0), (True, 3), (True, 6)} <= kinds


@pytest.mark.parametrize(
    ("assignments", "text"),
    [
        (["train.early_stop_after=-1"], "train.early_stop_after"),
        (["train.early_stop_after=2"], "after=2 counts.*none"),
        (
            ["train.early_stop_after=2", "train.eval_every=3", "data.eval_split=none"],
            "data.eval_split is none",
        ),
    ],
)
def test_rejects(assignments, text):
    with pytest.raises(UserError, match=text):
        tiny_experiment(*assignments)

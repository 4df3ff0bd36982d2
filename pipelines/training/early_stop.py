"""Ends a run whose evaluations no longer get better (`train.early_stop_after`).

The decision depends only on the lines of `metrics.jsonl`, which a resumed run computes again or
keeps: a run that was killed stops at the same step as one that was not.
"""

import re

from pipelines.tasks.metrics import as_text, main_metric

_FEW_SHOT = re.compile(r"few_shot_(\d+)_accuracy")


def stop_reason(lines, settings) -> str | None:
    """Returns a sentence if the run is over, else None.

    Args:
        lines: the lines of `metrics.jsonl`, in the order of their steps.
        settings: section `train` of the experiment.
    """
    patience = settings.early_stop_after
    if not patience:
        return None
    find = _few_shot if settings.best_metric == "few_shot" else _evaluation
    scores = [found for line in lines if (found := find(line)) is not None]
    best, since = None, 0
    for step, metric, value in scores:
        if best is None or value > best[2]:
            best, since = (step, metric, value), 0
        else:
            since += 1
    if since < patience:
        return None
    step, metric, value = best
    return (
        f"stopped early at step {scores[-1][0]}: the best {metric.replace('_', ' ')}, "
        f"{as_text(metric, value)}, is that of step {step}, before the last {since} evaluations "
        f"(train.early_stop_after={patience})"
    )


def _evaluation(line):
    """`(step, metric, value)` of the line of an evaluation, else None."""
    if "eval_loss" not in line:
        return None
    means = {name.removeprefix("eval_"): value for name, value in line.items()}
    metric = main_metric(means)
    return line["step"], metric, means[metric]


def _few_shot(line):
    """The same of a few-shot evaluation with its largest number of shots; none of step 0."""
    shots = {int(found[1]): name for name in line if (found := _FEW_SHOT.fullmatch(name))}
    if not shots or line["step"] == 0:
        return None
    most = max(shots)
    return line["step"], f"{most}-shot accuracy", line[shots[most]]

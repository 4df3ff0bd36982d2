"""The actions of a run besides steps: log lines, histograms, checkpoints, pictures, evaluations."""

import dataclasses
import math
import time
from collections.abc import Callable

from pipelines.distribution.group import current_group
from pipelines.distribution.strategies import is_tpu
from pipelines.errors import NonFiniteError
from pipelines.evaluation.evaluation_step import Evaluator
from pipelines.reports.model_pictures import ModelPictures
from pipelines.tasks.metrics import as_text, main_metric
from pipelines.training.few_shot_monitor import FewShotMonitor


@dataclasses.dataclass(frozen=True, kw_only=True)
class Action:
    """Something that a run does every few steps and at its last step.

    Attributes:
        every: the interval in steps; 0 means only at the last step.
        act: function of the number of finished steps.
        uses_weights: whether it evaluates, saves or draws the weights, which are checked before.
        is_evaluation: whether it follows the signals. An evaluation that was interrupted is done
            when the run is resumed.
        at_start: whether it is also done before the first step.
    """

    every: int
    act: Callable[[int], None]
    uses_weights: bool = True
    is_evaluation: bool = False
    at_start: bool = False

    def is_due(self, step, last_step) -> bool:
        """Whether the action is due after `step` of `last_step` steps."""
        if step == 0 and self.at_start:
            return True
        return step == last_step or (self.every > 0 and step > 0 and step % self.every == 0)


def log_action(settings, trainer, store, progress) -> Action:
    """Logs the steps since the last log line, and resets their sums."""

    def act(step):
        state, scale = trainer.log, trainer.loss_scale
        loss_sum = float(state.loss_sum.numpy())
        check_finite("sum of the losses", loss_sum, step, store)
        progress.log_training(
            step,
            loss_sum,
            learning_rate=float(trainer.optimizer.learning_rate(step - 1)),
            gradient_norm=float(state.gradient_norm.numpy()),
            skipped=int(state.skipped.numpy()),
            loss_scale=float(scale.value.numpy()) if scale else None,
        )
        state.reset()

    return Action(every=settings.log_every, act=act, uses_weights=False)


def few_shot_action(settings, trainer, monitor: FewShotMonitor, store, progress) -> Action:
    """Evaluates the features of the model, unless the metrics have a line for the step."""

    def act(step):
        if step <= progress.last_few_shot:
            return
        begin = time.perf_counter()
        with trainer.evaluated_weights():
            accuracies = monitor.run()
        if settings.keep_best and settings.best_metric == "few_shot" and step > 0:
            store.save(step, score=accuracies[max(accuracies)])
        progress.log_few_shot(step, accuracies, time.perf_counter() - begin)

    return Action(every=settings.few_shot_every, act=act, is_evaluation=True, at_start=True)


def evaluation_action(settings, trainer, evaluator: Evaluator, store, progress) -> Action:
    """Evaluates the model, unless the metrics have a line for the step."""

    def act(step):
        if step <= progress.last_evaluated:
            return
        begin = time.perf_counter()
        with trainer.evaluated_weights():
            means = evaluator.run()
        seconds = time.perf_counter() - begin
        check_finite("evaluation loss", means["loss"], step, store)
        # Before the line of metrics: a resumed run skips an evaluation that has a line.
        metric = main_metric(means)
        if settings.keep_best and settings.best_metric == "evaluation":
            store.save(step, score=means[metric])
        shown = f"{metric.replace('_', ' ')} {as_text(metric, means[metric])}"
        progress.log_evaluation(step, means, seconds, shown)

    return Action(every=settings.eval_every, act=act, is_evaluation=True)


def run_actions(
    prepared, trainer, reconstructions, store, progress, signals, reuse=None
) -> list[Action]:
    """Returns the actions of a run, in the order in which they are done.

    Args:
        prepared: the `PreparedRun`.
        trainer: its `Trainer`.
        reconstructions: `Reconstructions`, or None for a task without them.
        store: its `CheckpointStore`.
        progress: its `Progress`.
        signals: `Signals`, which evaluations check after every batch.
        reuse: the `Reuse` that makes or keeps its `Evaluator`, or None.
    """
    settings, data = prepared.experiment.train, prepared.data
    model, strategy, task = trainer.model, trainer.strategy, prepared.task
    actions = [log_action(settings, trainer, store, progress)]
    if settings.histograms_every:

        def histograms(step):
            progress.board.histograms(step, model.weights)

        actions.append(Action(every=settings.histograms_every, act=_by_chief(histograms)))
    if settings.inspect_every:
        pictures = ModelPictures(
            task.encoder(model),
            task.features(model),
            strategy,
            data.evaluation or data.train,
            settings.batch_size,
            is_tpu(strategy),
        )

        @_by_chief
        def inspect(step):
            pictures.show(progress.board, step)

        act = _of_evaluated_weights(trainer, inspect)
        actions.append(Action(every=settings.inspect_every, act=act))
    actions.append(Action(every=settings.checkpoint_every, act=store.save))
    if reconstructions is not None:

        @_by_chief
        def reconstruct(step):
            reconstructions.show(progress.board, step)

        act = _of_evaluated_weights(trainer, reconstruct)
        actions.append(Action(every=settings.eval_every, act=act, is_evaluation=True))
    if (few_shot := data.few_shot) is not None:
        features, own = task.features(model), prepared.experiment.few_shot
        monitor = FewShotMonitor(features, strategy, few_shot.train, few_shot.test, own, signals)
        actions.append(few_shot_action(settings, trainer, monitor, store, progress))
    # Last: the last line of metrics is then the evaluation.
    if data.evaluation is not None:
        make_evaluator = reuse.evaluator if reuse else Evaluator
        evaluator = make_evaluator(model, strategy, data.evaluation, task, signals)
        actions.append(evaluation_action(settings, trainer, evaluator, store, progress))
    return actions


def _by_chief(act):
    """The action if this process draws pictures, which needs no other worker; else none."""
    return act if current_group().is_chief else lambda step: None


def _of_evaluated_weights(trainer, act):
    """The action in the context of `Trainer.evaluated_weights`, which every worker enters."""

    def in_context(step):
        with trainer.evaluated_weights():
            act(step)

    return in_context


def check_finite(what, value, step, store):
    """Ends the run before it saves a non-finite value: raises `NonFiniteError`."""
    if not math.isfinite(value):
        raise NonFiniteError(
            f"The {what} is not finite at step {step}. Lower optimizer.learning_rate or lengthen "
            f"schedule.warmup_steps. {store.restart_point()}"
        )

"""The loop of a run: steps, log lines, evaluations and checkpoints.

Several steps run in one `tf.while_loop` on the device; between such loops, Python handles signals,
logs, evaluates and saves.
"""

import dataclasses
import math
import time

import tensorflow as tf

from pipelines import config
from pipelines.data.bad_images import INPUT_ERRORS
from pipelines.errors import Interrupted, NonFiniteError
from pipelines.evaluation.evaluation_step import Evaluator
from pipelines.evaluation.few_shot_monitor import FewShotMonitor
from pipelines.reports.reconstructions import Reconstructions
from pipelines.runs.checkpoints import CheckpointStore
from pipelines.runs.progress import Progress
from pipelines.runs.signals import Signals
from pipelines.runs.strategies import num_hosts
from pipelines.tasks.metrics import as_text, main_metric
from pipelines.training.non_finite import NonFinitePolicy
from pipelines.training.profiler import Profiler
from pipelines.training.train_data import TrainData
from pipelines.training.train_step import Trainer

_LONGEST_LOOP = 10.0  # Seconds between two checks for signals.


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingLoop:
    """Steps, log lines, evaluations and checkpoints until the last step or a signal.

    Attributes:
        settings: number of steps, and intervals of logs, evaluations and checkpoints.
        trainer: the training step; its dataset is open.
        data: the training data.
        evaluator: evaluates the model; None for no evaluations.
        few_shot: evaluates the model's features; None for no few-shot evaluations.
        reconstructions: draws them when an evaluation is due; None for a task without them.
        store: the checkpoints.
        non_finite: handles steps that are not finite.
        progress: log lines and metrics.
        profiler: records some steps.
        signals: checked between two loops on the device.
    """

    settings: config.Train
    trainer: Trainer
    data: TrainData
    evaluator: Evaluator | None
    few_shot: FewShotMonitor | None
    reconstructions: Reconstructions | None
    store: CheckpointStore
    non_finite: NonFinitePolicy
    progress: Progress
    profiler: Profiler
    signals: Signals

    def run(self):
        """Trains from the trainer's current step to the last one.

        Raises:
            As `train`.
        """
        settings = self.settings
        step = int(self.trainer.step.numpy())
        try:
            while True:
                if self._reconstructions_are_due(step):
                    with self.trainer.evaluated_weights():
                        self.reconstructions.show(self.progress.board, step)
                if self._few_shot_is_due(step) and step > self.progress.last_few_shot:
                    self._evaluate_few_shot(step)
                # Last: the last line of metrics is then the evaluation.
                if self._evaluation_is_due(step) and step > self.progress.last_evaluated:
                    self._evaluate(step)
                if step >= settings.steps:
                    break
                step = self._train(step)
                if self._is_non_finite(step):
                    reached, step = step, self.non_finite.recover(step)
                    if not self.trainer.settings.break_at_non_finite:
                        self.trainer.open_dataset(self.data.dataset)  # The loop has read further.
                    if step <= reached:  # Rewound.
                        self.progress.restart(step)
                        self.signals.check()
                        continue
                # After a skip, `step` is one larger.
                if self._is_due(step, settings.log_every):
                    self._log(step)
                if self._histograms_are_due(step):
                    self.progress.board.histograms(step, self.trainer.model.weights)
                if self._is_due(step, settings.checkpoint_every):
                    self.store.save(step)
                self.signals.check()
        except Interrupted as signal:
            _check_finite("sum of the weights", self.trainer.weight_sum(), step)
            self.store.save(step)
            raise Interrupted(
                f"{signal}: saved step {step}. Start the same command again to go on."
            ) from None

    def _train(self, step):
        """Trains to the next action, for about 10 s at most; returns the steps done."""
        trainer = self.trainer
        begin = step
        steps = min(self._next_stop(step) - step, self.progress.steps_within(_LONGEST_LOOP))
        if self.profiler.covers(step):
            steps = 1
        first = trainer.next_batch
        try:
            with self.profiler.step(step), self.progress.timed(steps) as timing:
                trainer.train(tf.constant(steps))
                step = int(trainer.step.numpy())  # Waits for the device.
                timing.steps = max(step - begin, 1)  # Fewer than `steps` if one was not finite.
                timing.waited = float(trainer.data_wait.numpy())
        except INPUT_ERRORS as error:
            # The step counter does not name the failed batch, so all batches are searched.
            batches = range(first, first + steps)
            hosts = num_hosts(trainer.strategy)
            raise self.data.explain_input_error(error, batches, hosts) from None
        if trainer.bad_rows:
            self._name_bad_images()
        return step

    def _name_bad_images(self):
        """Names the images that the input left out in the last loop on the device.

        Raises:
            DataError: if a batch had no image at all: nothing could be learned from it.
        """
        bad_rows = self.trainer.bad_rows
        rows, lost = bad_rows.take()
        if rows:
            self.data.record_bad_images(rows, lost, num_hosts(self.trainer.strategy))
        if (batch := bad_rows.empty_batch()) is not None:
            raise self.data.empty_batch_error(batch)

    def _is_non_finite(self, step):
        """Whether the last step, or a weight to be evaluated, saved or drawn, is not finite."""
        used = (
            self._is_due(step, self.settings.checkpoint_every)
            or self._evaluation_is_due(step)
            or self._few_shot_is_due(step)
            or self._reconstructions_are_due(step)
            or self._histograms_are_due(step)
        )
        halted = bool(self.trainer.halted.numpy())
        return halted or (used and not math.isfinite(self.trainer.weight_sum()))

    def _evaluate(self, step):
        begin = time.perf_counter()
        with self.trainer.evaluated_weights():
            means = self.evaluator.run()
        seconds = time.perf_counter() - begin
        _check_finite("evaluation loss", means["loss"], step)
        # Before the line of metrics: a resumed run skips an evaluation that has a line.
        metric = main_metric(means)
        if self.settings.keep_best and self.settings.best_metric == "evaluation":
            self.store.save(step, score=means[metric])
        shown = f"{metric.replace('_', ' ')} {as_text(metric, means[metric])}"
        self.progress.log_evaluation(step, means, seconds, shown)

    def _evaluate_few_shot(self, step):
        begin = time.perf_counter()
        with self.trainer.evaluated_weights():
            accuracies = self.few_shot.run()
        if self.settings.keep_best and self.settings.best_metric == "few_shot" and step > 0:
            self.store.save(step, score=accuracies[max(accuracies)])
        self.progress.log_few_shot(step, accuracies, time.perf_counter() - begin)

    def _log(self, step):
        """Logs the steps since the last log line, and resets their sums."""
        trainer, scale = self.trainer, self.trainer.loss_scale
        loss_sum = float(trainer.loss_sum.numpy())
        _check_finite("sum of the losses", loss_sum, step)
        self.progress.log_training(
            step,
            loss_sum,
            learning_rate=float(trainer.optimizer.learning_rate(step - 1)),
            gradient_norm=float(trainer.gradient_norm.numpy()),
            skipped=int(trainer.skipped.numpy()),
            loss_scale=float(scale.value.numpy()) if scale else None,
        )
        trainer.loss_sum.assign(0.0)
        trainer.skipped.assign(0)

    def _evaluation_is_due(self, step):
        return self.evaluator is not None and self._is_due(step, self.settings.eval_every)

    def _few_shot_is_due(self, step):
        every = self.settings.few_shot_every
        return self.few_shot is not None and (step == 0 or self._is_due(step, every))

    def _reconstructions_are_due(self, step):
        return self.reconstructions is not None and self._is_due(step, self.settings.eval_every)

    def _histograms_are_due(self, step):
        every = self.settings.histograms_every
        return every > 0 and self._is_due(step, every)

    def _is_due(self, step, every):
        """Whether an action with the interval `every` (0: only at the end) is due at `step`."""
        return step == self.settings.steps or (every > 0 and step > 0 and step % every == 0)

    def _next_stop(self, step):
        """The next step with a log line, an evaluation, a checkpoint, histograms or a profile."""
        settings = self.settings
        intervals = (
            settings.log_every,
            settings.eval_every,
            settings.few_shot_every,
            settings.checkpoint_every,
            settings.histograms_every,
        )
        stops = [(step // every + 1) * every for every in intervals if every > 0]
        profile = [stop for stop in settings.profiled_steps() or () if stop > step]
        return min([settings.steps, *stops, *profile])


def _check_finite(what, value, step):
    """Ends the run before it saves a non-finite value."""
    if not math.isfinite(value):
        raise NonFiniteError(
            f"The {what} is not finite at step {step}. Lower optimizer.learning_rate or lengthen "
            "schedule.warmup_steps. The checkpoints in the workdir are older than this step."
        )

"""The loop of a run: steps, log lines, evaluations and checkpoints.

Several steps run in one `tf.while_loop` on the device; between such loops, Python handles signals,
logs, evaluates and saves.
"""

import dataclasses
import logging
import math
from collections.abc import Callable

import tensorflow as tf

from pipelines import config
from pipelines.data.bad_images import INPUT_ERRORS
from pipelines.distribution.group import current_group
from pipelines.distribution.signals import Signals
from pipelines.distribution.strategies import num_hosts
from pipelines.errors import Interrupted
from pipelines.runs.checkpoints import CheckpointStore
from pipelines.runs.progress import Progress
from pipelines.training.actions import Action, check_finite
from pipelines.training.early_stop import stop_reason
from pipelines.training.non_finite import NonFinitePolicy
from pipelines.training.profiler import Profiler
from pipelines.training.train_data import TrainData
from pipelines.training.train_step import Trainer

_log = logging.getLogger(__name__)

_LONGEST_LOOP = 10.0  # Seconds between two checks for signals.


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingLoop:
    """Steps, log lines, evaluations and checkpoints until the last step or a signal.

    Attributes:
        settings: section `train` of the experiment.
        trainer: the training step; its dataset is open.
        data: the training data.
        actions: done besides steps, in this order.
        non_finite: handles steps that are not finite.
        store: the checkpoints, for a signal.
        progress: measures the steps.
        read_metrics: returns the lines of `metrics.jsonl`, which may end the run early.
        profiler: records some steps.
        signals: checked between two loops on the device.
    """

    settings: config.Train
    trainer: Trainer
    data: TrainData
    actions: list[Action]
    non_finite: NonFinitePolicy
    store: CheckpointStore
    progress: Progress
    read_metrics: Callable[[], list[dict]]
    profiler: Profiler
    signals: Signals

    def run(self):
        """Trains from the trainer's current step to the last one.

        Raises:
            As `train`.
        """
        step = int(self.trainer.step.numpy())
        try:
            self._do(step, evaluations=True)
            stop = self._stop_reason()
            while step < self.settings.steps and not stop:
                reached = step = self._train(step)
                is_rewound = False
                if self._is_non_finite(step):
                    step = self.non_finite.recover(reached)
                    if not self.trainer.settings.break_at_non_finite:
                        self.trainer.open_dataset(self.data.dataset)  # The loop has read further.
                    is_rewound = step <= reached  # After a skip, `step` is one larger.
                if is_rewound:
                    self.progress.restart(step)
                else:
                    self._do(step, evaluations=False)
                self.signals.check()
                self._do(step, evaluations=True)
                # Only an evaluation can change it; to read the metrics takes time.
                if any(action.is_evaluation for action in self._due(step)):
                    stop = self._stop_reason()
            if step < self.settings.steps:
                self._end_early(step, stop)
        except Interrupted as signal:
            check_finite("sum of the weights", self.trainer.weight_sum(), step, self.store)
            self.store.save(step)
            current_group().gather(step)  # The others stay until the chief has saved.
            raise Interrupted(
                f"{signal}: saved step {step}. Start the same command again to go on."
            ) from None

    def _end_early(self, step, reason):
        """Saves and evaluates as at the last step, if that is not done yet.

        There is no log line: the checkpoint of this step may hold the sums of its losses already,
        and a run that goes on later logs them with its next line.
        """
        left = [x for x in self.actions if x.uses_weights and x not in self._due(step)]
        for action in sorted(left, key=lambda action: action.is_evaluation):
            action.act(step)
        _log.info(reason)

    def _stop_reason(self):
        if not self.settings.early_stop_after:
            return None
        return current_group().from_chief(lambda: stop_reason(self.read_metrics(), self.settings))

    def _train(self, step):
        """Trains to the next action, for about 10 s at most; returns the steps done."""
        trainer = self.trainer
        begin = step
        # Clocks differ between workers.
        fitting = min(current_group().gather(self.progress.steps_within(_LONGEST_LOOP)))
        steps = min(self._next_stop(step) - step, fitting)
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
        bad_rows, group = self.trainer.bad_rows, current_group()
        found = group.gather(bad_rows.take())
        rows = sorted(tuple(row) for own, _ in found for row in own)
        if rows and group.is_chief:
            batches = self.data.batches(num_hosts(self.trainer.strategy))
            self.data.bad_images.record_slots(batches, rows)
            self.data.bad_images.lose(sum(lost for _, lost in found))
        if (batch := bad_rows.empty_batch()) is not None:
            raise self.data.empty_batch_error(batch)

    def _is_non_finite(self, step):
        """Whether the last step, or a weight that an action uses now, is not finite."""
        used = any(action.uses_weights for action in self._due(step))
        halted = bool(self.trainer.halt.halted.numpy())
        own = halted or (used and not math.isfinite(self.trainer.weight_sum()))
        return any(current_group().gather(own))

    def _due(self, step):
        return [x for x in self.actions if x.is_due(step, self.settings.steps)]

    def _do(self, step, evaluations):
        for action in self._due(step):
            if action.is_evaluation == evaluations:
                action.act(step)

    def _next_stop(self, step):
        """The next step with an action, or at which a profile begins or ends."""
        intervals = [action.every for action in self.actions if action.every > 0]
        stops = [(step // every + 1) * every for every in intervals]
        profile = [stop for stop in self.settings.profiled_steps() or () if stop > step]
        return min([self.settings.steps, *stops, *profile])

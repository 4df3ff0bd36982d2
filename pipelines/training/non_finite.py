"""Handles a step whose loss or gradient is not finite: stop, skip or rewind.

Such a step has changed nothing (see `train_step.Trainer`), so the weights that produced it are
still there. The step is repeated to find the first non-finite value, and the finding is written to
`non_finite.jsonl`. A run that goes on takes the next batch of its open dataset.
"""

import logging
import math
import time

import tensorflow as tf

from pipelines.distribution.group import current_group
from pipelines.distribution.strategies import num_hosts
from pipelines.errors import NonFiniteError, RunError
from pipelines.runs import checkpoints
from pipelines.training.find_non_finite import Finding, find_non_finite, find_non_finite_weight
from pipelines.training.optimization.loss_scale import unscaled

_log = logging.getLogger(__name__)

LIMIT = 10  # Most skips in a row, and most rewinds to the same checkpoint.
_NAMED = 32  # Most images of one step whose names are written.
_ADVICE = "Lower optimizer.learning_rate, lengthen schedule.warmup_steps, or look at the images."


class NonFinitePolicy:
    """Acts on steps that are not finite.

    Args:
        action: `train.non_finite`: "stop", "skip" or "rewind".
        trainer: `train_step.Trainer`.
        store: `CheckpointStore` of its state.
        run: `Workdir`.
        data: `TrainData`.
    """

    def __init__(self, action, trainer, store, run, data):
        self._action = action
        self._trainer, self._store, self._run, self._data = trainer, store, run, data
        self._last_skipped, self._skips = None, 0
        self._rewound_to, self._rewinds = None, 0

    def recover(self, reached) -> int:
        """Examines a step, records the finding, and skips or rewinds.

        Of several workers, the chief examines and decides for all.

        Args:
            reached: steps done. If the trainer has halted, this is the index of the step that was
                not finite; otherwise step `reached - 1` made a weight non-finite.

        Returns:
            Steps done now: `reached + 1` after a skip, at most `reached` after a rewind.

        Raises:
            NonFiniteError: if the run must stop, or has skipped or rewound too often.
            RunError: if the finding cannot be written.
        """
        halted = bool(self._trainer.halt.halted.numpy())
        step = reached if halted else reached - 1
        batch = step + int(self._trainer.batch_offset.numpy())
        action = current_group().from_chief(lambda: self._decide(step, batch, halted))
        return self._skip(step) if action == "skip" else self._rewind(batch)

    def _decide(self, step, batch, halted):
        """Examines a step and records the finding; returns "skip" or "rewind"."""
        finding, ids = self._examine(step, batch, halted)
        if halted:
            loss = float(self._trainer.halt.loss_and_norm.numpy()[0])
            symptom = "gradient norm" if math.isfinite(loss) else "loss"
            sentence = f"The {symptom} is not finite at step {step}, {finding.text}."
        else:
            sentence = f"The sum of the weights is not finite after step {step}, {finding.text}."
        objection = self._objection(step, finding)
        action = "stop" if objection else self._action
        try:
            self._record(step, batch, finding, ids, action)
        except OSError as error:
            reason = checkpoints.failure_reason(error)
            raise RunError(f"{sentence} Cannot write {self._run.non_finite}: {reason}.") from None
        if objection:
            raise NonFiniteError(
                f"{sentence} {objection} Ids of the images are in {self._run.non_finite}. "
                f"{self._store.restart_point()}"
            )
        _log.info(f"{sentence} Ids of the images are in {self._run.non_finite}.")
        return action

    def _record(self, step, batch, finding, ids, action):
        loss, norm = (
            _json_number(float(value)) for value in self._trainer.halt.loss_and_norm.numpy()
        )
        self._run.append_non_finite(
            {
                "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
                "step": step,
                "batch": batch,
                "what": finding.what,
                "layer": finding.layer,
                "variable": finding.variable,
                "loss": loss,
                "gradient_norm": norm,
                "action": action,
                "ids": ids,
                "shown_by": list(finding.ids),
                "names": [self._data.source.describe(x) for x in finding.ids[:_NAMED] if x >= 0],
            }
        )

    def _examine(self, step, batch, halted):
        """Returns `(Finding, ids of the whole batch)`; holds one micro-batch in memory."""
        trainer = self._trainer
        count = trainer.strategy.num_replicas_in_sync * trainer.settings.accumulate_steps
        hosts, ids = num_hosts(trainer.strategy), []

        def read():
            for host in range(hosts):  # With data.sharding=files, each has images of its own.
                context = tf.distribute.InputContext(hosts, host, count)
                for micro_batch in self._data.batch(batch, context):
                    ids.extend(micro_batch["id"].numpy().tolist())
                    yield micro_batch

        micro_batches = read()
        if halted:
            with unscaled(trainer.loss_scale):
                finding = find_non_finite(trainer.model, trainer.gradients, micro_batches, step)
        else:
            finding = find_non_finite_weight(trainer.model)
            finding = finding or Finding("weight", "because they have grown too large")
        for _ in micro_batches:  # Reads the ids of the remaining micro-batches.
            pass
        return finding, ids

    def _objection(self, step, finding):
        """The reason why the run stops, with advice; None if it may go on."""
        if self._action == "stop":
            if finding.what == "nothing":
                return "Start the same command again."
            return f"{_ADVICE} With train.non_finite=skip or rewind the run goes on."
        if self._action == "skip":
            if finding.what == "weight":
                return f"Skipping cannot repair weights; see train.non_finite=rewind. {_ADVICE}"
            if self._skips == LIMIT and self._last_skipped == step - 1:
                return f"The run stops, because the {LIMIT} steps before were skipped. {_ADVICE}"
        if self._action == "rewind":
            target = checkpoints.newest(self._run.checkpoints)
            if self._rewinds == LIMIT and self._rewound_to == target:
                return f"{LIMIT} rewinds to step {target} have not helped. {_ADVICE}"
        return None

    def _skip(self, step):
        self._skips = self._skips + 1 if self._last_skipped == step - 1 else 1
        self._last_skipped = step
        self._trainer.step.assign(step + 1)
        self._trainer.log.skipped.assign_add(1)
        if self._trainer.loss_scale:  # The updates were not in a row.
            self._trainer.loss_scale.updates.assign(0)
        _log.info(f"skipping step {step}")
        return step + 1

    def _rewind(self, batch):
        step = self._store.restore_newest()
        self._rewinds = self._rewinds + 1 if self._rewound_to == step else 1
        self._rewound_to = step
        self._trainer.batch_offset.assign(batch + 1 - step)
        self._run.drop_metrics_after(step)
        _log.info(f"rewinding to step {step}, which goes on with batch {batch + 1}")
        return step


def _json_number(value):
    return value if math.isfinite(value) else str(value)

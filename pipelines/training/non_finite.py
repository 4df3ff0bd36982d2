"""A step whose loss or gradient is not finite: where that begins, who was in it, what follows.

Such a step has changed nothing (see `steps.Trainer`), so the weights are still those that produced
it. `find` repeats it in eager mode and looks at every value on the way; `Guard` writes down what
was found and stops, skips the step or rewinds, as `train.non_finite` says.
"""

import dataclasses
import math
import time

import keras
import tensorflow as tf

from pipelines.errors import RunError, first_line
from pipelines.runs import checkpoints
from pipelines.runs.progress import say

LIMIT = 10  # Skips in a row, and rewinds to the same checkpoint.
_NAMED = 32  # Images of one step whose names are written.
_ADVICE = "Lower optimizer.learning_rate, lengthen schedule.warmup_steps, or look at the images."


@dataclasses.dataclass(frozen=True)
class Finding:
    """Where the first value of a step is that is not finite.

    Attributes:
        what: "weight", "image", "layer", "loss", "gradient", "sum" (only over the whole batch),
            "nothing" (repeated, all is finite) or "error" (the step could not be repeated).
        text: the same as the end of a sentence.
        layer, variable: paths in the model, where there is one. Beside a layer, the variable is the
            first one in backward order whose gradient is not finite.
        ids: of the images that show it, or, if that cannot be told, of the part they are in.
    """

    what: str
    text: str
    layer: str | None = None
    variable: str | None = None
    ids: tuple[int, ...] = ()


class Guard:
    """Acts on steps that are not finite.

    Args:
        trainer: `steps.Trainer`.
        store: `CheckpointStore` of its state.
        run: `Workdir`.
        source: `Source` of the training images.
        batches: as for `Trainer.feed`.
    """

    def __init__(self, trainer, store, run, source, batches):
        self._trainer, self._store, self._run = trainer, store, run
        self._source, self._batches = source, batches
        self._mode = trainer.experiment.train.non_finite
        self._last_skipped, self._skips = None, 0
        self._rewound_to, self._rewinds = None, 0

    def handle(self, reached) -> int:
        """Examines a step, writes it down, and skips or rewinds.

        Args:
            reached: steps done. If the trainer is frozen, this is the index of the step that was
                not finite; otherwise the weights are not finite since the step before.

        Returns:
            Steps done now: `reached + 1` after a skip, at most `reached` after a rewind.

        Raises:
            RunError: if the run is to stop, or has skipped or rewound too often.
        """
        frozen = bool(self._trainer.frozen.numpy())
        step = reached if frozen else reached - 1
        batch = step + int(self._trainer.offset.numpy())
        finding, ids = self._examine(step, batch, frozen)
        if frozen:
            loss = float(self._trainer.newest.numpy()[0])
            symptom = "gradient norm" if math.isfinite(loss) else "loss"
            sentence = f"The {symptom} is not finite at step {step}, {finding.text}."
        else:
            sentence = f"The sum of the weights is not finite after step {step}, {finding.text}."
        objection = self._objection(step, finding)
        action = "stop" if objection else self._mode
        try:
            self._write_down(step, batch, finding, ids, action)
        except OSError as error:
            reason = checkpoints.failure_reason(error)
            raise RunError(f"{sentence} Cannot write {self._run.non_finite}: {reason}.") from None
        if objection:
            raise RunError(
                f"{sentence} {objection} Ids of the images are in {self._run.non_finite}; what is "
                "saved in the workdir is from before."
            )
        say(f"{sentence} Ids of the images are in {self._run.non_finite}.")
        return self._skip(step) if action == "skip" else self._rewind(batch)

    def _write_down(self, step, batch, finding, ids, action):
        loss, norm = (_json_number(float(value)) for value in self._trainer.newest.numpy())
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
                "names": [self._source.describe(x) for x in finding.ids[:_NAMED] if x >= 0],
            }
        )

    def _examine(self, step, batch, frozen):
        """`(Finding, ids of the whole batch)`; only a part of the batch is in memory at a time."""
        trainer = self._trainer
        count = trainer.strategy.num_replicas_in_sync * trainer.experiment.train.accumulate_steps
        context = tf.distribute.InputContext(num_replicas_in_sync=count)
        ids = []

        def read():
            for part in self._batches(batch, context).take(count):
                ids.extend(part["id"].numpy().tolist())
                yield part

        parts = read()
        if frozen:
            finding = find(trainer, parts, step)
        else:
            finding = _find_weight(trainer.model)
            finding = finding or Finding("weight", "because they have grown too large")
        for _ in parts:  # For the ids of the rest.
            pass
        return finding, ids

    def _objection(self, step, finding):
        """Why the run stops, with what helps; None if it may go on."""
        if self._mode == "stop":
            if finding.what == "nothing":
                return "The same command goes on from the last checkpoint."
            return f"{_ADVICE} train.non_finite=skip or rewind goes on without asking."
        if self._mode == "skip":
            if finding.what == "weight":
                return f"Skipping steps mends no weights; see train.non_finite=rewind. {_ADVICE}"
            if self._skips == LIMIT and self._last_skipped == step - 1:
                return f"It is not skipped, because {LIMIT} steps before it were. {_ADVICE}"
        if self._mode == "rewind":
            target = checkpoints.newest(self._run.checkpoints)
            if self._rewinds == LIMIT and self._rewound_to == target:
                return f"{LIMIT} rewinds to step {target} have not helped. {_ADVICE}"
        return None

    def _skip(self, step):
        self._skips = self._skips + 1 if self._last_skipped == step - 1 else 1
        self._last_skipped = step
        self._trainer.step.assign(step + 1)
        self._trainer.skipped.assign_add(1)
        self._trainer.feed(self._batches)
        say(f"skipping step {step}")
        return step + 1

    def _rewind(self, batch):
        step = self._store.restore_newest()
        self._rewinds = self._rewinds + 1 if self._rewound_to == step else 1
        self._rewound_to = step
        self._trainer.offset.assign(batch + 1 - step)
        self._trainer.feed(self._batches)
        self._run.drop_metrics_after(step)
        say(f"rewinding to step {step}, which goes on with batch {batch + 1}")
        return step


def find(trainer, parts, step) -> Finding:
    """Repeats a step in eager mode, up to the first value that is not finite.

    Looks in the order of the computation: at the weights; for each part at images, layers, loss and
    gradients, these from the head down; at the sums over the parts. The model stays as it was.

    Args:
        trainer: `steps.Trainer` with the weights that the step began with.
        parts: the consecutive parts of its batch, as large as a replica would process them.
        step: index of the step.
    """
    if finding := _find_weight(trainer.model):
        return finding
    # Statistics that a forward pass may move.
    kept = [(variable, variable.numpy()) for variable in trainer.model.non_trainable_weights]
    try:
        return _find_in_parts(trainer, parts, step)
    except tf.errors.OpError as error:
        return Finding("error", f"and it could not be repeated: {first_line(error)}")
    finally:
        for variable, value in kept:
            variable.assign(value)


def _find_weight(model):
    for weight in model.weights:
        if not _is_finite(weight.value):
            path = _relative(weight.path)
            return Finding("weight", f"first in the weight {path}", _owner(path), path)
    return None


def _find_in_parts(trainer, parts, step):
    losses, sums = tf.zeros([]), None
    for part in parts:
        if not _is_finite(part["image"]):
            return Finding("image", "first in the input images", ids=_ids(part, part["image"]))
        with _Watch() as watch:
            loss, gradients = trainer.gradients(part, tf.constant(step, tf.int64))
        by_variable = watch.backward(trainer.model.trainable_variables, gradients)
        variable = next((path for path, value in by_variable if not _is_finite(value)), None)
        if watch.layer is not None:
            text = f"first in the output of layer {watch.layer}"
            text += f" and in the gradient of {variable}" if variable else ""
            return Finding("layer", text, watch.layer, variable, _ids(part, watch.value))
        if not _is_finite(loss):
            text = "first in the loss itself: the logits are finite"
            return Finding("loss", text, variable=variable, ids=_ids(part))
        if variable is not None:
            text = f"first in the gradient of {variable}"
            return Finding("gradient", text, _owner(variable), variable, _ids(part))
        losses += loss
        sums = gradients if sums is None else [a + b for a, b in zip(sums, gradients, strict=True)]

    by_variable = watch.backward(trainer.model.trainable_variables, sums)
    variable = next((path for path, value in by_variable if not _is_finite(value)), None)
    if variable is not None or not _is_finite(tf.linalg.global_norm(sums)):
        # A norm beyond the range comes from the largest gradient.
        largest = max(by_variable, key=lambda pair: float(tf.reduce_max(tf.abs(pair[1]))))[0]
        variable = variable or largest
        text = f"first in the sum of the gradients over the batch, in that of {variable}"
        return Finding("sum", text, _owner(variable), variable)
    if not _is_finite(losses):
        return Finding("sum", "first in the sum of the losses over the batch")
    return Finding(
        "nothing", "but not when it is repeated: faulty memory or other hardware is possible"
    )


class _Watch:
    """Follows the calls of all layers for the time of a `with` block, in eager mode.

    Attributes:
        layer: path of the first layer with an output that is not finite, None without any. If a
            layer is called with such a value, though no layer returned it, its caller is named.
        value: that output.
    """

    def __init__(self):
        self.layer = self.value = None
        self._names = []  # Of the layers that are being called, the model first.
        self._order = {}  # Path of a variable -> when its layer was done.

    def __enter__(self):
        # Keras has no hook for calls, and no public list of all layers inside a model.
        self._original = original = keras.layers.Layer.__call__

        def call(layer, *args, **kwargs):
            self._look((args, kwargs))
            self._names.append(layer.name)
            try:
                outputs = original(layer, *args, **kwargs)
                self._look(outputs)
            finally:
                self._names.pop()
            if self._names:  # Not the model itself: it is done when everything is.
                for variable in layer.trainable_variables:
                    self._order.setdefault(variable.path, len(self._order))
            return outputs

        keras.layers.Layer.__call__ = call
        return self

    def __exit__(self, *exc_info):
        keras.layers.Layer.__call__ = self._original

    def _look(self, values):
        if self.layer is not None or not tf.executing_eagerly():
            return
        for value in tf.nest.flatten(values):
            if isinstance(value, tf.Tensor) and not _is_finite(value):
                self.layer = "/".join(self._names[1:] or self._names)
                self.value = value
                return

    def backward(self, variables, gradients):
        """`[(path, gradient), ...]`, the variables of the last layer first."""
        pairs = zip(variables, gradients, strict=True)
        last_first = sorted(pairs, key=lambda pair: -self._order.get(pair[0].path, -1))
        return [(_relative(variable.path), gradient) for variable, gradient in last_first]


def _is_finite(value):
    value = tf.convert_to_tensor(value)
    return not value.dtype.is_floating or bool(tf.reduce_all(tf.math.is_finite(value)))


def _ids(part, value=None):
    """Ids of the images whose rows of `value` are not finite; of all images if it has no rows."""
    ids = part["id"].numpy()
    if value is not None and value.shape.rank and value.shape[0] == len(ids):
        rows = tf.reshape(value, [len(ids), -1])
        ids = ids[~tf.reduce_all(tf.math.is_finite(rows), axis=1).numpy()]
    return tuple(ids.tolist())


def _relative(path):
    """The path of a variable without the name of the model."""
    return path.partition("/")[2] or path


def _owner(path):
    """The layer of a variable."""
    return path.rpartition("/")[0] or None


def _json_number(value):
    return value if math.isfinite(value) else str(value)

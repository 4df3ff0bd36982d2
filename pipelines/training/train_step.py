"""The training step, under every strategy (Orbit's inner loop)."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable

import orbit
import tensorflow as tf

from pipelines.distribution.strategies import is_tpu
from pipelines.runs import checkpoint_weights
from pipelines.training.optimization.optimizers import clip_scale
from pipelines.training.optimization.replica_variables import (
    assign_on_all_replicas,
    replicated_variable,
)
from pipelines.training.step_state import BadRows, HaltState, LogState
from vit_tf.layers import BatchStatistics, RandomContext, StandardizedKernels


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepSettings:
    """The settings of a training step, apart from model and optimizer.

    Attributes:
        losses: function of the model and a batch, returns the loss of each example, float32 `[b]`;
            it is called in a `RandomContext`.
        batch_size: images per step over all replicas and hosts.
        accumulate_steps: number of micro-batches of a replica, processed one after another.
        seed: of dropout, stochastic depth and masking: int, or a scalar int64 variable.
        break_at_non_finite: whether a loop on the device ends at a step that is not finite. The
            dataset then continues with the batch after it. Otherwise the loop has read further, so
            a run that goes on opens the dataset again. Not for TPUs: the host would wait for each
            step.
        jit_compile: whether XLA compiles `Trainer.replica_step`. Only for strategies with one
            replica, since XLA does not compile the sums over replicas.
        notes_bad_rows: whether `Trainer.bad_rows` notes the rows that the input left out.
    """

    losses: Callable
    batch_size: int
    accumulate_steps: int
    seed: int | tf.Variable
    break_at_non_finite: bool
    jit_compile: bool = False
    notes_bad_rows: bool = False


class Trainer(orbit.StandardTrainer):
    """One training step, and the state that a checkpoint holds.

    A step whose loss or gradient is not finite changes nothing, and neither do later steps in the
    same loop on the device. `halt.halted` is then true, `step` is the index of the non-finite step,
    and the weights are those from before it. `non_finite.NonFinitePolicy` handles it.

    Args:
        model: built in `strategy.scope()`.
        optimizer: `optimizers.Optimizer`, created in the same scope.
        strategy: the `tf.distribute.Strategy` that runs it.
        settings: `StepSettings`.
        ema: `ExponentialMovingAverage` of the weights, created in the same scope, or None.
        loss_scale: `LossScale`, created in the same scope, or None. A step that overflows because
            of the scale changes no weights and counts as skipped; the loop goes on.
        notes: lines about frozen variables, for the start of a run.
    """

    def __init__(self, model, optimizer, strategy, settings, ema=None, loss_scale=None, notes=()):
        super().__init__(train_dataset=None)  # See `open_dataset`.
        self.notes = tuple(notes)
        self.model, self.optimizer, self.ema = model, optimizer, ema
        self.loss_scale, self.slices = loss_scale, optimizer.slices
        self.strategy, self.settings = strategy, settings
        with strategy.scope():
            self.step = orbit.utils.create_global_step()
            # Number of batches that rewinds left out: step k trains on batch k + batch_offset.
            self.batch_offset = replicated_variable(tf.constant(0, tf.int64), "offset")
            self.log, self.halt = LogState(), HaltState()
            self.bad_rows = BadRows(strategy) if settings.notes_bad_rows else None
        self.measures_wait = not is_tpu(strategy) and _has_clock()
        with tf.device("CPU:0"):
            # Seconds spent waiting for batches, in this loop on the device; 0 if not measured.
            self.data_wait = tf.Variable(0.0, dtype=tf.float64, trainable=False, name="data_wait")
        self.checkpoint = tf.train.Checkpoint(
            model=checkpoint_weights.weights_by_path(model.weights),
            optimizer=optimizer.state,
            step=self.step,
            offset=self.batch_offset,
            loss_sum=self.log.loss_sum,
            skipped=self.log.skipped,
            **({"ema": ema.state} if ema else {}),
            **({"loss_scale": loss_scale.state} if loss_scale else {}),
        )

    @property
    def next_batch(self) -> int:
        """Index of the batch that the next step trains on."""
        return int(self.step.numpy()) + int(self.batch_offset.numpy())

    def open_dataset(self, dataset_fn):
        """Opens the dataset at the batch of the next step.

        Args:
            dataset_fn: function of the index of a batch and a `tf.distribute.InputContext`,
                returns the host's dataset from that batch on.
        """
        self.train_dataset = self.strategy.distribute_datasets_from_function(
            functools.partial(dataset_fn, self.next_batch)
        )

    def train_loop_begin(self):
        self.halt.halted.assign(False)
        self.data_wait.assign(0.0)

    def create_train_loop_fn(self):
        """Returns Orbit's loop, or a loop that ends at a step that is not finite.

        To read `halt.halted`, the host waits for every step, so an accelerator may be idle between
        steps. Runs with `train.non_finite=stop` end there anyway and use Orbit's loop.
        """
        if not self.settings.break_at_non_finite:
            return super().create_train_loop_fn()

        def goes_on(done, num_steps):
            return (done < num_steps) & ~tf.convert_to_tensor(self.halt.halted)

        @tf.function(autograph=False)
        def loop(iterator, num_steps):
            def step(done):
                with tf.name_scope(""):  # As in Orbit's loop: names without "while/".
                    self.train_step(iterator)
                return [done + 1]  # The list is needed when functions run eagerly.

            tf.while_loop(lambda done: goes_on(done, num_steps), step, [0])

        return loop

    # Orbit would have AutoGraph rewrite the source of all that a step calls: seconds at each start.
    @tf.autograph.experimental.do_not_convert
    def train_step(self, iterator):
        step = self.replica_step
        if self.settings.jit_compile:
            step = tf.function(step, jit_compile=True, autograph=False)
        self.strategy.run(step, args=(self._next(iterator),))

    def _next(self, iterator):
        """Returns the next batch, and adds the time spent waiting for it to `data_wait`.

        In a loop on the device a step begins when the previous step has ended, so the time does not
        include computation. It is close to 0 for a batch that was ready. It is not measured under
        op determinism, which forbids the clock, and on TPUs, where the host would wait for each
        step.
        """
        if not self.measures_wait:
            return next(iterator)
        begin = tf.timestamp()
        with tf.control_dependencies([begin]):
            batch = next(iterator)
        with tf.control_dependencies(tf.nest.flatten(batch, expand_composites=True)):
            end = tf.timestamp()
        self.data_wait.assign_add(end - begin)
        return batch

    def replica_step(self, batch):
        """Forward, backward and update of one replica's slice of the global batch.

        All variables that a step changes are changed here, so on a TPU one program does all of it.
        Those that changed outside of `strategy.run` would be updated by the host, in every step.

        Returns:
            `(mean loss of the global batch, norm of its gradient, whether the update was applied)`,
            equal on all replicas.
        """
        step = tf.convert_to_tensor(self.step)
        with BatchStatistics(batch["weight"]) as statistics:
            loss, gradients = self._accumulated_gradients(batch, step)
        context = tf.distribute.get_replica_context()
        # The loss too, so that all replicas agree whether to apply the update.
        if self.slices:
            loss, gradients = self.slices.sums(loss, gradients)
        else:
            loss, gradients = context.all_reduce(tf.distribute.ReduceOp.SUM, (loss, gradients))
        # Clipped after the sum: a clip on each replica would use the norm of its own gradient.
        scale, norm = clip_scale(gradients, self.optimizer.clip_norm, self.slices)
        finite = tf.math.is_finite(loss) & tf.math.is_finite(norm)
        goes_on = ~tf.convert_to_tensor(self.halt.halted)
        applied = finite & goes_on
        self.optimizer.apply(gradients, step, applied, scale)
        if statistics.updates:
            updates = [(variable.value, value) for variable, value in statistics.updates]
            assign_on_all_replicas(updates, applied)
        if self.ema:
            self.ema.update(step, applied)
        if self.bad_rows:
            # In a halted loop, batches no longer have the index that the step would train on.
            self.bad_rows.add(batch, step + self.batch_offset, goes_on)
        done, overflowed = applied, None
        if self.loss_scale:
            overflowed = self.loss_scale.answers(loss, norm) & goes_on
            self.loss_scale.update(applied, overflowed)
            done |= overflowed
        assign_on_all_replicas(
            [
                *self.halt.updates(loss, norm, done),
                *self.log.updates(loss, norm, applied, overflowed),
                (self.step, self.step + tf.cast(done, tf.int64)),
            ]
        )
        return loss, norm, applied

    def _accumulated_gradients(self, batch, step):
        """Sums loss and gradients over `accumulate_steps` consecutive micro-batches of the slice.

        Memory holds the activations of one micro-batch at a time. Random draws depend on the slots
        in the global batch, so the sum is the same as without micro-batches.
        """
        micro_batches, variables = self.settings.accumulate_steps, self.model.trainable_variables
        if micro_batches == 1:
            return self.gradients(batch, step)
        stacked = {
            key: tf.reshape(
                value, [micro_batches, value.shape[0] // micro_batches, *value.shape[1:]]
            )
            for key, value in batch.items()
        }

        def add_micro_batch(index, loss, gradients):
            micro_batch = {key: value[index] for key, value in stacked.items()}
            one_loss, one_gradients = self.gradients(micro_batch, step, values)
            sums = [a + b for a, b in zip(gradients, one_gradients, strict=True)]
            return index + 1, loss + one_loss, sums

        zeros = [tf.zeros(variable.shape) for variable in variables]
        # Standardizes kernels, and backpropagates through that, once for all micro-batches.
        with tf.GradientTape() as tape:
            kernels = StandardizedKernels(self.model)
        values = kernels.substitute(variables)
        with kernels:
            _, loss, gradients = tf.while_loop(
                lambda index, *_: index < micro_batches,
                add_micro_batch,
                (0, 0.0, zeros),
                maximum_iterations=micro_batches,
            )
        return loss, kernels.raw_gradients(tape, variables, gradients)

    def gradients(self, batch, step, values=None):
        """`(loss, gradients)` of a micro-batch; summed over a global batch: its mean loss.

        Args:
            batch: the micro-batch.
            step: index of the training step.
            values: list of tensors to differentiate with respect to; None means the trainable
                variables.
        """
        settings = self.settings
        if values is None:
            values = [variable.value for variable in self.model.trainable_variables]
        with RandomContext(settings.seed, step, batch["slot"]):
            # Frozen variables are not watched, so gradients that only they need are not computed.
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(values)
                losses = settings.losses(self.model, batch)
                # Divided by the size of the global batch, not of this micro-batch.
                loss = tf.reduce_sum(losses * batch["weight"]) / settings.batch_size
        if self.loss_scale:
            return loss, self.loss_scale.gradient(tape, loss, values)
        return loss, tape.gradient(loss, values)

    def evaluated_weights(self):
        """A context in which the model has the weights that are evaluated: the average, if any.

        Every worker enters it at the same time.
        """
        return self.ema.swapped_in() if self.ema else contextlib.nullcontext()

    def whole_state(self):
        """A context for writing `checkpoint`, which every worker enters at the same time."""
        return self.slices.gathered() if self.slices else contextlib.nullcontext()

    @tf.function(autograph=False)
    def _weight_sum(self):
        return tf.add_n([tf.reduce_sum(weight.value) for weight in self.model.weights])

    def weight_sum(self) -> float:
        """The sum of all weights; not finite if one weight is not finite."""
        return float(self._weight_sum().numpy())


def _has_clock():
    try:
        tf.timestamp()
    except tf.errors.FailedPreconditionError:  # Op determinism forbids it.
        return False
    return True

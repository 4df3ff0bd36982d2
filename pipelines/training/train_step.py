"""One training step and one evaluation step, under every strategy (Orbit's inner loops)."""

import functools
import math
import time

import orbit
import tensorflow as tf

from pipelines.data import pipeline
from pipelines.data.bad_images import INPUT_ERRORS, explain_input_error
from pipelines.errors import UserError
from pipelines.runs import model_source
from pipelines.tasks import classification
from pipelines.training import optimizers
from vit_tf.layers import RandomContext, StandardizedKernels


class Trainer(orbit.StandardTrainer):
    """One training step, and the state that a checkpoint holds.

    A step whose loss or gradient is not finite changes nothing, and neither do those after it in
    the same loop on the device: `frozen` is then true, `step` is the index of that step, and the
    weights are those that produced it. See `non_finite.Guard` for what follows.

    Args:
        model: built in `strategy.scope()`.
        optimizer: `optimization.Optimizer`, created in the same scope.
        experiment: the run.
        strategy: where it runs.
        dataset: distributed batches; None if `feed` gives them later.
    """

    def __init__(self, model, optimizer, experiment, strategy, dataset=None):
        super().__init__(dataset)
        self.model, self.optimizer = model, optimizer
        self.experiment, self.strategy = experiment, strategy
        with strategy.scope():
            self.step = orbit.utils.create_global_step()
            # Batches that rewinds have left out: step k trains on batch k + offset.
            self.offset = _state(tf.constant(0, tf.int64), "offset")
            self.loss_sum = _state(0.0, "loss_sum")
            # Steps since the last log line that were not finite and do not count.
            self.skipped = _state(tf.constant(0, tf.int64), "skipped")
            self.norm = _state(0.0, "gradient_norm")
            self.frozen = _state(False, "frozen")
            # Loss and gradient norm of the newest step that was not frozen, finite or not.
            self.newest = _state([0.0, 0.0], "newest")
            self.ema = None
            if experiment.train.ema_decay is not None:
                self.ema = optimizers.PolyakAverage(
                    model.trainable_variables, experiment.train.ema_decay
                )
        self._now = _clock()
        with tf.device("CPU:0"):
            # Seconds between asking for a batch and having it, in this loop on the device.
            self.waited = tf.Variable(0.0, dtype=tf.float64, trainable=False, name="waited")
        # Slices of the loss since the last log line are state, so that a resumed log is the same.
        self.checkpoint = tf.train.Checkpoint(
            model=model_source.checkpointable(model),
            optimizer=optimizer.state,
            step=self.step,
            offset=self.offset,
            loss_sum=self.loss_sum,
            skipped=self.skipped,
            **({"ema": self.ema.state} if self.ema else {}),
        )

    @property
    def next_batch(self) -> int:
        """Index of the batch that the next step trains on."""
        return int(self.step.numpy()) + int(self.offset.numpy())

    def feed(self, batches):
        """Opens the input at the batch of the next step.

        Args:
            batches: function of the index of a batch and a `tf.distribute.InputContext`, returns
                the host's dataset from there on.
        """
        self.train_dataset = self.strategy.distribute_datasets_from_function(
            functools.partial(batches, self.next_batch)
        )

    def train_loop_begin(self):
        self.frozen.assign(False)
        self.waited.assign(0.0)

    def train_step(self, iterator):
        batch = self._next(iterator)
        results = self.strategy.run(self.replica_step, args=(batch,))
        # The same on all replicas.
        loss, norm, counts = (self.strategy.experimental_local_results(x)[0] for x in results)
        self.newest.assign(tf.where(self.frozen, self.newest, tf.stack([loss, norm])))
        self.loss_sum.assign_add(tf.where(counts, loss, 0.0))
        self.norm.assign(tf.where(counts, norm, self.norm))
        self.step.assign_add(tf.cast(counts, tf.int64))
        self.frozen.assign(~counts)

    def _next(self, iterator):
        """The next batch, with the time that it takes added to `waited`.

        A loop on the device begins no step before the one before it is done, so computing does not
        count; a batch that was ready takes next to nothing.
        """
        begin = self._now()
        with tf.control_dependencies([begin]):
            batch = next(iterator)
        with tf.control_dependencies(tf.nest.flatten(batch, expand_composites=True)):
            end = self._now()
        self.waited.assign_add(end - begin)
        return batch

    def replica_step(self, batch):
        """Forward, backward and update of one replica's slice of the global batch.

        Returns:
            `(mean loss of the global batch, norm of its gradient, whether the step counts)`, equal
            on all replicas.
        """
        step = tf.convert_to_tensor(self.step)
        loss, gradients = self._accumulated_gradients(batch, step)
        context = tf.distribute.get_replica_context()
        # The loss too, so that all replicas decide alike whether the step counts.
        loss, gradients = context.all_reduce(tf.distribute.ReduceOp.SUM, (loss, gradients))
        # Clipped after the sum: clipping each replica's part would not clip the gradient.
        gradients, norm = optimizers.clip_by_global_norm(
            gradients, self.experiment.optimizer.clip_norm
        )
        finite = tf.math.is_finite(loss) & tf.math.is_finite(norm)
        counts = finite & ~tf.convert_to_tensor(self.frozen)
        self.optimizer.apply(gradients, self.learning_rate(step), step, counts)
        if self.ema:
            self.ema.update(counts)
        return loss, norm, counts

    def _accumulated_gradients(self, batch, step):
        """Sums loss and gradients over `train.accumulate_steps` consecutive parts of the slice.

        Only one part's activations exist at a time. The parts draw as the whole would, because
        draws depend on positions, so the sum is that of the whole batch.
        """
        parts, variables = self.experiment.train.accumulate_steps, self.model.trainable_variables
        if parts == 1:
            return self.gradients(batch, step)
        stacked = {
            key: tf.reshape(value, [parts, value.shape[0] // parts, *value.shape[1:]])
            for key, value in batch.items()
        }

        def add_part(index, loss, gradients):
            part = {key: value[index] for key, value in stacked.items()}
            part_loss, part_gradients = self.gradients(part, step, values)
            sums = [a + b for a, b in zip(gradients, part_gradients, strict=True)]
            return index + 1, loss + part_loss, sums

        zeros = [tf.zeros(variable.shape) for variable in variables]
        # Kernels are standardised once for all parts, and so is the sum of their gradients.
        with tf.GradientTape() as tape:
            kernels = StandardizedKernels(self.model)
        values = kernels.in_place_of(variables)
        with kernels:
            _, loss, gradients = tf.while_loop(
                lambda index, *_: index < parts, add_part, (0, 0.0, zeros), maximum_iterations=parts
            )
        return loss, kernels.to_raw(tape, variables, gradients)

    def gradients(self, batch, step, values=None):
        """`(loss, gradients)` of a part of the global batch; summed over all parts, its mean.

        Args:
            batch: the part.
            step: index of the training step.
            values: what the gradients are with respect to, a list; None means the variables.
        """
        train = self.experiment.train
        if values is None:
            values = [variable.value for variable in self.model.trainable_variables]
        with RandomContext(self.experiment.seed, step, batch["position"]):
            with tf.GradientTape() as tape:
                tape.watch(values)
                logits = self.model(batch["image"], training=True)
                losses = classification.example_losses(
                    batch["label"], logits, train.loss, train.label_smoothing
                )
                # Divided by the global batch, not by this part.
                loss = tf.reduce_sum(losses * batch["weight"]) / train.batch_size
        return loss, tape.gradient(loss, values)

    @tf.function
    def _weight_sum(self):
        sums = [tf.reduce_sum(variable.value) for variable in self.model.trainable_variables]
        return tf.add_n(sums)

    def weight_sum(self) -> float:
        """The sum of all weights: not finite if one of them is not."""
        return float(self._weight_sum().numpy())

    def learning_rate(self, step):
        """The schedule of the experiment at `step`."""
        return optimizers.learning_rate(
            step,
            peak=self.experiment.optimizer.learning_rate,
            total_steps=self.experiment.train.steps,
            warmup_steps=self.experiment.schedule.warmup_steps,
            decay=self.experiment.schedule.decay,
        )


def _clock():
    """A function that gives the seconds on this host when a step gets there, float64."""
    try:
        tf.timestamp()
        return tf.timestamp
    except tf.errors.FailedPreconditionError:  # Op determinism forbids it, but not this.
        return functools.partial(tf.numpy_function, time.perf_counter, [], tf.float64)


def _state(value, name):
    """A variable that is the same on all replicas."""
    return tf.Variable(
        value,
        trainable=False,
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        name=name,
    )


class Evaluator(orbit.StandardEvaluator):
    """Sums over a data set in which every example counts once.

    Args:
        model: built in `strategy.scope()`.
        strategy: where it runs.
        source: `DataSource` to evaluate.
        preprocessing: how images become inputs.
        batch_size: images per step over all replicas.
        loss: see `classification.example_losses`.
        signals: optional `Signals`, looked at after every batch.
        bad_images: optional `BadImages`, to leave out images that cannot be read; else one ends it.
    """

    def __init__(
        self,
        model,
        strategy,
        source,
        preprocessing,
        batch_size,
        loss,
        signals=None,
        bad_images=None,
    ):
        replicas = strategy.num_replicas_in_sync
        batch_size = math.ceil(batch_size / replicas) * replicas
        dataset = strategy.distribute_datasets_from_function(
            lambda context: pipeline.eval_dataset(
                source,
                batch_size=batch_size,
                preprocessing=preprocessing,
                bad_images=bad_images,
                input_context=context,
            )
        )
        super().__init__(dataset)
        self.model, self.strategy, self.loss, self.signals = model, strategy, loss, signals
        self.source, self.bad_images = source, bad_images
        self.steps = math.ceil(source.num_examples / batch_size)

    def eval_begin(self):
        return {}

    def eval_step(self, iterator):
        sums = self.strategy.run(self._replica_sums, args=(next(iterator),))
        return {name: self.strategy.reduce("SUM", value, axis=None) for name, value in sums.items()}

    def _replica_sums(self, batch):
        logits = self.model(batch["image"], training=False)
        return classification.evaluation_sums(batch["label"], logits, batch["weight"], self.loss)

    def eval_reduce(self, state, step_outputs):
        if self.signals is not None:
            self.signals.check()
        # Python floats: float32 would lose single examples after 16 million.
        sums = {name: float(value) for name, value in step_outputs.items()}
        return {name: state.get(name, 0.0) + value for name, value in sums.items()}

    def eval_end(self, state):
        if not state["examples"]:
            raise UserError(
                f"Not one image of {self.source} can be read. Is it the right data set?"
            )
        return classification.evaluation_means(state)

    def run(self) -> dict:
        """Evaluates the whole data set: examples, loss, accuracy, top_5_accuracy.

        Raises:
            UserError: if an image cannot be read and is not to be left out; it is named.
        """
        try:
            return self.evaluate(tf.constant(self.steps))
        except INPUT_ERRORS as error:
            indices = range(self.source.num_examples)
            explain_input_error(error, self.source, indices, self.bad_images)

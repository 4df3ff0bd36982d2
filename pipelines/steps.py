"""One training step and one evaluation step, under every strategy (Orbit's inner loops)."""

import math

import orbit
import tensorflow as tf

from pipelines import classification, optimization, weights
from pipelines.data import pipeline
from vit_tf.layers import RandomContext


class Trainer(orbit.StandardTrainer):
    """One training step, and the state that a checkpoint holds.

    Args:
        model: built in `strategy.scope()`.
        optimizer: `optimization.Optimizer`, created in the same scope.
        experiment: the run.
        strategy: where it runs.
        dataset: distributed batches.
    """

    def __init__(self, model, optimizer, experiment, strategy, dataset):
        super().__init__(dataset)
        self.model, self.optimizer = model, optimizer
        self.experiment, self.strategy = experiment, strategy
        with strategy.scope():
            self.step = orbit.utils.create_global_step()
            self.loss_sum, self.norm = (
                tf.Variable(
                    0.0,
                    trainable=False,
                    aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
                    name=name,
                )
                for name in ("loss_sum", "gradient_norm")
            )
            self.average = None
            if experiment.train.average is not None:
                self.average = optimization.PolyakAverage(
                    model.trainable_variables, experiment.train.average
                )
        # Slices of the loss since the last log line are state, so that a resumed log is the same.
        self.checkpoint = tf.train.Checkpoint(
            model=weights.checkpointable(model),
            optimizer=optimizer.state,
            step=self.step,
            loss_sum=self.loss_sum,
            **({"average": self.average.state} if self.average else {}),
        )

    def train_step(self, iterator):
        losses, norms = self.strategy.run(self.replica_step, args=(next(iterator),))
        self.loss_sum.assign_add(self.strategy.reduce("SUM", losses, axis=None))
        self.norm.assign(self.strategy.reduce("MEAN", norms, axis=None))
        self.step.assign_add(1)

    def replica_step(self, batch):
        """Forward, backward and update of one replica's slice of the global batch.

        Returns:
            `(this slice's part of the mean loss, norm of the global gradient)`.
        """
        step = tf.convert_to_tensor(self.step)
        loss, gradients = self._accumulated_gradients(batch, step)
        context = tf.distribute.get_replica_context()
        gradients = context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
        # Clipped after the sum: clipping each replica's part would not clip the gradient.
        gradients, norm = optimization.clip_by_global_norm(
            gradients, self.experiment.optimizer.clip_norm
        )
        self.optimizer.apply(gradients, self.learning_rate(step), step)
        if self.average:
            self.average.update()
        return loss, norm

    def _accumulated_gradients(self, batch, step):
        """Sums loss and gradients over `train.accumulation` consecutive parts of the slice.

        Only one part's activations exist at a time. The parts draw as the whole would, because
        draws depend on positions, so the sum is that of the whole batch.
        """
        parts = self.experiment.train.accumulation
        if parts == 1:
            return self._gradients(batch, step)
        stacked = {
            key: tf.reshape(value, [parts, value.shape[0] // parts, *value.shape[1:]])
            for key, value in batch.items()
        }

        def add_part(index, loss, gradients):
            part = {key: value[index] for key, value in stacked.items()}
            part_loss, part_gradients = self._gradients(part, step)
            sums = [a + b for a, b in zip(gradients, part_gradients, strict=True)]
            return index + 1, loss + part_loss, sums

        zeros = [tf.zeros(variable.shape) for variable in self.model.trainable_variables]
        _, loss, gradients = tf.while_loop(
            lambda index, *_: index < parts, add_part, (0, 0.0, zeros), maximum_iterations=parts
        )
        return loss, gradients

    def _gradients(self, batch, step):
        """`(loss, gradients)` of a part of the global batch; summed over all parts, its mean."""
        train = self.experiment.train
        variables = [variable.value for variable in self.model.trainable_variables]
        with RandomContext(self.experiment.seed, step, batch["position"]):
            with tf.GradientTape() as tape:
                logits = self.model(batch["image"], training=True)
                losses = classification.example_losses(
                    batch["label"], logits, train.loss, train.label_smoothing
                )
                # Divided by the global batch, not by this part.
                loss = tf.reduce_sum(losses * batch["weight"]) / train.batch_size
        return loss, tape.gradient(loss, variables)

    @tf.function
    def _weight_sum(self):
        sums = [tf.reduce_sum(variable.value) for variable in self.model.trainable_variables]
        return tf.add_n(sums)

    def weight_sum(self) -> float:
        """The sum of all weights: not finite if one of them is not."""
        return float(self._weight_sum().numpy())

    def learning_rate(self, step):
        """The schedule of the experiment at `step`."""
        return optimization.learning_rate(
            step,
            peak=self.experiment.optimizer.learning_rate,
            total_steps=self.experiment.train.steps,
            warmup_steps=self.experiment.schedule.warmup_steps,
            decay=self.experiment.schedule.decay,
        )


class Evaluator(orbit.StandardEvaluator):
    """Sums over a data set in which every example counts once.

    Args:
        model: built in `strategy.scope()`.
        strategy: where it runs.
        source: `data.Source` to evaluate.
        preprocessing: how images become inputs.
        batch_size: images per step over all replicas.
        loss: see `classification.example_losses`.
        signals: optional `Signals`, looked at after every batch.
    """

    def __init__(self, model, strategy, source, preprocessing, batch_size, loss, signals=None):
        replicas = strategy.num_replicas_in_sync
        batch_size = math.ceil(batch_size / replicas) * replicas
        dataset = strategy.distribute_datasets_from_function(
            lambda context: pipeline.eval_dataset(
                source,
                batch_size=batch_size,
                preprocessing=preprocessing,
                input_context=context,
            )
        )
        super().__init__(dataset)
        self.model, self.strategy, self.loss, self.signals = model, strategy, loss, signals
        self.source = source
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
        return classification.evaluation_means(state)

    def run(self) -> dict:
        """Evaluates the whole data set: examples, loss, accuracy, top_5_accuracy.

        Raises:
            UserError: if an image cannot be read; it is named.
        """
        try:
            return self.evaluate(tf.constant(self.steps))
        except pipeline.INPUT_ERRORS as error:
            found = pipeline.find_unreadable(self.source, range(self.source.num_examples))
            raise found or error from None

"""The evaluation step, under every strategy, and its sums over a data set (Orbit's inner loop)."""

import dataclasses
import math
import threading
from collections.abc import Callable

import orbit
import tensorflow as tf

from pipelines.data import pipeline
from pipelines.data.bad_images import INPUT_ERRORS, BadImages, explain_input_error
from pipelines.data.sources.source import DataSource
from pipelines.errors import UserError
from pipelines.runs.progress import compiling
from pipelines.tasks import metrics
from vit_tf import Preprocessing


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationData:
    """A data set to evaluate on, and how its images become batches.

    Attributes:
        source: the examples.
        preprocessing: how images become inputs.
        batch_size: images per step over all replicas; rounded up to a multiple of their number.
        bad_images: leaves out images that cannot be read; None ends the evaluation at the first.
    """

    source: DataSource
    preprocessing: Preprocessing
    batch_size: int
    bad_images: BadImages | None = None


class Evaluator(orbit.StandardEvaluator):
    """Computes metrics over a data set; every example counts once.

    Args:
        model: built in `strategy.scope()`.
        strategy: the `tf.distribute.Strategy` that runs it.
        data: `EvaluationData`.
        loss: function of labels and logits, returns the loss of each example, float32 `[b]`.
        log: called with a line every 10 s while the step compiles.
        signals: optional `Signals`, checked after every batch.
    """

    def __init__(self, model, strategy, data, loss: Callable, log: Callable, signals=None):
        replicas = strategy.num_replicas_in_sync
        batch_size = math.ceil(data.batch_size / replicas) * replicas
        dataset = strategy.distribute_datasets_from_function(
            lambda context: pipeline.eval_dataset(
                data.source,
                batch_size=batch_size,
                preprocessing=data.preprocessing,
                bad_images=data.bad_images,
                input_context=context,
            )
        )
        super().__init__(dataset)
        self.model, self.strategy, self.data = model, strategy, data
        self.loss, self.log, self.signals = loss, log, signals
        self._compiled = threading.Event()
        self.steps = pipeline.eval_steps(data.source, batch_size)

    def eval_begin(self):
        return {}

    def eval_step(self, iterator):
        sums = self.strategy.run(self._replica_sums, args=(next(iterator),))
        return {name: self.strategy.reduce("SUM", value, axis=None) for name, value in sums.items()}

    def _replica_sums(self, batch):
        labels, logits = batch["label"], self.model(batch["image"], training=False)
        return metrics.metric_sums(labels, logits, batch["weight"], self.loss(labels, logits))

    def eval_reduce(self, state, step_outputs):
        self._compiled.set()
        if self.signals is not None:
            self.signals.check()
        # Python floats: float32 cannot count single examples above 16 million.
        sums = {name: float(value) for name, value in step_outputs.items()}
        return {name: state.get(name, 0.0) + value for name, value in sums.items()}

    def eval_end(self, state):
        if not state["examples"]:
            raise UserError(
                f"None of the images of {self.data.source} can be read. Is it the right data set?"
            )
        return metrics.metric_means(state)

    def run(self) -> dict:
        """Evaluates the whole data set: examples, loss, accuracy, top_5_accuracy.

        Raises:
            UserError: if an image cannot be read and is not left out; the message names it.
        """
        source = self.data.source
        try:
            with compiling("the evaluation step", self._compiled, self.log):
                return self.evaluate(tf.constant(self.steps))
        except INPUT_ERRORS as error:
            indices = range(source.num_examples)
            raise explain_input_error(error, source, indices, self.data.bad_images) from None

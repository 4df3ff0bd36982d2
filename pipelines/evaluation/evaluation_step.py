"""The evaluation step, under every strategy, and its sums over a data set (Orbit's inner loop)."""

import dataclasses
import math
import threading
import time

import numpy as np
import orbit
import tensorflow as tf

from pipelines.data import pipeline
from pipelines.data.bad_images import INPUT_ERRORS, BadImages, explain_input_error
from pipelines.data.host_reading import check_hosts
from pipelines.data.order import EvalBatches
from pipelines.data.sources.source import DataSource
from pipelines.distribution.group import current_group
from pipelines.errors import DataError, UserError
from pipelines.runs.progress import compiling
from pipelines.tasks import metrics
from pipelines.tasks.average_precision import AveragePrecision, score_bytes
from vit_tf import Preprocessing

# Largest size of all scores of a multi-label data set, which an evaluation holds in memory.
MAX_SCORE_BYTES = 8 * 2**30


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationData:
    """A data set to evaluate on, and how its images become batches.

    Attributes:
        source: the examples.
        preprocessing: how images become inputs, and the dtype of the images in batches.
        batch_size: images per step over all replicas; rounded up to a multiple of their number.
        bad_images: leaves out images that cannot be read; None ends the evaluation at the first.
        max_batches: largest number of batches, spread evenly over the data; 0 takes all.
        border: pixels at each side of an image that are cut off before it is resized.
        reads_labels: whether the task reads labels; then the scores of all images of a multi-label
            data set are collected.

    Raises:
        DataError: if these scores do not fit into memory.
    """

    source: DataSource
    preprocessing: Preprocessing
    batch_size: int
    bad_images: BadImages | None = None
    max_batches: int = 0
    border: int = 0
    reads_labels: bool = True

    @property
    def collects_scores(self) -> bool:
        """Whether the scores of all images are needed at the end."""
        return self.reads_labels and self.source.multi_label

    def __post_init__(self):
        source = self.source
        count = EvalBatches(source, self.batch_size, self.max_batches).num_examples
        size = score_bytes(count, source.num_classes)
        if self.collects_scores and size > MAX_SCORE_BYTES:
            raise DataError(
                f"The scores of {source} need {size / 1e9:,.1f} GB: {count:,} images "
                f"of {source.num_classes:,} classes. The average precision is computed for at most "
                f"{MAX_SCORE_BYTES / 1e9:,.1f} GB: set data.eval_split to a smaller range, such as "
                f"{source.split.partition('[')[0]}[:10%]."
            )

    def distributed(self, strategy):
        """Returns the dataset for the replicas of a strategy, and its `EvalBatches`.

        Raises:
            DataError: if a host of the strategy cannot read the data.
        """
        check_hosts(strategy, self.source)
        replicas = strategy.num_replicas_in_sync
        batch_size = math.ceil(self.batch_size / replicas) * replicas
        dataset = strategy.distribute_datasets_from_function(
            lambda context: pipeline.eval_dataset(
                self.source,
                batch_size=batch_size,
                preprocessing=self.preprocessing,
                skips_bad_images=self.bad_images is not None,
                input_context=context,
                max_batches=self.max_batches,
                border=self.border,
            )
        )
        return dataset, EvalBatches(self.source, batch_size, self.max_batches)


class Evaluator(orbit.StandardEvaluator):
    """Computes metrics over a data set; every example counts once.

    For multi-label data, the scores of all images are collected on this host.

    Args:
        model: built in `strategy.scope()`.
        strategy: the `tf.distribute.Strategy` that runs it.
        data: `EvaluationData`.
        task: `Classification` or `MaskedPatches`; its `measure` computes the sums of a batch.
        signals: optional `Signals`, checked after every batch.
        predictions: `Predictions` that collect the results of one evaluation; None collects none.

    Attributes:
        batches: `EvalBatches`; their size is that over all replicas.
        first_batch_done: `time.perf_counter()` after the first batch, which includes compiling.
        average_precisions: of each class in the last evaluation of multi-label data, float64
            `[K]`, NaN of classes without an image; else None.
    """

    def __init__(self, model, strategy, data, task, signals=None, predictions=None):
        super().__init__(eval_dataset=None)  # See `open`.
        self.model, self.strategy, self.task = model, strategy, task
        self.predictions = predictions
        self._compiled = threading.Event()
        self._done = 0  # batches of this evaluation
        self.first_batch_done = 0.0
        self.open(data, signals)

    def open(self, data, signals=None):
        """Opens a data set, maybe another one than before; arguments as for the class."""
        self.eval_dataset, self.batches = data.distributed(self.strategy)
        self.data, self.signals, self.average_precisions = data, signals, None

    def eval_begin(self):
        scores = None
        if self.data.collects_scores:
            scores = AveragePrecision(self.batches.num_examples, self.data.source.num_classes)
        self._done = 0
        return {}, scores

    @tf.autograph.experimental.do_not_convert  # As `TrainStep.train_step`.
    def eval_step(self, iterator):
        sums, scored, bad = self.strategy.run(self.replica_step, args=(next(iterator),))
        local = self.strategy.experimental_local_results
        sums = {name: local(x)[0] for name, x in sums.items()}  # Equal on all replicas.
        scored = [self.strategy.gather(value, axis=0) for value in scored]
        if self.data.bad_images is None:
            return sums, scored, None
        if current_group().count > 1:  # The chief names the images that any worker cannot read.
            return sums, scored, self.strategy.gather(bad, axis=0)
        return sums, scored, tf.concat(local(bad), axis=0)

    def replica_step(self, batch):
        """Measures one replica's slice of the global batch.

        Returns:
            The result of the task's `measure`, with sums over all replicas, its columns only if
            they are collected, and for predictions the ids behind them; and the slot of each row
            that the input left out, -1 for the others.
        """
        sums, scored = self.task.measure(self.model, batch)
        if self.predictions is not None:
            scored = [*scored, batch["id"]]
        elif not self.data.collects_scores:
            scored = []
        context = tf.distribute.get_replica_context()
        sums = context.all_reduce(tf.distribute.ReduceOp.SUM, sums)
        is_bad = (batch["weight"] == 0) & (batch["id"] >= 0)
        return sums, scored, tf.where(is_bad, batch["slot"], -1)

    def eval_reduce(self, state, step_outputs):
        if not self._compiled.is_set():
            self._compiled.set()
            self.first_batch_done = time.perf_counter()
        if self.signals is not None:
            self.signals.check()
        (sums, scores), (step_sums, scored, bad) = state, step_outputs
        if self.data.bad_images is not None and current_group().is_chief:
            slots = [(self._done, slot) for slot in bad.numpy() if slot >= 0]
            self.data.bad_images.record_slots(self.batches, slots)
        self._done += 1
        scored = [value.numpy() for value in scored]
        if scores is not None:
            scores.add(*scored[:3])
        if self.predictions is not None:
            self.predictions.add(*scored)
        # Python floats: float32 cannot count single examples above 16 million.
        return {x: sums.get(x, 0.0) + float(value) for x, value in step_sums.items()}, scores

    def eval_end(self, state):
        sums, scores = state
        readable = "can be read"
        if self.task.leaves_out:
            readable += " and is of a class for which the label map names one of the model"
        for count, problem in (("examples", readable), ("labeled", "has a label")):
            if not sums.get(count, 1.0):
                raise UserError(
                    f"None of the images of {self.data.source} {problem}. Is it the right data set?"
                )
        means = metrics.metric_means(sums)
        if scores is None:
            return means
        self.average_precisions = scores.by_class()
        # A class has an image: else no image would have a label.
        return means | {"mean_average_precision": float(np.nanmean(self.average_precisions))}

    def run(self) -> dict:
        """Evaluates the data set: examples, loss, and the metrics of the task.

        Classification: accuracy, top_5_accuracy; multi-label: precision_at_1,
        mean_average_precision; see `tasks.metrics`. Masked patches: see `MaskedPatches.measure`.

        Raises:
            UserError: if an image cannot be read and is not left out; the message names it.
        """
        every = range(len(self.batches))
        try:
            with compiling("the evaluation step", self._compiled):
                return self.evaluate(tf.constant(len(every)))
        except INPUT_ERRORS as error:
            skips = self.data.bad_images is not None
            raise explain_input_error(error, self.batches, every, skips) from None

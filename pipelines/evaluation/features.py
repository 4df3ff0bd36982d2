"""The features that a model computes for the images of a data set, under every strategy."""

import dataclasses
import threading
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from pipelines.data.bad_images import INPUT_ERRORS, explain_input_error
from pipelines.data.progress_lines import ProgressLines
from pipelines.distribution.group import current_group
from pipelines.errors import UserError
from pipelines.runs.progress import compiling


@dataclasses.dataclass(frozen=True)
class Features:
    """Features of labeled images, sorted by id.

    Attributes:
        values: float32 `[n, F]`.
        labels: int32 `[n]`.
        ids: int64 `[n]`, see `sources.source.DataSource`.
    """

    values: np.ndarray
    labels: np.ndarray
    ids: np.ndarray


class FeatureExtractor:
    """Computes features of every image of a data set; for repeated use, it is traced once.

    Args:
        features: maps images `[b, h, w, 3]` to features `[b, F]`, such as `model.features`; its
            variables were made in `strategy.scope()`.
        strategy: the `tf.distribute.Strategy` that runs it.
        data: `evaluation_step.EvaluationData`, with one label per image.
        signals: optional `Signals`, checked after every batch.

    Raises:
        UserError: if the images have lists of labels.
    """

    def __init__(self, features: Callable, strategy, data, signals=None):
        check_single_label(data.source)
        self._features, self._strategy, self._data = features, strategy, data
        self._signals = signals
        self._dataset, self._examples = data.distributed(strategy)
        self._step = tf.function(self._distributed_step, autograph=False)
        self._compiled = threading.Event()

    def run(self) -> Features:
        """Computes the features with the current values of the variables.

        Raises:
            UserError: if the features are not `[b, F]`, no image can be read, or an image cannot
                be read and is not left out.
        """
        source = self._data.source
        try:
            with compiling("the features", self._compiled):
                batches = self._batches()
        except INPUT_ERRORS as error:
            every, skips = range(len(self._examples)), self._data.bad_images is not None
            raise explain_input_error(error, self._examples, every, skips) from None
        values, labels, ids = (np.concatenate(column) for column in zip(*batches, strict=True))
        if not len(ids):
            raise UserError(
                f"None of the images of {source} can be read. Is it the right data set?"
            )
        order = np.argsort(ids, kind="stable")
        return Features(values[order], labels[order], ids[order])

    def _batches(self):
        """The features, labels and ids of each batch, without padding and images left out."""
        batches, iterator = [], iter(self._dataset)
        examples = self._examples
        title = f"computing the features of {examples.source}"
        progress = ProgressLines(title, examples.num_examples)
        for number in range(len(examples)):
            values, labels, ids, weights = (x.numpy() for x in self._step(iterator))
            if values.ndim != 2:
                raise UserError(
                    f"Expected features [b, F]. Received shape {list(values.shape)}: an unpooled "
                    "model has features per patch, not per image."
                )
            kept = weights > 0
            if self._data.bad_images is not None and current_group().is_chief:
                # Row and slot are the same.
                bad = [(number, slot) for slot in np.flatnonzero(~kept & (ids >= 0))]
                self._data.bad_images.record_slots(examples, bad)
            batches.append((values[kept], labels[kept], ids[kept]))
            if self._signals is not None:
                self._signals.check()
            self._compiled.set()
            progress.show((number + 1) * examples.batch_size)
        return batches

    def _distributed_step(self, iterator):
        columns = self._strategy.run(self._replica_step, args=(next(iterator),))
        return [self._strategy.gather(column, axis=0) for column in columns]

    def _replica_step(self, batch):
        values = tf.cast(self._features(batch["image"]), tf.float32)
        return [values, batch["label"], batch["id"], batch["weight"]]


def check_single_label(source):
    """Checks that each image of a `DataSource` has one label.

    Raises:
        UserError: if the images have lists of labels.
    """
    if source.multi_label:
        raise UserError(
            f"{source} has lists of labels. Few-shot evaluation, k-NN and the linear probe need "
            "one label per image: choose another data set."
        )

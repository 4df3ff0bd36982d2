"""Classification of whole images, with one label per image or several (docs/paper.md F.2)."""

import dataclasses

import tensorflow as tf

import vit_tf
from pipelines.data.labels.encoding import as_targets
from pipelines.tasks.losses import cross_entropy
from pipelines.tasks.metrics import metric_sums
from vit_tf.config import ModelConfig

# In `Classification.columns`: the model has no such class.
NO_CLASS = -1
# Logit of such a class: finite, because the loss of an image that is left out is multiplied by 0.
_NEVER = -1e9


@dataclasses.dataclass(frozen=True, kw_only=True)
class Classification:
    """Predicts the labels of images.

    Attributes:
        loss: "softmax" or "sigmoid", see `losses.cross_entropy`.
        label_smoothing: of the training loss, not of evaluations.
        class_weights: factor of the training loss of each class; None is 1 for all.
        columns: for each class of the data, the index of its class in the model, or `NO_CLASS`;
            None if they are the same. Only the logits of these classes are used in evaluations, and
            images of a class that the model does not have are left out.
        config: configuration of the model; None if `create_model` is not called.
    """

    reads_labels = True

    loss: str
    label_smoothing: float = 0.0
    class_weights: tuple[float, ...] | None = None
    columns: tuple[int, ...] | None = None
    config: ModelConfig | None = None

    @property
    def leaves_out(self) -> bool:
        """Whether images of some classes do not count."""
        return NO_CLASS in (self.columns or ())

    def notes(self) -> list[str]:
        """Lines about the task for the start of a run."""
        return []

    def create_model(self, dtype):
        """Builds the model."""
        return vit_tf.create_model(self.config, dtype=dtype)

    def encoder(self, model):
        """The part of the model whose weights a run writes: all of it."""
        return model

    def features(self, model):
        """The function from images to the features of few-shot evaluations: the head's input."""
        return model.features

    def zero_kernel(self, model):
        """The kernel that starts with zeros, so that nothing below it learns before it does."""
        return model.head.kernel

    def losses(self, model, batch):
        """The training loss of each image, float32 `[b]`.

        With class weights w, the loss of a label y, mixed or not, is sum_k y_k w_k loss(k): that of
        each of its classes k, weighted. Cross-entropy is linear in the label, so this is
        (y w) loss(y_k w_k / (y w)).
        """
        logits, labels = model(batch["image"], training=True), batch["label"]
        if self.class_weights is None:
            return cross_entropy(labels, logits, self.loss, self.label_smoothing)
        weighted = as_targets(labels, len(self.class_weights)) * self.class_weights
        factor = tf.reduce_sum(weighted, axis=-1)
        # A row that is left out has no class.
        labels = tf.math.divide_no_nan(weighted, factor[:, None])
        return factor * cross_entropy(labels, logits, self.loss, self.label_smoothing)

    def measure(self, model, batch):
        """Sums over a batch of an evaluation, for `metrics.metric_means`.

        Returns:
            The dict of `metrics.metric_sums`; and `[labels, logits, weights]`, which the average
            precision and a report need of all images.
        """
        labels, weights = batch["label"], batch["weight"]
        is_multi_label = not labels.dtype.is_integer
        logits, loss = model(batch["image"], training=False), self.loss
        if logits.shape[-1] == 1 and not is_multi_label:
            # A sigmoid of x is the softmax of 0 and x, and so are losses and metrics.
            logits, loss = tf.concat([tf.zeros_like(logits), logits], axis=-1), "softmax"
        if self.columns is not None:
            columns = tf.constant(self.columns)
            known = columns != NO_CLASS
            logits = tf.gather(logits, tf.maximum(columns, 0), axis=-1)
            logits = tf.where(known, logits, _NEVER)
            if not is_multi_label:
                weights *= tf.cast(tf.gather(known, labels), weights.dtype)
        losses = cross_entropy(labels, logits, loss)
        sums = metric_sums(labels, logits, weights, losses)
        return sums, [labels, logits, weights]

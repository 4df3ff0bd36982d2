"""Evaluates a model from disk on a labelled data set."""

import functools
import sys

from pipelines.data.bad_images import BadImages, summary_at_end
from pipelines.errors import UserError
from pipelines.evaluation.evaluation_step import EvaluationData, Evaluator
from pipelines.runs import model_source
from pipelines.tasks import losses
from vit_tf.pretrained.class_names import words_of


def evaluate(source, examples, strategy, *, batch_size, bad_images, assumed=None) -> dict:
    """Evaluates a model from disk on a data set, in the same way as training does.

    The model's stored preprocessing prepares the images and names the loss: the training loss,
    without label smoothing.

    Args:
        source: a `model_source.ModelSource`.
        examples: a `DataSource`.
        strategy: the `tf.distribute.Strategy` to run under.
        batch_size: images per step over all replicas.
        bad_images: "stop", or "skip" to leave out images that cannot be decoded.
        assumed: preprocessing for a file that stores none, see `model_source.open_model`.

    Returns:
        The dict of `Evaluator.run`.

    Raises:
        UserError: if data set and model have different classes, the model is unpooled, or it gives
            softmax probabilities and the data set is multi-label.
    """
    losses.check_loss(examples, model_source.probabilities(source, assumed))
    with strategy.scope():
        model, preprocessing = model_source.open_model(source, assumed=assumed)
    if not model.config.pooled:
        raise UserError(f"{source.name} is unpooled: it gives logits per patch, not per image.")
    classes = model.config.num_classes
    same = ((), examples.labels, words_of(examples.labels))  # ImageNet's folders are WordNet ids.
    if classes != examples.num_classes or preprocessing.labels not in same:
        raise UserError(
            f"{source.name} was trained for {classes} classes "
            f"({_first_labels(preprocessing.labels)}), {examples.name} has {examples.num_classes} "
            f"({_first_labels(examples.labels)}). Choose the data set with --set data.name=..., or "
            "fine-tune the model on this one."
        )
    # Only the result goes to stdout.
    log = functools.partial(print, file=sys.stderr, flush=True)
    left_out = BadImages(None, log) if bad_images == "skip" else None
    with summary_at_end(left_out):
        evaluation_data = EvaluationData(
            source=examples,
            preprocessing=preprocessing,
            batch_size=batch_size,
            bad_images=left_out,
        )
        loss = functools.partial(losses.cross_entropy, loss=preprocessing.probabilities)
        return Evaluator(model, strategy, evaluation_data, loss, log).run()


def _first_labels(labels):
    return ", ".join(labels[:3]) + (", ..." if len(labels) > 3 else "") if labels else "unnamed"

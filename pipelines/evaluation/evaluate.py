"""Evaluates a model from disk on a labelled data set."""

import functools
import sys

from pipelines.data.bad_images import BadImages, summary_at_end
from pipelines.data.sources.open import open_source
from pipelines.errors import UserError
from pipelines.evaluation.evaluation_step import EvaluationData, Evaluator
from pipelines.runs import model_source
from pipelines.tasks import losses


def evaluate(source, data, strategy, *, batch_size, loss) -> dict:
    """Evaluates a model from disk on `data.eval_split`.

    The images are prepared as the model was trained with, not as `data` says.

    Args:
        source: a `model_source.ModelSource`.
        data: `config.Data`, names the data set and the split.
        strategy: where to run.
        batch_size: images per step over all replicas.
        loss: "softmax" or "sigmoid", see `losses.cross_entropy`.

    Returns:
        Dict with examples, loss, accuracy and top_5_accuracy.

    Raises:
        UserError: if the data set is missing or has other classes than the model.
    """
    if data.eval_split is None:
        raise UserError("data.eval_split is none: there is nothing to evaluate. Set it to a split.")
    examples = open_source(data.name, data.eval_split, data.data_dir)
    with strategy.scope():
        model, preprocessing = model_source.open_model(source)
    if not model.config.pooled:
        raise UserError(f"{source.name} is unpooled: it gives logits per patch, not per image.")
    classes = model.config.num_classes
    if classes != examples.num_classes or preprocessing.labels not in ((), examples.labels):
        raise UserError(
            f"{source.name} was trained for {classes} classes "
            f"({_first_labels(preprocessing.labels)}), {data.name} has {examples.num_classes} "
            f"({_first_labels(examples.labels)}). Choose the data set with --set data.name=..., or "
            "fine-tune the model on this one."
        )
    bad_images = None
    if data.bad_images == "skip":
        # The result alone goes to stdout.
        bad_images = BadImages(None, functools.partial(print, file=sys.stderr, flush=True))
    with summary_at_end(bad_images):
        evaluation_data = EvaluationData(
            source=examples,
            preprocessing=preprocessing,
            batch_size=batch_size,
            bad_images=bad_images,
        )
        loss = functools.partial(losses.cross_entropy, loss=loss)
        return Evaluator(model, strategy, evaluation_data, loss).run()


def _first_labels(labels):
    return ", ".join(labels[:3]) + (", ..." if len(labels) > 3 else "") if labels else "unnamed"

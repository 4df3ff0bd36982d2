"""Evaluates a model from disk on a labeled data set."""

import logging
import time

from pipelines.data.bad_images import BadImages, summary_at_end
from pipelines.distribution.group import current_group
from pipelines.distribution.sameness import check_same_data, check_same_weights
from pipelines.errors import UserError
from pipelines.evaluation.evaluation_step import EvaluationData, Evaluator
from pipelines.evaluation.label_map import read_label_map
from pipelines.evaluation.predictions import Predictions
from pipelines.evaluation.report_files import check_folder, write_report
from pipelines.stored_models.stored_model import AS_TRAINED
from pipelines.tasks import losses
from pipelines.tasks.classification import NO_CLASS, Classification
from vit_tf.preprocessing import Classes
from vit_tf.pretrained.class_names import same_names, words_of

_log = logging.getLogger(__name__)


def evaluate(  # noqa: PLR0913 - the flags of the command
    source,
    examples,
    strategy,
    *,
    batch_size,
    bad_images,
    opening=AS_TRAINED,
    label_map=None,
    max_batches=0,
    report=None,
) -> dict:
    """Evaluates a model from disk on a data set, in the same way as training does.

    The model's stored preprocessing prepares the images and names the loss: the training loss,
    without label smoothing.

    Args:
        source: a `StoredModel`.
        examples: a `DataSource`.
        strategy: the `tf.distribute.Strategy` to run under.
        batch_size: images per step over all replicas.
        bad_images: "stop", or "skip" to leave out images that cannot be decoded.
        opening: how the model is opened, see `StoredModel.open_model`.
        label_map: file with the class of the model for each class of the data set, see `label_map`;
            None if both have the same classes. Probabilities are those among these classes.
        max_batches: largest number of batches, spread evenly over the data set; 0 takes all.
        report: directory for the files of `report_files.write_report`; None writes none.

    Returns:
        The dict of `Evaluator.run`, and "images_per_second": without the first batch, which
        includes compiling, if there are more.

    Raises:
        UserError: if data set and model have different classes and there is no label map, the map
            does not fit, the model is unpooled or has no head, or it gives softmax probabilities
            and the data set is multi-label, or `report` is a file.
        NonFiniteError: if there is to be a report, and a logit is not finite.
    """
    if report is not None:
        check_folder(report)
    losses.check_loss(examples, source.activation(opening))
    with strategy.scope():
        model, preprocessing, classes = source.open_model(opening)
    check_head(source.name, model.config)
    check_same_data("data", {"evaluation": examples})
    check_same_weights(f"weights of {source.name}", model.weights)
    columns, names = None, classes.labels or examples.labels
    if label_map is not None:
        columns = _read_columns(label_map, examples, classes.names(model.config.num_classes))
        names = examples.labels
    else:
        _check_same_classes(source.name, model.config.num_classes, classes.labels, examples)
    left_out = BadImages() if bad_images == "skip" else None
    with summary_at_end(left_out):
        evaluation_data = EvaluationData(
            source=examples,
            preprocessing=preprocessing,
            batch_size=batch_size,
            bad_images=left_out,
            max_batches=max_batches,
        )
        task = Classification(loss=classes.activation, columns=columns)
        predictions = None if report is None else Predictions(classes.activation)
        evaluator = Evaluator(model, strategy, evaluation_data, task, predictions=predictions)
        means = timed(evaluator)
    if predictions is not None and current_group().is_chief:
        page = write_report(
            report,
            source.name,
            examples,
            names,
            predictions.collected(),
            means,
            evaluator.average_precisions,
        )
        _log.info(f"wrote {page}")
    return means


def timed(evaluator) -> dict:
    """Runs an `Evaluator`; returns its result with its throughput, see `evaluate`."""
    begin = time.perf_counter()
    means = evaluator.run()
    end = time.perf_counter()
    # All images that were decoded, also those that do not count.
    batches = evaluator.batches
    images = batches.num_examples
    if len(batches) > 1:
        begin, images = evaluator.first_batch_done, images - batches.batch_size
    return means | {"images_per_second": images / (end - begin)}


def check_head(name, config):
    """Raises `UserError` if the model with this name and configuration classifies no images."""
    if not config.pooled:
        raise UserError(f"{name} is unpooled: it gives logits per patch, not per image.")
    if not config.num_classes:
        raise UserError(
            f"{name} has no head (num_classes=0), so it predicts no classes. Fine-tune it, or "
            "evaluate its features with pipelines.fewshot."
        )


def _read_columns(label_map, examples, model_names):
    """`Classification.columns` of a label map; logs the classes that it leaves out."""
    names = Classes(labels=examples.labels).names(examples.num_classes)
    columns = read_label_map(label_map, names, model_names)
    absent = [name for name, x in zip(names, columns, strict=True) if x == NO_CLASS]
    if absent and examples.multi_label:
        raise UserError(
            f"The label map leaves out a class of {examples}, whose images have several labels. "
            "Name a class of the model for each."
        )
    if absent:
        _log.info(f"{len(absent)} of {len(names)} classes are left out: {first_labels(absent)}")
    return columns


def _check_same_classes(name, classes, labels, examples):
    # ImageNet's folders are WordNet ids.
    same = labels in ((), examples.labels) or same_names(labels, words_of(examples.labels))
    if classes != examples.num_classes or not same:
        raise UserError(
            f"{name} was trained for {classes} classes ({first_labels(labels)}), {examples.name} "
            f"has {examples.num_classes} ({first_labels(examples.labels)}). Choose the data set "
            "with --set data.name=..., name the model's class of each with --label_map FILE "
            "(--label_map wordnet for ImageNet and a published head), or fine-tune the model on "
            "this one."
        )


def first_labels(labels):
    """The names of the first classes, for messages."""
    return ", ".join(labels[:3]) + (", ..." if len(labels) > 3 else "") if labels else "unnamed"

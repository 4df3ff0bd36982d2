"""Evaluates a model from disk on a labeled data set."""

import logging
import time

from pipelines.data.bad_images import BadImages, summary_at_end
from pipelines.data.labels.class_order import other_order
from pipelines.data.labels.class_sizes import few_images
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
from vit_tf.classes import Classes
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
    columns, names, activation = _match_classes(
        source.name, model.config.num_classes, classes, examples, label_map
    )
    notes = _warn(source.name, label_map or classes.labels, examples)
    left_out = BadImages() if bad_images == "skip" else None
    with summary_at_end(left_out):
        evaluation_data = EvaluationData(
            source=examples,
            preprocessing=preprocessing,
            batch_size=batch_size,
            bad_images=left_out,
            max_batches=max_batches,
        )
        task = Classification(loss=activation, columns=columns)
        predictions = None if report is None else Predictions(activation)
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
            notes,
        )
        _log.info(f"wrote {page}")
    return means


def timed(evaluator) -> dict:
    """Runs an `Evaluator`; returns its result with its throughput, see `evaluate`."""
    begin = time.perf_counter()
    means = evaluator.run()
    end = time.perf_counter()
    # All images that were decoded, also images that do not count.
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


def _match_classes(name, outputs, classes, examples, label_map):
    """`Classification.columns`, names for the report, and what makes logits probabilities."""
    if outputs == 1 and not examples.multi_label:
        # The same as a softmax of two logits, the first of them 0.
        if label_map is None:
            columns = _columns_of_two(name, classes.labels, examples)
        else:
            columns = _read_columns(label_map, examples, _names_of_two(classes.labels))
        return columns, examples.labels, "softmax"
    activation = classes.activation_of(outputs)
    if label_map is not None:
        columns = _read_columns(label_map, examples, classes.names(outputs))
        return columns, examples.labels, activation
    _check_same_classes(name, outputs, classes.labels, examples)
    return None, classes.labels or examples.labels, activation


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
        order, numbered = other_order(examples.labels) or ("", ())
        if labels and labels == tuple(numbered) and examples.one_file_each:
            raise UserError(
                f"{name} has the classes of {examples.name} in another order: "
                f"{first_labels(labels)}, not {first_labels(examples.labels)}. Add --set "
                f"data.class_order={order}."
            )
        raise _other_classes(name, f"{classes} classes", labels, examples)


def _other_classes(name, classes, labels, examples):
    return UserError(
        f"{name} was trained for {classes} ({first_labels(labels)}), {examples.name} "
        f"has {examples.num_classes} ({first_labels(examples.labels)}). Choose the data set "
        "with --set data.name=..., name the model's class of each with --label_map FILE "
        "(--label_map wordnet for ImageNet and a published head), or fine-tune the model on "
        "this one."
    )


def _names_of_two(labels):
    """The names of both classes of one output, see `Classes`."""
    return (f"not {labels[0]}", *labels) if len(labels) == 1 else labels or ("0", "1")


def _columns_of_two(name, labels, examples):
    """`Classification.columns` of a model with one output, whose last name is class 1's name."""
    for names in (examples.labels, words_of(examples.labels)):
        for columns in ((0, 1), (1, 0)):
            ordered = tuple(names[column] for column in columns) if len(names) == 2 else ()
            if ordered and labels == ordered[2 - len(labels) :]:
                return columns
    raise _other_classes(name, "two classes with one output", labels, examples)


def _warn(name, has_names, examples):
    """Logs and returns sentences about few images, and about a model without class names."""
    notes = few_images(examples) + ([] if has_names else [_by_position(name, examples)])
    for note in notes:
        _log.warning(f"warning: {note}")
    return notes


def _by_position(name, examples):
    """A sentence about outputs whose position alone says which class of the data they are."""
    note = (
        f"{name} stores no class names: its outputs count as the classes of {examples.name} in "
        f"this order: {first_labels(examples.labels)}. "
    )
    found = other_order(examples.labels) if examples.one_file_each else None
    if found is None:
        return f"{note}--labels FILE names its classes."
    order, other = found
    place = next(i for i, label in enumerate(examples.labels) if label != other[i])
    return (
        f"{note}In {order} order, class {place} is {other[place]}, not {examples.labels[place]}: "
        f"if the model was trained so, add --set data.class_order={order}, or name its classes "
        "with --labels FILE."
    )


def first_labels(labels):
    """The names of the first classes, for messages."""
    return ", ".join(labels[:3]) + (", ..." if len(labels) > 3 else "") if labels else "unnamed"

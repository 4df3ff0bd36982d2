"""The paper's evaluations without training: ImageNet, ReaL and ObjectNet (docs/paper.md H.5)."""

import dataclasses
import logging

import numpy as np

from pipelines.config.names import AUTO_SPLIT, Benchmark
from pipelines.data.bad_images import BadImages, summary_at_end
from pipelines.data.sources.files import absolute_path
from pipelines.data.sources.open import open_source, open_split, split_names
from pipelines.distribution.sameness import check_same_data, check_same_weights
from pipelines.errors import DataError, MissingDataError, UserError
from pipelines.evaluation import objectnet
from pipelines.evaluation.benchmarks.differences import DATA_NAMES, compare
from pipelines.evaluation.evaluate import check_head, first_labels, timed
from pipelines.evaluation.evaluation_step import EvaluationData, Evaluator
from pipelines.evaluation.predictions import Predictions
from pipelines.evaluation.real import labeled_accuracy
from pipelines.stored_models.stored_model import AS_TRAINED
from pipelines.tasks.metrics import weighted_sums
from vit_tf.files import storage
from vit_tf.pretrained.class_names import IMAGENET_1K, class_names, same_names, synsets

_log = logging.getLogger(__name__)

# The first of these splits that the data have is evaluated. ImageNet's test split has no labels;
# ObjectNet has one split.
_SPLITS = ("validation", "valid", "val", "dev", "test", "testing", "train")
# Preprocessing of ObjectNet, as BiT (arXiv 1912.11370), and the width of its red border in pixels.
_OBJECTNET = {"image_size": (480, 480), "resize": "resize_small", "resize_to": 512}
_BORDER = 2


class _Predicting:
    """A task without a loss: the labels need not be classes of the model."""

    reads_labels = leaves_out = False

    def measure(self, model, batch):
        """The number of examples, and `[labels, logits, weights]` of them."""
        logits = model(batch["image"], training=False)
        weights = batch["weight"]
        return weighted_sums({}, weights), [batch["label"], logits, weights]


def data_settings(benchmark: Benchmark) -> list[str]:
    """The assignments to the section of the data that `--set` can replace."""
    name = DATA_NAMES[benchmark]
    return [f"data.name={name}", "data.label=none", f"data.eval_split={AUTO_SPLIT}"]


def run(
    benchmark: Benchmark, source, data, strategy, *, batch_size, opening=AS_TRAINED, max_batches=0
) -> dict:
    """Evaluates a model as the paper does, on all images of a benchmark, each of them once.

    Args:
        benchmark: its name.
        source: a `StoredModel` with the classes of ImageNet, in the order of published heads.
        data: `config.data.Data`; the split `auto` is the one for validation.
        strategy, batch_size, opening, max_batches: see `evaluation.evaluate.evaluate`. No image is
            turned by its EXIF orientation. For ObjectNet, the model and its preprocessing are those
            of 480 x 480 pixels.

    Returns:
        A dict: "benchmark"; "examples"; fractions of them, "accuracy" and "top_5_accuracy";
        "images_per_second"; "paper", a list of dicts with the fields of `PaperValue`, and
        "comparison", lines that show them and say what differs. ReaL has no top-5 accuracy;
        "labeled" images count for its accuracy. ObjectNet's accuracies are of the images whose
        class has a counterpart in ImageNet, "overlapping"; with "_of_all_classes" of all images.

    Raises:
        UserError: if the data or the model have other classes, files of the data are missing, no
            image counts, or the model is unpooled or has no head.
        NonFiniteError: if a logit is not finite.
    """
    if data.eval_split is None:
        raise UserError("data.eval_split is none: there is nothing to evaluate. Set it to a split.")
    is_objectnet = benchmark == "objectnet"
    replaced = {"exif": "ignore"}  # As the code of the paper and of BiT, which reads none.
    if is_objectnet:
        examples, classes = _open_objectnet(data)
        replaced |= _OBJECTNET
        _note_size(source)
    else:
        examples, classes = _open_imagenet(benchmark, data), None
    opening = dataclasses.replace(opening, replaced=replaced)
    with strategy.scope():
        model, preprocessing, names = source.open_model(opening)
    _check_model(benchmark, source.name, model.config, names.labels)
    check_same_data("data", {"benchmark": examples})
    check_same_weights(f"weights of {source.name}", model.weights)
    left_out = BadImages() if data.bad_images == "skip" else None
    predictions = Predictions(names.activation)
    with summary_at_end(left_out):
        evaluation_data = EvaluationData(
            source=examples,
            preprocessing=preprocessing,
            batch_size=batch_size,
            bad_images=left_out,
            max_batches=max_batches,
            border=_BORDER if is_objectnet else 0,
            reads_labels=False,
        )
        task = _Predicting()
        means = timed(Evaluator(model, strategy, evaluation_data, task, predictions=predictions))
    predicted = predictions.collected()
    values = {
        "imagenet": lambda: _imagenet_values(predicted),
        "real": lambda: _real_values(predicted, examples),
        "objectnet": lambda: _objectnet_values(predicted, classes, examples),
    }[benchmark]()
    result = {"benchmark": benchmark, "examples": means.pop("examples")} | values | means
    stored = source.read_config().preprocessing
    exif = stored.exif if stored else "ignore"
    return result | compare(result, source, model.config, examples, exif)


def _open_imagenet(benchmark, data):
    """The `DataSource` of ImageNet's validation images, with single labels or ReaL's lists."""
    examples = open_split(data, _split(data, data.name))
    if not _are_imagenets(examples.labels):
        raise DataError(
            f"--benchmark {benchmark} needs the {IMAGENET_1K:,} classes of ImageNet. "
            f"{examples.name} has {examples.num_classes:,} ({first_labels(examples.labels)}). Set "
            f"data.name={DATA_NAMES[benchmark]}, or a folder with the classes of ImageNet."
        )
    if examples.multi_label != (benchmark == "real"):
        wanted, had = "one label per image", "lists of labels"
        if benchmark == "real":
            wanted, had = had, wanted
        raise DataError(
            f"--benchmark {benchmark} needs {wanted}, but {examples.name} has {had}. Set "
            f"data.name={DATA_NAMES[benchmark]} and leave data.label out."
        )
    return examples


def _open_objectnet(data):
    """ObjectNet's `DataSource`, and for each of its classes the classes of ImageNet."""
    kind, _, path = data.name.partition(":")
    if kind != "folder":
        raise DataError(
            f"--benchmark objectnet reads images/ and mappings/ of a folder. Set data.name=folder:"
            f"PATH to ObjectNet as it is unpacked. Received: data.name={data.name}."
        )
    root = absolute_path(path, data.data_dir, kind)
    name = f"folder:{storage.join(root, 'images')}"
    try:
        examples = open_source(name, _split(data, name))
    except MissingDataError:
        raise MissingDataError(
            f"There is no folder {storage.join(root, 'images')}. Set data.name=folder:PATH to "
            "ObjectNet as it is unpacked, with images/ and mappings/, or data.data_dir to the "
            "folder that has objectnet-1.0."
        ) from None
    return examples, objectnet.read_classes(storage.join(root, "mappings"), examples.labels)


def _split(data, name):
    if data.eval_split != AUTO_SPLIT:
        return data.eval_split
    there = {split.lower(): split for split in split_names(name, data.data_dir)}
    # The source names its splits in an error if it has none of these.
    return next((there[split] for split in _SPLITS if split in there), _SPLITS[0])


def _are_imagenets(labels):
    """Whether class names are ImageNet's in the order of published heads."""
    return labels == synsets(IMAGENET_1K) or same_names(labels, class_names(IMAGENET_1K))


def _check_model(benchmark, name, config, labels):
    check_head(name, config)
    if config.num_classes != IMAGENET_1K or (labels and not _are_imagenets(labels)):
        raise UserError(
            f"{name} was trained for {config.num_classes:,} classes ({first_labels(labels)}). "
            f"--benchmark {benchmark} needs the {IMAGENET_1K:,} classes of ImageNet, in the order "
            "of published heads. Name such a model with --model."
        )
    if not labels:
        _log.info(
            f"warning: {name} stores no class names: its outputs count as the classes of ImageNet "
            f"in the order of published heads: {first_labels(class_names(IMAGENET_1K))}"
        )


def _note_size(source):
    trained, size = source.read_config().config.image_size, _OBJECTNET["image_size"]
    if trained != size:
        _log.info(
            f"{source.name} was trained on images of {trained[0]} x {trained[1]} pixels; ObjectNet "
            f"is read at {size[0]} x {size[1]}: position embeddings, if there are any, are resized"
        )


def _imagenet_values(predicted):
    right = predicted.classes == predicted.labels[:, None]
    return _accuracies(right)


def _real_values(predicted, examples):
    labeled = sum(len(own) > 0 for own in predicted.labels)
    if not labeled:
        raise UserError(f"None of the images of {examples} has a label. Is it the right data set?")
    accuracy = labeled_accuracy(predicted.classes[:, 0], predicted.labels)
    return {"labeled": labeled, "accuracy": accuracy}


def _objectnet_values(predicted, classes, examples):
    right = objectnet.right_ranks(predicted.classes, predicted.labels, classes)
    overlaps = np.array([bool(own) for own in classes])[predicted.labels]
    if not overlaps.any():
        raise UserError(
            f"No class of the images of {examples} has a counterpart in ImageNet. Is it the right "
            "data set?"
        )
    return (
        {"overlapping": int(overlaps.sum())}
        | _accuracies(right[overlaps])
        | _accuracies(right, "_of_all_classes")
    )


def _accuracies(right, end=""):
    """The shares of images with a right prediction, from bool `[n, k]` by rank."""
    return {
        f"accuracy{end}": float(right[:, 0].mean()),
        f"top_5_accuracy{end}": float(right.any(axis=1).mean()),
    }

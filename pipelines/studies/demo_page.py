"""The HTML page of the demo: the stages, the results, and the learned filters."""

import dataclasses
import datetime
import os
import platform
import shlex

import numpy as np
import tensorflow as tf

import custom_ops
from pipelines.config import Experiment
from pipelines.data.sources.source import Examples
from pipelines.reports import charts, html_page, pictures
from pipelines.reports.html_page import Check
from pipelines.serving.saved_model import ExportReport
from vit_tf.analysis import inspection
from vit_tf.files.atomic_file import write_atomically
from vit_tf.images.decoding import decode_image
from vit_tf.models import VisionTransformer

_MAX_COMPONENTS = 16
_MAX_EXAMPLES, _MAX_WRONG = 16, 4
_MAP_WIDTH = 330  # Width of the filters and of the position maps, in CSS pixels.
_TITLE = "A Vision Transformer, from its first step to a service"


@dataclasses.dataclass(frozen=True, kw_only=True)
class DemoResults:
    """The results of the demo, as input of the page.

    Shapes: `n` test images, `K` classes, `a` images with attention maps.

    Attributes:
        pretraining, finetuning: the two experiments.
        pretraining_metrics, finetuning_metrics: lines of their `metrics.jsonl`.
        model: fine-tuned model.
        export: report of the export.
        labels: class names in label order.
        examples: the test images, encoded, with labels.
        probabilities: float `[n, K]`, as served.
        inputs: float `[a, h, w, 3]`, the first test image of each class as the model reads it.
        attention: float `[a, layers, rows, columns]` from the class token, mean over heads.
        checks: measured numbers with expected values.
        seconds: how long each stage took in this process, by name.
    """

    pretraining: Experiment
    finetuning: Experiment
    pretraining_metrics: list[dict]
    finetuning_metrics: list[dict]
    model: VisionTransformer
    export: ExportReport
    labels: tuple[str, ...]
    examples: Examples
    probabilities: np.ndarray
    inputs: np.ndarray
    attention: np.ndarray
    checks: list[Check]
    seconds: dict[str, float]


def write(path, results):
    """Writes the report as one HTML file."""
    checks = results.checks
    page = html_page.page(
        _TITLE,
        "Real handwritten digits of 8 x 8 pixels, a model that a laptop trains in a minute, and "
        "the whole path: pre-training, fine-tuning at a higher resolution, evaluation, export, "
        "serving.",
        html_page.verdict(checks),
        html_page.tiles(_headlines(results)),
        _what_was_done(results),
        _predictions(results),
        _curves(results),
        _learned(results),
        _attention(results),
        html_page.section(
            "Numbers",
            "Each number with its expected value. The demo exits with code 1 if a check fails.",
            html_page.check_table(checks),
        ),
        html_page.section(
            "Next commands",
            "The two training runs are ordinary workdirs; every command works on them.",
            html_page.code(next_commands(os.path.dirname(path))),
        ),
        footer=_footer(),
    )
    write_atomically(path, lambda file: file.write(page.encode("utf-8")))


def next_commands(path):
    """Shell commands for a finished demo in the directory `path`, one per line."""
    finetune = shlex.quote(os.path.join(path, "finetune"))
    portable = shlex.quote(os.path.join(path, "export", "portable"))
    return "\n".join(
        [
            f"python -m pipelines.predict --model {portable}",
            f"python -m pipelines.evaluate --model {finetune} --set data.eval_split=test",
            f"tensorboard --logdir {shlex.quote(os.fspath(path))}",
            "python -m pipelines.pretrain --set model.layers=6 --set train.steps=3000",
        ]
    )


def _headlines(results):
    by_name = {check.name: check.value for check in results.checks}
    seconds = sum(results.seconds.values())
    return [
        (by_name["Accuracy on test images"], f"of {len(results.probabilities)} test images"),
        (by_name["Parameters of the fine-tuned model"], "parameters"),
        (f"{results.export.size / 1e6:.1f} MB", "exported, TensorFlow only"),
        (f"{seconds / 60:.1f} min", "for everything"),
    ]


def _what_was_done(results):
    pre, fine, seconds = results.pretraining, results.finetuning, results.seconds
    rows, columns = results.model.grid
    old_rows, old_columns = pre.model.config(num_classes=0).grid
    old_size, size = describe_image_size(pre), describe_image_size(fine)
    steps = [
        f"Pre-training on the digits 0 to 4 at {old_size}: {pre.train.steps:,} steps of "
        f"{pre.train.batch_size} images ({seconds['pre-training']:.0f} s).",
        f"Fine-tuning on all ten digits at {size}: the head is replaced by zeros, the "
        f"position embeddings are resized from {old_rows} x {old_columns} to {rows} x {columns} "
        f"patches; {fine.train.steps:,} steps ({seconds['fine-tuning']:.0f} s).",
        f"Evaluation on {len(results.probabilities)} test images that are used neither for "
        f"training nor for the curves below ({seconds['evaluating']:.0f} s).",
        f"Export as a SavedModel of {results.export.size / 1e6:.1f} MB with preprocessing and "
        f"class names inside ({seconds['exporting']:.0f} s).",
        "Serving: another process, which can import TensorFlow and NumPy only, loads the export "
        f"and classifies the test images from their PNG files ({seconds['serving']:.0f} s).",
    ]
    return html_page.section(
        "Steps of the demo",
        "Everything ran on this machine, without a download.",
        html_page.steps(steps),
    )


def _predictions(results):
    labels = results.labels
    predicted = results.probabilities.argmax(axis=1)
    cards = []
    for index in _choose_examples(results.examples.labels, predicted, results.probabilities):
        row = results.probabilities[index]
        best = np.argsort(-row, kind="stable")[:3]
        cards.append(
            pictures.example(
                decode_image(results.examples.images[index]).numpy(),
                labels[results.examples.labels[index]],
                [(labels[i], float(row[i])) for i in best],
            )
        )
    wrong = int((predicted != results.examples.labels).sum())
    return html_page.section(
        "Predictions on test images",
        "Predictions of the exported model with the three largest probabilities. It is wrong on "
        f"{wrong} of {len(predicted)} test images; up to {_MAX_WRONG} of these are shown last.",
        pictures.cards(cards),
    )


def _choose_examples(labels, predicted, probabilities):
    """Indices to show: correct ones, one class after another, then the most confident mistakes."""
    wrong = np.flatnonzero(predicted != labels)
    wrong = wrong[np.argsort(-probabilities[wrong].max(axis=1), kind="stable")][:_MAX_WRONG]
    right = np.flatnonzero(predicted == labels)
    # Sorted by the number of earlier images of the same class, so that the classes alternate.
    rank = np.array([(labels[right[:place]] == labels[i]).sum() for place, i in enumerate(right)])
    right = right[np.lexsort((labels[right], rank))] if len(right) else right
    return [*right[: _MAX_EXAMPLES - len(wrong)], *wrong]


def _curves(results):
    runs = (
        ("pre-training, digits 0 to 4", results.pretraining_metrics),
        ("fine-tuning, all ten digits", results.finetuning_metrics),
    )

    def chart(key, label, **options):
        series = []
        for name, lines in runs:
            points = [(line["step"], line[key]) for line in lines if key in line]
            series.append(charts.Series(name, *zip(*points, strict=True)))
        return charts.line_chart(series, "step", label, **options)

    return html_page.section(
        "Learning curves",
        "Fine-tuning starts from a head of zeros, where every class is equally likely.",
        html_page.row(
            html_page.figure(
                "Training loss",
                chart("loss", "training loss"),
                "Cross-entropy, mean since the last point, with dropout and random crops.",
            ),
            html_page.figure(
                "Accuracy on validation images",
                chart("eval_accuracy", "validation accuracy", percent=True),
                "Measured during training on images that are neither trained on nor tested on.",
            ),
        ),
    )


def _learned(results):
    model = results.model
    # The digits are gray: only the sum of a filter over the colors was trained.
    kernel = model.patch_embedding.kernel.numpy().sum(axis=2, keepdims=True)
    components, values = inspection.filter_components(kernel, _MAX_COMPONENTS)
    share = float((values[:4] ** 2).sum() / (values**2).sum())
    filters = inspection.to_unit_range(components, axis=(1, 2, 3))[..., 0]
    filters = _opaque(inspection.colorize(filters))
    blocks = [
        html_page.figure(
            "Patch filters",
            pictures.picture(
                inspection.tile(filters, columns=4, fill=0),
                _MAP_WIDTH,
                "principal components of the patch filters",
            ),
            f"The {len(components)} largest principal components of the patch embedding, summed "
            "over red, green and blue, since the digits are gray. Each is scaled to its full "
            f"range, and its sign is arbitrary. The first four hold {share:.0%} of the variance.",
        )
    ]
    if model.position_embedding.table is not None:
        similarity = inspection.position_similarity(
            model.position_embedding.table.numpy(), model.grid, model.num_prefix_tokens
        )
        rows, columns = model.grid
        maps = _opaque(inspection.colorize((similarity.reshape(-1, rows, columns) + 1) / 2))
        blocks.append(
            html_page.figure(
                "Position similarity",
                pictures.picture(
                    inspection.tile(maps, columns, fill=0),
                    _MAP_WIDTH,
                    "similarity of the position embeddings",
                ),
                "One tile per patch: cosine similarity of its position embedding with all others, "
                "from -1 (violet) to 1 (yellow). Neighbors are similar: partly because resizing "
                "to a finer grid interpolates, partly because of training.",
            )
        )
    return html_page.section(
        "Learned filters and positions",
        "The embedding of patches and positions after fine-tuning (paper, figure 7).",
        html_page.row(*blocks),
    )


def _attention(results):
    images = (results.inputs + 1) / 2
    layers = results.attention.shape[1]
    rows = [("image", list(images))]
    for layer in range(layers):
        maps = inspection.to_unit_range(results.attention[:, layer], axis=(1, 2))
        rows.append((f"layer {layer + 1}", list(inspection.colorize(maps))))
    seen = inspection.to_unit_range(results.attention[:, -1], axis=(1, 2))[..., None]
    seen = tf.image.resize(seen, images.shape[1:3]).numpy()
    rows.append(("image × last", list(images * np.sqrt(seen))))
    return html_page.section(
        "Attention of the class token",
        "Attention from the class token to each patch, mean over the heads. Each map is scaled to "
        "its own range: violet is the minimum, yellow the maximum. The last row multiplies the "
        "image with the square root of the last map.",
        pictures.picture_table(rows, 78),
    )


def _opaque(images):
    """Converts RGB to RGBA, `[n, h, w, 4]`: gaps that `inspection.tile` fills with 0 are clear."""
    return np.concatenate([images, np.ones((*images.shape[:3], 1))], axis=-1)


def describe_image_size(experiment):
    """Height and width of a model's images, as text."""
    height, width = experiment.model.image_size
    return f"{height} x {width} pixels"


def _footer():
    ops = "compiled ops" if custom_ops.is_compiled() else "TensorFlow's own ops"
    return (
        f"{datetime.datetime.now():%Y-%m-%d %H:%M}, TensorFlow {tf.__version__} with {ops}, Python "
        f"{platform.python_version()}, {os.cpu_count()} CPU cores, {platform.system()} "
        f"{platform.machine()}."
    )

"""The HTML page of the demo: the stages, the results, and the learned filters."""

import dataclasses
import datetime
import functools
import os
import platform
import shlex

import numpy as np
import tensorflow as tf

import custom_ops
from pipelines.config import Experiment
from pipelines.data.sources.source import Examples
from pipelines.reports import charts, html_page
from pipelines.reports.check import Check
from pipelines.serving.saved_model import ExportReport
from vit_tf.analysis import inspection
from vit_tf.images.decoding import decode_image
from vit_tf.models import VisionTransformer

_MAX_COMPONENTS = 16
_MAX_EXAMPLES, _MAX_WRONG = 16, 4


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
    predicted = results.probabilities.argmax(axis=1)
    wrong = int((predicted != results.examples.labels).sum())
    curves = functools.partial(_curves, results)
    html_page.write_page(
        path,
        "demo.html",
        checks=results.checks,
        headlines=_headlines(results),
        steps=_steps(results),
        counts=(wrong, len(predicted), _MAX_WRONG),
        examples=_examples(results, predicted),
        loss=curves("loss", "training loss"),
        accuracy=curves("eval_accuracy", "validation accuracy", percent=True),
        **_embedding(results.model),
        attention=_attention(results),
        commands=next_commands(os.path.dirname(path)),
        footer=_footer(),
    )


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


def _steps(results):
    pre, fine, seconds = results.pretraining, results.finetuning, results.seconds
    rows, columns = results.model.grid
    old_rows, old_columns = pre.model.config(num_classes=0).grid
    old_size, size = describe_image_size(pre), describe_image_size(fine)
    return [
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


def _examples(results, predicted):
    """The image, its class, and the three most probable classes of each example to show."""
    labels, examples = results.labels, results.examples
    shown = []
    for index in _choose_examples(examples.labels, predicted, results.probabilities):
        row = results.probabilities[index]
        best = [(labels[i], float(row[i])) for i in np.argsort(-row, kind="stable")[:3]]
        shown.append((decode_image(examples.images[index]), labels[examples.labels[index]], best))
    return shown


def _choose_examples(labels, predicted, probabilities):
    """Indices to show: correct ones, one class after another, then the most confident mistakes."""
    wrong = np.flatnonzero(predicted != labels)
    wrong = wrong[np.argsort(-probabilities[wrong].max(axis=1), kind="stable")][:_MAX_WRONG]
    right = np.flatnonzero(predicted == labels)
    # Sorted by the number of earlier images of the same class, so that the classes alternate.
    rank = np.array([(labels[right[:place]] == labels[i]).sum() for place, i in enumerate(right)])
    right = right[np.lexsort((labels[right], rank))] if len(right) else right
    return [*right[: _MAX_EXAMPLES - len(wrong)], *wrong]


def _curves(results, key, label, **options):
    """A chart of a metric in both runs."""
    curves = {}
    for name, lines in (
        ("pre-training, digits 0 to 4", results.pretraining_metrics),
        ("fine-tuning, all ten digits", results.finetuning_metrics),
    ):
        points = [(line["step"], line[key]) for line in lines if key in line]
        curves[name] = tuple(zip(*points, strict=True))
    return charts.line_chart(curves, "step", label, **options)


def _embedding(model):
    """The charts of the embedding of patches and positions, and the numbers in their captions."""
    # The digits are gray: only the sum of a filter over the colors was trained.
    kernel = model.patch_embedding.kernel.numpy().sum(axis=2, keepdims=True)
    components, values = inspection.filter_components(kernel, _MAX_COMPONENTS)
    share = float((values[:4] ** 2).sum() / (values**2).sum())
    filters = inspection.to_unit_range(components, axis=(1, 2, 3))[..., 0]
    positions = None
    if (table := model.position_table()) is not None:
        similarity = inspection.position_similarity(
            table.numpy(), model.grid, model.num_prefix_tokens
        ).reshape(-1, *model.grid)
        label = "similarity of the position embeddings"
        positions = charts.heat_maps(similarity, model.grid[1], label, -1, 1, bar=True)
    label = "principal components of the patch filters"
    return {
        "components": (len(components), 100 * share),
        "filters": charts.heat_maps(filters, 4, label, 0, 1),
        "positions": positions,
    }


def _attention(results):
    """The name and the pictures of each row: the images, each layer, and images times the last."""
    images = (results.inputs + 1) / 2
    maps = inspection.to_unit_range(results.attention, axis=(2, 3))
    layers = [
        (f"layer {layer}", charts.colors(maps[:, layer - 1]))
        for layer in range(1, maps.shape[1] + 1)
    ]
    seen = tf.image.resize(maps[:, -1, ..., None], images.shape[1:3]).numpy()
    return [("image", images), *layers, ("image × last", images * np.sqrt(seen))]


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

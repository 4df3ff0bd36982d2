"""The page that the demo writes: what was done, what came out, what the model learned."""

import datetime
import os
import platform

import numpy as np
import tensorflow as tf

import custom_ops
from pipelines.reports import html
from vit_tf.analysis import inspection
from vit_tf.checkpoints.atomic_file import write_atomically
from vit_tf.images.decoding import decode_image

_MAX_COMPONENTS = 16
_EXAMPLES, _MOST_WRONG = 16, 4
_SHEET = 330  # Width of the filters and of the position maps, in CSS pixels.
_TITLE = "A Vision Transformer, from its first step to a service"


def write(path, outcome):
    """Writes the report of a `stages.Outcome` as one HTML file."""
    checks = outcome.checks
    page = html.page(
        _TITLE,
        "Real handwritten digits of 8 x 8 pixels, a model that a laptop trains in a minute, and "
        "the whole path: pre-training, fine-tuning at a higher resolution, evaluation, export, "
        "serving.",
        html.verdict(checks),
        html.tiles(_headlines(outcome)),
        _what_was_done(outcome),
        _predictions(outcome),
        _curves(outcome),
        _learned(outcome),
        _attention(outcome),
        html.section(
            "Numbers",
            "Each number beside what it should be. The demo exits with code 1 if one is not.",
            html.check_table(checks),
        ),
        html.section(
            "What to run next",
            "The two training runs are ordinary workdirs; every command works on them.",
            html.code(next_commands(os.path.dirname(path))),
        ),
        footer=_footer(),
    )
    write_atomically(path, lambda file: file.write(page.encode("utf-8")))


def next_commands(path):
    """Commands that go on from a demo in the directory `path`, one per line."""
    finetune, export = os.path.join(path, "finetune"), os.path.join(path, "export")
    return "\n".join(
        [
            f"python -m pipelines.predict --model {os.path.join(export, 'portable')}",
            f"python -m pipelines.evaluate --model {finetune} --set data.eval_split=test",
            f"tensorboard --logdir {path}",
            "python -m pipelines.pretrain --set model.layers=6 --set train.steps=3000",
        ]
    )


def _headlines(outcome):
    by_name = {check.name: check.value for check in outcome.checks}
    seconds = sum(outcome.seconds.values())
    return [
        (by_name["Accuracy on test images"], f"of {len(outcome.probabilities)} test images"),
        (by_name["Parameters of the fine-tuned model"], "parameters"),
        (f"{outcome.export.size / 1e6:.1f} MB", "exported, TensorFlow only"),
        (f"{seconds / 60:.1f} min", "for everything"),
    ]


def _what_was_done(outcome):
    pre, fine, seconds = outcome.pretraining, outcome.finetuning, outcome.seconds
    rows, columns = outcome.model.grid
    old_rows, old_columns = pre.model.config(num_classes=0).grid
    steps = [
        f"Pre-training on the digits 0 to 4 at {_size(pre)}: {pre.train.steps:,} steps of "
        f"{pre.train.batch_size} images ({seconds['pre-training']:.0f} s).",
        f"Fine-tuning on all ten digits at {_size(fine)}: the head is replaced by zeros, the "
        f"position embeddings are stretched from {old_rows} x {old_columns} to {rows} x {columns} "
        f"patches; {fine.train.steps:,} steps ({seconds['fine-tuning']:.0f} s).",
        f"Evaluation on {len(outcome.probabilities)} test images that no training step and no "
        f"curve below has seen ({seconds['evaluating']:.0f} s).",
        f"Export as a SavedModel of {outcome.export.size / 1e6:.1f} MB with preprocessing and "
        f"class names inside ({seconds['exporting']:.0f} s).",
        "Serving: another process, which can import TensorFlow and NumPy only, loads the export "
        f"and classifies the test images from their PNG files ({seconds['serving']:.0f} s).",
    ]
    return html.section(
        "What was done", "Everything ran on this machine, without a download.", html.steps(steps)
    )


def _predictions(outcome):
    labels = outcome.labels
    predicted = outcome.probabilities.argmax(axis=1)
    cards = []
    for index in _choose_examples(outcome.examples.labels, predicted, outcome.probabilities):
        row = outcome.probabilities[index]
        best = np.argsort(-row, kind="stable")[:3]
        cards.append(
            html.example(
                decode_image(outcome.examples.images[index]).numpy(),
                labels[outcome.examples.labels[index]],
                [(labels[i], float(row[i])) for i in best],
            )
        )
    wrong = int((predicted != outcome.examples.labels).sum())
    return html.section(
        "Predictions on test images",
        "Answers of the exported model with its three largest probabilities. It is wrong on "
        f"{wrong} of {len(predicted)} test images; up to {_MOST_WRONG} of these are shown last.",
        html.cards(cards),
    )


def _choose_examples(labels, predicted, probabilities):
    """Indices to show: right ones in turns over the classes, then the surest of the wrong ones."""
    wrong = np.flatnonzero(predicted != labels)
    wrong = wrong[np.argsort(-probabilities[wrong].max(axis=1), kind="stable")][:_MOST_WRONG]
    right = np.flatnonzero(predicted == labels)
    # How many of its class came before: sorting by it deals the classes out in turns.
    turn = np.array([(labels[right[:place]] == labels[i]).sum() for place, i in enumerate(right)])
    right = right[np.lexsort((labels[right], turn))] if len(right) else right
    return [*right[: _EXAMPLES - len(wrong)], *wrong]


def _curves(outcome):
    runs = (
        ("pre-training, digits 0 to 4", outcome.pretraining_metrics),
        ("fine-tuning, all ten digits", outcome.finetuning_metrics),
    )

    def chart(key, label, **options):
        series = []
        for name, lines in runs:
            points = [(line["step"], line[key]) for line in lines if key in line]
            series.append(html.Series(name, *zip(*points, strict=True)))
        return html.line_chart(series, "step", label, **options)

    return html.section(
        "Learning curves",
        "Fine-tuning starts from a head of zeros, where every class is equally likely.",
        html.row(
            html.figure(
                "Training loss",
                chart("loss", "training loss"),
                "Cross-entropy, mean since the last point, with dropout and random crops.",
            ),
            html.figure(
                "Accuracy on validation images",
                chart("eval_accuracy", "validation accuracy", percent=True),
                "Measured during training on images that are neither trained on nor tested on.",
            ),
        ),
    )


def _learned(outcome):
    model = outcome.model
    # The digits are grey: only the sum of a filter over the colours was trained.
    kernel = model.patch_embedding.kernel.numpy().sum(axis=2, keepdims=True)
    components, values = inspection.filter_components(kernel, _MAX_COMPONENTS)
    share = float((values[:4] ** 2).sum() / (values**2).sum())
    pictures = inspection.to_unit_range(components, axis=(1, 2, 3))[..., 0]
    pictures = _opaque(inspection.colorize(pictures))
    blocks = [
        html.figure(
            "Patch filters",
            html.picture(
                inspection.tile(pictures, columns=4, fill=0),
                _SHEET,
                "principal components of the patch filters",
            ),
            f"The {len(components)} largest principal components of the patch embedding, summed "
            "over red, green and blue, since the digits are grey; each scaled to its full range, "
            f"its sign arbitrary. The first four hold {share:.0%} of the variance.",
        )
    ]
    if model.position_embedding.table is not None:
        similarity = inspection.position_similarity(
            model.position_embedding.table.numpy(), model.grid, model.num_prefix_tokens
        )
        rows, columns = model.grid
        maps = _opaque(inspection.colorize((similarity.reshape(-1, rows, columns) + 1) / 2))
        blocks.append(
            html.figure(
                "Position similarity",
                html.picture(
                    inspection.tile(maps, columns, fill=0),
                    _SHEET,
                    "similarity of the position embeddings",
                ),
                "One tile per patch: cosine similarity of its position embedding with all others, "
                "from -1 (violet) to 1 (yellow). Neighbours are alike: in part because stretching "
                "to a finer grid interpolates, in part because training made them so.",
            )
        )
    return html.section(
        "What the model learned",
        "The embedding of patches and positions after fine-tuning (paper, figure 7).",
        html.row(*blocks),
    )


def _attention(outcome):
    images = (outcome.inputs + 1) / 2
    layers = outcome.attention.shape[1]
    rows = [("image", list(images))]
    for layer in range(layers):
        maps = inspection.to_unit_range(outcome.attention[:, layer], axis=(1, 2))
        rows.append((f"layer {layer + 1}", list(inspection.colorize(maps))))
    seen = inspection.to_unit_range(outcome.attention[:, -1], axis=(1, 2))[..., None]
    seen = tf.image.resize(seen, images.shape[1:3]).numpy()
    rows.append(("image × last", list(images * np.sqrt(seen))))
    return html.section(
        "What the class token looks at",
        "Attention from the class token to each patch, mean over the heads, each map scaled to "
        "its own range: violet is least, yellow is most. The last row multiplies the image with "
        "the square root of the last map.",
        html.picture_table(rows, 78),
    )


def _opaque(images):
    """RGB to RGBA, `[n, h, w, 4]`: gaps that `inspection.tile` fills with 0 are transparent."""
    return np.concatenate([images, np.ones((*images.shape[:3], 1))], axis=-1)


def _size(experiment):
    height, width = experiment.model.image_size
    return f"{height} x {width} pixels"


def _footer():
    ops = "compiled ops" if custom_ops.is_compiled() else "TensorFlow's own ops"
    return (
        f"{datetime.datetime.now():%Y-%m-%d %H:%M}, TensorFlow {tf.__version__} with {ops}, Python "
        f"{platform.python_version()}, {os.cpu_count()} CPU cores, {platform.system()} "
        f"{platform.machine()}."
    )

"""Evaluates a model on a labeled data set."""

import dataclasses
import typing

from absl import flags

from pipelines.cli import command, model_flags, request, shared_flags
from pipelines.config.data import NAMING_FIELDS, Data
from pipelines.config.names import Benchmark
from pipelines.distribution.group import current_group

DESCRIPTION = """Evaluates a model on data.eval_split; every example counts once.

A run is evaluated on its own data, any other model on the data of --experiment; --set changes the
data. The architecture, the preprocessing, the loss and the dtype are the same as in training. Only
a file that stores no preprocessing takes data.resize and the other fields of preprocessing, and
train.loss. The result has the throughput in images per second. --report DIR writes a page with the
confusion matrix, numbers of each class, calibration and mistakes as pictures, and its numbers and
the prediction for each image as files.

--benchmark evaluates a model of ImageNet's classes by the protocol of the paper, and prints the
result beside the paper's, with what differs. Data that are not there are named; none are
downloaded.

example: python -m pipelines.evaluate --model runs/pretrain-digits --set data.eval_split=validation
"""

# The fields of an experiment that an evaluation uses.
_DATA_FIELDS = (
    *NAMING_FIELDS,
    "data.eval_split",
    "data.bad_images",
    "train.batch_size",
)
# Fields that are used only if the model is stored without its preprocessing.
FIELDS = (*_DATA_FIELDS, *(f"data.{name}" for name in Data().preprocessing_fields()), "train.loss")


def define(values):
    model_flags.define_model(values, f"{model_flags.MODEL_KINDS}, or LiteRT or ONNX export")
    model_flags.define_fused(values)
    shared_flags.define_json(values)
    flags.DEFINE_enum(
        "benchmark",
        None,
        typing.get_args(Benchmark),
        "Evaluate on ImageNet's validation images, on the same with ReaL's lists of labels, or on "
        "ObjectNet, as the paper does; data.name and data.data_dir say where they are.",
        flag_values=values,
    )
    flags.DEFINE_string(
        "label_map",
        None,
        "File with the model's class for each class of the data, if they differ: a name or index "
        "per line, or JSON. Other classes of the model are left out before the softmax. `wordnet`, "
        "for data of ImageNet and published heads: the classes by their WordNet ids.",
        flag_values=values,
    )
    flags.DEFINE_integer(
        "max_batches",
        0,
        "Largest number of batches, spread evenly over the data; 0 takes all.",
        lower_bound=0,
        flag_values=values,
    )
    flags.DEFINE_string(
        "report",
        None,
        "Directory or URL for report.html, report.json, predictions.csv, confusion.csv and "
        "confusion.png.",
        flag_values=values,
    )


def main(values, arguments):
    del arguments
    from pipelines.evaluation.benchmarks import run as benchmarks
    from pipelines.stored_models import model_source

    if values.benchmark:
        own = f"benchmark={values.benchmark}"
        shared_flags.refuse(values, own, ("report", "label_map"), "it has its own protocol")
    path, weights = model_flags.model_path_and_weights(values)
    source = model_source.find(path, weights, values.labels, model_source.RUNTIME_FILES)
    opening = model_flags.opening(values)
    fields = _DATA_FIELDS if source.has_preprocessing() else FIELDS
    if values.benchmark:
        fields = tuple(name for name in fields if name != "data.exif")  # It turns no image.
    reason = f"{source.name} is evaluated as it was trained"
    defaults = benchmarks.data_settings(values.benchmark) if values.benchmark else ()
    experiment = request.experiment(values, source.workdir, fields, reason, defaults)
    strategy = request.strategy(values)
    opening = dataclasses.replace(
        opening,
        assumed=request.assumed_preprocessing(values, experiment.data),
        activation=experiment.train.loss,
    )
    if values.benchmark:
        means = benchmarks.run(
            values.benchmark,
            source,
            experiment.data,
            strategy,
            batch_size=experiment.train.batch_size,
            opening=opening,
            max_batches=values.max_batches,
        )
    else:
        means = _evaluate(values, source, experiment, strategy, opening)
    if not current_group().is_chief:
        return
    if values.json:
        shared_flags.print_json(means)
        return
    means.pop("paper", None)
    lines = means.pop("comparison", [])
    for name, value in means.items():
        whole = isinstance(value, int) or name == "images_per_second"
        text = value if isinstance(value, str) else f"{value:,.0f}" if whole else f"{value:.4f}"
        print(f"{name}: {text}")
    for line in lines:
        print(line)


def _evaluate(values, source, experiment, strategy, opening):
    """Evaluates on the data of the experiment."""
    from pipelines.evaluation.evaluate import evaluate

    return evaluate(
        source,
        request.eval_source(experiment.data, "evaluate"),
        strategy,
        batch_size=experiment.train.batch_size,
        bad_images=experiment.data.bad_images,
        opening=opening,
        label_map=values.label_map,
        max_batches=values.max_batches,
        report=values.report,
    )


if __name__ == "__main__":
    command.run(main, DESCRIPTION, define, fields=FIELDS)

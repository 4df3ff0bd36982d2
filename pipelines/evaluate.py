"""Evaluates a model on a labeled data set."""

import dataclasses

from absl import flags

from pipelines.cli import command, request, shared_flags
from pipelines.cli.output import print_json
from pipelines.config.data import Data

DESCRIPTION = """Evaluates a model on data.eval_split; every example counts once.

A run is evaluated on its own data, any other model on the data of --experiment; --set changes the
data. The architecture, the preprocessing, the loss and the dtype are the same as in training. Only
a file that stores no preprocessing takes data.resize and the other fields of preprocessing, and
train.loss. The result has the throughput in images per second. --report DIR writes a page with the
confusion matrix, numbers of each class, calibration and mistakes as pictures, and its numbers and
the prediction for each image as files.

example: python -m pipelines.evaluate --model runs/pretrain-digits --set data.eval_split=validation
"""

# The fields of an experiment that an evaluation uses.
_DATA_FIELDS = (
    "data.name",
    "data.data_dir",
    "data.label",
    "data.eval_split",
    "data.bad_images",
    "train.batch_size",
)
# Fields that are used only if the model is stored without its preprocessing.
FIELDS = (*_DATA_FIELDS, *(f"data.{name}" for name in Data().preprocessing_fields()), "train.loss")


def define(values):
    shared_flags.define_model(values)
    shared_flags.define_fused(values)
    shared_flags.define_json(values)
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
    from pipelines.data.sources.open import open_source
    from pipelines.data.sources.splits import choose_splits
    from pipelines.errors import UserError
    from pipelines.evaluation.evaluate import evaluate
    from pipelines.stored_models import model_source

    source = model_source.find(*request.model_path_and_weights(values), values.labels)
    opening = request.opening(values)
    fields = _DATA_FIELDS if source.has_preprocessing() else FIELDS
    reason = f"{source.name} is evaluated as it was trained"
    experiment = request.experiment(values, source.workdir, fields, reason)
    strategy = request.strategy(values)
    data = choose_splits(experiment.data, training=False)
    if data.eval_split is None:
        raise UserError("data.eval_split is none: there is nothing to evaluate. Set it to a split.")
    opening = dataclasses.replace(
        opening, assumed=data.preprocessing_fields(), activation=experiment.train.loss
    )
    means = evaluate(
        source,
        open_source(data.name, data.eval_split, data.data_dir, data.label),
        strategy,
        batch_size=experiment.train.batch_size,
        bad_images=data.bad_images,
        opening=opening,
        label_map=values.label_map,
        max_batches=values.max_batches,
        report=values.report,
    )
    if values.json:
        print_json(means)
    else:
        for name, value in means.items():
            whole = isinstance(value, int) or name == "images_per_second"
            print(f"{name}: {value:,.0f}" if whole else f"{name}: {value:.4f}")


if __name__ == "__main__":
    command.run(main, DESCRIPTION, define, fields=FIELDS)

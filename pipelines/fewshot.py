"""Evaluates the features of a model with a few labeled images of each class."""

import os

from absl import flags

from pipelines.cli import command, model_flags, request, shared_flags
from pipelines.config.data import NAMING_FIELDS, Data
from pipelines.errors import UserError

DESCRIPTION = """Evaluates the features that a model computes, without its head: regularized least
squares from a few images of each class of data.train_split, tested on data.eval_split (the paper's
few-shot accuracy), and from all of them k nearest neighbors and a linear probe. Writes
fewshot.json, fewshot.html and the features, which the next call uses, into --output.

A run is evaluated on its own data, any other model on the data of --experiment; --set changes the
data.

example: python -m pipelines.fewshot --model runs/pretrain-digits --shots 1,5
"""

# The fields of an experiment that a few-shot evaluation uses.
_DATA_FIELDS = (
    *NAMING_FIELDS,
    "data.train_split",
    "data.eval_split",
    "data.bad_images",
    "train.batch_size",
)
# Fields that are used only if the model is stored without its preprocessing.
FIELDS = (*_DATA_FIELDS, *(f"data.{name}" for name in Data().preprocessing_fields()))


def define(values):
    own = {"flag_values": values}
    model_flags.define_model(values, labels=False)
    flags.DEFINE_string("shots", "1,5,10,25", "Training images of each class: numbers.", **own)
    flags.DEFINE_string(
        "l2",
        "1,32,1024,32768",
        "Strengths of the regularization; with n at the end multiples of the number of training "
        "images that are used, such as 0.1n. The page shows 1024 first, or the first one given.",
        **own,
    )
    flags.DEFINE_integer(
        "seeds",
        3,
        "Selections of training images, with the seeds 0, 1 and so on.",
        lower_bound=1,
        upper_bound=1000,
        **own,
    )
    flags.DEFINE_bool("knn", True, "Classify by k nearest neighbors too.", **own)
    flags.DEFINE_bool("probe", True, "Fit a linear probe too.", **own)
    shared_flags.define_output(
        values, "Directory of the results; by default fewshot in a workdir, else runs/fewshot."
    )
    shared_flags.define_json(values)


def main(values, arguments):
    del arguments
    from pipelines.evaluation.few_shot import Strength, check_settings

    shots = sorted(_numbers("shots", values.shots, int))
    l2 = _numbers("l2", values.l2, Strength.parse)
    check_settings(shots, [strength.value for strength in l2])
    from pipelines.data.sources.open import choose_splits, open_split
    from pipelines.evaluation import few_shot_report
    from pipelines.stored_models import model_source
    from pipelines.stored_models.stored_model import Opening

    source = model_source.find(*model_flags.model_path_and_weights(values))
    fields = _DATA_FIELDS if source.has_preprocessing() else FIELDS
    reason = f"only the features of {source.name} are evaluated"
    experiment = request.experiment(values, source.workdir, fields, reason)
    strategy = request.strategy(values)
    data = choose_splits(experiment.data)
    if data.eval_split is None:
        raise UserError("data.eval_split is none: there is nothing to test on. Set it to a split.")
    folder = os.path.join(source.workdir.path if source.workdir else "runs", "fewshot")
    record = few_shot_report.run(
        source,
        [open_split(data, split) for split in (data.train_split, data.eval_split)],
        strategy,
        few_shot_report.Settings(
            shots=tuple(shots),
            l2=tuple(l2),
            seeds=values.seeds,
            neighbors=values.knn,
            probe=values.probe,
        ),
        output=values.output or folder,
        batch_size=experiment.train.batch_size,
        bad_images=data.bad_images,
        opening=Opening(assumed=request.assumed_preprocessing(values, data)),
    )
    if record is None:
        return  # The chief prints.
    shared_flags.print_result(values, record, few_shot_report.text)


def _numbers(flag, text, kind):
    """The numbers of a flag, each once, in their order."""
    try:
        return list(dict.fromkeys(map(kind, text.split(","))))
    except ValueError:
        what = "whole numbers" if kind is int else "numbers"
        raise UserError(
            f"--{flag}={text} is not readable. Expected {what} with commas between them, such as "
            "1,5,10."
        ) from None


if __name__ == "__main__":
    command.run(main, DESCRIPTION, define, fields=FIELDS)

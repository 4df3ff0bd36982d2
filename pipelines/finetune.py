"""Trains a model from existing weights, with a new head."""

import dataclasses

from absl import flags

from pipelines import cli

DESCRIPTION = """Fine-tunes: the whole head is replaced by zeros, positions are resized to the new
image size (paper, section 3.2). Start the same command again to resume.

example: python -m pipelines.finetune --init_from runs/pretrain-digits --set model.image_size=24
"""


def define(values):
    flags.DEFINE_string(
        "init_from",
        None,
        "Workdir, .npz or .keras file to start from; by default init_from of the recipe, else "
        "the model shipped with the package.",
        flag_values=values,
    )
    cli.define_weights(values, default=None)
    cli.define_extend(values)
    cli.define_dry_run(values)


def main(values, arguments):
    del arguments
    experiment = cli.experiment(values, values.init_from, values.weights)
    workdir = cli.workdir(values, "finetune")
    strategy = cli.strategy(values)
    from pipelines.runs.model_source import SHIPPED
    from pipelines.training.dry_run import dry_run
    from pipelines.training.loop import train

    if experiment.init_from is None:
        experiment = dataclasses.replace(experiment, init_from=SHIPPED)
    if values.dry_run:
        dry_run(experiment, workdir, strategy, values.extend, cli.origin(values))
    else:
        train(experiment, workdir, strategy, values.extend, cli.origin(values))


if __name__ == "__main__":
    cli.run(main, DESCRIPTION, define)

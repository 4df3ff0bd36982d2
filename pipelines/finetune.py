"""Trains on from existing weights, with a new head."""

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
        "Workdir, .npz or .keras file to start from; by default what the recipe names, else the "
        "model shipped with the package.",
        flag_values=values,
    )
    cli.define_weights(values)


def main(values, arguments):
    del arguments
    # The default of the flag leaves what --set says.
    weights = values.weights if values["weights"].present else None
    experiment = cli.experiment(values, values.init_from, weights)
    strategy = cli.strategy(values)
    from pipelines.runs import model_source
    from pipelines.training import loop

    if experiment.init_from is None:
        experiment = cli.experiment(values, model_source.SHIPPED, weights)
    loop.train(experiment, cli.workdir(values, "finetune"), strategy)


if __name__ == "__main__":
    cli.run(main, DESCRIPTION, define)

"""Trains a model from existing weights, with a new head."""

from absl import flags

from pipelines import cli

DESCRIPTION = """Fine-tunes: the whole head is replaced by zeros, positions are resized to the new
image size (paper, section 3.2). The architecture is that of --init_from. For photos, the optimizer
and the schedule are the paper's; what was chosen is printed, and --set changes it. Start the same
command again to resume.

example: python -m pipelines.finetune --init_from ViT-B_16.npz --set data.name=folder:/data/pets
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
    start, assignments = cli.start(values), list(values.set)
    for name, value in (("init_from", values.init_from), ("init_weights", values.weights)):
        if value is not None:
            assignments.append(f"{name}={value}")
    workdir = cli.workdir(values, "finetune")
    strategy = cli.strategy(values)
    from pipelines.training.dry_run import dry_run
    from pipelines.training.fine_tuning import choose
    from pipelines.training.loop import train

    # A file holds every setting of a run, so nothing is left to choose.
    experiment = choose(start, assignments, workdir, cli.print_note, values.config is not None)
    run = dry_run if values.dry_run else train
    origin, assigned = cli.origin(values), cli.assigned(values)
    run(experiment, workdir, strategy, values.extend, origin=origin, assigned=assigned)


if __name__ == "__main__":
    cli.run(main, DESCRIPTION, define)

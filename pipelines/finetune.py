"""Trains a model from existing weights, with a new head."""

from absl import flags

from pipelines.cli import command, model_flags, request
from pipelines.distribution import onednn
from pipelines.runs import manifest

DESCRIPTION = """Fine-tunes: the whole head is replaced by zeros, positions are resized to the new
image size (paper, section 3.2). --init_from sets the architecture. For photos, the optimizer and
the schedule are the paper's; the choices are printed, and --set changes them. Start the same
command again to resume.

example: python -m pipelines.finetune --init_from ViT-B_16.npz --set data.name=folder:/data/pets
"""
LOGS_TO = "stdout"


def define(values):
    flags.DEFINE_string(
        "init_from",
        None,
        f"{model_flags.MODEL_KINDS}; by default init_from of the recipe, else the model shipped "
        "with the package, which photos do not take.",
        flag_values=values,
    )
    model_flags.define_weights(values, default=None)
    request.define_training(values)


def main(values, arguments):
    del arguments
    begin, asked = request.read(values)
    workdir = request.workdir(values, "finetune", begin, asked)
    onednn.choose(manifest.onednn_of(workdir))
    strategy = request.strategy(values)
    from pipelines.training import fine_tuning
    from pipelines.training.dry_run import dry_run
    from pipelines.training.train import train

    replicas = strategy.num_replicas_in_sync
    experiment, asked = fine_tuning.choose(
        begin, asked, workdir, values.config is not None, replicas
    )
    run = dry_run if values.dry_run else train
    run(experiment, workdir, strategy, asked)


if __name__ == "__main__":
    command.run(main, DESCRIPTION, define, logs_to=LOGS_TO)

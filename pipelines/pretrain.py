"""Trains a model from scratch."""

from pipelines.cli import command, request
from pipelines.distribution import onednn
from pipelines.runs import manifest

DESCRIPTION = """Trains a model from scratch. Start the same command again to resume.

example: python -m pipelines.pretrain --experiment digits --set train.steps=500
"""
LOGS_TO = "stdout"


def define(values):
    request.define_training(values)


def main(values, arguments):
    del arguments
    begin, asked = request.read(values)
    workdir = request.workdir(values, "pretrain", begin, asked)
    onednn.choose(manifest.onednn_of(workdir))
    experiment = request.pretraining(begin, asked)
    strategy = request.strategy(values)
    from pipelines.training.dry_run import dry_run
    from pipelines.training.train import train

    run = dry_run if values.dry_run else train
    run(experiment, workdir, strategy, asked)


if __name__ == "__main__":
    command.run(main, DESCRIPTION, define, logs_to=LOGS_TO)
